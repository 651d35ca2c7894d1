"""What would do nothing where it stands is refused."""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest
from tests.said import said

WHY = "--reason why"


@pytest.mark.parametrize(
    "refused",
    [
        # Options of today that would do nothing: whoever gives one means what it is for.
        f"dead --redrive --all --yes --limit 5 {WHY}",
        f"dead run_1 --drop --page 3 {WHY}",
        f"dead run_1 {WHY}",
        "dead run_1 --agent desk",
        "hold hold_1 --claim --note noon",
        "hold hold_1 --waits all",
        "hold hold_1 --claim --group",
        f"hold hold_1 {WHY}",
        f"budget desk {WHY}",
        "budget --command-id a",
        "pubsub --apply --limit 3",
        f"pubsub {WHY}",
        "explain --error no-space --html page.html",
        "verify rows --archive folder",
        f"memory set active {WHY}",
        f"memory set cnd_1 off --as stop {WHY}",
    ],
)
def test_what_would_not_be_done_as_said_is_refused(tmp_path: Path, refused: str) -> None:
    done = said(tmp_path, *shlex.split(refused), "--json")
    assert (done.code, done.out, done.error["code"]) == (2, "", "usage")

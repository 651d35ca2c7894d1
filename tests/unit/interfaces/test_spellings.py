"""Words of the command line: what was spelled otherwise, and what would do nothing where it is."""

from __future__ import annotations

import json
import shlex
from pathlib import Path

import pytest
from tests.said import said

from vedette.interfaces.cli.old_spellings import translate

WHY = "--reason why"


@pytest.mark.parametrize(
    ("old", "now"),
    [
        # A text may begin with a dash, and an option may lack its value: nothing moves into it.
        ("hold note hold_1 -- --noon", "hold hold_1 --note=--noon"),
        ("hold note hold_1", "hold hold_1 --note"),
        ("hold note --help", "hold --help"),
        (f"pubsub redrive --most 3 {WHY}", f"pubsub --limit 3 {WHY} --redrive"),
        ("pubsub redrive --help", "pubsub --help"),
        # Without a time it was no order, and it is no question either.
        (f"budget raise desk {WHY}", f"budget desk {WHY} --raise"),
        # What did nothing does nothing.
        ("replay --judges --engine wasm", "verify judgements"),
        (f"store copy --to URL --command-id a {WHY}", f"migrate {WHY} URL"),
        ("restore --from F --no-witness --command-id a", "restore F --witness=none"),
        ("restore --from F --settled --command-id a", "restore F --settled --command-id a"),
        ("worker --agent a --identity f --audience b", "worker --agent a --identity f"),
    ],
)
def test_a_spelling_of_before_is_all_that_it_was(old: str, now: str) -> None:
    assert translate(shlex.split(old))[0] == shlex.split(now)


@pytest.mark.parametrize(
    "refused",
    [
        # Spellings of before that were refused, and are not made into what does more.
        f"approve --group hold_1 {WHY}",
        f"deny --group= --yes {WHY}",
        f"ledger archive --before 2026-05-01 --keep 9d {WHY}",
        f"restore --from F --witness W --no-witness {WHY}",
        "hold note hold_1",
        f"budget raise desk {WHY}",
        f"pubsub redrive --most 3 {WHY}",
        f"memory approve {WHY}",
        f"memory on {WHY}",
        f"memory reject {WHY}",
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


@pytest.mark.parametrize("verb", ["hold", "dead"])
def test_what_needed_a_name_lists_nothing_without_it(verb: str) -> None:
    assert translate([verb, "show"]) == ([verb, "show"], None)
    assert translate([verb, "show", "--help"])[0] == [verb, "--help"]


def test_an_error_says_of_a_spelling_of_before_what_it_is_now(tmp_path: Path) -> None:
    done = said(tmp_path, "budget", "raise", "desk", "--reason", "why")
    hint, error = done.err.splitlines()
    assert "this is now `vedette budget AGENT --raise TIME`" in hint
    assert error == "error[usage]: Option '--raise' requires an argument"
    assert json.loads(said(tmp_path, "hold", "note", "hold_1", "--json").err).keys() == {"error"}

"""A publication ends though another worker does not say that it has heard, and tells which."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from vedette.interfaces.cli.policy import publication_text
from vedette.store.sqlite.sole_worker import SoleWorker
from vedette.testing.harness import FleetHarness, copy_policies


def edited(folder: Path, words: str) -> Path:
    to = copy_policies(folder / words)
    denies = to / "denies" / "data.yaml"
    denies.write_text(denies.read_text() + f"# {words}\n")
    return to


def silence(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the store wait for a worker that never answers."""

    async def for_ever(cluster: SoleWorker) -> None:
        await asyncio.Event().wait()

    monkeypatch.setattr(SoleWorker, "wait_for_barrier", for_ever)
    monkeypatch.setattr(SoleWorker, "lagging_workers", ["quay-2"])


async def test_who_is_behind_is_told_and_the_next_publication_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with FleetHarness(tmp_path / "fleet") as fleet:
        # Not before: the first publication would wait with a patience of its own.
        silence(monkeypatch)
        commands, fleet.app.rollout.patience_s = fleet.app.commands, 0.05
        for number, words in enumerate(("one", "two"), start=2):
            applied = commands.policy_apply(fleet.order("it must be"), edited(tmp_path, words))
            done = await asyncio.wait_for(applied, 30)
            assert (done["ok"], done["revision"], done["behind"]) == (True, number, ["quay-2"])
            assert fleet.app.services.gateway.policy_rev == number
            said = publication_text(done)
            assert "not known to be in force at worker quay-2" in said
            assert "everywhere" not in said


async def test_where_all_have_heard_nobody_is_named(tmp_path: Path) -> None:
    """The control."""
    async with FleetHarness(tmp_path / "fleet") as fleet:
        order = fleet.order("it must be")
        done = await fleet.app.commands.policy_apply(order, edited(tmp_path, "one"))
        assert (done["ok"], done["behind"]) == (True, [])
        assert "is live everywhere after" in publication_text(done)

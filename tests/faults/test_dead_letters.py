"""A redrive killed at any durable write: the letter is taken up exactly once, or still there.

The target keeps its own record in a file, so what happened is not taken from the ledger's word.
"""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from vedette.domain.base.errors import AlreadyDone
from vedette.domain.effect import Call
from vedette.store import dead_letters
from vedette.store.row_mapper import read_run
from vedette.testing.faults import is_single_threaded, run_in_child
from vedette.testing.harness import FleetHarness
from vedette.testing.toy_fleet import JUDGE_PY, World, job, note_proposal, send_proposal, toy_fleet

FAILS: dict[str, Any] = {"raise": True}
EVENT = job("1", note_proposal("x"), send_proposal(), **FAILS)
# No more schedules than this are tried of all that there are, evenly spread.
MOST = 5

pytestmark = [pytest.mark.slow, pytest.mark.forks, pytest.mark.timeout(300)]


def fleet_at(folder: Path, base: Path) -> FleetHarness:
    """Return the fleet of `base` with its state and its target's record in `folder`."""
    world = World()

    def record(call: Call) -> None:
        with (folder / "happened").open("a") as file:
            file.write(f"{call.key}\n")

    world.answer = record
    target = {"world": {"kind": "world", "world": world}}
    return FleetHarness(
        folder, content=base / "content", policies=base / "policies", targets=target
    )


async def die(base: Path) -> None:
    """Write a fleet whose judge fails, and let it fail."""
    async with toy_fleet(base, World()) as fleet:
        await fleet.send(EVENT)
        await fleet.wait_until_idle()
        assert [run.state for run in fleet.runs(EVENT)] == ["dead"]
    mended = JUDGE_PY.replace('data.get("raise")', "False")
    (base / "content" / "agents" / "worker" / "judge.py").write_text(mended)


async def redrive(folder: Path, base: Path) -> None:
    """Give the order under one id, however often this is done, and act on it."""
    async with fleet_at(folder, base) as fleet:
        order = replace(fleet.order("mended"), command_id="once")
        with suppress(AlreadyDone):
            await fleet.app.commands.redrive(order, [run.id for run in fleet.runs(EVENT)])
        await fleet.wait_until_idle()


async def check(folder: Path, base: Path) -> None:
    async with fleet_at(folder, base) as fleet:
        assert [run.state for run in fleet.runs(EVENT)] == ["done"]
        assert fleet.app.store.runs.row("worker_notes", "k") == {"texts": ["x"]}
        assert len(fleet.entries("run.redriven")) == 1
        assert len(fleet.entries("turn.reasoned")) == 1
        assert len(fleet.entries("effect.done")) == 2
    # The target knows keys: a repeat under one is no second effect.
    assert len(set((folder / "happened").read_text().split())) == 1


def forked(work: Callable[[Path, Path], Any], folder: Path, base: Path, **more: Any) -> Any:
    return run_in_child(lambda: asyncio.run(work(folder, base)), **more)


def fresh(base: Path, folder: Path) -> Path:
    folder.mkdir()
    shutil.copytree(base / "state", folder / "state")
    return folder


def test_a_redrive_killed_anywhere_happens_once(tmp_path: Path) -> None:
    assert is_single_threaded()
    base = tmp_path / "base"
    assert not run_in_child(lambda: asyncio.run(die(base))).error
    undisturbed = forked(redrive, fresh(base, tmp_path / "whole"), base)
    assert not undisturbed.error
    assert undisturbed.passes >= MOST
    assert not forked(check, tmp_path / "whole", base).error
    step = -(-undisturbed.passes // MOST)
    killed = 0
    for at in range(1, undisturbed.passes + 1, step):
        folder = fresh(base, tmp_path / f"{at}")
        killed += forked(redrive, folder, base, die_at=at).killed
        assert not forked(redrive, folder, base).error
        found = forked(check, folder, base)
        assert not found.error, f"killed at pass {at}: {found.error}"
    assert killed >= MOST - 2, "most of them were killed indeed"


def test_a_redrive_without_its_command_id_would_be_seen(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Negative control: a redrive of what is no dead letter happens twice, and is found."""

    def careless(database: Any, name: str) -> Any:
        run = read_run(database, name)
        assert run is not None
        run.state = "dead"
        return run

    base = tmp_path / "base"
    assert not run_in_child(lambda: asyncio.run(die(base))).error
    folder = fresh(base, tmp_path / "twice")
    assert not forked(redrive, folder, base).error

    async def redrive_twice(folder: Path, base: Path) -> None:
        async with fleet_at(folder, base) as fleet:
            await fleet.app.commands.redrive(
                fleet.order("twice"), [run.id for run in fleet.runs(EVENT)]
            )

    monkeypatch.setattr(dead_letters, "read_run", careless)
    forked(redrive_twice, folder, base)
    assert "AssertionError" in forked(check, folder, base).error

"""What a start finds in the store: events are read a few at a time, as their runs are handled."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import apsw
import pytest
from msgspec.structs import replace

from vedette.store.read_runs import RunReader
from vedette.store.segment import pack_entries, unpack_segment
from vedette.testing.harness import FleetHarness
from vedette.testing.toy_fleet import World, job, send_proposal, toy_fleet, wait_until


async def stopped_with(folder: Path, world: World, count: int, pad: str = "") -> FleetHarness:
    """Return a closed fleet whose store has runs that nobody began, and no stop any more."""
    fleet = toy_fleet(folder, world)
    await fleet.open()
    await fleet.app.commands.stop(fleet.order(), agent="worker")
    jobs = [job(f"n{n}", send_proposal(f"n{n}"), key=f"k{n}", pad=pad) for n in range(count)]
    await fleet.send(*jobs)
    await fleet.close()
    with apsw.Connection(str(folder / "state" / "store.db")) as database:
        database.execute("DELETE FROM stop")
    return fleet


def edit_accepted(folder: Path, number: int, raw: bytes) -> None:
    """Put other bytes in the place of an accepted event's entry."""
    with apsw.Connection(str(folder / "state" / "store.db")) as database:
        rows = database.execute("SELECT position FROM run ORDER BY position").fetchall()
        at = rows[number][0]
        segments: list[Any] = database.execute(
            "SELECT last, first, entries, bodies FROM segment WHERE last>=? ORDER BY last", (at,)
        ).fetchall()
        last, first, packed, bodies = segments[0]
        entries = [
            replace(one, raw=raw) if one.seq == at else one
            for one in unpack_segment(first, last, packed, bodies).entries()
        ]
        edited = pack_entries(entries)
        database.execute("UPDATE segment SET entries=? WHERE last=?", (edited, last))


def count_done(fleet: FleetHarness) -> int:
    page = fleet.app.store.runs.runs_page(agent="worker", state="done", before=None, limit=9)
    return len(page)


@pytest.mark.parametrize("raw", [b"no json", b"[1]"])
async def test_an_entry_that_is_none_concerns_its_own_run(tmp_path: Path, raw: bytes) -> None:
    world = World()
    fleet = await stopped_with(tmp_path, world, 3)
    edit_accepted(tmp_path, 1, raw)
    async with fleet:
        await wait_until(lambda: count_done(fleet) == 2, 15)
        assert world.effects("wire.send") == 2


async def test_events_are_read_a_few_at_a_time_as_their_runs_are_handled(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not at the start, which would wait for all of them, and not one by one."""
    world, count = World(), 60
    fleet = await stopped_with(tmp_path, world, count, pad="x" * 20_000)
    asked: list[int] = []
    read = RunReader.events_at

    def read_and_count(self: RunReader, positions: Any) -> Any:
        asked.append(len(positions))
        return read(self, positions)

    monkeypatch.setattr(RunReader, "events_at", read_and_count)
    async with fleet:
        memory = fleet.app.dispatcher.buffer.memory
        assert (memory.total, asked) == ((count, 0), [])
        await wait_until(lambda: world.effects("wire.send") == count, 30)
        await fleet.wait_until_idle()
        assert memory.total == (0, 0)
    assert max(asked) <= 17
    assert len(asked) < count // 4

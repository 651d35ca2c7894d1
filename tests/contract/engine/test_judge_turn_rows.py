"""Each turn of a judge that takes several is judged from its key's row as it then is."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from tests.contract.app.test_judge_replay import replay_all
from tests.judge_turns import (
    COUNT_ROW,
    COUNTER_PY,
    look,
    reader_fleet,
    row_texts,
    turns_job,
    turns_of,
)

from vedette.domain.event import Event
from vedette.domain.run import Step
from vedette.testing.harness import FleetHarness
from vedette.testing.toy_fleet import World, intercept_commits, note_proposal, send_proposal


def rows_seen(fleet: FleetHarness, event: Event) -> list[int]:
    """Return how many texts the row had that each turn of an event was shown."""
    return [len(turn["detail"]["row"].get("texts", [])) for turn in turns_of(fleet, event)]


async def slow_writes(step: Step) -> None:
    """Take long to commit a step that writes a row: a slow store, nothing else."""
    if step.rows:
        await asyncio.sleep(0.01)


@pytest.mark.parametrize("workers", [False, True], ids=["here", "workers"])
@pytest.mark.parametrize("is_slow", [False, True], ids=["quick", "slow"])
async def test_no_write_is_lost(tmp_path: Path, workers: bool, is_slow: bool) -> None:
    """Each run writes what it made of the row of before: none of them made it of an older one."""
    events = [turns_job(f"{at}", [look(f"{at}")] * (at % 3), [COUNT_ROW]) for at in range(12)]
    async with reader_fleet(tmp_path, World(), code=COUNTER_PY, workers=workers) as fleet:
        if is_slow:
            intercept_commits(fleet, slow_writes)
        await fleet.send(*events)
        await fleet.wait_until_idle(60)
        assert row_texts(fleet) == [str(at) for at in range(12)]
        report = await replay_all(fleet.app)
    assert (report.ok, report.equal) == (True, report.judgements)


async def test_a_later_turn_is_judged_again_from_the_row_that_it_saw(tmp_path: Path) -> None:
    """However many have written it since the run's event came."""
    events = [
        turns_job(f"{at}", [send_proposal("a", "big.send")], [note_proposal(f"{at}")])
        for at in range(16)
    ]
    async with reader_fleet(tmp_path, World()) as fleet:
        await fleet.send(turns_job("first", [note_proposal("first")]), *events)
        await fleet.wait_until_idle()
        await asyncio.gather(*(fleet.approve(fleet.actions(event)[0]) for event in events))
        await fleet.wait_until_idle()
        assert sorted(rows_seen(fleet, event)[1] for event in events) == [*range(1, 17)]
        report = await replay_all(fleet.app)
        assert (report.to_json()["differences"], report.equal) == ([], 33)


async def test_a_first_turn_sees_what_a_later_one_beside_it_writes(tmp_path: Path) -> None:
    late = [turns_job(f"{at}", [], [note_proposal(f"{at}")]) for at in range(12)]
    only = [turns_job(f"only {at}", [note_proposal(f"only {at}")]) for at in range(3)]
    async with reader_fleet(tmp_path, World()) as fleet:
        intercept_commits(fleet, slow_writes)
        await fleet.send(*late, *only)
        await fleet.wait_until_idle()
        written = row_texts(fleet)
        assert [rows_seen(fleet, one)[0] for one in only] == [written.index(o.id) for o in only]
        assert (await replay_all(fleet.app)).to_json()["differences"] == []

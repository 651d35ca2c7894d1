"""Runs of several turns end alike, whatever is refused, restarted or judged beside them."""

from __future__ import annotations

import asyncio
import tempfile
from pathlib import Path
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st
from tests.contract.app.test_judge_replay import replay_all
from tests.contract.engine.test_judging_ahead import disturb
from tests.judge_turns import COUNT_ROW, COUNTER_PY, look, reader_fleet, row_texts, turns_job

from vedette.domain.effect import Call, Outcome
from vedette.domain.event import Event
from vedette.testing.harness import FleetHarness
from vedette.testing.toy_fleet import World, note_proposal, propose, send_proposal

# What a turn may propose; each is over without a person. One turn proposes nothing.
PROPOSALS = st.sampled_from(
    [look("a"), look("b", "book.sure"), send_proposal("$notes"), send_proposal("fails"),
     note_proposal("$notes"), propose("no.such", to="x")]
)  # fmt: skip
TURNS = st.lists(st.lists(PROPOSALS, max_size=2), min_size=1, max_size=4)
# Each event's key; another of the key may come while its run is between two turns.
EVENTS = st.lists(st.tuples(st.sampled_from("ab"), TURNS), min_size=1, max_size=6)


def answer(call: Call) -> Outcome | None:
    if call.args.get("text") == "fails":
        return Outcome("failed", error="no")
    return Outcome("done", {"text": f"{call.tool} {call.args.get('name', '')}"})


def events_of(drawn: list[tuple[str, list[list[dict[str, Any]]]]]) -> list[Event]:
    return [turns_job(f"{at}", *turns, key=key) for at, (key, turns) in enumerate(drawn)]


def without_rows(body: dict[str, Any]) -> dict[str, Any]:
    """Return a turn without the row that it was shown: others write that when they come to it."""
    return {**body, "detail": {name: it for name, it in body["detail"].items() if name != "row"}}


def told(fleet: FleetHarness, events: list[Event]) -> list[Any]:
    """Return of each run where it stands and what its turns said, and what the rows hold."""
    found: list[Any] = []
    for event in events:
        (run,) = fleet.runs(event)
        turns = [without_rows(dict(turn)) for turn in fleet.app.store.runs.turns(run.id)]
        ends = [(row.tool, row.decided, row.effect) for row in fleet.actions(event)]
        found.append((run.state, run.turn, turns, ends))
    return [*found, *(sorted(row_texts(fleet, key)) for key in "ab")]


async def play(
    folder: Path, events: list[Event], seed: int | None, closes: int, **more: Any
) -> list[Any]:
    """Handle events, refusing some steps by a seed and closing the fleet so often in between."""
    world = World(answer=answer)
    async with reader_fleet(folder, world, **more) as fleet:
        if seed is not None:
            disturb(fleet, seed, 0.2)
        await fleet.send(*events)
        for _ in range(closes):
            await asyncio.sleep(0.02)
            await fleet.restart()
        for _ in range(200):
            await fleet.wait_until_idle()
            if all(run.state in ("done", "dead") for event in events for run in fleet.runs(event)):
                break
            await asyncio.sleep(0.02)
        report = await replay_all(fleet.app)
        assert report.to_json()["differences"] == []
        assert not report.unrecomputable
        assert report.equal == report.judgements == sum(fleet.runs(one)[0].turn for one in events)
        return told(fleet, events)


@settings(max_examples=12, deadline=None)
@given(drawn=EVENTS, seed=st.integers(0, 99), closes=st.integers(0, 3))
def test_what_is_disturbed_ends_as_what_is_not(
    drawn: list[tuple[str, list[list[dict[str, Any]]]]], seed: int, closes: int
) -> None:
    events = events_of(drawn)
    with tempfile.TemporaryDirectory() as folder:
        calm = asyncio.run(play(Path(folder, "calm"), events, None, 0))
        rough = asyncio.run(play(Path(folder, "rough"), events, seed, closes))
    assert rough == calm


@settings(max_examples=10, deadline=None)
@given(
    reads=st.lists(st.integers(0, 3), min_size=12, max_size=16),
    seed=st.integers(0, 99),
    closes=st.integers(0, 3),
)
def test_what_is_made_of_a_row_is_as_of_one_after_another(
    reads: list[int], seed: int, closes: int
) -> None:
    """Each event writes how many wrote before it, as if no other had been under way."""
    events = [
        turns_job(f"{at}", *[[look("a")]] * n, [COUNT_ROW], key="a") for at, n in enumerate(reads)
    ]
    with tempfile.TemporaryDirectory() as folder:
        *_, row, _ = asyncio.run(play(Path(folder), events, seed, closes, code=COUNTER_PY))
    assert row == sorted(str(at) for at in range(len(events)))

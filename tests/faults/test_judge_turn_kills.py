"""Killed between any two turns, or between a turn and its call: nothing is called twice, or judged
otherwise.
"""

from __future__ import annotations

import asyncio
import os
import signal
from pathlib import Path
from typing import Any

import pytest
from tests.contract.app.test_judge_replay import replay_all
from tests.judge_turns import answer_pages, reader_fleet, reading, row_texts, turns_of

from vedette.domain.effect import Call, Outcome
from vedette.domain.run import CommitResult, Step
from vedette.testing.faults import run_in_child
from vedette.testing.harness import FleetHarness
from vedette.testing.toy_fleet import World

EVENT = reading("1")
# Each of three turns and its call's outcome, and the last turn.
COMMITS = 7


def make_fleet(folder: Path) -> FleetHarness:
    """Return a fleet that writes its calls into a file, which outlives its process."""

    def answer(call: Call) -> Outcome | None:
        if call.tool.startswith("book."):
            with (folder / "calls").open("a", encoding="utf-8") as file:
                file.write(f"{call.args['name']}\n")
        return answer_pages(call)

    return reader_fleet(folder, World(answer=answer))


def die_after(fleet: FleetHarness, number: int) -> None:
    """Kill this process when so many of the fleet's steps stand, before anybody hears of it."""
    steps: Any = fleet.app.store.steps
    onward, stood = steps.send, 0

    def on_answer(_: asyncio.Future[CommitResult]) -> None:
        nonlocal stood
        stood += 1
        if stood == number:
            os.kill(os.getpid(), signal.SIGKILL)

    def send(step: Step) -> asyncio.Future[CommitResult]:
        answer: asyncio.Future[CommitResult] = onward(step)
        answer.add_done_callback(on_answer)
        return answer

    steps.send = send


def play(fleet: FleetHarness, *, die_at: int | None, send: bool) -> None:
    """Open the fleet, and let it come as far as it comes."""

    async def run() -> None:
        async with fleet:
            if die_at is not None:
                die_after(fleet, die_at)
            if send:
                await fleet.send(EVENT)
            await fleet.wait_until_idle()

    asyncio.run(run())


def outcome(fleet: FleetHarness) -> tuple[list[dict[str, Any]], list[str], int]:
    """Return the bodies of the turns, the row, and how many of them are judged again alike."""

    async def run() -> tuple[list[dict[str, Any]], list[str], int]:
        async with fleet:
            await fleet.wait_until_idle()
            report = await replay_all(fleet.app)
            return turns_of(fleet, EVENT), row_texts(fleet), report.equal

    return asyncio.run(run())


@pytest.fixture(scope="module")
def calm(tmp_path_factory: pytest.TempPathFactory) -> tuple[list[dict[str, Any]], list[str], int]:
    """What comes of it where nobody dies; that is COMMITS steps, or a kill is not tried."""
    fleet, steps = make_fleet(tmp_path_factory.mktemp("calm")), 0

    async def run() -> None:
        nonlocal steps
        async with fleet:
            await fleet.send(EVENT)
            await fleet.wait_until_idle()
            steps = fleet.runs(EVENT)[0].steps

    asyncio.run(run())
    assert steps == COMMITS
    return outcome(fleet)


@pytest.mark.parametrize("at", range(1, COMMITS + 1))
def test_killed_when_a_commit_has_just_stood(
    tmp_path: Path, calm: tuple[list[dict[str, Any]], list[str], int], at: int
) -> None:
    fleet = make_fleet(tmp_path)
    died = run_in_child(lambda: play(fleet, die_at=at, send=True))
    assert "ended by signal 9" in died.error
    ended = run_in_child(lambda: play(fleet, die_at=None, send=False))
    assert not ended.error, ended.error
    assert outcome(fleet) == calm
    assert (tmp_path / "calls").read_text("utf-8").split() == ["1.1", "1.2", "1.3"]

"""Events of a key are judged ahead of the commits before them; a commit that fails changes nothing.

Whatever is refused or lost on the way, every judgement is that of an undisturbed run.
"""

from __future__ import annotations

import asyncio
import random
from pathlib import Path
from typing import Any

import pytest

from vedette.domain.event import Event
from vedette.domain.run import CommitResult, Step
from vedette.judging.series import generate
from vedette.testing.harness import FleetHarness

KEYS = 3
ROWS = 420


def events() -> list[Event]:
    """Three series with a level shift, in the order in which three files would be replayed."""
    series = [
        generate(
            {"n": ROWS, "seed": 7 + key, "base": 3.2, "noise": 0.04}
            | {"shift_at": 300, "shift": 1.5}
        )
        for key in range(KEYS)
    ]
    return [
        Event(
            "csv:test", f"{key}:{row:05}", "metric.point", f"series_{key}",
            f"2026-03-02T{row // 60:02}:{row % 60:02}:00Z", {"value": values[row]},
        )
        for row in range(ROWS)
        for key, values in enumerate(series)
    ]  # fmt: skip


async def judged(fleet: FleetHarness, order: list[Event]) -> dict[str, tuple[Any, ...]]:
    """Send the events in batches and return what was judged of each."""
    for start in range(0, len(order), 64):
        await fleet.send(*order[start : start + 64])
    for _ in range(40):
        await fleet.wait_until_idle(60)
        if not fleet.app.dispatcher.pending:
            break
        await asyncio.sleep(0.1)
    assert not fleet.entries("run.dead")
    return {
        entry["event"]: (entry["label"], entry["score_milli"], entry["confidence_milli"])
        for entry in fleet.entries("run.closed", "turn.reasoned")
        if "score_milli" in entry
    }


def disturb(fleet: FleetHarness, seed: int, share: float) -> list[int]:
    """Let a seeded share of the steps be made under a policy that is not live any more."""
    draw = random.Random(seed)
    store = fleet.app.store
    send = store.steps.send
    refused: list[int] = []

    def sometimes(step: Step) -> asyncio.Future[CommitResult]:
        if step.policy_rev is not None and draw.random() < share:
            refused.append(step.policy_rev)
            step.policy_rev -= 1
        return send(step)

    store.steps.send = sometimes  # type: ignore[method-assign]
    return refused


@pytest.mark.parametrize("seed", [1, 2, 3])
async def test_refused_commits_change_no_judgement(tmp_path: Path, seed: int) -> None:
    order = events()
    async with FleetHarness(tmp_path / "calm") as fleet:
        calm = await judged(fleet, order)
    assert len(calm) == len(order)
    async with FleetHarness(tmp_path / "rough") as fleet:
        refused = disturb(fleet, seed, 0.03)
        rough = await judged(fleet, order)
    assert len(refused) > 10, "nothing was refused, so nothing was shown"
    assert rough == calm


async def test_several_events_of_a_key_are_on_their_way_at_once(tmp_path: Path) -> None:
    """The control: without judging ahead the test above would have nothing to disturb."""
    on_their_way = 0
    most = 0
    async with FleetHarness(tmp_path) as fleet:
        store = fleet.app.store
        send = store.steps.send

        def counted(step: Step) -> asyncio.Future[CommitResult]:
            nonlocal on_their_way, most
            on_their_way += 1
            most = max(most, on_their_way)

            def landed(_: asyncio.Future[CommitResult]) -> None:
                nonlocal on_their_way
                on_their_way -= 1

            future = send(step)
            future.add_done_callback(landed)
            return future

        store.steps.send = counted  # type: ignore[method-assign]
        await judged(fleet, [event for event in events() if event.subject == "series_0"])
    assert most > 4

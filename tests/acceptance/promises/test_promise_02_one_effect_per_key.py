"""Promise 2: one effect per key; with a control that shows the test can fail."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path

import pytest
from tests.acceptance.promises.common import SECOND, approve, first

from vedette import perform
from vedette.effect import Outcome
from vedette.testing.clock import ManualClock
from vedette.testing.harness import FleetHarness
from vedette.testing.toy import (
    World,
    denying,
    job,
    send,
    stick,
    toy_fleet,
    until,
    write_policies,
)


async def every_way_to_the_target(fleet: FleetHarness, world: World, clock: ManualClock) -> int:
    """Bring effects about by every way there is; return how many there should be."""
    commands = fleet.app.commands
    again = job("redelivered", send("redelivered"), key="1")
    await fleet.send(again, again)
    await fleet.settle()
    await fleet.send(again)

    stuck = stick(fleet)
    crashed = job("crashed", send("crashed"), key="2")
    moved = job("policy moved", send("policy moved"), key="3")
    await fleet.send(crashed, moved)
    await until(lambda: len(stuck.reached) == 2)
    await fleet.restart()
    await fleet.settle()
    fleet.app.line.slots = asyncio.Semaphore(0)
    between = job("between", send("between"), key="4")
    await fleet.send(between)
    await until(lambda: bool(fleet.actions(between)))
    await fleet.apply(write_policies(fleet.folder / "p2", extra=denying("no.such")))
    fleet.app.line.slots.release()
    await fleet.settle()
    assert first(fleet, between).decisions == 2
    await fleet.restart()

    commands = fleet.app.commands
    held = job("approved", send("approved", "big.send"), key="5")
    await fleet.send(held)
    await fleet.settle()
    await approve(fleet, first(fleet, held))
    await fleet.settle()
    await fleet.restart()
    await fleet.settle()

    commands = fleet.app.commands
    await commands.stop(fleet.order(), tool="wire.send")
    await fleet.send(job("resumed", send("resumed"), key="6"))
    await fleet.settle()
    await commands.resume(fleet.order(), tool="wire.send")
    await fleet.settle()

    # The target did it, and its answer was "not now": the repeat must be the same effect.
    world.answer = lambda call: Outcome("retry") if call.attempt == 1 else None
    world.after = True
    await fleet.send(job("retried", send("retried"), key="7"))
    await fleet.settle()
    clock.advance(60 * SECOND)
    await fleet.settle()
    return 7


async def test_promise_02_one_effect_per_key(
    tmp_path: Path, world: World, clock: ManualClock
) -> None:
    """Redelivery, crash, restart, changed policy, approval, resume and retry keep the key."""
    async with toy_fleet(tmp_path, world, clock=clock) as fleet:
        expected = await every_way_to_the_target(fleet, world, clock)
        assert len(world.keys()) == expected
        keys = {str(call.args["text"]): {call.key} for call in world.calls}
        for call in world.calls:
            keys[str(call.args["text"])].add(call.key)
        assert all(len(found) == 1 for found in keys.values())
        texts = world.texts()
        assert {text: texts.count(text) for text in texts} == {
            "redelivered": 1, "crashed": 1, "policy moved": 1, "between": 1, "approved": 1,
            "resumed": 1, "retried": 2,
        }  # fmt: skip


async def test_promise_02_control_a_key_of_each_attempt_is_seen(
    tmp_path: Path, world: World, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    call_of = perform.call_of
    monkeypatch.setattr(
        perform, "call_of",
        lambda *given, **more: replace(
            call_of(*given, **more), key=f"{call_of(*given, **more).key}-{given[-1]}"
        ),
    )  # fmt: skip
    async with toy_fleet(tmp_path, world, clock=clock) as fleet:
        expected = await every_way_to_the_target(fleet, world, clock)
        assert len(world.keys()) == expected + 1

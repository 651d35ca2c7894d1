"""Promise 2: one effect per key; with a control that shows the test can fail."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from msgspec.structs import replace
from tests.acceptance.promises.common import SECOND, approve, first

from vedette.domain.effect import Outcome
from vedette.engine import tool_calls
from vedette.testing.clock import ManualClock
from vedette.testing.harness import FleetHarness
from vedette.testing.toy_fleet import (
    World,
    block_calls,
    deny_policy,
    job,
    send_proposal,
    toy_fleet,
    wait_until,
    write_policies,
)


async def every_way_to_the_target(fleet: FleetHarness, world: World, clock: ManualClock) -> int:
    """Bring effects about by every way there is; return how many there should be."""
    commands = fleet.app.commands
    repeat = job("redelivered", send_proposal("redelivered"), key="1")
    await fleet.send(repeat, repeat)
    await fleet.wait_until_idle()
    await fleet.send(repeat)

    stuck = block_calls(fleet)
    crashed = job("crashed", send_proposal("crashed"), key="2")
    moved = job("policy moved", send_proposal("policy moved"), key="3")
    await fleet.send(crashed, moved)
    await wait_until(lambda: len(stuck.reached_keys) == 2)
    await fleet.restart()
    await fleet.wait_until_idle()
    fleet.app.services.calls.fleet_slots = asyncio.Semaphore(0)
    between = job("between", send_proposal("between"), key="4")
    await fleet.send(between)
    await wait_until(lambda: bool(fleet.actions(between)))
    await fleet.apply_policy(write_policies(fleet.folder / "p2", extra=deny_policy("no.such")))
    fleet.app.services.calls.fleet_slots.release()
    await fleet.wait_until_idle()
    assert first(fleet, between).decisions == 2
    await fleet.restart()

    commands = fleet.app.commands
    held = job("approved", send_proposal("approved", "big.send"), key="5")
    await fleet.send(held)
    await fleet.wait_until_idle()
    await approve(fleet, first(fleet, held))
    await fleet.wait_until_idle()
    await fleet.restart()
    await fleet.wait_until_idle()

    commands = fleet.app.commands
    await commands.stop(fleet.order(), tool="wire.send")
    await fleet.send(job("resumed", send_proposal("resumed"), key="6"))
    await fleet.wait_until_idle()
    await commands.resume(fleet.order(), tool="wire.send")
    await fleet.wait_until_idle()

    # The target did it, and its answer was "not now": the repeat must be the same effect.
    world.answer = lambda call: Outcome("retry") if call.attempt == 1 else None
    world.loses_answer = True
    await fleet.send(job("retried", send_proposal("retried"), key="7"))
    await fleet.wait_until_idle()
    clock.advance(60 * SECOND)
    await fleet.wait_until_idle()
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


async def test_promise_02_every_action_has_a_key_of_its_own(tmp_path: Path, world: World) -> None:
    """Twice in one turn, in two runs of one event, in two events: wanted so often, done so often.

    And each call carries the key of its action, whoever permitted it.
    """
    both = {"content/agents/helper/agent.yaml": "triggers: [{on: worker.job}]"}
    fleet = toy_fleet(tmp_path, world, agents=("worker", "helper"))
    for path, triggers in both.items():
        text = (tmp_path / path).read_text()
        (tmp_path / path).write_text(text.replace("triggers: [{on: helper.job}]", triggers))
    async with fleet:
        same = [send_proposal("same"), send_proposal("same"), send_proposal("same", "big.send")]
        events = [job("1", *same, key="1"), job("2", *same, key="2")]
        await fleet.send(*events)
        await fleet.wait_until_idle()
        rows = [row for event in events for row in fleet.actions(event)]
        assert len(rows) == 2 * 2 * 3
        for row in rows:
            if row.decided == "hold":
                await approve(fleet, row)
        await fleet.wait_until_idle()
        called = [call.key for call in world.calls]
        assert sorted(called) == sorted(row.id.removeprefix("act_") for row in rows)
        assert len(set(called)) == len(rows)


@pytest.mark.parametrize("tool", ["order.place", "bell.ring"])
async def test_promise_02_a_call_without_an_answer_is_not_repeated(
    tmp_path: Path, world: World, clock: ManualClock, tool: str
) -> None:
    """It happened and the answer was lost: the target is asked, or a person is."""
    async with toy_fleet(tmp_path, world, clock=clock) as fleet:
        world.answer, world.loses_answer = lambda call: ConnectionError("lost"), True
        event = job("1", send_proposal("x", tool))
        await fleet.send(event)
        await fleet.wait_until_idle()
        clock.advance(600 * SECOND)
        await fleet.wait_until_idle()
        assert world.effects() == 1
        assert len(world.calls) == 1
        row = first(fleet, event)
        assert (row.effect, row.waits) == {
            "order.place": ("done", None), "bell.ring": ("unknown", "approval"),
        }[tool]  # fmt: skip


@pytest.mark.parametrize("tool", ["order.place", "bell.ring"])
async def test_promise_02_a_call_that_was_begun_before_a_crash_is_not_begun_again(
    tmp_path: Path, world: World, clock: ManualClock, tool: str
) -> None:
    """The mark is durable before the call; who finds it asks the target, or a person."""
    async with toy_fleet(tmp_path, world, clock=clock) as fleet:
        stuck = block_calls(fleet)
        event = job("1", send_proposal("x", tool))
        await fleet.send(event)
        await wait_until(lambda: bool(stuck.reached_keys))
        assert first(fleet, event).effect == "started"
        assert [entry["tool"] for entry in fleet.entries("effect.started")] == [tool]
        # What the process that died still brought about: the target did it, nobody heard of it.
        world.record.append((tool, stuck.reached_keys[0]))
        await fleet.restart()
        await fleet.wait_until_idle()
        clock.advance(600 * SECOND)
        await fleet.wait_until_idle()
        assert world.calls == []
        assert world.effects() == 1


async def test_promise_02_control_a_key_of_each_attempt_is_seen(
    tmp_path: Path, world: World, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    call_of = tool_calls.build_call
    monkeypatch.setattr(
        tool_calls, "build_call",
        lambda *given, **more: replace(
            call_of(*given, **more), key=f"{call_of(*given, **more).key}-{given[-1]}"
        ),
    )  # fmt: skip
    async with toy_fleet(tmp_path, world, clock=clock) as fleet:
        expected = await every_way_to_the_target(fleet, world, clock)
        assert len(world.keys()) == expected + 1

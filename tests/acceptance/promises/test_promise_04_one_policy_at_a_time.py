"""Promise 4: one policy at a time; with a control that shows the test can fail."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path
from typing import Any

import pytest
from tests.acceptance.promises.common import WIDE, approve, first, state

from vedette.domain.effect import Call
from vedette.domain.event import Event
from vedette.domain.run import Step
from vedette.engine.action_holds import DENIAL_WINDOW_US
from vedette.ledger.history.explain import explain
from vedette.testing.clock import ManualClock
from vedette.testing.harness import FleetHarness
from vedette.testing.toy_fleet import (
    World,
    deny_policy,
    intercept_commits,
    job,
    note_proposal,
    send_proposal,
    toy_fleet,
    wait_until,
    write_policies,
)


async def thousand_queued(fleet: FleetHarness, world: World) -> list[Event]:
    """Return when 1,000 calls are permitted and queue for two slots."""
    fleet.app.services.calls.fleet_slots = asyncio.Semaphore(2)
    gate = threading.Event()

    def hold_up(call: Call) -> None:
        gate.wait(10)

    world.answer = hold_up
    events = [job(f"e{n}", send_proposal(str(n)), key=f"k{n}") for n in range(1000)]
    await fleet.send(*events)

    def queued() -> bool:
        sql = "SELECT COUNT(*) FROM action WHERE decided='permit' AND effect='intended'"
        return bool(fleet.app.store.database.rows(sql)[0][0] == len(events))

    await wait_until(queued, 30)
    gate.set()
    world.answer = None
    await wait_until(lambda: len(world.calls) >= 20)
    return events


@pytest.mark.parametrize("restart", [False, True])
async def test_promise_04_one_policy_at_a_time(tmp_path: Path, world: World, restart: bool) -> None:
    """1,000 permitted calls are queued; a new rule denies the tool; none starts any more."""
    wide, clock = {"limits/data.yaml": WIDE}, ManualClock()
    async with toy_fleet(tmp_path, world, extra=wide, clock=clock) as fleet:
        events = await thousand_queued(fleet, world)
        deny = write_policies(tmp_path / "deny", extra=wide | deny_policy("wire.send"))
        answer = await fleet.apply_policy(deny)
        assert (answer["ok"], answer["revision"], answer["still_calling"]) == (True, 2, 0)
        called = len(world.calls)
        assert 20 <= called < 900
        if restart:
            # What a runner finds in its policy folder at the start is what it makes live.
            fleet.policies = deny
            await fleet.restart()
        await fleet.wait_until_idle(60)
        assert len(world.calls) == called, "a call started under the old revision"
        waited = [event for event in events if first(fleet, event).waits == "policy"]
        assert bool(waited) == restart
        if restart:
            # Nothing durable tells that they never began, so the deny is looked at once more.
            clock.advance(DENIAL_WINDOW_US)
            await fleet.wait_until_idle(60)
            assert len(world.calls) == called, "a call started as its deny was looked at again"
        assert fleet.outcomes() == {"permit": called, "deny": 1000 - called}
        assert all(state(fleet, event) == "done" for event in events)

        published = fleet.entries("policy.published")[-1]["seq"]
        for entry in fleet.entries("action.decided"):
            assert entry["policy_rev"] == (1 if entry["seq"] < published else 2)
        last = next(e for e in waited or events if first(fleet, e).decided == "deny")
        (run,) = explain(fleet.app.store, fleet.runs(last)[0].id)["runs"]
        assert [
            (d["outcome"], d["rule"], d["revision"]) for d in run["actions"][0]["decisions"]
        ] == [("permit", "permit.tool", 1)] + [("deny", "denies.test", 2)] * (1 + restart)


async def test_promise_04_no_step_commits_under_an_older_revision(
    tmp_path: Path, world: World
) -> None:
    """Decided before the publication, committed after it: the store refuses, we decide again."""
    async with toy_fleet(tmp_path, world) as fleet:
        store = fleet.app.store
        deny = write_policies(tmp_path / "deny", extra=deny_policy("wire.send"))
        published: list[Any] = []

        async def late(step: Step) -> Step | None:
            if step.actions and not published:
                published.append(await fleet.apply_policy(deny))
            return None

        intercept_commits(fleet, late)
        event = job("1", send_proposal(), note_proposal("x"))
        await fleet.send(event)
        await fleet.wait_until_idle()
        assert [e["policy_rev"] for e in fleet.entries("action.decided")] == [2, 2]
        assert world.calls == []
        assert first(fleet, event).rule == "denies.test"
        # What the first try had counted and written was taken back.
        assert store.runs.row("worker_notes", "k") == {"texts": ["x"]}


async def test_promise_04_no_approval_is_used_under_an_older_revision(
    tmp_path: Path, world: World
) -> None:
    """Decided again before the publication, committed after it: it is decided once more."""
    async with toy_fleet(tmp_path, world) as fleet:
        event = job("1", send_proposal("1", "big.send"))
        await fleet.send(event)
        await fleet.wait_until_idle()
        deny = write_policies(tmp_path / "deny", extra=deny_policy("big.send"))
        published: list[Any] = []

        async def late(step: Step) -> Step | None:
            if step.actions and step.actions[0].decided == "permit" and not published:
                published.append(await fleet.apply_policy(deny))
            return None

        intercept_commits(fleet, late)
        await approve(fleet, first(fleet, event))
        await fleet.wait_until_idle()
        assert len(published) == 1
        assert world.calls == []
        assert first(fleet, event).rule == "denies.test"
        decided = fleet.entries("action.decided")
        assert [entry["policy_rev"] for entry in decided] == [1, 2]


async def test_promise_04_a_publication_waits_for_the_calls_under_way(
    tmp_path: Path, world: World
) -> None:
    """When it answers, nothing that was permitted under an older revision is still going on."""
    async with toy_fleet(tmp_path, world) as fleet:
        gate = threading.Event()

        def hold_up(call: Call) -> None:
            gate.wait(10)

        world.answer = hold_up
        await fleet.send(job("1", send_proposal()))
        await wait_until(lambda: len(world.calls) == 1)
        deny = write_policies(tmp_path / "deny", extra=deny_policy("wire.send"))
        publishing = asyncio.create_task(fleet.apply_policy(deny))
        await wait_until(lambda: len(fleet.entries("policy.published")) == 2)
        for _ in range(20):
            await asyncio.sleep(0.005)
            assert not publishing.done(), "the call goes on, and the publication has answered"
        gate.set()
        answer = await publishing
        assert answer["still_calling"] == 0
        assert world.effects() == 1
        await fleet.wait_until_idle()


async def test_promise_04_control_a_gateway_left_behind_is_seen(
    tmp_path: Path, world: World
) -> None:
    wide = {"limits/data.yaml": WIDE}
    async with toy_fleet(tmp_path, world, extra=wide) as fleet:
        await thousand_queued(fleet, world)
        fleet.app.rollout.swap = lambda engine, second, live, bundle: None
        fleet.app.rollout.count_calls_before = lambda number: 0
        deny = write_policies(tmp_path / "deny", extra=wide | deny_policy("wire.send"))
        await fleet.apply_policy(deny)
        called = len(world.calls)
        await fleet.wait_until_idle(60)
        assert len(world.calls) > called

"""Promise 5: an approval approves one thing; with a control that shows the test can fail."""

from __future__ import annotations

from pathlib import Path

import apsw
import pytest
from tests.acceptance.promises.common import SECOND, approve, first

from vedette.domain.base.errors import BadCommand, DisplayMismatch, Forbidden
from vedette.domain.decision import Approval, request_decision
from vedette.domain.identity import Principal
from vedette.engine.action_holds import HOLD_EXPIRY_US
from vedette.engine.run_context import RunContext
from vedette.operations.commands import Order
from vedette.testing.clock import ManualClock
from vedette.testing.toy_fleet import (
    World,
    deny_policy,
    job,
    send_proposal,
    toy_fleet,
    write_policies,
)


async def test_promise_05_an_approval_approves_one_thing(
    tmp_path: Path, world: World, clock: ManualClock
) -> None:
    async with toy_fleet(tmp_path, world, clock=clock) as fleet:
        commands = fleet.app.commands
        one = job(
            "one", send_proposal("same", "big.send"), send_proposal("other", "big.send"), key="1"
        )
        two = job("two", send_proposal("same", "big.send"), key="2")
        await fleet.send(one, two)
        await fleet.wait_until_idle()
        same, other = fleet.actions(one)
        assert same.digest == first(fleet, two).digest, "the very same call, wanted twice"

        # Only with the digest of what is really held, as it is shown: the action's own is not it.
        shown = fleet.shown_digest(same)
        for wrong in (same.digest, shown[:7], ""):
            with pytest.raises(DisplayMismatch):
                await commands.approve(fleet.order(), same.id, wrong)
        with pytest.raises(BadCommand):
            await commands.approve(fleet.order(), same.id, fleet.shown_digest(other))
        # Only by a person, with a reason.
        for nobody in (Principal("engine", "worker"), Principal("engine", "vedette")):
            with pytest.raises(Forbidden):
                await commands.approve(Order(nobody, "I am sure"), same.id, shown)
        with pytest.raises(BadCommand):
            await commands.approve(fleet.order("  "), same.id, shown)
        assert world.calls == []

        await commands.approve(fleet.order(), same.id, shown)
        await fleet.wait_until_idle()
        assert world.texts() == ["same"]
        assert [row.hold for row in [*fleet.actions(one), first(fleet, two)]] == [
            "used", "open", "open",
        ]  # fmt: skip
        # Once.
        with pytest.raises(BadCommand):
            await approve(fleet, same)
        await fleet.restart()
        await fleet.wait_until_idle()
        assert len(world.calls) == 1
        # Silence is a no.
        clock.advance(HOLD_EXPIRY_US)
        await fleet.wait_until_idle()
        assert [row.decided for row in [*fleet.actions(one), first(fleet, two)]] == [
            "permit", "deny", "deny",
        ]  # fmt: skip
        assert len(world.calls) == 1
        approved = fleet.entries("hold.approved")
        assert [entry["actor"] for entry in approved] == ["person:tester"]
        assert approved[0]["action_digest"] == same.digest
        assert "reason" in fleet.body(approved[0]["seq"])


async def test_promise_05_an_approval_is_decided_again_when_it_is_used(
    tmp_path: Path, world: World
) -> None:
    async with toy_fleet(tmp_path, world) as fleet:
        before, between = (
            job("1", send_proposal("1", "big.send")),
            job("2", send_proposal("2", "big.send")),
        )
        await fleet.send(before, between)
        await fleet.wait_until_idle()
        await fleet.app.commands.stop(fleet.order(), all=True)
        await approve(fleet, first(fleet, between))
        await fleet.wait_until_idle()
        assert first(fleet, between).hold == "approved"
        await fleet.apply_policy(write_policies(tmp_path / "p2", extra=deny_policy("big.send")))
        await fleet.app.commands.resume(fleet.order(), all=True)
        await approve(fleet, first(fleet, before))
        await fleet.wait_until_idle()
        assert [first(fleet, event).rule for event in (before, between)] == ["denies.test"] * 2
        assert world.calls == []


async def test_promise_05_an_approval_that_lapsed_is_a_deny(
    tmp_path: Path, world: World, clock: ManualClock
) -> None:
    """Given in time, but not used in time: it does not come to life again after the stop."""
    async with toy_fleet(tmp_path, world, clock=clock) as fleet:
        event = job("1", send_proposal("1", "big.send"))
        await fleet.send(event)
        await fleet.wait_until_idle()
        await fleet.app.commands.stop(fleet.order(), tool="big.send")
        await approve(fleet, first(fleet, event))
        await fleet.wait_until_idle()
        assert (first(fleet, event).hold, first(fleet, event).waits) == ("approved", "resume")
        clock.advance(HOLD_EXPIRY_US)
        await fleet.app.commands.resume(fleet.order(), tool="big.send")
        await fleet.wait_until_idle()
        assert (first(fleet, event).decided, first(fleet, event).hold) == ("deny", "expired")
        assert world.calls == []


async def test_promise_05_arguments_that_changed_after_the_approval_are_not_done(
    tmp_path: Path, world: World
) -> None:
    async with toy_fleet(tmp_path, world) as fleet:
        event = job("1", send_proposal("pay 10", "big.send"))
        await fleet.send(event)
        await fleet.wait_until_idle()
        row = first(fleet, event)
        await fleet.close()
        connection = apsw.Connection(str(tmp_path / "state" / "store.db"))
        forged = row.record.replace(b"pay 10", b"pay 99")
        connection.execute("UPDATE action SET record=? WHERE id=?", (forged, row.id))
        connection.close()
        await fleet.open()
        await approve(fleet, row)
        await fleet.wait_until_idle()
        assert (first(fleet, event).decided, first(fleet, event).rule) == ("deny", "engine.changed")
        assert world.calls == []


async def test_promise_05_policy_takes_an_approval_of_this_action_only(
    tmp_path: Path, world: World, clock: ManualClock
) -> None:
    """The recorded question of a held action, asked again with approvals that are not its own."""
    async with toy_fleet(tmp_path, world, clock=clock) as fleet:
        event = job("1", send_proposal("1", "big.send"))
        await fleet.send(event)
        await fleet.wait_until_idle()
        row = first(fleet, event)
        question = fleet.body(fleet.entries("action.decided")[-1]["seq"])["question"]
        engine = fleet.app.services.gateway.engine

        def outcome(**changed: object) -> str:
            right = {"action_digest": row.digest, "by": "person:x", "until": question["now"] + 1}
            context = {**question["context"], "approvals": [{**right, **changed}]}
            return request_decision(engine, {**question, "context": context})[0].outcome

        assert outcome() == "permit"
        for wrong in ({"action_digest": "0" * 64}, {"action_digest": ""}, {"by": ""},
                      {"until": question["now"]}, {"until": 0}):  # fmt: skip
            assert outcome(**wrong) == "hold", wrong


async def test_promise_05_an_approval_says_nothing_of_the_next_action_like_it(
    tmp_path: Path, world: World
) -> None:
    async with toy_fleet(tmp_path, world) as fleet:
        one, next_one = (job(n, send_proposal("same", "big.send"), key=n) for n in ("1", "2"))
        await fleet.send(one)
        await fleet.wait_until_idle()
        await approve(fleet, first(fleet, one))
        await fleet.wait_until_idle()
        await fleet.send(next_one)
        await fleet.wait_until_idle()
        assert first(fleet, next_one).digest == first(fleet, one).digest
        assert (first(fleet, next_one).decided, len(world.calls)) == ("hold", 1)


async def test_promise_05_control_approvals_out_of_thin_air_are_seen(
    tmp_path: Path, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        RunContext,
        "find_approval",
        lambda _, row, __, now: Approval(row.digest, "person:x", now + SECOND),
    )
    async with toy_fleet(tmp_path, world) as fleet:
        await fleet.send(job("1", send_proposal("1", "big.send")))
        await fleet.wait_until_idle()
        assert world.effects() == 1

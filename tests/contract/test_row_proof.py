"""A row that somebody wrote into the database is not carried out: its entries are asked first."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import orjson
import pytest
from tests.contract.test_edited_rows import edit, verified
from tests.contract.test_reconstruct_stores import START, opened
from tests.contract.test_reconstruct_stores import plan as plan

from vedette.load.settings import StorePlan
from vedette.run import ActionRow
from vedette.testing.clock import ManualClock
from vedette.testing.harness import FleetHarness
from vedette.testing.toy import World, job, send

WAKE = "UPDATE run SET wake_us=1 WHERE state='waiting'"
APPROVED = (
    "UPDATE action SET hold='approved', approver='person:the-cfo', until_us=9000000000000000 "
    "WHERE hold='open'"
)
PERMITTED = (
    "UPDATE action SET hold=NULL, waits=NULL, decided='permit', rule='permit', effect='{}', "
    "policy_rev=1 WHERE hold='open'"
)


async def held(fleet: FleetHarness) -> ActionRow:
    """Let one action wait for a person, and return it."""
    await fleet.send(job("5", send("five", tool="big.send")))
    await fleet.settle()
    (row,) = fleet.app.store.holds_page(after=0, limit=10)
    return row


async def act_on(fleet: FleetHarness) -> None:
    """Start again on what was written meanwhile, and handle it."""
    assert edit(fleet, WAKE) == 1
    await fleet.restart()
    await fleet.settle()


def refused(fleet: FleetHarness, what: str) -> int:
    """Return how often the metrics say that a row was refused for this."""
    return fleet.app.metrics.total("rows_refused", agent="worker", what=what)


async def test_an_approval_that_nobody_gave_is_asked_for_again(
    tmp_path: Path, plan: StorePlan
) -> None:
    world = World()
    async with opened(tmp_path, plan, world, ManualClock(START)) as fleet:
        row = await held(fleet)
        assert edit(fleet, APPROVED) == 1
        await act_on(fleet)
        assert world.effects("big.send") == 0
        (again,) = fleet.app.store.holds_page(after=0, limit=10)
        assert (again.id, again.hold, again.approver) == (row.id, "open", None)
        assert refused(fleet, "approval") == 1
        # The control: one that somebody gives is carried out, once, and everything stands.
        await fleet.approve(again)
        await fleet.settle()
        assert world.effects("big.send") == 1
        assert verified(fleet, tmp_path).findings == ()


@pytest.mark.parametrize("changed", ["actor", "until", "action_digest", "nothing"])
async def test_an_entry_that_was_written_over_approves_nothing(
    changed: str, tmp_path: Path
) -> None:
    """Whoever can write the row can write the table of entries too; signing they cannot."""
    world = World()
    async with opened(tmp_path, StorePlan(), world, ManualClock(START)) as fleet:
        row = await held(fleet)
        await fleet.app.commands.stop(fleet.order("an incident"), all=True)
        await fleet.approve(row)
        await fleet.settle()
        (entry,) = fleet.entries("hold.approved")
        forged: dict[str, Any] = {
            "actor": "person:the-cfo", "until": entry["until"] + 1, "action_digest": "0" * 64,
        }  # fmt: skip
        if changed != "nothing":
            entry[changed] = forged[changed]
            sql = "UPDATE entry SET bytes=? WHERE seq=?"
            assert edit(fleet, sql, orjson.dumps(entry), entry["seq"]) == 1
            column = {"actor": "approver", "until": "until_us", "action_digest": "digest"}[changed]
            sql = f"UPDATE action SET {column}=? WHERE id=?"
            assert edit(fleet, sql, forged[changed], row.id) == 1
        await fleet.app.commands.resume(fleet.order("over"), all=True)
        await fleet.settle()
        assert world.effects("big.send") == (1 if changed == "nothing" else 0)


async def test_an_approval_that_was_taken_back_does_not_come_back(tmp_path: Path) -> None:
    world = World()
    async with opened(tmp_path, StorePlan(), world, ManualClock(START)) as fleet:
        row = await held(fleet)
        await fleet.app.commands.stop(fleet.order("an incident"), all=True)
        await fleet.approve(row)
        (entry,) = fleet.entries("hold.approved")
        await fleet.app.commands.deny(fleet.order("no, not that"), row.id)
        sql = "UPDATE action SET hold='approved', approver=?, until_us=? WHERE id=?"
        assert edit(fleet, sql, entry["actor"], entry["until"], row.id) == 1
        await fleet.app.commands.resume(fleet.order("over"), all=True)
        await fleet.settle()
        assert world.effects("big.send") == 0


@pytest.mark.parametrize("effect", ["intended", "started", "unknown"])
async def test_a_permit_that_nobody_decided_is_not_carried_out(
    effect: str, tmp_path: Path, plan: StorePlan
) -> None:
    world = World()
    async with opened(tmp_path, plan, world, ManualClock(START)) as fleet:
        await held(fleet)
        assert edit(fleet, PERMITTED.format(effect)) == 1
        await act_on(fleet)
        assert world.effects("big.send") == 0
        assert refused(fleet, "row") >= 1


async def test_an_effect_that_was_made_is_not_made_again(tmp_path: Path, plan: StorePlan) -> None:
    world = World()
    async with opened(tmp_path, plan, world, ManualClock(START)) as fleet:
        event = job("5", send("five"), send("six", tool="big.send"))
        await fleet.send(event)
        await fleet.settle()
        assert world.effects() == 1
        sql = "UPDATE action SET effect='intended', answer=NULL WHERE effect='done'"
        assert edit(fleet, sql) == 1
        await act_on(fleet)
        assert len(world.calls) == 1
        assert refused(fleet, "row") >= 1


@pytest.mark.parametrize(
    ("name", "forged"),
    [
        ("origins", {"/text": "trusted", "/to": "trusted"}),
        ("sources", {"/text": "/charter/desk"}),
        ("readers", {"/text": ["person:anybody"]}),
        ("confidence", 1),
    ],
)
async def test_a_record_that_says_better_origins_is_refused_at_its_use(
    name: str, forged: Any, tmp_path: Path
) -> None:
    """Also with a body to match: the decision's entry has the salted digest of what was asked."""
    for body in (False, True):
        world = World()
        async with opened(tmp_path / str(body), StorePlan(), world, ManualClock(START)) as fleet:
            row = await held(fleet)
            assert row.record is not None
            record = {**orjson.loads(row.record), name: forged}
            sql = "UPDATE action SET record=? WHERE id=?"
            assert edit(fleet, sql, orjson.dumps(record), row.id) == 1
            if body:
                (decided,) = fleet.entries("action.decided")
                told = fleet.body(decided["seq"])
                told["question"]["action"][name] = forged
                told["question"]["context"]["confidence"] = record["confidence"]
                sql = "UPDATE body SET data=? WHERE seq=?"
                assert edit(fleet, sql, orjson.dumps(told), decided["seq"]) == 1
            await fleet.approve(row)
            await fleet.restart()
            await fleet.settle()
            assert world.effects("big.send") == 0
            ended = fleet.app.store.action(row.id)
            assert (ended.decided, ended.rule) == ("deny", "engine.changed")  # type: ignore[union-attr]


async def test_an_approval_of_before_a_rotation_of_the_key_is_asked_for_again(
    tmp_path: Path,
) -> None:
    world = World()
    async with opened(tmp_path, StorePlan(), world, ManualClock(START)) as fleet:
        row = await held(fleet)
        await fleet.app.commands.stop(fleet.order("an incident"), all=True)
        await fleet.approve(row)
        upkeep = fleet.app.commands.upkeep
        assert upkeep is not None
        order = fleet.order("it is time")
        await upkeep.rotate(order.principal, order.reason, None)
        await fleet.app.commands.resume(fleet.order("over"), all=True)
        await fleet.settle()
        assert world.effects("big.send") == 0
        (again,) = fleet.app.store.holds_page(after=0, limit=10)
        await fleet.approve(again)
        await fleet.settle()
        assert world.effects("big.send") == 1

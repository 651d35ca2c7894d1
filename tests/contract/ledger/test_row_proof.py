"""A row that somebody wrote into the database is not carried out: its entries are asked first."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path
from typing import Any

import orjson
import pytest
from msgspec.structs import replace
from tests.contract.ledger.test_edited_rows import edit, edited, verified
from tests.contract.ledger.test_reconstruct_stores import START, opened
from tests.contract.ledger.test_reconstruct_stores import plan as plan
from tests.segments import edit_content, edit_entry

from vedette.config.settings import StorePlan
from vedette.domain.effect import Outcome
from vedette.domain.row_proof import EntryRecord, is_approved
from vedette.domain.run import ActionRow
from vedette.testing.clock import ManualClock
from vedette.testing.harness import FleetHarness
from vedette.testing.toy_fleet import World, job, send_proposal, toy_fleet

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
    await fleet.send(job("5", send_proposal("five", tool="big.send")))
    await fleet.wait_until_idle()
    (row,) = fleet.app.store.runs.holds_page(after=0, limit=10)
    return row


async def act_on(fleet: FleetHarness) -> None:
    """Start again on what was written meanwhile, and handle it."""
    assert edit(fleet, WAKE) == 1
    await fleet.restart()
    await fleet.wait_until_idle()


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
        (repeat,) = fleet.app.store.runs.holds_page(after=0, limit=10)
        assert (repeat.id, repeat.hold, repeat.approver) == (row.id, "open", None)
        assert refused(fleet, "approval") == 1
        # The control: one that somebody gives is carried out, once, and everything stands.
        await fleet.approve(repeat)
        await fleet.wait_until_idle()
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
        await fleet.wait_until_idle()
        (entry,) = fleet.entries("hold.approved")
        forged: dict[str, Any] = {
            "actor": "person:the-cfo", "until": entry["until"] + 1, "action_digest": "0" * 64,
        }  # fmt: skip
        if changed != "nothing":
            entry[changed] = forged[changed]
            with edited(fleet) as file:
                edit_entry(file, entry["seq"], orjson.dumps(entry))
            column = {"actor": "approver", "until": "until_us", "action_digest": "digest"}[changed]
            sql = f"UPDATE action SET {column}=? WHERE id=?"
            assert edit(fleet, sql, forged[changed], row.id) == 1
        await fleet.app.commands.resume(fleet.order("over"), all=True)
        await fleet.wait_until_idle()
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
        await fleet.wait_until_idle()
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


@pytest.mark.parametrize(
    "said",
    ["effect='intended', answer=NULL", "effect=NULL, answer=NULL, decided=NULL"],
    ids=["permitted", "not decided"],
)
async def test_an_effect_that_was_made_is_not_made_again(
    said: str, tmp_path: Path, plan: StorePlan
) -> None:
    world = World()
    async with opened(tmp_path, plan, world, ManualClock(START)) as fleet:
        event = job("5", send_proposal("five"), send_proposal("six", tool="big.send"))
        await fleet.send(event)
        await fleet.wait_until_idle()
        assert world.effects() == 1
        assert edit(fleet, f"UPDATE action SET {said} WHERE effect='done'") == 1
        await act_on(fleet)
        assert len(world.calls) == 1
        assert len(fleet.entries("effect.done")) == 1
        assert refused(fleet, "row") >= 1


async def test_an_approval_that_was_used_is_not_used_again(tmp_path: Path) -> None:
    world = World()
    async with opened(tmp_path, StorePlan(), world, ManualClock(START)) as fleet:
        row = await held(fleet)
        await fleet.approve(row)
        await fleet.wait_until_idle()
        assert world.effects("big.send") == 1
        (given,) = fleet.entries("hold.approved")
        store = fleet.app.store
        entries = store.ledger.proof_entries([row.id])[row.id]
        repeat = replace(row, hold="approved", approver=given["actor"], until_us=given["until"])
        before = [one for one in entries if one[0]["seq"] <= given["seq"]]
        assert is_approved(repeat, before, store.steps.is_signed)
        permitted = [one for one in entries if one[0]["kind"] != "effect.done"]
        assert is_approved(
            repeat, permitted, store.steps.is_signed
        )  # there may be no room for its effect
        assert not is_approved(repeat, entries, store.steps.is_signed)
        sql = (
            "UPDATE action SET effect=NULL, answer=NULL, decided=NULL, hold='approved', "
            "approver=?, until_us=? WHERE id=?"
        )
        assert edit(fleet, sql, given["actor"], given["until"], row.id) == 1
        assert edit(fleet, "UPDATE run SET state='waiting', wake_us=1") == 1
        await fleet.restart()
        await fleet.wait_until_idle()
        assert world.effects("big.send") == 1
        assert [entry["rule"] for entry in fleet.entries("action.decided")].count(
            "permit.approved"
        ) == 1


def stop_tool(fleet: FleetHarness, rule: str) -> None:
    """Let the policy in the fleet's folder stop what the toy agent sends."""
    folder = fleet.policies / "vedette/holds"
    folder.mkdir(exist_ok=True)
    text = f'package vedette.holds\n\nstops contains "{rule}" if input.action.tool == "wire.send"\n'
    (folder / "house.rego").write_text(text)


@pytest.mark.parametrize("forged", [False, True])
async def test_a_permit_of_an_older_policy_is_not_carried_out_as_one_of_today(
    forged: bool, tmp_path: Path
) -> None:
    world, clock = World(), ManualClock(START)
    async with toy_fleet(tmp_path, world, clock=clock) as fleet:
        world.answer = lambda *_, **__: Outcome("retry")
        event = job("1", send_proposal("hello"))
        await fleet.send(event)
        await fleet.wait_until_idle()
        assert fleet.actions(event)[0].effect == "intended"
        stop_tool(fleet, "house")
        await fleet.apply_policy(fleet.policies)
        world.answer = None
        if forged:
            assert edit(fleet, "UPDATE action SET policy_rev=2") == 1
        clock.advance(3_700_000_000)
        await fleet.restart()
        await fleet.wait_until_idle()
        assert world.effects() == 0
        assert fleet.actions(event)[0].decided == ("deny" if forged else "hold")
        assert (refused(fleet, "row") > 0) is forged


async def test_what_was_decided_often_is_proved_by_its_first_and_last_decision(
    tmp_path: Path,
) -> None:
    world, clock = World(), ManualClock(START)
    async with toy_fleet(tmp_path, world, clock=clock) as fleet:
        stop_tool(fleet, "house-0")
        await fleet.apply_policy(fleet.policies)
        event = job("1", send_proposal("hello"))
        await fleet.send(event)
        await fleet.wait_until_idle()
        for number in (1, 2):
            stop_tool(fleet, f"house-{number}")
            await fleet.apply_policy(fleet.policies)
            clock.advance(3_700_000_000)
            await fleet.wait_until_idle()
        (row,) = fleet.actions(event)
        decided = fleet.entries("action.decided")
        assert [entry["rule"] for entry in decided] == ["house-0", "house-1", "house-2"]
        entries = fleet.app.store.ledger.proof_entries([row.id])[row.id]
        assert [entry["seq"] for entry, _ in entries] == [decided[0]["seq"], decided[2]["seq"]]
        assert [orjson.loads(body or b"") for _, body in entries] == [
            fleet.body(decided[0]["seq"]), fleet.body(decided[2]["seq"])
        ]  # fmt: skip


async def test_the_entries_of_a_run_are_read_once_however_many_actions_are_due(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = World()
    async with opened(tmp_path, StorePlan(), world, ManualClock(START)) as fleet:
        await fleet.send(job("5", *[send_proposal(f"text {n}", tool="big.send") for n in range(6)]))
        await fleet.wait_until_idle()
        store = fleet.app.store
        await fleet.app.commands.stop(fleet.order("an incident"), all=True)
        for row in store.runs.holds_page(after=0, limit=10):
            await fleet.approve(row)
        reads: list[int] = []
        read = store.ledger.proof_entries

        def counted(actions: Collection[str]) -> dict[str, list[EntryRecord]]:
            reads.append(len(actions))
            return read(actions)

        monkeypatch.setattr(store.ledger, "proof_entries", counted)
        await fleet.app.commands.resume(fleet.order("over"), all=True)
        await fleet.wait_until_idle()
        assert reads == [6]
        assert world.effects("big.send") == 6


@pytest.mark.parametrize("odd", [("sources", ["x"]), b"[]", b"[1"], ids=str)
async def test_a_record_that_is_none_is_named_shown_and_refused(odd: Any, tmp_path: Path) -> None:
    world = World()
    async with opened(tmp_path, StorePlan(), world, ManualClock(START)) as fleet:
        await fleet.send(
            job("5", send_proposal("five", tool="big.send"), send_proposal("six", tool="big.send"))
        )
        await fleet.wait_until_idle()
        row, other = fleet.app.store.runs.holds_page(after=0, limit=10)
        record = odd
        if isinstance(odd, tuple):
            record = orjson.dumps({**orjson.loads(row.record), odd[0]: odd[1]})
        assert edit(fleet, "UPDATE action SET record=? WHERE id=?", record, row.id) == 1
        assert edit(fleet, "UPDATE action SET tool='x' WHERE id=?", other.id) == 1
        found = {(found.row, found.column) for found in fleet.app.store.ledger.row_mismatches()}
        assert {(row.id, "record"), (other.id, "tool")} <= found
        assert edit(fleet, "UPDATE action SET tool=? WHERE id=?", other.tool, other.id) == 1
        await fleet.approve(row)  # which reads all that a person is shown
        await act_on(fleet)
        ended = fleet.app.store.runs.action(row.id)
        assert (ended.decided, ended.rule) == ("deny", "engine.changed")  # type: ignore[union-attr]
        assert refused(fleet, "row") == 1
        assert world.effects("big.send") == 0


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
                answer = fleet.body(decided["seq"])
                answer["question"]["action"][name] = forged
                answer["question"]["context"]["confidence"] = record["confidence"]
                with edited(fleet) as file:
                    edit_content(file, decided["seq"], data=orjson.dumps(answer))
            await fleet.approve(row)
            await fleet.restart()
            await fleet.wait_until_idle()
            assert world.effects("big.send") == 0
            ended = fleet.app.store.runs.action(row.id)
            assert (ended.decided, ended.rule) == ("deny", "engine.changed")  # type: ignore[union-attr]


async def test_an_approval_of_before_a_rotation_of_the_key_is_asked_for_again(
    tmp_path: Path,
) -> None:
    world = World()
    async with opened(tmp_path, StorePlan(), world, ManualClock(START)) as fleet:
        row = await held(fleet)
        await fleet.app.commands.stop(fleet.order("an incident"), all=True)
        await fleet.approve(row)
        upkeep = fleet.app.commands.maintenance
        assert upkeep is not None
        order = fleet.order("it is time")
        await upkeep.rotate_key(order.principal, order.reason, None)
        await fleet.app.commands.resume(fleet.order("over"), all=True)
        await fleet.wait_until_idle()
        assert world.effects("big.send") == 0
        (repeat,) = fleet.app.store.runs.holds_page(after=0, limit=10)
        await fleet.approve(repeat)
        await fleet.wait_until_idle()
        assert world.effects("big.send") == 1


@pytest.mark.parametrize("kind", ["event.accepted", "turn.reasoned"])
async def test_a_body_that_was_edited_is_as_if_it_were_gone(
    kind: str, tmp_path: Path, plan: StorePlan
) -> None:
    """What is vouched for stands in the event's body, too; what memories said in the turn's."""
    world = World()
    async with opened(tmp_path, plan, world, ManualClock(START)) as fleet:
        event = job("5", send_proposal("five", tool="big.send"))
        if kind == "event.accepted":
            await fleet.app.commands.stop(fleet.order("an incident"), agent="worker")
        await fleet.send(event)
        await fleet.wait_until_idle()
        (entry,) = [one for one in fleet.entries(kind) if one.get("body")]
        raw = orjson.dumps(fleet.body(entry["seq"]))
        forged = raw.replace(b"five", b"forged", 1)
        assert forged != raw
        with edited(fleet) as file:
            edit_content(file, entry["seq"], data=forged)
        await fleet.restart()
        if kind == "event.accepted":
            await fleet.app.commands.resume(fleet.order("over"), agent="worker")
        else:
            (row,) = fleet.app.store.runs.holds_page(after=0, limit=10)
            await fleet.approve(row)
        await fleet.wait_until_idle()
        assert world.calls == []
        assert [run.state for run in fleet.runs(event)] == ["dead"]


@pytest.mark.parametrize("column", ["answer", "obliges", "record"])
async def test_what_came_of_an_earlier_action_is_proved_before_the_run_goes_on(
    column: str, tmp_path: Path, plan: StorePlan
) -> None:
    """A later turn draws from the answer, and trusts it if the decision did not say otherwise."""
    world = World()
    async with opened(tmp_path, plan, world, ManualClock(START)) as fleet:
        event = job("5", send_proposal("one"), send_proposal("five", tool="big.send"))
        await fleet.send(event)
        await fleet.wait_until_idle()
        done, held = fleet.actions(event)
        assert (done.effect, held.hold) == ("done", "open")
        assert done.answer is not None
        forged = {
            "answer": done.answer.replace(b"one", b"two"),
            "record": done.record.replace(b"one", b"two"),
            "obliges": "" if done.obliges else "label_output",
        }[column]
        assert edit(fleet, f"UPDATE action SET {column}=? WHERE id=?", forged, done.id) == 1
        await fleet.restart()
        await fleet.approve(held)
        await fleet.wait_until_idle()
        assert world.effects("big.send") == 0
        assert [run.state for run in fleet.runs(event)] == ["dead"]
        assert refused(fleet, "row") == 1

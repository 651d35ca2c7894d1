"""The eleven promises, each under its own name, and each with a control that shows it can fail.

All on real stores, real Rego and agents loaded from folders. A control breaks one part of the line
on purpose and expects the same check to find it.
"""

from __future__ import annotations

import asyncio
import shutil
import threading
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import apsw
import orjson
import pytest

from vedette import case as case_module
from vedette import perform
from vedette.adapters.keys import ledger_key
from vedette.adapters.ledger_file import verify_store
from vedette.adapters.rego.engine import RegorusEngine
from vedette.adapters.sqlite import OpenedStore
from vedette.budget import DAY_US
from vedette.bundle import Bundle
from vedette.commands import Order
from vedette.effect import Call, Outcome
from vedette.errors import BadCommand, Forbidden, StoreFailed
from vedette.event import Event
from vedette.hold import EXPIRES_US
from vedette.identity import Principal
from vedette.line import Line
from vedette.memory import Briefing, Candidate
from vedette.ports import Receipt, Thought
from vedette.proof import verifier_key
from vedette.question import Approval
from vedette.replay import replay
from vedette.run import ActionRow, Committed, Step
from vedette.testing.clock import ManualClock
from vedette.testing.harness import FleetHarness, copy_policies, without_tests
from vedette.testing.scripted import ScriptedReasoner
from vedette.testing.toy import (
    World,
    denying,
    job,
    note,
    send,
    stick,
    toy_fleet,
    until,
    write_policies,
)
from vedette.timeline import explain
from vedette.verify import Code

SECOND = 1_000_000


@pytest.fixture
def world() -> World:
    return World()


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


def first(fleet: FleetHarness, event: Event) -> ActionRow:
    return fleet.actions(event)[0]


def state(fleet: FleetHarness, event: Event) -> str:
    return fleet.runs(event)[0].state


async def approve(fleet: FleetHarness, row: ActionRow) -> None:
    await fleet.app.commands.approve(fleet.order("it is right"), row.id)


# --- 1 ----------------------------------------------------------------------------------------


def durable_permit(folder: Path, key: str) -> bool:
    """Say whether another opener of the store's file sees the permit of an effect."""
    store = OpenedStore(folder / "state")
    try:
        told = [orjson.loads(raw) for _, raw, _ in store.entries("action", f"act_{key}")]
    finally:
        store.close()
    decided = [entry["outcome"] for entry in told if entry["kind"] == "action.decided"]
    return decided[-1:] == ["permit"]


def watching(fleet: FleetHarness, world: World) -> list[str]:
    """Look for the durable permit at the moment of every call; return the calls without one."""
    without: list[str] = []

    def answer(call: Call) -> None:
        if not durable_permit(fleet.folder, call.key):
            without.append(call.tool)

    world.answer = answer
    return without


MIXED = [
    send("a"), send("b", "order.place"), send("c", "bell.ring"), send("d", "big.send"),
    send("e", to="x@evil.example"), note("f"),
]  # fmt: skip


async def test_promise_01_no_effect_without_a_permit(tmp_path: Path, world: World) -> None:
    async with toy_fleet(tmp_path, world) as fleet:
        without = watching(fleet, world)
        events = [job(str(n), *MIXED, key=f"k{n % 3}") for n in range(12)]
        await fleet.send(*events)
        await fleet.settle()
        await approve(fleet, fleet.actions(events[0])[3])
        await fleet.settle()
        assert world.effects() == 12 * 3 + 1
        assert without == []
        # What was not permitted has no effect, in our record and in the target's own.
        for event in events:
            for row in fleet.actions(event):
                done = row.effect == "done"
                assert done == (row.decided == "permit")
                if row.tool != "note.add":
                    assert done == (world.keys()[row.id.removeprefix("act_")] == 1)
        # A row is written in the very commit that holds its decision: they share a checkpoint.
        heads = [int(line.split("\n")[1]) for line in fleet.app.store.notes()]
        for entry in fleet.entries("effect.done"):
            if entry["tool"] == "note.add":
                assert not [head for head in heads if entry["cause"] <= head < entry["seq"]]


async def test_promise_01_control_a_call_before_the_commit_is_seen(
    tmp_path: Path, world: World
) -> None:
    async with toy_fleet(tmp_path, world) as fleet:
        without = watching(fleet, world)
        store, line = fleet.app.store, fleet.app.line
        commit = store.commit

        async def too_early(step: Step) -> Committed:
            for row in step.actions:
                if row.effect == "intended":
                    tool = line.agent(row.agent).tools[row.tool]
                    args = orjson.loads(row.record)["args"]
                    key = row.id.removeprefix("act_")
                    target = line.targets["world"]
                    call = Call(row.tool, args, key, row.agent, row.run, target, (), 1, SECOND)
                    await line.performer.perform(tool, call, lambda: True)
            return await commit(step)

        store.commit = too_early  # type: ignore[method-assign]
        await fleet.send(job("1", send("a")))
        await fleet.settle()
        assert without == ["wire.send"]


# --- 2 ----------------------------------------------------------------------------------------


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
    from dataclasses import replace

    call_of = perform.call_of
    monkeypatch.setattr(
        perform, "call_of",
        lambda *given: replace(call_of(*given), key=f"{call_of(*given).key}-{given[-1]}"),
    )  # fmt: skip
    async with toy_fleet(tmp_path, world, clock=clock) as fleet:
        expected = await every_way_to_the_target(fleet, world, clock)
        assert len(world.keys()) == expected + 1


# --- 3 ----------------------------------------------------------------------------------------


def unaccounted(fleet: FleetHarness, accepted: Iterable[Receipt]) -> list[str]:
    """Return the accepted events of which the record does not say what became of them."""
    store = fleet.app.store
    woke = {entry["event"]: entry["woke"] for entry in fleet.entries("event.accepted")}
    ended = {entry["run"] for entry in fleet.entries("run.closed", "run.dead")}
    lost = []
    for receipt in accepted:
        assert receipt.event is not None
        runs = store.runs_of_event(receipt.event)
        if receipt.event not in woke or len(runs) != woke[receipt.event]:
            lost.append(receipt.event)
        for run in runs:
            waits = run.state == "waiting" and any(
                row.hold in ("open", "approved") or row.waits == "target"
                for row in store.actions(run.id)
            )
            if not (waits or (run.state in ("done", "dead") and run.id in ended)):
                lost.append(receipt.event)
    return lost


def assorted() -> list[Event]:
    kinds: list[Callable[[str], Event]] = [
        lambda n: job(n, send(n)),
        lambda n: job(n, send(n, "big.send")),
        lambda n: job(n, **{"raise": True}),
        lambda n: job(n, poison=True),
        lambda n: job(n, send(n, to="x@evil.example"), note(n), key=n),
        lambda n: Event("test", n, "nobody.cares", None, None, {}),
        lambda n: job(n, key="quiet"),
    ]
    return [kinds[n % len(kinds)](f"e{n}") for n in range(70)]


async def test_promise_03_no_event_lost(tmp_path: Path, world: World) -> None:
    fleet = toy_fleet(tmp_path, world)
    await fleet.open()
    try:
        accepted: list[Receipt] = []
        for at, event in enumerate(assorted()):
            accepted += await fleet.send(event)
            if at % 20 == 10:
                await fleet.restart()
        await fleet.settle()
        assert [receipt.status for receipt in accepted] == ["accepted"] * 70
        assert unaccounted(fleet, accepted) == []
        states = {run.state for r in accepted for run in fleet.app.store.runs_of_event(r.event)}  # type: ignore[arg-type]
        assert states == {"done", "waiting", "dead"}
        dead = fleet.entries("run.dead")
        assert len(dead) == 20
        assert all("RuntimeError" in fleet.body(entry["seq"])["why"] for entry in dead)
    finally:
        await fleet.close()


async def test_promise_03_what_is_not_durable_is_not_accepted(tmp_path: Path, world: World) -> None:
    """The source gets an error instead of a receipt, delivers again, and it is one event."""
    async with toy_fleet(tmp_path, world) as fleet:
        store = fleet.app.store
        accept = store.accept

        async def failing(arrivals: Any, position: tuple[str, str] | None) -> list[Any]:
            raise StoreFailed("the disk is full")

        store.accept = failing  # type: ignore[method-assign]
        event = job("1", send())
        with pytest.raises(StoreFailed):
            await fleet.send(event)
        assert fleet.entries("event.accepted") == []
        store.accept = accept  # type: ignore[method-assign]
        receipts = await fleet.send(event)
        await fleet.settle()
        assert unaccounted(fleet, receipts) == []
        assert world.effects() == 1


async def test_promise_03_control_an_event_nobody_handles_is_seen(
    tmp_path: Path, world: World
) -> None:
    async with toy_fleet(tmp_path, world) as fleet:
        fleet.app.dispatcher.offer = lambda runs, event: None  # type: ignore[method-assign]
        receipts = await fleet.send(job("1", send()))
        await fleet.settle()
        assert unaccounted(fleet, receipts) == [receipts[0].event]


# --- 4 ----------------------------------------------------------------------------------------


async def thousand_queued(fleet: FleetHarness, world: World) -> list[Event]:
    """Return when 1,000 calls are permitted and queue for two slots."""
    fleet.app.line.slots = asyncio.Semaphore(2)
    gate = threading.Event()
    world.answer = lambda call: gate.wait(10) and None
    events = [job(f"e{n}", send(str(n)), key=f"k{n}") for n in range(1000)]
    await fleet.send(*events)

    def queued() -> bool:
        sql = "SELECT COUNT(*) FROM action WHERE decided='permit' AND effect='intended'"
        return bool(fleet.app.store._rows(sql)[0][0] == len(events))

    await until(queued, 30)
    gate.set()
    world.answer = None
    await until(lambda: len(world.calls) >= 20)
    return events


@pytest.mark.parametrize("restart", [False, True])
async def test_promise_04_one_policy_at_a_time(tmp_path: Path, world: World, restart: bool) -> None:
    """1,000 permitted calls are queued; a new rule denies the tool; none starts any more."""
    wide = {"limits/data.yaml": WIDE}
    async with toy_fleet(tmp_path, world, extra=wide) as fleet:
        events = await thousand_queued(fleet, world)
        deny = write_policies(tmp_path / "deny", extra=wide | denying("wire.send"))
        told = await fleet.apply(deny)
        assert (told["ok"], told["revision"], told["still_calling"]) == (True, 2, 0)
        called = len(world.calls)
        assert 20 <= called < 900
        if restart:
            # What a runner finds in its policy folder at the start is what it makes live.
            fleet.policies = deny
            await fleet.restart()
        await fleet.settle(60)
        assert len(world.calls) == called, "a call started under the old revision"
        assert fleet.outcomes() == {"permit": called, "deny": 1000 - called}
        assert all(state(fleet, event) == "done" for event in events)

        published = fleet.entries("policy.published")[-1]["seq"]
        for entry in fleet.entries("action.decided"):
            assert entry["policy_rev"] == (1 if entry["seq"] < published else 2)
        last = next(e for e in events if first(fleet, e).decided == "deny")
        (run,) = explain(fleet.app.store, fleet.runs(last)[0].id)["runs"]
        assert [
            (d["outcome"], d["rule"], d["revision"]) for d in run["actions"][0]["decisions"]
        ] == [("permit", "permit.tool", 1), ("deny", "denies.test", 2)]


WIDE = """\
hops: 8
actions: {default: {minute: 100000, hour: 100000, day: 100000}}
confidence_milli: {default: 800}
complete: true
"""


async def test_promise_04_no_step_commits_under_an_older_revision(
    tmp_path: Path, world: World
) -> None:
    """Decided before the publication, committed after it: the store refuses, we decide again."""
    async with toy_fleet(tmp_path, world) as fleet:
        store = fleet.app.store
        commit = store.commit
        deny = write_policies(tmp_path / "deny", extra=denying("wire.send"))
        published: list[Any] = []

        async def late(step: Step) -> Committed:
            if step.actions and not published:
                published.append(await fleet.apply(deny))
            return await commit(step)

        store.commit = late  # type: ignore[method-assign]
        event = job("1", send(), note("x"))
        await fleet.send(event)
        await fleet.settle()
        assert [e["policy_rev"] for e in fleet.entries("action.decided")] == [2, 2]
        assert world.calls == []
        assert first(fleet, event).rule == "denies.test"
        # What the first try had counted and written was taken back.
        assert store.row("worker_notes", "k") == {"texts": ["x"]}


async def test_promise_04_control_a_gateway_left_behind_is_seen(
    tmp_path: Path, world: World
) -> None:
    wide = {"limits/data.yaml": WIDE}
    async with toy_fleet(tmp_path, world, extra=wide) as fleet:
        await thousand_queued(fleet, world)
        fleet.app.rollout.swap = lambda engine, live: None
        fleet.app.rollout.in_flight_before = lambda number: 0
        deny = write_policies(tmp_path / "deny", extra=wide | denying("wire.send"))
        await fleet.apply(deny)
        called = len(world.calls)
        await fleet.settle(60)
        assert len(world.calls) > called


# --- 5 ----------------------------------------------------------------------------------------


async def test_promise_05_an_approval_approves_one_thing(
    tmp_path: Path, world: World, clock: ManualClock
) -> None:
    async with toy_fleet(tmp_path, world, clock=clock) as fleet:
        commands = fleet.app.commands
        one = job("one", send("same", "big.send"), send("other", "big.send"), key="1")
        two = job("two", send("same", "big.send"), key="2")
        await fleet.send(one, two)
        await fleet.settle()
        same, other = fleet.actions(one)
        assert same.digest == first(fleet, two).digest, "the very same call, wanted twice"

        # Only with the digest of what is really held.
        with pytest.raises(BadCommand):
            await commands.approve(fleet.order(), same.id, digest=other.digest)
        # Only by a person, with a reason.
        for nobody in (Principal("engine", "worker"), Principal("engine", "vedette")):
            with pytest.raises(Forbidden):
                await commands.approve(Order(nobody, "I am sure"), same.id)
        with pytest.raises(BadCommand):
            await commands.approve(fleet.order("  "), same.id)
        assert world.calls == []

        await commands.approve(fleet.order(), same.id, digest=same.digest)
        await fleet.settle()
        assert world.texts() == ["same"]
        assert [row.hold for row in [*fleet.actions(one), first(fleet, two)]] == [
            "used", "open", "open",
        ]  # fmt: skip
        # Once.
        with pytest.raises(BadCommand):
            await approve(fleet, same)
        await fleet.restart()
        await fleet.settle()
        assert len(world.calls) == 1
        # Silence is a no.
        clock.advance(EXPIRES_US)
        await fleet.settle()
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
        before, between = job("1", send("1", "big.send")), job("2", send("2", "big.send"))
        await fleet.send(before, between)
        await fleet.settle()
        await fleet.app.commands.stop(fleet.order(), all=True)
        await approve(fleet, first(fleet, between))
        await fleet.settle()
        assert first(fleet, between).hold == "approved"
        await fleet.apply(write_policies(tmp_path / "p2", extra=denying("big.send")))
        await fleet.app.commands.resume(fleet.order(), all=True)
        await approve(fleet, first(fleet, before))
        await fleet.settle()
        assert [first(fleet, event).rule for event in (before, between)] == ["denies.test"] * 2
        assert world.calls == []


async def test_promise_05_an_approval_that_lapsed_is_a_deny(
    tmp_path: Path, world: World, clock: ManualClock
) -> None:
    """Given in time, but not used in time: it does not come to life again after the stop."""
    async with toy_fleet(tmp_path, world, clock=clock) as fleet:
        event = job("1", send("1", "big.send"))
        await fleet.send(event)
        await fleet.settle()
        await fleet.app.commands.stop(fleet.order(), tool="big.send")
        await approve(fleet, first(fleet, event))
        await fleet.settle()
        assert (first(fleet, event).hold, first(fleet, event).waits) == ("approved", "resume")
        clock.advance(EXPIRES_US)
        await fleet.app.commands.resume(fleet.order(), tool="big.send")
        await fleet.settle()
        assert (first(fleet, event).decided, first(fleet, event).hold) == ("deny", "expired")
        assert world.calls == []


async def test_promise_05_arguments_that_changed_after_the_approval_are_not_done(
    tmp_path: Path, world: World
) -> None:
    async with toy_fleet(tmp_path, world) as fleet:
        event = job("1", send("pay 10", "big.send"))
        await fleet.send(event)
        await fleet.settle()
        row = first(fleet, event)
        await fleet.close()
        connection = apsw.Connection(str(tmp_path / "state" / "store.db"))
        forged = row.record.replace(b"pay 10", b"pay 99")
        connection.execute("UPDATE action SET record=? WHERE id=?", (forged, row.id))
        connection.close()
        await fleet.open()
        await approve(fleet, row)
        await fleet.settle()
        assert (first(fleet, event).decided, first(fleet, event).rule) == ("deny", "engine.changed")
        assert world.calls == []


async def test_promise_05_control_approvals_out_of_thin_air_are_seen(
    tmp_path: Path, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        case_module, "approval_of", lambda row, now: Approval(row.digest, "person:x", now + SECOND)
    )
    async with toy_fleet(tmp_path, world) as fleet:
        await fleet.send(job("1", send("1", "big.send")))
        await fleet.settle()
        assert world.effects() == 1


# --- 6 ----------------------------------------------------------------------------------------


def mail(name: str, text: str = "When are you open on Sunday?") -> Event:
    data = {
        "from": "guest@visitors.example", "from_name": "Guest", "to": ["desk@example.org"],
        "cc": [], "reply_to": None, "subject": "Opening hours", "date": None, "text": text,
        "attachments": [], "list": False, "message_id": f"<{name}@x>", "defects": [],
    }  # fmt: skip
    return Event("maildir:test", name, "mail.received", name, None, data)


TARGETS = {"world": {"kind": "world"}}


def shipped(folder: Path, thinks: ScriptedReasoner) -> FleetHarness:
    targets = {
        "mailbox": {"kind": "maildir", "path": str(folder / "mail")},
        "oncall": {"kind": "webhook", "url": "http://127.0.0.1:9/none"},
    }
    policies = without_tests(copy_policies(folder / "policies"))
    return FleetHarness(folder, policies=policies, reasoners={"judge": thinks}, targets=targets)


def learns(briefing: Briefing) -> Thought:
    learned = Candidate("inbox", "inbox", "On Sunday we are open from noon.", ("hours",))
    return Thought(label="learned", candidates=(learned,))


async def test_promise_06_memory_is_governed(tmp_path: Path) -> None:
    """As far as banks of reviewed files go; promotion and unlearning come with the governed bank.

    Reads are decided by policy, every memory of a briefing is cited and was reviewed by somebody,
    and what an agent proposes is kept beside and changes no briefing.
    """
    thinks = ScriptedReasoner([learns])
    async with shipped(tmp_path, thinks) as fleet:
        for name in ("1", "2"):
            await fleet.send(mail(name))
            await fleet.settle()
        before, after = thinks.briefings
        assert before.memories
        assert all(memory.reviewed_by and memory.digest for memory in before.memories)
        assert after.memories == before.memories, "a candidate reached a briefing"
        proposed = fleet.entries("memory.proposed")
        assert len(proposed) == 2
        assert proposed[0]["event"] == mail("1").key, "it names the event it was learned from"
        turn = fleet.body(fleet.entries("turn.reasoned")[0]["seq"])
        assert turn["memories"] == [memory.cite() for memory in before.memories]
        (read,) = fleet.entries("recall.decided")
        assert (read["outcome"], read["memory"]) == ("permit", "inbox/inbox")

        # Restarted, the candidates are still only candidates.
        await fleet.restart()
        await fleet.send(mail("3"))
        await fleet.settle()
        assert thinks.briefings[-1].memories == before.memories

        await fleet.apply(without_grant(fleet, tmp_path / "p2"))
        await fleet.send(mail("4"))
        await fleet.settle()
        assert thinks.briefings[-1].memories == ()
        denied = fleet.entries("recall.decided")[-1]
        assert (denied["outcome"], denied["rule"]) == ("deny", "grant.memory")


def without_grant(fleet: FleetHarness, to: Path) -> Path:
    shutil.copytree(fleet.policies, to)
    grants = to / "grants" / "data.yaml"
    text = grants.read_text()
    assert "memory: [inbox/inbox]" in text
    grants.write_text(text.replace("memory: [inbox/inbox]", "memory: []"))
    return to


async def test_promise_06_a_read_that_is_revoked_while_the_agent_thinks_is_thought_anew(
    tmp_path: Path,
) -> None:
    thinks = ScriptedReasoner([learns])
    fleet = shipped(tmp_path, thinks)
    reason = thinks.reason

    async def slowly(briefing: Briefing) -> Thought:
        thought = await reason(briefing)
        if len(thinks.briefings) == 1:
            await fleet.apply(without_grant(fleet, tmp_path / "p2"))
        return thought

    thinks.reason = slowly  # type: ignore[method-assign]
    async with fleet:
        await fleet.send(mail("1"))
        await fleet.settle()
        assert [bool(briefing.memories) for briefing in thinks.briefings] == [True, False]
        assert [entry["outcome"] for entry in fleet.entries("recall.decided")] == ["deny"]
        assert len(fleet.entries("turn.reasoned")) == 1


async def test_promise_06_control_a_candidate_that_is_recalled_is_seen(tmp_path: Path) -> None:
    thinks = ScriptedReasoner([learns])
    async with shipped(tmp_path, thinks) as fleet:
        recall = fleet.app.banks.recall

        def leaky(bank: str, *given: Any) -> Any:
            found = recall(bank, *given)
            return found + found[:1] if fleet.app.banks.candidates(bank) else found

        fleet.app.banks.recall = leaky  # type: ignore[method-assign]
        for name, text in (("1", "When are you open?"), ("2", "When are you open, please?")):
            await fleet.send(mail(name, text))
            await fleet.settle()
        assert len(thinks.briefings[1].memories) > len(thinks.briefings[0].memories)


# --- 7 ----------------------------------------------------------------------------------------


async def spend(fleet: FleetHarness, thinks: ScriptedReasoner, number: int) -> tuple[int, bool]:
    """Let many runs think at once; return the calls made and whether each was booked before."""
    booked: list[bool] = []

    async def reason(briefing: Briefing) -> Thought:
        store = OpenedStore(fleet.folder / "state")
        told = [orjson.loads(raw) for _, raw, _ in store.entries("run", briefing.run)]
        store.close()
        booked.append(any(entry["kind"] == "budget.reserved" for entry in told))
        thinks.briefings.append(briefing)
        await asyncio.sleep(0)
        return Thought(model_calls=2)

    thinks.reason = reason  # type: ignore[method-assign]
    await fleet.send(*(job(str(n), key=str(n)) for n in range(number)))
    await fleet.settle()
    return 2 * len(thinks.briefings), all(booked)


async def test_promise_07_spend_is_reserved_first(
    tmp_path: Path, world: World, clock: ManualClock
) -> None:
    """Model calls of an agent and permitted actions; money, tokens and the fleet's own budget
    come with a later issue.
    """
    thinks = ScriptedReasoner([])
    fleet = toy_fleet(
        tmp_path, world, reasoner="adk", reasoners={"adk": thinks}, model_calls=10, clock=clock
    )
    async with fleet:
        assert await spend(fleet, thinks, 40) == (10, True)
        await fleet.restart()
        await fleet.settle()
        assert len(thinks.briefings) == 5
        clock.advance(DAY_US)
        await fleet.settle()
        assert len(thinks.briefings) == 10, "what had no room waits, and is not lost"


async def test_promise_07_no_two_runs_share_the_last_place_of_a_limit(
    tmp_path: Path, world: World, clock: ManualClock
) -> None:
    extra = {"limits/data.yaml": WIDE.replace("minute: 100000", "minute: 7")}
    async with toy_fleet(tmp_path, world, extra=extra, clock=clock) as fleet:
        await fleet.send(*(job(str(n), send(str(n)), key=str(n)) for n in range(50)))
        await fleet.settle()
        assert len(world.calls) == 7
        assert fleet.outcomes() == {"permit": 7, "hold": 43}


async def test_promise_07_control_spending_without_a_reservation_is_seen(
    tmp_path: Path, world: World, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Line, "reservable", lambda line, agent, now: True)
    thinks = ScriptedReasoner([])
    fleet = toy_fleet(
        tmp_path, world, reasoner="adk", reasoners={"adk": thinks}, model_calls=10, clock=clock
    )
    async with fleet:
        calls, _ = await spend(fleet, thinks, 40)
        assert calls == 80


# --- 8 ----------------------------------------------------------------------------------------


def verified(folder: Path) -> Any:
    """Verify a ledger with what an auditor has: a copy of store and witness, and the public key."""
    state = folder / "state"
    name = "vedette/harbour"
    public = ledger_key(state, name).public_key().public_bytes_raw()
    store = OpenedStore(state)
    try:
        return verify_store(store, verifier_key(name, public), state / "witness.log")
    finally:
        store.close()


async def some_work(fleet: FleetHarness) -> Event:
    event = job("1", *MIXED, key="somebody@example.org")
    await fleet.send(event, *(job(f"e{n}", send()) for n in range(8)))
    await fleet.settle()
    for row in fleet.actions(event):
        if row.hold == "open":
            await fleet.app.commands.deny(fleet.order(), row.id)
    await fleet.settle()
    return event


async def test_promise_08_the_ledger_proves_itself_and_can_forget(
    tmp_path: Path, world: World
) -> None:
    """After real work; every kind of damage has its own test in contract/test_ledger_verify."""
    async with toy_fleet(tmp_path, world) as fleet:
        event = await some_work(fleet)
        erased = await fleet.app.commands.erase(fleet.order(), subject="somebody@example.org")
        assert erased["erased"]
    report = verified(tmp_path)
    assert report.ok, report.findings
    assert report.erased >= len(erased["erased"])
    raw = (tmp_path / "state" / "store.db").read_bytes()
    assert event.key.encode() in raw


@pytest.mark.parametrize(
    ("damage", "code"),
    [
        (
            "UPDATE entry SET bytes=CAST(replace(bytes,'permit','hold__') AS BLOB) WHERE seq={}",
            None,
        ),
        ("DELETE FROM entry WHERE seq={}", Code.SEQ_GAP),
        ("UPDATE body SET data=CAST('{{}}' AS BLOB) WHERE seq={}", Code.BODY_MISMATCH),
        ("DELETE FROM body WHERE seq={}", Code.BODY_MISSING),
    ],
)
async def test_promise_08_control_damage_is_found(
    tmp_path: Path, world: World, damage: str, code: Code | None
) -> None:
    async with toy_fleet(tmp_path, world) as fleet:
        await some_work(fleet)
        seq = fleet.entries("action.decided")[0]["seq"]
    assert verified(tmp_path).ok
    connection = apsw.Connection(str(tmp_path / "state" / "store.db"))
    connection.execute(damage.format(seq))
    assert connection.changes() == 1
    connection.close()
    report = verified(tmp_path)
    assert not report.ok
    assert code is None or code in {finding.code for finding in report.findings}


# --- 9 ----------------------------------------------------------------------------------------

PERMIT: dict[str, Any] = {
    "schema": "vedette.decision/1", "outcome": "permit", "rule": "x", "reasons": [], "wait": None,
    "until": 0, "would": None, "obligations": [],
}  # fmt: skip


class Engine:
    """A policy engine that answers what the test wants."""

    name, digest = "test", "0" * 64

    def __init__(self, answer: object) -> None:
        self.answer = answer

    def decide(self, question: bytes) -> object:
        if isinstance(self.answer, BaseException):
            raise self.answer
        return self.answer


WRONG: list[object] = [
    None, {}, [], True, "permit", 1, b"permit", {"outcome": "permit"}, [PERMIT],
    {**PERMIT, "schema": "vedette.decision/9"}, {**PERMIT, "outcome": "allow"},
    {**PERMIT, "outcome": True}, {**PERMIT, "rule": ""}, {**PERMIT, "extra": 1},
    {**PERMIT, "wait": "approval"}, {**PERMIT, "until": -1}, {**PERMIT, "until": 0.5},
    {**PERMIT, "obligations": [{"type": "encrypt"}]}, {**PERMIT, "obligations": ["notify"]},
    {**PERMIT, "obligations": None}, {k: v for k, v in PERMIT.items() if k != "reasons"},
    RuntimeError("broken"), TimeoutError("late"), MemoryError(), RecursionError(),
    ValueError("undefined"), StopIteration(),
]  # fmt: skip


async def test_promise_09_it_fails_closed(tmp_path: Path, world: World) -> None:
    async with toy_fleet(tmp_path, world) as fleet:
        gateway = fleet.app.line.gateway
        live = gateway.engine
        for at, wrong in enumerate(WRONG):
            gateway.engine = Engine(wrong)
            event = job(str(at), send(), note("x"))
            await fleet.send(event)
            await fleet.settle()
            assert [row.decided for row in fleet.actions(event)] == ["deny", "deny"], wrong
            assert all(row.rule.startswith("engine.") for row in fleet.actions(event))
            assert state(fleet, event) == "done"
        assert world.calls == []
        assert fleet.app.store.row("worker_notes", "k") is None
        gateway.engine = live
        await fleet.send(job("good", send()))
        await fleet.settle()
        assert world.effects() == 1


@pytest.mark.parametrize(
    "files",
    [
        {"vedette/gateway/decide.rego": "package vedette.gateway\n"},
        {"vedette/gateway/decide.rego": "package vedette.gateway\n\ndecision := true\n"},
        {"vedette/gateway/decide.rego": "package elsewhere\n\ndecision := {}\n"},
        {"grants/data.yaml": "{}\n"},
        {"sinks/data.yaml": "tools: {}\n"},
        {"limits/data.yaml": "hops: 8\n"},
        {"denies/data.yaml": "agents: []\n"},
    ],
)
async def test_promise_09_a_policy_with_nothing_in_it_permits_nothing(
    tmp_path: Path, world: World, files: dict[str, str]
) -> None:
    """Admitted by a stage that looks at nothing, it still permits nothing."""
    async with toy_fleet(tmp_path, world) as fleet:
        broken = copy_policies(tmp_path / "broken")
        shutil.rmtree(broken)
        shutil.copytree(fleet.policies, broken)
        for name, text in files.items():
            (broken / name).write_text(text)
        try:
            await fleet.apply(broken)
        except Exception:
            # It does not even load; then the engine it would have been is no engine.
            fleet.app.line.gateway.engine = Engine(None)
        event = job("1", send(), note("x"))
        await fleet.send(event)
        await fleet.settle()
        assert fleet.outcomes().get("permit", 0) == 0
        assert world.calls == []


async def test_promise_09_control_an_exact_permit_is_done(tmp_path: Path, world: World) -> None:
    async with toy_fleet(tmp_path, world) as fleet:
        fleet.app.line.gateway.engine = Engine(PERMIT)
        await fleet.send(job("1", send()))
        await fleet.settle()
        assert world.effects() == 1


# --- 10 ---------------------------------------------------------------------------------------


async def queued_behind_two(fleet: FleetHarness, world: World) -> Event:
    """Return when 300 calls queue for two slots and one action waits for a person."""
    fleet.app.line.slots = asyncio.Semaphore(2)
    gate = threading.Event()
    world.answer = lambda call: gate.wait(10) and None
    held = job("held", send("held", "big.send"), key="held")
    await fleet.send(held, *(job(f"e{n}", send(str(n)), key=f"k{n}") for n in range(300)))

    def queued() -> bool:
        sql = "SELECT COUNT(*) FROM action WHERE decided='permit' AND effect='intended'"
        return bool(fleet.app.store._rows(sql)[0][0] == 300)

    await until(queued, 30)
    gate.set()
    world.answer = None
    await until(lambda: len(world.calls) >= 20)
    return held


@pytest.mark.parametrize("what", [{"all": True}, {"agent": "worker"}, {"tool": "wire.send"}])
async def test_promise_10_it_stops_when_told(
    tmp_path: Path, world: World, what: dict[str, Any]
) -> None:
    """Queued calls, waiting approvals and new events. The bound on time-to-stop, and stopping a
    fleet of many processes, come with a later issue; here the time is told and calls that were
    under way are bounded by the slots.
    """
    async with toy_fleet(tmp_path, world, agents=("worker", "helper")) as fleet:
        held = await queued_behind_two(fleet, world)
        told = await fleet.app.commands.stop(fleet.order("enough"), **what)
        called = len(world.calls)
        assert told["took_us"] > 0
        late = job("late", send("late"), note("late"), key="late")
        await fleet.send(late)
        if "tool" not in what:
            await approve(fleet, first(fleet, held))
        await fleet.settle()
        assert len(world.calls) <= called + 2, "at most what was already on its way"
        assert world.effects("big.send") == 0
        if "tool" not in what:
            assert fleet.app.store.row("worker_notes", "late") is None
        if "agent" in what:
            other = job("other", send("other"), agent="helper")
            await fleet.send(other)
            await fleet.settle()
            assert world.texts()[-1] == "other"
        stopped = len(world.calls)
        await fleet.restart()
        await fleet.settle()
        assert len(world.calls) == stopped, "a stop outlives a restart"

        await fleet.app.commands.resume(fleet.order("go on"), **what)
        await fleet.settle(30)
        texts = [text for text in world.texts("wire.send") if text not in ("late", "other")]
        assert sorted(set(texts), key=int) == [str(n) for n in range(300)], "nothing was lost"
        assert len(world.keys("wire.send")) == len(world.happened) - world.effects("big.send")
        assert [entry["what"] for entry in fleet.entries("stop.set", "stop.lifted")] == [
            f"{scope}:{'' if name is True else name}" for scope, name in what.items()
        ] * 2


async def test_promise_10_control_a_stop_that_is_not_taken_over_is_seen(
    tmp_path: Path, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    from vedette.stop import Stops

    async with toy_fleet(tmp_path, world) as fleet:
        await queued_behind_two(fleet, world)
        monkeypatch.setattr(Stops, "restore", lambda self, epoch, stops: None)
        await fleet.app.commands.stop(fleet.order(), all=True)
        called = len(world.calls)
        await fleet.settle(30)
        assert len(world.calls) > called + 2


# --- 11 ---------------------------------------------------------------------------------------


async def two_revisions(fleet: FleetHarness, folder: Path) -> int:
    """Let decisions of every kind be made under two revisions; return how many."""
    events = [job(f"a{n}", *MIXED) for n in range(4)]
    await fleet.send(*events)
    await fleet.settle()
    await fleet.apply(write_policies(folder / "p2", extra=denying("wire.send")))
    await approve(fleet, fleet.actions(events[0])[3])
    await fleet.send(*(job(f"b{n}", *MIXED) for n in range(4)))
    await fleet.settle()
    await fleet.restart()
    return len(fleet.entries("action.decided", "recall.decided"))


async def test_promise_11_decisions_replay(tmp_path: Path, world: World) -> None:
    async with toy_fleet(tmp_path, world) as fleet:
        decisions = await two_revisions(fleet, tmp_path)
        report = replay(fleet.app.store, RegorusEngine)
        assert report.ok, report.differences
        assert (report.decisions, report.agreed) == (decisions, decisions)
        assert set(report.revisions) == {1, 2}
        for revision in (1, 2):
            assert set(report.revisions[revision]) == {"permit", "hold", "deny"}


async def test_promise_11_control_another_policy_is_seen(tmp_path: Path, world: World) -> None:
    async with toy_fleet(tmp_path, world) as fleet:
        await two_revisions(fleet, tmp_path)

        def other(bundle: Bundle) -> RegorusEngine:
            grants = dict(bundle.files)
            grants["grants/data.yaml"] = grants["grants/data.yaml"].replace(b"act", b"ask")
            return RegorusEngine(Bundle.of(grants))

        report = replay(fleet.app.store, other)
        assert not report.ok
        assert report.differed > 0

"""A task waits for a time or an event, at no compute, and is woken once, by the right one."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import orjson
import pytest
from tests.contract.engine.test_tasks import (
    Answer,
    Scripted,
    finish,
    order,
    run_of,
    says,
    send,
    start,
)

from vedette.domain.action import Proposal
from vedette.domain.base.clock import MICROS, iso
from vedette.domain.base.errors import BadCommand
from vedette.domain.entry import Draft
from vedette.domain.erasure import ErasureTarget
from vedette.domain.event import Event
from vedette.domain.event_wait import WAITS
from vedette.domain.memory import Briefing
from vedette.domain.origin import Ref
from vedette.domain.row_proof import parse_record
from vedette.domain.run import ActionRow, Superseded
from vedette.engine.handle import run_to_completion
from vedette.engine.run_context import RunContext
from vedette.engine.scheduler.failure_policy import dead_letter
from vedette.engine.task_wait import MAX_WAITS
from vedette.interfaces.render.explain_text import explain_text
from vedette.ledger.history.action import format_awaited
from vedette.ledger.history.explain import explain
from vedette.ledger.history.tasks import show_task
from vedette.testing.clock import ManualClock
from vedette.testing.harness import FleetHarness
from vedette.testing.toy_fleet import World, deny_policy, toy_fleet

DAY = 86_400 * MICROS
WORK = "{max_turns: 200, no_progress: 20, waits_for: [reply, note]}"
DONE = "version: 1\nconditions:\n  - {name: sent, action: wire.send, at_least: 1}\n"


def wait(**args: Any) -> Proposal:
    return Proposal("task.wait", args)


def reply(id: str, thread: object = 7, **more: Any) -> Event:
    given = {"type": "reply", "data": {"thread": thread, "text": f"reply {id}"}, **more}
    return Event("mail", id, **given)


def waiting_fleet(
    folder: Path, clock: ManualClock, answer: Answer, *, world: World | None = None, **more: Any
) -> tuple[FleetHarness, Scripted]:
    scripted = Scripted(answer)
    fleet = toy_fleet(
        folder, world or World(), reasoners={"judge": scripted}, work=WORK, done=DONE, clock=clock,
        **more,
    )  # fmt: skip
    return fleet, scripted


def once(*proposals: Proposal) -> Answer:
    """Return a judge that waits in its first turn, sends one thing after it, and ends."""

    def answer(briefing: Briefing) -> Any:
        if briefing.turn == 1:
            return says(*proposals)
        return says(send("now")) if briefing.turn == 2 else says(finish())

    return answer


def wait_row(fleet: FleetHarness, run: str) -> ActionRow:
    (row,) = [row for row in fleet.app.store.runs.actions(run) if row.tool == "task.wait"]
    return row


def waits_kept(fleet: FleetHarness) -> int:
    """Return how many rows say that somebody waits for an event."""
    database = fleet.app.store.runs._database
    return int(database.rows('SELECT COUNT(*) FROM "row" WHERE collection=?', (WAITS,))[0][0])


async def erase(fleet: FleetHarness, event: Event) -> None:
    await fleet.submit_confirmed("erase", event=event.key)


def told(scripted: Scripted, turn: int = 2) -> Mapping[str, Any]:
    """Return what a turn is told of the wait of the turn before."""
    (answer,) = [
        one
        for one in scripted.briefings[turn - 1].turns[-1]["answers"]
        if one["tool"] == "task.wait"
    ]
    return dict(answer)


async def test_it_wakes_at_its_time(tmp_path: Path) -> None:
    clock = ManualClock()
    fleet, scripted = waiting_fleet(tmp_path, clock, once(wait(for_s=30 * 3600)))
    async with fleet:
        run = await start(fleet)
        await fleet.wait_until_idle()
        found = run_of(fleet, run)
        assert (found.state, found.waits) == ("waiting", "time")
        assert found.wake_us == clock.now_us() + 30 * 3600 * MICROS
        clock.advance(29 * 3600 * MICROS)
        await fleet.wait_until_idle()
        assert len(scripted.briefings) == 1
        clock.advance(3601 * MICROS)
        await fleet.wait_until_idle()
        assert run_of(fleet, run).state == "done"
        assert told(scripted)["data"] == {"woke": "time"}
        assert list(fleet.app.store.ledger.row_mismatches()) == []


class HeldWorld(World):
    """A world whose first call lasts until it is let go."""

    def __init__(self) -> None:
        self.called, self.let_go = threading.Event(), threading.Event()
        super().__init__(answer=self._hold)

    def _hold(self, call: Any) -> None:
        self.called.set()
        assert self.let_go.wait(10)


@pytest.mark.parametrize("first", ["wait", "call"])
async def test_an_event_that_comes_while_the_turn_calls_is_not_missed(
    tmp_path: Path, first: str
) -> None:
    world = HeldWorld()
    both = [wait(event="reply", for_s=10 * 86_400), send("question")]
    if first == "call":
        both.reverse()
    fleet, scripted = waiting_fleet(tmp_path, ManualClock(), once(*both), world=world)
    async with fleet:
        run = await start(fleet)
        assert await asyncio.to_thread(world.called.wait, 10)
        await fleet.send(reply("soon"))
        world.let_go.set()
        await fleet.wait_until_idle()
        assert run_of(fleet, run).state == "done"
        assert told(scripted)["data"]["woke"] == "event"
        assert waits_kept(fleet) == 0


async def test_it_wakes_by_the_first_event_that_matches(tmp_path: Path) -> None:
    clock = ManualClock()
    asked = wait(event="reply", where={"/data/thread": 7}, for_s=30 * 86_400)
    fleet, scripted = waiting_fleet(tmp_path, clock, once(asked))
    async with fleet:
        await fleet.send(reply("early"))  # before the wait: it is not what comes after
        run = await start(fleet)
        await fleet.wait_until_idle()
        assert run_of(fleet, run).waits == "event"
        await fleet.send(
            reply("other", thread=8),
            reply("none", data={"text": "of no thread"}),
            reply("kind", type="note"),
            reply("right"),
            reply("late"),
        )
        await fleet.send(reply("right"))  # delivered again
        await fleet.wait_until_idle()
        assert run_of(fleet, run).state == "done"
        data = told(scripted)["data"]
        assert (data["woke"], data["event"]["id"]) == ("event", "right")
        (matched,) = fleet.entries("event.matched")
        accepted = fleet.app.store.ledger.entry(matched["cause"])
        assert accepted is not None
        assert (matched["run"], matched["cause"]) == (run, data["position"])
        assert waits_kept(fleet) == 0
        assert list(fleet.app.store.ledger.row_mismatches()) == []


async def test_one_event_wakes_all_that_wait_for_it(tmp_path: Path) -> None:
    clock = ManualClock()

    def answer(briefing: Briefing) -> Any:
        where = {"/data/thread": briefing.task["inputs"]["thread"]}
        asked = wait(event="reply", where=where) if where["/data/thread"] else wait(event="reply")
        return says(asked) if briefing.turn == 1 else says()

    fleet, _ = waiting_fleet(tmp_path, clock, answer)
    async with fleet:
        runs = {}
        for thread in (7, "7", 8, 0):
            clock.advance(MICROS)
            runs[thread] = await start(fleet, inputs={"thread": thread})
        await fleet.wait_until_idle()
        await fleet.send(reply("a"))
        await fleet.wait_until_idle()
        woken = {thread for thread, run in runs.items() if run_of(fleet, run).turn > 1}
        assert woken == {7, 0}
        assert len(fleet.entries("event.matched")) == 2


@pytest.mark.parametrize(
    ("args", "why"),
    [
        ({}, "a wait is until"),
        ({"event": "mail.received"}, "does not say that it waits"),
        ({"until": "soon"}, "until is no instant"),
        ({"for_s": 0}, "ahead"),
        ({"where": {"/data": 1}, "for_s": 1}, "narrow an event"),
        ({"event": "reply", "where": {"data": 1}}, "JSON Pointer"),
        ({"event": "reply", "where": {"/type": 1}}, "no place"),
        ({"event": "reply", "where": {f"/data/{at}": 1 for at in range(9)}}, "8 places"),
    ],
)
async def test_what_is_no_wait_is_refused(tmp_path: Path, args: dict[str, Any], why: str) -> None:
    fleet, _ = waiting_fleet(tmp_path, ManualClock(), once(wait(**args)))
    async with fleet:
        await start(fleet)
        await fleet.wait_until_idle()
        (refused,) = fleet.entries("action.refused")
        assert why in fleet.body(refused["seq"])["why"]


async def test_an_event_from_its_own_effects_wakes_it_not(tmp_path: Path) -> None:
    fleet, _ = waiting_fleet(tmp_path, ManualClock(), once(wait(event="reply")))
    async with fleet:
        run = await start(fleet)
        await fleet.wait_until_idle()
        await fleet.send(reply("echo", hops=1, lineage=("worker",)))
        await fleet.wait_until_idle()
        assert run_of(fleet, run).state == "waiting"
        await fleet.send(reply("a", hops=1, lineage=("other",)))
        await fleet.wait_until_idle()
        assert run_of(fleet, run).state == "done"


async def test_what_is_erased_meanwhile_is_said_to_be(tmp_path: Path) -> None:
    fleet, scripted = waiting_fleet(tmp_path, ManualClock(), once(wait(event="reply")))
    async with fleet:
        run = await start(fleet)
        await fleet.wait_until_idle()
        await order(fleet, "pause", run=run)
        await fleet.wait_until_idle()
        event = reply("a", subject="gone")
        await fleet.send(event)
        await fleet.wait_until_idle()
        await erase(fleet, event)
        await order(fleet, "resume", run=run)
        await fleet.wait_until_idle()
        data = told(scripted)["data"]
        assert (data["woke"], data["erased"], "event" in data) == ("event", True, False)


@pytest.mark.parametrize("verb", ["cancel", "pause", "stop"])
async def test_a_person_ends_a_wait_or_has_it_stay(tmp_path: Path, verb: str) -> None:
    clock = ManualClock()
    fleet, scripted = waiting_fleet(tmp_path, clock, once(wait(event="reply", for_s=86_400)))
    async with fleet:
        run = await start(fleet)
        await fleet.wait_until_idle()
        if verb == "stop":
            await fleet.submit_confirmed("stop", agent="worker")
        else:
            await order(fleet, verb, run=run)
        await fleet.send(reply("a"))
        clock.advance(2 * DAY)
        await fleet.wait_until_idle()
        row = wait_row(fleet, run)
        assert len(scripted.briefings) == 1
        if verb == "cancel":
            assert (run_of(fleet, run).state, row.effect, row.decided) == (
                "done", "cancelled", "deny",
            )  # fmt: skip
            # It is known that nothing happened.
            assert len(fleet.entries("effect.cancelled")) == 1
            assert fleet.entries("effect.unknown") == []
        else:
            assert (run_of(fleet, run).state, row.effect) == ("waiting", "started")
            if verb == "stop":
                await fleet.submit_confirmed("resume", agent="worker")
            else:
                await order(fleet, "resume", run=run)
            await fleet.wait_until_idle()
            assert told(scripted)["data"]["woke"] == "event"  # it came first
            assert run_of(fleet, run).state == "done"
        assert waits_kept(fleet) == 0
        assert list(fleet.app.store.ledger.row_mismatches()) == []


async def test_what_comes_in_the_moment_of_a_stop_is_not_settled(tmp_path: Path) -> None:
    fleet, _ = waiting_fleet(tmp_path, ManualClock(), once(wait(event="reply")))
    async with fleet:
        run = await start(fleet)
        await fleet.wait_until_idle()
        await fleet.app.dispatcher.close()
        await fleet.send(reply("a"))
        services = fleet.app.services
        found, event = run_of(fleet, run), services.store.runs.event(run_of(fleet, run).event)
        epoch = services.store.cluster.lease_epoch(found)
        assert event is not None
        assert epoch is not None
        context = RunContext.open(services, found, epoch, event)  # it is in hand
        await fleet.submit_confirmed("stop", agent="worker")
        with pytest.raises(Superseded, match="stopped"):
            await run_to_completion(services, context)
        assert wait_row(fleet, run).effect == "started"


async def test_the_other_actions_of_a_turn_go_on(tmp_path: Path) -> None:
    world = World()
    fleet, scripted = waiting_fleet(
        tmp_path, ManualClock(), once(wait(event="reply"), send("beside")), world=world
    )
    async with fleet:
        run = await start(fleet)
        await fleet.wait_until_idle()
        assert (world.texts(), len(scripted.briefings)) == (["beside"], 1)
        assert run_of(fleet, run).waits == "event"
        await fleet.send(reply("a"))
        await fleet.wait_until_idle()
        assert (world.texts(), run_of(fleet, run).state) == (["beside", "now"], "done")


async def test_a_wait_ends_at_the_deadline_of_its_task(tmp_path: Path) -> None:
    clock = ManualClock()
    until = iso(clock.now_us() + 365 * DAY)
    fleet, scripted = waiting_fleet(tmp_path, clock, once(wait(until=until, event="reply")))
    async with fleet:
        run = await start(fleet, deadline="3d")
        await fleet.wait_until_idle()
        clock.advance(3 * DAY)
        await fleet.wait_until_idle()
        row = wait_row(fleet, run)
        assert b'"bound":"deadline"' in (row.answer or b"")
        # And a person is asked what becomes of the task.
        assert (run_of(fleet, run).waits, len(scripted.briefings)) == ("person", 1)


async def test_it_is_found_again_after_a_restart(tmp_path: Path) -> None:
    clock = ManualClock()
    fleet, scripted = waiting_fleet(tmp_path, clock, once(wait(event="reply")))
    async with fleet:
        run = await start(fleet)
        await fleet.wait_until_idle()
        await fleet.restart()
        await fleet.send(reply("a"))
        await fleet.wait_until_idle()
        assert told(scripted)["data"]["event"]["id"] == "a"
        assert run_of(fleet, run).state == "done"


async def test_an_event_is_untrusted_and_as_secret_as_it_is(tmp_path: Path) -> None:
    def answer(briefing: Briefing) -> Any:
        if briefing.turn == 1:
            return says(wait(event="reply"))
        to = Ref("/outcome/0/event/data/thread")
        return (
            says(Proposal("wire.send", {"to": to, "text": "x"})) if briefing.turn == 2 else says()
        )

    fleet, _ = waiting_fleet(tmp_path, ManualClock(), answer)
    async with fleet:
        run = await start(fleet)
        await fleet.wait_until_idle()
        await fleet.send(reply("a", thread="desk@example.org", readers=frozenset({"desk"})))
        await fleet.wait_until_idle()
        (sent,) = [one for one in fleet.app.store.runs.actions(run) if one.tool == "wire.send"]
        record = parse_record(sent.record)
        assert record["origins"]["/to"] == "untrusted"
        assert record["readers"]["/to"] == ["desk"]
        assert sent.decided != "permit"


async def test_people_see_what_it_waits_for(tmp_path: Path) -> None:
    clock = ManualClock()
    asked = wait(event="reply", source="mail", where={"/data/thread": 7}, for_s=3600)
    fleet, _ = waiting_fleet(tmp_path, clock, once(asked))
    async with fleet:
        run = await start(fleet)
        await fleet.wait_until_idle()
        store, agents = fleet.app.store, fleet.app.services.fleet.agents
        (one,) = show_task(store, agents, run)["awaits"]
        until = clock.now_us() + 3600 * MICROS
        assert (one["tool"], one["waits"], one["until"]) == ("task.wait", "event", until)
        what = 'an event reply with {"/data/thread":7,"/source":"mail"}'
        assert format_awaited(one) == what
        lines = [line for _, line in explain_text(explain(store, run), 200)]
        (line,) = [line.strip() for line in lines if "waits for an event" in line]
        assert line.startswith(f"waits for {what}, until ")
        await order(fleet, "cancel", run=run)
        await fleet.wait_until_idle()
        assert show_task(store, agents, run)["awaits"] == []
        lines = [line for _, line in explain_text(explain(store, run), 200)]
        assert any("effect cancelled" in line for line in lines)


async def test_what_changes_while_it_waits(tmp_path: Path) -> None:
    """The wait was permitted; what it may be told is what agent.yaml says when the event comes."""
    fleet, scripted = waiting_fleet(tmp_path, ManualClock(), once(wait(event="reply")))
    async with fleet:
        run = await start(fleet)
        await fleet.wait_until_idle()
        (tmp_path / "policies/vedette/denies").mkdir(exist_ok=True)
        for name, text in deny_policy("task.wait").items():
            (tmp_path / "policies" / name).write_text(text)
        await fleet.apply_policy(tmp_path / "policies")
        await fleet.send(reply("a"))
        await fleet.wait_until_idle()
        assert told(scripted)["data"]["woke"] == "event"
        assert run_of(fleet, run).state == "done"


async def test_an_event_whose_type_is_named_no_more_is_not_told(tmp_path: Path) -> None:
    fleet, scripted = waiting_fleet(tmp_path, ManualClock(), once(wait(event="reply")))
    async with fleet:
        run = await start(fleet)
        await fleet.wait_until_idle()
        await fleet.close()
        file = fleet.content / "agents/worker/agent.yaml"
        file.write_text(file.read_text().replace("[reply, note]", "[note]"))
        await fleet.open()
        await fleet.send(reply("a"))
        await fleet.wait_until_idle()
        row = wait_row(fleet, run)
        assert (row.effect, b"any more" in (row.answer or b"")) == ("failed", True)
        assert b"reply a" not in (row.answer or b"")
        assert told(scripted)["status"] == "failed"


async def test_what_waits_on_erased_content_ends_where_that_is_ordered(tmp_path: Path) -> None:
    fleet, _ = waiting_fleet(tmp_path, ManualClock(), once(wait(event="reply")))
    async with fleet:
        run = await start(fleet)
        await fleet.wait_until_idle()
        store, event = fleet.app.store, run_of(fleet, run).event
        target, draft = ErasureTarget("event", event), Draft("body.erased", {"actor": "person:kim"})
        with pytest.raises(BadCommand):
            await store.commands.erase(target, draft, stateless=("worker",))
        assert waits_kept(fleet) == 1
        await store.commands.erase(target, draft, stateless=("worker",), end=True)
        assert (run_of(fleet, run).state, wait_row(fleet, run).effect) == ("done", "cancelled")
        assert waits_kept(fleet) == 0
        assert list(store.ledger.row_mismatches()) == []


def contents_with(fleet: FleetHarness, word: str) -> list[str]:
    """Return the kinds of the entries whose content has a word, and the rows that have it."""
    database = fleet.app.store.runs._database
    entries = fleet.app.store.ledger.walk(None)
    kinds = [
        orjson.loads(raw)["kind"] for _, raw, _, data in entries if word.encode() in (data or b"")
    ]
    rows = database.rows("SELECT tool, record, answer FROM action")
    found = [str(tool) for tool, *held in rows if word.encode() in b"".join(x or b"" for x in held)]
    return kinds + found


async def test_what_a_wait_was_told_goes_with_the_event(tmp_path: Path) -> None:
    def answer(briefing: Briefing) -> Any:
        if briefing.turn == 1:
            return says(wait(event="reply"))
        if briefing.turn == 2:
            heard = told(scripted)["data"]["event"]["data"]["text"]
            return says(send(heard), wait(for_s=60))
        return says(finish())

    clock = ManualClock()
    fleet, scripted = waiting_fleet(tmp_path, clock, answer)
    event = reply("a", data={"thread": 7, "text": "Mallory"})
    async with fleet:
        run = await start(fleet)
        await fleet.wait_until_idle()
        await fleet.send(event)
        await fleet.wait_until_idle()
        with pytest.raises(BadCommand, match=f"run {run} still needs this content"):
            await erase(fleet, event)  # it goes on with what it was told
        clock.advance(DAY)
        await fleet.wait_until_idle()
        assert run_of(fleet, run).state == "done"
        assert "turn.reasoned" in contents_with(fleet, "Mallory")
        await erase(fleet, event)
        assert contents_with(fleet, "Mallory") == []
        assert fleet.body(run_of(fleet, run).position)["data"]["goal"]  # its own event stays
        assert list(fleet.app.store.ledger.row_mismatches()) == []


async def test_a_dead_letter_waits_for_nothing(tmp_path: Path) -> None:
    """Taken up again it is decided anew, and begins a wait of its own."""

    def answer(briefing: Briefing) -> Any:
        return says(wait(event="reply")) if briefing.turn == 1 else says()

    fleet, _ = waiting_fleet(tmp_path, ManualClock(), answer)
    async with fleet:
        run = await start(fleet)
        await fleet.wait_until_idle()
        found, services = run_of(fleet, run), fleet.app.services
        epoch = services.store.cluster.lease_epoch(found)
        assert epoch is not None
        await dead_letter(services, found, epoch, "a test")
        assert (wait_row(fleet, run).effect, waits_kept(fleet)) == ("cancelled", 0)
        await fleet.send(reply("a"))
        await fleet.wait_until_idle()
        assert run_of(fleet, run).state == "dead"
        await fleet.app.commands.redrive(fleet.order(), [run])
        await fleet.wait_until_idle()
        assert (wait_row(fleet, run).effect, waits_kept(fleet)) == ("started", 1)
        await fleet.send(reply("b"))
        await fleet.wait_until_idle()
        assert b'"id":"b"' in (wait_row(fleet, run).answer or b"")
        assert list(fleet.app.store.ledger.row_mismatches()) == []


async def test_who_takes_no_tasks_any_more_is_told_nothing(tmp_path: Path) -> None:
    """Its task waits for a person, whatever comes, until it takes tasks again."""
    clock = ManualClock()
    asked = wait(event="reply", for_s=86_400)
    fleet, scripted = waiting_fleet(tmp_path, clock, once(asked))
    file = fleet.content / "agents/worker/agent.yaml"
    done = fleet.content / "agents/worker/done.yaml"
    async with fleet:
        run = await start(fleet)
        await fleet.wait_until_idle()
        await fleet.close()
        own, conditions = file.read_text(), done.read_text()
        file.write_text(own.replace(f"work: {WORK}\n", ""))
        done.unlink()
        await fleet.open()
        await fleet.send(reply("a"))
        clock.advance(2 * DAY)
        await fleet.wait_until_idle()
        assert (run_of(fleet, run).state, run_of(fleet, run).waits) == ("waiting", "person")
        assert (wait_row(fleet, run).effect, len(scripted.briefings)) == ("started", 1)
        await fleet.close()
        file.write_text(own)
        done.write_text(conditions)
        await fleet.open()
        await order(fleet, "resume", run=run)
        await fleet.wait_until_idle()
        assert told(scripted)["data"]["event"]["id"] == "a"
        assert run_of(fleet, run).state == "done"


async def test_a_large_event_is_told_by_reference_and_keeps_its_label(tmp_path: Path) -> None:
    fleet, scripted = waiting_fleet(tmp_path, ManualClock(), once(wait(event="reply")))
    file = fleet.content / "agents/worker/agent.yaml"
    file.write_text(file.read_text().replace("mode: act\n", "mode: act\nartefacts: true\n"))
    async with fleet:
        await start(fleet)
        await fleet.wait_until_idle()
        await fleet.send(reply("a", data={"text": "x" * 50_000}, readers=frozenset({"desk"})))
        await fleet.wait_until_idle()
        data = told(scripted)["data"]
        assert data["event"]["data"]["text"]["size"] == 50_000
        assert data["event"]["data"]["text"]["readers"] == data["readers"] == ["desk"]


async def test_two_agents_do_not_wake_each_other_for_ever(tmp_path: Path) -> None:
    """What a run does comes of all that it took in: calls and the policy question say so."""
    world, clock = World(), ManualClock()
    fleet, _ = waiting_fleet(tmp_path, clock, once(wait(event="reply")), world=world)
    async with fleet:
        first = await start(fleet)
        await fleet.wait_until_idle()
        # What the other agent says of a third's event.
        await fleet.send(reply("a", lineage=("third", "other"), hops=5))
        await fleet.wait_until_idle()
        assert run_of(fleet, first).state == "done"
        (call,) = world.calls
        assert call.lineage == ("third", "other", "worker")
        sent = [
            fleet.body(entry["seq"])["question"]["context"]["event"]
            for entry in fleet.entries("action.decided")
            if entry["tool"] == "wire.send"
        ]
        assert [(one["hops"], one["lineage"]) for one in sent] == [(5, ["third", "other"])]
        # What comes of that finds neither of them again.
        clock.advance(1)
        second = await start(fleet)
        await fleet.wait_until_idle()
        await fleet.send(reply("b", lineage=call.lineage, hops=len(call.lineage)))
        await fleet.send(reply("far", lineage=("third",), hops=9))  # the fleet takes 8
        await fleet.wait_until_idle()
        assert run_of(fleet, second).state == "waiting"
        assert len(fleet.entries("event.matched")) == 1


@pytest.mark.parametrize("waits_for", ["event", "time"])
async def test_a_stop_of_the_tool_settles_nothing_until_it_is_lifted(
    tmp_path: Path, waits_for: str
) -> None:
    clock = ManualClock()
    asked = wait(event="reply") if waits_for == "event" else wait(for_s=60)
    fleet, scripted = waiting_fleet(tmp_path, clock, once(asked))
    async with fleet:
        run = await start(fleet)
        await fleet.wait_until_idle()
        await fleet.submit_confirmed("stop", tool="task.wait")
        await fleet.send(reply("a"))
        clock.advance(DAY)
        await fleet.wait_until_idle()
        assert (run_of(fleet, run).waits, wait_row(fleet, run).effect) == ("resume", "started")
        await fleet.submit_confirmed("resume", tool="task.wait")
        await fleet.wait_until_idle()
        assert run_of(fleet, run).state == "done"
        assert told(scripted)["data"]["woke"] == waits_for


async def test_a_turn_begins_so_many_waits(tmp_path: Path) -> None:
    asked = [wait(event="reply", where={"/data/thread": at}) for at in range(MAX_WAITS + 1)]
    fleet, _ = waiting_fleet(tmp_path, ManualClock(), once(*asked))
    async with fleet:
        await start(fleet)
        await fleet.wait_until_idle()
        assert waits_kept(fleet) == MAX_WAITS
        (refused,) = fleet.entries("action.refused")
        assert fleet.body(refused["seq"])["why"] == f"a turn has {MAX_WAITS} waits at most"

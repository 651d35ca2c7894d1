"""Events of one session go to the same task while it is open: once, and its next turn is told."""

from __future__ import annotations

import asyncio
import re
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace
from tests.contract.engine.test_drift import BANK
from tests.contract.engine.test_tasks import Answer, Scripted, finish, order, says, send
from tests.contract.engine.test_waits import HeldWorld, contents_with
from tests.workers import until

from vedette.domain.action import Proposal
from vedette.domain.base.errors import BadCommand
from vedette.domain.event import Event
from vedette.domain.memory import Briefing, Candidate
from vedette.domain.origin import Ref
from vedette.domain.row_proof import parse_record
from vedette.domain.run import Run
from vedette.engine.scheduler.failure_policy import dead_letter
from vedette.engine.session_events import MAX_TOLD, MAX_TOLD_BYTES
from vedette.memory.lineage import find_learned
from vedette.testing.clock import ManualClock
from vedette.testing.harness import FleetHarness
from vedette.testing.toy_fleet import DESK, World, toy_fleet

DONE = "version: 1\nconditions:\n  - {name: sent, action: wire.send, at_least: 2}\n"
WAITS = Proposal("task.wait", {"for_s": 86_400})
GOAL = "Answer what is asked in this thread."


def session_fleet(
    folder: Path,
    answer: Answer,
    *,
    kind: str = "judge",
    world: World | None = None,
    work: str = "{max_turns: 200, no_progress: 20}",
    **more: Any,
) -> tuple[FleetHarness, Scripted]:
    scripted = Scripted(answer)
    fleet = toy_fleet(
        folder, world or World(), reasoner=kind, reasoners={kind: scripted}, work=work, done=DONE,
        clock=ManualClock(), model_calls=10_000, **more,
    )  # fmt: skip
    file = fleet.content / "agents/worker/agent.yaml"
    text = file.read_text()
    for old, new in (
        ("order_by: subject\n", "session: /event/data/thread\n"),
        ("triggers: [{on: worker.job}]", f"triggers: [{{on: worker.job, goal: {GOAL}}}]"),
    ):
        assert old in text
        text = text.replace(old, new)
    file.write_text(text)
    return fleet, scripted


def ask(id: str, thread: object = "t1", **more: Any) -> Event:
    data = {"thread": thread, "text": f"question {id}", "to": "desk@example.org"}
    return Event("forum", id, "worker.job", id, None, data, **more)


def patient(briefing: Briefing) -> Any:
    """Answer the first event and every one that joins; wait in between; end after two."""
    asked = 1 if briefing.turn == 1 else len(briefing.task.get("session", ()))
    if asked:
        return says(*(send(f"{briefing.turn}.{n}") for n in range(asked)))
    if briefing.task["conditions"][0]["held"]:
        return says(finish())
    return says(Proposal("task.wait", {"for_s": 86_400}))


def run_of(fleet: FleetHarness, event: Event) -> Run:
    (run,) = fleet.runs(event)
    return run


async def test_what_joins_while_the_run_calls_ends_its_wait(tmp_path: Path) -> None:
    world = HeldWorld()

    def answer(briefing: Briefing) -> Any:
        if briefing.turn == 1:
            return says(Proposal("task.wait", {"for_s": 86_400}), send("question"))
        return says(send("answer")) if briefing.turn == 2 else says(finish())

    fleet, scripted = session_fleet(tmp_path, answer, world=world)
    async with fleet:
        await fleet.send(ask("a"))
        assert await asyncio.to_thread(world.called.wait, 10)
        await fleet.send(ask("b"))
        await until(lambda: bool(fleet.entries("event.joined")))
        world.let_go.set()
        await fleet.wait_until_idle()
        assert run_of(fleet, ask("a")).state == "done"
        assert [one["id"] for one in scripted.briefings[1].task["session"]] == ["b"]


@pytest.mark.parametrize("kind", ["judge", "adk"])
async def test_an_event_joins_the_open_run_of_its_session(tmp_path: Path, kind: str) -> None:
    fleet, scripted = session_fleet(tmp_path, patient, kind=kind)
    async with fleet:
        await fleet.send(ask("a"))
        await fleet.wait_until_idle()
        first = run_of(fleet, ask("a"))
        assert (first.state, first.waits, first.key) == ("waiting", "time", "t1")
        await fleet.send(ask("b"), ask("other", "t2"), ask("b"))
        await fleet.wait_until_idle()
        joined, other = run_of(fleet, ask("b")), run_of(fleet, ask("other", "t2"))
        assert (joined.state, joined.turn, other.waits) == ("done", 0, "time")
        assert run_of(fleet, ask("a")).state == "done"
        (entry,) = fleet.entries("event.joined")
        assert (entry["run"], entry["cause"]) == (first.id, joined.position)
        closed = [one for one in fleet.entries("run.closed") if one["run"] == joined.id]
        assert [(one["what"], one["joined"]) for one in closed] == [("joined", first.id)]
        told = [one.task["session"] for one in scripted.briefings if "session" in one.task]
        ((one,),) = told  # in one turn alone, and the one event
        assert (one["id"], one["data"]["text"], one["ref"]) == ("b", "question b", "ref:/session/0")
        # After it has closed the next event begins a new one.
        await fleet.send(ask("c"))
        await fleet.wait_until_idle()
        assert (run_of(fleet, ask("c")).waits, run_of(fleet, ask("c")).turn) == ("time", 2)
        assert len(fleet.entries("event.joined")) == 1
        assert list(fleet.app.store.ledger.row_mismatches()) == []


async def test_events_of_a_batch_go_to_one_run(tmp_path: Path) -> None:
    fleet, scripted = session_fleet(tmp_path, patient)
    async with fleet:
        await fleet.send(*(ask(str(number)) for number in range(5)))
        await fleet.wait_until_idle()
        runs = [run_of(fleet, ask(str(number))) for number in range(5)]
        assert {run.state for run in runs} == {"done"}
        begun = [run for run in runs if run.turn]
        # What a judge thought while another event joined is thought again.
        stand = {(one.run, one.turn): one for one in scripted.briefings}.values()
        told = [each["id"] for one in stand for each in one.task.get("session", ())]
        ids = [one.event.id for one in stand if one.turn == 1]
        # Every event was handled once: it began a run, or joined one and was told.
        assert sorted(told + ids) == ["0", "1", "2", "3", "4"]
        assert len(begun) == len(ids)
        assert len(fleet.entries("event.joined")) == len(told)


async def test_what_joins_is_untrusted_but_for_what_is_vouched(tmp_path: Path) -> None:
    def answer(briefing: Briefing) -> Any:
        if not briefing.task.get("session"):
            return says(Proposal("task.wait", {"for_s": 60}))
        at = "/session/0"
        return says(
            Proposal("wire.send", {"to": Ref(f"{at}/data/to"), "text": "x"}),
            Proposal("wire.send", {"to": Ref(f"{at}/subject"), "text": Ref(f"{at}/data/text")}),
            Proposal("wire.send", {"to": Ref(f"{at}/data/none"), "text": "x"}),
            Proposal("wire.send", {"to": Ref("/session/1/data/to"), "text": "x"}),
        )

    fleet, _ = session_fleet(tmp_path, answer)
    async with fleet:
        await fleet.send(ask("a"))
        await fleet.wait_until_idle()
        await fleet.send(ask("b", readers=frozenset({"desk"})))
        await fleet.wait_until_idle()
        rows = fleet.app.store.runs.actions(run_of(fleet, ask("a")).id)
        sent = [parse_record(row.record) for row in rows if row.tool == "wire.send"]
        assert [one["origins"]["/to"] for one in sent] == ["untrusted", "trusted"]
        assert sent[1]["origins"]["/text"] == "untrusted"
        assert {tuple(one["readers"]["/to"]) for one in sent} == {("desk",)}
        assert len(fleet.entries("action.refused")) == 2


async def test_no_finish_passes_over_an_event_that_joined(tmp_path: Path) -> None:
    """It is told first, though the finish was proposed when nobody knew of it."""
    gate: dict[str, Any] = {}

    class Slow(Scripted):
        async def reason(self, briefing: Briefing) -> Any:
            self.briefings.append(briefing)
            if briefing.turn == 2:
                await fleet.send(ask("b"))
                for _ in range(200):
                    if fleet.entries("event.joined"):
                        break
                    await asyncio.sleep(0.01)
                gate["joined"] = len(fleet.entries("event.joined"))
            if briefing.turn == 1:
                return says(send("1"), send("2"))
            return says(finish())

    fleet, _ = session_fleet(tmp_path, patient, kind="adk")
    scripted = Slow(patient)
    fleet._reasoners = {"adk": scripted}
    async with fleet:
        await fleet.send(ask("a"))
        await fleet.wait_until_idle()
        assert gate["joined"] == 1
        assert [one.turn for one in scripted.briefings] == [1, 2, 3]  # no answer is thrown away
        assert [len(one.task.get("session", ())) for one in scripted.briefings] == [0, 0, 1]
        found = [
            (row.decided, row.rule)
            for row in fleet.app.store.runs.actions(run_of(fleet, ask("a")).id)
            if row.tool == "task.finish"
        ]
        assert [decided for decided, _ in found] == ["deny", "permit"]
        assert run_of(fleet, ask("a")).state == "done"


async def test_a_session_is_begun_once_however_fast_its_events_come(tmp_path: Path) -> None:
    """Whoever is next of the key is not looked at before the one before stands."""
    fleet, scripted = session_fleet(
        tmp_path, lambda briefing: says(Proposal("task.wait", {"for_s": 86_400}))
    )
    file = fleet.content / "agents/worker/agent.yaml"
    # Without rows of its own, whose lock would have each wait for the one before.
    own = file.read_text().replace("collection: worker_notes\n", "")
    file.write_text(re.sub(r"(?s)  - {name: note.add.*?add_note}\n", "", own))
    events = [ask(str(number)) for number in range(12)]
    async with fleet:
        steps: Any = fleet.app.store.steps
        onward = steps.send

        def slowly(step: Any) -> Any:
            async def later() -> Any:
                await asyncio.sleep(0.02)
                return await onward(step)

            return asyncio.ensure_future(later())

        steps.send = slowly
        await fleet.send(*events)
        await fleet.wait_until_idle()
        assert len({one.run for one in scripted.briefings}) == 1
        assert len(fleet.entries("event.joined")) == len(events) - 1


async def test_an_event_whose_session_is_no_text_is_refused_alone(tmp_path: Path) -> None:
    fleet, _ = session_fleet(tmp_path, patient)
    async with fleet:
        receipts = await fleet.send(ask("odd", {"\u00fc": 1}), ask("listed", [1]), ask("a"))
        assert [one.status for one in receipts] == ["refused", "refused", "accepted"]
        assert "/data/thread names a session of worker" in str(receipts[0].error)
        refused = [entry["event"] for entry in fleet.entries("event.refused")]
        assert refused == [ask("odd").key, ask("listed").key]


async def test_a_task_that_is_cancelled_takes_no_event_in(tmp_path: Path) -> None:
    fleet, scripted = session_fleet(tmp_path, patient)
    async with fleet:
        await fleet.send(ask("a"))
        await fleet.wait_until_idle()
        first = run_of(fleet, ask("a"))
        await fleet.submit_confirmed("stop", agent="worker")  # or its run ended at once
        said = await order(fleet, "cancel", run=first.id)
        await fleet.send(ask("b"), ask("c"))
        await fleet.wait_until_idle()
        assert fleet.entries("event.joined") == []
        await fleet.submit_confirmed("resume", agent="worker")
        await fleet.wait_until_idle()
        assert run_of(fleet, ask("a")).state == "done"
        own = run_of(fleet, ask("b"))  # it begins the next run
        (joined,) = fleet.entries("event.joined")
        assert (joined["cause"], joined["run"]) == (run_of(fleet, ask("c")).position, own.id)
        told = [one["id"] for b in scripted.briefings for one in b.task.get("session", ())]
        assert (told, said.get("untold")) == (["c"], None)


async def test_a_cancel_says_how_many_events_no_turn_was_told_of(tmp_path: Path) -> None:
    fleet, _ = session_fleet(tmp_path, lambda briefing: says(WAITS))
    async with fleet:
        await fleet.send(ask("a"))
        await fleet.wait_until_idle()
        run = run_of(fleet, ask("a")).id
        await fleet.send(ask("b"))  # a turn is told of it
        await fleet.wait_until_idle()
        await order(fleet, "pause", run=run)
        await fleet.send(ask("c"), ask("d"))
        await fleet.wait_until_idle()
        assert (await order(fleet, "cancel", run=run))["untold"] == 2


async def test_what_nobody_may_read_of_a_session_goes_nowhere(tmp_path: Path) -> None:
    def answer(briefing: Briefing) -> Any:
        if briefing.task.get("session"):
            return says(Proposal("wire.send", {"to": DESK, "text": Ref("/session/0/data/text")}))
        return says(Proposal("task.wait", {"for_s": 86_400}))

    fleet, _ = session_fleet(tmp_path, answer)
    async with fleet:
        await fleet.send(ask("a"))
        await fleet.wait_until_idle()
        await fleet.send(ask("b", readers=frozenset()))
        await fleet.wait_until_idle()
        run = run_of(fleet, ask("a")).id
        (sent,) = [r for r in fleet.app.store.runs.actions(run) if r.tool == "wire.send"]
        assert parse_record(sent.record)["readers"] == {"/text": []}
        assert (sent.decided, sent.rule) == ("deny", "secrecy.readers")


async def test_what_a_session_was_told_goes_with_the_event_that_joined(tmp_path: Path) -> None:
    def answer(briefing: Briefing) -> Any:
        if (joined := briefing.task.get("session")) and "data" in joined[0]:
            text = joined[0]["data"]["text"]
            return says(send(text), Proposal("wire.send", {"to": DESK, "text": f"again {text}"}))
        held = briefing.task["conditions"][0]["held"]
        return says(finish() if held else Proposal("task.wait", {"for_s": 86_400}))

    fleet, _ = session_fleet(tmp_path, answer)
    event = ask("Mallory")
    async with fleet:
        await fleet.send(ask("a"))
        await fleet.wait_until_idle()
        await fleet.send(event)
        await fleet.wait_until_idle()
        assert run_of(fleet, ask("a")).state == "done"
        assert "wire.send" in contents_with(fleet, "Mallory")
        await fleet.submit_confirmed("erase", event=event.key)
        assert contents_with(fleet, "Mallory") == []
        assert list(fleet.app.store.ledger.row_mismatches()) == []


async def test_one_turn_is_told_of_so_many_events_and_no_more(tmp_path: Path) -> None:
    fleet, scripted = session_fleet(tmp_path, lambda briefing: says(WAITS))
    many, large = MAX_TOLD + 3, "x" * (MAX_TOLD_BYTES // 3)
    async with fleet:
        await fleet.send(ask("a"))
        await fleet.wait_until_idle()
        run = run_of(fleet, ask("a")).id
        for batch in (
            [ask(str(number)) for number in range(many)],
            [Event("forum", f"l{at}", "worker.job", None, None, {"thread": "t1", "text": large})
             for at in range(4)],
        ):  # fmt: skip
            await order(fleet, "pause", run=run)
            await fleet.send(*batch)
            await fleet.wait_until_idle()
            await order(fleet, "resume", run=run)
            await fleet.wait_until_idle()
        told = [len(one.task.get("session", ())) for one in scripted.briefings]
        assert [number for number in told if number] == [MAX_TOLD, 3, 2, 2]


async def test_a_dead_letter_is_not_redriven_beside_the_next_run_of_its_session(
    tmp_path: Path,
) -> None:
    fleet, _ = session_fleet(tmp_path, lambda briefing: says(WAITS))
    async with fleet:
        await fleet.send(ask("a"))
        await fleet.wait_until_idle()
        first, services = run_of(fleet, ask("a")), fleet.app.services
        epoch = services.store.cluster.lease_epoch(first)
        assert epoch is not None
        await dead_letter(services, first, epoch, "a test")
        await fleet.send(ask("b"))
        await fleet.wait_until_idle()
        later = run_of(fleet, ask("b")).id
        with pytest.raises(BadCommand, match=f"its session goes on in run {later}"):
            await fleet.app.commands.redrive(fleet.order(), [first.id])
        await order(fleet, "cancel", run=later)
        await fleet.wait_until_idle()
        await fleet.app.commands.redrive(fleet.order(), [first.id])
        await fleet.send(ask("c"))
        await fleet.wait_until_idle()
        assert run_of(fleet, ask("a")).state == "waiting"
        joined = {entry["cause"]: entry["run"] for entry in fleet.entries("event.joined")}
        assert joined == {run_of(fleet, ask("c")).position: first.id}


async def test_a_memory_names_the_events_that_joined_its_run(tmp_path: Path) -> None:
    def answer(briefing: Briefing) -> Any:
        learned = (Candidate("notes", "work", "Ask the desk first.", topics=("ways",)),)
        said = says(WAITS)
        return replace(said, candidates=learned) if briefing.task.get("session") else said

    fleet, _ = session_fleet(tmp_path, answer)
    bank = fleet.content / "memory" / "notes"
    bank.mkdir()
    (bank / "bank.yaml").write_text(BANK)
    async with fleet:
        await fleet.send(ask("a"))
        await fleet.wait_until_idle()
        await fleet.send(ask("b"))
        await fleet.wait_until_idle()
        store = fleet.app.store
        for source in (ask("a").key, ask("b").key):
            (found,) = find_learned(store, ["worker"], source)
            assert found.candidate is not None
            assert found.candidate.text == "Ask the desk first."

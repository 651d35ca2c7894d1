"""Tasks: a run with a goal ends when its done conditions hold, and by nothing that a model says."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.contract.app.test_judge_replay import replay_all

from vedette.app.check import code_problems
from vedette.app.followers.notifications import notice_fields
from vedette.domain.action import Proposal
from vedette.domain.base.errors import BadCommand, Forbidden
from vedette.domain.event import ENVELOPE, TASK_TYPE, Event
from vedette.domain.identity import ENGINE
from vedette.domain.memory import Briefing
from vedette.domain.ports.reasoner import ReasonerJudgement
from vedette.domain.run import Run
from vedette.domain.task_item import list_items
from vedette.interfaces.http.command_dispatch import dispatch
from vedette.operations.commands import Order
from vedette.testing.harness import FleetHarness
from vedette.testing.scripted import ScriptedReasoner
from vedette.testing.toy_fleet import DESK, World, job, toy_fleet

GOAL = 'Bring "both" letters away,\n  word for word <data> \u00e4 \u202e.'
DONE_YAML = """\
version: 1
conditions:
  - {name: sent, action: wire.send, at_least: 2}
"""
Answer = Callable[[Briefing], ReasonerJudgement]


def says(*proposals: Proposal, final: bool = False) -> ReasonerJudgement:
    return ReasonerJudgement(label="at work", confidence=1.0, proposals=proposals, final=final)


def send(text: str) -> Proposal:
    return Proposal("wire.send", {"to": DESK, "text": text})


def finish(text: str = "all done") -> Proposal:
    return Proposal("task.finish", {"summary": text})


def add(id: str) -> Proposal:
    return Proposal("item.add", {"id": id, "title": f"letter {id}"})


def close(id: str, state: str = "done", why: str = "sent") -> Proposal:
    return Proposal("item.close", {"id": id, "state": state, "why": why})


class Scripted(ScriptedReasoner):
    """Answers every turn by one function."""

    def __init__(self, answer: Answer) -> None:
        super().__init__(())
        self.answer = answer

    async def reason(self, briefing: Briefing) -> ReasonerJudgement:
        self.briefings.append(briefing)
        return self.answer(briefing)


def working_fleet(
    folder: Path,
    world: World,
    answer: Answer,
    *,
    kind: str = "judge",
    work: str = "{max_turns: 200, no_progress: 5}",
    done: str = DONE_YAML,
    **more: Any,
) -> tuple[FleetHarness, Scripted]:
    scripted = Scripted(answer)
    fleet = toy_fleet(
        folder, world, reasoner=kind, reasoners={kind: scripted}, work=work, done=done,
        model_calls=10_000, **more,
    )  # fmt: skip
    return fleet, scripted


async def order(fleet: FleetHarness, verb: str, **args: Any) -> dict[str, Any]:
    return await dispatch(fleet.app.commands, f"work_{verb}", fleet.order(), args)


async def start(fleet: FleetHarness, goal: str = GOAL, **more: Any) -> str:
    run: str = (await order(fleet, "start", agent="worker", goal=goal, **more))["run"]
    return run


def run_of(fleet: FleetHarness, run: str) -> Run:
    found = fleet.app.store.runs.run(run)
    assert found is not None
    return found


def rules(fleet: FleetHarness, run: str, tool: str) -> list[tuple[str | None, str]]:
    rows = fleet.app.store.runs.actions(run)
    return [(row.decided, row.rule) for row in rows if row.tool == tool]


@pytest.mark.parametrize("kind", ["judge", "adk"])
async def test_a_task_ends_when_its_conditions_hold(tmp_path: Path, kind: str) -> None:
    world = World()

    def answer(briefing: Briefing) -> ReasonerJudgement:
        if briefing.turn <= 2:
            return says(send(f"letter {briefing.turn}"))
        return says(finish())

    fleet, scripted = working_fleet(tmp_path, world, answer, kind=kind)
    async with fleet:
        run = await start(fleet, inputs={"who": "both"})
        await fleet.wait_until_idle()
        assert (run_of(fleet, run).state, run_of(fleet, run).turn) == ("done", 3)
        assert world.effects("wire.send") == 2
        assert rules(fleet, run, "task.finish") == [("permit", "permit.tool")]
        (closed,) = fleet.entries("run.closed")
        assert (closed["items"], closed["items_done"], closed["settled"]) == (0, 0, 3)
        assert [b.task["goal"] for b in scripted.briefings] == [GOAL] * 3
        assert [b.task["conditions"][0]["held"] for b in scripted.briefings] == [False, False, True]
        assert scripted.briefings[0].task["inputs"] == {"who": "both"}
        assert list(fleet.app.store.ledger.row_mismatches()) == []


@pytest.mark.parametrize("kind", ["judge", "adk"])
async def test_a_hundred_early_claims_of_done_end_nothing(tmp_path: Path, kind: str) -> None:
    world = World()

    def answer(briefing: Briefing) -> ReasonerJudgement:
        # By text, by a final judgement, and by the proposal itself.
        return says(finish()) if briefing.turn % 2 else says(final=True)

    work = "{max_turns: 100, no_progress: 1000}"
    fleet, _ = working_fleet(tmp_path, world, answer, kind=kind, work=work, extra=None)
    async with fleet:
        run = await start(fleet)
        await fleet.wait_until_idle(60)
        found = run_of(fleet, run)
        assert (found.state, found.waits, found.turn) == ("waiting", "person", 100)
        assert rules(fleet, run, "task.finish") == [("deny", "task.unmet")] * 50
        assert fleet.entries("run.closed") == []
        assert fleet.entries("run.dead") == []


async def test_the_denied_finish_is_told_what_is_unmet(tmp_path: Path) -> None:
    world = World()

    def answer(briefing: Briefing) -> ReasonerJudgement:
        return says(send("a"), send("b"), finish()) if briefing.turn == 2 else says(finish())

    fleet, scripted = working_fleet(tmp_path, world, answer)
    async with fleet:
        run = await start(fleet)
        await fleet.wait_until_idle()
        (told,) = scripted.briefings[1].turns[0]["answers"]
        assert told == {
            "tool": "task.finish", "ordinal": 0, "status": "not permitted", "unmet": ["sent"],
        }  # fmt: skip
        # What is sent in the same turn is not done yet when the finish is decided.
        assert rules(fleet, run, "task.finish")[1] == ("deny", "task.unmet")
        assert scripted.briefings[2].turns[1]["answers"][2]["unmet"] == ["actions_over"]
        assert run_of(fleet, run).state == "done"
        (decided,) = [one for one in fleet.entries("action.decided") if one["outcome"] == "permit"
                      and one["tool"] == "task.finish"]  # fmt: skip
        context = fleet.body(decided["seq"])["question"]["context"]
        assert context["task"] == {
            "conditions": [
                {"held": True, "name": "sent", "why": "wire.send was done 2 of 2 times"}
            ],
            "person": False,
        }
        others = [one for one in fleet.entries("action.decided") if one["tool"] != "task.finish"]
        for one in others:
            assert "task" not in fleet.body(one["seq"])["question"]["context"]


async def test_a_task_without_conditions_is_ended_by_a_person(tmp_path: Path) -> None:
    world = World()
    fleet, _ = working_fleet(tmp_path, world, lambda briefing: says(finish()), done="")
    async with fleet:
        run = await start(fleet)
        await fleet.wait_until_idle()
        (row,) = fleet.app.store.runs.actions(run)
        assert (row.decided, row.rule, row.waits) == ("hold", "task.person", "approval")
        await fleet.approve(row)
        await fleet.wait_until_idle()
        assert run_of(fleet, run).state == "done"


async def test_a_restart_between_turns_repeats_nothing(tmp_path: Path) -> None:
    world = World()

    def answer(briefing: Briefing) -> ReasonerJudgement:
        if briefing.turn <= 6:
            return says(send(f"letter {briefing.turn}"))
        return says(finish())

    done = DONE_YAML.replace("at_least: 2", "at_least: 6")
    fleet, scripted = working_fleet(tmp_path, world, answer, done=done)
    async with fleet:
        run = await start(fleet)
        for _ in range(8):
            await fleet.restart()
        await fleet.wait_until_idle()
        assert run_of(fleet, run).state == "done"
        assert world.keys("wire.send").most_common(1)[0][1] == 1
        assert world.effects("wire.send") == 6
        assert {b.task["goal"] for b in scripted.briefings} == {GOAL}
        assert list(fleet.app.store.ledger.row_mismatches()) == []


async def test_a_task_without_progress_waits_for_a_person(tmp_path: Path) -> None:
    world = World()

    def answer(briefing: Briefing) -> ReasonerJudgement:
        notes = briefing.task.get("notes", [])
        if not notes:
            return says(final=True)
        return says(send("a"), send("b")) if not world.record else says(finish())

    fleet, scripted = working_fleet(tmp_path, world, answer)
    async with fleet:
        run = await start(fleet)
        await fleet.wait_until_idle()
        found = run_of(fleet, run)
        assert (found.state, found.waits, found.wake_us, found.turn) == ("waiting", "person", 0, 5)
        (stalled,) = fleet.entries("task.stalled")
        assert fleet.body(stalled["seq"]) == {"why": "5 turns made no progress"}
        assert fleet.app.metrics.total("stalls", agent="worker") == 1
        # It is told to people, by its run.
        assert notice_fields(stalled) == ("task.stalled", "worker", "", "", run)
        # Neither a restart nor another look takes it up or says it again.
        await fleet.restart()
        await fleet.wait_until_idle()
        assert len(scripted.briefings) == 5
        await order(fleet, "resume", run=run)
        await fleet.wait_until_idle()
        assert run_of(fleet, run).turn == 10
        assert len(fleet.entries("task.stalled")) == 2
        await order(fleet, "steer", run=run, note="send both")
        await fleet.wait_until_idle()
        assert run_of(fleet, run).state == "done"
        (note,) = scripted.briefings[-1].task["notes"]
        assert (note["by"], note["note"]) == ("person:tester", "send both")
        with pytest.raises(BadCommand, match="has ended"):
            await order(fleet, "resume", run=run)


async def test_the_deadline_of_a_task_is_counted_anew_by_a_resume(tmp_path: Path) -> None:
    fleet, _ = working_fleet(
        tmp_path, World(), lambda briefing: says(final=True),
        work="{no_progress: 1000, deadline: 1h}",
    )  # fmt: skip
    async with fleet:
        run = await start(fleet, deadline="1ms")
        await fleet.wait_until_idle()
        (stalled,) = fleet.entries("task.stalled")
        assert fleet.body(stalled["seq"]) == {"why": "its deadline has passed"}
        assert run_of(fleet, run).waits == "person"


async def test_a_paused_task_does_nothing_until_it_is_resumed(tmp_path: Path) -> None:
    world = World()
    fleet, scripted = working_fleet(
        tmp_path, world, lambda briefing: says(send(f"{briefing.turn}"), finish()), mode="ask"
    )
    async with fleet:
        run = await start(fleet)
        await fleet.wait_until_idle()
        assert run_of(fleet, run).waits == "approval"
        await order(fleet, "pause", run=run)
        await fleet.wait_until_idle()
        assert run_of(fleet, run).waits == "person"
        first, _ = fleet.app.store.runs.actions(run)
        await fleet.approve(first)
        await fleet.wait_until_idle()
        assert (run_of(fleet, run).waits, world.record) == ("person", [])
        await order(fleet, "resume", run=run)
        await fleet.wait_until_idle()
        assert world.effects("wire.send") == 1
        assert len(scripted.briefings) == 2


async def test_a_cancelled_task_begins_nothing_more(tmp_path: Path) -> None:
    world = World()
    fleet, _ = working_fleet(
        tmp_path, world, lambda briefing: says(add("1"), send("a")), mode="ask", done=DONE_YAML
    )
    async with fleet:
        run = await start(fleet)
        await fleet.wait_until_idle()
        await order(fleet, "cancel", run=run)
        await fleet.wait_until_idle()
        assert run_of(fleet, run).state == "done"
        assert all(row.is_final for row in fleet.app.store.runs.actions(run))
        assert world.record == []
        (closed,) = fleet.entries("run.closed")
        assert closed["what"] == "cancelled"
        assert list(fleet.app.store.ledger.row_mismatches()) == []


ITEMS_DONE = """\
version: 1
conditions:
  - {name: list, items: closed, at_least: 5}
"""


async def test_items_are_done_once_each_and_the_end_says_how_many(tmp_path: Path) -> None:
    world = World()

    def answer(briefing: Briefing) -> ReasonerJudgement:
        if briefing.turn == 1:
            return says(*[add(f"i{n}") for n in range(5)], add("i0"))
        current = briefing.task["items"].get("current")
        if current is None:
            return says(finish())
        attempts = current["attempts"]
        if attempts == 0:
            return says(send(current["id"]))
        if attempts == 1:
            # The same once more: its first outcome is told, and nothing is done.
            return says(send(current["id"]))
        state = "failed" if current["id"] == "i3" else "done"
        return says(close(current["id"], state), close(current["id"]))

    fleet, scripted = working_fleet(tmp_path, world, answer, done=ITEMS_DONE)
    async with fleet:
        run = await start(fleet)
        for _ in range(4):
            await fleet.restart()
        await fleet.wait_until_idle()
        assert run_of(fleet, run).state == "done"
        assert sorted(world.texts("wire.send")) == [f"i{n}" for n in range(5)]
        (closed,) = fleet.entries("run.closed")
        assert (closed["items_done"], closed["items"]) == (4, 5)
        items = list_items(fleet.app.store.runs.actions(run))
        assert {item["id"]: item["state"] for item in items} == {
            "i0": "done", "i1": "done", "i2": "done", "i3": "failed", "i4": "done",
        }  # fmt: skip
        assert {item["attempts"] for item in items} == {3}
        rows = fleet.app.store.runs.actions(run)
        failed = [row for row in rows if row.effect == "failed"]
        assert [row.tool for row in failed] == ["item.add"] + ["item.close"] * 5
        refused = fleet.entries("action.refused")
        assert [one["what"] for one in refused] == ["repeated-proposal"] * 5
        repeated = [answer for turn in scripted.briefings[-1].turns for answer in turn["answers"]
                    if answer["status"] == "done before"]  # fmt: skip
        assert [one["data"]["text"] for one in repeated] == [f"i{n}" for n in range(5)]
        assert list(fleet.app.store.ledger.row_mismatches()) == []


async def test_nobody_else_gives_a_task(tmp_path: Path) -> None:
    world = World()
    fleet, scripted = working_fleet(tmp_path, world, lambda briefing: says(final=True))
    async with fleet:
        forged = Event(
            "vedette://harbour/task/worker", "1", TASK_TYPE, "1", None, {"goal": "mine"},
            vouched=ENVELOPE | {"data"},
        )  # fmt: skip
        (receipt,) = await fleet.app.intake.accept([forged])
        assert (receipt.status, receipt.runs) == ("refused", ())
        assert scripted.briefings == []
        # An event that is no task is handled as ever, and cannot be finished.
        scripted.answer = lambda briefing: says(finish(), add("1"), final=True)
        event = job("plain")
        await fleet.send(event)
        await fleet.wait_until_idle()
        (run,) = fleet.runs(event)
        assert run.state == "done"
        assert scripted.briefings[-1].task == {}
        assert rules(fleet, run.id, "task.finish") == [("deny", "task.unknown")]
        (item,) = [row for row in fleet.actions(event) if row.tool == "item.add"]
        assert item.effect == "failed"
        with pytest.raises(BadCommand, match="is no task"):
            await order(fleet, "pause", run=run.id)


async def test_what_is_no_order_of_a_task(tmp_path: Path) -> None:
    fleet, _ = working_fleet(tmp_path, World(), lambda briefing: says(final=True))
    async with fleet:
        for args, what in (
            ({"goal": " "}, "a goal has"),
            ({"conditions": [{"name": "x"}]}, "says nothing that is to hold"),
            ({"conditions": [{"name": "x", "action": "no.such"}]}, "is not a tool"),
            ({"deadline": "soon"}, "is no duration"),
        ):
            with pytest.raises(BadCommand, match=what):
                await order(fleet, "start", **{"agent": "worker", "goal": "g", **args})
        by_engine, args = Order(ENGINE, "r"), {"agent": "worker", "goal": "g"}
        with pytest.raises(Forbidden):
            await dispatch(fleet.app.commands, "work_start", by_engine, args)
        assert fleet.entries("event.accepted") == []


STATEFUL_JUDGE = """\
from vedette.judging import Judge as Base
from vedette.judging import Judgement, Proposal, Ref


class Judge(Base):
    def blank(self):
        return []

    def observe(self, state, event):
        state.append(event.id)
        return len(state)

    def judge(self, seen, briefing):
        made = [Proposal("item.add", {"id": id, "title": id}) for id in ("a", "b")]
        made.append(Proposal("big.send", {"to": Ref("/charter/desk"), "text": "begun"}))
        return self.say({"seen": seen, "told": []}, made)

    def judge_outcomes(self, briefing):
        notes, current = briefing.notes, briefing.task["items"].get("current")
        for answer in briefing.turns[-1]["answers"]:
            notes["told"].append([briefing.turn, answer["tool"], answer["status"]])
        if current:
            close = {"id": current["id"], "state": "done", "why": "read"}
            return self.say(notes, [Proposal("item.close", close)])
        if not briefing.row.get("texts"):
            text = " ".join(f"{turn}:{tool}:{status}" for turn, tool, status in notes["told"])
            note = {"key": Ref("/event/subject"), "text": text}
            return self.say(notes, [Proposal("note.add", note)])
        return self.say(notes, [Proposal("task.finish", {"summary": briefing.task["goal"]})])

    def say(self, notes, made):
        label = f"saw {notes['seen']}, told {len(notes['told'])}"
        return Judgement(label, 1.0, tuple(made), final=False, notes=notes)

    def dump(self, state):
        return repr(state).encode()

    def load(self, blob):
        return eval(blob)
"""
DONE = "version: 1\nconditions:\n  - {name: list, items: closed, at_least: 2}\n"


def judged_work(folder: Path, code: str, *, workers: bool) -> FleetHarness:
    """Return a toy fleet, not opened, whose judge takes tasks."""
    fleet = toy_fleet(folder, World(), workers=workers, work="{}", done=DONE)
    (folder / "content/agents/worker/judge.py").write_text(code)
    return fleet


@pytest.mark.parametrize("workers", [False, True], ids=["here", "in a worker"])
async def test_a_judge_takes_the_turns_of_a_task(tmp_path: Path, workers: bool) -> None:
    """With what it noted in each, over a restart; and each is judged again from the record."""
    async with judged_work(tmp_path, STATEFUL_JUDGE, workers=workers) as fleet:
        run = await start(fleet)
        await fleet.wait_until_idle()
        assert run_of(fleet, run).turn == 1
        await fleet.restart()
        (held,) = [row for row in fleet.app.store.runs.actions(run) if row.decided == "hold"]
        await fleet.approve(held)
        await fleet.wait_until_idle()
        labels = [turn["label"] for turn in fleet.app.store.runs.turns(run)]
        assert labels == [f"saw 1, told {told}" for told in (0, 3, 4, 5, 6)]
        assert run_of(fleet, run).state == "done"
        assert fleet.app.store.runs.actions(run)[-1].tool == "task.finish"
        assert list(fleet.app.store.ledger.row_mismatches()) == []
        report = await replay_all(fleet.app)
        assert (report.to_json()["differences"], report.equal) == ([], 5)
        assert not report.unrecomputable


async def test_a_judge_of_one_turn_is_no_judge_of_tasks(tmp_path: Path) -> None:
    """`vedette check` and a release say so; where neither was asked, its first event is its end."""
    code = STATEFUL_JUDGE.replace("def judge_outcomes(", "def judge_more(")
    code = code.replace("final=False", "final=True")
    fleet = judged_work(tmp_path, code, workers=True)
    async with fleet:
        (problem,) = code_problems(fleet.content, fleet.app.settings, 0)
        assert problem.file.endswith("worker/judge.py")
        assert "takes tasks (work:), which take several turns, and it has one" in problem.what
        assert problem.mend == "define judge_outcomes(self, briefing)"
        run = await start(fleet)
        await fleet.wait_until_idle()
        assert (run_of(fleet, run).state, run_of(fleet, run).turn) == ("dead", 0)
        ((_, _, _, body),) = fleet.app.store.ledger.walk(("run.dead",))
        assert b"define judge_outcomes" in (body or b"")

"""What a task's trajectory says of failures that came right, of people, drift and erasure."""

from __future__ import annotations

import json
from collections import Counter
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from tests.contract.engine.test_tasks import (
    add,
    close,
    finish,
    order,
    says,
    send,
    start,
    working_fleet,
)
from tests.task_days import told_counts

from vedette.domain.action import Proposal
from vedette.domain.effect import Call, Outcome
from vedette.domain.memory import Briefing
from vedette.domain.ports.reasoner import ReasonerJudgement
from vedette.interfaces.render.task_text import item_rows, trajectory_lines
from vedette.ledger.history import task_counts, trajectory
from vedette.ledger.history.counts import ReportCounts
from vedette.ledger.history.entry_view import EntryView, read_entry, view_entry
from vedette.ledger.history.report import report
from vedette.ledger.history.sample import Sample
from vedette.ledger.history.task_counts import TaskCounts
from vedette.ledger.history.time_window import Window
from vedette.ledger.history.trajectory import Trajectory, read_trajectory
from vedette.testing.clock import ManualClock
from vedette.testing.harness import FleetHarness
from vedette.testing.toy_fleet import DESK, World

LIST = "version: 1\nconditions:\n  - {name: list, items: closed, at_least: 1}\n"


def in_turns(*turns: tuple[Proposal, ...]) -> Any:
    """Return what answers each turn by its proposals, and then proposes the finish."""

    def answer(briefing: Briefing) -> ReasonerJudgement:
        at = briefing.turn - 1
        return says(*turns[at]) if at < len(turns) else says(finish())

    return answer


def failing(*texts: str) -> World:
    """Return a world that fails the first call of each of these texts."""
    left = [*texts]

    def act(call: Call) -> Outcome | None:
        if call.args["text"] in left:
            left.remove(call.args["text"])
            return Outcome("failed", error="no")
        return None

    return World(answer=act)


def read(fleet: FleetHarness, run: str) -> Trajectory:
    return read_trajectory(fleet.app.store.ledger, run)


async def test_a_failure_that_comes_right_is_a_recovery_and_one_that_does_not_is_none(
    tmp_path: Path,
) -> None:
    turns = in_turns(
        (add("a"), add("b")),
        (send("x"),), (send("x"),), (close("a"),),  # fails, is done, and so is its item
        (send("y"),), (close("b", "failed", "it cannot be sent"),),
    )  # fmt: skip
    fleet, _ = working_fleet(tmp_path, failing("x", "y"), turns, done=LIST)
    async with fleet:
        run = await start(fleet)
        await fleet.wait_until_idle()
        found = read(fleet, run).to_json()
        assert found["recovered"] == {"items": 1, "effects": 1}
        assert found["effects"] == {"done": 6, "failed": 2, "unknown": 0}
        assert found["credit"] == {
            "items": {"done": 1, "of": 2}, "conditions": {"met": 1, "of": 1}, "phases": {},
            "credit_milli": 666,
        }  # fmt: skip
        first, second = found["item_list"]
        assert (first["attempts"], first["recovered"], first["failed"]) == (3, True, 1)
        assert (second["attempts"], second["recovered"], second["state"]) == (2, False, "failed")
        rows = item_rows(found)
        assert [row[:7] for row in rows] == [
            ["a", "done", "3", "1", "1", "0", "0"], ["b", "failed", "2", "0", "1", "0", "0"],
        ]  # fmt: skip
        lines = "\n".join(trajectory_lines(found))
        assert "credit: 66.6 %, items 1 of 2, conditions 1 of 1" in lines
        assert "course: turns 1-7, done" in lines


async def test_an_effect_that_nobody_knew_of_and_that_was_done_is_a_recovery(
    tmp_path: Path,
) -> None:
    lost = [True]

    def act(_call: Call) -> Outcome | None:
        return Outcome("unknown") if lost and lost.pop() else None

    place = Proposal("order.place", {"to": DESK, "text": "x"})
    clock = ManualClock()
    fleet, _ = working_fleet(
        tmp_path, World(answer=act), in_turns((add("a"),), (place,), (close("a"),)), done=LIST,
        clock=clock,
    )  # fmt: skip
    async with fleet:
        run = await start(fleet)
        await fleet.wait_until_idle()
        assert read(fleet, run).to_json()["recovered"] == {"items": 0, "effects": 0}
        clock.advance(3_600_000_000)  # its target is asked after the quiet time
        await fleet.wait_until_idle()
        found = read(fleet, run).to_json()
        assert found["effects"]["unknown"] >= 1
        assert found["recovered"] == {"items": 1, "effects": 1}


async def test_what_people_did_to_a_task_is_in_its_course(tmp_path: Path) -> None:
    def answer(briefing: Briefing) -> ReasonerJudgement:
        return says(add("a")) if briefing.turn == 1 else says()

    fleet, _ = working_fleet(tmp_path, World(), answer, done=LIST)
    async with fleet:
        run = await start(fleet)
        await fleet.wait_until_idle()
        await order(fleet, "steer", run=run, note="look at a")
        await fleet.wait_until_idle()
        found = read(fleet, run)
        assert list(found.waits) == ["person"]
        await fleet.restart()
        await order(fleet, "pause", run=run)
        await order(fleet, "cancel", run=run)
        await fleet.wait_until_idle()
        found = read(fleet, run)
        told = found.to_json()
        assert found.state == "cancelled"
        assert told["interrupts"] == {
            "holds": 0, "stalls": 2, "pauses": 1, "resumes": 0, "steers": 1, "additions": 0,
            "revisions": 0,
        }  # fmt: skip
        assert told["starts"] == 1
        assert told["waited_us"] > 0
        assert [one["what"] for one in told["course"]] == [
            "stalled", "steered", "stalled", "start", "paused", "cancelled", "cancelled",
        ]  # fmt: skip
        course = [line for line in trajectory_lines(told) if line.startswith("course")]
        assert "steered by person:tester, turns" in course[0]
        (agent,) = report(fleet.app.store, 0, 2**60)["tasks"]["agents"]
        assert agent["tasks"] == {
            "begun": 1, "done": 0, "cancelled": 1, "dead": 0, "open": 0, "waiting": 0,
        }  # fmt: skip


def test_a_wait_lasts_from_the_first_open_question_to_the_last_answer() -> None:
    found = Trajectory("run_1")
    for at, kind, more in (
        (10, "action.decided", {"action": "a", "outcome": "hold", "wait": "approval"}),
        (20, "action.decided", {"action": "b", "outcome": "hold", "wait": "approval"}),
        (25, "action.decided", {"action": "b", "outcome": "hold", "wait": "approval"}),
        (30, "hold.approved", {"action": "a"}),
        (35, "task.paused", {}),
        (50, "hold.denied", {"action": "b"}),
        (70, "task.resumed", {}),
        (80, "task.stalled", {}),
        (90, "task.steered", {}),
    ):
        found.add_entry(view_entry(at, {"kind": kind, "at": at, "tool": "t", **more}, None))
    assert found.counts["waited_us", ""] == 60 + 10
    assert found.counts["holds", ""] == 2
    assert found.waits == {}


async def test_stretches_between_any_two_entries_add_up(tmp_path: Path) -> None:
    """One that shows no turn, and no word of a person, is found to be a task's all the same."""
    turns = in_turns((add("a"),), (send("x"), send("y")), (send("x"),), (close("a"),))
    fleet, _ = working_fleet(tmp_path, failing("x"), turns, done=LIST)
    async with fleet:
        run = await start(fleet)
        await fleet.wait_until_idle()
        store, total = fleet.app.store, Counter[str]()
        borders = sorted({one["at"] for one in fleet.entries() if one.get("run") == run})
        assert len(borders) >= 8
        for since, until in pairwise([*borders, 2**60]):
            for agent in report(store, since, until)["tasks"]["agents"]:
                total.update(told_counts(agent, agent["tasks"]))
        (whole,) = report(store, 0, 2**60)["tasks"]["agents"]
        assert +total == Counter(told_counts(whole, whole["tasks"]))
        assert total["effect.failed"] == 1
        assert total["recovered effects"] == 1


async def test_refusals_are_told_by_rule(tmp_path: Path) -> None:
    turns = in_turns(
        (add("a"),), (send("x"), finish()), (send("x"), Proposal("no.such", {})), (close("a"),)
    )
    fleet, _ = working_fleet(tmp_path, World(), turns, done=LIST)
    async with fleet:
        run = await start(fleet)
        await fleet.wait_until_idle()
        found = read(fleet, run).to_json()
        assert found["refused"] == {"bad-proposal": 1, "task.unmet": 1}
        assert found["repeated"] == 1
        assert found["item_list"][0]["repeated"] == 1
        assert found["item_list"][0]["refused"] == 2


def item_entry(seq: int, tool: str, **item: Any) -> EntryView:
    fields = {"kind": "effect.done", "at": seq, "tool": tool, "action": f"a{seq}", "body": ""}
    return view_entry(seq, fields, json.dumps({"data": {"item": item}}).encode())


def test_phases_have_shares_of_their_own() -> None:
    """An item's phase is what its tool answered as one."""
    found = Trajectory("run_1")
    for seq, phase in enumerate(("read", "read", "write"), 1):
        found.add_entry(item_entry(seq, "item.add", id=f"i{seq}", state="open", phase=phase))
    found.add_entry(item_entry(4, "item.close", id="i1", state="done", phase="read"))
    assert found.credit()["phases"] == {"read": {"done": 1, "of": 2}, "write": {"done": 0, "of": 1}}


def test_an_item_whose_addition_is_erased_is_counted_and_closed() -> None:
    found = Trajectory("run_1")
    fields = {"kind": "effect.done", "at": 1, "tool": "item.add", "action": "a1", "body": "x"}
    found.add_entry(view_entry(1, fields, None))
    found.add_entry(item_entry(2, "item.close", id="i1", state="done"))
    found.add_entry(item_entry(3, "item.close", id="i2", state="failed"))
    items = {state: n for (what, state), n in found.counts.items() if what == "items"}
    assert items == {"added": 1, "done": 1, "failed": 1}
    assert found.credit()["items"] == {"done": 1, "of": 2}


class DamagedLedger:
    """A store's ledger, one of whose bodies is no JSON."""

    def __init__(self, ledger: Any, seq: int) -> None:
        self._ledger, self._seq = ledger, seq

    def __getattr__(self, name: str) -> Any:
        return getattr(self._ledger, name)

    def entries(self, *of: Any) -> Any:
        return [
            (seq, raw, b"{" if seq == self._seq else data)
            for seq, raw, data in self._ledger.entries(*of)
        ]


async def test_a_damaged_body_is_counted_and_the_rest_is_told(tmp_path: Path) -> None:
    fleet, _ = working_fleet(
        tmp_path, World(), in_turns((add("a"),), (send("x"),), (close("a"),)), done=LIST
    )
    async with fleet:
        run = await start(fleet)
        await fleet.wait_until_idle()
        first, second = (one["seq"] for one in fleet.entries("turn.reasoned")[:2])
        ledger: Any = DamagedLedger(fleet.app.store.ledger, first)
        found = read_trajectory(ledger, run).to_json()
        assert (found["turns"], found["unreadable"]) == (3, 1)
        assert read(fleet, run).to_json()["unreadable"] == 0
        # In a report of what came after it, too.
        counts = TaskCounts(ledger, Window(0, 2**60, second))
        for seq, raw, _, data in ledger.walk(after=second - 1):
            counts.add_entry(read_entry(seq, raw, data))
        (agent,) = counts.to_json()["agents"]
        assert (agent["turns"], agent["unreadable"]) == (3, 0)


async def test_many_tasks_are_read_in_pages_and_told_in_part(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    turns = in_turns((add("a"),), (send("x"),), (close("a"),))
    fleet, _ = working_fleet(tmp_path, World(), turns, done=LIST)
    async with fleet:
        runs = [await start(fleet)]
        await fleet.wait_until_idle()
        given = await order(fleet, "start", agent="worker", goal="another")
        runs.append(given["run"])
        await fleet.wait_until_idle()
        whole = [read(fleet, run).to_json() for run in runs]
        (agent,) = report(fleet.app.store, 0, 2**60)["tasks"]["agents"]
        monkeypatch.setattr(trajectory, "_PAGE", 3)
        monkeypatch.setattr(task_counts, "_PAGE", 1)
        monkeypatch.setattr(task_counts, "_MAX_TOLD", 1)
        assert [read(fleet, run).to_json() for run in runs] == whole
        told = report(fleet.app.store, 0, 2**60)["tasks"]
        assert told["agents"] == [agent]
        assert [one["run"] for one in told["runs"]] == runs[:1]
        assert told["left_out"] == {"runs": 1, "drifts": 0}
        # No page is read of what came after the window.
        entries, read_pages = type(fleet.app.store.ledger).entries, list[int]()

        def counted(*of: Any) -> Any:
            read_pages.extend([1] if runs[0] in of else [])
            return entries(*of)

        monkeypatch.setattr(type(fleet.app.store.ledger), "entries", counted)
        report(fleet.app.store, 0, 2**60)
        of_all = len(read_pages)
        report(fleet.app.store, 0, fleet.entries("turn.reasoned")[1]["at"])
        assert len(read_pages) - of_all <= of_all // 2
        # What is told of a stretch in which it says nothing of itself.
        (closing,) = (one for one in fleet.entries("effect.done") if one["run"] == runs[1]
                      and one["tool"] == "item.close")  # fmt: skip
        (after,) = report(fleet.app.store, closing["at"], 2**60)["tasks"]["agents"]
        assert after["tasks"]["done"] == 1


async def test_an_open_task_of_erased_turns_is_reported_with_its_spend(tmp_path: Path) -> None:
    """In a window that ends before it does: its content may be erased once it is over."""
    turns = in_turns((add("a"),), (send("x"),), (send("y"),), (close("a"),))
    fleet, _ = working_fleet(tmp_path, World(), turns, done=LIST)
    async with fleet:
        run = fleet.app.store.runs.run(await start(fleet))
        assert run is not None
        await fleet.wait_until_idle()
        until = fleet.entries("turn.reasoned")[3]["at"]
        since = fleet.entries("effect.done")[1]["at"]
        (before,) = report(fleet.app.store, 0, until)["tasks"]["agents"]
        await fleet.app.commands.erase(fleet.order(), event=run.event)
        assert all(data is None for *_, data in fleet.app.store.ledger.walk(("turn.reasoned",)))
        (after,) = report(fleet.app.store, 0, until)["tasks"]["agents"]
        told = ("turns", "spend", "actions", "items")
        assert {name: after[name] for name in told} == {name: before[name] for name in told}
        assert after["tasks"]["open"] == 1
        # So it is where only what came after a turn stands in the window.
        next_turn = fleet.entries("turn.reasoned")[2]["at"]
        (later,) = report(fleet.app.store, since, next_turn)["tasks"]["agents"]
        assert (later["turns"], later["effects"]["done"]) == (0, 1)


@pytest.mark.parametrize("erased", [False, True])
async def test_what_was_erased_is_told_as_far_as_entries_tell_it(
    tmp_path: Path, erased: bool
) -> None:
    turns = in_turns((add("a"), add("b")), (send("x"),), (close("a"),), (close("b", "failed"),))
    fleet, _ = working_fleet(tmp_path, World(), turns, done=LIST)
    async with fleet:
        run = await start(fleet)
        await fleet.wait_until_idle()
        event = fleet.app.store.runs.run(run)
        assert event is not None
        if erased:
            await fleet.app.commands.erase(fleet.order(), event=event.event)
        found = read(fleet, run)
        assert (found.is_task, found.state) == (True, "done")
        assert found.credit()["items"] == {"done": 1, "of": 2}
        assert found.to_json()["turns"] == 5
        assert len(found.items()) == (0 if erased else 2)
        (agent,) = report(fleet.app.store, 0, 2**60)["tasks"]["agents"]
        assert agent["turns"] == 5


def test_stalls_that_begin_alike_are_one_exception() -> None:
    """By the first line of why, which is what a report has room for."""
    counts = ReportCounts(Sample("x", 20), lambda _: None)
    for seq, more in enumerate(("one thing", "another"), 1):
        fields = {"kind": "task.stalled", "at": seq, "agent": "worker", "run": "r", "body": "x"}
        why = json.dumps({"why": f"no progress in 6 turns\n{more}"}).encode()
        counts.add_entry(view_entry(seq, fields, why))
    (told,) = counts.exceptions()
    assert (told["why"], told["count"]) == ("no progress in 6 turns", 2)

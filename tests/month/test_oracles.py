"""Each oracle of the month finds what is wrong with a small spoiled record, and nothing else."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from tests.month.ledger import Ledger
from tests.month.oracles import (
    EXPIRY_US,
    check_bills,
    check_booked,
    check_limits,
    check_notices,
    check_others,
    check_tasks,
    check_undos,
    count_booked,
    price_of,
)
from tests.month.planted import planted
from tests.month.record import Bill, Notice, Record, TaskPlan, Undo
from tests.month.recount import compare, recount
from tests.mutants.catalogue import ROOT
from tests.simulation.history import Act, History, Order
from tests.simulation.promises.effects import find_expired
from tests.simulation.promises.people import check_refusals

Fields = dict[str, Any]
TASK = TaskPlan("T-1", "surveyor", items=("a", "b"), person=True, run="run_1")


def entry(seq: int, kind: str, **fields: Any) -> Fields:
    return {"seq": seq, "at": seq * 1_000_000, "kind": kind, "agent": "surveyor", **fields}


def item(seq: int, id: str, state: str) -> tuple[Fields, Fields]:
    tool = "item.add" if state == "open" else "item.close"
    made = entry(seq, "effect.done", run="run_1", tool=tool, action=f"act_{seq}")
    return made, {"data": {"item": {"id": id, "state": state}}}


def task_ledger() -> Ledger:
    made = [item(1, "a", "open"), item(2, "b", "open"), item(3, "a", "done"), item(4, "b", "done")]
    end = entry(5, "effect.done", run="run_1", tool="task.finish", action="act_fin")
    closed = entry(6, "run.closed", run="run_1", items=2, items_done=2)
    bodies = {fields["seq"]: body for fields, body in made}
    return Ledger([*(fields for fields, _ in made), end, closed], bodies)


def task_record() -> Record:
    record = Record(1, 1.0)
    record.tasks["T-1"] = TASK
    record.acts = [act("T-1/a", "k1"), act("T-1/b", "k2")]
    record.orders = [Order("approve", 0.0, 1.0, what="fin")]
    return record


def act(text: str, key: str, tool: str = "wire.send", what: str = "done") -> Act:
    return Act(1.0, what, tool, key, text, "surveyor", "w0.0")


def kinds(found: Any) -> set[str]:
    return {one.kind for one in found}


def test_a_task_that_is_done_is_right() -> None:
    assert list(check_tasks(task_record(), task_ledger())) == []


def test_an_end_that_nobody_has_seen_is_found() -> None:
    record = task_record()
    record.orders = []
    assert kinds(check_tasks(record, task_ledger())) == {"unmet"}


def test_an_end_with_an_open_item_is_found() -> None:
    ledger, record = task_ledger(), task_record()
    del ledger.entries[3]
    record.acts.pop()
    assert kinds(check_tasks(record, ledger)) == {"unmet"}


def test_an_item_that_was_done_twice_is_found() -> None:
    record = task_record()
    record.acts.append(act("T-1/a", "k3"))
    assert kinds(check_tasks(record, task_ledger())) == {"doubled"}


def test_an_item_that_was_never_done_is_found() -> None:
    record = task_record()
    record.acts.pop()
    assert kinds(check_tasks(record, task_ledger())) == {"untrue"}


def test_a_task_that_ends_of_itself_is_found() -> None:
    ledger = task_ledger()
    ledger.entries[-1]["what"] = "cancelled"
    assert kinds(check_tasks(task_record(), ledger)) == {"lost", "untrue"}


def test_a_task_that_does_not_end_is_found() -> None:
    ledger = task_ledger()
    del ledger.entries[-1]
    assert kinds(check_tasks(task_record(), ledger)) == {"not live"}


def test_what_an_archive_tells_no_more_is_not_judged_and_the_rest_is() -> None:
    record, ledger = task_record(), task_ledger()
    del ledger.bodies[1], ledger.bodies[2], ledger.bodies[3]
    assert kinds(check_tasks(record, ledger)) == {"unmet"}
    ledger.first = 4
    assert list(check_tasks(record, ledger)) == []
    ledger.bodies[4] = {"data": {"item": {"id": "b", "state": "open"}}}
    assert kinds(check_tasks(record, ledger)) == {"unmet"}


def test_a_wait_that_is_over_before_its_time_is_found() -> None:
    record, ledger = task_record(), task_ledger()
    record.tasks["T-1"] = replace(TASK, waits=("a",))
    wait = {"run": "run_1", "tool": "task.wait", "action": "act_w"}
    intended, started = entry(2, "effect.intended", **wait), entry(3, "effect.started", **wait)
    over = entry(3, "effect.done", **wait) | {"at": intended["at"] + 7_200_000_000}
    ledger.entries += [intended, started, over]
    assert list(check_tasks(record, ledger)) == []
    over["at"] -= 1
    assert kinds(check_tasks(record, ledger)) == {"too early"}


def test_too_few_messages_are_found() -> None:
    record, ledger = task_record(), task_ledger()
    record.tasks["T-1"] = replace(TASK, items=(), letters=3)
    ledger.entries = ledger.entries[4:]
    ledger.entries[-1]["items"] = 0
    record.acts = [act(f"T-1/{at}", f"k{at}") for at in (1, 2, 3)]
    assert list(check_tasks(record, ledger)) == []
    record.acts.pop()
    assert kinds(check_tasks(record, ledger)) == {"unmet"}


def billed() -> tuple[Record, Ledger]:
    record = Record(1, 1.0)
    record.bills = [Bill(1, "planner", 900, 1, True), Bill(2, "planner", 950, 1, False)]
    spend = {"model_calls": 1, "tokens": 901, "money_micros": price_of(900, 1)}
    worst = {"model_calls": 2, "tokens": 52_000, "money_micros": 204_000}
    entries = [
        entry(1, "budget.reserved", spend=worst), entry(2, "budget.settled", spend=spend, cause=1),
        entry(3, "budget.reserved", spend=worst),
    ]  # fmt: skip
    return record, Ledger([one | {"agent": "planner"} for one in entries])


def test_bills_that_are_booked_are_right() -> None:
    assert list(check_bills(*billed())) == []


@pytest.mark.parametrize("less", [1, 900])
def test_a_turn_that_is_booked_too_low_is_found(less: int) -> None:
    record, ledger = billed()
    ledger.entries[1]["spend"]["tokens"] -= less
    assert kinds(check_bills(record, ledger)) == {"spend"}


def test_a_repeated_turn_that_is_not_booked_is_found() -> None:
    record, ledger = billed()
    del ledger.entries[2]
    assert kinds(check_bills(record, ledger)) == {"spend"}


def test_what_the_store_has_booked_is_compared() -> None:
    ledger = billed()[1]
    booked = count_booked(ledger, 0, 10_000_000)
    assert booked["planner", "tokens"] == 52_901
    assert list(check_booked(booked, booked)) == []
    assert kinds(check_booked(booked, booked | {("planner", "tokens"): 901})) == {"spend"}


def test_a_permit_over_the_limit_is_found() -> None:
    permits = [entry(at, "action.decided", action=f"act_{at}", outcome="permit") for at in (1, 2)]
    record, ledger = Record(1, 1.0), Ledger(permits)
    assert list(check_limits(ledger, {"surveyor": 2}, record, 0, 9_000_000)) == []
    assert kinds(check_limits(ledger, {"surveyor": 1}, record, 0, 9_000_000)) == {"over budget"}
    record.raises = [("surveyor", 0, 9_000_000, 1)]
    assert list(check_limits(ledger, {"surveyor": 1}, record, 0, 9_000_000)) == []


def test_a_notice_that_is_told_too_early_or_too_late_is_found() -> None:
    record = Record(1, 1.0)
    record.notices = [Notice("harbour/n", (5_000_000, 5_000_001), (8_000_000, 8_000_001))]
    told = entry(7, "turn.reasoned")
    bodies = {seq: {"memories": ["harbour/n@1"]} for seq in (1, 7, 7_000)}
    assert list(check_notices(record, Ledger([told], bodies))) == []
    for seq in (1, 7_000):
        assert kinds(check_notices(record, Ledger([entry(seq, "turn.reasoned")], bodies))) == {
            "ungoverned"
        }


def test_an_effect_that_is_done_twice_or_never_is_found() -> None:
    permit = entry(1, "action.decided", action="act_k", outcome="permit")
    done = entry(2, "effect.done", action="act_k", tool="bell.ring")
    history, record = History(entries=[permit, done]), Record(1, 1.0)
    begun = Act(1.0, "begun", "bell.ring", "k", "t", "surveyor", "w0.0", 1)
    rung = act("t", "k", "bell.ring")
    record.acts = [begun, rung]
    assert list(check_others(record, history)) == []
    record.acts = [begun, rung, rung]
    assert kinds(check_others(record, history)) == {"doubled"}
    record.acts = [begun]
    assert kinds(check_others(record, history)) == {"untrue"}
    history.entries = history.entries[1:]
    assert "no permit" in kinds(check_others(record, history))


def test_what_nobody_took_back_is_found() -> None:
    record = Record(1, 1.0)
    record.acts = [act("f", "k", "flag.lower")]
    assert kinds(check_undos(record)) == {"doubled"}
    record.undone = [Undo("k0", "f")]
    assert list(check_undos(record)) == []


def test_a_report_that_is_off_by_one_is_found() -> None:
    day = Ledger([entry(1, "event.accepted"), entry(2, "run.closed")])
    counted = recount(day)
    report: Fields = {
        "traffic": {name: counted[name] for name in ("events", "refused", "runs_closed",
                                                     "runs_dead", "decisions", "effects", "starts")}
        | {"unreadable": 0},
        "questions": dict.fromkeys(("approved", "denied", "expired", "asked"), 0),
        "answered": [], "exceptions": [], "changed": [], "budgets": {"spent": []},
        "wakeups": [{"agent": "surveyor", "at_no_cost": 1, "by_model": 0, "by_people": 0,
                     "useful": 0}],
    }  # fmt: skip
    assert list(compare(report, day)) == []
    report["traffic"]["events"] += 1
    assert list(compare(report, day)) == ["events: the report says 2, its entries 1"]


def test_what_is_left_begun_is_counted_but_for_what_lasts() -> None:
    begun = [entry(at, "effect.started", action=f"act_{at}", tool=tool)
             for at, tool in enumerate(("task.wait", "agent.ask", "bell.ring"), 1)]  # fmt: skip
    assert recount(Ledger(begun))["left"] == {"started": 1}
    failed = entry(4, "effect.failed", action="act_1", tool="task.wait")
    assert recount(Ledger([*begun, failed]))["left"] == {"started": 1, "failed": 1}


def test_an_archive_is_refused_for_a_rollback_alone() -> None:
    back = entry(7, "agent.released", back_to=3)
    why = "the folder of keeper waits since entry 7, which says what a start runs instead"
    history = History(entries=[back], refused=[(Order("archive", 0.0), why)])
    assert list(check_refusals(history)) == []
    history.refused.append((Order("stop", 0.0), why))
    assert kinds(check_refusals(history)) == {"refused"}
    del history.refused[1], back["back_to"]
    assert kinds(check_refusals(history)) == {"refused"}


def test_planted_bugs_fit_the_sources() -> None:
    for mutant, _ in planted():
        mutant.apply((ROOT / mutant.file).read_text("utf-8"))


def test_a_hold_that_expires_too_early_excuses_nothing() -> None:
    asked = entry(1, "action.decided", action="act_k", outcome="hold")
    over = entry(10, "hold.expired", action="act_k")
    history = History(entries=[asked, over], expires_us=9_000_000)
    assert find_expired(history) == {"act_k"}
    history.expires_us += 1
    assert find_expired(history) == set()


def test_a_hold_counts_from_its_decision_not_from_when_that_is_on_record() -> None:
    asked = entry(1, "action.decided", action="act_k", outcome="hold") | {"at": 3_000}
    over = entry(2, "hold.expired", action="act_k") | {"at": 72 * 3_600_000_000}
    history = History(entries=[asked, over], expires_us=EXPIRY_US)
    assert find_expired(history) == {"act_k"}
    over["at"] = 71 * 3_600_000_000
    assert find_expired(history) == set()

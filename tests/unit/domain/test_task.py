"""Tasks: which runs are any, and where people's words leave them."""

from __future__ import annotations

from msgspec.structs import replace
from tests.unit.domain.test_done_condition import NOTHING

from vedette.domain.agent import Agent, Fleet, Schedule, Subscription, WorkPlan, task_source
from vedette.domain.budget import Budget
from vedette.domain.done_condition import (
    NO_CONDITIONS,
    ItemsClosed,
    evaluate,
    write_condition,
)
from vedette.domain.event import DATA, ENVELOPE, TASK_TYPE, TICK_TYPE, Event
from vedette.domain.identity import Identity
from vedette.domain.task import find_task, read_task, record_task, task_event
from vedette.domain.task_item import Item, add_items
from vedette.domain.task_words import Revision, TaskWords

LIST = ItemsClosed("list")
AGENT = Agent(
    name="worker", identity=Identity("harbour", "worker"), title="", owner="", release="r",
    folder="", instruction="", charter={}, subscriptions=(Subscription(("mail.*",), goal="Read."),),
    schedules=(Schedule("daily", daily="06:30", goal="Review."), Schedule("every", every_us=1)),
    tools={}, scopes=(), budget=Budget(), requested_mode="act",
    work=WorkPlan(conditions=(LIST,), deadline_us=7),
)  # fmt: skip


def given(**data: object) -> Event:
    return task_event(
        "harbour", "worker", {"goal": "Do.", **data}, id="t1", who="person:ada", reason="r",
        now_us=0,
    )  # fmt: skip


def test_a_persons_task_is_the_one_agents_and_nobody_elses() -> None:
    fleet = Fleet("harbour", {"worker": AGENT, "other": replace(AGENT, name="other")})
    event = given()
    assert event.source == task_source("harbour", "worker")
    assert fleet.matching_agents(event) == ("worker",)
    assert (AGENT.key_of(event), AGENT.trigger_of(event)) == ("t1", "task")
    # Whoever else sends it is not believed, whatever it says.
    forged = replace(event, vouched=ENVELOPE)
    assert fleet.matching_agents(forged) == ()
    assert read_task(AGENT, forged) is None
    assert AGENT.trigger_of(forged) == ""
    wide = replace(AGENT, subscriptions=(Subscription(("*",)),))
    assert Fleet("harbour", {"worker": wide}).matching_agents(forged) == ()


def test_what_a_task_is_comes_of_its_event_or_of_the_release() -> None:
    task = read_task(AGENT, given(inputs={"n": 1}))
    assert task is not None
    assert (task.goal, task.inputs, task.conditions, task.deadline_us) == (
        "Do.", {"n": 1}, (LIST,), 7,
    )  # fmt: skip
    own = read_task(AGENT, given(conditions=[{"name": "own", "items": "closed"}], deadline_us=9))
    assert own is not None
    assert ([one.name for one in own.conditions], own.deadline_us) == (["own", "list"], 9)
    orphan = read_task(replace(AGENT, work=None), given())
    assert orphan is not None  # and waits for a person, as its agent takes no tasks by now
    assert orphan.conditions == NO_CONDITIONS
    bare = read_task(replace(AGENT, work=WorkPlan()), given())
    assert bare is not None
    assert bare.conditions == NO_CONDITIONS
    assert not any(state.held for state in evaluate(bare.conditions, NOTHING))


def test_a_trigger_gives_a_task_by_its_goal() -> None:
    mail = Event("imap", "1", "mail.received")
    tick = Event("vedette://harbour/schedule/worker", "1", TICK_TYPE, "daily", vouched={DATA})  # type: ignore[arg-type]
    for event, goal in ((mail, "Read."), (tick, "Review.")):
        task = read_task(AGENT, event)
        assert task is not None
        assert task.goal == goal
    assert read_task(AGENT, replace(tick, subject="every")) is None
    assert read_task(AGENT, replace(tick, vouched=frozenset())) is None
    assert read_task(AGENT, replace(mail, type="other")) is None
    assert read_task(AGENT, replace(mail, type=TASK_TYPE)) is None


def test_where_words_leave_a_task() -> None:
    def words(*kinds: str) -> TaskWords:
        return TaskWords.of(
            ({"kind": f"task.{kind}", "turn": at, "at": at, "actor": "person:ada"},
             {"note": f"n{at}"})
            for at, kind in enumerate(kinds, 1)
        )  # fmt: skip

    assert words() == TaskWords()
    assert words("stalled") == TaskWords()
    assert words("paused").is_halted
    assert not words("paused", "steered").is_halted
    assert words("cancelled", "resumed").is_halted
    steered = words("stalled", "steered", "stalled")
    assert (steered.turn, steered.at_us) == (2, 2)
    assert [note["note"] for note in steered.notes] == ["n2"]
    assert len(words(*["steered"] * 30).notes) == 20


def test_what_is_revised_keeps_what_the_release_says() -> None:
    task = read_task(AGENT, given(conditions=[{"name": "mine", "items": "done"}]))
    assert task is not None
    one, two = ItemsClosed("proposed"), ItemsClosed("other")
    assert [each.name for each in task.revise((one,), None).conditions] == [
        "mine", "proposed", "list",
    ]  # fmt: skip
    kept = task.revise((one,), Revision(2, "Else."))
    assert ([each.name for each in kept.conditions], kept.goal, kept.revision) == (
        ["mine", "list"], "Else.", 2,
    )  # fmt: skip
    others = task.revise((one,), Revision(3, "Else.", (two,)))
    assert [each.name for each in others.conditions] == ["other", "list"]


def test_what_the_first_turn_records_is_the_task_as_it_was_given() -> None:
    event = given(conditions=[{"name": "mine", "items": "done"}])
    task = read_task(AGENT, event)
    assert task is not None
    recorded = {"task": record_task(task)}
    # Whatever the release says by now.
    assert find_task(replace(AGENT, work=WorkPlan(deadline_us=7)), event, recorded) == task
    bare = read_task(replace(AGENT, work=WorkPlan(deadline_us=7)), given())
    assert bare is not None
    again = find_task(AGENT, given(), {"task": record_task(bare)})
    assert again is not None
    assert again.conditions == NO_CONDITIONS
    assert "own" in record_task(bare)
    # A record of before there were revisions: what its event did not give is the release's.
    for kept in (task, read_task(AGENT, given())):
        assert kept is not None
        record = {key: one for key, one in record_task(kept).items() if key != "own"}
        data = {"conditions": [write_condition(one) for one in kept.given]} if kept.given else {}
        old = find_task(replace(AGENT, work=WorkPlan()), given(**data), {"task": record})
        assert old is not None
        assert (old.given, old.own) == (kept.given, kept.own)
        revised = old.revise((), Revision(2, "Else.", (ItemsClosed("easy", 0),)))
        assert [one.name for one in revised.conditions] == ["easy", "list"]
    mail = Event("imap", "1", "mail.received", data={"conditions": [{"name": "list"}]})
    old = find_task(AGENT, mail, {"task": {"goal": "Read.", "done": [write_condition(LIST)]}})
    assert old is not None
    assert old.own == (LIST,)


def test_words_are_counted_and_those_of_an_item_or_a_goal_taken() -> None:
    def entry(kind: str, at: int) -> dict[str, object]:
        return {"kind": f"task.{kind}", "turn": at, "at": at, "actor": "person:ada"}

    item = {"id": "a", "title": "x", "number": 1, "by": "person:ada", "state": "open"}
    words = TaskWords.of(
        [
            (entry("paused", 1), {}),
            (entry("added", 2), {"item": item}),
            (entry("added", 3), {"item": item}),
            (entry("revised", 4), {"goal": "one"}),
            (entry("revised", 5), {"goal": "two", "conditions": [{"name": "x", "items": "done"}]}),
            (entry("stalled", 6), {}),
        ]
    )
    assert words.told == ("task.added", "task.added", "task.revised", "task.revised")
    assert [one["id"] for one in words.items] == ["a", "a~"]  # two people, the same moment
    assert words.revision == Revision(3, "two", (ItemsClosed("x", 1, "done"),))
    assert (words.turn, words.at_us, words.paused) == (5, 5, False)


def test_an_item_is_there_once_whoever_gave_it_its_id() -> None:
    own = {"id": "a", "title": "own", "number": 1, "state": "open"}
    given_item = {"id": "a", "title": "asked", "number": 2, "by": "person:ada", "state": "open"}
    items: dict[str, Item] = {"a": own}
    assert add_items(items, [given_item]).keys() == {"a~"}
    assert {id: one["title"] for id, one in items.items()} == {"a": "own", "a~": "asked"}
    items["a~"] = {**items["a~"], "state": "done"}
    add_items(items, [given_item])
    assert items["a~"]["state"] == "done"

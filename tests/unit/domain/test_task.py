"""Tasks: which runs are any, and where people's words leave them."""

from __future__ import annotations

from msgspec.structs import replace
from tests.unit.domain.test_done_condition import NOTHING

from vedette.domain.agent import Agent, Fleet, Schedule, Subscription, WorkPlan, task_source
from vedette.domain.budget import Budget
from vedette.domain.done_condition import NO_CONDITIONS, ItemsClosed, evaluate
from vedette.domain.event import DATA, ENVELOPE, TASK_TYPE, TICK_TYPE, Event
from vedette.domain.identity import Identity
from vedette.domain.task import read_task, task_event
from vedette.domain.task_words import TaskWords

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

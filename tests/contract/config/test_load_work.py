"""`work:`, goals of triggers and done.yaml: what they make of an agent, and what is wrong there.

The fleet is the one of `test_load_agent`; without a change nothing is said of it.
"""

from __future__ import annotations

import pytest
from msgspec.structs import replace
from tests.contract.config.test_load_agent import Small, small, with_triggers

from vedette.domain.agent import WorkPlan
from vedette.domain.done_condition import ActionDone, ItemsClosed, RowValue
from vedette.domain.event import Event
from vedette.domain.work_tools import WORK_TOOLS

__all__ = ["small"]

DONE = "agents/harbour_watch/done.yaml"
CONDITIONS = """\
version: 1
conditions:
  - {name: ships, items: closed, at_least: 3}
  - {name: berth, rows: /berth, equals: A1}
  - {name: called, action: master.call}
"""


def working(small: Small, text: str = "work: {}\n") -> None:
    small.change("mode: act\n", f"mode: act\n{text}")


def test_an_agent_with_work_has_a_plan_and_the_engines_tools(small: Small) -> None:
    before = small.load().fleet.agents["harbour_watch"]
    assert before.work is None
    assert not WORK_TOOLS.keys() & before.tools.keys()
    working(small, "work: {max_turns: 10000, no_progress: 3, deadline: 2h}\n")
    small.put(DONE, CONDITIONS)
    with_triggers(small, 'triggers:\n  - {on: ship.seen, goal: "Give it a berth."}\n')
    agent = small.load().fleet.agents["harbour_watch"]
    conditions = (
        ItemsClosed("ships", 3), RowValue("berth", "/berth", "A1"),
        ActionDone("called", "master.call"),
    )  # fmt: skip
    assert agent.work == WorkPlan(10_000, 3, 7_200_000_000, conditions)
    assert {name: agent.tools[name] for name in WORK_TOOLS} == WORK_TOOLS
    assert agent.subscriptions[0].goal == "Give it a berth."


@pytest.mark.parametrize(
    ("done", "what"),
    [
        ("conditions: []\n", "exactly the keys version and conditions"),
        ("version: 2\nconditions: []\n", "is not known here"),
        ("version: 1\nconditions: []\n", "is not a list of conditions"),
        ("version: 1\nconditions:\n  - {name: a, items: open}\n", "done.yaml:3"),
        ("version: 1\nconditions:\n  - {name: a, action: ship.sink}\n", "is not a tool of this"),
    ],
)
def test_what_is_wrong_with_done_yaml_is_said_at_its_line(
    small: Small, done: str, what: str
) -> None:
    working(small)
    small.put(DONE, done)
    assert what in small.said()


def test_conditions_and_goals_are_for_agents_that_take_tasks(small: Small) -> None:
    small.put(DONE, CONDITIONS)
    assert "takes no tasks" in small.said()
    (small.root / DONE).unlink()
    with_triggers(small, "triggers:\n  - {on: ship.seen, goal: Look.}\n")
    assert "an agent that takes none" in small.said()


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("triggers:\n  - {on: vedette.task}\n", "tasks are not subscribed to"),
        ("triggers:\n  - {on: ship.seen, name: task}\n", "a task that a person gives"),
    ],
)
def test_nobody_wakes_by_the_engines_own_tasks(small: Small, text: str, what: str) -> None:
    with_triggers(small, text)
    assert what in small.said()


@pytest.mark.parametrize("name", WORK_TOOLS)
def test_no_agent_declares_a_tool_of_the_engines_name(small: Small, name: str) -> None:
    small.change("- name: master.call", f"- name: {name}")
    (found,) = [problem for problem in small.check() if "engine's own" in problem.what]
    assert found.mend


def test_what_it_waits_for_stands_in_its_charter(small: Small) -> None:
    working(small, "work: {waits_for: [reply, note]}\n")
    agent = small.load().fleet.agents["harbour_watch"]
    assert agent.work is not None
    assert agent.work.waits_for == ("reply", "note")
    assert agent.charter["waits_for"] == ["reply", "note"]


@pytest.mark.parametrize("type", ["vedette.tick", "mail.*"])
def test_what_nobody_may_wait_for_is_said(small: Small, type: str) -> None:
    working(small, f'work: {{waits_for: ["{type}"]}}\n')
    assert "is no type that a task may wait for" in small.said()


def test_a_session_is_the_key_of_an_agent_that_takes_tasks(small: Small) -> None:
    session = "session: /event/data/thread\n"
    small.change("order_by: id\n", session)
    assert "can only join a task that is open" in small.said()
    small.change(session, f"{session}work: {{}}\n")
    assert "can only join a task that is open" in small.said()  # its trigger has no goal
    with_triggers(small, "triggers:\n  - {on: ship.seen, goal: Look.}\n")
    agent = small.load().fleet.agents["harbour_watch"]
    one = Event("pier", "1", "ship.seen", "s", None, {"thread": 7})
    keys = {
        agent.key_of(replace(one, data=data))
        for data in ({"thread": 7}, {"thread": "7"}, {"thread": 7, "more": 1})
    }
    assert keys == {"7"}
    # Without the value, or with none that is a short text, it is a key of its own.
    assert agent.key_of(replace(one, data={})) == "1"
    assert agent.session_of(replace(one, data={})) is None
    assert len(agent.key_of(replace(one, data={"thread": "x" * 1000}))) == 64
    small.change(session, f"{session}order_by: subject\n")
    assert "and so does order_by" in small.said()

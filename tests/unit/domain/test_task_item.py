"""A task's items: as actions made them, counted as they come, the first open one first."""

from __future__ import annotations

import random
from collections import Counter
from typing import Any

from tests.unit.domain.test_task import AGENT

from vedette.domain.base.canonical import normalized_json
from vedette.domain.done_condition import NO_CONDITIONS
from vedette.domain.event import Event
from vedette.domain.run import ActionRow
from vedette.domain.task import read_task
from vedette.domain.task_item import ITEM_STATES, ItemList, list_items
from vedette.domain.work_tools import ADD_ITEM_TOOL, CLOSE_ITEM_TOOL


def item(id: str, state: str = "open", number: int = 1) -> dict[str, Any]:
    return {"id": id, "title": id, "number": number, "state": state, "attempts": 0, "why": ""}


def made(one: dict[str, Any], effect: Any = "done") -> ActionRow:
    tool = ADD_ITEM_TOOL if one["state"] == "open" else CLOSE_ITEM_TOOL
    answer = normalized_json({"data": {"item": one}, "error": "", "state": effect})
    return ActionRow("a", "r", 1, 0, "worker", tool, "d", b"", effect=effect, answer=answer)


def test_a_closed_item_stays_closed_in_whatever_order() -> None:
    items = ItemList()
    items.take([made(item("a", "done")), made(item("a")), made(item("a", "failed"))])
    assert items.by_id["a"]["state"] == "done"
    assert items.current is None
    assert items.count() == {"of": 1, "open": 0, "done": 1, "failed": 0, "set_aside": 0}


def test_the_first_open_item_is_worked_on() -> None:
    items = ItemList()
    items.take([made(item(id, number=at)) for at, id in enumerate("abc", 1)])
    assert items.current == item("a")
    items.put(item("a", "set_aside"))
    assert items.current == item("b", number=2)


def test_what_was_not_done_makes_no_item() -> None:
    failed = made(item("a"), "failed")
    assert list_items([failed]) == []


def test_a_copy_is_a_list_of_its_own() -> None:
    items = ItemList()
    items.put(item("a"))
    copied = items.copy()
    copied.put(item("a", "done"))
    copied.put(item("b", number=2))
    assert items.count()["of"] == items.counts["open"] == 1
    assert list(items.open) == ["a"]


def test_counts_are_those_of_the_items() -> None:
    draw, items = random.Random(1), ItemList()
    for _ in range(300):
        id = draw.choice("abcdefgh")
        items.put(item(id, draw.choice(ITEM_STATES), ord(id)))
        states = Counter(one["state"] for one in items.by_id.values())
        assert items.counts == {state: states[state] for state in ITEM_STATES}
        assert set(items.open) == {k for k, one in items.by_id.items() if one["state"] == "open"}


def test_a_triggered_task_without_conditions_asks_a_person() -> None:
    from msgspec.structs import replace

    assert AGENT.work is not None
    agent = replace(AGENT, work=replace(AGENT.work, conditions=()))
    task = read_task(agent, Event("s", "e", "mail.received", "k", None, {}))
    assert task is not None
    assert task.conditions == NO_CONDITIONS

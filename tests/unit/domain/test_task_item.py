"""A task's items: as actions made them, the first open one first."""

from __future__ import annotations

from typing import Any

from msgspec.structs import replace
from tests.unit.domain.test_task import AGENT

from vedette.domain.base.canonical import normalized_json
from vedette.domain.done_condition import NO_CONDITIONS
from vedette.domain.event import Event
from vedette.domain.run import ActionRow
from vedette.domain.task import read_task
from vedette.domain.task_item import Item, first_item, list_items, take_items
from vedette.domain.work_tools import ADD_ITEM_TOOL, CLOSE_ITEM_TOOL


def item(id: str, state: str = "open", number: int = 1) -> dict[str, Any]:
    return {"id": id, "title": id, "number": number, "state": state, "attempts": 0, "why": ""}


def made(one: dict[str, Any], effect: Any = "done") -> ActionRow:
    tool = ADD_ITEM_TOOL if one["state"] == "open" else CLOSE_ITEM_TOOL
    answer = normalized_json({"data": {"item": one}, "error": "", "state": effect})
    return ActionRow("a", "r", 1, 0, "worker", tool, "d", b"", effect=effect, answer=answer)


def test_a_closed_item_stays_closed_in_whatever_order() -> None:
    items: dict[str, Item] = {}
    take_items(items, [made(item("a", "done")), made(item("a")), made(item("a", "failed"))])
    assert items == {"a": item("a", "done")}


def test_the_first_open_item_is_worked_on() -> None:
    added = [item(id, number=at) for at, id in ((2, "b"), (1, "c"), (3, "a"))]
    assert first_item(added, None) == item("c", number=1)
    assert first_item([], None) is None


def test_what_was_not_done_makes_no_item() -> None:
    assert list_items([made(item("a"), "failed")]) == []


def test_a_triggered_task_without_conditions_asks_a_person() -> None:
    assert AGENT.work is not None
    agent = replace(AGENT, work=replace(AGENT.work, conditions=()))
    task = read_task(agent, Event("s", "e", "mail.received", "k", None, {}))
    assert task is not None
    assert task.conditions == NO_CONDITIONS

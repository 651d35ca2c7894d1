"""Items: the parts of a task, as the run's own actions made them, and as people added them.

What `item.add`, `item.close` and `plan.set` answered is the item as it was then; what a person
added stands in their entry. There is no other record of it, so that it is proved, and erased, as
every outcome is.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import partial
from typing import Any

import orjson

from vedette.domain.base.canonical import canonicalize_normalized
from vedette.domain.plan import Plan
from vedette.domain.run import ActionRow
from vedette.domain.work_tools import ADD_ITEM_TOOL, CLOSE_ITEM_TOOL, PLAN_TOOL

ITEM_STATES = ("open", "done", "failed", "set_aside")
MAX_ITEMS = 10_000
MAX_TEXT = 2000  # characters
_MAX_ID = 200  # characters
_MAX_INPUTS = 10_000  # bytes
_TOOLS = frozenset({ADD_ITEM_TOOL, CLOSE_ITEM_TOOL, PLAN_TOOL})

Item = Mapping[str, Any]


def find_item_fault(id: str, title: str, inputs: Any, known: Mapping[str, Item]) -> str:
    """Return why an item cannot be added to those that are known; "" if it can."""
    if id in known:
        return f"there is an item {id!r} already: it is {known[id]['state']}"
    if not 0 < len(id) <= _MAX_ID or not 0 < len(title) <= MAX_TEXT:
        return f"an item has an id of 1 to {_MAX_ID} characters, and a short title"
    if len(known) >= MAX_ITEMS:
        return f"a task has {MAX_ITEMS} items at most"
    if len(canonicalize_normalized({"inputs": inputs})) > _MAX_INPUTS:
        return f"an item's inputs are {_MAX_INPUTS} bytes at most"
    return ""


def take_items(items: dict[str, Item], actions: Iterable[ActionRow]) -> None:
    """Take into `items` (by id) what actions made of them, in whatever order these were done.

    An item that is closed is never opened again, so what closed it is its last word.
    """
    for row in actions:
        if row.tool not in _TOOLS or row.effect != "done" or row.answer is None:
            continue
        data = orjson.loads(row.answer)["data"]
        for item in data["items"] if row.tool == PLAN_TOOL else (data["item"],):
            known = items.get(item["id"])
            if known is None or known["state"] == "open":
                items[item["id"]] = item


def add_items(items: dict[str, Item], added: Iterable[Item]) -> dict[str, Item]:
    """Take into `items` (by id) those that people added, but for those that are there already.

    One whose id the task itself gave in the same moment has another, so that none is lost. Returns
    them by the ids that they have, as they were given.
    """
    given: dict[str, Item] = {}
    for item in added:
        id = item["id"]
        while "by" not in items.get(id, item):
            id += "~"
        given[id] = {**item, "id": id}
        items.setdefault(id, given[id])
    return given


def list_items(actions: Iterable[ActionRow], added: Iterable[Item] = ()) -> list[Item]:
    """Return the items that a run's actions made, and people `added`, in the order of both."""
    items: dict[str, Item] = {}
    take_items(items, actions)
    add_items(items, added)
    return sort_items(items.values())


def sort_items(items: Iterable[Item], plan: Plan | None = None) -> list[Item]:
    """Return items in the order in which they are worked on: of a plan, then as they were added."""
    return sorted(items, key=partial(_place, plan))


def first_item(items: Iterable[Item], plan: Plan | None) -> Item | None:
    """Return the first of some items, as `sort_items` has them; None if there are none."""
    return min(items, key=partial(_place, plan), default=None)


def _place(plan: Plan | None, item: Item) -> tuple[int, int, bool, str]:
    """Return an item's place; of two of one number, given in the same moment, a person's is last.

    So it is the same in whatever order the items were read.
    """
    place = 0 if plan is None else plan.place(item)
    return place, int(item["number"]), "by" in item, item["id"]


def list_plans(actions: Iterable[ActionRow]) -> list[Plan]:
    """Return the plans that a run's actions made, oldest first."""
    plans = [
        Plan.from_json(orjson.loads(row.answer)["data"]["plan"])
        for row in actions
        if row.tool == PLAN_TOOL and row.effect == "done" and row.answer is not None
    ]
    return sorted(plans, key=lambda plan: plan.revision)

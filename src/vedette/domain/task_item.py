"""Items: the parts of a task, as the run's own actions made them.

What `item.add` and `item.close` answered is the item as it was then. There is no other record of
it, so that it is proved, and erased, as every outcome is.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import orjson

from vedette.domain.run import ActionRow
from vedette.domain.work_tools import ADD_ITEM_TOOL, CLOSE_ITEM_TOOL

ITEM_STATES = ("open", "done", "failed", "set_aside")
_TOOLS = frozenset({ADD_ITEM_TOOL, CLOSE_ITEM_TOOL})

Item = Mapping[str, Any]


def take_items(items: dict[str, Item], actions: Iterable[ActionRow]) -> None:
    """Take into `items` (by id) what actions made of them, in whatever order these were done.

    An item that is closed is never opened again, so what closed it is its last word.
    """
    for row in actions:
        if row.tool not in _TOOLS or row.effect != "done" or row.answer is None:
            continue
        item = orjson.loads(row.answer)["data"]["item"]
        if items.get(item["id"], item)["state"] == "open":
            items[item["id"]] = item


def list_items(actions: Iterable[ActionRow]) -> list[Item]:
    """Return the items that a run's actions made, in the order in which they were added."""
    items: dict[str, Item] = {}
    take_items(items, actions)
    return sorted(items.values(), key=lambda item: int(item["number"]))

"""Items: the parts of a task, as the run's own actions made them.

What `item.add` and `item.close` answered is the item as it was then. There is no other record of
it, so that it is proved, and erased, as every outcome is.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import orjson
from msgspec import Struct, field

from vedette.domain.run import ActionRow
from vedette.domain.work_tools import ADD_ITEM_TOOL, CLOSE_ITEM_TOOL

ITEM_STATES = ("open", "done", "failed", "set_aside")
_TOOLS = frozenset({ADD_ITEM_TOOL, CLOSE_ITEM_TOOL})

Item = Mapping[str, Any]


class ItemList(Struct):
    """A task's items by id, in the order in which they were added; with those that are open, and
    how many are in each state, so that a long list need not be walked for either.
    """

    by_id: dict[str, Item] = field(default_factory=dict)
    open: dict[str, Item] = field(default_factory=dict)
    counts: dict[str, int] = field(default_factory=lambda: dict.fromkeys(ITEM_STATES, 0))

    def copy(self) -> ItemList:
        """Return a list of its own that has the same items."""
        return ItemList(dict(self.by_id), dict(self.open), dict(self.counts))

    def put(self, item: Item) -> None:
        """Add an item, or have it in the place of what it was.

        An item that is closed is never opened again, so what closed it is its last word.
        """
        id, before = item["id"], self.by_id.get(item["id"])
        if before is not None:
            if before["state"] != "open":
                return
            self.counts["open"] -= 1
            del self.open[id]
        self.by_id[id] = item
        self.counts[item["state"]] += 1
        if item["state"] == "open":
            self.open[id] = item

    def take(self, actions: Iterable[ActionRow]) -> None:
        """Take in what actions made of the items, in whatever order these were done."""
        for row in actions:
            if row.tool in _TOOLS and row.effect == "done" and row.answer is not None:
                self.put(orjson.loads(row.answer)["data"]["item"])

    @property
    def current(self) -> Item | None:
        """Return the item that is worked on: the first that is open."""
        return next(iter(self.open.values()), None)

    def count(self) -> dict[str, Any]:
        """Return how many items there are (`of`), and how many in each state."""
        return {"of": len(self.by_id), **self.counts}


def list_items(actions: Iterable[ActionRow]) -> list[Item]:
    """Return the items that a run's actions made, in the order in which they were added."""
    items = ItemList()
    items.take(actions)
    return sorted(items.by_id.values(), key=lambda item: int(item["number"]))

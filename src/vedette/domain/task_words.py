"""What people, and the engine, have said of a task beside its turns: notes, items, another goal.

Each is one entry of the run, so that it is durable and found again with it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from msgspec import Struct

from vedette.domain.done_condition import DoneCondition, load_conditions
from vedette.domain.entry import MATCHED_KIND

STALLED, STEERED, PAUSED, RESUMED, CANCELLED, MOVED, ADDED, REVISED = TASK_KINDS = (
    "task.stalled", "task.steered", "task.paused", "task.resumed", "task.cancelled", "task.moved",
    "task.added", "task.revised",
)  # fmt: skip
# An event joined its run (`vedette.engine.sessions`).
JOINED = "event.joined"
# All entries of a run that say where its task stands beside its turns.
STANDING_KINDS = (*TASK_KINDS, JOINED)
# Those that tell the task something; the others say whether it goes on.
WORD_KINDS = (STEERED, ADDED, REVISED)
MAX_NOTE = 4000  # characters
# Of more notes than these the last are told.
_MOST_NOTES = 20


class Revision(Struct, frozen=True):
    """A task's goal as a person changed it, and its conditions if one gave others (else None).

    The first revision is what the task began with, so the first of these has the number 2.
    """

    number: int
    goal: str
    conditions: tuple[DoneCondition, ...] | None = None


class TaskWords(Struct, frozen=True):
    """Where a task stands by these entries.

    `turn` and `at_us` are of the last word of a person that has it go on (0: none was needed), from
    which its bounds count anew. `told` are the kinds of those that tell it something, oldest first;
    `items` are those that people added, `revision` is the last. `joined` are the positions of the
    events of its session that it took in, `matched` of those that its waits looked for. `moved` is
    the last move to another release: after which turn, and to which.
    """

    notes: tuple[Mapping[str, Any], ...] = ()
    told: tuple[str, ...] = ()
    items: tuple[Mapping[str, Any], ...] = ()
    revision: Revision | None = None
    turn: int = 0
    at_us: int = 0
    paused: bool = False
    cancelled: bool = False
    joined: tuple[int, ...] = ()
    matched: tuple[int, ...] = ()
    moved: tuple[int, str] = (0, "")

    @property
    def is_halted(self) -> bool:
        """Say whether a person has the task wait, or ended it."""
        return self.paused or self.cancelled

    @classmethod
    def of(cls, entries: Iterable[tuple[Mapping[str, Any], Mapping[str, Any] | None]]) -> TaskWords:
        """Return what entries of STANDING_KINDS and MATCHED_KIND come to, oldest first, each with
        its body.

        Raises Permanent for a revision whose conditions cannot be read.
        """
        notes: list[Mapping[str, Any]] = []
        told: list[str] = []
        items: list[Mapping[str, Any]] = []
        revision: Revision | None = None
        turn = at_us = 0
        paused = cancelled = False
        joined: list[int] = []
        matched: list[int] = []
        moved = (0, "")
        for entry, body in entries:
            kind = entry["kind"]
            goes_on = kind == RESUMED or kind in WORD_KINDS
            paused = kind == PAUSED or (paused and not goes_on)
            cancelled = cancelled or kind == CANCELLED
            joined += [entry["cause"]] if kind == JOINED else []
            matched += [entry["cause"]] if kind == MATCHED_KIND else []
            if kind == MOVED:
                moved = (int(entry["turn"]), entry["release"])
            if goes_on:
                turn, at_us = int(entry["turn"]), int(entry["at"])
            if kind in WORD_KINDS:
                told.append(kind)
            if body is None:
                continue
            if kind == STEERED:
                notes.append({"by": entry["actor"], "at_us": at_us, "note": body["note"]})
            elif kind == ADDED:
                id = body["item"]["id"]
                while any(one["id"] == id for one in items):
                    id += "~"
                items.append({**body["item"], "id": id})
            elif kind == REVISED:
                conditions = None if revision is None else revision.conditions
                if (given := body.get("conditions")) is not None:
                    conditions = load_conditions(given)
                revision = Revision(told.count(REVISED) + 1, body["goal"], conditions)
        return cls(
            tuple(notes[-_MOST_NOTES:]), tuple(told), tuple(items), revision, turn, at_us, paused,
            cancelled, tuple(joined), tuple(matched), moved,
        )  # fmt: skip

    def find_release(self, last_turn: Mapping[str, Any] | None) -> str:
        """Return the release that the task runs on: what its last turn, or its last move, names.

        "" if neither does, as before its first turn, or where that is older than such records.
        """
        turn, release = self.moved
        if last_turn is None or (release and turn >= last_turn["turn"]):
            return release
        return str(last_turn.get("task", {}).get("release", ""))

"""What people, and the engine, have said of a task beside its turns: notes, pauses, its end.

Each is one entry of the run, so that it is durable and found again with it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from msgspec import Struct

STALLED, STEERED, PAUSED, RESUMED, CANCELLED = TASK_KINDS = (
    "task.stalled", "task.steered", "task.paused", "task.resumed", "task.cancelled",
)  # fmt: skip
# An event joined its run (`vedette.engine.sessions`).
JOINED = "event.joined"
WORD_KINDS = (*TASK_KINDS, JOINED)
MAX_NOTE = 4000  # characters
# Of more notes than these the last are told.
_MOST_NOTES = 20


class TaskWords(Struct, frozen=True):
    """Where a task stands by these entries.

    `turn` and `at_us` are of the last word of a person that has it go on (0: none was needed), from
    which its bounds count anew. `joined` are the positions of the events of its session that it
    took in.
    """

    notes: tuple[Mapping[str, Any], ...] = ()
    turn: int = 0
    at_us: int = 0
    paused: bool = False
    cancelled: bool = False
    joined: tuple[int, ...] = ()

    @property
    def is_halted(self) -> bool:
        """Say whether a person has the task wait, or ended it."""
        return self.paused or self.cancelled

    @classmethod
    def of(cls, entries: Iterable[tuple[Mapping[str, Any], Mapping[str, Any] | None]]) -> TaskWords:
        """Return what entries of WORD_KINDS come to, oldest first, each with its body if any."""
        notes: list[Mapping[str, Any]] = []
        turn = at_us = 0
        paused = cancelled = False
        joined: list[int] = []
        for entry, body in entries:
            kind = entry["kind"]
            paused = kind == PAUSED or (paused and kind not in (RESUMED, STEERED))
            cancelled = cancelled or kind == CANCELLED
            joined += [entry["cause"]] if kind == JOINED else []
            if kind in (RESUMED, STEERED):
                turn, at_us = int(entry["turn"]), int(entry["at"])
            if kind == STEERED and body is not None:
                notes.append({"by": entry["actor"], "at_us": at_us, "note": body["note"]})
        told = tuple(notes[-_MOST_NOTES:])
        return cls(told, turn, at_us, paused, cancelled, tuple(joined))

"""What the world of the month knows, kept from day to day apart from every engine.

Targets, the model's provider and people each keep a record of their own; it outlives all deaths,
and is what the month is judged by.
"""

from __future__ import annotations

import hashlib
import pickle
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.simulation.history import Act, Event, Fault, Order


@dataclass(frozen=True)
class Bill:
    """One call of a model, as its provider bills it: tokens read and written.

    `answered` says that the answer reached who asked.
    """

    at_us: int
    agent: str
    read: int
    written: int
    answered: bool


@dataclass
class TaskPlan:
    """A task as a person gives it, and what became of it as people know.

    `items` are what it has to do; of those in `refuses` the target refuses the work, in `asks` a
    person is asked, those in `repeats` the agent does again, at those in `stands` it stands still
    until it is spoken to. Those in `delegates` it asks another agent for, those in `waits` are to
    wait for a time, or for an event. `letters` is how many messages a model's task has to send.
    `person`: its end wants a person's yes.
    """

    name: str
    agent: str
    items: tuple[str, ...] = ()
    letters: int = 0
    claims: int = 0
    refuses: tuple[str, ...] = ()
    asks: tuple[str, ...] = ()
    stands: tuple[str, ...] = ()
    repeats: tuple[str, ...] = ()
    delegates: tuple[str, ...] = ()
    waits: tuple[str, ...] = ()
    person: bool = False
    deadline: str = ""
    run: str = ""
    cancelled_s: float | None = None

    @property
    def goal(self) -> str:
        """Return the goal, in the words of whoever gives it."""
        what = f"send {self.letters} messages, each once" if self.letters else "do all items"
        return f"[{self.name}] {what} — «as asked», and\n  nothing else."


@dataclass
class Letters:
    """How far a model is with a task: what it sent, and what it answered last to which request."""

    sent: int = 0
    claims: int = 0
    asked: str = ""
    said: Any = None


@dataclass
class Notice:
    """A memory as people know it: when it was promoted, and when it was taken back, in µs.

    Both are (asked, told).
    """

    name: str
    promoted: tuple[int, int] | None = None
    withdrawn: tuple[int, int] | None = None


@dataclass
class Undo:
    """An effect that a person takes back: its key, and the text that its target knows."""

    key: str
    text: str


@dataclass
class Record:
    """All of it. `machines` is the number of the life that each worker's disk was left by."""

    seed: int
    rate: float
    day: int = 0
    end_s: float = 0.0
    machines: list[int] = field(default_factory=list)
    boots: list[int] = field(default_factory=list)
    commands: int = 0
    events: list[Event] = field(default_factory=list)
    sent: dict[str, int] = field(default_factory=dict)
    orders: list[Order] = field(default_factory=list)
    refused: list[tuple[Order, str]] = field(default_factory=list)
    refusals: list[tuple[str, str]] = field(default_factory=list)
    faults: list[Fault] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)
    acts: list[Act] = field(default_factory=list)
    known: set[tuple[str, str]] = field(default_factory=set)
    done: set[str] = field(default_factory=set)
    turned_away: Counter[str] = field(default_factory=Counter)
    hooks: list[tuple[str, str]] = field(default_factory=list)
    bills: list[Bill] = field(default_factory=list)
    letters: dict[str, Letters] = field(default_factory=dict)
    tasks: dict[str, TaskPlan] = field(default_factory=dict)
    notices: list[Notice] = field(default_factory=list)
    undone: list[Undo] = field(default_factory=list)
    asked_since: dict[str, float] = field(default_factory=dict)
    raises: list[tuple[str, int, int, int]] = field(default_factory=list)
    redriven: set[str] = field(default_factory=set)
    days: list[dict[str, Any]] = field(default_factory=list)
    wrong: list[tuple[str, str]] = field(default_factory=list)

    def save(self, path: Path) -> None:
        """Keep it in a file, whole or not at all."""
        new = path.with_suffix(".new")
        new.write_bytes(pickle.dumps(self))
        new.replace(path)

    @classmethod
    def load(cls, path: Path) -> Record:
        """Read what was kept."""
        kept: Record = pickle.loads(path.read_bytes())
        return kept


def share(*words: object) -> float:
    """Return a number in 0..1 that depends on words alone."""
    text = "/".join(map(str, words))
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:6]) / 2**48

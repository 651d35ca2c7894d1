"""Task counts: the report's section on tasks, of a stretch of the ledger."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any

from msgspec import Struct

from vedette.domain.ports.ledger_reader import LedgerReader
from vedette.domain.task_words import TASK_KINDS
from vedette.ledger.history.entry_view import EntryView
from vedette.ledger.history.time_window import Window
from vedette.ledger.history.trajectory import (
    Counts,
    Trajectory,
    counts_json,
    read_starts,
    run_entries,
)

# What an agent's tasks came to in the window; a task that is open at its end is `open`.
_ENDS = ("done", "cancelled", "dead")


class _Stretch(Struct):
    """A task in a window: how it stands at the end, and what was counted in between."""

    course: Trajectory
    counts: Counts
    began: bool
    ended: bool


class TaskCounts:
    """Finds the tasks that a window's entries are of; what they came to is read when it is asked.

    A run shows that it is a task by a turn, by a person's word or by its end. One that shows none
    of these in the window is looked up if it reaches into it from before.
    """

    def __init__(self, record: LedgerReader, window: Window) -> None:
        self._record, self._window = record, window
        self._tasks: dict[str, None] = {}
        self._others: set[str] = set()
        self._unsure: dict[str, None] = {}

    def add_entry(self, entry: EntryView) -> None:
        """Take the next entry of the window."""
        run = entry.run
        if run is None or run in self._tasks:
            return
        if _shows_task(entry):
            self._tasks[run] = None
            self._unsure.pop(run, None)
        elif entry.kind == "turn.reasoned" or entry.get("n") == 1:
            self._others.add(run)
            self._unsure.pop(run, None)
        elif run not in self._others:
            self._unsure[run] = None

    def to_json(self) -> dict[str, Any]:
        """Return the counts of each agent and of each task in it, and every drift, oldest first."""
        for run in self._unsure:
            turns = self._record.run_entries(run, ("turn.reasoned",))
            if any(data is not None and b'"task":{' in data for _, _, data in turns[:1]):
                self._tasks[run] = None
        stretches = list(self._stretches())
        agents: dict[str, tuple[Counts, Counter[str]]] = {}
        for one in stretches:
            counts, states = agents.setdefault(one.course.agent, (Counter(), Counter()))
            counts.update(one.counts)
            states["begun"] += one.began
            states[one.course.state] += one.ended or one.course.state == "open"
            states["waiting"] += bool(one.course.waits)
        return {
            "agents": [
                {
                    "agent": agent,
                    "tasks": {name: states[name] for name in ("begun", *_ENDS, "open", "waiting")},
                    **counts_json(counts),
                }
                for agent, (counts, states) in sorted(agents.items())
            ],
            "runs": [
                {
                    "run": one.course.run,
                    "agent": one.course.agent,
                    "state": one.course.state,
                    "waits": sorted({*map(_word_of_wait, one.course.waits)}),
                    "credit": one.course.credit(),
                    **counts_json(one.counts),
                }
                for one in stretches
            ],
            "drifts": sorted(
                (
                    {"run": one.course.run, "agent": one.course.agent, **drift}
                    for one in stretches
                    for drift in one.course.drifts
                    if drift["seq"] >= self._window.first
                ),
                key=lambda drift: drift["seq"],
            ),
        }

    def _stretches(self) -> Iterator[_Stretch]:
        starts = read_starts(self._record) if self._tasks else []
        window = self._window
        for run in self._tasks:
            course = Trajectory(run)
            before: Counts | None = None
            state = course.state
            for entry in run_entries(self._record, run, starts):
                if entry.seq >= window.first and before is None:
                    before, state = course.counts.copy(), course.state
                if entry.at < window.until_us:
                    course.add_entry(entry)
            if before is None or not course.is_task:
                continue
            began = bool(course.counts["turns", ""]) and not before["turns", ""]
            ended = course.state not in ("open", state)
            yield _Stretch(course, course.counts - before, began, ended)


def _shows_task(entry: EntryView) -> bool:
    if entry.kind == "turn.reasoned":
        return entry.content("task") is not None
    return entry.kind in TASK_KINDS or entry.kind == "task.drift" or entry.get("items") is not None


def _word_of_wait(what: str) -> str:
    return what if what == "person" else "hold"

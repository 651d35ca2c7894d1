"""Task counts: the report's section on tasks, of a stretch of the ledger."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

from vedette.domain.ports.ledger_reader import EntryWithBody, LedgerReader
from vedette.ledger.history.entry_view import EntryView, read_entry
from vedette.ledger.history.time_window import Window, read_instant
from vedette.ledger.history.trajectory import (
    Counts,
    Trajectory,
    counts_json,
    read_starts,
    run_entries,
    shows_task,
)

# What an agent's tasks came to in the window; a task that is open at its end is `open`.
_ENDS = ("done", "cancelled", "dead")
# So many runs and drifts are told one by one, and so many entries looked at at once.
_MAX_TOLD, _PAGE = 1000, 50
_REASONED = b'"kind":"turn.reasoned"'


class TaskCounts:
    """Finds the tasks that a window's entries are of; what they came to is read when it is asked.

    A run shows that it is a task by a turn, by a person's word or by its end. One that shows none
    of these in the window is looked up if it reaches into it from before.
    """

    def __init__(self, record: LedgerReader, window: Window) -> None:
        self._record, self._window = record, window
        self._last = 0
        self._tasks: dict[str, None] = {}
        self._others: set[str] = set()
        self._unsure: dict[str, None] = {}
        self._agents: dict[str, tuple[Counts, Counter[str]]] = {}
        self._runs: list[dict[str, Any]] = []
        self._drifts: list[dict[str, Any]] = []

    def add_entry(self, entry: EntryView) -> None:
        """Take the next entry of the window."""
        run, self._last = entry.run, entry.seq
        if run is None or run in self._tasks:
            return
        if shows_task(entry):
            self._tasks[run] = None
            self._unsure.pop(run, None)
        elif entry.kind == "turn.reasoned" or entry.get("n") == 1:
            self._others.add(run)
            self._unsure.pop(run, None)
        elif run not in self._others:
            self._unsure[run] = None

    def to_json(self) -> dict[str, Any]:
        """Return the counts of each agent and of each task in it, and every drift, oldest first.

        Of tasks and drifts the first are told one by one; `left_out` counts the others.
        """
        tasks = [*self._tasks, *filter(self._was_task, self._unsure)]
        starts = read_starts(self._record) if tasks else []
        for run in tasks:
            self._add_task(run, starts)
        drifts = sorted(self._drifts, key=lambda drift: drift["seq"])
        return {
            "agents": [
                {
                    "agent": agent,
                    "tasks": {name: states[name] for name in ("begun", *_ENDS, "open", "waiting")},
                    **counts_json(counts),
                }
                for agent, (counts, states) in sorted(self._agents.items())
            ],
            "runs": self._runs[:_MAX_TOLD],
            "drifts": drifts[:_MAX_TOLD],
            "left_out": {
                "runs": max(0, len(tasks) - _MAX_TOLD),
                "drifts": max(0, len(drifts) - _MAX_TOLD),
            },
        }

    def _was_task(self, run: str) -> bool:
        """Say whether a run was a task before the window: its last turn there tells."""
        before = self._window.first
        while True:
            page = self._record.entries_page({"run": run}, before=before, after=None, limit=_PAGE)
            for seq, raw in page:
                if _REASONED in raw:
                    return shows_task(read_entry(seq, raw, None))
            if len(page) < _PAGE:
                return False
            before = page[-1][0]

    def _add_task(self, run: str, starts: Sequence[EntryWithBody]) -> None:
        """Read a task up to the window's end, and keep what it came to in the window."""
        window, course = self._window, Trajectory(run)
        before: Counts | None = None
        state = course.state
        for seq, raw, data in run_entries(self._record, run, starts):
            if seq > self._last:
                break
            if seq >= window.first and before is None:
                before, state = course.counts.copy(), course.state
            if read_instant(raw) < window.until_us:
                course.add_raw(seq, raw, data)
        if before is None or not course.is_task:
            return
        found = course.counts - before
        counts, states = self._agents.setdefault(course.agent, (Counter(), Counter()))
        counts.update(found)
        states["begun"] += found["begun", ""]
        states[course.state] += course.state == "open" or course.state != state
        states["waiting"] += bool(course.waits)
        drifts = [one for one in course.drifts if one["seq"] >= window.first]
        self._drifts += [{"run": run, "agent": course.agent, **one} for one in drifts]
        if len(self._runs) < _MAX_TOLD:
            self._runs.append(
                {
                    "run": run,
                    "agent": course.agent,
                    "state": course.state,
                    "waits": sorted({*map(_word_of_wait, course.waits)}),
                    "credit": course.credit(),
                    **counts_json(found),
                }
            )


def _word_of_wait(what: str) -> str:
    return what if what == "person" else "hold"

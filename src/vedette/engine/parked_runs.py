"""Parked runs: those whose effects wait for a target, or turns for a model, and who is behind them.

Effects of one key are tried in the key's order. So while one waits (a retry, an open breaker),
the key is parked: later runs of it wait too, and go on one after the other when it is over.
Runs of other keys are not held up. All of this is found again in the store after a restart.
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Mapping, Sequence

from msgspec import Struct, field

from vedette.domain.run import ActionRow, Run
from vedette.domain.tool import Tool
from vedette.engine.calls_in_flight import MARGIN_US
from vedette.engine.tool_calls import LAST_RETRY_US

# When a parked run is looked at again though nobody woke it: waking it is this process's work.
RECHECK_US = 3_600_000_000

QueuePosition = tuple[int, str]
# Of one that waits for a target: its agent, how often it tried in vain, its place.
_Waiter = tuple[str, int, QueuePosition]


class ParkedRuns(Struct):
    """The parked runs, by key and by target. Belongs to one event loop."""

    _keys: dict[tuple[str, str], list[QueuePosition]] = field(default_factory=dict)
    _turn_waiters: set[str] = field(default_factory=set)
    # Those of `_keys` that wait for their first turn, for a model or behind one that does.
    _unjudged: set[str] = field(default_factory=set)
    _targets: dict[str, dict[str, _Waiter]] = field(default_factory=dict)
    # By target and agent: how many were woken for the target before the last one of the agent.
    _woken: dict[tuple[str, str], int] = field(default_factory=dict)
    _targets_of: dict[str, set[str]] = field(default_factory=dict)
    _wake_queue: dict[str, None] = field(default_factory=dict)
    # Runs that were woken and are in memory: they may try what they were parked with.
    _released: set[str] = field(default_factory=set)
    # Rows whose targets asked to be left alone for a while, by run.
    _retry_after_rows: dict[str, set[str]] = field(default_factory=dict)

    def find_predecessor(self, run: Run) -> str | None:
        """Return the run of the same key that waits in front of this one; None if there is none."""
        places = self._keys.get((run.agent, run.key))
        if not places or places[0][0] >= run.position:
            return None
        return places[0][1]

    def has_unjudged_before(self, run: Run) -> bool:
        """Say whether an earlier run of the key waits for its first turn: they are judged in order.

        Not who waits for a target: that has been judged, and holds up only what is told to targets.
        """
        places = self._keys.get((run.agent, run.key), ())
        first = next((place for place in places if place[1] in self._unjudged), None)
        return first is not None and first[0] < run.position

    def park_timed(self, run: Run) -> None:
        """Count a run as waiting for its time: it comes back by the clock."""
        if run.waits == "model" and not run.turn:
            self._unjudged.add(run.id)
        places = self._keys.setdefault((run.agent, run.key), [])
        place = (run.position, run.id)
        if place not in places:
            insort(places, place)

    def park_behind(self, run: Run) -> None:
        """Count a run as waiting for its turn: it is woken when it is the first of its key.

        Or the first that waits to be judged, if it is one of these.
        """
        self.park_timed(run)
        self._turn_waiters.add(run.id)

    def park_for_target(self, run: Run, target: str) -> None:
        """Count a run as waiting for a target that is left alone, be it one of several."""
        self.park_timed(run)
        self._turn_waiters.discard(run.id)
        self._await_target(run, target, 0)

    def park_for_model(self, run: Run, model: str, failures: int) -> None:
        """Count a run as waiting for a model (`model:NAME`) for its next turn.

        It holds up its key only before its first turn: that is judged in the key's order. Who
        failed so often before is tried after those that did not.
        """
        if not run.turn:
            self.park_timed(run)
        self._turn_waiters.discard(run.id)
        self._await_target(run, model, failures)

    def _await_target(self, run: Run, target: str, failures: int) -> None:
        self._targets.setdefault(target, {})[run.id] = (run.agent, failures, (run.position, run.id))
        self._targets_of.setdefault(run.id, set()).add(target)

    def note_retry_after(self, row: ActionRow, retry_after_us: int) -> None:
        """Note for how long a target asked to be left alone with a row; 0: it did not."""
        if retry_after_us:
            self._retry_after_rows.setdefault(row.run, set()).add(row.id)
        elif row.run in self._retry_after_rows:
            self._retry_after_rows[row.run].discard(row.id)

    def has_retry_after(self, row: ActionRow) -> bool:
        """Say whether a row waits because its target asked for it: it is not tried sooner."""
        return row.id in self._retry_after_rows.get(row.run, ())

    def unpark(self, run: Run) -> None:
        """Count a run as waiting no more; the next of its key is woken."""
        self.unpark_by_id(run.id, (run.agent, run.key))

    def unpark_by_id(self, run: str, key: tuple[str, str]) -> None:
        """Take a run from its key and wake the next, whether or not it was there."""
        self._forget(run)
        self._retry_after_rows.pop(run, None)
        self._leave_key(run, key)

    def _leave_key(self, run: str, key: tuple[str, str]) -> None:
        places = self._keys.get(key)
        if places is None:
            return
        self._unjudged.discard(run)
        remaining = [place for place in places if place[1] != run]
        if not remaining:
            del self._keys[key]
        elif len(remaining) < len(places):
            self._keys[key] = remaining
            for first in self._firsts(key):
                self.wake_if_first(first, key)

    def _firsts(self, key: tuple[str, str]) -> list[str]:
        """Return the first run of a key, and the first of those that wait to be judged."""
        runs = [run for _, run in self._keys[key]]
        return [*runs[:1], *[run for run in runs if run in self._unjudged][:1]]

    def wake(self, run: str) -> None:
        """Wake a run."""
        self._forget(run)
        self._wake_queue[run] = None

    def wake_if_first(self, run: str, key: tuple[str, str]) -> None:
        """Wake a run that waits for its turn, if that has come."""
        if run in self._turn_waiters and run in self._firsts(key):
            self.wake(run)

    def wake_oldest(self, target: str, *, is_trial: bool = False) -> bool:
        """Wake a run that waits for a target; False if none does.

        The agents take turns; of one, the oldest. For a trial, first of those that tried less often
        in vain.
        """
        waiting = self._targets.get(target)
        if not waiting:
            return False

        def order(run: str) -> tuple[int, int, QueuePosition]:
            agent, failures, place = waiting[run]
            return (failures if is_trial else 0, self._woken.get((target, agent), 0), place)

        first = min(waiting, key=order)
        latest = max((n for (one, _), n in self._woken.items() if one == target), default=0)
        self._woken[target, waiting[first][0]] = latest + 1
        self.wake(first)
        return True

    def wake_all(self, target: str) -> None:
        """Wake every run that waits for a target, oldest first."""
        waiting = self._targets.get(target, {})
        for run in sorted(waiting, key=lambda run: waiting[run][2]):
            self.wake(run)

    def pop_woken(self) -> str | None:
        """Return a run that was woken, and forget that it was; None if there is no more."""
        if not self._wake_queue:
            return None
        run = next(iter(self._wake_queue))
        del self._wake_queue[run]
        return run

    # --- a run that was woken, and one that comes to rest -----------------------------------

    def is_released(self, run: str) -> bool:
        """Say whether a run was woken, and is in memory since."""
        return run in self._released

    def mark_released(self, run: str) -> None:
        """Note that a run which was woken is in memory, until `unmark_released`."""
        self._released.add(run)

    def unmark_released(self, run: str) -> None:
        """Note that a run left memory."""
        self._released.discard(run)

    def release_waits(self, run: Run, rows: Sequence[ActionRow]) -> None:
        """Let a run that was woken try what it was parked with, though its time has not come.

        As often as it is taken up until it leaves memory: what came of a try may not be durable.
        """
        if run.id in self._released:
            for row in rows:
                if row.waits == "target" and not self.has_retry_after(row):
                    row.not_before_us = 0

    def park_or_leave(
        self, run: Run, rows: Sequence[ActionRow], tools: Mapping[str, Tool], now_us: int
    ) -> None:
        """A run is done, or waits: whoever waits behind it may go on, or not yet."""
        if run.state == "waiting" and run.waits == "model":
            if run.turn:
                self._leave_key(run.id, (run.agent, run.key))
            return
        waiting = [row for row in rows if row.waits == "target" and not row.is_final]
        if run.state != "waiting" or not waiting:
            self.unpark(run)
            return
        self.park_timed(run)
        # One row may be parked while another came back by the clock: the clock wakes nobody for it.
        parked = any(self._is_parked(row, tools.get(row.tool), now_us) for row in waiting)
        if parked and run.id not in self._targets_of:
            self.park_behind(run)
            self.wake_if_first(run.id, (run.agent, run.key))

    def _is_parked(self, row: ActionRow, tool: Tool | None, now_us: int) -> bool:
        """Say whether a row that waits for a target was parked, not tried again later.

        It waits longer than any call takes, and no target asked for that. It may have been tried
        before: a person had it repeated, or its outcome is asked for.
        """
        longest_us = max(LAST_RETRY_US, tool.timeout_us + MARGIN_US if tool else 0)
        return not self.has_retry_after(row) and row.not_before_us > now_us + longest_us

    @property
    def has_woken(self) -> bool:
        """Say whether anybody was woken."""
        return bool(self._wake_queue)

    def count_waiting(self, target: str) -> int:
        """Return how many runs wait for a target."""
        return len(self._targets.get(target, ()))

    @property
    def key_count(self) -> int:
        """Return how many keys are parked."""
        return len(self._keys)

    def clear(self) -> None:
        """Forget who waits: it is read anew from the store, which knows no target's words."""
        for part in (
            self._keys,
            self._turn_waiters,
            self._unjudged,
            self._targets,
            self._targets_of,
            self._wake_queue,
        ):
            part.clear()

    def _forget(self, run: str) -> None:
        self._turn_waiters.discard(run)
        self._wake_queue.pop(run, None)
        for target in self._targets_of.pop(run, ()):
            waiting = self._targets[target]
            del waiting[run]
            if not waiting:
                del self._targets[target]

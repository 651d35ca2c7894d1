"""Parking: runs whose effects wait for a target, and those that wait behind them for their turn.

Effects of one key are tried in the key's order. So while one waits (a retry, an open breaker),
the key is parked: later runs of it wait too, and go on one after the other when it is settled.
Runs of other keys are not held up. All of this is found again in the store after a restart.
"""

from __future__ import annotations

from bisect import insort
from dataclasses import field

from vedette.domain.base.dataclass import dataclass
from vedette.domain.run import ActionRow, Run

# When a parked run is looked at again though nobody woke it: waking it is this process's work.
LOOK_AGAIN_US = 3_600_000_000

Place = tuple[int, str]


@dataclass(slots=True)
class Parking:
    """Who waits, by key and by target. Belongs to one event loop."""

    _keys: dict[tuple[str, str], list[Place]] = field(default_factory=dict)
    _behind: set[str] = field(default_factory=set)
    _targets: dict[str, dict[str, Place]] = field(default_factory=dict)
    _targets_of: dict[str, set[str]] = field(default_factory=dict)
    _woken: dict[str, None] = field(default_factory=dict)
    # Rows whose targets asked to be left alone for a while, by run.
    _put_off: dict[str, set[str]] = field(default_factory=dict)

    def before(self, run: Run) -> str | None:
        """Return the run of the same key that waits in front of this one; None if there is none."""
        places = self._keys.get((run.agent, run.key))
        if not places or places[0][0] >= run.position:
            return None
        return places[0][1]

    def wait(self, run: Run) -> None:
        """Count a run as waiting for its time: it comes back by the clock."""
        places = self._keys.setdefault((run.agent, run.key), [])
        place = (run.position, run.id)
        if place not in places:
            insort(places, place)

    def wait_behind(self, run: Run) -> None:
        """Count a run as waiting for its turn: it is woken when it is the first of its key."""
        self.wait(run)
        self._behind.add(run.id)

    def wait_for(self, run: Run, target: str) -> None:
        """Count a run as waiting for a target that is left alone, be it one of several."""
        self.wait(run)
        self._behind.discard(run.id)
        self._targets.setdefault(target, {})[run.id] = (run.position, run.id)
        self._targets_of.setdefault(run.id, set()).add(target)

    def waits_for_target(self, run: Run) -> bool:
        """Say whether a run waits for a target that is left alone."""
        return run.id in self._targets_of

    def note_answer(self, row: ActionRow, asked_us: int) -> None:
        """Note for how long a target asked to be left alone with a row; 0: it did not."""
        if asked_us:
            self._put_off.setdefault(row.run, set()).add(row.id)
        elif row.run in self._put_off:
            self._put_off[row.run].discard(row.id)

    def put_off(self, row: ActionRow) -> bool:
        """Say whether a row waits because its target asked for it: it is not tried sooner."""
        return row.id in self._put_off.get(row.run, ())

    def leave(self, run: Run) -> None:
        """Count a run as waiting no more; the next of its key is woken."""
        self.drop(run.id, (run.agent, run.key))

    def drop(self, run: str, key: tuple[str, str]) -> None:
        """Take a run from its key and wake the next, whether or not it was there."""
        self._forget(run)
        self._put_off.pop(run, None)
        places = self._keys.get(key)
        if places is None:
            return
        kept = [place for place in places if place[1] != run]
        if not kept:
            del self._keys[key]
        elif len(kept) < len(places):
            self._keys[key] = kept
            self.wake_if_first(kept[0][1], key)

    def wake(self, run: str) -> None:
        """Wake a run."""
        self._wake(run)

    def wake_if_first(self, run: str, key: tuple[str, str]) -> None:
        """Wake a run that waits for its turn, if that has come."""
        if run in self._behind and self._keys[key][0][1] == run:
            self._wake(run)

    def wake_first(self, target: str) -> bool:
        """Wake the oldest run that waits for a target; False if none does."""
        waiting = self._targets.get(target)
        if not waiting:
            return False
        self._wake(min(waiting, key=lambda run: waiting[run]))
        return True

    def wake_all(self, target: str) -> None:
        """Wake every run that waits for a target, oldest first."""
        waiting = self._targets.get(target, {})
        for run in sorted(waiting, key=lambda run: waiting[run]):
            self._wake(run)

    def woken(self) -> str | None:
        """Return a run that was woken, and forget that it was; None if there is no more."""
        if not self._woken:
            return None
        run = next(iter(self._woken))
        del self._woken[run]
        return run

    @property
    def any_woken(self) -> bool:
        """Say whether anybody was woken."""
        return bool(self._woken)

    def waiting(self, target: str) -> int:
        """Return how many runs wait for a target."""
        return len(self._targets.get(target, ()))

    @property
    def keys(self) -> int:
        """Return how many keys are parked."""
        return len(self._keys)

    def clear(self) -> None:
        """Forget who waits: it is read anew from the store, which knows no target's words."""
        for part in (self._keys, self._behind, self._targets, self._targets_of, self._woken):
            part.clear()

    def _wake(self, run: str) -> None:
        self._forget(run)
        self._woken[run] = None

    def _forget(self, run: str) -> None:
        self._behind.discard(run)
        self._woken.pop(run, None)
        for target in self._targets_of.pop(run, ()):
            waiting = self._targets[target]
            del waiting[run]
            if not waiting:
                del self._targets[target]

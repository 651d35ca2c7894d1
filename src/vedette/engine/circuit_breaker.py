"""Circuit breakers: one for each target and model; who is down is left alone until it is back.

closed --failures--> open --its time is over--> half-open --one trial--> closed | open again

Closed lets every call through. Open lets none: effects stay intended and wait. Half-open lets one
call through and waits for what comes of it. Nothing here is durable: a new runner starts closed
and finds out within a few calls. Instants are microseconds of the wall clock, given by the caller.
"""

from __future__ import annotations

from typing import Literal

from msgspec import Struct, field

from vedette.domain.base.backoff import delay_us

State = Literal["closed", "open", "half-open"]


class BreakerLimits(Struct, frozen=True):
    """When a target's circuit breaker opens, and how long it stays open.

    It opens after `in_a_row` failures without a success between them, or when, of at least `least`
    calls within `window_us`, `share_milli` thousandths failed. It stays open for `first_us`, and
    twice as long after each trial that failed, up to `last_us`; jitter takes off up to half.
    """

    in_a_row: int = 5
    least: int = 20
    share_milli: int = 500
    window_us: int = 30_000_000
    first_us: int = 1_000_000
    last_us: int = 30_000_000


# Leave for one call, to be given back with what came of it. One call at a time is a trial.
Leave = Literal["call", "trial"]


class Breaker(Struct):
    """The breaker of one target, or model (`model:NAME`).

    `retry_us` is when an open one lets a trial through, `why` the code of the failure that opened
    it, where that is known.
    """

    target: str
    limits: BreakerLimits = field(default_factory=BreakerLimits)
    state: State = "closed"
    retry_us: int = 0
    open_count: int = 0
    why: str = ""
    _in_a_row: int = 0
    _trial_in_flight: bool = False
    _since_us: int = 0
    _current_half: tuple[int, int] = (0, 0)
    _previous_half: tuple[int, int] = (0, 0)

    def acquire(self, now_us: int) -> Leave | None:
        """Return leave for one call; None if the target is to be left alone."""
        if self.state == "closed":
            return "call"
        if not self.is_trial_due(now_us):
            return None
        self.state, self._trial_in_flight = "half-open", True
        return "trial"

    def is_trial_due(self, now_us: int) -> bool:
        """Say whether a breaker that is not closed would let a trial through now."""
        return self.state != "closed" and not self._trial_in_flight and now_us >= self.retry_us

    def release(
        self, leave: Leave, ok: bool | None, now_us: int, *, until_us: int = 0, why: str = ""
    ) -> bool:
        """Take back a leave: the target answered, or did not; None if the call was not made.

        `until_us` is until when one that did not asked to be left alone: that opens the breaker at
        once. Returns whether this closed the breaker. Calls that began before it opened say nothing
        of a target that is being tried again, so what comes of them then counts for nothing but
        what they asked for.
        """
        if leave == "trial":
            self._trial_in_flight = False
            if ok is None:
                return False
            if not ok:
                self._open(now_us, why, until_us)
                return False
            self.state, self.open_count, self._in_a_row, self.why = "closed", 0, 0, ""
            self._current_half = self._previous_half = (0, 0)
            return True
        if self.state != "closed":
            self.retry_us = max(self.retry_us, until_us)
        elif until_us > now_us:
            self._open(now_us, why, until_us)
        elif ok is not None:
            self._count(ok, now_us, why)
        return False

    def _count(self, ok: bool, now_us: int, why: str) -> None:
        limits = self.limits
        # Two halves of the window: the one that goes on, and the one before it.
        half = limits.window_us // 2
        if now_us - self._since_us >= half or now_us < self._since_us:
            fresh = now_us - self._since_us < 2 * half
            self._previous_half = self._current_half if fresh else (0, 0)
            self._current_half, self._since_us = (0, 0), now_us
        calls, failures = self._current_half
        self._current_half = (calls + 1, failures + (not ok))
        self._in_a_row = 0 if ok else self._in_a_row + 1
        calls, failures = (
            self._current_half[0] + self._previous_half[0],
            self._current_half[1] + self._previous_half[1],
        )
        often = calls >= limits.least and failures * 1000 >= calls * limits.share_milli
        if not ok and (self._in_a_row >= limits.in_a_row or often):
            self._open(now_us, why)

    def _open(self, now_us: int, why: str, until_us: int = 0) -> None:
        limits, tries, self.why = self.limits, self.open_count, why
        self.state, self.open_count = "open", self.open_count + 1
        wait_us = delay_us(
            tries, first_us=limits.first_us, last_us=limits.last_us, seed=self.target
        )
        self.retry_us = max(now_us + wait_us, until_us)


class CircuitBreakers(Struct):
    """The breakers of a fleet's targets, made when they are first asked for."""

    limits: BreakerLimits = field(default_factory=BreakerLimits)
    _by_target: dict[str, Breaker] = field(default_factory=dict)

    def for_target(self, target: str) -> Breaker:
        """Return the breaker of a target."""
        found = self._by_target.get(target)
        if found is None:
            found = self._by_target[target] = Breaker(target, self.limits)
        return found

    def list_tripped(self) -> list[Breaker]:
        """Return those that are not closed, by target."""
        return [
            self._by_target[name]
            for name in sorted(self._by_target)
            if self._by_target[name].state != "closed"
        ]

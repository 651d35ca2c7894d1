"""Rate limits: how many errors and effects of an agent are too many; over one, the agent is parked.

A window slides: what happened within the hour (errors) or the minute (effects) before now. Counts
are this process's own and start at nothing; being parked is durable, so a restart forgives none.
"""

from __future__ import annotations

from collections import deque

from msgspec import Struct, field

from vedette.domain.budget import HOUR_US, MINUTE_US


class RateLimits(Struct, frozen=True):
    """An agent's rate limits; None for no ceiling.

    An error is an attempt that broke off, or an effect that failed for good. An effect is a call
    of a tool that was started.
    """

    errors_per_hour: int | None = 100
    effects_per_minute: int | None = None


class RateCounters(Struct):
    """The counters of agents' errors and effects, for rate limits. Belongs to one event loop."""

    _instants: dict[tuple[str, str], deque[int]] = field(default_factory=dict)

    def count_error(self, agent: str, limits: RateLimits, now_us: int) -> str | None:
        """Count an error; return the ceiling that this reached, if it did."""
        most = limits.errors_per_hour
        if most is None:
            return None
        recent = self._recent("errors", agent, now_us - HOUR_US)
        recent.append(now_us)
        return f"{len(recent)} errors within an hour" if len(recent) >= most else None

    def count_effect(self, agent: str, limits: RateLimits, now_us: int) -> str | None:
        """Count an effect that is about to start; or return the ceiling that is in its way."""
        most = limits.effects_per_minute
        if most is None:
            return None
        recent = self._recent("effects", agent, now_us - MINUTE_US)
        if len(recent) >= most:
            return f"{len(recent)} effects within a minute"
        recent.append(now_us)
        return None

    def reset(self, agent: str) -> None:
        """Start anew: a person let the agent go on, here or through another worker."""
        self._instants.pop(("errors", agent), None)
        self._instants.pop(("effects", agent), None)

    def _recent(self, what: str, agent: str, since_us: int) -> deque[int]:
        found = self._instants.setdefault((what, agent), deque())
        while found and found[0] <= since_us:
            found.popleft()
        return found

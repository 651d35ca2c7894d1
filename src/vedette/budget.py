"""Budgets: what an agent may spend in a window of time, and the arithmetic of the windows."""

from __future__ import annotations

from dataclasses import dataclass

MINUTE_US = 60_000_000
HOUR_US = 60 * MINUTE_US
DAY_US = 24 * HOUR_US


@dataclass(frozen=True, slots=True)
class Budget:
    """Limits that agent.yaml requests; policy may set lower ones. None means not requested.

    Windows are calendar windows in UTC: the hour and the day that contain the instant.
    """

    actions_per_hour: int | None = None
    actions_per_day: int | None = None
    actions_per_run: int = 16
    model_calls_per_day: int = 0
    model_calls_per_run: int = 8


def window_start(now_us: int, length_us: int) -> int:
    """Return the start of the window of `length_us` that contains `now_us`."""
    return now_us - now_us % length_us


def window_end(now_us: int, length_us: int) -> int:
    """Return the first instant after the window of `length_us` that contains `now_us`."""
    return window_start(now_us, length_us) + length_us


class Counts:
    """How much an agent spent, by minute: the sums a decision needs, in constant time.

    `add` takes units spent at an instant, `give_back` returns them to it. Sums are over calendar
    windows. The owner restores it from the store by adding what the store knows.
    """

    def __init__(self) -> None:
        self._windows: dict[tuple[str, str, int], tuple[int, int]] = {}

    def add(self, agent: str, unit: str, now_us: int, amount: int = 1) -> None:
        """Count `amount` of `unit` for `agent` in the windows that contain `now_us`.

        If the wall clock stepped back, what is counted goes into the latest window known: a limit
        must not open because a clock was set.
        """
        for length in (MINUTE_US, HOUR_US, DAY_US):
            start = window_start(now_us, length)
            key = (agent, unit, length)
            at, total = self._windows.get(key, (start, 0))
            if at == start:
                self._windows[key] = (start, total + amount)
            elif at < start:
                self._windows[key] = (start, amount)
            else:
                self._windows[key] = (at, total + amount)

    def give_back(self, agent: str, unit: str, counted_us: int, amount: int = 1) -> None:
        """Take back what was counted at `counted_us`, in the windows that are still those."""
        for length in (MINUTE_US, HOUR_US, DAY_US):
            key = (agent, unit, length)
            at, total = self._windows.get(key, (0, 0))
            if at == window_start(counted_us, length):
                self._windows[key] = (at, total - amount)

    def total(self, agent: str, unit: str, now_us: int, length_us: int) -> int:
        """Return what was counted in the window of `length_us` that contains `now_us`, or later."""
        at, total = self._windows.get((agent, unit, length_us), (0, 0))
        return total if at >= window_start(now_us, length_us) else 0

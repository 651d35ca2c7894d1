"""Spend in calendar windows of UTC, by the agent and for the fleet.

The store keeps a row for each (agent or fleet, unit) with the latest hour and day: what a check
costs does not grow with what was spent, and it is exact, since whoever books holds the store's own
lock. Policy is asked with counters in memory, which a start restores from the store.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

from msgspec import Struct, field

from vedette.domain.budget import (
    ACTIONS,
    ALERT_PERCENT,
    DAY_US,
    FLEET,
    HOUR_US,
    LENGTHS,
    MINUTE_US,
    Alert,
    BudgetCap,
    BudgetRaise,
    Shortage,
)


def window_start(now_us: int, length_us: int) -> int:
    """Return the start of the calendar window of `length_us` that contains `now_us`."""
    return now_us - now_us % length_us


def window_end(now_us: int, length_us: int) -> int:
    """Return the first instant after the calendar window of `length_us` that contains `now_us`."""
    return window_start(now_us, length_us) + length_us


class Window(Struct):
    """A count in the latest calendar window of `length_us` that is known.

    A clock that stepped back opens no window again: what is counted then goes into the latest.
    `alerted` says that the alert of the window was given.
    """

    length_us: int
    start_us: int = 0
    total: int = 0
    alerted: int = 0

    def add(self, now_us: int, amount: int) -> None:
        """Count what is spent now."""
        if now_us >= self.start_us + self.length_us:
            self.start_us, self.total = now_us - now_us % self.length_us, 0
            self.alerted = 0
        self.total += amount

    def total_at(self, now_us: int) -> int:
        """Return the total of the window of `now_us`, or of a later one if the clock went back."""
        return self.total if now_us < self.start_us + self.length_us else 0

    def has(self, at_us: int) -> bool:
        """Say whether an instant lies in this window."""
        return self.start_us <= at_us < self.start_us + self.length_us


class SpendTotal(Struct):
    """What an agent, or the fleet, has spent of one unit in the latest hour and day known."""

    hour: Window = field(default_factory=lambda: Window(HOUR_US))
    day: Window = field(default_factory=lambda: Window(DAY_US))

    @classmethod
    def from_row(cls, hour: Sequence[int], day: Sequence[int]) -> SpendTotal:
        """Return the total of a row of the store: start, total and alerted of each window."""
        return cls(Window(HOUR_US, *hour), Window(DAY_US, *day))

    def to_row(self) -> tuple[int, ...]:
        """Return start, total and alerted of each window."""
        windows = (self.hour, self.day)
        return tuple(n for w in windows for n in (w.start_us, w.total, w.alerted))

    def window(self, span: str) -> Window:
        """Return the window of "hour" or "day"."""
        return self.hour if span == "hour" else self.day

    def amount_at(self, span: str, now_us: int) -> int:
        """Return the total of the hour or day of `now_us`, or of a later one."""
        return self.window(span).total_at(now_us)

    def add(self, now_us: int, amount: int) -> None:
        """Count what is spent now."""
        self.hour.add(now_us, amount)
        self.day.add(now_us, amount)

    def refund(self, spent_us: int, amount: int) -> None:
        """Take back what was counted at `spent_us`, from the windows that are still those."""
        for window in (self.hour, self.day):
            if window.has(spent_us):
                window.total = max(0, window.total - amount)


Refunds = Sequence[tuple[str, int, int]]


class SpendCache:
    """A cache of spend totals by (name, unit), read when first asked for, written with the group.

    Not a sum over entries: what a check costs does not grow with what was spent. `read` gives a
    total as the transaction under way has it, `raises` the raises in force at an instant.
    """

    def __init__(
        self,
        read: Callable[[str, str], SpendTotal | None],
        raises: Callable[[int], Iterable[BudgetRaise]],
    ) -> None:
        self._read = read
        self._raises = raises
        self._totals: dict[tuple[str, str], SpendTotal] = {}
        self.changed: dict[tuple[str, str], SpendTotal] = {}

    def clear(self) -> None:
        """Drop everything: the transaction is gone, or others may have written since."""
        self._totals.clear()
        self.changed.clear()

    def total(self, name: str, unit: str) -> SpendTotal:
        """Return one total."""
        total = self._totals.get((name, unit))
        if total is None:
            total = self._totals[name, unit] = self._read(name, unit) or SpendTotal()
        return total

    def find_shortage(
        self, agent: str, caps: Iterable[BudgetCap], spend: Mapping[str, int], refunds: Refunds,
        now_us: int, escrow: Mapping[str, int] | None = None,
    ) -> Shortage | None:  # fmt: skip
        """Return the first limit that has no room for `spend`, and for `escrow` where it is the
        agent's; None if all have.
        """
        for cap in caps:
            amount = spend.get(cap.unit, 0)
            if escrow and cap.scope == "agent":
                amount += escrow.get(cap.unit, 0)
            if amount <= 0:
                continue
            total = cap.used
            if cap.span != "run":
                name = FLEET if cap.scope == "fleet" else agent
                totals = self._totals.get((name, cap.unit)) or self.total(name, cap.unit)
                total += totals.amount_at(cap.span, now_us)
                if refunds:
                    total -= _refunded_amount(totals.window(cap.span), cap.unit, refunds, now_us)
            if total + amount <= cap.limit:
                continue
            limit = cap.limit + self.raised_amount(agent, cap, now_us)
            if total + amount > limit:
                until = window_end(now_us, LENGTHS[cap.span]) if cap.span in LENGTHS else 0
                return Shortage(cap.scope, cap.unit, cap.span, limit, total, amount, until)
        return None

    def raised_amount(self, agent: str, cap: BudgetCap, now_us: int) -> int:
        """Return what raises in force add to a limit."""
        name = FLEET if cap.scope == "fleet" else agent
        return sum(
            more.amount
            for more in self._raises(now_us)
            if (more.name, more.unit, more.span) == (name, cap.unit, cap.span)
        )

    def book(self, agent: str, spend: Mapping[str, int], refunds: Refunds, now_us: int) -> None:
        """Count what a step spends and gives back, for its agent and for the fleet."""
        for unit, spent_us, amount in refunds:
            for name in (agent, FLEET):
                self._mark_changed(name, unit).refund(spent_us, amount)
        for unit, amount in spend.items():
            for name in (agent, FLEET):
                self._mark_changed(name, unit).add(now_us, amount)

    def set_aside(
        self, agent: str, escrow: Mapping[str, int], returned: Refunds, now_us: int
    ) -> None:
        """Count what a step sets aside of its agent's budget for a child, and what returns."""
        for unit, spent_us, amount in returned:
            self._mark_changed(agent, unit).refund(spent_us, amount)
        for unit, amount in escrow.items():
            self._mark_changed(agent, unit).add(now_us, amount)

    def record_alerts(
        self, agent: str, caps: Iterable[BudgetCap], spend: Mapping[str, int], now_us: int
    ) -> list[Alert]:
        """Return the limits that spending has just brought to the alert, and note that it did."""
        found = []
        for cap in caps:
            if cap.span == "run" or cap.limit <= 0 or not spend.get(cap.unit):
                continue
            name = FLEET if cap.scope == "fleet" else agent
            window = self.total(name, cap.unit).window(cap.span)
            amount = window.total_at(now_us)
            if window.alerted or amount * 100 < cap.limit * ALERT_PERCENT:
                continue
            limit = cap.limit + self.raised_amount(agent, cap, now_us)
            if amount * 100 < limit * ALERT_PERCENT:
                continue
            window.alerted = 1
            found.append(Alert(name, cap.unit, cap.span, limit, amount))
        return found

    def _mark_changed(self, name: str, unit: str) -> SpendTotal:
        total = self.changed[name, unit] = self.total(name, unit)
        return total


def _refunded_amount(window: Window, unit: str, refunds: Refunds, now_us: int) -> int:
    """Return how much of a window that is not over is being given back."""
    if now_us >= window.start_us + window.length_us:
        return 0
    return sum(
        amount for each, spent_us, amount in refunds if each == unit and window.has(spent_us)
    )


# --- counters that policy is asked with --------------------------------------------------------

_LENGTHS = (MINUTE_US, HOUR_US, DAY_US)


class SpendCounters:
    """How much each agent spent in the present minute, hour and day.

    Its owner restores it with `read`.
    """

    def __init__(self) -> None:
        self._windows: dict[tuple[str, str], list[Window]] = {}

    def _of(self, agent: str, unit: str) -> list[Window]:
        found = self._windows.get((agent, unit))
        if found is None:
            found = self._windows[agent, unit] = [Window(length) for length in _LENGTHS]
        return found

    def add(self, agent: str, unit: str, now_us: int, amount: int = 1) -> None:
        """Count what is spent now."""
        for window in self._of(agent, unit):
            window.add(now_us, amount)

    def read(
        self, by_minute: Callable[[int], Iterable[tuple[str, str, int, int]]], now_us: int
    ) -> None:
        """Count what the store has, by the minute, as spent on the day of `now_us`."""
        first = window_start(now_us, DAY_US) // MINUTE_US
        for agent, unit, minute, amount in by_minute(first):
            self.add(agent, unit, minute * MINUTE_US, amount)

    def refund(self, agent: str, unit: str, counted_us: int, amount: int = 1) -> None:
        """Take back what was counted at `counted_us`, from the windows that are still those.

        What was set aside in a minute is not read again after a restart: it cannot be taken back.
        """
        for window in self._of(agent, unit):
            if window.has(counted_us):
                window.total = max(0, window.total - amount)

    def restore(self, agent: str, unit: str, counted_us: int, amount: int = 1) -> None:
        """Count again what `refund` took back, in the windows that are still those."""
        self.refund(agent, unit, counted_us, -amount)

    def raise_to(self, agent: str, unit: str, now_us: int, length_us: int, total: int) -> None:
        """Raise the count of a window to what is known to have been spent in it, by anybody."""
        window = self._of(agent, unit)[_LENGTHS.index(length_us)]
        missing = total - window.total_at(now_us)
        if missing > 0:
            window.add(now_us, missing)

    def raise_to_totals(self, found: Iterable[tuple[str, str, SpendTotal]], now_us: int) -> None:
        """Raise the counts of the hour and the day to what the store's totals have."""
        for name, unit, total in found:
            if name != FLEET:
                self.raise_to(name, unit, now_us, HOUR_US, total.amount_at("hour", now_us))
                self.raise_to(name, unit, now_us, DAY_US, total.amount_at("day", now_us))

    def totals(self, agent: str, unit: str, now_us: int) -> dict[str, int]:
        """Return what was counted in the minute, hour and day of `now_us`, or in later ones."""
        minute, hour, day = self._of(agent, unit)
        return {
            "minute": minute.total_at(now_us),
            "hour": hour.total_at(now_us),
            "day": day.total_at(now_us),
        }


class PermitCount(Struct):
    """The count of one Step's permits, all at once; taken back if the `with` block raises.

    `new` is how many of them had no place before. With an ask counts what it sets aside.
    """

    counts: SpendCounters
    agent: str
    new: int = 0
    _changes: list[tuple[int, int]] = field(default_factory=list)

    def __enter__(self) -> PermitCount:
        return self

    def __exit__(self, kind: type[BaseException] | None, *error: object) -> None:
        if kind is not None:
            for at_us, amount in self._changes:
                self.counts.refund(self.agent, ACTIONS, at_us, amount)

    def add(self, at_us: int, *, is_new: bool, escrow: int = 0) -> None:
        """Count a permit that was given at an instant; one that is not new, where it did before.
        `escrow` are the actions that it sets aside.
        """
        change = self.counts.add if is_new else self.counts.restore
        change(self.agent, ACTIONS, at_us, 1 + escrow)
        self._changes.append((at_us, 1 + escrow))
        self.new += is_new

    def remove(self, at_us: int) -> None:
        """Count a permit no more that was counted at an instant."""
        self.counts.refund(self.agent, ACTIONS, at_us)
        self._changes.append((at_us, -1))

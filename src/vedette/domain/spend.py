"""Running totals of what was spent, as the store keeps them inside its transaction.

One row for each (agent or fleet, unit) holds the latest hour and day: what a check costs does not
grow with what was spent, and it is exact, since whoever books holds the store's own lock.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

from msgspec import Struct

from vedette.domain.budget import (
    ALERT_PERCENT,
    DAY_US,
    FLEET,
    HOUR_US,
    LENGTHS,
    Alert,
    Cap,
    Raise,
    Shortage,
    window_end,
    window_start,
)


class SpendTotal(Struct):
    """What an agent, or the fleet, has spent of one unit in the latest hour and day known.

    `hour_told` and `day_told` say that the alert of the window was given.
    """

    hour_us: int = 0
    hour: int = 0
    hour_told: int = 0
    day_us: int = 0
    day: int = 0
    day_told: int = 0

    def amount_at(self, span: str, now_us: int) -> int:
        """Return the total of the window of `now_us`, or of a later one if the clock went back."""
        if span == "hour":
            return self.hour if now_us < self.hour_us + HOUR_US else 0
        return self.day if now_us < self.day_us + DAY_US else 0

    def add(self, now_us: int, amount: int) -> None:
        """Count what is spent now. A clock that stepped back opens no window again."""
        if now_us >= self.hour_us + HOUR_US:
            self.hour_us, self.hour, self.hour_told = window_start(now_us, HOUR_US), 0, 0
        if now_us >= self.day_us + DAY_US:
            self.day_us, self.day, self.day_told = window_start(now_us, DAY_US), 0, 0
        self.hour += amount
        self.day += amount

    def refund(self, spent_us: int, amount: int) -> None:
        """Take back what was counted at `spent_us`, from the windows that are still those."""
        if self.hour_us == window_start(spent_us, HOUR_US):
            self.hour = max(0, self.hour - amount)
        if self.day_us == window_start(spent_us, DAY_US):
            self.day = max(0, self.day - amount)


Refunds = Sequence[tuple[str, int, int]]


class SpendCache:
    """Running totals by (name, unit), read when first asked for and written at the group's end.

    Not a sum over entries: what a check costs does not grow with what was spent. `read` gives a
    total as the transaction under way has it, `raises` the raises in force at an instant.
    """

    def __init__(
        self,
        read: Callable[[str, str], SpendTotal | None],
        raises: Callable[[int], Iterable[Raise]],
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
        self, agent: str, caps: Iterable[Cap], spend: Mapping[str, int], refunds: Refunds,
        now_us: int,
    ) -> Shortage | None:  # fmt: skip
        """Return the first limit that has no room for `spend`; None if all have."""
        for cap in caps:
            amount = spend.get(cap.unit, 0)
            if amount <= 0:
                continue
            total = cap.used
            if cap.span != "run":
                name = FLEET if cap.scope == "fleet" else agent
                kept = self._totals.get((name, cap.unit)) or self.total(name, cap.unit)
                total += kept.amount_at(cap.span, now_us)
                if refunds:
                    total -= _refunded_amount(kept, cap, refunds, now_us)
            if total + amount <= cap.limit:
                continue
            limit = cap.limit + self.raised_amount(agent, cap, now_us)
            if total + amount > limit:
                until = window_end(now_us, LENGTHS[cap.span]) if cap.span in LENGTHS else 0
                return Shortage(cap.scope, cap.unit, cap.span, limit, total, amount, until)
        return None

    def raised_amount(self, agent: str, cap: Cap, now_us: int) -> int:
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

    def record_alerts(
        self, agent: str, caps: Iterable[Cap], spend: Mapping[str, int], now_us: int
    ) -> list[Alert]:
        """Return the limits that spending has just brought to the alert, and note that it did."""
        found = []
        for cap in caps:
            if cap.span == "run" or cap.limit <= 0 or not spend.get(cap.unit):
                continue
            name = FLEET if cap.scope == "fleet" else agent
            total = self.total(name, cap.unit)
            amount = total.amount_at(cap.span, now_us)
            if amount * 100 < cap.limit * ALERT_PERCENT:
                continue
            if total.hour_told if cap.span == "hour" else total.day_told:
                continue
            limit = cap.limit + self.raised_amount(agent, cap, now_us)
            if amount * 100 < limit * ALERT_PERCENT:
                continue
            if cap.span == "hour":
                total.hour_told = 1
            else:
                total.day_told = 1
            found.append(Alert(name, cap.unit, cap.span, limit, amount))
        return found

    def _mark_changed(self, name: str, unit: str) -> SpendTotal:
        total = self.changed[name, unit] = self.total(name, unit)
        return total


def _refunded_amount(total: SpendTotal, cap: Cap, refunds: Refunds, now_us: int) -> int:
    """Return how much of the present window's total is being given back."""
    start = total.hour_us if cap.span == "hour" else total.day_us
    length = LENGTHS[cap.span]
    if now_us >= start + length:
        return 0
    return sum(
        amount
        for unit, spent_us, amount in refunds
        if unit == cap.unit and window_start(spent_us, length) == start
    )

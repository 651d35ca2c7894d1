"""Action holds: what an action waits for, and what becomes of its row when it is decided.

An approval is found only on the very action it was given for, only before its end, and only
once: the step that acts on it marks it used. It is used for one effect, whose outcome may be long
in coming: until that is there, or the approval has ended, whatever is decided again of this effect
(a repeat after a lost answer, under a newer policy) is decided with it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from msgspec import Struct, field

from vedette.domain.budget import ACTIONS, HOUR_US, BudgetCap, Shortage
from vedette.domain.decision import Approval, Decision
from vedette.domain.effect import OPEN_STATES
from vedette.domain.hold import HoldState
from vedette.domain.run import ActionRow

# How long a person has to answer before silence is a no.
HOLD_EXPIRY_US = 72 * HOUR_US
# After how long what a rule stops is decided again, first and at most; what a person stopped waits
# to be resumed.
FIRST_STOP_RETRY_US = 60_000_000
MAX_STOP_RETRY_US = HOUR_US
# For how long a denial of what may have happened, and may be repeated, is looked at again, and how
# soon for the first time; each time after twice as long.
DENIAL_WINDOW_US = 30_000_000
FIRST_DENIAL_RETRY_US = 1_000_000


class ActionSlots(Struct):
    """The room for actions in a run's step: all there may be, or what `shortage` has left.

    `escrow` is what its asks set aside for those that they ask, by unit, and `escrow_shortages` are
    the limits that lately had no room for that. `refused` is what the first had no room for.
    """

    shortage: Shortage | None = None
    count: int = 0
    refused: dict[str, int] = field(default_factory=dict)
    escrow: dict[str, int] = field(default_factory=dict)
    escrow_shortages: Mapping[str, Shortage] = field(default_factory=dict)

    def acquire(self, escrow: Mapping[str, int] | None = None) -> Shortage | None:
        """Take a place for one more action, or return the limit that has none.

        With an `escrow` there must be room for that, too.
        """
        found, places = self.shortage, 1
        if escrow and found is not None and found.scope == "agent":
            places += escrow.get(ACTIONS, 0)  # what a child does counts for the fleet as its own
        if found is not None and self.count + places > found.headroom:
            self.refused = self.refused or {ACTIONS: places}
            return found
        for unit, amount in (escrow or {}).items():
            found = self.escrow_shortages.get(unit)
            if found is not None and self.escrow.get(unit, 0) + amount > found.headroom:
                self.refused = self.refused or {unit: amount}
                return found
        self.count += places
        for unit, amount in (escrow or {}).items():
            self.escrow[unit] = self.escrow.get(unit, 0) + amount
        return None

    @property
    def units(self) -> tuple[str, ...]:
        """Return the units that its step is limited in."""
        return tuple(dict.fromkeys((ACTIONS, *self.escrow, *self.refused)))

    def step_fields(self, permits: int, caps: tuple[BudgetCap, ...]) -> dict[str, Any]:
        """Return the parts of a `Step` that keep so many new permits to these limits."""
        if not permits and not self.refused:
            return {}
        parts: dict[str, Any] = {"limits": caps}
        if permits:
            parts["spend"] = {ACTIONS: permits}
        if self.escrow:
            parts["escrow"] = self.escrow
        if self.refused:
            parts["shortfall"] = self.refused
        return parts


def find_shortage(shortages: dict[str, Shortage], agent: str, now_us: int) -> Shortage | None:
    """Return what an agent's actions lately had no room for, until its window turns."""
    found = shortages.get(agent)
    if found is not None and found.until_us <= now_us:
        del shortages[agent]
        return None
    return found


def merge_rows(before: list[ActionRow], changed: Sequence[ActionRow]) -> list[ActionRow]:
    """Return actions with those of `changed` in the place of what they were."""
    if len(changed) == 1 and [row.id for row in before] in ([], [changed[0].id]):
        return list(changed)
    by_id = {row.id: row for row in changed}
    return [by_id.pop(row.id, row) for row in before] + list(by_id.values())


def approval_of(row: ActionRow, now_us: int) -> Approval | None:
    """Return the approval of exactly the action that a row holds, if it still stands."""
    stands = row.hold == "approved" or (row.hold == "used" and not row.is_final)
    if not stands or row.approver is None or row.until_us <= now_us:
        return None
    return Approval(row.digest, row.approver, row.until_us)


def is_hold_over(row: ActionRow, now_us: int) -> bool:
    """Say whether an action hold is over without a permit: a no, or silence beyond its end."""
    if row.hold == "approved":
        return row.until_us <= now_us
    return row.hold == "denied" or (row.waits == "approval" and row.until_us <= now_us)


def apply_decision(row: ActionRow, decision: Decision, policy_rev: int, now_us: int) -> None:
    """Write a decision into the action's row: permit plans the effect, hold opens a hold."""
    row.decided, row.rule, row.policy_rev = decision.outcome, decision.rule, policy_rev
    row.decisions += 1
    if decision.outcome == "permit":
        row.waits, row.effect = None, "intended"
        if _is_approved(row.hold):
            row.hold = "used"
        else:
            row.hold, row.until_us = row.hold and "released", 0
    elif decision.outcome == "hold":
        # An approval already given stays with the action while it waits for something else.
        if decision.wait == "approval" or approval_of(row, now_us) is None:
            row.hold = "open"
            row.approver = None
            row.until_us = decision.until_us
            if decision.wait == "approval":
                row.until_us = decision.until_us or now_us + HOLD_EXPIRY_US
        row.waits = decision.wait
        row.not_before_us = decision.until_us if decision.wait == "time" else 0
        row.effect = None
    else:
        if row.hold is not None:
            row.hold = "denied"
        row.waits, row.until_us = None, 0
        if row.effect is not None:
            row.effect = "cancelled"


def hold_for_budget(
    row: ActionRow,
    hold_before: tuple[HoldState | None, str | None, int],
    shortage: Shortage,
    now_us: int,
) -> None:
    """Have a permitted action's row wait for a budget; an approval it had stands as it did.

    `hold_before` is its hold, approver and end as they were before it was permitted.
    """
    row.decided, row.rule, row.waits = "hold", shortage.rule, "budget"
    row.effect, row.not_before_us = None, shortage.until_us
    if _is_approved(hold_before[0]) and hold_before[2] > now_us:
        row.hold, row.approver, row.until_us = hold_before
    else:
        row.hold, row.approver, row.until_us = "open", None, 0


def _is_approved(hold: HoldState | None) -> bool:
    return hold in ("approved", "used")


def denial_retry_at(since_us: int, now_us: int) -> int:
    """Return when to reauthorize what was denied at `since_us` and may have happened; 0: never.

    Each time after twice as long, and for the last time when it has been denied for DENIED_US.
    """
    lasted_us = max(0, now_us - since_us)
    if lasted_us >= DENIAL_WINDOW_US:
        return 0
    return now_us + min(max(FIRST_DENIAL_RETRY_US, lasted_us), DENIAL_WINDOW_US - lasted_us)


def stop_retry_at(row: ActionRow, now_us: int) -> int:
    """Return when to reauthorize what a rule stops: each time after twice as long, to a bound."""
    doublings = min(row.decisions - 1, 16)
    return now_us + min(FIRST_STOP_RETRY_US << doublings, MAX_STOP_RETRY_US)


def wake_us(row: ActionRow, is_stopped: bool) -> int:
    """Return when to wake a run for an open action, as something may happen then; 0: by no clock.

    `is_stopped` says that its tool, its agent or everything is.
    """
    if row.waits == "approval":
        return row.until_us
    if row.waits == "resume":
        # What is stopped is woken when that is lifted.
        return 0 if is_stopped else row.not_before_us
    is_timed = row.waits in ("time", "budget", "policy") or row.effect in OPEN_STATES
    return row.not_before_us if is_timed else 0

"""Holds and approvals: the life of an action that waits.

    open --approve--> approved --used--> used          (the effect was decided again and permitted)
    open --deny-----> denied
    open --expire---> expired                          (expiry denies)
    open --release--> released                         (time came, or the stop was lifted)
    approved --expire--> expired
    approved --deny----> denied                        (the person, or policy at its use)
    approved --release-> released
    approved, released --wait again--> open            (decided again, and held again)

Only these moves exist; a hold that ended stays ended. An approval binds to the action's digest.
"""

from __future__ import annotations

from typing import Literal

from vedette.domain.base.errors import BadCommand

HoldState = Literal["open", "approved", "used", "denied", "expired", "released"]

_TRANSITIONS: dict[HoldState, frozenset[HoldState]] = {
    "open": frozenset({"approved", "denied", "expired", "released"}),
    "approved": frozenset({"used", "denied", "expired", "released", "open"}),
    "released": frozenset({"open"}),
    "used": frozenset(),
    "denied": frozenset(),
    "expired": frozenset(),
}

FINAL_STATES: frozenset[HoldState] = frozenset({"used", "denied", "expired"})


def transition(present: HoldState, to: HoldState) -> HoldState:
    """Return `to` if the states of holds let this one go there, else raise BadCommand."""
    if to not in _TRANSITIONS[present]:
        raise BadCommand(f"the hold is {present} and cannot become {to}")
    return to

"""Why a step of a run did not stand, and what is to be done about it."""

from __future__ import annotations

from vedette.domain.base.errors import VedetteError
from vedette.domain.budget import Shortage


class Superseded(VedetteError):
    """Somebody else moved this run on (another lease, a person's answer): look at it afresh.

    `wait_us` is how long that may wait (microseconds), for a run that could not be begun.
    """

    code = "superseded"

    def __init__(self, what: str, *, wait_us: int = 0) -> None:
        super().__init__(what)
        self.wait_us = wait_us


class EarlierEventPending(Superseded):
    """An earlier event of the key waits to be judged: the key is read again, from the oldest."""


class OverBudget(VedetteError):
    """A budget has no room for what the step would spend; `shortage` says which."""

    code = "over-budget"

    def __init__(self, shortage: Shortage) -> None:
        super().__init__(f"no room in {shortage.rule}: {shortage.total} of {shortage.limit} taken")
        self.shortage = shortage


class Fenced(VedetteError):
    """Policy or a stop changed while the step was made, or a budget has room: decide again."""

    code = "fenced"

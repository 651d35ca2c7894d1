"""Holds: what an approval is good for, and when a hold is over."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from vedette.domain.base.errors import BadCommand
from vedette.domain.decision import Decision
from vedette.domain.hold import FINAL_STATES, HoldState, transition
from vedette.domain.run import ActionRow
from vedette.engine.action_holds import (
    DENIAL_WINDOW_US,
    HOLD_EXPIRY_US,
    apply_decision,
    approval_of,
    denial_retry_at,
    is_hold_over,
    wake_us,
)

NOW = 1_780_000_000_000_000


def row(**given: Any) -> ActionRow:
    base: dict[str, Any] = {
        "id": "act_1", "run": "run_1", "turn": 1, "ordinal": 0, "agent": "a", "tool": "t",
        "digest": "d" * 64, "record": b"{}",
    }  # fmt: skip
    return ActionRow(**{**base, **given})


def decision(outcome: Any, **given: Any) -> Decision:
    return Decision(outcome, "rule", ("why",), **given)


def test_a_hold_for_a_person_expires() -> None:
    held = row()
    apply_decision(held, decision("hold", wait="approval"), 3, NOW)
    assert (held.decided, held.hold, held.waits, held.policy_rev) == ("hold", "open", "approval", 3)
    assert held.until_us == NOW + HOLD_EXPIRY_US
    assert (is_hold_over(held, NOW), is_hold_over(held, held.until_us - 1)) == (False, False)
    assert is_hold_over(held, held.until_us)


def test_a_hold_for_time_is_over_by_itself_and_no_denial() -> None:
    held = row()
    apply_decision(held, decision("hold", wait="time", until_us=NOW + 5), 1, NOW)
    assert (held.waits, held.not_before_us, wake_us(held, False)) == ("time", NOW + 5, NOW + 5)
    assert not is_hold_over(held, NOW + 5)
    apply_decision(held, decision("permit"), 1, NOW + 5)
    assert (held.hold, held.effect, held.waits) == ("released", "intended", None)


def test_an_approval_is_found_for_its_action_in_its_time_once() -> None:
    given = row(hold="approved", approver="person:kim", until_us=NOW + 10, waits="approval")
    found = approval_of(given, NOW)
    assert found is not None
    assert (found.action_digest, found.by, found.until_us) == ("d" * 64, "person:kim", NOW + 10)
    assert approval_of(given, NOW + 10) is None
    assert is_hold_over(given, NOW + 10)
    for other in ("open", "denied", "expired", "released", None):
        assert approval_of(row(hold=other, approver="person:kim", until_us=NOW + 10), NOW) is None
    assert approval_of(row(hold="approved", until_us=NOW + 10), NOW) is None
    apply_decision(given, decision("permit"), 1, NOW)
    # For the one effect, as long as that is not over; and in its time.
    assert (given.hold, approval_of(given, NOW)) == ("used", found)
    assert approval_of(given, NOW + 10) is None
    for over in ("done", "failed", "cancelled"):
        assert approval_of(replace(given, effect=over), NOW) is None


def test_an_approval_stays_while_its_action_waits_for_something_else() -> None:
    given = row(hold="approved", approver="person:kim", until_us=NOW + 10, waits="approval")
    apply_decision(given, decision("hold", wait="resume"), 1, NOW)
    assert (given.hold, given.waits, given.until_us) == ("approved", "resume", NOW + 10)
    # Should policy ask again, the old word does not count.
    apply_decision(given, decision("hold", wait="approval"), 1, NOW)
    assert (given.hold, given.approver) == ("open", None)


def test_a_denial_cancels_a_planned_effect_and_ends_the_hold() -> None:
    planned = row(hold="approved", effect="intended", waits=None)
    apply_decision(planned, decision("deny"), 2, NOW)
    assert (planned.decided, planned.hold, planned.effect) == ("deny", "denied", "cancelled")
    assert planned.is_final


def test_a_hold_of_a_planned_effect_takes_the_plan_back() -> None:
    planned = row(effect="intended")
    apply_decision(planned, decision("hold", wait="resume"), 2, NOW)
    assert (planned.effect, planned.waits) == (None, "resume")


@pytest.mark.parametrize("waits", ["approval", "time", "resume"])
def test_a_person_s_no_ends_every_hold(waits: str) -> None:
    assert is_hold_over(row(hold="denied", waits=waits, until_us=NOW + 10), NOW)


def test_a_hold_that_ended_stays_ended() -> None:
    states: list[HoldState] = ["open", "approved", "used", "denied", "expired", "released"]
    for present in FINAL_STATES:
        for to in states:
            with pytest.raises(BadCommand):
                transition(present, to)
    assert transition("open", "approved") == "approved"
    with pytest.raises(BadCommand):
        transition("open", "used")
    with pytest.raises(BadCommand):
        transition("approved", "approved")


def test_what_is_denied_and_may_have_happened_is_given_up_in_time() -> None:
    """The last look comes when that time is over, not up to as long after it."""
    looks, now = list[int](), NOW
    while until := denial_retry_at(NOW, now):
        looks.append(until - NOW)
        now = until
    assert [at // 1_000_000 for at in looks] == [1, 2, 4, 8, 16, 30]
    assert looks[-1] == DENIAL_WINDOW_US
    assert denial_retry_at(NOW, NOW - 5_000_000) == NOW - 4_000_000  # the clock was set back

"""The life of an action: holds and effects, under any order of decisions, answers and outcomes.

The machine does to one action what handle does (decide, perform, settle, end a hold) and what
people do beside it, at any instant and in any order, and checks after every move what must hold.
"""

from __future__ import annotations

from copy import copy
from typing import Any, get_args

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from msgspec.structs import replace

from vedette.domain import effect
from vedette.domain import hold as approval
from vedette.domain.base.errors import BadCommand, Permanent
from vedette.domain.decision import Decision, WaitReason
from vedette.domain.effect import EffectState, Outcome
from vedette.domain.hold import HoldState
from vedette.domain.run import ActionRow, Run
from vedette.domain.tool import SETTLEMENT_MODES, Tool
from vedette.engine import action_holds, tool_calls
from vedette.testing.sample_steps import action

T0 = 1_750_000_000_000_000
HOUR = 3_600_000_000

OUTCOMES = st.sampled_from(
    [Outcome("done"), Outcome("failed"), Outcome("retry"), Outcome("unknown")]
)


def decisions(now_us: int) -> list[Decision]:
    """Return one decision of every kind that policy can give at an instant."""
    waits: list[tuple[WaitReason, int]] = [
        ("approval", 0), ("approval", now_us + HOUR), ("time", now_us + HOUR), ("resume", 0),
    ]  # fmt: skip
    holds = [Decision("hold", "r", ("r",), wait, until) for wait, until in waits]
    return [Decision("permit", "r", ("r",)), Decision("deny", "r", ("r",)), *holds]


class ActionLife(RuleBasedStateMachine):
    """One action from its first decision on."""

    def __init__(self) -> None:
        super().__init__()
        self.now = T0
        self.row = action(Run("run_1", "evt_1", "watcher", "k", 1))
        self.tool = Tool("valve.close", "close", "valve", {}, (), "none", "close")
        self.last: Decision | None = None
        self.approvals_used = 0
        self.approvals_given = 0
        self.calls_done = 0

    @initialize(
        settles=st.sampled_from(SETTLEMENT_MODES[1:]),
        attempts=st.integers(1, 4),
        first=st.integers(0, 8),
    )
    def declared(self, settles: str, attempts: int, first: int) -> None:
        self.tool = Tool(
            "valve.close", "close", "valve", {}, (), settles, "close",  # type: ignore[arg-type]
            attempts=attempts,
        )  # fmt: skip
        possible = decisions(self.now)
        self.decide(possible[first] if first < len(possible) else possible[0])

    # --- time and people --------------------------------------------------------------------

    @rule(by=st.sampled_from([1, HOUR // 2, HOUR, 100 * HOUR]))
    def time_passes(self, by: int) -> None:
        self.now += by

    @precondition(lambda self: self.row.hold is not None)
    @rule(to=st.sampled_from(["approved", "denied"]), late=st.booleans())
    def a_person_answers(self, to: HoldState, late: bool) -> None:
        row = self.row
        assert row.hold is not None
        before = copy(row)
        try:
            row.hold = approval.transition(row.hold, to)
        except BadCommand:
            assert before.hold not in ("open", "approved") or to == before.hold
            return
        assert before.hold in ("open", "approved")
        row.approver = "person:kim"
        row.until_us = self.now + (0 if late else HOUR) if to == "approved" else 0
        self.approvals_given += to == "approved"

    # --- the line ---------------------------------------------------------------------------

    def may_decide(self) -> bool:
        """Say what Case.to_decide says, or that policy moved under a planned effect."""
        row = self.row
        if row.is_final or row.effect == "started":
            return False
        if row.effect == "intended":
            return True
        if row.effect == "unknown" and row.waits != "approval":
            return False  # the target is asked what happened, whatever policy says today
        if row.waits == "approval":
            return row.hold == "approved"
        return not (row.waits == "time" and row.not_before_us > self.now)

    @precondition(may_decide)
    @rule(data=st.data())
    def policy_decides(self, data: st.DataObject) -> None:
        self.decide(data.draw(st.sampled_from(decisions(self.now))))

    def decide(self, decision: Decision) -> None:
        row, before = self.row, copy(self.row)
        given = action_holds.approval_of(row, self.now)
        action_holds.apply_decision(row, decision, row.policy_rev + 1, self.now)
        self.last = decision
        assert row.decisions == before.decisions + 1
        if before.hold == "approved" and row.hold == "used":
            self.approvals_used += 1
        if decision.outcome == "permit":
            used = before.hold in ("approved", "used")
            assert row.hold in (None, "used" if used else "released")
            # Never given, or good for this one effect until that is over.
            assert action_holds.approval_of(row, self.now) == given
            assert action_holds.approval_of(replace(row, effect="done"), self.now) is None
        if row.hold == "open":
            assert row.approver is None
        if given is not None:
            # Nothing but the exact action, in time, from a person.
            assert given.action_digest == row.digest
            assert before.hold in ("approved", "used")
            assert given.until_us > self.now

    @precondition(lambda self: self.row.waits == "approval" and not self.row.is_final)
    @rule()
    def nobody_answered_or_somebody_said_no(self) -> None:
        """See handle.end_hold."""
        row = self.row
        if row.hold != "denied":
            if row.until_us > self.now:
                return
            assert row.hold is not None
            row.hold = approval.transition(row.hold, "expired")
        row.decided, row.waits = "deny", None
        self.last = Decision("deny", f"hold.{row.hold}", ())
        if row.effect is not None:
            row.effect = effect.transition(row.effect, "failed")

    @precondition(
        lambda self: (
            self.row.effect in ("intended", "started", "unknown")
            and self.row.waits != "approval"
            and self.row.not_before_us <= self.now
        )
    )
    @rule(mine=st.booleans(), outcome=OUTCOMES, answered=st.booleans())
    def the_effect_is_tried(self, mine: bool, outcome: Outcome, answered: bool) -> None:
        row = self.row
        assert row.effect is not None
        before = tool_calls.find_precondition(self.tool, row.effect, own_start=mine)
        if before == "start":
            row.effect = effect.transition(row.effect, "started")
            return
        if before == "person":
            row.effect = effect.transition(row.effect, "unknown")
            row.hold, row.waits, row.approver = "open", "approval", None
            row.until_us = self.now + action_holds.HOLD_EXPIRY_US
            return
        if before == "query" and not answered:
            row.effect = effect.transition(row.effect, "intended")
            return
        tries = row.tries
        state = tool_calls.apply_outcome(row, self.tool, outcome, self.now)
        self.calls_done += state == "done"
        assert row.tries == tries + 1
        assert state == row.effect
        if outcome.state == "retry" and not row.is_final:
            assert row.not_before_us > self.now
        if row.is_final:
            assert row.answer is not None

    # --- what holds after every move --------------------------------------------------------

    @invariant()
    def only_a_permit_plans_an_effect(self) -> None:
        if self.row.effect in ("intended", "started", "done"):
            assert self.last is not None
            assert self.row.decided == self.last.outcome == "permit"

    @invariant()
    def an_approval_is_used_at_most_once(self) -> None:
        assert self.approvals_used <= self.approvals_given
        if self.row.hold == "used":
            assert self.approvals_used >= 1

    @invariant()
    def a_denied_action_has_no_living_effect(self) -> None:
        if self.row.decided == "deny":
            assert self.row.effect in (None, "cancelled", "failed")
            assert self.row.is_final

    @invariant()
    def a_settled_action_waits_for_nothing(self) -> None:
        if self.row.is_final:
            assert self.row.waits is None
        assert self.calls_done <= 1

    @invariant()
    def an_ended_hold_does_not_stand_in_for_an_answer(self) -> None:
        if self.row.hold in approval.FINAL_STATES and (
            self.row.hold != "used" or self.row.is_final
        ):
            assert action_holds.approval_of(self.row, self.now) is None


ActionLife.TestCase.settings = settings(
    max_examples=200, stateful_step_count=30, deadline=None, derandomize=True
)
TestActionLife = ActionLife.TestCase


# --- the two state machines by themselves ---------------------------------------------------


def closure(starts: set[str], moves: dict[str, set[str]]) -> set[str]:
    seen: set[str] = set()
    left = set(starts)
    while left:
        at = left.pop()
        seen.add(at)
        left |= moves[at] - seen
    return seen


def hold_moves() -> dict[str, set[str]]:
    states = get_args(HoldState)
    found: dict[str, set[str]] = {state: set() for state in states}
    for present in states:
        for to in states:
            try:
                assert approval.transition(present, to) == to
            except BadCommand:
                continue
            found[present].add(to)
    return found


def effect_moves() -> dict[str, set[str]]:
    states = get_args(EffectState)
    found: dict[str, set[str]] = {state: set() for state in states}
    for present in states:
        for to in states:
            try:
                assert effect.transition(present, to) == to
            except Permanent:
                continue
            found[present].add(to)
    return found


def test_nothing_leads_out_of_an_ended_hold() -> None:
    moves = hold_moves()
    for state in approval.FINAL_STATES:
        assert moves[state] == set()
    assert closure({"open"}, moves) == set(get_args(HoldState))
    # The control: the others do lead somewhere, and none but an approved one is ever used.
    assert all(moves[state] for state in set(moves) - approval.FINAL_STATES)
    assert [state for state, to in moves.items() if "used" in to] == ["approved"]


def test_nothing_leads_out_of_a_settled_effect() -> None:
    moves = effect_moves()
    for state in effect.FINAL_STATES:
        assert moves[state] == set()
    assert closure({"intended"}, moves) == set(get_args(EffectState))
    assert all(moves[state] for state in set(moves) - effect.FINAL_STATES)
    # What never started is known; only a restore, not an answer, can make it unknown.
    assert "unknown" in moves["intended"]
    tool = Tool("t", "do", "thing", {}, (), "queryable", "f", query="q")
    with pytest.raises(Permanent, match="never started"):
        tool_calls.apply_outcome(row_of(effect="intended"), tool, Outcome("unknown"), 0)


def row_of(**fields: Any) -> ActionRow:
    return action(Run("run_1", "evt_1", "watcher", "k", 1), **fields)


@settings(deadline=None)
@given(
    until=st.integers(T0 - HOUR, T0 + HOUR),
    state=st.sampled_from([None, *get_args(HoldState)]),
    approver=st.sampled_from([None, "person:kim"]),
)
def test_an_approval_is_found_only_in_time_and_only_on_an_approved_hold(
    until: int, state: HoldState | None, approver: str | None
) -> None:
    found = action_holds.approval_of(row_of(hold=state, approver=approver, until_us=until), T0)
    stands = state in ("approved", "used") and approver is not None and until > T0
    assert (found is not None) is stands


@pytest.mark.parametrize("decision", decisions(T0), ids=lambda d: f"{d.outcome}-{d.wait}")
def test_an_effect_is_planned_by_a_permit_and_by_nothing_else(decision: Decision) -> None:
    row = row_of()
    action_holds.apply_decision(row, decision, 3, T0)
    assert (row.effect == "intended") is (decision.outcome == "permit")
    assert (row.decided, row.policy_rev, row.decisions) == (decision.outcome, 3, 1)


@pytest.mark.parametrize("decision", decisions(T0), ids=lambda d: f"{d.outcome}-{d.wait}")
def test_a_planned_effect_that_is_no_longer_permitted_is_taken_back(decision: Decision) -> None:
    row = row_of(decided="permit", effect="intended")
    action_holds.apply_decision(row, decision, 4, T0)
    expected = {"permit": "intended", "deny": "cancelled", "hold": None}[decision.outcome]
    assert row.effect == expected

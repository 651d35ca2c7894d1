"""Running totals: windows, limits, raises, what is given back, and the alert."""

from __future__ import annotations

import random

import pytest
from msgspec.structs import replace

from vedette.domain.budget import (
    ACTIONS,
    DAY_US,
    FLEET,
    HOUR_US,
    MODEL_CALLS,
    MONEY,
    TOKENS,
    Budget,
    BudgetCap,
    BudgetPolicy,
    BudgetRaise,
    Price,
    actual_use,
    worst_case,
)
from vedette.domain.spend import SpendCache, SpendTotal
from vedette.policy.budget_data import parse_budgets

NOON = 20_000 * DAY_US + 12 * HOUR_US
HOUR = BudgetCap("agent", ACTIONS, "hour", 3)
DAY = BudgetCap("agent", ACTIONS, "day", 5)
ALL = BudgetCap("fleet", ACTIONS, "day", 4)


class Kept:
    """Totals over a dictionary in the place of a store."""

    def __init__(self) -> None:
        self.rows: dict[tuple[str, str], SpendTotal] = {}
        self.raises: list[BudgetRaise] = []
        self.reads = 0
        self.totals = SpendCache(
            self.read, lambda now: [more for more in self.raises if more.until_us > now]
        )

    def read(self, name: str, unit: str) -> SpendTotal | None:
        self.reads += 1
        return self.rows.get((name, unit))

    def spend(
        self, amount: int, at_us: int = NOON, *, caps: tuple[BudgetCap, ...], agent: str = "a",
        returns: tuple[tuple[str, int, int], ...] = (),
    ) -> bool:  # fmt: skip
        spend = {ACTIONS: amount}
        if self.totals.find_shortage(agent, caps, spend, returns, at_us) is not None:
            return False
        self.totals.book(agent, spend, returns, at_us)
        return True


def test_a_limit_is_reached_and_never_passed() -> None:
    kept = Kept()
    assert [kept.spend(1, caps=(HOUR, DAY)) for _ in range(5)] == [True, True, True, False, False]
    short = kept.totals.find_shortage("a", (HOUR, DAY), {ACTIONS: 1}, (), NOON)
    assert short is not None
    assert (short.rule, short.total, short.headroom) == ("budget.agent.actions.hour", 3, 0)
    assert short.until_us == NOON + HOUR_US
    assert not kept.spend(3, NOON + HOUR_US, caps=(HOUR, DAY)), "the day has room for two"
    assert kept.spend(2, NOON + HOUR_US, caps=(HOUR, DAY))
    assert kept.spend(1, NOON + DAY_US, caps=(HOUR, DAY))
    assert kept.reads == 2, "one row of the agent, one of the fleet, each read once"


def test_agents_share_the_fleets_limit_and_nothing_else() -> None:
    kept = Kept()
    caps = (HOUR, ALL)
    assert [kept.spend(2, caps=caps, agent=name) for name in "abc"] == [True, True, False]
    assert kept.totals.total(FLEET, ACTIONS).day.total == 4
    assert kept.totals.total("c", ACTIONS).day.total == 0


def test_what_is_given_back_leaves_the_windows_it_was_taken_from() -> None:
    total = SpendTotal()
    total.add(NOON, 5)
    total.add(NOON + HOUR_US, 1)
    total.refund(NOON, 2)
    assert (total.hour.total, total.day.total) == (1, 4), "the hour it was taken from is over"
    total.add(NOON + DAY_US, 1)
    total.refund(NOON, 3)
    assert (total.hour.total, total.day.total) == (1, 1)


def test_what_a_step_gives_back_makes_room_for_what_it_spends() -> None:
    kept = Kept()
    assert kept.spend(3, caps=(HOUR,))
    assert not kept.spend(1, caps=(HOUR,))
    assert kept.spend(1, caps=(HOUR,), returns=((ACTIONS, NOON, 1),))
    refunds = ((ACTIONS, NOON - HOUR_US, 1),)
    assert not kept.spend(1, caps=(HOUR,), returns=refunds), "of another hour"


def test_a_clock_that_steps_back_opens_no_window_again() -> None:
    kept = Kept()
    assert kept.spend(3, NOON, caps=(HOUR,))
    assert not kept.spend(1, NOON - HOUR_US, caps=(HOUR,))


def test_a_raise_makes_room_until_it_ends() -> None:
    kept = Kept()
    assert kept.spend(3, caps=(HOUR,))
    kept.raises = [BudgetRaise("a", ACTIONS, "hour", 2, NOON + 60)]
    assert kept.spend(2, NOON + 59, caps=(HOUR,))
    assert not kept.spend(1, NOON + 59, caps=(HOUR,))
    kept.raises.append(BudgetRaise("b", ACTIONS, "hour", 9, NOON + DAY_US))
    kept.raises.append(BudgetRaise("a", ACTIONS, "day", 9, NOON + DAY_US))
    assert not kept.spend(1, NOON + 59, caps=(HOUR,)), "neither is for this limit"
    kept.totals.total("a", ACTIONS).hour.total = 3
    assert not kept.spend(1, NOON + 60, caps=(HOUR,))


def test_a_runs_own_limit_counts_what_the_run_has_used() -> None:
    kept = Kept()
    short = kept.totals.find_shortage(
        "a", (BudgetCap("run", MODEL_CALLS, "run", 8, 7),), {MODEL_CALLS: 2}, (), NOON
    )
    assert short is not None
    assert (short.until_us, short.headroom) == (0, 1), "no window turns for it"
    fits = (BudgetCap("run", MODEL_CALLS, "run", 8, 6),)
    assert kept.totals.find_shortage("a", fits, {MODEL_CALLS: 2}, (), NOON) is None


def test_the_alert_comes_once_in_a_window() -> None:
    kept = Kept()
    caps = (BudgetCap("agent", ACTIONS, "hour", 10),)

    def alerts(amount: int, at_us: int = NOON) -> list[tuple[str, str, int]]:
        assert kept.spend(amount, at_us, caps=caps)
        found = kept.totals.record_alerts("a", caps, {ACTIONS: amount}, at_us)
        return [(alert.name, alert.span, alert.total) for alert in found]

    assert alerts(7) == []
    assert alerts(1) == [("a", "hour", 8)]
    assert alerts(1) == []
    assert alerts(8, NOON + HOUR_US) == [("a", "hour", 8)]
    kept.raises = [BudgetRaise("a", ACTIONS, "hour", 90, NOON + DAY_US)]
    assert alerts(9, NOON + 2 * HOUR_US) == [], "9 of 100 are not most of it"


def test_limits_hold_whatever_is_spent_and_given_back() -> None:
    """Against a plain sum over everything, by chance."""
    dice = random.Random(7)
    kept = Kept()
    caps = (HOUR, DAY, ALL)
    spent: list[tuple[str, int]] = []
    now = NOON
    refused = 0
    for _ in range(3000):
        now += dice.randrange(HOUR_US // 4)
        agent = dice.choice("ab")
        if spent and dice.random() < 0.3:
            of, at_us = spent.pop(dice.randrange(len(spent)))
            kept.totals.book(of, {}, [(ACTIONS, at_us, 1)], now)
        fits = True
        for cap, whose in ((HOUR, agent), (DAY, agent), (ALL, None)):
            length = HOUR_US if cap.span == "hour" else DAY_US
            start = now - now % length
            count = sum(1 for of, at_us in spent if at_us >= start and whose in (None, of))
            fits = fits and count < cap.limit
        assert kept.spend(1, now, caps=caps, agent=agent) is fits
        refused += not fits
        if fits:
            spent.append((agent, now))
    assert refused > 500


# --- what is declared ---------------------------------------------------------------------------


def test_policy_may_lower_a_limit_and_not_widen_it() -> None:
    budgets = parse_budgets(
        {
            "fleet": {"tokens": {"day": 1000}},
            "agents": {"a": {"actions": {"day": 5, "hour": 2}}, "b": {"actions": {"day": 99}}},
            "prices": {},
            "complete": True,
        }
    )
    own = Budget(actions_per_day=10)
    assert budgets.caps("a", own, (ACTIONS,)) == (
        BudgetCap("agent", ACTIONS, "hour", 2), BudgetCap("agent", ACTIONS, "day", 5),
    )  # fmt: skip
    assert budgets.caps("b", own, (ACTIONS,)) == (BudgetCap("agent", ACTIONS, "day", 10),)
    assert budgets.caps("c", Budget(), (TOKENS,)) == (BudgetCap("fleet", TOKENS, "day", 1000),)


@pytest.mark.parametrize(
    ("raw", "said"),
    [
        ({"flet": {}}, "budgets has no 'flet'"),
        ({"fleet": {"action": {"day": 1}}}, "fleet has no 'action'"),
        ({"fleet": {"actions": {"week": 1}}}, "fleet.actions has no 'week'"),
        ({"fleet": {"actions": {"day": -1}}}, "fleet.actions.day is no whole number"),
        ({"fleet": {"actions": {"day": True}}}, "fleet.actions.day is no whole number"),
        ({"agents": {"a": {"actions": 3}}}, "agents.a.actions is no mapping"),
        ({"prices": {"m": {"input": 1}}}, "prices.m.output is no whole number"),
        ([], "budgets is no mapping"),
    ],
)
def test_what_is_wrong_with_budgets_is_said(raw: object, said: str) -> None:
    with pytest.raises(ValueError, match=said.replace(".", r"\.")):
        parse_budgets(raw)


def test_the_worst_case_of_a_turn() -> None:
    budget = Budget(
        model_calls_per_turn=2, input_tokens_per_call=1000, output_tokens_per_call=100, price="m"
    )
    price = Price(input=300_000, output=2_500_000)
    assert worst_case(budget, None) == {MODEL_CALLS: 2, TOKENS: 2200}
    assert worst_case(budget, price) == {MODEL_CALLS: 2, TOKENS: 2200, MONEY: 1100}
    assert worst_case(Budget(), price) == {MODEL_CALLS: 1}
    fields = {"input_tokens": 10, "output_tokens": 1}
    assert actual_use(budget, price, 1, fields) == {MODEL_CALLS: 1, TOKENS: 11, MONEY: 6}
    assert actual_use(budget, price, 1, {}) == {MODEL_CALLS: 1, TOKENS: 1100, MONEY: 550}
    assert actual_use(Budget(), None, 1, {}) == {MODEL_CALLS: 1}
    assert actual_use(Budget(), None, 1, fields) == {MODEL_CALLS: 1, TOKENS: 11}


def test_a_limit_on_what_has_no_worst_case_is_no_limit() -> None:
    bounded = Budget(input_tokens_per_call=10, output_tokens_per_call=1)
    none, tokens = BudgetPolicy(), BudgetPolicy(fleet={(TOKENS, "day"): 5})
    money = BudgetPolicy(fleet={(MONEY, "day"): 5}, prices={"m": Price(1, 1)})
    assert none.find_gap("a", Budget()) is None
    assert "input_tokens_per_call" in (tokens.find_gap("a", Budget()) or "")
    assert tokens.find_gap("a", bounded) is None
    assert "names no price" in (money.find_gap("a", bounded) or "")
    assert "not in the price list" in (money.find_gap("a", replace(bounded, price="x")) or "")
    assert money.find_gap("a", replace(bounded, price="m")) is None

"""Budgets: what agents and the fleet may spend by hour and day, and what a turn spends at worst.

Four units (actions, model calls, tokens, money in micro units of the fleet's currency) are counted
for each agent and for the fleet, by calendar hour and day in UTC. What a turn may spend at worst is
booked before it begins; what it did not use is given back to the windows it was taken from. What
was spent is counted in `vedette.domain.spend`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from msgspec import Struct, field

MINUTE_US = 60_000_000
HOUR_US = 60 * MINUTE_US
DAY_US = 24 * HOUR_US

ACTIONS, MODEL_CALLS, TOKENS, MONEY = "actions", "model_calls", "tokens", "money_micros"
UNITS = (ACTIONS, MODEL_CALLS, TOKENS, MONEY)
# What a model's turn spends, and how a reasoner tells of a call's tokens.
MODEL_UNITS = (MODEL_CALLS, TOKENS, MONEY)
INPUT_TOKENS, OUTPUT_TOKENS = "input_tokens", "output_tokens"

Span = Literal["run", "hour", "day"]
SPANS: tuple[Span, ...] = ("run", "hour", "day")
LENGTHS: Mapping[str, int] = {"hour": HOUR_US, "day": DAY_US}
# The fleet's own totals stand under the name that no agent can have.
FLEET = ""
ALERT_PERCENT = 80
_MILLION = 1_000_000


# --- what is declared ------------------------------------------------------------------------


class Budget(Struct, frozen=True):
    """A budget's limits as an agent requests them; policy may set lower ones. None: not requested.

    A model's turn makes at most `model_calls_per_turn` calls; a call reads and writes at most
    `input_tokens_per_call` and `output_tokens_per_call`: that is its worst case. `price` names an
    entry of the fleet's price list; without one a turn costs no money that is known.
    """

    actions_per_hour: int | None = None
    actions_per_day: int | None = None
    actions_per_run: int = 16
    model_calls_per_day: int = 0
    model_calls_per_run: int = 8
    model_calls_per_turn: int = 1
    model_calls_per_hour: int | None = None
    tokens_per_hour: int | None = None
    tokens_per_day: int | None = None
    tokens_per_run: int | None = None
    money_micros_per_hour: int | None = None
    money_micros_per_day: int | None = None
    money_micros_per_run: int | None = None
    input_tokens_per_call: int | None = None
    output_tokens_per_call: int | None = None
    price: str | None = None

    def limit(self, unit: str, span: Span) -> int | None:
        """Return the limit of a unit in a window; None if the agent asks for none."""
        found: int | None = getattr(self, f"{unit}_per_{span}", None)
        return found

    @property
    def has_token_bounds(self) -> bool:
        """Say whether the tokens of a call have a worst case."""
        return self.input_tokens_per_call is not None and self.output_tokens_per_call is not None


class Price(Struct, frozen=True):
    """What a million tokens cost, in micro units of the fleet's currency."""

    input: int
    output: int

    def cost(self, input_tokens: int, output_tokens: int) -> int:
        """Return what tokens cost, rounded up to the micro unit."""
        cost = input_tokens * self.input + output_tokens * self.output
        return -(-cost // _MILLION)


class BudgetCap(Struct, frozen=True):
    """A budget's limit that a step may not pass. `used` counts beside the store's own total."""

    scope: Literal["run", "agent", "fleet"]
    unit: str
    span: Span
    limit: int
    used: int = 0


class BudgetRaise(Struct, frozen=True):
    """A raise of a budget by a person until an instant; `name` is the agent's, or FLEET."""

    name: str
    unit: str
    span: Span
    amount: int
    until_us: int


class Shortage(Struct, frozen=True):
    """Why a budget has no room: which limit, how much of it is taken, what was asked.

    `until_us` is when the window turns; 0 if only a person can make room (a run's own limit).
    """

    scope: str
    unit: str
    span: Span
    limit: int
    total: int
    amount: int
    until_us: int

    @property
    def rule(self) -> str:
        """Return the name that entries and actions give the refusal."""
        return f"budget.{self.scope}.{self.unit}.{self.span}"

    def entry_fields(self) -> dict[str, Any]:
        """Return what an entry says of it."""
        return {
            "rule": self.rule, "wait": "budget", "scope": self.scope, "unit": self.unit,
            "window": self.span, "limit": self.limit, "amount": self.amount,
            "until": self.until_us or None,
        }  # fmt: skip

    @property
    def headroom(self) -> int:
        """Return how much may still be spent."""
        return max(0, self.limit - self.total)


class Reservation(Struct, frozen=True):
    """The booking of a turn's worst case in the budgets: how much, when, and in which entry."""

    spend: Mapping[str, int]
    at_us: int
    seq: int


class Alert(Struct, frozen=True):
    """A budget's limit of which ALERT_PERCENT are taken; told once in a window."""

    name: str
    unit: str
    span: Span
    limit: int
    total: int


# --- what the fleet's policy sets ------------------------------------------------------------


class BudgetPolicy(Struct, frozen=True):
    """The budgets in force: the fleet's limits, and what policy grants an agent of its own.

    `fleet` and each of `agents` map (unit, "hour" or "day") to a limit.
    """

    fleet: Mapping[tuple[str, str], int] = field(default_factory=dict)
    agents: Mapping[str, Mapping[tuple[str, str], int]] = field(default_factory=dict)
    prices: Mapping[str, Price] = field(default_factory=dict)
    # With the budget that they were made of: another release may ask for another one.
    _cap_cache: dict[tuple[str, tuple[str, ...]], tuple[Budget, tuple[BudgetCap, ...]]] = field(
        default_factory=dict
    )

    def caps(self, agent: str, budget: Budget, units: tuple[str, ...]) -> tuple[BudgetCap, ...]:
        """Return the limits by hour and day that spending these units has to keep."""
        known = self._cap_cache.get((agent, units))
        if known is None or known[0] is not budget:
            granted = self.agents.get(agent, {})
            caps = []
            for unit in units:
                for span in SPANS[1:]:
                    limits = [budget.limit(unit, span), granted.get((unit, span))]
                    own = [limit for limit in limits if limit is not None]
                    if own:
                        caps.append(BudgetCap("agent", unit, span, min(own)))
                    if (unit, span) in self.fleet:
                        caps.append(BudgetCap("fleet", unit, span, self.fleet[unit, span]))
            known = self._cap_cache[agent, units] = budget, tuple(caps)
        return known[1]

    def price_of(self, budget: Budget) -> Price | None:
        """Return what the agent's model costs, if its price is declared."""
        return None if budget.price is None else self.prices.get(budget.price)

    def find_gap(self, agent: str, budget: Budget) -> str | None:
        """Say what is missing for an agent's model turns to have a worst case in what is limited.

        None if nothing is: a limit on what nobody can foresee would be no limit.
        """
        limited = {cap.unit for cap in self.caps(agent, budget, MODEL_UNITS)}
        limited |= {unit for unit in MODEL_UNITS if budget.limit(unit, "run") is not None}
        if limited & {TOKENS, MONEY} and not budget.has_token_bounds:
            return "tokens or money are limited, and the agent does not say how many tokens a " \
                "call has at most (input_tokens_per_call, output_tokens_per_call)"  # fmt: skip
        if budget.price is not None and budget.price not in self.prices:
            return f"its price {budget.price!r} is not in the price list"
        if MONEY in limited and budget.price is None:
            return "money is limited, and the agent names no price"
        return None


# --- worst case and use ----------------------------------------------------------------------


def worst_case(budget: Budget, price: Price | None) -> dict[str, int]:
    """Return a budget's worst case: what one turn of a model spends, in the units that have one."""
    calls = budget.model_calls_per_turn
    return {MODEL_CALLS: calls, **_token_use(budget, price, calls, None)}


def actual_use(
    budget: Budget, price: Price | None, model_calls: int, spent: Mapping[str, int]
) -> dict[str, int]:
    """Return a turn's use of its budget; calls whose tokens nobody counted cost the worst case."""
    return {MODEL_CALLS: model_calls, **_token_use(budget, price, model_calls, spent)}


def _token_use(
    budget: Budget, price: Price | None, calls: int, spent: Mapping[str, int] | None
) -> dict[str, int]:
    token_counts = spent or {}
    most = (budget.input_tokens_per_call, budget.output_tokens_per_call)
    tokens = [
        token_counts[name] if name in token_counts else None if each is None else calls * each
        for name, each in zip((INPUT_TOKENS, OUTPUT_TOKENS), most, strict=True)
    ]
    read, written = tokens
    if read is None or written is None:
        return {}
    cost = {TOKENS: read + written}
    if price is not None:
        cost[MONEY] = price.cost(read, written)
    return cost

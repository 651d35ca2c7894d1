"""Budget data: the limits and prices in a bundle's policies/budgets/data.yaml, read strictly."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from vedette.domain.budget import LENGTHS, UNITS, BudgetPolicy, Price


def parse_budgets(raw: Any) -> BudgetPolicy:
    """Read the policy data `budgets`. Raises ValueError that says where it is wrong.

    Without any there are no limits but those that agents request.
    """
    if raw is None:
        return BudgetPolicy()
    given = _parse_mapping(raw, "budgets")
    _check_keys(given, ("fleet", "agents", "prices", "complete"), "budgets")
    agents = _parse_mapping(given.get("agents", {}), "agents")
    prices = _parse_mapping(given.get("prices", {}), "prices")
    return BudgetPolicy(
        _parse_limits(given.get("fleet", {}), "fleet"),
        {name: _parse_limits(value, f"agents.{name}") for name, value in agents.items()},
        {name: _parse_price(value, f"prices.{name}") for name, value in prices.items()},
    )


def _parse_limits(raw: Any, at: str) -> dict[tuple[str, str], int]:
    found = {}
    units = _parse_mapping(raw, at)
    _check_keys(units, UNITS, at)
    for unit, spans in units.items():
        _check_keys(_parse_mapping(spans, f"{at}.{unit}"), tuple(LENGTHS), f"{at}.{unit}")
        for span, limit in spans.items():
            found[unit, span] = _parse_number(limit, f"{at}.{unit}.{span}")
    return found


def _parse_price(raw: Any, at: str) -> Price:
    given = _parse_mapping(raw, at)
    _check_keys(given, ("input", "output"), at)
    return Price(
        _parse_number(given.get("input"), f"{at}.input"),
        _parse_number(given.get("output"), f"{at}.output"),
    )


def _parse_mapping(raw: Any, at: str) -> Mapping[str, Any]:
    if not isinstance(raw, dict):
        raise ValueError(f"{at} is no mapping")
    return raw


def _check_keys(given: Mapping[str, Any], known: tuple[str, ...], at: str) -> None:
    for name in given:
        if name not in known:
            raise ValueError(f"{at} has no {name!r}; it may have {', '.join(known)}")


def _parse_number(raw: Any, at: str) -> int:
    if isinstance(raw, bool) or not isinstance(raw, int) or raw < 0:
        raise ValueError(f"{at} is no whole number of at least 0")
    return raw

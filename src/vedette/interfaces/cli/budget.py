"""`vedette budget`: what is spent of the limits, and more room for a while."""

from __future__ import annotations

from typing import Any

import click

from vedette.app.stores import store_reader
from vedette.domain.base.errors import BadCommand
from vedette.interfaces.cli.fleet import (
    current_settings,
    find_agent,
    load_agents,
    parse_length,
    refuse_options,
)
from vedette.interfaces.cli.orders import (
    OrderCommand,
    OrderOptions,
    deferred_note,
    submit_command,
)
from vedette.interfaces.cli.output import format_table, format_time, print_result

_UNITS = ("actions", "model_calls", "tokens", "money_micros")
_WINDOWS = ("run", "hour", "day")


@click.command(cls=OrderCommand, needs_reason=False)
@click.argument("agent", required=False)
@click.option("--raise", "length", metavar="TIME", help="Give more room for so long: 30m, 2h, 1d.")
@click.option("--fleet", is_flag=True, help="Raise the fleet's own limits, not an agent's.")
@click.option("--unit", type=click.Choice(_UNITS), help="Raise only this unit.")
@click.option("--window", type=click.Choice(_WINDOWS), help="Raise only this window.")
@click.option("--by", type=int, metavar="N", help="By how much; without it limits are doubled.")
def budget(
    agent: str | None, length: str | None, fleet: bool, unit: str | None, window: str | None,
    by: int | None, order: OrderOptions,
) -> None:  # fmt: skip
    """Show every limit of the fleet and of AGENT (default: of all), and what is taken of it.

    What is booked for turns under way counts as taken. With --raise what waits goes on at once; the
    raise is recorded with your name and reason, outlasts restarts, and ends by itself.
    """
    if length is None:
        orders = ("fleet", "unit", "window", "by", "reason", "command_id")
        refuse_options(orders, "raises nothing by itself: say for how long, --raise TIME")
        found = _read_limits(agent)
        print_result(found, _text(found))
        return
    order.require_reason()
    if (agent is None) != fleet:
        raise BadCommand("say whose budget", mend="give an agent, or --fleet")
    args = {"for_us": parse_length(length, "--raise 2h"), "agent": agent, "unit": unit,
            "window": window, "by": by}  # fmt: skip
    done = submit_command(current_settings(), "budget_raise", args, order)
    more = ", ".join(f"{name} by {amount:,}" for name, amount in done["raised"].items())
    lines = [f"raised until {format_time(done['until'])}: {more}"]
    lines += deferred_note(done, "what waits goes on")
    print_result(done, "\n".join(lines))


def _read_limits(agent_name: str | None) -> dict[str, Any]:
    from vedette.app.policy_rollout import read_bundle_budgets
    from vedette.domain.base.clock import SystemClock
    from vedette.domain.budget import ACTIONS, FLEET, LENGTHS, UNITS
    from vedette.domain.spend import SpendTotal, window_end

    settings, now = current_settings(), SystemClock().now_us()
    agents = load_agents(settings).fleet.agents
    wanted = agents.values() if agent_name is None else [find_agent(agents, agent_name)]
    with store_reader(settings) as store:
        limits, _ = read_bundle_budgets(
            store.policy.bundle_files(store.policy.live_revision()[1]) or {}, agents
        )
        totals = {(name, unit): total for name, unit, total in store.spend.totals()}
        raises = store.spend.raises(now)
        waiting = store.tables.wait_counts().get("budget", 0)
    rows: dict[tuple[str, str, str], dict[str, Any]] = {}
    for agent in wanted:
        units = UNITS if agent.asks_model else (ACTIONS,)
        for cap in limits.caps(agent.name, agent.budget, units):
            name = FLEET if cap.scope == "fleet" else agent.name
            more = [r for r in raises if (r.name, r.unit, r.span) == (name, cap.unit, cap.span)]
            limit = cap.limit + sum(one.amount for one in more)
            spent = totals.get((name, cap.unit), SpendTotal()).amount_at(cap.span, now)
            rows[name, cap.unit, cap.span] = {
                "scope": cap.scope,
                "agent": name or None,
                "unit": cap.unit,
                "window": cap.span,
                "taken": spent,
                "limit": limit,
                "raised": limit - cap.limit,
                "raised_until": min((one.until_us for one in more), default=None),
                "percent": round(100 * spent / limit, 1) if limit else 100.0,
                "turns": window_end(now, LENGTHS[cap.span]),
            }
    order = sorted(
        rows.values(), key=lambda row: (row["agent"] or "", row["unit"], row["window"] == "day")
    )
    return {"waiting": waiting, "limits": order}


def _text(report: dict[str, Any]) -> str:
    heads = ["who", "unit", "window", "taken", "limit", "%", "raised"]
    rows = [
        [
            row["agent"] or "(fleet)", row["unit"], row["window"], f"{row['taken']:,}",
            f"{row['limit']:,}", f"{row['percent']}",
            f"{row['raised']:,} until {format_time(row['raised_until'])}" if row["raised"] else "-",
        ]
        for row in report["limits"]
    ]  # fmt: skip
    turns = {row["window"]: row["turns"] for row in report["limits"]}
    ends = [f"the {window} ends {format_time(at)}" for window, at in turns.items()]
    waiting = f"runs that wait for a budget: {report['waiting']:,}"
    return "\n".join([format_table(heads, rows), "", *ends, waiting])

"""`vedette budget show` and `vedette budget raise`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from vedette.interfaces.cli.common import (
    as_json_option,
    format_table,
    format_time,
    order_options,
    print_result,
    settings_of,
    store_reader,
    submit_command,
)

if TYPE_CHECKING:
    from vedette.config.settings import Settings

_UNITS = ("actions", "model_calls", "tokens", "money_micros")
_WINDOWS = ("run", "hour", "day")


@click.group()
def budget() -> None:
    """See what is spent of the budgets, and give more room for a while."""


@budget.command()
@click.argument("agent", required=False)
@as_json_option
@click.pass_context
def show(ctx: click.Context, agent: str | None, as_json: bool) -> None:
    """Show every limit of the fleet and of AGENT (default: of all), and what is taken of it.

    What is booked for turns under way counts as taken. Works with and without a running fleet.
    """
    found = _read_limits(settings_of(ctx), agent)
    print_result(as_json, found, _text(found))


@budget.command(name="raise")
@click.argument("agent", required=False)
@click.option("--fleet", is_flag=True, help="The fleet's own limits instead of an agent's.")
@click.option("--for", "length", required=True, metavar="TIME", help="For how long: 30m, 2h, 1d.")
@click.option("--unit", type=click.Choice(_UNITS), help="Only this unit.")
@click.option("--window", type=click.Choice(_WINDOWS), help="Only this window.")
@click.option("--by", type=int, metavar="N", help="By how much; without it limits are doubled.")
@order_options
@click.pass_context
def raise_(ctx: click.Context, /, **options: Any) -> None:
    """Give the limits of AGENT, or of the fleet, more room; what waits for it goes on at once.

    The raise is recorded with your name and reason, outlasts restarts, and ends by itself.
    """
    from vedette.domain.base.clock import duration_us
    from vedette.domain.base.errors import BadCommand

    if (options["agent"] is None) != options["fleet"]:
        raise BadCommand("say whose budget", mend="give an agent, or --fleet")
    try:
        for_us = duration_us(options["length"])
    except ValueError as error:
        raise BadCommand(f"{options['length']!r} is no length of time", mend="--for 2h") from error
    args = {name: options[name] for name in ("agent", "unit", "window", "by")}
    done = submit_command(
        settings_of(ctx), "budget_raise", options["reason"], {"for_us": for_us, **args},
        options["command_id"],
    )  # fmt: skip
    more = ", ".join(f"{name} by {amount:,}" for name, amount in done["raised"].items())
    text = f"raised until {format_time(done['until'])}: {more}"
    if done["by"] == "here":
        text += "\nno fleet runs here; what waits goes on at the next `vedette run`"
    print_result(options["as_json"], done, text)


def _read_limits(settings: Settings, agent_name: str | None) -> dict[str, Any]:
    from vedette.app.composition_root import read_bundle_budgets
    from vedette.config.fleet import load_fleet
    from vedette.domain.base.clock import SystemClock
    from vedette.domain.base.errors import BadCommand
    from vedette.domain.budget import ACTIONS, FLEET, LENGTHS, UNITS, window_end
    from vedette.domain.spend import SpendTotal

    now = SystemClock().now_us()
    fleet = load_fleet(settings.root, settings, now_us=now).fleet
    if agent_name is not None and agent_name not in fleet.agents:
        raise BadCommand(
            f"there is no agent {agent_name!r}", mend=f"one of: {', '.join(fleet.agents)}"
        )
    with store_reader(settings) as store:
        limits, _ = read_bundle_budgets(
            store.bundle_files(store.live_revision()[1]) or {}, fleet.agents
        )
        totals = {(name, unit): total for name, unit, total in store.spend_totals()}
        raises = store.budget_raises(now)
        waiting = store.wait_counts().get("budget", 0)
    rows = []
    agents = [agent for name, agent in fleet.agents.items() if agent_name in (None, name)]
    seen = set()
    for agent in agents:
        units = UNITS if agent.asks_model else (ACTIONS,)
        for cap in limits.caps(agent.name, agent.budget, units):
            name = FLEET if cap.scope == "fleet" else agent.name
            if (name, cap.unit, cap.span) in seen:
                continue
            seen.add((name, cap.unit, cap.span))
            more = [r for r in raises if (r.name, r.unit, r.span) == (name, cap.unit, cap.span)]
            limit = cap.limit + sum(one.amount for one in more)
            taken = totals.get((name, cap.unit), SpendTotal()).amount_at(cap.span, now)
            rows.append(
                {
                    "scope": cap.scope,
                    "agent": name or None,
                    "unit": cap.unit,
                    "window": cap.span,
                    "taken": taken,
                    "limit": limit,
                    "raised": limit - cap.limit,
                    "raised_until": min((one.until_us for one in more), default=None),
                    "percent": round(100 * taken / limit, 1) if limit else 100.0,
                    "turns": window_end(now, LENGTHS[cap.span]),
                }
            )
    rows.sort(key=lambda row: (row["agent"] or "", row["unit"], row["window"] == "day"))
    return {"waiting": waiting, "limits": rows}


def _text(report: dict[str, Any]) -> str:
    heads = ["who", "unit", "window", "taken", "limit", "%", "raised"]
    rows = [
        [
            row["agent"] or "(fleet)",
            row["unit"],
            row["window"],
            f"{row['taken']:,}",
            f"{row['limit']:,}",
            f"{row['percent']}",
            f"{row['raised']:,} until {format_time(row['raised_until'])}" if row["raised"] else "-",
        ]
        for row in report["limits"]
    ]
    turns = {row["window"]: row["turns"] for row in report["limits"]}
    ends = [f"the {window} ends {format_time(at)}" for window, at in turns.items()]
    waiting = f"runs that wait for a budget: {report['waiting']:,}"
    return "\n".join([format_table(heads, rows), "", *ends, waiting])

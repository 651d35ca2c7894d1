"""`vedette identity`: the agents' own keys."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from vedette.domain.base.errors import NotFound
from vedette.domain.identity import is_valid_name
from vedette.interfaces.cli.fleet import current_settings, find_agent, load_agents
from vedette.interfaces.cli.orders import OrderCommand, OrderOptions
from vedette.interfaces.cli.output import format_table, format_time, print_result

if TYPE_CHECKING:
    from vedette.adapters.identity.spiffe import Issuer
    from vedette.config.settings import Settings


@click.group()
def identity() -> None:
    """Give agents their keys, rotate them, and revoke them at once.

    Keys lie in the state folder of the gateway. With `[tokens] kind = "google"` an agent's
    identity is its service account; revoking an agent here holds for that too, where this state
    folder is read and for as long as it is there: disable the account as well.
    """


@identity.command()
def show() -> None:
    """List every key: whose it is, and whether it is taken."""
    issuer = _build_issuer(current_settings())
    agents = issuer.revoked_agents()
    known: list[dict[str, Any]] = [
        {
            "key": one.key,
            "agent": one.agent,
            "made_us": one.created_us,
            "until_us": one.until_us or None,
            "revoked_us": one.revoked_us or None,
        }
        for one in issuer.list_keys()
    ]
    rows = [
        [
            one["agent"],
            one["key"],
            format_time(one["made_us"]),
            "revoked" if one["revoked_us"] else format_time(one["until_us"] or 0),
        ]
        for one in known
    ]
    text = format_table(["agent", "key", "made", "until"], rows)
    text += "".join(f"\nagent {name} is revoked" for name in sorted(agents))
    print_result({"keys": known, "revoked_agents": agents, "bundle": issuer.trust_bundle()}, text)


@identity.command(cls=OrderCommand, repeatable=False)
@click.argument("agent")
@click.option(
    "--out", metavar="FILE", type=click.Path(path_type=Path, dir_okay=False),
    help="The identity file of the agent's worker; only its owner may read it.",
)  # fmt: skip
@click.option("--rotate", is_flag=True, help="With a new key, not the one that the agent has.")
@click.option("--reinstate", is_flag=True, help="Take back that the agent was revoked.")
def issue(agent: str, out: Path | None, rotate: bool, reinstate: bool, order: OrderOptions) -> None:
    """Write the identity file of AGENT's worker; a key is made if the agent has none.

    Whoever has the file is the agent. With --rotate the agent gets a new key first; the one before
    holds for two more lives of a token.
    """
    settings, reason = current_settings(), order.require_reason()
    if out is None and not rotate:
        ctx = click.get_current_context()
        raise click.MissingParameter(ctx=ctx, param_type="option", param_hint="'--out'")
    if reinstate and not rotate:
        raise click.UsageError("--reinstate gives a new key: add --rotate")
    issuer, lines = _build_issuer(settings), []
    value: dict[str, Any] = {"agent": agent}
    if rotate:
        if is_valid_name(agent) and not issuer.has_name(agent):
            find_agent(_read_agents(settings), agent)
        fresh = issuer.rotate(agent, reinstate=reinstate, actor=_current_actor(), reason=reason)
        keys = [one for one in issuer.list_keys() if one.agent == agent and not one.revoked_us]
        until_us = max((one.until_us for one in keys), default=0)
        value |= {"key": fresh.key, "until_us": until_us}
        until = format_time(until_us)
        lines.append(f"key {fresh.key} of {agent}; what was there before is taken until {until}")
    else:
        find_agent(load_agents(settings).fleet.agents, agent)
    if out is not None:
        kid = issuer.issue(agent, out, actor=_current_actor(), reason=reason)
        value |= {"key": kid, "file": str(out)}
        lines.append(f"{out}: key {kid} of {agent}")
    else:
        lines.append(f"now: vedette identity issue {agent} --out FILE, and give it to the worker")
    print_result(value, "\n".join(lines))


# The name of a key may begin with "-", and it is copied from what was printed.
@identity.command(
    cls=OrderCommand, repeatable=False, context_settings={"ignore_unknown_options": True}
)
@click.argument("what", metavar="AGENT|KEY|token:JTI")
@click.option("--unknown", is_flag=True, help="Also an agent that is not (or no more) known here.")
def revoke(what: str, unknown: bool, order: OrderOptions) -> None:
    """Refuse an agent with all its keys, one key, or one token, from now on.

    A connected worker is sent away within a second. A name that is neither among the keys nor in
    the fleet is refused, since it may be misspelt; `--unknown` takes it as it is.
    """
    settings = current_settings()
    issuer = _build_issuer(settings)
    known = unknown or what.startswith("token:") or issuer.has_name(what)
    if not known and what not in _read_agents(settings):
        mend = "see `vedette identity show`; --unknown for an agent that was removed"
        raise NotFound(f"{what!r} is no agent, no key and no token:JTI", mend=mend)
    keys = issuer.revoke(what, actor=_current_actor(), reason=order.require_reason())
    text = f"{what} is revoked" + "".join(f"\nkey {kid} is refused" for kid in keys)
    print_result({"revoked": what, "keys": keys}, text)


def _build_issuer(settings: Settings) -> Issuer:
    from vedette.app.remote_workers import build_issuer
    from vedette.domain.base.clock import SystemClock

    return build_issuer(settings, SystemClock().now_us)


def _read_agents(settings: Settings) -> dict[str, Any]:
    """Return the fleet's agents, whatever else is wrong with the fleet.

    A key has to be revoked beside a folder that is broken as well.
    """
    from vedette.config.fleet import read_fleet

    return dict(read_fleet(settings.root, settings)[0])


def _current_actor() -> str:
    from vedette.interfaces.http.unix_socket import current_person

    return str(current_person())

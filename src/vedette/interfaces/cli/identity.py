"""`vedette identity`: the agents' own keys."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from vedette.domain.identity import is_valid_name
from vedette.interfaces.cli.common import (
    as_json_option,
    format_table,
    format_time,
    print_result,
    settings_of,
)

if TYPE_CHECKING:
    from vedette.adapters.identity.spiffe import Issuer


def _build_issuer(ctx: click.Context) -> Issuer:
    from vedette.app.remote_workers import build_issuer
    from vedette.domain.base.clock import SystemClock

    return build_issuer(settings_of(ctx), SystemClock().now_us)


F = TypeVar("F", bound=Callable[..., Any])


def _reason_option(verb: F) -> F:
    """Give a verb a reason; it is written down with who gave it."""
    return click.option(
        "--reason", required=True, metavar="TEXT", help="Why; it is recorded with your name."
    )(verb)


def _current_actor() -> str:
    from vedette.interfaces.http.unix_socket import current_person

    return str(current_person())


def _refuse_unknown(ctx: click.Context, issuer: Issuer, name: str, message: str, mend: str) -> None:
    """Raise BadCommand for what is neither in the book nor an agent of the fleet.

    The fleet is read only if need be, and what is wrong with it is not looked at: a key has to be
    revoked beside a folder that is broken as well.
    """
    if issuer.has_name(name):
        return
    from vedette.config.fleet import read_fleet
    from vedette.domain.base.errors import BadCommand

    settings = settings_of(ctx)
    agents, _, _ = read_fleet(settings.root, settings)
    if name not in agents:
        raise BadCommand(message.format(name), mend=mend)


@click.group()
def identity() -> None:
    """Give agents their keys, rotate them, and revoke them at once.

    Keys lie in the state folder of the gateway. With `[tokens] kind = "google"` an agent's
    identity is its service account; revoking an agent here holds for that too, where this state
    folder is read and for as long as it is there: disable the account as well.
    """


@identity.command("list")
@as_json_option
@click.pass_context
def list_(ctx: click.Context, as_json: bool) -> None:
    """List every key: whose it is, and whether it is taken."""
    issuer = _build_issuer(ctx)
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
    print_result(
        as_json, {"keys": known, "revoked_agents": agents, "bundle": issuer.trust_bundle()}, text
    )


@identity.command()
@click.argument("agent")
@click.option(
    "--out", required=True, type=click.Path(path_type=Path, dir_okay=False), help="The file."
)
@_reason_option
@as_json_option
@click.pass_context
def issue(ctx: click.Context, agent: str, out: Path, reason: str, as_json: bool) -> None:
    """Write the identity file of an agent's worker; a key is made if the agent has none.

    Whoever has the file is the agent: only its owner may read it.
    """
    from vedette.config.fleet import load_fleet
    from vedette.domain.base.errors import BadCommand

    settings = settings_of(ctx)
    from vedette.domain.base.clock import SystemClock

    fleet = load_fleet(settings.root, settings, now_us=SystemClock().now_us()).fleet
    if agent not in fleet.agents:
        raise BadCommand(f"there is no agent {agent!r}", mend="see `vedette check`")
    kid = _build_issuer(ctx).issue(agent, out, actor=_current_actor(), reason=reason)
    print_result(
        as_json, {"agent": agent, "key": kid, "file": str(out)}, f"{out}: key {kid} of {agent}"
    )


@identity.command()
@click.argument("agent")
@click.option("--reinstate", is_flag=True, help="Take back that the agent was revoked.")
@_reason_option
@as_json_option
@click.pass_context
def rotate(ctx: click.Context, agent: str, reinstate: bool, reason: str, as_json: bool) -> None:
    """Give an agent a new key; the present one holds for two more lives of a token."""
    issuer = _build_issuer(ctx)
    if is_valid_name(agent):
        _refuse_unknown(ctx, issuer, agent, "there is no agent {!r}", "see `vedette check`")
    fresh = issuer.rotate(agent, reinstate=reinstate, actor=_current_actor(), reason=reason)
    until = max(
        (one.until_us for one in issuer.list_keys() if one.agent == agent and not one.revoked_us),
        default=0,
    )
    told = f"key {fresh.key} of {agent}; what was there before is taken until {format_time(until)}"
    mend = f"now: vedette identity issue {agent} --out FILE, and give it to the worker"
    print_result(as_json, {"agent": agent, "key": fresh.key, "until_us": until}, f"{told}\n{mend}")


# The name of a key may begin with "-", and it is copied from what was printed.
@identity.command(context_settings={"ignore_unknown_options": True})
@click.argument("what", metavar="AGENT|KEY|token:JTI")
@click.option("--unknown", is_flag=True, help="Also an agent that is not (or no more) known here.")
@_reason_option
@as_json_option
@click.pass_context
def revoke(ctx: click.Context, what: str, unknown: bool, reason: str, as_json: bool) -> None:
    """Refuse an agent with all its keys, one key, or one token, from now on.

    A connected worker is sent away within a second. A name that is neither among the keys nor in
    the fleet is refused, since it may be misspelt; `--unknown` takes it as it is.
    """
    issuer = _build_issuer(ctx)
    if not unknown and not what.startswith("token:"):
        mend = "see `vedette identity list`; --unknown for an agent that was removed"
        _refuse_unknown(ctx, issuer, what, "{!r} is no agent, no key and no token:JTI", mend)
    keys = issuer.revoke(what, actor=_current_actor(), reason=reason)
    text = f"{what} is revoked" + "".join(f"\nkey {kid} is refused" for kid in keys)
    print_result(as_json, {"revoked": what, "keys": keys}, text)

"""What an order loosens is shown, and asked about, before it is carried out."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, TypeVar

import click

from vedette.domain.base.errors import LooseningUnconfirmed
from vedette.interfaces.cli.common import fit_to_terminal, sanitize_text, submit_command

if TYPE_CHECKING:
    from vedette.config.settings import Settings

F = TypeVar("F", bound=Callable[..., Any])


def yes_option(verb: F) -> F:
    """Give a verb `--yes`: what it loosens is shown and not asked about."""
    return click.option(
        "--yes", is_flag=True, help="Loosen without asking; needed where there is no terminal."
    )(verb)


def submit_with_confirmation(
    settings: Settings,
    verb: str,
    reason: str,
    args: Mapping[str, Any],
    command_id: str | None,
    *,
    yes: bool,
) -> dict[str, Any]:
    """Give a command as `obey` does; if it loosens the policy, show what, ask, and give it again.

    The second order names exactly what was shown: where something else would be loosened by then,
    it is shown and asked again. Raises Unconfirmed where nobody can be asked, click.Abort for a no.
    """
    given = dict(args)
    while True:
        done = submit_command(settings, verb, reason, given, command_id)
        if not done.get("confirm"):
            return done
        shown = "\n".join(loosening_lines(done))
        click.echo(fit_to_terminal(shown), err=True)
        if not yes and not sys.stdin.isatty():
            raise LooseningUnconfirmed(
                "this loosens the live policy, and nobody can be asked: there is no terminal",
                mend="look at what is told above, then add --yes",
            )
        if not yes and not click.confirm("loosen it?", default=False, err=True):
            raise click.Abort
        given["confirm"] = done["confirm"]


def loosening_lines(result: Mapping[str, Any]) -> list[str]:
    """Return what an order loosens, and what recorded decisions tell of it, line by line."""
    lines = [f"this loosens the live policy (revision {result['revision']}):"]
    lines += [f"  {sanitize_text(told)}" for told in result["loosens"]]
    head, *rest = result["evidence"] or ["no decision is recorded yet to compare"]
    return [*lines, sanitize_text(head), *(f"  {sanitize_text(told)}" for told in rest)]

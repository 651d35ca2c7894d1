"""Orders: verbs that change something, who gives them and why, and how they reach the fleet."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

import click
from msgspec import Struct

from vedette.domain.base.errors import BadCommand, LooseningUnconfirmed, StoreBusy, VedetteError
from vedette.interfaces.cli import COMMAND_ID, REASON
from vedette.interfaces.cli.output import fit_to_terminal, sanitize_text, wants_json

if TYPE_CHECKING:
    from vedette.config.settings import Settings

# A runner takes the store before its socket is there; and leaves its socket before the store.
_MAX_WAIT_S = 5.0


class OrderOptions(Struct, frozen=True):
    """The options of every verb that orders: a reason, and an id to repeat it safely."""

    reason: str | None
    command_id: str | None = None

    def require_reason(self, hint: str = "'--reason'") -> str:
        """Return the reason. Raises click.MissingParameter, naming what to give, without one."""
        if self.reason is None:
            ctx = click.get_current_context()
            raise click.MissingParameter(ctx=ctx, param_type="option", param_hint=hint)
        return self.reason


class OrderCommand(click.Command):
    """A verb that orders something. Its callback is given the OrderOptions as `order`.

    `reason` says whether it needs one always; a verb that only looks without some option asks for
    it itself. An order that no repeat can do twice takes no id (`repeatable`).
    """

    def __init__(
        self, *args: Any, needs_reason: bool = True, repeatable: bool = True, **more: Any
    ) -> None:
        super().__init__(*args, **more)
        self._shared = [REASON, COMMAND_ID] if repeatable else [REASON]
        self._needs_reason = needs_reason
        for option in self._shared:
            name, value, help = option
            self.params.append(
                click.Option(
                    [name], required=needs_reason and option is REASON, metavar=value, help=help,
                    hidden=True,
                )
            )  # fmt: skip

    def invoke(self, ctx: click.Context) -> Any:
        """Do the verb."""
        reason, command_id = ctx.params.pop("reason"), ctx.params.pop("command_id", None)
        ctx.params["order"] = OrderOptions(reason, command_id)
        return super().invoke(ctx)

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the options; those of every order are told of once, in `vedette --help`."""
        super().format_options(ctx, formatter)
        reason, *more = (f"{name} {value}" for name, value, _ in self._shared)
        needs = "An order: it needs" if self._needs_reason else "To order something takes"
        formatter.write_paragraph()
        formatter.write_text(f"{needs} {reason}{''.join(f', and takes {one}' for one in more)}.")


# --- giving them -----------------------------------------------------------------------------


def submit_command(
    settings: Settings, verb: str, args: Mapping[str, Any], order: OrderOptions | None = None
) -> dict[str, Any]:
    """Give a verb's command to the running fleet; without one open the store, do it, and close.

    The answer says under `by` who did it: `fleet` or `here`. Raises what the command raises, and
    StoreBusy or Unavailable if a fleet runs that does not answer, UnicodeEncodeError for what is
    no text.
    """
    import asyncio
    import uuid

    from vedette.interfaces.http.local_client import LocalClient

    given = order or OrderOptions("")
    reason, command_id = given.reason or "", given.command_id or str(uuid.uuid4())
    # What is no text is refused here: a fleet could only say that it does not understand.
    json.dumps([reason, args, command_id], ensure_ascii=False, default=str).encode()
    end = time.monotonic() + _MAX_WAIT_S
    while True:
        client = LocalClient(settings.state)
        if client.is_alive():
            return {**client.send_command(verb, reason, args, command_id), "by": "fleet"}
        try:
            done = asyncio.run(execute_in_process(settings, verb, args, reason, command_id))
        except StoreBusy:
            if time.monotonic() > end:
                raise
            time.sleep(0.1)
            continue
        return {**done, "by": "here"}


async def execute_in_process(
    settings: Settings, verb: str, args: Mapping[str, Any], reason: str, command_id: str
) -> dict[str, Any]:
    """Open the store for one verb, carry it out as whoever runs this program, and close."""
    from msgspec.structs import replace

    from vedette.app.composition_root import open_app
    from vedette.interfaces.http.command_dispatch import dispatch
    from vedette.interfaces.http.unix_socket import current_person
    from vedette.operations.commands import Order

    app = await open_app(replace(settings, store=replace(settings.store, visit=True)))
    try:
        if app.store.loss is not None:
            # It stopped everything just now, and no order that was given before may undo that.
            raise BadCommand(
                f"{app.store.loss.sentence}; everything is stopped, and what may have happened "
                "already is in doubt: nothing was ordered",
                mend="see docs/guides/restore.md; if it is still right then, give the order again",
            )
        return await dispatch(app.commands, verb, Order(current_person(), reason, command_id), args)
    finally:
        await app.close()


def deferred_note(result: Mapping[str, Any], what: str) -> list[str]:
    """Return a verb's line on when its order takes effect if no fleet runs; none if one does."""
    if result["by"] == "fleet":
        return []
    return [f"no fleet runs here; {what} at the next `vedette run`"]


# --- asking ----------------------------------------------------------------------------------


def require_terminal(refusal: VedetteError) -> None:
    """Raise `refusal` where there is no terminal at which a person can be asked."""
    if not sys.stdin.isatty():
        raise refusal


def ask(question: str, *, err: bool) -> None:
    """Ask whoever is at the terminal. Raises click.Abort for a no."""
    if not click.confirm(question, default=False, err=err):
        raise click.Abort


def confirm(question: str, shown: Iterable[str], refusal: VedetteError, *, sure: bool) -> None:
    """Show at the terminal what an order is about and ask; who is `sure` is shown it, not asked.

    Raises `refusal` where nobody can be asked, click.Abort for a no.
    """
    as_json = wants_json()
    if not sure:
        require_terminal(refusal)
    if not (sure and as_json):
        click.echo("\n".join(shown), err=as_json)
    if not sure:
        ask(question, err=as_json)


def submit_with_confirmation(
    settings: Settings, verb: str, args: Mapping[str, Any], order: OrderOptions, *, yes: bool
) -> dict[str, Any]:
    """Give a verb's command; if it loosens the policy, show what, ask, and give it again.

    The second order names exactly what was shown: where something else would be loosened by then,
    it is shown and asked again. Raises LooseningUnconfirmed where nobody can be asked, click.Abort
    for a no.
    """
    given = dict(args)
    while True:
        done = submit_command(settings, verb, given, order)
        if not done.get("confirm"):
            return done
        click.echo(fit_to_terminal("\n".join(_loosening_lines(done))), err=True)
        if not yes:
            what = "this loosens the live policy, and nobody can be asked: there is no terminal"
            mend = "look at what is told above, then add --yes"
            require_terminal(LooseningUnconfirmed(what, mend=mend))
            ask("loosen it?", err=True)
        given["confirm"] = done["confirm"]


def _loosening_lines(result: Mapping[str, Any]) -> list[str]:
    """Return what an order loosens, and what recorded decisions tell of it, line by line."""
    lines = [f"this loosens the live policy (revision {result['revision']}):"]
    lines += [f"  {sanitize_text(statement)}" for statement in result["loosens"]]
    head, *rest = result["evidence"] or ["no decision is recorded yet to compare"]
    return [*lines, sanitize_text(head), *(f"  {sanitize_text(line)}" for line in rest)]

"""`vedette erase`: deletes content; what happened stays proved."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import click

from vedette.domain.base.errors import BadCommand
from vedette.interfaces.cli.common import (
    order_options,
    print_result,
    settings_of,
    store_reader,
    submit_command,
)
from vedette.interfaces.cli.hold_text import DIGEST_DIGITS, safe_line

if TYPE_CHECKING:
    from vedette.config.settings import Settings

_MAX_SHOWN = 5


@click.command()
@click.option("--event", metavar="ID", help="All content of one event.")
@click.option("--subject", metavar="WHO", help="All content under a subject (mail: its sender).")
@click.option(
    "--entry",
    metavar="SEQ",
    type=click.IntRange(min=1),
    help="The content of one entry of the ledger (of a refused delivery, say).",
)
@click.option(
    "--deny-holds", is_flag=True, help="First deny what waits on it, and end those runs, for good."
)
@click.option("--digest", metavar="HEX", help="Only what was shown under this digest; not asked.")
@click.option("--yes", is_flag=True, help="Do not ask; needed where there is no terminal.")
@order_options
@click.pass_context
def erase(ctx: click.Context, /, **options: Any) -> None:
    """Erase the content of an event, all under a subject, or that of one entry; it is shown first.

    Nothing goes but what was shown: when that has changed, it is refused, to be looked at again.
    Entries keep their salted digests, so `ledger verify` still passes and says what was erased;
    decisions made of that content can no longer be replayed.
    """
    settings = settings_of(ctx)
    args = {"event": options["event"], "subject": options["subject"], "entry": options["entry"]}
    digest = _confirm_erasure(settings, args, options)
    args |= {"deny_holds": options["deny_holds"], "digest": digest}
    done = submit_command(settings, "erase", options["reason"], args, options["command_id"])
    number = len(done["erased"])
    noun = "body" if number == 1 else "bodies"
    told = f"erased {number} {noun}; `vedette ledger verify` still passes"
    if not done["scrubbed"]:
        told += "\nthe store's files still hold copies, for a reader or until they are vacuumed"
    print_result(options["as_json"], done, told)


def _confirm_erasure(
    settings: Settings, args: Mapping[str, Any], options: Mapping[str, Any]
) -> str | None:
    """Show what would go, and ask; return the digest of that, None if it was done before.

    Raises BadCommand where nobody can be asked.
    """
    if sum(value is not None for value in args.values()) != 1:
        mend = "give one of --event ID, --subject WHO and --entry SEQ"
        raise BadCommand("say what to erase", mend=mend)
    with store_reader(settings) as store:
        command = options["command_id"]
        if command is not None and store.is_command_done(command):
            return None  # it is only said to be done
        found = store.survey(**args)
        value = found.to_json(len(store.candidates(found.events)))
    if not value["contents"]:
        # Whoever carries it out says so; what comes in between was not shown.
        return str(options["digest"] or value["digest"])
    if value["open"] and not options["deny_holds"]:
        raise BadCommand(
            f"{_format_count(len(value['open']), 'run')} still open on this content: "
            f"{_format_names([run['run'] for run in value['open']])}",
            mend="answer the holds, let it finish, or end what waits: --deny-holds",
        )
    text = _text(value)
    digest: str = options["digest"] or value["digest"]
    if options["yes"] or options["digest"]:
        if not options["as_json"]:
            click.echo(text)
        return digest
    if not sys.stdin.isatty():
        raise BadCommand(
            "nobody can be asked here: there is no terminal to erase from",
            mend="look at it first (`vedette explain ID`), then add "
            f"--digest {value['digest'][:DIGEST_DIGITS]}",
        )
    click.echo(text, err=options["as_json"])
    if not click.confirm("erase for good?", default=False, err=options["as_json"]):
        raise click.Abort
    return digest


def _text(value: Mapping[str, Any]) -> str:
    """Return what would go, for people."""
    events = value["events"]
    lines = [
        f"{_format_count(value['contents'], 'content')} of "
        f"{_format_count(len(events), 'event')} and "
        f"{_format_count(value['runs'], 'run')} would be erased, and "
        f"{_format_count(value['memories'], 'memory', 'memories')} learned of it"
    ]
    if events:
        lines.append(f"events: {_format_names(events)}")
    if value["holds"]:
        holds = [f"{safe_line(one['tool'])} ({one['hold']})" for one in value["holds"]]
        lines.append(f"would be denied first: {_format_names(holds)}")
    ended = [run["run"] for run in value["open"]]
    if ended:
        lines.append(f"would be ended first: {_format_names(ended)}")
    lines.append(f"shown as {value['digest'][:DIGEST_DIGITS]}")
    return "\n".join(lines)


def _format_count(number: int, one: str, many: str | None = None) -> str:
    return f"{number:,} {one if number == 1 else many or one + 's'}"


def _format_names(names: list[str]) -> str:
    more = len(names) - _MAX_SHOWN
    return ", ".join(names[:_MAX_SHOWN]) + (f" and {more:,} more" if more > 0 else "")

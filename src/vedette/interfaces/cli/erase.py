"""`vedette erase`: deletes content; what happened stays proved."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import click

from vedette.domain.base.errors import BadCommand
from vedette.interfaces.cli.common import human_verb, obey, reading, say, settings_of
from vedette.interfaces.cli.hold_text import DIGITS, safe_line

if TYPE_CHECKING:
    from vedette.config import Settings

_SHOWN = 5


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
@human_verb
@click.pass_context
def erase(ctx: click.Context, /, **given: Any) -> None:
    """Erase the content of an event, all under a subject, or that of one entry; it is shown first.

    Nothing goes but what was shown: when that has changed, it is refused, to be looked at again.
    Entries keep their salted digests, so `ledger verify` still passes and says what was erased;
    decisions made of that content can no longer be replayed.
    """
    settings = settings_of(ctx)
    args = {"event": given["event"], "subject": given["subject"], "entry": given["entry"]}
    digest = _ask(settings, args, given)
    args |= {"deny_holds": given["deny_holds"], "digest": digest}
    done = obey(settings, "erase", given["reason"], args, given["command_id"])
    number = len(done["erased"])
    noun = "body" if number == 1 else "bodies"
    told = f"erased {number} {noun}; `vedette ledger verify` still passes"
    if not done["scrubbed"]:
        told += "\nthe store's files still hold copies, for a reader or until they are vacuumed"
    say(given["as_json"], done, told)


def _ask(settings: Settings, args: Mapping[str, Any], given: Mapping[str, Any]) -> str | None:
    """Show what would go, and ask; return the digest of that, None if it was done before.

    Raises BadCommand where nobody can be asked.
    """
    if sum(value is not None for value in args.values()) != 1:
        mend = "give one of --event ID, --subject WHO and --entry SEQ"
        raise BadCommand("say what to erase", mend=mend)
    with reading(settings) as store:
        command = given["command_id"]
        if command is not None and store.carried_out(command):
            return None  # it is only said to be done
        found = store.survey(**args)
        value = found.to_json(len(store.candidates(found.events)))
    if not value["contents"]:
        # Whoever carries it out says so; what comes in between was not shown.
        return str(given["digest"] or value["digest"])
    if value["open"] and not given["deny_holds"]:
        raise BadCommand(
            f"{_counted(len(value['open']), 'run')} still open on this content: "
            f"{_some([run['run'] for run in value['open']])}",
            mend="answer the holds, let it finish, or end what waits: --deny-holds",
        )
    text = _text(value)
    digest: str = given["digest"] or value["digest"]
    if given["yes"] or given["digest"]:
        if not given["as_json"]:
            click.echo(text)
        return digest
    if not sys.stdin.isatty():
        raise BadCommand(
            "nobody can be asked here: there is no terminal to erase from",
            mend="look at it first (`vedette explain ID`), then add "
            f"--digest {value['digest'][:DIGITS]}",
        )
    click.echo(text, err=given["as_json"])
    if not click.confirm("erase for good?", default=False, err=given["as_json"]):
        raise click.Abort
    return digest


def _text(value: Mapping[str, Any]) -> str:
    """Return what would go, for people."""
    events = value["events"]
    lines = [
        f"{_counted(value['contents'], 'content')} of {_counted(len(events), 'event')} and "
        f"{_counted(value['runs'], 'run')} would be erased, and "
        f"{_counted(value['memories'], 'memory', 'memories')} learned of it"
    ]
    if events:
        lines.append(f"events: {_some(events)}")
    if value["holds"]:
        holds = [f"{safe_line(one['tool'])} ({one['hold']})" for one in value["holds"]]
        lines.append(f"would be denied first: {_some(holds)}")
    ended = [run["run"] for run in value["open"]]
    if ended:
        lines.append(f"would be ended first: {_some(ended)}")
    lines.append(f"shown as {value['digest'][:DIGITS]}")
    return "\n".join(lines)


def _counted(number: int, one: str, many: str | None = None) -> str:
    return f"{number:,} {one if number == 1 else many or one + 's'}"


def _some(names: list[str]) -> str:
    more = len(names) - _SHOWN
    return ", ".join(names[:_SHOWN]) + (f" and {more:,} more" if more > 0 else "")

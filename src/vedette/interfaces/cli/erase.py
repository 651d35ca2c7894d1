"""`vedette erase`: deletes content; what happened stays proved."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import click

from vedette.app.stores import store_reader
from vedette.domain.base.errors import BadCommand
from vedette.interfaces.cli.fleet import current_settings
from vedette.interfaces.cli.hold_text import DIGEST_DIGITS, safe_line
from vedette.interfaces.cli.orders import OrderCommand, OrderOptions, confirm, submit_command
from vedette.interfaces.cli.output import print_result

if TYPE_CHECKING:
    from vedette.config.settings import Settings

_MAX_SHOWN = 5
_WHAT = "event:ID|subject:WHO|entry:SEQ"


@click.command(cls=OrderCommand)
@click.argument("what", metavar=_WHAT, required=False)
@click.option(
    "--deny-holds", is_flag=True, help="First deny what waits on it, and end those runs, for good."
)
@click.option("--digest", metavar="HEX", help="Only what was shown under this digest; not asked.")
@click.option("--yes", is_flag=True, help="Do not ask; needed where there is no terminal.")
def erase(
    what: str | None, deny_holds: bool, digest: str | None, yes: bool, order: OrderOptions
) -> None:
    """Erase the content of an event, all under a subject, or that of one entry; it is shown first.

    The subject of a mail is its sender; an entry may be that of a refused delivery. Nothing goes
    but what was shown: when that has changed, it is refused, to be looked at again. Entries keep
    their salted digests, so `vedette verify` still passes and says what was erased; decisions made
    of that content can no longer be replayed.
    """
    settings, args = current_settings(), _parse_target(what)
    shown = _confirm_erasure(settings, args, order.command_id, deny_holds, digest, yes=yes)
    args |= {"deny_holds": deny_holds, "digest": shown}
    done = submit_command(settings, "erase", args, order)
    text = f"erased {_count(len(done['erased']), 'body', 'bodies')}; `vedette verify` still passes"
    if not done["scrubbed"]:
        text += "\nthe store's files still hold copies, for a reader or until they are vacuumed"
    print_result(done, text)


def _parse_target(what: str | None) -> dict[str, Any]:
    """Return the arguments of the order, one of which is given. Raises BadCommand."""
    kind, _, name = (what or "").partition(":")
    args: dict[str, Any] = dict.fromkeys(("event", "subject", "entry"))
    if kind not in args or not name:
        raise BadCommand("say what to erase", mend=f"give one of {_WHAT}")
    if kind == "entry" and not (name.isascii() and name.isdigit() and int(name) > 0):
        raise BadCommand(f"{name!r} is no entry", mend="give its seq, as the ledger has it")
    return {**args, kind: int(name) if kind == "entry" else name}


def _confirm_erasure(
    settings: Settings, args: Mapping[str, Any], command_id: str | None, deny_holds: bool,
    digest: str | None, *, yes: bool,
) -> str | None:  # fmt: skip
    """Show what would go, and ask; return the digest of that, None if it was done before.

    Raises BadCommand where nobody can be asked.
    """
    from vedette.domain.erasure import ErasureTarget

    with store_reader(settings) as store:
        if command_id is not None and store.is_command_done(command_id):
            return None  # it is only said to be done
        found = store.runs.survey(ErasureTarget.of(**args))
        value = found.to_json(len(store.memories.candidates(found.events)))
    shown: str = digest or value["digest"]
    if not value["contents"]:
        # Whoever carries it out says so; what comes in between was not shown.
        return shown
    if value["open"] and not deny_holds:
        raise BadCommand(
            f"{_count(len(value['open']), 'run')} still open on this content: "
            f"{_names([run['run'] for run in value['open']])}",
            mend="answer the holds, let it finish, or end what waits: --deny-holds",
        )
    refusal = BadCommand(
        "nobody can be asked here: there is no terminal to erase from",
        mend="look at it first (`vedette explain ID`), then add "
        f"--digest {value['digest'][:DIGEST_DIGITS]}",
    )
    confirm("erase for good?", _lines(value), refusal, sure=yes or bool(digest))
    return shown


def _lines(value: Mapping[str, Any]) -> list[str]:
    """Return what would go, for people."""
    events = value["events"]
    lines = [
        f"{_count(value['contents'], 'content')} of {_count(len(events), 'event')} and "
        f"{_count(value['runs'], 'run')} would be erased, and "
        f"{_count(value['memories'], 'memory', 'memories')} learned of it"
    ]
    if events:
        lines.append(f"events: {_names(events)}")
    if value["holds"]:
        holds = [f"{safe_line(one['tool'])} ({one['hold']})" for one in value["holds"]]
        lines.append(f"would be denied first: {_names(holds)}")
    if value["open"]:
        lines.append(f"would be ended first: {_names([run['run'] for run in value['open']])}")
    return [*lines, f"shown as {value['digest'][:DIGEST_DIGITS]}"]


def _count(number: int, one: str, many: str | None = None) -> str:
    return f"{number:,} {one if number == 1 else many or one + 's'}"


def _names(names: list[str]) -> str:
    more = len(names) - _MAX_SHOWN
    return ", ".join(names[:_MAX_SHOWN]) + (f" and {more:,} more" if more > 0 else "")

"""`vedette hold`, `approve`, `deny`: what waits for an answer, who looks at it, and the answer."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import click

from vedette.app.stores import store_reader
from vedette.domain.base.clock import SystemClock
from vedette.domain.base.errors import BadCommand, DisplayMismatch, NotFound
from vedette.interfaces.cli.fleet import (
    command_prefix,
    current_settings,
    page_options,
    refuse_options,
)
from vedette.interfaces.cli.hold_text import (
    DIGEST_DIGITS,
    answer_lines,
    group_lines,
    hold_lines,
    item_lines,
    safe_line,
    whole_group_lines,
)
from vedette.interfaces.cli.orders import (
    OrderCommand,
    OrderOptions,
    confirm,
    deferred_note,
    submit_command,
)
from vedette.interfaces.cli.output import format_time, print_result, sanitize_text

if TYPE_CHECKING:
    from vedette.store.reader import StoreReader

_WAITS = ("approval", "time", "resume", "target", "budget", "policy", "all")
_GROUP_PREFIX = "grp_"


# --- what waits ------------------------------------------------------------------------------


@click.command(cls=OrderCommand, needs_reason=False)
@click.argument("name", metavar="[HOLD|GROUP]", required=False)
@click.option("--claim", is_flag=True, help="Say for half an hour that you look at HOLD.")
@click.option("--note", metavar="TEXT", help="Note TEXT about HOLD, for whoever reads of it later.")
@click.option(
    "--waits", type=click.Choice(_WAITS), default="approval", show_default=True,
    help="Of the list: what it waits for.",
)  # fmt: skip
@click.option("--group", "by_group", is_flag=True, help="Of the list: what is alike, told once.")
@page_options
def hold(
    name: str | None, claim: bool, note: str | None, waits: str, by_group: bool, page: str | None,
    limit: int, order: OrderOptions,
) -> None:  # fmt: skip
    """List what waits for a person, oldest first; or show all of HOLD, or of a GROUP of them.

    What stands behind a bar was written outside. A claim is no lock: anybody may still answer, and
    is told that you had claimed it.
    """
    if claim and note is not None:
        raise click.UsageError("--claim and --note exclude each other")
    if not claim and note is None:
        refuse_options(("reason", "command_id"), "is for --claim or --note")
    if name is not None:
        refuse_options(("waits", "by_group", "page", "limit"), "is of the list: name no HOLD")
    if name is None:
        if claim or note is not None:
            raise click.UsageError("name the HOLD", click.get_current_context())
        if by_group:
            _print_groups(None if waits == "all" else waits)
        else:
            _print_list(waits, page, limit)
    elif note is not None:
        _note(name, note, order)
    elif claim:
        _claim(name, order)
    else:
        _print_one(name)


def _print_list(waits: str, after: str | None, limit: int) -> None:
    from vedette.ledger.history.lists import inbox

    with store_reader(current_settings()) as store:
        page = inbox(
            store,
            SystemClock().now_us(),
            after=after,
            limit=limit,
            waits=None if waits == "all" else waits,
        )
    lines = [line for item in page["items"] for line in item_lines(item)]
    lines.append(f"look at one: {command_prefix()} hold HOLD" if lines else "nothing waits")
    if page["newer"]:
        lines.append(f"more: {command_prefix()} hold --waits {waits} --page {page['newer']}")
    print_result(page, "\n".join(lines))


def _print_groups(waits: str | None) -> None:
    from vedette.ledger.history.hold_groups import list_hold_groups

    with store_reader(current_settings()) as store:
        found = list_hold_groups(store, SystemClock().now_us(), waits)
    lines = [line for each in found["items"] for line in group_lines(each)]
    if lines:
        lines.append(f"look at one: {command_prefix()} hold GROUP")
    if found["cut"]:
        lines.append(f"only the oldest {found['holds']} holds were looked at")
    print_result(found, "\n".join(lines or ["nothing waits"]))


def _print_one(name: str) -> None:
    from vedette.ledger.history.hold_groups import show_hold_group

    with store_reader(current_settings()) as store:
        if name.startswith(_GROUP_PREFIX):
            found = show_hold_group(store, SystemClock().now_us(), name)
            lines, digest = _render_group(found)
            value: Mapping[str, Any] = {**found, "shown_digest": digest}
        else:
            value = find_hold(store, name)
            lines, digest = hold_lines(value), value["shown_digest"]
            name = value["hold"]
    # The reason is for the person to write.
    given = f"{name} --digest {digest[:DIGEST_DIGITS]} --reason …"
    answers = [f"answer it: {command_prefix()} {verb} {given}" for verb in ("approve", "deny")]
    print_result(value, "\n".join([*lines, *answers]))


def _claim(hold_id: str, order: OrderOptions) -> None:
    given = OrderOptions(order.reason or "looking at it", order.command_id)
    done = submit_command(current_settings(), "claim", {"hold": hold_id}, given)
    who = sanitize_text(done["claimed_by"])
    text = f"{hold_id} is claimed by {who} until {format_time(done['until'])}"
    if done["was"]:
        text += f"\nnote: {sanitize_text(done['was'])} had claimed it"
    print_result(done, text)


def _note(hold_id: str, text: str, order: OrderOptions) -> None:
    given = OrderOptions(order.reason or "a note", order.command_id)
    done = submit_command(current_settings(), "note", {"hold": hold_id, "text": text}, given)
    print_result(done, f"noted about {hold_id} (entry {done['entry']})")


def find_hold(store: StoreReader, hold: str) -> dict[str, Any]:
    """Return all that `vedette hold` shows of a hold, by its id. Raises NotFound."""
    from vedette.ledger.history.lists import hold_item

    row = store.runs.action(f"act_{hold.removeprefix('hold_').removeprefix('act_')}")
    if row is None or row.hold is None:
        raise NotFound(f"there is no hold {hold!r}", mend="see `vedette hold`")
    return hold_item(store, row, SystemClock().now_us())


# --- the answer ------------------------------------------------------------------------------


@click.command(cls=OrderCommand)
@click.argument("name", metavar="HOLD|GROUP", required=False)
@click.option("--digest", metavar="HEX", help="Only for what `hold` showed under this digest.")
def approve(name: str | None, digest: str | None, order: OrderOptions) -> int:
    """Approve exactly the action that HOLD holds, once, or of each of a GROUP; it is shown first.

    At a terminal you are asked; without one --digest names what `hold` showed. The action is
    decided again under the policy of that moment before it is done.
    """
    return _answer("approve", name, digest, order, yes=False)


@click.command(cls=OrderCommand)
@click.argument("name", metavar="HOLD|GROUP", required=False)
@click.option("--digest", metavar="HEX", help="Only for what `hold` showed under this digest.")
@click.option("--yes", is_flag=True, help="Do not ask.")
def deny(name: str | None, digest: str | None, yes: bool, order: OrderOptions) -> int:
    """Deny what HOLD holds, or each of a GROUP, for good."""
    return _answer("deny", name, digest, order, yes=yes)


def _answer(
    verb: str, name: str | None, digest: str | None, order: OrderOptions, *, yes: bool
) -> int:
    if name is None:
        mend = f"`vedette {verb} HOLD`; `vedette hold` lists them"
        raise BadCommand("name one hold, or a group", mend=mend)
    if name.startswith(_GROUP_PREFIX):
        return _answer_group(verb, name, digest, order, yes=yes)
    settings = current_settings()
    if verb == "approve":
        with store_reader(settings) as store:
            item = find_hold(store, name)
        _confirm_answer(verb, hold_lines(item), name, sure=bool(digest) or yes)
        # What was shown is what is approved, whatever happens meanwhile.
        digest = digest or item["shown_digest"]
    done = submit_command(settings, verb, {"hold": name, "digest": digest}, order)
    lines = [f"{done['hold']} is {done['state']}: {done['tool']} of {done['run']}"]
    if done["claimed_by"]:
        lines.append(f"note: {safe_line(done['claimed_by'])} had claimed it")
    lines += deferred_note(done, "it is acted on")
    lines.append(f"see: {command_prefix()} explain {done['run']}")
    print_result(done, "\n".join(lines))
    return 0


def _confirm_answer(verb: str, lines: list[str], name: str, *, sure: bool) -> None:
    refusal = DisplayMismatch(
        f"nobody can be asked here: there is no terminal to {verb} from",
        mend=f"look at it, then name what you saw: {command_prefix()} hold {name}",
    )
    confirm(f"{verb}?", lines, refusal, sure=sure)


def _render_group(group: Mapping[str, Any]) -> tuple[list[str], str]:
    """Return all that is shown of a group, of many holds the oldest, and the digest of that."""
    from vedette.ledger.history.hold_groups import digest_of_group
    from vedette.operations.approvals import MAX_HOLDS

    digest = digest_of_group(dict(list(group["holds"].items())[:MAX_HOLDS]))
    return whole_group_lines(group, MAX_HOLDS, digest), digest


def _answer_group(
    verb: str, name: str, digest: str | None, order: OrderOptions, *, yes: bool
) -> int:
    from vedette.ledger.history.hold_groups import show_hold_group
    from vedette.ledger.history.review import refuse_unseen
    from vedette.operations.approvals import MAX_HOLDS

    settings = current_settings()
    with store_reader(settings) as store:
        found = show_hold_group(store, SystemClock().now_us(), name)
    listed = dict(list(found["holds"].items())[:MAX_HOLDS])
    lines, shown_digest = _render_group(found)
    if digest is not None:
        refuse_unseen({"hold": found["group"], "shown_digest": shown_digest}, digest)
    if verb == "approve" or sys.stdin.isatty():
        _confirm_answer(verb, lines, found["group"], sure=bool(digest) or yes)
    args = {"holds": listed, "group": found["group"]}
    done = submit_command(settings, f"{verb}_group", args, order)
    with store_reader(settings) as store:
        done |= _remaining_holds(store, found, listed)
    lines = [*answer_lines(done, verb), *deferred_note(done, "they are acted on")]
    print_result(done, "\n".join(lines))
    return 1 if done["refused"] else 0


def _remaining_holds(
    store: StoreReader, shown: Mapping[str, Any], listed: Mapping[str, str]
) -> dict[str, list[str]]:
    """Return the holds that are open in a group after an answer to those `listed`.

    `left` were there when it was `shown`, and too many at once; `joined` were not, or are another
    action by now.
    """
    from vedette.ledger.history.hold_groups import list_hold_groups

    open_now = list_hold_groups(store, SystemClock().now_us())["items"]
    name, were = shown["group"], shown["holds"]
    holds: dict[str, str] = next((each["holds"] for each in open_now if each["group"] == name), {})
    found: dict[str, list[str]] = {"left": [], "joined": []}
    for hold, digest in holds.items():
        # Of more holds than are looked at, those behind come into sight as others are answered.
        there = were[hold] == digest if hold in were else shown["cut"]
        if not there:
            found["joined"].append(hold)
        elif hold not in listed:
            found["left"].append(hold)
    return found

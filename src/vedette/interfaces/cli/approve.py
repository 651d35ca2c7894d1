"""`vedette approve` and `vedette deny`: a person's answer to a hold, or to a group of them."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

import click

from vedette.domain.base.clock import SystemClock
from vedette.domain.base.errors import BadCommand, DisplayMismatch
from vedette.interfaces.cli.common import (
    command_prefix,
    order_options,
    print_result,
    settings_of,
    store_reader,
    submit_command,
)
from vedette.interfaces.cli.hold_text import DIGEST_DIGITS, group_lines, hold_lines, safe_line

if TYPE_CHECKING:
    from vedette.store.read_runs import StoreReader

F = TypeVar("F", bound=Callable[..., Any])


def _answer_options(verb: F) -> F:
    """Give a verb what both answers take."""
    digest = click.option(
        "--digest", metavar="HEX", help="Only for what `hold show` showed under this digest."
    )
    group = click.option(
        "--group", metavar="GROUP", help="Every hold of the group, as it is shown now."
    )
    return click.argument("hold", required=False)(group(digest(order_options(verb))))


@click.command()
@_answer_options
@click.pass_context
def approve(ctx: click.Context, /, **options: Any) -> None:
    """Approve exactly the action that HOLD holds, once; it is shown first.

    At a terminal you are asked; without one --digest names what `hold show` showed. The action is
    decided again under the policy of that moment before it is done.
    """
    _dispatch_answer(ctx, "approve", {**options, "yes": False})


@click.command()
@_answer_options
@click.option("--yes", is_flag=True, help="Do not ask.")
@click.pass_context
def deny(ctx: click.Context, /, **options: Any) -> None:
    """Deny what HOLD holds, for good."""
    _dispatch_answer(ctx, "deny", options)


def _dispatch_answer(ctx: click.Context, verb: str, options: Mapping[str, Any]) -> None:
    if (options["hold"] is None) == (options["group"] is None):
        raise BadCommand("name one hold, or a group", mend=f"`vedette {verb} HOLD` or --group")
    if options["group"] is not None:
        _answer_group(ctx, verb, options)
    else:
        _answer_hold(ctx, verb, options)


def _answer_hold(ctx: click.Context, verb: str, options: Mapping[str, Any]) -> None:
    settings, digest, hold = settings_of(ctx), options["digest"], options["hold"]
    if verb == "approve":
        with store_reader(settings) as store:
            item = find_hold(store, hold)
        # What was shown is what is approved, whatever happens meanwhile.
        digest = _confirm_answer(ctx, options, verb, hold_lines(item), item["shown_digest"], hold)
    args = {"hold": hold, "digest": digest}
    done = submit_command(settings, verb, options["reason"], args, options["command_id"])
    text = f"{done['hold']} is {done['state']}: {done['tool']} of {done['run']}"
    if done["claimed_by"]:
        text += f"\nnote: {safe_line(done['claimed_by'])} had claimed it"
    if done["by"] == "here":
        text += "\nno fleet runs here; it is acted on at the next `vedette run`"
    print_result(
        options["as_json"], done, f"{text}\nsee: {command_prefix(ctx)} explain {done['run']}"
    )


def find_hold(store: StoreReader, hold: str) -> dict[str, Any]:
    """Return all that is shown of a hold, by its id. Raises NotFound."""
    from vedette.domain.base.errors import NotFound
    from vedette.ledger.history.lists import hold_item

    row = store.action(f"act_{hold.removeprefix('hold_').removeprefix('act_')}")
    if row is None or row.hold is None:
        raise NotFound(f"there is no hold {hold!r}", mend="see `vedette hold list`")
    return hold_item(store, row, SystemClock().now_us())


def _confirm_answer(
    ctx: click.Context,
    options: Mapping[str, Any],
    verb: str,
    lines: Sequence[str],
    digest: str,
    name: str,
) -> str:
    """Show what is answered and ask, unless the person named what they had been shown before.

    Returns the digest that the answer is for. Raises NotShown where nobody can be asked.
    """
    if options["digest"] is None and not options["yes"] and not sys.stdin.isatty():
        raise DisplayMismatch(
            f"nobody can be asked here: there is no terminal to {verb} from",
            mend=f"look at it, then name what you saw: {command_prefix(ctx)} hold show {name}",
        )
    if options["digest"] is not None or options["yes"]:
        if not options["as_json"]:
            click.echo("\n".join(lines))
        return options["digest"] or digest
    click.echo("\n".join(lines), err=options["as_json"])
    if not click.confirm(f"{verb}?", default=False, err=options["as_json"]):
        raise click.Abort
    return digest


def render_group(group: Mapping[str, Any]) -> tuple[list[str], str]:
    """Return all that is shown of a group, of many holds the oldest, and the digest of that."""
    from vedette.ledger.history.hold_groups import digest_of_group
    from vedette.operations.approvals import MAX_HOLDS

    listed = dict(list(group["holds"].items())[:MAX_HOLDS])
    lines = group_lines(group, 0)
    if len(listed) < group["count"]:
        lines.append(f"    of them the oldest {len(listed)} now")
    for member in group["members"][:MAX_HOLDS]:
        lines += ["", *hold_lines(member)]
    digest = digest_of_group(listed)
    return [*lines, "", f"{group['group']} is shown as {digest[:DIGEST_DIGITS]}"], digest


def _answer_group(ctx: click.Context, verb: str, options: Mapping[str, Any]) -> None:
    from vedette.ledger.history.hold_groups import group
    from vedette.ledger.history.review import refuse_unseen
    from vedette.operations.approvals import MAX_HOLDS

    settings = settings_of(ctx)
    with store_reader(settings) as store:
        found = group(store, SystemClock().now_us(), options["group"])
    listed = dict(list(found["holds"].items())[:MAX_HOLDS])
    lines, digest = render_group(found)
    if options["digest"] is not None:
        refuse_unseen({"hold": found["group"], "shown_digest": digest}, options["digest"])
    if verb == "approve" or sys.stdin.isatty():
        _confirm_answer(ctx, options, verb, lines, digest, found["group"])
    args = {"holds": listed, "group": found["group"]}
    done = submit_command(settings, f"{verb}_group", options["reason"], args, options["command_id"])
    with store_reader(settings) as store:
        done |= _remaining_holds(store, found, listed)
    print_result(options["as_json"], done, "\n".join(_result_lines(done, verb)))
    if done["refused"]:
        ctx.exit(1)


def _remaining_holds(
    store: StoreReader, shown: Mapping[str, Any], listed: Mapping[str, str]
) -> dict[str, list[str]]:
    """Return the holds that are open in a group after an answer to those `listed`.

    `left` were there when it was `shown`, and too many at once; `joined` were not, or are another
    action by now.
    """
    from vedette.ledger.history.hold_groups import groups

    open_now = groups(store, SystemClock().now_us())["items"]
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


def _result_lines(answer: Mapping[str, Any], verb: str) -> list[str]:
    word = "approved" if verb == "approve" else "denied"
    lines = []
    for result in answer["results"]:
        said = f"not {word}: {safe_line(result['refused'])}" if result["refused"] else word
        claimed = f" ({safe_line(result['claimed_by'])} had claimed it)"
        lines.append(f"{result['hold']}  {said}" + (claimed if result["claimed_by"] else ""))
    lines.append(f"{answer['answered']} {word}, {answer['refused']} refused")
    if answer["left"]:
        lines.append(f"{len(answer['left'])} of the group are left: repeat this to answer them")
    if answer["joined"]:
        lines.append(
            f"{len(answer['joined'])} more joined the group since it was shown; "
            "they are not touched"
        )
    if answer["by"] == "here":
        lines.append("no fleet runs here; they are acted on at the next `vedette run`")
    return lines

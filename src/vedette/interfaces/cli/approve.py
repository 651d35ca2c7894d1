"""`vedette approve` and `vedette deny`: a person's answer to a hold, or to a group of them."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

import click

from vedette.domain.base.clock import SystemClock
from vedette.domain.base.errors import BadCommand, NotShown
from vedette.interfaces.cli.common import human_verb, obey, prefix, reading, say, settings_of
from vedette.interfaces.cli.hold_text import DIGITS, group_lines, hold_lines, safe_line

if TYPE_CHECKING:
    from vedette.store.read_runs import Reads

F = TypeVar("F", bound=Callable[..., Any])


def _answered(verb: F) -> F:
    """Give a verb what both answers take."""
    digest = click.option(
        "--digest", metavar="HEX", help="Only for what `hold show` showed under this digest."
    )
    group = click.option(
        "--group", metavar="GROUP", help="Every hold of the group, as it is shown now."
    )
    return click.argument("hold", required=False)(group(digest(human_verb(verb))))


@click.command()
@_answered
@click.pass_context
def approve(ctx: click.Context, /, **given: Any) -> None:
    """Approve exactly the action that HOLD holds, once; it is shown first.

    At a terminal you are asked; without one --digest names what `hold show` showed. The action is
    decided again under the policy of that moment before it is done.
    """
    _answer(ctx, "approve", {**given, "yes": False})


@click.command()
@_answered
@click.option("--yes", is_flag=True, help="Do not ask.")
@click.pass_context
def deny(ctx: click.Context, /, **given: Any) -> None:
    """Deny what HOLD holds, for good."""
    _answer(ctx, "deny", given)


def _answer(ctx: click.Context, verb: str, given: Mapping[str, Any]) -> None:
    if (given["hold"] is None) == (given["group"] is None):
        raise BadCommand("name one hold, or a group", mend=f"`vedette {verb} HOLD` or --group")
    if given["group"] is not None:
        _group(ctx, verb, given)
    else:
        _one(ctx, verb, given)


def _one(ctx: click.Context, verb: str, given: Mapping[str, Any]) -> None:
    settings, digest, hold = settings_of(ctx), given["digest"], given["hold"]
    if verb == "approve":
        with reading(settings) as store:
            item = found_hold(store, hold)
        # What was shown is what is approved, whatever happens meanwhile.
        digest = _asked(ctx, given, verb, hold_lines(item), item["shown_digest"], hold)
    args = {"hold": hold, "digest": digest}
    done = obey(settings, verb, given["reason"], args, given["command_id"])
    text = f"{done['hold']} is {done['state']}: {done['tool']} of {done['run']}"
    if done["claimed_by"]:
        text += f"\nnote: {safe_line(done['claimed_by'])} had claimed it"
    if done["by"] == "here":
        text += "\nno fleet runs here; it is acted on at the next `vedette run`"
    say(given["as_json"], done, f"{text}\nsee: {prefix(ctx)} explain {done['run']}")


def found_hold(store: Reads, hold: str) -> dict[str, Any]:
    """Return all that is shown of a hold, by its id. Raises NotFound."""
    from vedette.domain.base.errors import NotFound
    from vedette.ledger.history.lists import hold_item

    row = store.action(f"act_{hold.removeprefix('hold_').removeprefix('act_')}")
    if row is None or row.hold is None:
        raise NotFound(f"there is no hold {hold!r}", mend="see `vedette hold list`")
    return hold_item(store, row, SystemClock().now_us())


def _asked(
    ctx: click.Context,
    given: Mapping[str, Any],
    verb: str,
    lines: Sequence[str],
    digest: str,
    name: str,
) -> str:
    """Show what is answered and ask, unless the person named what they had been shown before.

    Returns the digest that the answer is for. Raises NotShown where nobody can be asked.
    """
    if given["digest"] is None and not given["yes"] and not sys.stdin.isatty():
        raise NotShown(
            f"nobody can be asked here: there is no terminal to {verb} from",
            mend=f"look at it, then name what you saw: {prefix(ctx)} hold show {name}",
        )
    if given["digest"] is not None or given["yes"]:
        if not given["as_json"]:
            click.echo("\n".join(lines))
        return given["digest"] or digest
    click.echo("\n".join(lines), err=given["as_json"])
    if not click.confirm(f"{verb}?", default=False, err=given["as_json"]):
        raise click.Abort
    return digest


def in_group(found: Mapping[str, Any]) -> tuple[list[str], str]:
    """Return all that is shown of a group, of many holds the oldest, and the digest of that."""
    from vedette.ledger.history.hold_groups import digest_of_group
    from vedette.operations.approvals import AT_ONCE

    listed = dict(list(found["holds"].items())[:AT_ONCE])
    lines = group_lines(found, 0)
    if len(listed) < found["count"]:
        lines.append(f"    of them the oldest {len(listed)} now")
    for member in found["members"][:AT_ONCE]:
        lines += ["", *hold_lines(member)]
    digest = digest_of_group(listed)
    return [*lines, "", f"{found['group']} is shown as {digest[:DIGITS]}"], digest


def _group(ctx: click.Context, verb: str, given: Mapping[str, Any]) -> None:
    from vedette.ledger.history.hold_groups import group
    from vedette.ledger.history.review import refuse_unseen
    from vedette.operations.approvals import AT_ONCE

    settings = settings_of(ctx)
    with reading(settings) as store:
        found = group(store, SystemClock().now_us(), given["group"])
    listed = dict(list(found["holds"].items())[:AT_ONCE])
    lines, digest = in_group(found)
    if given["digest"] is not None:
        refuse_unseen({"hold": found["group"], "shown_digest": digest}, given["digest"])
    if verb == "approve" or sys.stdin.isatty():
        _asked(ctx, given, verb, lines, digest, found["group"])
    args = {"holds": listed, "group": found["group"]}
    done = obey(settings, f"{verb}_group", given["reason"], args, given["command_id"])
    with reading(settings) as store:
        done |= _not_touched(store, found, listed)
    say(given["as_json"], done, "\n".join(_told(done, verb)))
    if done["refused"]:
        ctx.exit(1)


def _not_touched(
    store: Reads, shown: Mapping[str, Any], listed: Mapping[str, str]
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


def _told(done: Mapping[str, Any], verb: str) -> list[str]:
    word = "approved" if verb == "approve" else "denied"
    lines = []
    for result in done["results"]:
        said = f"not {word}: {safe_line(result['refused'])}" if result["refused"] else word
        claimed = f" ({safe_line(result['claimed_by'])} had claimed it)"
        lines.append(f"{result['hold']}  {said}" + (claimed if result["claimed_by"] else ""))
    lines.append(f"{done['answered']} {word}, {done['refused']} refused")
    if done["left"]:
        lines.append(f"{len(done['left'])} of the group are left: repeat this to answer them")
    if done["joined"]:
        lines.append(
            f"{len(done['joined'])} more joined the group since it was shown; they are not touched"
        )
    if done["by"] == "here":
        lines.append("no fleet runs here; they are acted on at the next `vedette run`")
    return lines

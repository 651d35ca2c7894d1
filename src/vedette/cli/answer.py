"""`vedette approve` and `vedette deny`: a person's answer to a hold, or to a group of them."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, TypeVar

import click

from vedette.cli.common import human_verb, obey, prefix, reading, say, settings_of
from vedette.cli.showing import group_lines, hold_lines, safe_line
from vedette.clock import SystemClock
from vedette.errors import BadCommand

if TYPE_CHECKING:
    from vedette.storage.reads import Reads

F = TypeVar("F", bound=Callable[..., Any])


def _answered(verb: F) -> F:
    """Give a verb what both answers take."""
    digest = click.option(
        "--digest", metavar="HEX", help="Only if the hold is still for the action of this digest."
    )
    group = click.option(
        "--group", metavar="GROUP", help="Every hold of the group, as it is shown now."
    )
    return click.argument("hold", required=False)(group(digest(human_verb(verb))))


@click.command()
@_answered
@click.option("--yes", is_flag=True, help="Do not ask; needed where there is no terminal.")
@click.pass_context
def approve(ctx: click.Context, /, **given: Any) -> None:
    """Approve exactly the action that HOLD holds, once; it is shown first.

    It is decided again under the policy of that moment before it is done.
    """
    _answer(ctx, "approve", given)


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
    settings, digest = settings_of(ctx), given["digest"]
    hold, as_json = given["hold"], given["as_json"]
    item: dict[str, Any] | None = None
    if verb == "approve" and digest is None:
        with reading(settings) as store:
            hold, item = _item(store, hold)
        _ask(given, "approve", "\n".join(hold_lines(item)), f"--digest {item['digest']}")
        # What was shown is what is approved, whatever happens meanwhile.
        digest = item["digest"]
    args = {"hold": hold, "digest": digest}
    done = obey(settings, verb, given["reason"], args, given["command_id"])
    text = f"{done['hold']} is {done['state']}: {done['tool']} of {done['run']}"
    if done["claimed_by"]:
        text += f"\nnote: {safe_line(done['claimed_by'])} had claimed it"
    if done["by"] == "here":
        text += "\nno fleet runs here; it is acted on at the next `vedette run`"
    say(as_json, done, f"{text}\nsee: {prefix(ctx)} explain {done['run']}")


def _item(store: Reads, hold: str) -> tuple[str, dict[str, Any]]:
    """Return a hold by its id. Raises NotFound."""
    from vedette.errors import NotFound
    from vedette.timeline import hold_item

    row = store.action(f"act_{hold.removeprefix('hold_').removeprefix('act_')}")
    if row is None or row.hold is None:
        raise NotFound(f"there is no hold {hold!r}", mend="see `vedette hold list`")
    return hold, hold_item(store, row, SystemClock().now_us())


def _ask(given: Mapping[str, Any], verb: str, shown: str, digest: str = "") -> None:
    """Show what is answered and ask. Raises BadCommand where nobody can be asked."""
    if given["yes"]:
        if not given["as_json"]:
            click.echo(shown)
        return
    if not sys.stdin.isatty():
        also = f", or {digest} to approve just what you have seen" if digest else ""
        raise BadCommand(
            f"nobody can be asked here: there is no terminal to {verb} from",
            mend=f"look at it first, then add --yes{also}",
        )
    click.echo(shown, err=given["as_json"])
    if not click.confirm(f"{verb}?", default=False, err=given["as_json"]):
        raise click.Abort


def _group(ctx: click.Context, verb: str, given: Mapping[str, Any]) -> None:
    from vedette.answering import AT_ONCE
    from vedette.timeline.groups import group

    if given["digest"] is not None:
        raise BadCommand("a group has no one digest", mend="leave --digest out")
    settings = settings_of(ctx)
    with reading(settings) as store:
        found = group(store, SystemClock().now_us(), given["group"])
    listed = dict(list(found["holds"].items())[:AT_ONCE])
    lines = group_lines(found)
    if len(listed) < found["count"]:
        lines.append(f"    of them the oldest {len(listed)} now")
    for member in found["members"][:AT_ONCE]:
        lines += ["", *hold_lines(member)] if verb == "approve" else []
        lines.append(f"  {'digest' if verb == 'approve' else member['hold']}  {member['digest']}")
    if verb == "approve" or sys.stdin.isatty():
        _ask(given, verb, "\n".join(lines))
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
    from vedette.timeline.groups import groups

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

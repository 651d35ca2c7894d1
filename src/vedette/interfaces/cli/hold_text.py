"""Text of a hold that a person is shown before they are asked: all of it, and safe to print.

What strangers wrote stands behind a bar, and so does whatever goes on from the line above: no
content begins a line, so none can pass for one of ours.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from vedette.domain.base.safe_text import BAR, escape_text, wrap_line
from vedette.domain.display_text import (
    INSIDE_HEADING,
    OUTSIDE_HEADING,
    format_event,
    format_event_line,
)
from vedette.interfaces.cli.output import format_time, terminal_columns

WIDTH = 80
# As many digits of a digest as a command names, and as many members as a list of groups shows.
DIGEST_DIGITS = 16
MAX_MEMBERS = 50


def terminal_width() -> int:
    """Return the terminal's columns for text of strangers, which it must not break itself."""
    return min(WIDTH, terminal_columns() or WIDTH)


def safe_json(value: Any) -> str:
    """Return a value as JSON that is safe to print: whole, with all but plain characters escaped.

    Letters of all languages stay; what would move a cursor, reverse a line or hide itself does not.
    """
    return escape_text(json.dumps(value, ensure_ascii=False))


def safe_line(value: Any) -> str:
    """Return a value as one line of text that is safe to print at a terminal."""
    return safe_json(str(value))[1:-1]


def hold_lines(item: Mapping[str, Any]) -> list[str]:
    """Return all that an answer to a hold is for, as lines: exact arguments, none cut short."""
    resource = item["resource"] or {}
    lines = [
        f"HOLD {item['hold']}",
        f"  agent     {item['agent']}",
        f"  action    {item['tool']}  (digest {item['digest'][:16]}…)",
        f"  touches   {resource.get('type', '?')} {safe_line(resource.get('id', '?'))}: "
        f"{item['verb'] or '?'}" + (", high impact" if item["high_impact"] else ""),
    ]
    lines += format_event(item["about"], terminal_width(), 2)
    if item["erased"]:
        lines.append("  its arguments were erased")
    for argument in item["arguments"] or ():
        lines.append(f"  {argument['name']} = {safe_json(argument['value'])}")
        lines.append(f"      {_origin_text(argument)}")
    if item["label"] and item["confidence_milli"] is not None:
        sure = item["confidence_milli"] / 1000
        lines.append(f"  judged    {safe_line(item['label'])}, confidence {sure:g}")
    if opinion := item["opinion"]:
        sure = opinion["confidence_milli"] / 1000
        lines.append(f"  opinion   the judge says {safe_line(opinion['label'])}, {sure:g}")
        for one in opinion["actions"]:
            lines.append(f"      it would {safe_line(one['tool'])} {safe_json(one['arguments'])}")
    if item["why"]:
        lines.append(f"  why       {safe_line(item['why'])}")
    reasons = "; ".join(safe_line(reason) for reason in item["reasons"] or ())
    lines.append(f"  held by   {item['rule']}" + (f" ({reasons})" if reasons else ""))
    if item["effect"]:
        lines.append(f"  effect    {item['effect']}: it may have happened already")
    inverse = item["inverse"]
    lines.append(f"  undo      {inverse}" if inverse else "  undo      cannot be taken back")
    if item["expires"]:
        lines.append(f"  expires   {format_time(item['expires'])}, which is a no")
    lines += attention_lines(item)
    lines.append(f"  shown as  {item['shown_digest'][:DIGEST_DIGITS]}")
    return fold_lines(lines, terminal_width())


def attention_lines(item: Mapping[str, Any]) -> list[str]:
    """Return who looks at a hold and what was noted about it, as lines."""
    lines = []
    if claim := item["claim"]:
        lines.append(f"  claimed   by {safe_line(claim['by'])} until {format_time(claim['until'])}")
    for note in item["notes"]:
        text = "(erased)" if note["erased"] else safe_line(note["text"])
        lines.append(f"  note      {safe_line(note['by'])}: {text}")
    return lines


def item_lines(item: Mapping[str, Any]) -> list[str]:
    """Return a hold of a list as lines: who, about what, since when and the exact action."""
    lines = [
        f"{item['hold']}  {item['agent']}: {item['tool']}",
        f"    {item['state']} for {_format_age(item['age_us'])}, waits for {item['waits']}",
        *format_event(item["about"], terminal_width(), 4),
        *(f"    {line}" for line in _argument_lines(item)),
    ]
    if item["why"]:
        lines.append(f"    why: {safe_line(item['why'])}")
    reasons = "; ".join(item["reasons"] or ())
    lines.append(f"    held by {item['rule']}" + (f": {safe_line(reasons)}" if reasons else ""))
    if item["effect"]:
        lines.append(f"    its effect is {item['effect']}")
    if item["expires"]:
        lines.append(f"    without an answer it is denied {format_time(item['expires'])}")
    lines += [f"  {line}" for line in attention_lines(item)]
    return fold_lines(lines, terminal_width(), at_spaces=True)


def _argument_lines(item: Mapping[str, Any]) -> list[str]:
    """Return the arguments of a hold, each with where it comes from if that is told."""
    if item["erased"]:
        return ["its arguments were erased"]
    lines = []
    for given in item["arguments"] or ():
        sources = (given["origin"], given["source"])
        origin = ", ".join(safe_line(part) for part in sources if part)
        value = _truncate(safe_json(given["value"]))
        lines.append(f"{given['name']} = {value}" + (f"  [{origin}]" if origin else ""))
    return lines


def _format_age(age_us: int | None) -> str:
    if age_us is None:
        return "an unknown time"
    seconds = age_us // 1_000_000
    for size, unit in ((86_400, "d"), (3_600, "h"), (60, "min")):
        if seconds >= size:
            return f"{seconds // size} {unit}"
    return f"{seconds} s"


def _origin_text(argument: Mapping[str, Any]) -> str:
    origin = f"{argument['origin'] or 'unknown'}"
    if argument["source"]:
        origin += f", from {safe_line(argument['source'])}"
    return origin + ("; decides who, where or which" if argument["sink"] else "")


def group_lines(group: Mapping[str, Any], members: int = MAX_MEMBERS) -> list[str]:
    """Return a group of holds as lines: what is alike, what differs, what each is about."""
    label = f", judged {safe_line(group['label'])}" if group["label"] else ""
    lines = [
        f"{group['group']}  {group['count']} × {group['agent']}: {group['tool']}{label}",
        f"    held by {group['rule']}, the oldest since {format_time(group['since'] or 0)}",
    ]
    for name, value in group["same"].items():
        lines.append(f"    {name} = {_truncate(safe_json(value))}")
    for name, difference in group["differ"].items():
        values = ", ".join(_truncate(safe_json(value), 40) for value in difference["values"])
        more = difference["different"] - len(difference["values"])
        lines.append(f"    {name} differs: {values}" + (f" and {more} more" if more > 0 else ""))
    if group["expires"]:
        lines.append(f"    the first is denied {format_time(group['expires'])} without an answer")
    if members:
        outside = any(member["about"].get("outside", True) for member in group["members"])
        lines.append(f"    {OUTSIDE_HEADING if outside else INSIDE_HEADING}")
    for member in group["members"][:members]:
        lines.append(format_event_line(member["about"], f"    {BAR}"))
    if members and (left := group["count"] - members) > 0:
        lines.append(f"    and {left:,} more: see `vedette hold`")
    return fold_lines(lines, terminal_width(), at_spaces=True)


def whole_group_lines(group: Mapping[str, Any], most: int, digest: str) -> list[str]:
    """Return all that an answer to a group is for: its oldest `most` holds, each whole."""
    lines = group_lines(group, 0)
    if group["count"] > most:
        lines.append(f"    of them the oldest {most} now")
    for member in group["members"][:most]:
        lines += ["", *hold_lines(member)]
    return [*lines, "", f"{group['group']} is shown as {digest[:DIGEST_DIGITS]}"]


def answer_lines(answer: Mapping[str, Any], verb: str) -> list[str]:
    """Return what came of an answer to a group of holds, hold by hold, as lines."""
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
    return lines


def fold_lines(lines: Sequence[str], width: int = WIDTH, *, at_spaces: bool = False) -> list[str]:
    """Return lines to print, none wider than `width`; all is there, and no space made into a break.

    What goes on stands behind the bar, as long a word as somebody may have written: so what is
    shown is exactly what is there, and none of it begins a line.
    """
    found: list[str] = []
    for line in lines:
        found += wrap_line(line, width, at_spaces=at_spaces or line.lstrip().startswith(BAR))
    return found


def _truncate(text: str, max_chars: int = 160) -> str:
    return text if len(text) <= max_chars else text[:max_chars] + "…"

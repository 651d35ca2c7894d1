"""What people are shown of an event, in lines: behind the bar, because strangers wrote it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from vedette.domain.base.safe_text import BAR, defang_text, escape_text, fold_text, quote_lines

OUTSIDE = "written outside, not by us:"
INSIDE = "from the fleet itself:"

_LONGEST = 140
_NAME = 40


def about_lines(about: Mapping[str, Any], width: int, indent: int = 0) -> list[str]:
    """Return all that is shown of an event (`timeline.review.about_event`), within `width`."""
    front = " " * indent
    if about["erased"]:
        return [f"{front}what it is about was erased"]
    rows = [("from", about["who"]), ("about", about["title"]), ("when", about["when"])]
    rows += [(each["name"][:_NAME], each) for each in about["fields"]]
    lines = [f"{about['type']} from {about['source']}"]
    for name, part in rows:
        if part is not None and (name, part["value"]) != ("from", about["source"]):
            more = f" … ({part['more']:,} more)" if part["more"] else ""
            lines.append(f"{name}: {part['value']}{more}")
    found = [
        f"{front}{OUTSIDE if about['outside'] else INSIDE}",
        *quote_lines(lines, width, indent),
    ]
    if (text := about["text"]) is not None:
        told = ["", *text["value"].split("\n")]
        found += quote_lines(told, width, indent)
        if text["more"]:
            found.append(f"{front}({text['more']:,} characters more)")
    # Outside the bar, where no value and no name of a stranger's can say it of itself.
    vouched = [name for name, part in rows if part is not None and part["trusted"]]
    if vouched:
        named = f"vouched for by its source: {', '.join(vouched)}"
        found += [front + line for line in fold_text(escape_text(named), width - indent)]
    return found


def about_line(about: Mapping[str, Any], front: str = BAR, most: int = _LONGEST) -> str:
    """Return what is shown of an event in one line: from whom, about what, its first words.

    Of more than `most` columns it has the first.
    """
    if about["erased"]:
        return f"{front}(erased)"
    parts = [about[name]["value"] for name in ("who", "title") if about[name] is not None]
    if about["text"] is not None:
        parts.append(" ".join(about["text"]["value"].split()))
    else:
        parts += [f"{each['name'][:_NAME]} {each['value']}" for each in about["fields"]]
    line, *more = fold_text(escape_text(" · ".join(parts)), most)
    return front + line + ("…" if more else "")


def defang(about: Mapping[str, Any]) -> dict[str, Any]:
    """Return what is shown of an event with nothing in it that a mail or a chat makes a link of."""

    def part(found: Any) -> Any:
        return found and {**found, "value": _defanged(found["value"])}

    if about["erased"]:
        return dict(about)
    return {
        **about,
        **{name: defang_text(about[name]) for name in ("type", "source")},
        **{name: part(about[name]) for name in ("title", "who", "when", "text")},
        "fields": [{**part(one), "name": defang_text(one["name"])} for one in about["fields"]],
    }


def _defanged(text: str) -> str:
    return "\n".join(defang_text(line) for line in text.split("\n"))

"""The display of an event in lines of text: behind the bar, because strangers wrote it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from vedette.domain.base.safe_text import BAR, defang_text, escape_text, quote_lines, wrap_text

OUTSIDE_HEADING = "written outside, not by us:"
INSIDE_HEADING = "from the fleet itself:"

_MAX_COLUMNS = 140
_NAME_CHARS = 40


def format_event(about: Mapping[str, Any], width: int, indent: int = 0) -> list[str]:
    """Return an event's display (`history.review.about_event`) in lines within `width`."""
    front = " " * indent
    if about["erased"]:
        return [f"{front}what it is about was erased"]
    rows = [("from", about["who"]), ("about", about["title"]), ("when", about["when"])]
    rows += [(each["name"][:_NAME_CHARS], each) for each in about["fields"]]
    lines = [f"{about['type']} from {about['source']}"]
    for name, part in rows:
        if part is not None and (name, part["value"]) != ("from", about["source"]):
            more = f" … ({part['more']:,} more)" if part["more"] else ""
            lines.append(f"{name}: {part['value']}{more}")
    output = [
        f"{front}{OUTSIDE_HEADING if about['outside'] else INSIDE_HEADING}",
        *quote_lines(lines, width, indent),
    ]
    if (text := about["text"]) is not None:
        quoted = ["", *text["value"].split("\n")]
        output += quote_lines(quoted, width, indent)
        if text["more"]:
            output.append(f"{front}({text['more']:,} characters more)")
    # Outside the bar, where no value and no name of a stranger's can say it of itself.
    vouched = [name for name, part in rows if part is not None and part["trusted"]]
    if vouched:
        named = f"vouched for by its source: {', '.join(vouched)}"
        output += [front + line for line in wrap_text(escape_text(named), width - indent)]
    return output


def format_event_line(
    about: Mapping[str, Any], front: str = BAR, max_columns: int = _MAX_COLUMNS
) -> str:
    """Return an event's display in one line: from whom, about what, its first words.

    Of more than `max_columns` columns it has the first.
    """
    if about["erased"]:
        return f"{front}(erased)"
    parts = [about[name]["value"] for name in ("who", "title") if about[name] is not None]
    if about["text"] is not None:
        parts.append(" ".join(about["text"]["value"].split()))
    else:
        parts += [f"{each['name'][:_NAME_CHARS]} {each['value']}" for each in about["fields"]]
    line, *more = wrap_text(escape_text(" · ".join(parts)), max_columns)
    return front + line + ("…" if more else "")


def defang_event(about: Mapping[str, Any]) -> dict[str, Any]:
    """Return an event's display with nothing in it that a mail or a chat makes a link of."""

    def part(found: Any) -> Any:
        return found and {**found, "value": _defang_lines(found["value"])}

    if about["erased"]:
        return dict(about)
    return {
        **about,
        **{name: defang_text(about[name]) for name in ("type", "source")},
        **{name: part(about[name]) for name in ("title", "who", "when", "text")},
        "fields": [{**part(one), "name": defang_text(one["name"])} for one in about["fields"]],
    }


def _defang_lines(text: str) -> str:
    return "\n".join(defang_text(line) for line in text.split("\n"))

"""A picture of a series as one SVG file: no script, no font, nothing fetched from anywhere.

Colour is never the only carrier: values are a solid line, the threshold a dashed one, incidents
hatched spans with a word, marks have a shape of their own and a word in the legend, and each says
in its title what it is. The picture follows the reader's light or dark scheme.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from html import escape
from typing import Any

WIDTH, HEIGHT = 960, 520
_LEFT, _RIGHT = 72, 20
_VALUE_AREA = (64, 300)
_SCORE_AREA = (344, 436)

# What a mark is -> its shape, as a path around 0, 0, and whether it is filled.
_SHAPES = {
    "alarm": ("M0-5L5 4H-5Z", True),
    "held": ("M-4-4H4V4H-4Z", False),
    "approved": ("M-5 0L-1 4L5-4", False),
    "denied": ("M-4-4L4 4M-4 4L4-4", False),
    "expired": ("M-4-5H4L-4 5H4Z", False),
    "corrected": ("M0-5L5 0L0 5L-5 0Z", True),
}

# Steps of the axis of time, in microseconds: a minute to ten years.
_MINUTE = 60_000_000
_STEPS_US = tuple(
    n * _MINUTE
    for n in (
        *(1, 2, 5, 10, 15, 30, 60, 120, 180, 360, 720),
        *(1440 * days for days in (1, 2, 7, 14, 30, 91, 182, 365, 1825, 3650)),
    )
)

_STYLE = """
svg{--ink:#1c2430;--dim:#5b6673;--line:#12608f;--limit:#9a3412;--span:#b45309;--rule:#d5dbe1;
--paper:#ffffff;background:var(--paper);font:13px system-ui,sans-serif}
@media(prefers-color-scheme:dark){svg{--ink:#e8edf2;--dim:#a3afbb;--line:#7cc4f0;--limit:#fdba74;
--span:#fbbf24;--rule:#33404d;--paper:#12181f}}
text{fill:var(--ink)}.dim{fill:var(--dim);font-size:12px}.head{font-size:17px;font-weight:600}
.rule{stroke:var(--rule);stroke-width:1}.value{fill:none;stroke:var(--line);stroke-width:1.5}
.dot{fill:var(--line)}.score{fill:none;stroke:var(--dim);stroke-width:1}
.limit{fill:none;stroke:var(--limit);stroke-width:1.5;stroke-dasharray:7 4}
.span{stroke:var(--span);stroke-width:1}.word{fill:var(--span);font-size:12px;font-weight:600}
.mark{stroke:var(--ink);stroke-width:1.8;fill:none}.full{fill:var(--ink)}
.gap{stroke:var(--dim);stroke-width:1;stroke-dasharray:2 4}
"""


def picture(series: Mapping[str, Any], format_time: Callable[[int], str]) -> str:
    """Return the SVG of what `plot` told; `format_time` writes instants for the reader."""
    points = series["points"]
    x_scale = _Scale(series["from"], series["to"], _LEFT, WIDTH - _RIGHT)
    values = [point["value"] for point in points]
    y_scale = _Scale(*_padded_range(values), _VALUE_AREA[1], _VALUE_AREA[0] + 14)
    scored = [point for point in points if point["score"] is not None]
    limits = [point["threshold"] for point in scored if point["threshold"] is not None]
    highest = max([point["score"] for point in scored] + limits + [1.0])
    score_up = _Scale(0.0, highest * 1.05, _SCORE_AREA[1], _SCORE_AREA[0])
    said = describe_picture(series, format_time)
    unit = f" ({series['unit']})" if series["unit"] else ""
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" '
        f'width="{WIDTH}" height="{HEIGHT}" role="img" aria-label="{_escape_text(said)}">',
        f"<title>{_escape_text(said)}</title><style>{_STYLE}</style>",
        '<defs><pattern id="hatch" width="7" height="7" patternUnits="userSpaceOnUse" '
        'patternTransform="rotate(45)"><line y2="7" stroke="var(--span)" stroke-width="1.6" '
        'stroke-opacity=".55"/></pattern></defs>',
        f'<text class="head" x="{_LEFT}" y="24">{_escape_text(series["series"])}: '
        f"{_escape_text(series['measure'] + unit)}</text>",
        f'<text class="dim" x="{_LEFT}" y="44">'
        f"{_escape_text(_subtitle(series, format_time))}</text>",
        *_axis(y_scale, _ticks(y_scale.low, y_scale.high)),
        *_time_axis(x_scale, format_time),
        *_incident_spans(series["incidents"], x_scale, format_time),
        *_gap_lines(series["gaps"], x_scale),
        *_polyline("value", points, "value", x_scale, y_scale, series["gaps"]),
    ]
    if scored:
        parts += [
            f'<text class="dim" x="{_LEFT}" y="{_SCORE_AREA[0] - 8}">score of '
            f"{_escape_text(series['agent'])}; dashed: its threshold</text>",
            *_axis(score_up, _ticks(0.0, highest, 3)),
            *_polyline("score", scored, "score", x_scale, score_up, series["gaps"]),
            *_polyline("limit", scored, "threshold", x_scale, score_up, ()),
        ]
    parts += _marks(series["marks"], points, x_scale, y_scale, format_time)
    parts += _legend(series)
    return "\n".join((*parts, "</svg>", ""))


def describe_picture(series: Mapping[str, Any], format_time: Callable[[int], str]) -> str:
    """Return in words what the SVG picture shows: for those who hear it."""
    points, marks = series["points"], series["marks"]
    values = [point["value"] for point in points]
    span = f"from {format_time(series['from'])} to {format_time(series['to'])}"
    parts = [f"{series['series']} {span}, {series['recorded']:,} events recorded"]
    if values:
        unit = f" {series['unit']}" if series["unit"] else ""
        parts.append(f"between {min(values):.6g} and {max(values):.6g}{unit}")
    parts.append(_count_text(len(series["incidents"]), "incident"))
    parts += [_count_text(n, word) for word, n in _count_marks(marks).items()]
    parts.append(_count_text(len(series["gaps"]), "gap") if series["gaps"] else "no gap")
    return "; ".join(parts)


def _count_text(number: int, word: str) -> str:
    if word in ("incident", "alarm", "gap"):
        return f"{number or 'no'} {word}{'' if number == 1 else 's'}"
    return f"{number} {word}"


def _count_marks(marks: Sequence[Mapping[str, Any]]) -> dict[str, int]:
    counts: dict[str, int] = {}
    for mark in marks:
        counts[mark["what"]] = counts.get(mark["what"], 0) + 1
    return dict(sorted(counts.items()))


# --- scales -------------------------------------------------------------------------------------


class _Scale:
    """From a number to a place on the paper."""

    def __init__(self, low: float, high: float, start: float, end: float) -> None:
        self.low, self.high, self.start, self.end = low, high, start, end

    def position(self, number: float) -> float:
        # In halves: two values far apart have a difference beyond the largest float.
        width = self.high / 2 - self.low / 2
        share = (number / 2 - self.low / 2) / width if width else 0.5
        return round(self.start + share * (self.end - self.start), 1)


def _padded_range(values: Sequence[float]) -> tuple[float, float]:
    """Return the range of the values with a little room, never empty."""
    low, high = min(values, default=0.0), max(values, default=1.0)
    room = (high / 2 - low / 2) * 0.08 or abs(high) * 0.1 or 1.0
    return (low - room, high + room) if math.isfinite(high + room - low) else (low, high)


def _ticks(low: float, high: float, max_ticks: int = 5) -> list[float]:
    """Return round numbers within a range: at most `max_ticks` and one."""
    raw = (high / 2 - low / 2) / max_ticks * 2
    if not math.isfinite(raw) or raw <= 0:
        return [low]
    power: float = 10.0 ** math.floor(math.log10(raw))
    step = next(power * n for n in (1, 2, 5, 10) if power * n >= raw * 0.999)
    first = math.ceil(low / step)
    return [n * step for n in range(first, first + max_ticks + 2) if n * step <= high]


# --- what is drawn ------------------------------------------------------------------------------


def _axis(scale: _Scale, ticks: Sequence[float]) -> list[str]:
    drawn = []
    for tick in ticks:
        y = scale.position(tick)
        drawn.append(f'<line class="rule" x1="{_LEFT}" x2="{WIDTH - _RIGHT}" y1="{y}" y2="{y}"/>')
        drawn.append(
            f'<text class="dim" x="{_LEFT - 8}" y="{y + 4}" text-anchor="end">{tick:.6g}</text>'
        )
    return drawn


def _time_axis(x_scale: _Scale, format_time: Callable[[int], str]) -> list[str]:
    """Return up to nine round instants, each with its day where that is another than before."""
    drawn, day = [], ""
    low, high = int(x_scale.low), int(x_scale.high)
    step = next((step for step in _STEPS_US if (high - low) // step <= 8), _STEPS_US[-1])
    places = list(range(-(-low // step) * step, high + 1, step))[:400]
    for at in places or [low]:
        # As `when` writes it: the day, a space or a T, the time to the second, the offset.
        text = format_time(at)
        x = x_scale.position(at)
        drawn.append(
            f'<line class="rule" x1="{x}" x2="{x}" y1="{_VALUE_AREA[0]}" y2="{_SCORE_AREA[1]}"/>'
        )
        lines = [text[11:19].removesuffix(":00")]
        if text[:10] != day:
            day = text[:10]
            lines.append(day)
        # A day's name near an end would leave the paper if it were centred.
        at_end, at_start = x > WIDTH - 60, x < _LEFT + 20
        anchor = "end" if at_end else "start" if at_start else "middle"
        drawn += [
            f'<text class="dim" x="{x}" y="{_SCORE_AREA[1] + 18 + 16 * row}" '
            f'text-anchor="{anchor}">{_escape_text(line)}</text>'
            for row, line in enumerate(lines)
        ]
    return drawn


def _polyline(
    css: str,
    points: Sequence[Mapping[str, Any]],
    name: str,
    x_scale: _Scale,
    y_scale: _Scale,
    gaps: Sequence[Mapping[str, int]],
) -> list[str]:
    """Return the line through the points, broken at the gaps; a point alone is a dot."""
    ends = {gap["to"] for gap in gaps}
    pieces: list[list[str]] = [[]]
    for point in points:
        if point["at"] in ends:
            pieces.append([])
        if point[name] is not None:
            pieces[-1].append(f"{x_scale.position(point['at'])} {y_scale.position(point[name])}")
    drawn = []
    for piece in pieces:
        if len(piece) == 1:
            x, y = piece[0].split()
            drawn.append(f'<circle class="dot" cx="{x}" cy="{y}" r="2"/>')
        elif piece:
            drawn.append(f'<polyline class="{css}" points="{",".join(piece)}"/>')
    return drawn


def _incident_spans(
    incidents: Sequence[Mapping[str, Any]], x_scale: _Scale, format_time: Callable[[int], str]
) -> list[str]:
    drawn = []
    free = -math.inf
    for one in incidents:
        x, end = x_scale.position(one["from"]), x_scale.position(one["to"])
        width = round(max(3.0, end - x), 1)
        over = f"until {format_time(one['to'])}" if one["closed_by"] else "still open"
        word = "incident" if one["closed_by"] else "incident, open"
        drawn.append(
            f"<g><title>incident of {_escape_text(one['agent'])} "
            f"from {_escape_text(format_time(one['from']))}, "
            f"{_escape_text(over)}</title>"
            f'<rect class="span" x="{x}" y="{_VALUE_AREA[0]}" width="{width}" '
            f'height="{_VALUE_AREA[1] - _VALUE_AREA[0]}" fill="url(#hatch)"/></g>'
        )
        # A word over a word helps nobody; the title of each span has it anyway.
        if x >= free:
            at_end = x > WIDTH - 120
            place = f'x="{end}" text-anchor="end"' if at_end else f'x="{x}"'
            drawn.append(f'<text class="word" {place} y="{_VALUE_AREA[0] - 4}">{word}</text>')
            free = x + 9 * len(word)
    return drawn


def _gap_lines(gaps: Sequence[Mapping[str, int]], x_scale: _Scale) -> list[str]:
    drawn = []
    for gap in gaps:
        x, end = x_scale.position(gap["from"]), x_scale.position(gap["to"])
        y = _VALUE_AREA[1] - 6
        drawn.append(f'<line class="gap" x1="{x}" x2="{end}" y1="{y}" y2="{y}"/>')
        if end - x > 60:
            drawn.append(
                f'<text class="dim" x="{round((x + end) / 2, 1)}" y="{y - 6}" '
                'text-anchor="middle">no data</text>'
            )
    return drawn


def _marks(
    marks: Sequence[Mapping[str, Any]],
    points: Sequence[Mapping[str, Any]],
    x_scale: _Scale,
    y_scale: _Scale,
    format_time: Callable[[int], str],
) -> list[str]:
    """Return the marks above their points, those of one instant above one another."""
    values = {point["at"]: point["value"] for point in points}
    stacked: dict[tuple[int, str], int] = {}
    height: dict[int, int] = {}
    drawn = []
    for mark in marks:
        # An incident and its notice are held, and answered, as two: one shape says it.
        kind = (mark["at"], mark["what"])
        stacked[kind] = stacked.get(kind, 0) + 1
        if stacked[kind] > 1:
            continue
        level = height[mark["at"]] = height.get(mark["at"], 0) + 1
        base = y_scale.position(values[mark["at"]]) if mark["at"] in values else _VALUE_AREA[1]
        y = max(_VALUE_AREA[0] + 6.0, base - 14.0 * level)
        path, filled = _SHAPES[str(mark["what"]).partition(" ")[0]]
        parts = [mark["what"], mark["tool"], f"by {mark['by']}" if mark["by"] else None]
        said = " ".join(str(part) for part in parts if part)
        note = f": {mark['note']}" if mark["note"] else ""
        drawn.append(
            f'<g transform="translate({x_scale.position(mark["at"])} {round(y, 1)})">'
            f"<title>{_escape_text(said)}, {_escape_text(format_time(mark['at']))}"
            f"{_escape_text(note)}</title>"
            f'<path class="mark{" full" if filled else ""}" d="{path}"/></g>'
        )
    return drawn


def _legend(series: Mapping[str, Any]) -> list[str]:
    """Return one line that names every shape that is there."""
    drawn, x = [], float(_LEFT)
    for what, count in _count_marks(series["marks"]).items():
        path, filled = _SHAPES[what.partition(" ")[0]]
        drawn.append(
            f'<path class="mark{" full" if filled else ""}" d="{path}" '
            f'transform="translate({x + 6} {HEIGHT - 18})"/>'
        )
        drawn.append(f'<text x="{x + 18}" y="{HEIGHT - 14}">{_escape_text(what)} ({count})</text>')
        x += 44 + 7.5 * len(f"{what} ({count})")
    if series["incidents"]:
        drawn.append(
            f'<rect class="span" x="{x}" y="{HEIGHT - 25}" width="18" height="14" '
            f'fill="url(#hatch)"/><text x="{x + 24}" y="{HEIGHT - 14}">incident</text>'
        )
    return drawn


def _subtitle(series: Mapping[str, Any], format_time: Callable[[int], str]) -> str:
    # The offset is told once, here, rather than at every instant of the axis.
    zone = format_time(series["from"])[19:] or "local time"
    parts = [f"{series['recorded']:,} events", f"times {'UTC' if zone == 'Z' else zone}"]
    if series["unreadable"]:
        parts.append(f"{series['unreadable']:,} without a number")
    if series["cut"]:
        parts.append("the newest only")
    if len(series["points"]) < series["recorded"] - series["unreadable"]:
        parts.append("thinned to lowest, highest and most surprising")
    return ", ".join(parts)


def _escape_text(value: object) -> str:
    """Return text for XML: characters that XML has no place for are replaced."""
    text = "".join(c if c.isprintable() else "\N{REPLACEMENT CHARACTER}" for c in str(value))
    return escape(text, quote=True)

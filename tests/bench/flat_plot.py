"""Draws the soak's result as an SVG, in plain Python: events/s, CPU and memory over the entries."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

WIDTH, HEIGHT, LEFT, TOP, PANEL = 720, 640, 78, 64, 150
PANELS = (
    ("events_per_s", "events/s", "#1f6f8b"),
    ("cpu_us", "CPU µs per event", "#8b3a1f"),
    ("peak_mb", "memory at most, MiB", "#4b7f2a"),
)


def plot(sizes: Sequence[Mapping[str, Any]], conditions: str) -> str:
    """Return the SVG of measured sizes, each with `entries`, `waiting`, `agents` and the values.

    One panel a value, each from zero, so that what looks flat is flat; entries go by the logarithm.
    """
    last = sizes[-1]
    title = (
        f"The whole line over the length of its ledger: {last['agents']:,} agents, "
        f"up to {max(each['waiting'] for each in sizes):,} waiting runs"
    )
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" '
        'font-family="sans-serif" font-size="12" fill="#222">',
        f'<rect width="{WIDTH}" height="{HEIGHT}" fill="white"/>',
        _text(LEFT, 24, title, size=15),
        _text(LEFT, 42, conditions, size=10),
    ]
    for number, (name, label, colour) in enumerate(PANELS):
        parts += _panel(sizes, name, label, colour, TOP + number * (PANEL + 40))
    parts.append(_text(LEFT, HEIGHT - 8, "ledger entries (logarithmic)"))
    return "\n".join([*parts, "</svg>", ""])


def _panel(
    sizes: Sequence[Mapping[str, Any]], name: str, label: str, colour: str, top: int
) -> list[str]:
    right, bottom = WIDTH - 60, top + PANEL
    most = _round_up(1.15 * max(each[name] for each in sizes))
    logs = [math.log10(each["entries"]) for each in sizes]
    low, wide = min(logs), (max(logs) - min(logs)) or 1.0
    places = [
        (LEFT + 40 + (right - LEFT - 80) * (log - low) / wide, bottom - PANEL * each[name] / most)
        for log, each in zip(logs, sizes, strict=True)
    ]
    parts = [_text(LEFT, top - 6, label, colour=colour)]
    for part in (0, 0.5, 1):
        y = bottom - PANEL * part
        parts.append(f'<path d="M{LEFT} {y:.1f}H{right}" stroke="#ddd"/>')
        parts.append(_text(LEFT - 6, y + 4, f"{most * part:,.0f}", anchor="end"))
    line = " ".join(f"{x:.1f},{y:.1f}" for x, y in places)
    parts.append(f'<polyline points="{line}" fill="none" stroke="{colour}" stroke-width="2"/>')
    for (x, y), each in zip(places, sizes, strict=True):
        parts.append(f'<circle cx="{x:.1f}" cy="{y:.1f}" r="4" fill="{colour}"/>')
        parts.append(_text(x, y - 8, f"{each[name]:,.0f}", anchor="middle", colour=colour))
        parts.append(_text(x, bottom + 15, f"{each['entries']:,}", anchor="middle", size=10))
    return parts


def _round_up(value: float) -> float:
    """Return the next number of one or two digits and zeros."""
    if value <= 0:
        return 1.0
    unit = 10.0 ** (math.floor(math.log10(value)) - 1)
    return math.ceil(value / unit / 2) * unit * 2


def _text(
    x: float, y: float, words: str, *, anchor: str = "start", size: int = 12, colour: str = "#222"
) -> str:
    return (
        f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" font-size="{size}" '
        f'fill="{colour}">{escape(words)}</text>'
    )

"""Text of a replay: what came of decisions and judgements that were made again, as lines."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from vedette.domain.base.safe_text import escape_text

_MAX_DIFFERENCES = 10


def decision_line(value: Mapping[str, Any]) -> str:
    """Render in one line a replay of decisions: `value` is a replay's report as JSON."""
    reasons = value["unreplayable"]
    return (
        f"{value['decisions']:,} decisions: {value['agreed']:,} agreed, "
        f"{value['differed']:,} differed, {_lost(reasons)} unreplayable{_reasons_text(reasons)}"
    )


def decision_lines(value: Mapping[str, Any]) -> list[str]:
    """Render as lines a replay of decisions: what came of it, by whom, and what differs."""
    lines = [decision_line(value), f"decided by {', '.join(value['engine']) or 'nobody'}"]
    if value["disputed"]:
        lines.append(
            f"{value['disputed']:,} of them were denied because two engines differed then: "
            "see the entries engine.differed"
        )
    return lines + [
        f"entry {one['seq']}: recorded {_text(one['recorded'])}, again {_text(one['again'])}"
        for one in value["differences"][:_MAX_DIFFERENCES]
    ]


def judge_lines(value: Mapping[str, Any]) -> list[str]:
    """Render as lines a replay of judges: `value` is a JudgeReport as JSON."""
    reasons = value["unrecomputable"]
    lines = [
        f"{value['judgements']:,} judgements: {value['equal']:,} equal, {value['different']:,} "
        f"different, {_lost(reasons)} not made again{_reasons_text(reasons)}",
        f"{value['states']:,} kept states compared; "
        f"{value['answers']:,} turns answered by models, or by the engine, as recorded",
    ]
    for one in value["differences"][:_MAX_DIFFERENCES]:
        place = (
            f"entry {one['seq']}, run {one['run']}, event {one['event']}, " if one["seq"] else ""
        )
        lines.append(
            f"FOUND {one['what']}: {place}{one['agent']} key {escape_text(one['key'])} at "
            f"{one['position']}: recorded {_text(one['recorded'])}, again {_text(one['again'])}"
        )
    return lines


def _lost(reasons: Mapping[str, int]) -> str:
    return f"{sum(reasons.values()):,}"


def _reasons_text(reasons: Mapping[str, int]) -> str:
    why = ", ".join(f"{number:,} {reason}" for reason, number in reasons.items())
    return f" ({why})" if why else ""


def _text(value: Any) -> str:
    return escape_text(json.dumps(value, ensure_ascii=False, default=str))

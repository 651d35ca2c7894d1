"""What is told of a judgement to the ledger, and of an action to its agent."""

from __future__ import annotations

import math
from typing import Any

from vedette.domain.base.canonical import SAFE_INTEGER
from vedette.domain.judge_state import digest_state
from vedette.domain.ports import Thought
from vedette.domain.run import ActionRow
from vedette.engine.tool_calls import answer_data


def judged(thought: Thought) -> dict[str, Any]:
    """Return the numbers of a judgement that an entry may hold."""
    assert thought.confidence is not None  # it was refused else (`handle.reason`)
    fields: dict[str, Any] = {
        "label": thought.label if thought.label.isascii() else None,
        "confidence_milli": int(thought.confidence * 1000),
        "state": thought.state or None,
    }
    if thought.checkpoint is not None:
        fields["checkpoint"] = digest_state(thought.checkpoint)
    for name, value in (("score", thought.score), ("threshold", thought.threshold)):
        if value is not None and math.isfinite(value):
            # The ledger holds safe integers only; the exact value stands in the body.
            milli = max(-SAFE_INTEGER, min(SAFE_INTEGER, int(value * 1000)))
            fields[f"{name}_milli"] = milli
    return fields


def coarse(row: ActionRow) -> dict[str, Any]:
    """Return what an agent is told of an action: enough to go on, too little to probe with."""
    if row.effect == "done":
        return {"status": "done", "data": answer_data(row)}
    if row.effect in ("failed", "cancelled"):
        return {"status": "failed"}
    if row.decided == "deny":
        return {"status": "not permitted"}
    return {"status": "waiting"}

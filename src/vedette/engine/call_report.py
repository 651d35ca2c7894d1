"""What is told of a judgement to the ledger, and of an action to its agent."""

from __future__ import annotations

import math
from typing import Any

from vedette.domain.base.canonical import MAX_SAFE_INTEGER
from vedette.domain.judge_state import checkpoint_digest
from vedette.domain.ports.reasoner import ReasonerJudgement
from vedette.domain.run import ActionRow
from vedette.engine.tool_calls import answer_data


def judgement_fields(judgement: ReasonerJudgement) -> dict[str, Any]:
    """Return the numbers of a judgement that an entry may hold."""
    assert judgement.confidence is not None  # it was refused else (`handle.reason`)
    fields: dict[str, Any] = {
        "label": judgement.label if judgement.label.isascii() else None,
        "confidence_milli": int(judgement.confidence * 1000),
        "state": judgement.state or None,
    }
    if judgement.checkpoint is not None:
        fields["checkpoint"] = checkpoint_digest(judgement.checkpoint)
    for name, value in (("score", judgement.score), ("threshold", judgement.threshold)):
        if value is not None and math.isfinite(value):
            # The ledger holds safe integers only; the exact value stands in the body.
            milli = max(-MAX_SAFE_INTEGER, min(MAX_SAFE_INTEGER, int(value * 1000)))
            fields[f"{name}_milli"] = milli
    return fields


def coarse_answer(row: ActionRow) -> dict[str, Any]:
    """Return what an agent is told of an action: enough to go on, too little to probe with."""
    if row.effect == "done":
        return {"status": "done", "data": answer_data(row)}
    if row.effect in ("failed", "cancelled"):
        return {"status": "failed"}
    if row.decided == "deny":
        return {"status": "not permitted"}
    return {"status": "waiting"}

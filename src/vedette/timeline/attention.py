"""Who looks at a hold, and what people noted about it, as the ledger tells it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from vedette.timeline.record import Shown


def claim_of(told: Sequence[Shown], now_us: int) -> dict[str, Any] | None:
    """Return who claimed a hold last, if that claim still stands at `now_us`.

    `told` are the entries of its action, oldest first. A claim is no lock: it only tells.
    """
    claims = [entry for entry in told if entry.kind == "hold.claimed"]
    if not claims or int(claims[-1].get("until") or 0) <= now_us:
        return None
    last = claims[-1]
    return {"by": last.get("actor"), "at": last.get("at"), "until": last.get("until")}


def notes_of(told: Sequence[Shown]) -> list[dict[str, Any]]:
    """Return what people noted about a hold, oldest first; erased text is null."""
    return [
        {
            "seq": entry.seq,
            "at": entry.get("at"),
            "by": entry.get("actor"),
            "text": entry.told("note"),
            "erased": entry.erased,
        }
        for entry in told
        if entry.kind == "hold.noted"
    ]

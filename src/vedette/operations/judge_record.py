"""A recorded judgement, for the replay of judges to hold another against."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import orjson
from msgspec import Struct

from vedette.domain.entry import is_body_of

JUDGEMENT_KINDS = ("turn.reasoned", "run.closed")
NUMBERS = ("label", "confidence_milli", "score_milli", "threshold_milli")
# Of a turn's body what the engine says: who may read what was before it, what it was told.
_ENGINES = frozenset({"readers", "briefed", "task"})


class RecordedJudgement(Struct, frozen=True):
    """One judgement to replay: its entry, and (salt, body) if it has one that is there."""

    seq: int
    entry: Mapping[str, Any]
    salted_body: tuple[bytes, bytes] | None

    @property
    def agent(self) -> str:
        return str(self.entry["agent"])

    @property
    def position(self) -> int:
        return int(self.entry["about"])

    @property
    def turn(self) -> int:
        """Return which turn of its run it is; of a judge the first has a place in its key."""
        return int(self.entry.get("turn", 1))

    def body(self) -> dict[str, Any] | None:
        """Return the recorded turn; None if there is none, or another than the entry names."""
        if self.salted_body is None or not is_body_of(self.entry, *self.salted_body):
            return None
        found: dict[str, Any] = orjson.loads(self.salted_body[1])
        return found

    def cites(self) -> list[str] | None:
        """Return the memories that were in the briefing, as cited; None if that is not known."""
        if self.entry["kind"] == "run.closed":
            return [cite for cite in self.entry.get("memory", "").split(",") if cite]
        body = self.body()
        return None if body is None else list(body["memories"])

    def recorded_fields(self) -> dict[str, Any]:
        """Return what is recorded of the judgement, without what the engine says of it."""
        numbers = {name: self.entry[name] for name in NUMBERS if name in self.entry}
        body = {name: value for name, value in (self.body() or {}).items() if name not in _ENGINES}
        return {**numbers, **body}


def has_judgement(entry: Mapping[str, Any]) -> bool:
    """Say whether an entry of `JUDGEMENT_KINDS` holds a judgement to replay; a run may be closed
    long after its.
    """
    return entry["kind"] == "turn.reasoned" or "label" in entry

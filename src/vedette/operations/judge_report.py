"""Report of a replay of judges: counts, and the differences between the record and the events."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any

from msgspec import Struct, field

from vedette.policy.replay import MAX_DIFFERENCES

# Why a judgement is not made again. What follows from an order that a person gave is no fault.
ERASED, ARCHIVED, MISSING = "erased", "archived", "missing"
CHANGED = "code or memory changed"
UNNAMED = "recorded without its state"
UNKNOWN = "state from before"
EXPECTED_REASONS = frozenset({ERASED, ARCHIVED, CHANGED, UNNAMED, UNKNOWN})


class Difference(Struct, frozen=True):
    """A judgement, or a row, that a replay of judges finds to be not what the record comes to.

    `what` is one of order, state, judgement, checkpoint, row, not deterministic. Of `recorded` and
    `again` only that is told which differs.
    """

    what: str
    agent: str
    key: str
    position: int
    seq: int = 0
    run: str = ""
    event: str = ""
    recorded: Mapping[str, Any] = field(default_factory=dict)
    again: Mapping[str, Any] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        """Return the difference as `--json` prints it."""
        return {name: getattr(self, name) for name in self.__struct_fields__}


class JudgeReport(Struct):
    """What came of a replay of judges. `answers` are turns that a model, or the engine, answered.

    `states` counts the kept states that were compared. `unrecomputable` counts judgements by why
    they could not be made again; those not of `EXPECTED_REASONS` are faults.
    """

    judgements: int = 0
    equal: int = 0
    different: int = 0
    answers: int = 0
    states: int = 0
    unrecomputable: Counter[str] = field(default_factory=Counter)
    differences: list[Difference] = field(default_factory=list)

    @property
    def ok(self) -> bool:
        """True if all that could be made again came out as recorded, and the rest is accounted."""
        return not self.different and not set(self.unrecomputable) - EXPECTED_REASONS

    def add_difference(self, difference: Difference) -> None:
        """Count a difference; the first are kept in full."""
        self.different += 1
        if len(self.differences) < MAX_DIFFERENCES:
            self.differences.append(difference)

    def to_json(self) -> dict[str, Any]:
        """Return the report as the object that `--json` prints."""
        return {
            "ok": self.ok,
            "judgements": self.judgements,
            "equal": self.equal,
            "different": self.different,
            "answers": self.answers,
            "states": self.states,
            "unrecomputable": dict(self.unrecomputable),
            "differences": [difference.to_json() for difference in self.differences],
        }

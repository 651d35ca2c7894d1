"""A target's own record of what happened to it, held against the ledger's intents."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Any

from msgspec import Struct, field

from vedette.ledger.history.action import ActionHistory
from vedette.ledger.history.reconstruction import Reconstruction


class MatchResult(Struct):
    """A target's own record held against the ledger.

    `unmatched` are effects that no intent stands for (or one that was not permitted, or that lacks
    what it must tell), `repeated` keys that took effect more than once, `phantoms` intents that
    the ledger says are done and the target has nothing of.
    """

    effects: int = 0
    matched: int = 0
    unmatched: list[dict[str, Any]] = field(default_factory=list)
    repeated: list[str] = field(default_factory=list)
    phantoms: list[str] = field(default_factory=list)

    @property
    def ok(self) -> bool:
        """Say whether every effect has exactly one intent, and the other way round."""
        return not (self.unmatched or self.repeated or self.phantoms)

    def to_json(self) -> dict[str, Any]:
        """Return it as `--json` prints it."""
        names = ("ok", "effects", "matched", "unmatched", "repeated", "phantoms")
        return {name: getattr(self, name) for name in names}


def match_target_record(
    reconstruction: Reconstruction, effects: Iterable[tuple[str, str]], targets: Iterable[str] = ()
) -> MatchResult:
    """Match what a target says happened to it, as (tool, key) each, to the ledger's intents.

    `targets` are the tools whose target this is: only they can have phantoms. Default: all tools
    that the record names.
    """
    found = MatchResult()
    times: Counter[str] = Counter()
    tools = set(targets)
    for tool, key in effects:
        found.effects += 1
        times[key] += 1
        tools.add(tool)
        why = _mismatch(reconstruction.intents.get(f"act_{key}"), tool)
        if why is None:
            found.matched += 1
        else:
            found.unmatched.append({"tool": tool, "key": key, "why": why})
    found.repeated = sorted(key for key, number in times.items() if number > 1)
    found.phantoms = [
        intent.id for intent in _done_intents(reconstruction, tools) if not times[intent.key]
    ]
    return found


def _done_intents(reconstruction: Reconstruction, tools: set[str]) -> Iterator[ActionHistory]:
    for intent in reconstruction.intents.values():
        if intent.state == "done" and intent.is_external and intent.tool in tools:
            yield intent


def _mismatch(intent: ActionHistory | None, tool: str) -> str | None:
    """Say why an effect has no intent that stands for it; None if it has."""
    if intent is None:
        return "no intent has this key"
    if intent.tool != tool:
        return f"the intent is one of {intent.tool}"
    if intent.missing_fields:
        return f"the intent does not tell its {', '.join(intent.missing_fields)}"
    if not any(decision.outcome == "permit" for decision in intent.decisions):
        return "the intent was never permitted"
    return None

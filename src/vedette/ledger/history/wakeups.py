"""Who settled what woke an agent (its judge at no cost, its model, a person), and the cost."""

from __future__ import annotations

from collections import Counter
from typing import Any

from vedette.ledger.history.entry_view import DecisionEntry, EffectEntry, EntryView

# Of what settles a run the dearest counts: a person's time, a model's call, nothing.
_NOTHING, _MODEL, _PEOPLE = "nothing", "model", "people"
_SPENT = ("model_calls", "tokens", "money_micros")


class WakeupCounts:
    """Counts, by agent, of the runs that closed in a time window what settled them, and of those
    that nothing settled: dead letters, as far as nobody took them up again.

    What happened to a run before the window is not known here: then it counts as less dear.
    """

    def __init__(self) -> None:
        self._dearest: dict[str, str] = {}
        self._counts: dict[str, Counter[str]] = {}
        self._dead: dict[str, set[str]] = {}

    def add_entry(self, entry: EntryView) -> None:
        """Take the next entry."""
        if entry.agent is None:
            return
        kind, run = entry.kind, str(entry.run)
        counts = self._counts.setdefault(entry.agent, Counter())
        if kind == "budget.settled":
            spend: dict[str, int] = entry.get("spend") or {}
            if spend.get("model_calls"):
                self._dearest.setdefault(run, _MODEL)
            counts.update({unit: spend.get(unit, 0) for unit in _SPENT})
        elif isinstance(entry, DecisionEntry):
            if entry.needs_approval:
                self._dearest[run] = _PEOPLE
        elif isinstance(entry, EffectEntry):
            counts["useful"] += entry.state == "done"
            if entry.state == "unknown":
                self._dearest[run] = _PEOPLE
        elif kind == "run.closed":
            counts[self._dearest.pop(run, _NOTHING)] += 1
        elif kind == "run.dead":
            self._dead.setdefault(entry.agent, set()).add(run)
        elif kind == "run.redriven":
            self._dead.setdefault(entry.agent, set()).discard(run)

    def to_json(self) -> list[dict[str, Any]]:
        """Return the counts of each agent, by name.

        `calls_per_useful` is a decimal string: model calls for each action that was done; None
        where none was.
        """
        return [
            {
                "agent": agent,
                "runs": sum(counts[name] for name in (_NOTHING, _MODEL, _PEOPLE)) + dead,
                "at_no_cost": counts[_NOTHING],
                "by_model": counts[_MODEL],
                "by_people": counts[_PEOPLE],
                "dead": dead,
                "useful": counts["useful"],
                **{unit: counts[unit] for unit in _SPENT},
                "calls_per_useful": f"{counts['model_calls'] / counts['useful']:.2f}"
                if counts["useful"]
                else None,
            }
            for agent, counts in sorted(self._counts.items())
            for dead in (len(self._dead.get(agent, ())),)
        ]

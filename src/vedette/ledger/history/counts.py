"""Counts: what a report counts, entry by entry in the order of the ledger, and which rules may be.

A rule's name is text with a dot in it (`limits.hour`), as the fleet's policies name what decides
(docs/design/policy.md). It is read off the Rego text: a name that is only compared with something,
and what stands in a comment or in a test, is none.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any

from vedette.domain.effect import OPEN_STATES
from vedette.domain.run import ActionRow
from vedette.domain.work_tools import ENGINE_TOOLS
from vedette.ledger.history.action import RETRY_OUTCOMES, format_tries_count
from vedette.ledger.history.entry_view import DecisionEntry, EffectEntry, EntryView
from vedette.ledger.history.sample import Sample

# A verb of a person, or of the engine itself, that changed what holds.
_CHANGES = frozenset(
    {
        "policy.published", "policy.refused", "stop.set", "stop.lifted", "budget.raised",
        "body.erased", "key.rotated", "ledger.archived", "store.restored", "store.copied",
        "store.upgraded", "store.settled", "clock.jumped", "clock.confirmed", "source.redriven",
        "run.redriven", "run.dropped",
    }
)  # fmt: skip

_COMMENT = re.compile(r"#[^\n]*")
_COMPARED = re.compile(r'(?:==|!=)\s*"[^"\n]*"|"[^"\n]*"\s*(?:==|!=)|\bin\s*[\[{][^\]}]*[\]}]')
_INDEX = re.compile(r'\[\s*"[^"\n]*"\s*\]')
_NAME = re.compile(r'"([a-z][a-z0-9_]*(?:\.[a-z0-9_]+)+)(?::[^"\n]*)?"')


class ReportCounts:
    """Counts the ledger's entries of a time window for the report, in their order."""

    def __init__(
        self, sample: Sample, action: Callable[[str], ActionRow | None] | None = None
    ) -> None:
        """`action` finds the row of an open effect: what was tried of it stands in no entry."""
        self.sample, self._action = sample, action
        self.events = self.unreadable = self._visits = 0
        self.kinds: Counter[str] = Counter()
        self.changes: list[dict[str, Any]] = []
        self.rules: Counter[str] = Counter()
        self._exception_counts: Counter[tuple[str, str, str, str]] = Counter()
        self._examples: dict[tuple[str, str, str, str], str] = {}
        self._spent: Counter[tuple[str, str]] = Counter()
        self._reservations: dict[tuple[str, int], tuple[str, dict[str, int]]] = {}
        self._limits: dict[tuple[str, str, str, str], dict[str, Any]] = {}
        self._approval_requests: dict[str, str] = {}
        self._unsettleable: set[str] = set()
        self._permitted: set[str] = set()
        self._open_effects: dict[str, tuple[str, str, str, str]] = {}
        self._next_try: dict[tuple[str, str, str, str], int] = {}

    def add_entry(self, entry: EntryView) -> None:
        """Take the next entry."""
        kind, outcome = entry.kind, entry.get("outcome")
        self.kinds[kind if outcome is None else f"{kind}.{outcome}"] += 1
        self.sample.add_entry(entry)
        if kind in _CHANGES:
            self.changes.append(change_object(entry))
        elif isinstance(entry, DecisionEntry):
            self._add_decision(entry)
        elif isinstance(entry, EffectEntry):
            self._effect(entry)
        elif kind.startswith("budget."):
            self._budget(entry)
        elif kind in ("run.dead", "action.refused", "event.refused"):
            why = str(entry.why or ("(erased)" if entry.erased else "?"))
            # The first line says what it was; the rest differs from event to event.
            self._count_exception(kind, entry, why.split("\n")[0][:120])
        elif kind == "model.away":
            self._count_exception(kind, entry, f"{entry.get('target')}: {entry.get('what')}")
        elif kind == "hold.expired":
            self._count_exception(kind, entry, "nobody answered in time")
        elif kind == "task.drift":
            self._count_exception(kind, entry, str(entry.get("rule")))
        elif kind == "task.stalled":
            first = str(entry.why or "(erased)").strip().partition("\n")[0]
            self._count_exception(kind, entry, first[:120])
        elif kind == "store.opened":
            self._visits += entry.get("what") == "visit"  # for one command, while no fleet ran

    def _count_exception(self, kind: str, entry: EntryView, why: str) -> None:
        odd = (kind, str(entry.agent or ""), str(entry.tool or ""), why)
        self._exception_counts[odd] += 1
        id = entry.action or entry.run or entry.event
        self._examples.setdefault(odd, str(id or f"entry {entry.seq}"))

    def _add_decision(self, entry: DecisionEntry) -> None:
        action, rule = str(entry.action), str(entry.rule)
        outcome, agent = entry.outcome, str(entry.agent)
        self.rules.update({rule, *(str(r).split(":")[0] for r in entry.reasons or ())})
        if outcome == "deny" and rule != "mode.observe":  # what is observed is told by `would`
            self._count_exception("denied", entry, rule)
        elif entry.needs_approval:
            self._approval_requests.setdefault(action, agent)
        if outcome == "permit" and action not in self._permitted:
            self._permitted.add(action)
            self._spent[agent, "actions"] += 1
        elif outcome != "permit":
            self._uncount_permit(action, agent)
        if entry.requested_action.get("settles") == "none":
            self._unsettleable.add(action)

    def _effect(self, entry: EffectEntry) -> None:
        state, action = entry.state, str(entry.action)
        agent, tool = str(entry.agent), str(entry.tool)
        why = _failure_reason(entry) if state == "failed" else _STATE_REASONS.get(state, "")
        self._open_effects[action] = (state, agent, tool, why)
        if state in ("done", "cancelled"):
            self._open_effects.pop(action)
        if state == "unknown" and action in self._unsettleable:
            self._approval_requests.setdefault(action, agent)

    def _budget(self, entry: EntryView) -> None:
        word, agent = entry.kind.removeprefix("budget."), str(entry.agent or "")
        spend: dict[str, int] = entry.get("spend") or {}
        turn = (str(entry.run), int(entry.get("turn") or 0))
        if word == "reserved":
            self._reservations[turn] = (agent, spend)
        elif word == "settled":
            self._reservations.pop(turn, None)
            for unit, amount in spend.items():
                self._spent[agent, unit] += amount
        elif word in ("alerted", "refused"):
            scope, unit, span = (str(entry.get(n) or "") for n in ("scope", "unit", "window"))
            whose = "" if scope == "fleet" else agent
            limit = self._limits.setdefault((scope, whose, unit, span), Counter())
            limit[word] += 1
            limit["limit"] = entry.get("limit")
            if word == "refused":
                self._uncount_permit(str(entry.action), agent)

    def _uncount_permit(self, action: str, agent: str) -> None:
        """It was permitted, and is not any more before anything was done."""
        if action in self._permitted:
            self._permitted.discard(action)
            self._spent[agent, "actions"] -= 1

    # --- what it comes to -------------------------------------------------------------------

    def traffic(self) -> dict[str, Any]:
        """Return what went through."""
        kinds = self.kinds
        decided = {w: kinds[f"action.decided.{w}"] for w in ("permit", "hold", "deny")}
        return {
            "events": self.events,
            "refused": kinds["event.refused"],
            "runs_closed": kinds["run.closed"],
            "runs_dead": kinds["run.dead"],
            "decisions": decided,
            "effects": {w: kinds[f"effect.{w}"] for w in ("done", "failed", "unknown")},
            "starts": kinds["store.opened"] - self._visits,
            "unreadable": self.unreadable,
        }

    def exceptions(self) -> list[dict[str, Any]]:
        """Return what is not as it should be, by kind and then the most frequent first.

        `next_try_at` is the soonest of theirs, microseconds, None if nothing is to be tried again.
        """
        for action, (state, agent, tool, why) in self._open_effects.items():
            if state == "started" and tool in ENGINE_TOOLS:
                continue  # it waits, as it was permitted to
            row = self._row(action, state)
            if row is not None and row.tries and state == "intended":
                why = f"called {format_tries_count(row.tries)} and not done yet"
            odd = (f"effect.{state}", agent, tool, why)
            self._exception_counts[odd] += 1
            self._examples.setdefault(odd, action)
            if row is not None and row.tries and row.not_before_us:
                soonest = self._next_try.get(odd, row.not_before_us)
                self._next_try[odd] = min(soonest, row.not_before_us)
        self._open_effects.clear()
        order = {kind: place for place, kind in enumerate(_ORDER)}
        found = sorted(
            self._exception_counts.items(), key=lambda item: (order[item[0][0]], -item[1], item[0])
        )
        names = ("kind", "agent", "tool", "why")
        return [
            {
                **dict(zip(names, odd, strict=True)),
                "count": count,
                "next_try_at": self._next_try.get(odd),
                "example": self._examples[odd],
            }
            for odd, count in found
        ]

    def _row(self, action: str, state: str) -> ActionRow | None:
        """Return the row of an effect that is still as the window left it, and open."""
        row = self._action(action) if self._action is not None and state in OPEN_STATES else None
        return row if row is not None and row.effect == state else None

    def budgets(self) -> dict[str, Any]:
        """Return what was spent, what is booked for turns under way, and limits that were near."""
        booked: Counter[tuple[str, str]] = Counter()
        for agent, spend in self._reservations.values():
            booked.update({(agent, unit): amount for unit, amount in spend.items()})
        places = sorted(place for place in {*self._spent, *booked})
        spent = [
            {
                "agent": agent, "unit": unit, "spent": self._spent[agent, unit],
                "booked": booked[agent, unit],
            }
            for agent, unit in places
        ]  # fmt: skip
        names = ("scope", "agent", "unit", "window")
        limits = [
            {**dict(zip(names, key, strict=True)), "alerted": 0, "refused": 0, **counts}
            for key, counts in sorted(self._limits.items())
        ]
        return {"spent": spent, "limits": limits}

    def questions(self) -> dict[str, Any]:
        """Return how often people were asked; `per_1000` is a decimal string."""
        count, kinds = len(self._approval_requests), self.kinds
        per = f"{count * 1000 / self.events:.1f}" if self.events else None
        return {
            "asked": count,
            "per_1000": per,
            "approved": kinds["hold.approved"],
            "denied": kinds["hold.denied"],
            "expired": kinds["hold.expired"],
            "agents": dict(Counter(self._approval_requests.values()).most_common()),
        }


_ORDER = (
    "run.dead", "task.drift", "task.stalled", "effect.unknown", "effect.failed", "effect.started",
    "effect.intended", "model.away", "event.refused", "action.refused", "hold.expired", "denied",
)  # fmt: skip
_STATE_REASONS = {
    "unknown": "it may have happened",
    "started": "the call's end is not recorded",
    "intended": "permitted and not begun",
}


def _failure_reason(entry: EffectEntry) -> str:
    """Say why an effect failed, as far as its entry tells."""
    if entry.get("body") is None:
        return "nobody knows whether it happened, and it was let be"
    if entry.erased:
        return "it was called, and not done"
    return "its tries are used up" if entry.result in RETRY_OUTCOMES else "the call failed for good"


def change_object(entry: EntryView) -> dict[str, Any]:
    """Return a change that an entry records, of policy, a stop or the store, as a report's line."""
    names = ("what", "agent", "policy_rev", "bundle", "scope", "spend", "until")
    fields = {name: entry.get(name) for name in names if entry.get(name) is not None}
    by = {"by": entry.actor, "reason": entry.content("reason")}
    return {"seq": entry.seq, "at": entry.at, "kind": entry.kind, **fields, **by}


def rules_of(files: Mapping[str, bytes]) -> frozenset[str]:
    """Return the rule names in a bundle's Rego files, tests aside, as the report counts them."""
    found: set[str] = set()
    for path, raw in files.items():
        if path.endswith(".rego") and not path.endswith("_test.rego"):
            text = _COMMENT.sub("", raw.decode("utf-8", "replace"))
            text = _INDEX.sub("", _COMPARED.sub("", text))
            found.update(_NAME.findall(text))
    return frozenset(found)

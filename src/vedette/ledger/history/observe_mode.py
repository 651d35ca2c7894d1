"""Observe mode: what agents in observe or ask would have done, and how often people agree.

An agent earns act by being looked at. Counted are the last decision of each action that a mode
kept from being done, and what people said: `correct RUN --right` or a label, answers to holds,
and undos. A correction speaks for its whole run, and the last one counts. Else an effect that a
person had taken back says no to its run. Else answers speak for one action each. The runs of undos
are nobody's judgement: nothing of them is counted.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from msgspec import Struct, field

from vedette.ledger.history.entry_view import (
    AcceptanceEntry,
    AnswerEntry,
    CorrectionEntry,
    DecisionEntry,
    EffectEntry,
    EntryView,
    JudgementEntry,
    read_entry,
)

# Act is advised when the true agreement is above this with a confidence of 95 %.
EARNED_MILLI = 900
_Z = 1.959964  # the 97.5 % quantile of the normal distribution
_MOST = 100_000


def wilson_interval(right: int, of: int) -> tuple[float, float]:
    """Return the 95 % interval of an agreement (Wilson 1927, score interval); (0, 1) of nothing."""
    if of == 0:
        return 0.0, 1.0
    share, z2 = right / of, _Z * _Z
    middle = (share + z2 / (2 * of)) / (1 + z2 / of)
    half = _Z * math.sqrt(share * (1 - share) / of + z2 / (4 * of * of)) / (1 + z2 / of)
    return max(0.0, middle - half), min(1.0, middle + half)


def reviews_needed(right: int, of: int) -> int | None:
    """Return how many more reviews, all agreeing, earn act: 0 for earned, None for out of reach."""
    for more in range(_MOST):
        if wilson_interval(right + more, of + more)[0] * 1000 >= EARNED_MILLI:
            return more
    return None


class _ActionOutcome(Struct, frozen=True):
    agent: str
    tool: str
    run: str
    turn: int
    revision: int
    mode: str
    would: str


# Finds an entry by its seq: (seq, bytes, body), or None.
EntryLookup = Callable[[int], tuple[int, bytes, bytes | None] | None]


class ObserveModeCounts(Struct):
    """Counts what entries of a time window say of agents in observe or ask, in order.

    `entry` finds the entries before `first`, the first one taken: an undo may be answered, or done,
    long after the effect. Without it nothing is known of those.
    """

    first: int = 0
    entry: EntryLookup | None = None
    _undos: dict[int, int | None] = field(default_factory=dict)
    _effects: dict[int, tuple[int, str, str]] = field(default_factory=dict)
    _undo_results: dict[str, bool] = field(default_factory=dict)
    _labels: dict[tuple[str, int], str] = field(default_factory=dict)
    _agents: dict[str, str] = field(default_factory=dict)
    _actions: dict[str, _ActionOutcome] = field(default_factory=dict)
    _corrections: dict[str, bool] = field(default_factory=dict)
    _answers: dict[str, tuple[str, str, bool]] = field(default_factory=dict)

    def add_entry(self, entry: EntryView) -> None:
        """Take the next entry; of those of an event alone only that of an undo (it has a cause)."""
        about = int(entry.about or 0)
        if isinstance(entry, AcceptanceEntry):
            self._undos[about] = entry.cause
            return
        if isinstance(entry, EffectEntry) and entry.state == "done":
            self._add_effect(entry, about)
        if self._find_undone_effect(about) is not None:
            return
        run = str(entry.run or "")
        if entry.agent and run:
            self._agents[run] = entry.agent
        if isinstance(entry, JudgementEntry) and entry.kind == "turn.reasoned":
            self._labels[run, int(entry.turn or 0)] = str(entry.label or "?")
        elif isinstance(entry, DecisionEntry):
            self._add_decision(entry, run)
        elif isinstance(entry, CorrectionEntry) and entry.outcome in ("right", "wrong"):
            self._corrections[run] = entry.outcome == "right"
        elif isinstance(entry, AnswerEntry) and entry.answer != "expired":
            answered = str(entry.agent or ""), run, entry.answer == "approved"
            self._answers[str(entry.action)] = answered

    # --- undos ----------------------------------------------------------------------------------

    def _find_undone_effect(self, about: int) -> int | None:
        """Return the entry of the effect that an event is to take back; None if it is no undo."""
        if about not in self._undos and about < self.first:
            found = self._find_entry(about)
            self._undos[about] = found.get("cause") if found is not None else None
        return self._undos.get(about)

    def _add_effect(self, entry: EntryView, about: int) -> None:
        """Note an effect, and of an undo what it took back: of an undo's undo, nothing any more."""
        run, agent = str(entry.run or ""), str(entry.agent or "")
        self._effects[entry.seq] = about, run, agent
        undone = False
        while (cause := self._find_undone_effect(about)) is not None:
            if cause not in self._effects:
                found = self._find_entry(cause)
                if found is None:
                    return
                of = int(found.about or 0)
                self._effects[cause] = of, str(found.run), str(found.agent)
            about, run, agent = self._effects[cause]
            undone = not undone
        if run in self._undo_results or undone:
            self._undo_results[run] = undone
            self._agents[run] = agent

    def _find_entry(self, seq: int) -> EntryView | None:
        found = self.entry(seq) if self.entry is not None else None
        return read_entry(seq, *found[1:]) if found is not None else None

    def _add_decision(self, entry: DecisionEntry, run: str) -> None:
        reasons = list(entry.reasons or (entry.rule,))
        outcome, would, action = str(entry.outcome), entry.would, str(entry.action)
        mode = ""
        if would is not None:
            mode = "observe"
        elif outcome == "hold" and "mode.ask" in reasons:
            mode, would = "ask", "permit" if reasons == ["mode.ask"] else "hold"
        elif action in self._actions:
            return  # decided again, after an answer: what it would have been stays
        turn = int(entry.get("turn") or 0) or int(entry.context.get("turn") or 1)
        self._actions[action] = _ActionOutcome(
            str(entry.agent), str(entry.tool), run, turn, int(entry.revision or 0), mode,
            str(would or outcome),
        )  # fmt: skip

    # --- what it comes to -----------------------------------------------------------------------

    def to_json(self, only: str | None = None) -> list[dict[str, Any]]:
        """Return a section for each agent that a mode held back, or of `only` that agent."""
        # A denial does not say in which mode: it is counted where its agent was asked for then.
        asking = {(one.agent, one.revision) for one in self._actions.values() if one.mode == "ask"}
        actions: dict[str, list[tuple[str, _ActionOutcome]]] = {}
        for action, one in self._actions.items():
            if one.mode or (one.would == "deny" and (one.agent, one.revision) in asking):
                actions.setdefault(one.agent, []).append((action, one))
        names = sorted(actions) if only is None else [only]
        return [self._agent(name, actions.get(name, [])) for name in names]

    def _agent(self, name: str, actions: list[tuple[str, _ActionOutcome]]) -> dict[str, Any]:
        tools: dict[str, Counter[str]] = {}
        labels: dict[str, Counter[str]] = {}
        modes = {one.mode for _, one in actions if one.mode}
        for _, one in actions:
            tools.setdefault(one.tool, Counter())[one.would] += 1
            label = self._labels.get((one.run, one.turn), "?")
            labels.setdefault(label, Counter())[one.would] += 1
        verdicts = list(self._verdicts(name))
        right = sum(agreed for _, agreed in verdicts)
        low, high = wilson_interval(right, len(verdicts))
        return {
            "agent": name,
            "modes": sorted(modes),
            "actions": len(actions),
            "tools": {tool: _outcome_counts(count) for tool, count in sorted(tools.items())},
            "labels": {label: _outcome_counts(count) for label, count in sorted(labels.items())},
            "reviewed": len(verdicts),
            "by_correction": sum(1 for run in self._corrections if self._agents.get(run) == name),
            "agreed": right,
            "disagreed": Counter(
                self._labels.get((run, 1), "?") for run, agreed in verdicts if not agreed
            ),
            "agreement_milli": {"low": int(low * 1000), "high": math.ceil(high * 1000)},
            "lacking": reviews_needed(right, len(verdicts)),
        }

    def _verdicts(self, agent: str) -> Iterator[tuple[str, bool]]:
        for run, right in self._corrections.items():
            if self._agents.get(run) == agent:
                yield run, right
        undone = {
            run for run, so in self._undo_results.items() if so and run not in self._corrections
        }
        for run in undone:
            if self._agents.get(run) == agent:
                yield run, False
        for of, run, approved in self._answers.values():
            if of == agent and run not in self._corrections and run not in undone:
                yield run, approved


def _outcome_counts(count: Mapping[str, int]) -> dict[str, int]:
    return {word: count.get(word, 0) for word in ("permit", "hold", "deny")}


def format_observe_mode(sections: list[dict[str, Any]], safe: Any) -> Iterator[str]:
    """Yield the report's lines on observe mode; `safe` makes text fit for a terminal."""
    if not sections:
        yield "  no agent observed or asked"
    for one in sections:
        modes = " and ".join(one["modes"]) or "no action was held back by its mode"
        yield f"  {safe(one['agent'])} ({modes}): {one['actions']:,} actions"
        yield from _rows(one["tools"], "by tool", safe)
        yield from _rows(one["labels"], "by label", safe)
        share = f"{one['agreed'] / one['reviewed']:.0%}" if one["reviewed"] else "-"
        low, high = (one["agreement_milli"][end] / 10 for end in ("low", "high"))
        yield (
            f"    people agree with {one['agreed']:,} of {one['reviewed']:,} reviewed ({share};"
            f" 95 %: {low:.1f} to {high:.1f} %)"
        )
        if one["disagreed"]:
            wrong = ", ".join(f"{safe(label)} {n:,}" for label, n in one["disagreed"].items())
            yield f"    they do not where it was judged: {wrong}"
        yield f"    {_advice(one)}"


def _rows(counts: Mapping[str, Mapping[str, int]], head: str, safe: Any) -> Iterator[str]:
    if not counts:
        return
    yield f"    {head:<24}{'would do':>10}{'would ask':>11}{'denied':>8}"
    for name, count in counts.items():
        done, held, denied = (count[word] for word in ("permit", "hold", "deny"))
        yield f"      {safe(name, 21):<22}{done:>10,}{held:>11,}{denied:>8,}"


def _advice(one: Mapping[str, Any]) -> str:
    more, least = one["lacking"], EARNED_MILLI // 10
    if more == 0:
        return f"it has earned act: people agree with more than {least} % of it"
    if more is None:
        return "too often people do not agree: correct it, and let the corrections be promoted"
    return f"to earn act: {more:,} more reviewed, all agreed with (above {least} % for sure)"

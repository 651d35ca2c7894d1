"""Turns corrections into labelled examples, and what happens again and again into procedures."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from vedette.judging import Briefing, Candidate, Event, Judgement, Memory
from vedette.judging import Judge as BaseJudge
from vedette.judging.text import fold, tokens

CORRECTION = "vedette.correction"
# Two texts that share this much of their words say nearly the same.
_NEARLY = 0.6
_MOST_PATTERNS = 500
_MOST_RUNS = 50
_NAMED = 12  # runs that a proposal names; the ledger has the rest
_LONGEST = 4_000


class Judge(BaseJudge):
    """Its state is what it was handed by its ticks: patterns, their runs, and which it proposed."""

    def __init__(self, charter: Mapping[str, Any], lessons: Sequence[Memory]) -> None:
        super().__init__(charter, lessons)
        self._examples = [one for one in lessons if one.kind == "example" and one.label]
        self._words = [frozenset(tokens(fold(one.text))) for one in self._examples]

    # --- state ------------------------------------------------------------------------------

    def blank(self) -> Any:
        """Return the state of a schedule that brought nothing yet: pattern -> runs, or None."""
        return {}

    def observe(self, state: Any, event: Event) -> Any:
        """Add what a tick brought; return the patterns that have enough for the first time."""
        gathered = event.data.get("gathered") if isinstance(event.data, Mapping) else None
        if event.type == CORRECTION or not isinstance(gathered, Mapping):
            return []
        ripe = []
        for pattern in gathered.get("patterns", ()):
            ripe += self._add(state, pattern, gathered.get("reads", {}))
        while len(state) > _MOST_PATTERNS:
            del state[next(iter(state))]
        return ripe

    def _add(
        self, state: dict[str, Any], pattern: Mapping[str, Any], reads: Mapping[str, Any]
    ) -> list[dict[str, Any]]:
        about = [pattern.get(part) for part in ("what", "agent", "tool", "label")]
        ripe = []
        for answer, runs in sorted(pattern["runs"].items()):
            name = json.dumps([*about, answer])
            known = state.setdefault(name, [])
            if known is None:
                continue  # proposed once; that is enough
            known += [run for run in runs if run not in known][: _MOST_RUNS - len(known)]
            if len(known) >= int(self.charter.get("enough", 3)):
                state[name] = None
                mine = reads.get(pattern["agent"], ())
                ripe.append({**pattern, "answer": answer, "runs": known, "reads": mine})
        return ripe

    def dump(self, state: Any) -> bytes:
        """Return the patterns as JSON."""
        return json.dumps(state).encode()

    def load(self, blob: bytes) -> Any:
        """Return what `dump` wrote."""
        return json.loads(blob) if blob else {}

    # --- opinion ----------------------------------------------------------------------------

    def judge(self, seen: Any, briefing: Briefing) -> Judgement:
        """Propose what a correction teaches, or the patterns that are ripe."""
        event = briefing.event
        data = event.data if isinstance(event.data, Mapping) else {}
        if event.type == CORRECTION:
            return self._corrected(data)
        found = [one for one in map(self._procedure, seen) if one is not None]
        label = "proposed" if found else "nothing new"
        return Judgement(label, 1.0, candidates=tuple(found), detail={"ripe": len(seen)})

    def _corrected(self, data: Mapping[str, Any]) -> Judgement:
        saw = data.get("saw")
        saw = saw if isinstance(saw, Mapping) else {}
        text = self._form(str(saw.get("type")), saw.get("data"))
        home = self._home(str(data.get("agent")), data.get("reads") or ())
        label = str(data.get("should") or "")
        if not text or not label or home is None:
            return Judgement("nothing to learn", 1.0, detail={"why": "no text, or no bank for it"})
        bank, scope = home
        near, share = self._nearest(text, bank, scope)
        if near is not None and share == 1.0 and near.label == label:
            return Judgement("known", 1.0, detail={"known": near.id})
        replaces = (
            near.id if near is not None and share >= _NEARLY and near.label != label else None
        )
        candidate = Candidate(
            bank, scope, text, self._topics(bank, label), kind="example", label=label,
            evidence=(str(data.get("run")), str(data.get("event"))), replaces=replaces,
        )  # fmt: skip
        detail = {"bank": bank, "example_of": label, "was": data.get("was"), "replaces": replaces}
        return Judgement("proposed", 1.0, candidates=(candidate,), detail=detail)

    def _procedure(self, ripe: Mapping[str, Any]) -> Candidate | None:
        home = self._home(str(ripe["agent"]), ripe["reads"])
        if home is None:
            return None
        runs = ripe["runs"]
        return Candidate(
            *home, _sentence(ripe, len(runs)), self._topics(home[0], str(ripe.get("label"))),
            kind="procedure", evidence=tuple(runs[:_NAMED]),
        )  # fmt: skip

    # --- words ------------------------------------------------------------------------------

    def _form(self, type: str, data: Any) -> str:
        """Return the text of an event as its agent's judge reads it; "" if it has none."""
        if not isinstance(data, Mapping) or not isinstance(data.get("text"), str):
            return ""
        form = str(self.charter.get("forms", {}).get(type, "{text}"))
        subject = str(data.get("subject") or "(no subject)")
        # Not `format`: braces of a stranger's text are text.
        parts = form.split("{text}")
        return data["text"].join(part.replace("{subject}", subject) for part in parts)[:_LONGEST]

    def _home(self, agent: str, reads: Sequence[str]) -> tuple[str, str] | None:
        named = self.charter.get("banks", {}).get(agent) or next(iter(reads), "")
        bank, _, scope = str(named).partition("/")
        return (bank, scope) if bank and scope else None

    def _nearest(self, text: str, bank: str, scope: str) -> tuple[Memory | None, float]:
        """Return the known example that shares most words with a text, and what share."""
        words, best, most = frozenset(tokens(fold(text))), None, 0.0
        for example, own in zip(self._examples, self._words, strict=True):
            if (example.bank, example.scope) != (bank, scope) or not (words | own):
                continue
            share = len(words & own) / len(words | own)
            if share > most:
                best, most = example, share
        return best, most

    def _topics(self, bank: str, label: str) -> tuple[str, ...]:
        """Return the topics that other examples of the label have."""
        same = (one for one in self._examples if (one.bank, one.label) == (bank, label))
        return next((one.topics for one in same), ())


def _sentence(ripe: Mapping[str, Any], times: int) -> str:
    """Say what happened again and again, in words of closed lists alone."""
    agent, label, answer = ripe["agent"], ripe.get("label"), ripe["answer"]
    judged = f" judged {label}" if label else ""
    if ripe["what"] == "dead":
        return f"{times} runs of {agent} became dead letters; see why before it is changed."
    if ripe["what"] == "corrected" and answer == "wrong":
        return f"People corrected {agent} {times} times on what it{judged}: look twice at such."
    if ripe["what"] == "corrected":
        return f"People confirmed {agent} {times} times on what it{judged}."
    word = "denied" if answer == "denied" else "approved"
    return f"People {word} {ripe.get('tool')} {times} times for what {agent}{judged}."

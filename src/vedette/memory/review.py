"""Review of memories: what a person sees before one is promoted, and what curators are handed.

`find_flips` says which recorded events would be judged otherwise with a memory than without it;
`collect_patterns` what people and the line made of runs in a stretch of the ledger. Both only look.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import orjson
from msgspec import Struct

from vedette.domain.event import Event
from vedette.domain.memory import Briefing, Memory
from vedette.domain.ports.ledger_reader import LedgerReader
from vedette.judging import Judge

MOST_EVENTS = 200
# How many entries of a stretch are looked at: a tick is an event, and bounded.
MOST_GATHERED = 1000
_ANSWERS = {"hold.approved": "approved", "hold.denied": "denied"}


class Flip(Struct, frozen=True):
    """A recorded run that a candidate memory would have judged otherwise: both its labels."""

    run: str
    event: str
    before: str
    after: str
    confidence: float


def is_stateful(judge: type[Judge]) -> bool:
    """Say whether a judge observes, so that a candidate cannot be reviewed on one event alone."""
    return judge.observe is not Judge.observe


def find_flips(
    before: Judge, after: Judge, runs: Sequence[tuple[str, Event]], agent: str
) -> list[Flip]:
    """Return the flips for a candidate's review: runs that two judges without state label apart."""
    found = []
    for run, event in runs[:MOST_EVENTS]:
        briefing = Briefing(run, agent, "", 1, 0, 1, event, after.charter, {})
        label_before, label_after = before.judge(None, briefing), after.judge(None, briefing)
        if label_before.label != label_after.label:
            found.append(
                Flip(run, event.key, label_before.label, label_after.label, label_after.confidence)
            )
    return found


def to_lesson(memory: Mapping[str, Any]) -> Memory:
    """Return a listed candidate or memory as the lesson that a judge would be taught."""
    return Memory(
        id=str(memory["id"]), bank=str(memory["bank"]), revision=0, scope=str(memory["scope"]),
        kind=memory["kind"], topics=tuple(memory["topics"]), text=str(memory["text"]), digest="",
        reviewed_by="", reviewed_on="", label=memory["label"], trust="learned",
    )  # fmt: skip


def add_lesson(lessons: Sequence[Memory], candidate: Mapping[str, Any]) -> list[Memory]:
    """Return a judge's lessons with a candidate under review: beside them, or in one's place."""
    replaced = candidate.get("replaces")
    stay = [one for one in lessons if one.id not in (replaced, candidate["id"])]
    return [*stay, to_lesson(candidate)]


# --- what happened ---------------------------------------------------------------------------


def collect_patterns(ledger: LedgerReader, after_us: int, upto_us: int) -> dict[str, Any]:
    """Return for curators what people and the line made of runs between two instants, by pattern.

    Answers to holds by (agent, tool, label), corrections by (agent, label), dead letters by agent;
    of each the runs by what was answered, oldest first. No content of any event.
    """
    kinds = (*_ANSWERS, "run.corrected", "run.dead")
    found: dict[tuple[str, ...], dict[str, Any]] = {}
    first = ledger.seq_at(after_us)
    for _, raw in ledger.latest_entries(kinds, first, MOST_GATHERED):
        entry = orjson.loads(raw)
        if entry["at"] > upto_us or "run" not in entry:
            continue
        named = _pattern(ledger, entry)
        pattern = found.setdefault(tuple(named.values()), {**named, "runs": {}})
        answer = _ANSWERS.get(entry["kind"]) or entry.get("outcome") or "dead"
        runs = pattern["runs"].setdefault(answer, [])
        if entry["run"] not in runs:
            runs.append(entry["run"])
    return {"after": after_us, "upto": upto_us, "patterns": list(found.values())}


def _pattern(ledger: LedgerReader, entry: Mapping[str, Any]) -> dict[str, str]:
    agent, kind = str(entry["agent"]), str(entry["kind"])
    if kind == "run.dead":
        return {"what": "dead", "agent": agent}
    label = next(_labels(ledger, str(entry["run"])), "")
    if kind == "run.corrected":
        return {"what": "corrected", "agent": agent, "label": label}
    return {"what": "answered", "agent": agent, "tool": str(entry["tool"]), "label": label}


def _labels(ledger: LedgerReader, run: str) -> Iterator[str]:
    for _, raw, _ in ledger.entries("run", run):
        label = orjson.loads(raw).get("label")
        if label:
            yield str(label)

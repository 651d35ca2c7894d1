"""Lineage: which memories came of a source: an event, a run, an agent or a person.

Of a person came what they proposed, what their corrections and answers led to, and what they ever
promoted or brought back: whoever took an account over may have given any of these orders.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import orjson

from vedette.domain.base.errors import NotFound
from vedette.domain.memory import Candidate
from vedette.domain.memory_state import LedgerMemory
from vedette.domain.ports.store import StoreReader

_CORRECTED = "run.corrected"
_ANSWERED = ("hold.approved", "hold.denied")


def find_learned(store: StoreReader, agents: Collection[str], source: str) -> list[LedgerMemory]:
    """Return the memories learned from a source that are not erased, whatever became of them.

    `source` is the id of an event or a run, an agent or `person:NAME`. Raises NotFound for one
    that nothing was ever said, done or learned by; `agents` are those of the fleet.
    """
    learned = [one for one in store.memories.all().values() if one.candidate is not None]
    if source.startswith(("evt_", "run_")):
        ids = _source_ids(store, source)
        return [one for one in learned if ids & _evidence_ids(one)]
    if source.startswith("person:"):
        return _learned_by_person(store, learned, source)
    if source not in {_candidate_of(one).agent for one in learned} | set(agents):
        raise _unknown_source(source)
    return [one for one in learned if source in _agents_of(store, one)]


def _unknown_source(source: str) -> NotFound:
    mend = "give an event, a run, an agent or person:NAME"
    return NotFound(f"nothing was learned from {source!r}", mend=mend)


def _source_ids(store: StoreReader, source: str) -> set[str]:
    """Return the ids under which a source counts: its own, its runs', its corrections'."""
    # What people read is not loaded to start a fleet.
    from vedette.ledger.history.reader import resolve

    kind, name = resolve(store, source)
    runs = store.runs.runs_of_event(name) if kind == "event" else []
    ids = {name, *(run.id for run in runs)}
    return ids | {one["what"] for one in _corrections(store) if "what" in one and one["run"] in ids}


def _learned_by_person(
    store: StoreReader, learned: list[LedgerMemory], person: str
) -> list[LedgerMemory]:
    """Return what came of a person. Raises NotFound for one who never said anything."""
    corrections = _corrections(store)
    mine = [one for one in corrections if one.get("actor") == person]
    events = {one["what"] for one in mine if "what" in one}
    others = {one["what"] for one in corrections if "what" in one} - events
    answers = (orjson.loads(raw) for _, raw, *_ in store.ledger.walk(_ANSWERED))
    runs = {one["run"] for one in (*mine, *answers) if one.get("actor") == person}

    def is_from_person(one: LedgerMemory) -> bool:
        if (
            person == one.proposed_by
            or person in one.recalled_by
            or _candidate_of(one).event in events
        ):
            return True
        # Somebody else may have corrected the same run, and rightly: that is another source.
        return _candidate_of(one).event not in others and not runs.isdisjoint(
            _candidate_of(one).evidence
        )

    found = [one for one in learned if is_from_person(one)]
    if not (found or runs):
        raise _unknown_source(person)
    return found


def _corrections(store: StoreReader) -> list[dict[str, Any]]:
    return [orjson.loads(raw) for _, raw, _ in store.memories.entries((_CORRECTED,))]


def _agents_of(store: StoreReader, one: LedgerMemory) -> set[str]:
    runs = [store.runs.run(id) for id in _candidate_of(one).evidence if id.startswith("run_")]
    return {_candidate_of(one).agent, *(run.agent for run in runs if run is not None)}


def _evidence_ids(one: LedgerMemory) -> set[str]:
    return {_candidate_of(one).event, _candidate_of(one).run, *_candidate_of(one).evidence} - {""}


def _candidate_of(one: LedgerMemory) -> Candidate:
    assert one.candidate is not None
    return one.candidate

"""What was learned from what a person answered: a procedure rests on runs, and on nobody's word."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from tests.store_parts import store_of

from vedette.domain.base.errors import NotFound
from vedette.domain.memory import Candidate
from vedette.domain.memory_state import LedgerMemory
from vedette.memory.lineage import find_learned


def proposed(name: str, event: str, *evidence: str) -> LedgerMemory:
    candidate = Candidate(
        "inbox", "all", "Told.", agent="curator", event=event, evidence=evidence, id=name
    )
    return LedgerMemory("inbox", name, "candidate", candidate, event)


class Store:
    """Ada answered for one run and corrected another one, Bob corrected both of them."""

    def all(self) -> dict[str, LedgerMemory]:
        found = (
            proposed("procedure", "evt_tick", "run_1", "run_9"),
            proposed("hers", "evt_ada", "run_2", "evt_mail"),
            proposed("his", "evt_bob", "run_2", "evt_mail"),
            proposed("other", "evt_tick", "run_8"),
            proposed("bare", "evt_ada"),
        )
        return {one.name: one for one in found}

    def entries(self, kinds: tuple[str, ...]) -> list[tuple[int, bytes, bytes | None]]:
        said = (("ada", "run_2", "evt_ada"), ("bob", "run_2", "evt_bob"), ("bob", "run_1", "evt_x"))
        return [
            (seq, json.dumps({"actor": f"person:{who}", "run": run, "what": what}).encode(), None)
            for seq, (who, run, what) in enumerate(said, 1)
        ]

    def walk(
        self, kinds: tuple[str, ...] | None = None, after: int = 0
    ) -> Iterator[tuple[int, bytes, bytes | None, bytes | None]]:
        assert kinds == ("hold.approved", "hold.denied")
        for seq, who, run in ((7, "ada", "run_1"), (8, "carol", "run_7")):
            yield seq, json.dumps({"actor": f"person:{who}", "run": run}).encode(), None, None

    def run(self, run: str) -> Any:
        return None

    def runs_of_event(self, event: str) -> list[Any]:
        return []


@pytest.mark.parametrize(
    ("who", "what"),
    [
        ("person:ada", ["procedure", "hers", "bare"]),
        ("person:bob", ["procedure", "his"]),
        ("person:carol", []),
        ("curator", ["procedure", "hers", "his", "other", "bare"]),
        ("desk", []),
    ],
)
def test_it_counts_from_what_they_said_of_runs_and_not_from_others_corrections(
    who: str, what: list[str]
) -> None:
    assert [one.id for one in find_learned(store_of(Store()), ("desk",), who)] == what


@pytest.mark.parametrize("who", ["person:adda", "nobody"])
def test_an_unknown_source_is_refused(who: str) -> None:
    with pytest.raises(NotFound):
        find_learned(store_of(Store()), ("desk",), who)

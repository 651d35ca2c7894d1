"""Where memories stand by the ledger's entries, and what may be ordered of them."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Iterator
from typing import Any

import pytest
from msgspec.structs import replace
from tests.store_parts import store_of

from vedette.domain.base.errors import AlreadyDone, BadCommand, NotFound, VedetteError
from vedette.domain.memory import Candidate
from vedette.domain.memory_state import (
    MEMORY_ENTRY_KINDS,
    TRANSITIONS,
    LedgerMemory,
    MemoryEntry,
    check_transition,
    fold_memories,
)
from vedette.operations.curation import sync_banks

WISH = Candidate("inbox", "all", "Told.", ("x",), "desk", "run_1", "evt_1", id="cnd_1")
ENTRY = {
    "kind": "memory.proposed", "memory": "inbox", "what": "cnd_1", "agent": "desk",
    "run": "run_1", "event": "evt_1", "at": 5,
}  # fmt: skip


def entry_of(seq: int, kind: str, name: str = "inbox/cnd_1") -> MemoryEntry:
    return seq, {"kind": kind, "memory": name, "actor": "person:kim", "at": seq * 10}, {}


def test_the_latest_word_counts() -> None:
    rows: list[MemoryEntry] = [(1, ENTRY, WISH.to_json())]
    assert fold_memories(rows)["inbox/cnd_1"].state == "candidate"
    for seq, (kind, state) in enumerate(TRANSITIONS.items(), 2):
        rows.append(entry_of(seq, kind))
        found = fold_memories(rows)["inbox/cnd_1"]
        assert (found.state, found.last, found.by) == (state, seq, "person:kim")
        assert (found.candidate, found.seq, found.at_us) == (WISH, 1, seq * 10)
    assert {row[1]["kind"] for row in rows} == set(MEMORY_ENTRY_KINDS)


def test_a_reviewed_memory_has_a_word_only_once_it_was_taken_back() -> None:
    found = fold_memories([entry_of(4, "memory.retired", "inbox/legal-01")])["inbox/legal-01"]
    assert (found.state, found.candidate, found.seq) == ("off", None, 0)


@pytest.mark.parametrize("kinds", [(), ("memory.promoted",), ("memory.promoted", "memory.retired")])
def test_what_was_erased_stays_so_whatever_was_ordered(kinds: tuple[str, ...]) -> None:
    rows: list[MemoryEntry] = [
        (1, ENTRY, None),
        *(entry_of(2 + at, kind) for at, kind in enumerate(kinds)),
    ]
    assert fold_memories(rows)["inbox/cnd_1"].state == "erased"


def test_an_entry_from_before_candidates_had_ids_is_known_by_what_it_says() -> None:
    old = {name: value for name, value in ENTRY.items() if name != "what"}
    body = {"scope": "all", "text": "Told.", "topics": ["x"]}
    (found,) = fold_memories([(1, old, body)]).values()
    assert found.candidate is not None
    assert replace(found.candidate, id=WISH.id) == WISH
    assert found.id == found.candidate.key != "cnd_1"
    assert fold_memories([(1, old, None)]) == {}


def of_a_person() -> dict[str, Any]:
    entry = {name: ENTRY[name] for name in ("kind", "memory", "what", "at")}
    return {**entry, "actor": "person:kim"}


def test_what_a_person_proposed_has_no_run() -> None:
    found = fold_memories([(1, of_a_person(), WISH.to_json())])["inbox/cnd_1"]
    assert found.candidate is not None
    assert (found.candidate.agent, found.candidate.run, found.by) == ("", "", "person:kim")


@pytest.mark.parametrize(
    ("state", "may"),
    [
        ("candidate", {"memory.promoted", "memory.rejected"}),
        ("active", {"memory.retired"}),
        ("off", {"memory.restored"}),
        ("rejected", set()),
        ("erased", set()),
    ],
)
def test_each_order_has_one_state_to_start_from(state: Any, may: set[str]) -> None:
    one = LedgerMemory("inbox", "cnd_1", state)
    for kind, to in TRANSITIONS.items():
        if kind in may:
            check_transition(kind, one)
            continue
        expected: type[VedetteError] = AlreadyDone if to == state else BadCommand
        with pytest.raises(NotFound if state == "erased" else expected):
            check_transition(kind, one)


# --- what a bank is fed -----------------------------------------------------------------------


class Ledger:
    """A store with one proposal whose content was erased, by a person or for an archive."""

    def __init__(self, what: str | None) -> None:
        erased: dict[str, Any] = {"kind": "body.erased", "erased": ["d1"]}
        self.told = [{**ENTRY, "body": "d1"}, erased | ({"what": what} if what else {})]

    def last_seq(self) -> int:
        return len(self.told)

    def walk(
        self, kinds: tuple[str, ...] | None = None, after: int = 0
    ) -> Iterator[tuple[int, bytes, bytes | None, bytes | None]]:
        for seq, entry in enumerate(self.told, 1):
            if seq > after and entry["kind"] in (kinds or ()):
                yield seq, json.dumps(entry).encode(), None, None

    def entries(self, kinds: tuple[str, ...]) -> list[tuple[int, bytes, bytes | None]]:
        return [(seq, raw, data) for seq, raw, _, data in self.walk(kinds)]

    def all(self) -> dict[str, LedgerMemory]:
        return fold_memories([(1, self.told[0], None)])

    def candidates(self, events: Collection[str]) -> list[Candidate]:
        return []


class Bank:
    """Notes what it is brought to, and what it is to forget."""

    def __init__(self) -> None:
        self.settled: list[str] = []
        self.forgotten: list[str] = []

    def sync_states(self, learned: Iterable[LedgerMemory]) -> set[str]:
        self.settled += [f"{one.id} {one.state}" for one in learned]
        return set()

    def forget(self, events: Collection[str], kept: Collection[Candidate] = ()) -> int:
        self.forgotten += events
        return len(events)


@pytest.mark.parametrize(
    ("what", "settled", "forgotten"),
    [(None, ["cnd_1 erased"], ["evt_1"]), ("archive", [], [])],
)
def test_what_a_person_erased_is_forgotten_and_what_an_archive_has_is_kept(
    what: str | None, settled: list[str], forgotten: list[str]
) -> None:
    bank: Any = Bank()
    assert sync_banks(bank, store_of(Ledger(what))) == 2
    assert (bank.settled, bank.forgotten) == (settled, forgotten)
    assert sync_banks(bank, store_of(Ledger(what)), 2) == 2
    assert (bank.settled, bank.forgotten) == (settled, forgotten), "nothing came after"


def test_who_proposed_it_and_who_had_it_recalled_is_known_whoever_moved_it_last() -> None:
    rows: list[MemoryEntry] = [(1, of_a_person(), WISH.to_json())]
    for seq, (kind, who) in enumerate(
        [("promoted", "ada"), ("retired", "bob"), ("restored", "carol"), ("retired", "dan")], 2
    ):
        number, entry, body = entry_of(seq, f"memory.{kind}")
        rows.append((number, {**entry, "actor": f"person:{who}"}, body))
    found = fold_memories(rows)["inbox/cnd_1"]
    assert (found.proposed_by, found.by) == ("person:kim", "person:dan")
    assert found.recalled_by == ("person:ada", "person:carol")

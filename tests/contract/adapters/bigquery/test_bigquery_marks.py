"""The shipper's marks over every kind of failure: a dataset in memory that fails where it is told.

Streams take rows at offsets as Storage Write says it does. Each history here has deaths, answers
that are lost, a second shipper, and restores; in the end each entry is in its table once.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import orjson
import pytest
from tests.store_parts import store_of

from vedette.adapters.bigquery.shipper import Shipper
from vedette.adapters.bigquery.tables import (
    _COMPUTED_COLUMNS,
    _FIELD_NAMES,
    KINDS,
    ShippedRowEncoder,
    _row_message,
    table_columns,
)
from vedette.adapters.bigquery.warehouse import AppendError, Warehouse
from vedette.domain.base.canonical import canonical_json, sha256_hex
from vedette.domain.base.errors import BadStore
from vedette.domain.entry import FIELDS

OTHERS = ("event.accepted", "action.decided", "recall.decided", "run.closed")


@dataclass
class Ledger:
    """A ledger and the marks beside it, which a restore takes back to where they were."""

    entries: list[tuple[int, bytes]] = field(default_factory=list)
    marks: dict[str, str] = field(default_factory=dict)
    now_us: int = 1000

    def add(self, kind: str) -> None:
        self.now_us += 7
        seq = len(self.entries) + 1
        value = {"v": 1, "seq": seq, "at": self.now_us, "kind": kind}
        self.entries.append((seq, canonical_json(value)))

    def entries_after(self, after: int, limit: int) -> list[tuple[int, bytes]]:
        return self.entries[after : after + min(limit, 5)]

    def meta(self, name: str) -> str | None:
        return self.marks.get(name)

    async def compare_and_set_meta(self, name: str, was: str | None, value: str) -> bool:
        held = self.marks.get(name) == was
        if held:
            self.marks[name] = value
        return held

    def close(self) -> None: ...

    def saved(self) -> Ledger:
        return Ledger(list(self.entries), dict(self.marks), self.now_us)


class Lost(Exception):
    """The answer did not come."""


class Memory(Warehouse):
    """A dataset in memory. `fails` says before a request, and before its answer, whether it does.

    Without `offsets` it takes whatever comes: the control.
    """

    def __init__(self, fails: Callable[[], bool], *, offsets: bool = True) -> None:
        super().__init__("project", "dataset")
        self.rows: dict[str, list[bytes]] = {table: [] for table in KINDS}
        self.streams: dict[str, tuple[str, int, bool]] = {}
        self.fails, self.offsets = fails, offsets

    def _may_fail(self) -> None:
        if self.fails():
            raise Lost

    def prepare(self) -> set[str]:
        return set()

    def close(self) -> None: ...

    def open_stream(self, table: str) -> str:
        self._may_fail()
        name = f"s{len(self.streams)}"
        self.streams[name] = (table, 0, True)
        self._may_fail()
        return name

    def append(
        self, stream: str, offset: int | None, rows: Sequence[bytes], descriptor: Any
    ) -> None:
        self._may_fail()
        table, count, is_open = self.streams[stream]
        if self.offsets:
            if not is_open:
                raise AppendError(9, "finalized")
            if offset != count:
                raise AppendError(6 if offset is not None and offset < count else 11, "offset")
        self.rows[table] += rows
        self.streams[stream] = (table, count + len(rows), is_open)
        self._may_fail()

    def close_stream(self, stream: str) -> int | None:
        self._may_fail()
        table, count, _ = self.streams[stream]
        self.streams[stream] = (table, count, False)
        self._may_fail()
        return count if self.offsets else None

    def read_progress(self, table: str, fleet: str, history: int) -> tuple[int, int, str]:
        self._may_fail()
        if not self.offsets:
            return 1, 0, ""
        rows = [_row_message(table)[0].FromString(raw) for raw in self.rows[table]]
        ours = {each.seq: each.digest for each in rows if each.history == history}
        last = max(ours, default=0)
        return len(rows), last, ours.get(last, "")

    def standing(self, table: str) -> list[bytes]:
        """Return what the view `entries` leaves of a table: the bytes or digest of each entry."""
        row = _row_message(table)[0]
        parsed = [row.FromString(raw) for raw in self.rows[table]]
        ledger = [_row_message("ledger")[0].FromString(raw) for raw in self.rows["ledger"]]
        marks = {(r.history, r.seq) for r in ledger if r.seq == 1 or r.kind == "store.restored"}
        return [
            each.digest
            for each in sorted(parsed, key=lambda each: each.seq)
            if not any(at > each.history and seq <= each.seq for at, seq in marks)
        ]


def expected(ledger: Ledger, table: str) -> list[Any]:
    kinds = KINDS[table]
    return [
        sha256_hex(raw)
        for _, raw in ledger.entries
        if kinds is None or orjson.loads(raw)["kind"] in kinds
    ]


async def play(seed: int, *, offsets: bool = True) -> tuple[Ledger, Memory]:
    """Play one history: entries, shipping, failures, deaths, a second shipper, restores."""
    dice = random.Random(seed)
    share = dice.choice((0.0, 0.1, 0.3))
    ledger, memory = Ledger(), Memory(lambda: dice.random() < share, offsets=offsets)
    saved: Ledger | None = None

    def shipper() -> Shipper:
        whole = ledger  # a restore makes another one; the shippers of the lost one are dead
        return Shipper("fleet", store_of(whole), lambda: store_of(whole), memory)

    living = [shipper(), shipper()]
    for _ in range(dice.randrange(5, 40)):
        for _ in range(dice.randrange(0, 9)):
            ledger.add(dice.choice(OTHERS))
        what = dice.random()
        if what < 0.1 and ledger.entries:
            saved = ledger.saved()
        elif what < 0.17 and saved is not None:
            # What was recorded, and maybe shipped, since the backup is lost.
            now = ledger.now_us
            ledger = saved.saved()
            ledger.now_us = now
            ledger.add("store.restored")
            living = [shipper(), shipper()]
        elif what < 0.3:
            living = [shipper(), shipper()]
        else:
            await try_to(dice.choice(living))
    share = 0.0
    for _ in range(4):  # every shipper that lives may find its stream closed by the other
        await try_to(living[0])
    return ledger, memory


async def try_to(shipper: Shipper) -> None:
    try:
        await shipper.ship()
    except (Lost, AppendError):
        return


@pytest.mark.parametrize("block", range(2))
async def test_every_entry_is_there_once(block: int) -> None:
    for seed in range(block * 20, block * 20 + 20):
        ledger, memory = await play(seed)
        for table in KINDS:
            assert memory.standing(table) == expected(ledger, table), f"seed {seed}, {table}"


async def test_without_offsets_it_is_not() -> None:
    """The control: the same histories, but appends are taken wherever they come."""
    wrong = 0
    for seed in range(20):
        ledger, memory = await play(seed, offsets=False)
        wrong += any(memory.standing(table) != expected(ledger, table) for table in KINDS)
    assert wrong > 3


class Meeting:
    """A worker's view of the marks whose first write waits until the other's is on its way, too."""

    def __init__(self, ledger: Ledger, both: asyncio.Barrier) -> None:
        self.ledger, self.both, self.met = ledger, both, False

    def meta(self, name: str) -> str | None:
        return self.ledger.meta(name)

    async def compare_and_set_meta(self, name: str, was: str | None, value: str) -> bool:
        if not self.met:
            self.met = True
            await self.both.wait()
        return await self.ledger.compare_and_set_meta(name, was, value)


@pytest.mark.parametrize("before", [0, 3])
async def test_of_two_that_ship_at_a_change_of_leader_one_is_told(before: int) -> None:
    ledger, memory = Ledger(), Memory(lambda: False)
    for _ in range(before):
        ledger.add("stop.set")
    await Shipper("fleet", store_of(ledger), lambda: store_of(ledger), memory).ship()
    for _ in range(4):
        ledger.add("stop.set")
    both = asyncio.Barrier(2)
    two = [
        Shipper("fleet", store_of(Meeting(ledger, both)), lambda: store_of(ledger), memory)
        for _ in range(2)
    ]
    answers = await asyncio.gather(*(each.ship() for each in two), return_exceptions=True)
    assert sorted(type(each).__name__ for each in answers) == ["Unavailable", "int"], answers
    for each in (*two, *two):
        await try_to(each)
    for table in KINDS:
        assert memory.standing(table) == expected(ledger, table)
    assert len(memory.rows["ledger"]) == len(ledger.entries)


async def test_a_store_that_was_put_back_by_hand_is_told() -> None:
    """Its ledger says nothing of a restore, so what the table has more of is no entry of it."""
    ledger, memory = Ledger(), Memory(lambda: False)
    for _ in range(3):
        ledger.add("event.accepted")
    await Shipper("fleet", store_of(ledger), lambda: store_of(ledger), memory).ship()
    saved = ledger.saved()
    for _ in range(3):
        ledger.add("run.closed")
    await Shipper("fleet", store_of(ledger), lambda: store_of(ledger), memory).ship()
    for more in range(4):
        saved.add("event.accepted")
        with pytest.raises(BadStore, match="put back by hand"):
            await Shipper("fleet", store_of(saved), lambda: store_of(saved), memory).ship()
        assert len(memory.rows["ledger"]) == 6, f"with {more + 1} entries after it was put back"


async def test_what_was_archived_unshipped_is_told() -> None:
    ledger, memory = Ledger(), Memory(lambda: False)
    for _ in range(9):
        ledger.add("event.accepted")

    class Cut(Ledger):
        def entries_after(self, after: int, limit: int) -> list[tuple[int, bytes]]:
            return super().entries_after(max(after, 4), limit)

    cut = Cut(ledger.entries)
    shipper = Shipper("fleet", store_of(cut), lambda: store_of(cut), memory)
    assert await shipper.ship() == 5
    assert shipper.gaps[0] == "entries 1 to 4 were archived before they were shipped"


# --- what is shipped ------------------------------------------------------------------------


def test_every_column_is_a_field_of_an_entry_or_made_of_one() -> None:
    """So a field that is renamed cannot silently stay empty in the tables."""
    for table in KINDS:
        for column in table_columns(table):
            name = column["name"]
            assert name in _COMPUTED_COLUMNS or _FIELD_NAMES.get(name, name) in FIELDS | {"body"}, (
                name
            )
    assert "salt" not in {column["name"] for column in table_columns("ledger")}


def test_a_row_has_what_the_entry_has() -> None:
    entry = {
        "v": 1, "seq": 7, "at": 1_790_000_000_000_001, "kind": "effect.done", "agent": "worker",
        "tool": "wire.send", "until": 1_790_000_000_000_002, "body": "ab", "spend": {"tokens": 3},
        "policy_rev": 2,
    }  # fmt: skip
    raw = canonical_json(entry)
    row = _row_message("ledger")[0].FromString(
        ShippedRowEncoder("ledger", "harbour").row(entry, raw, 5)
    )
    assert {field.name: value for field, value in row.ListFields()} == {
        "fleet": "harbour", "history": 5, "seq": 7, "recorded_at": 1_790_000_000_000_001,
        "kind": "effect.done", "digest": sha256_hex(raw), "agent": "worker", "tool": "wire.send",
        "policy_rev": 2, "hold_until": 1_790_000_000_000_002, "effect": "done", "body": "ab",
        "spend": '{"tokens":3}', "entry": raw.decode(),
    }  # fmt: skip

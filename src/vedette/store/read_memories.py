"""The memories read from a store: where they stand, by entries at hand and by archived ones."""

from __future__ import annotations

from collections.abc import Collection

import orjson

from vedette.domain.memory import Candidate
from vedette.domain.memory_state import MEMORY_ENTRY_KINDS, LedgerMemory, fold_memories
from vedette.domain.ports.ledger_reader import EntryWithBody
from vedette.store.dialect import Database
from vedette.store.read_archived_memories import read_entries
from vedette.store.read_ledger import LedgerReader


class MemoryReader:
    """Memories read from a store's entries; fits `ports.memory_store.MemoryReader`."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def all(self) -> dict[str, LedgerMemory]:
        return fold_memories(
            (seq, orjson.loads(raw), None if data is None else orjson.loads(data))
            for seq, raw, data in self.entries(MEMORY_ENTRY_KINDS)
        )

    def candidates(self, events: Collection[str]) -> list[Candidate]:
        every = self.all().values() if events else ()
        return [one.candidate for one in every if one.candidate is not None and one.event in events]

    def entries(self, kinds: tuple[str, ...]) -> list[EntryWithBody]:
        ledger = LedgerReader(self._database)
        found = {seq: (seq, raw, data) for seq, raw, _, data in ledger.walk(kinds)}
        # What is kept of an entry counts, be its row deleted yet or not.
        found |= {one[0]: one for one in read_entries(self._database, kinds)}
        return [found[seq] for seq in sorted(found)]

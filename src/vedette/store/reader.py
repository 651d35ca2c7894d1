"""A store that is read: its parts over one connection, beside running workers or with none."""

from __future__ import annotations

from contextlib import AbstractContextManager

from vedette.store.dialect import Database
from vedette.store.meta import read_meta
from vedette.store.read_ledger import LedgerReader
from vedette.store.read_memories import MemoryReader
from vedette.store.read_policy import PolicyReader
from vedette.store.read_runs import RunReader, RunSchedule, RunScope, all_runs
from vedette.store.readmodel.counts import TableReader
from vedette.store.readmodel.model import ReadModel, ViewHome
from vedette.store.spend_totals import SpendReader
from vedette.store.states import JudgeStateReader


class StoreReader:
    """Fits `ports.store.StoreReader`.

    `view` is where its read model lies, None where nobody asks for lists; `scope` says which runs
    are this worker's.
    """

    def __init__(
        self, database: Database, view: ViewHome | None = None, scope: RunScope = all_runs
    ) -> None:
        self.database = database
        self.view = ReadModel(view)
        self.runs = RunReader(database)
        self.judge_states = JudgeStateReader(database)
        self.spend = SpendReader(database)
        self.schedule = RunSchedule(database, scope)
        self.ledger = LedgerReader(database, self.view)
        self.policy = PolicyReader(database)
        self.memories = MemoryReader(database)
        self.tables = TableReader(database, self.view)

    def meta(self, name: str) -> str | None:
        return read_meta(self.database, name)

    def is_command_done(self, command: str) -> bool:
        return bool(self.database.rows("SELECT 1 FROM command WHERE id=?", (command,)))

    def snapshot(self) -> AbstractContextManager[None]:
        return self.database.snapshot()

    def close(self) -> None:
        self.view.close()
        self.database.close()

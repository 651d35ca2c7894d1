"""The store on SQLite: WAL, full sync, one writer with group commit (see `vedette.store`).

The runner owns the file: it holds an exclusive lock beside it for as long as it lives, so a
second runner is refused; anybody may open it read-only at any time.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

from vedette.domain.base.disk_errors import convert_disk_errors
from vedette.domain.base.state_folder import secure_folder
from vedette.ledger.merkle import SigningKey
from vedette.store.read_runs import StoreReader
from vedette.store.runner_lock import LOCK_FILE, acquire_lock
from vedette.store.schema import SCHEMA
from vedette.store.spare_space import SpareSpace
from vedette.store.sqlite.connection import open_database
from vedette.store.sqlite.database import SqliteDatabase
from vedette.store.store import SqlStore
from vedette.store.witness import WITNESS_FILE, Witness

# How long an erasure waits for readers of older pages of the log.
SCRUB_WAIT_MS = 1000


class SqliteStore(SqlStore):
    """One fleet's durable state in `folder`/store.db."""

    _database: SqliteDatabase
    _write: SqliteDatabase
    inline_limit = 16

    def __init__(
        self,
        folder: Path,
        *,
        fleet: str,
        key: SigningKey,
        key_name: str,
        now_us: Callable[[], int],
        synchronous: str = "FULL",
        vfs: str | None = None,
    ) -> None:
        secure_folder(folder)
        path = folder / "store.db"
        with convert_disk_errors(path), ExitStack() as undo:
            self._lock = undo.enter_context(acquire_lock(folder / LOCK_FILE))
            writing = open_database(path, write=True, synchronous=synchronous, vfs=vfs)
            undo.callback(writing.close)
            # A runner that was killed after an erasure may have left the log uncut.
            self._needs_scrub, self._wait_ms = not writing.scrub(), 0
            reading = open_database(path, write=False, vfs=vfs)
            undo.callback(reading.close)
            super().__init__(reading, writing, now_us)
            if writing.previous_state is not None:
                self.remarks = (migration_remark(writing.previous_state),)
            self._spare = SpareSpace(folder / "spare")
            self.witness = Witness(folder / WITNESS_FILE)
            self._start(folder, fleet, key, key_name)
            self._spare.reserve()
            undo.pop_all()

    def close(self) -> None:
        """Commit what is queued, close the file and let the next runner in."""
        super().close()
        self._lock.close()

    @property
    def is_scrubbed(self) -> bool:
        """Say whether the log holds nothing any more of what was erased."""
        return not self._needs_scrub

    def mark_erasure(self) -> None:
        """The log is to be cut after this group."""
        self._needs_scrub, self._wait_ms = True, SCRUB_WAIT_MS

    def on_rollback(self) -> None:
        """Take fences, steps and, of a group, the head from what stands.

        A COMMIT may stand although it raised: the log is written back after it, and that failed.
        """
        super().on_rollback()
        if not self._write.in_transaction:
            self._ledger.load()

    def free_space(self, error: Exception) -> bool:
        """Give up the spare space for what must be written, if the disk took no more."""
        return self._write.is_full(error) and self._spare.is_reserved and self._spare.release()

    def has_space(self) -> bool:
        """Say whether the disk has room for the spare space again."""
        return self._spare.reserve()

    def on_commit(self) -> None:
        """Cut the log after an erasure; if a reader needs it still, after each group until it went.

        On the writer's thread, outside of any transaction. Only the erasure itself waits.
        """
        if self._needs_scrub:
            self._needs_scrub = not self._write.scrub(self._wait_ms)
            self._wait_ms = 0


def migration_remark(copy: Path) -> str:
    """Say that a store was brought to this program's schema, and where it lies as it was."""
    return (
        f"the store was brought to schema {SCHEMA}; as it was it lies in {copy}: an older version "
        "goes on with that, and you delete it once you trust this one"
    )


class SqliteReader(StoreReader):
    """A store opened to read only, beside a running fleet or with none.

    Raises BadStore if there is none, StoreFailed where the disk refused something.
    """

    _database: SqliteDatabase

    def __init__(self, folder: Path) -> None:
        path = folder / "store.db"
        with convert_disk_errors(path):
            super().__init__(open_database(path, write=False))

    def close(self) -> None:
        """Close the file."""
        self._database.close()


__all__ = ["SqliteReader", "SqliteStore"]

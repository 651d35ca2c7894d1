"""The store on SQLite: WAL, full sync, one writer with group commit (see `vedette.store`).

The runner owns the file: it holds an exclusive lock beside it for as long as it lives, so a
second runner is refused; anybody may open it read-only at any time.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

from vedette.domain.base.disk_errors import told_of_disk
from vedette.domain.base.state_folder import secure
from vedette.ledger.merkle import SigningKey
from vedette.store.read_runs import Reads
from vedette.store.runner_lock import LOCK, own
from vedette.store.schema import SCHEMA
from vedette.store.spare_space import SpareSpace
from vedette.store.sqlite.connection import open_database
from vedette.store.sqlite.database import SqliteDatabase
from vedette.store.store import SqlStore
from vedette.store.witness import FILE, Witness

# How long an erasure waits for readers of older pages of the log.
WAIT_MS = 1000


class SqliteStore(SqlStore):
    """One fleet's durable state in `folder`/store.db."""

    _database: SqliteDatabase
    _write: SqliteDatabase
    small = 16

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
        secure(folder)
        path = folder / "store.db"
        with told_of_disk(path), ExitStack() as undo:
            self._lock = undo.enter_context(own(folder / LOCK))
            writing = open_database(path, write=True, synchronous=synchronous, vfs=vfs)
            undo.callback(writing.close)
            # A runner that was killed after an erasure may have left the log uncut.
            self._uncut, self._wait_ms = not writing.scrub(), 0
            reading = open_database(path, write=False, vfs=vfs)
            undo.callback(reading.close)
            super().__init__(reading, writing, now_us)
            if writing.kept is not None:
                self.remarks = (migrated(writing.kept),)
            self._spare = SpareSpace(folder / "spare")
            self.witness = Witness(folder / FILE)
            self._take_over(folder, fleet, key, key_name)
            self._spare.hold()
            undo.pop_all()

    def close(self) -> None:
        """Commit what is queued, close the file and let the next runner in."""
        super().close()
        self._lock.close()

    @property
    def scrubbed(self) -> bool:
        """Say whether the log holds nothing any more of what was erased."""
        return not self._uncut

    def erasing(self) -> None:
        """The log is to be cut after this group."""
        self._uncut, self._wait_ms = True, WAIT_MS

    def undone(self) -> None:
        """Take fences, steps and, of a group, the head from what stands.

        A COMMIT may stand although it raised: the log is written back after it, and that failed.
        """
        super().undone()
        if not self._write.in_transaction:
            self._ledger.load()

    def make_room(self, error: Exception) -> bool:
        """Give up the spare space for what must be written, if the disk took no more."""
        return self._write.is_full(error) and self._spare.held and self._spare.give_up()

    def has_room(self) -> bool:
        """Say whether the disk has room for the spare space again."""
        return self._spare.hold()

    def between(self) -> None:
        """Cut the log after an erasure; if a reader needs it still, after each group until it went.

        On the writer's thread, outside of any transaction. Only the erasure itself waits.
        """
        if self._uncut:
            self._uncut = not self._write.scrub(self._wait_ms)
            self._wait_ms = 0


def migrated(kept: Path) -> str:
    """Say that a store was brought to this program's schema, and where it lies as it was."""
    return (
        f"the store was brought to schema {SCHEMA}; as it was it lies in {kept}: an older version "
        "goes on with that, and you delete it once you trust this one"
    )


class OpenedStore(Reads):
    """A store opened to read only, beside a running fleet or with none.

    Raises BadStore if there is none, StoreFailed where the disk refused something.
    """

    _database: SqliteDatabase

    def __init__(self, folder: Path) -> None:
        path = folder / "store.db"
        with told_of_disk(path):
            super().__init__(open_database(path, write=False))

    def close(self) -> None:
        """Close the file."""
        self._database.close()


__all__ = ["OpenedStore", "SqliteStore"]

"""The store on SQLite: WAL, full sync, one writer with group commit (see `vedette.store`).

The runner owns the file: it holds an exclusive lock beside it for as long as it lives, so a
second runner is refused; anybody may open it read-only at any time.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from pathlib import Path

from vedette.domain.base.disk_errors import convert_disk_errors
from vedette.domain.base.failpoint import hit_failpoint
from vedette.domain.base.state_folder import secure_folder
from vedette.domain.budget import DAY_US, MINUTE_US
from vedette.ledger.merkle import SigningKey, verifier_key
from vedette.store.command_queue import CommandQueue
from vedette.store.group_commit import CommitHooks, GroupWriter
from vedette.store.loss_detection import record_found_loss
from vedette.store.meta import read_meta, write_meta
from vedette.store.reader import StoreReader
from vedette.store.retention import StoreMaintenance
from vedette.store.runner_lock import LOCK_FILE, acquire_lock
from vedette.store.spare_space import SpareSpace
from vedette.store.sqlite.connection import open_database
from vedette.store.sqlite.database import SqliteDatabase
from vedette.store.sqlite.sole_worker import SoleWorker
from vedette.store.sqlite.upgrade_folder import drop_work
from vedette.store.sqlite.view_file import ViewFile
from vedette.store.step_queue import StepQueue
from vedette.store.witness import WITNESS_FILE, Witness
from vedette.store.write_parts import WriteParts, open_write_parts
from vedette.store.write_runs import Fences

# How long an erasure waits for readers of older pages of the log.
SCRUB_WAIT_MS = 1000


class FileHooks(CommitHooks):
    """The commit hooks of a SQLite file: its log cut after an erasure, and room on a full disk."""

    inline_limit = 16

    def __init__(self, database: SqliteDatabase, parts: WriteParts, spare: SpareSpace) -> None:
        self._database = database
        self._parts = parts
        self._spare = spare
        # A runner that was killed after an erasure may have left the log uncut.
        self.is_scrubbed, self._wait_ms = database.scrub(), 0

    def on_erasure(self) -> None:
        """Have the log cut after this group."""
        self.is_scrubbed, self._wait_ms = False, SCRUB_WAIT_MS

    def on_rollback(self) -> None:
        """Take fences, steps and, of a group, the head from what stands.

        A COMMIT may stand although it raised: the log is written back after it, and that failed.
        """
        self._parts.reload()
        if not self._database.in_transaction:
            self._parts.ledger.load()

    def on_commit(self) -> None:
        """Cut the log after an erasure; if a reader needs it still, after each group until it went.

        On the writer's thread, outside of any transaction. Only the erasure itself waits.
        """
        if not self.is_scrubbed:
            self.is_scrubbed = self._database.scrub(self._wait_ms)
            self._wait_ms = 0

    def free_space(self, error: Exception) -> bool:
        """Give up the spare space for what must be written, if the disk took no more."""
        return self._database.is_full(error) and self._spare.is_reserved and self._spare.release()

    def has_space(self) -> bool:
        """Say whether the disk has room for the spare space again."""
        return self._spare.reserve()


class SqliteStore(StoreReader):
    """One fleet's durable state in `folder`/store.db. Fits `ports.store.Store`."""

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
            undo.enter_context(acquire_lock(folder / LOCK_FILE))
            writing = open_database(path, write=True, synchronous=synchronous, vfs=vfs)
            undo.callback(writing.close)
            # Of an upgrade that was killed once the new file was in its place.
            drop_work(folder)
            spare = SpareSpace(folder / "spare")
            fences = Fences()
            parts = self.parts = open_write_parts(
                writing, Witness(folder / WITNESS_FILE), fences, fleet=fleet, key=key,
                key_name=key_name, now_us=now_us,
            )  # fmt: skip
            hooks = FileHooks(writing, parts, spare)
            reading = open_database(path, write=False, vfs=vfs)
            undo.callback(reading.close)
            super().__init__(reading, ViewFile(folder, vfs))
            undo.callback(self.view.close)
            line = verifier_key(key_name, key.public_key().public_bytes_raw())
            # What was found to be lost when it was opened.
            self.loss = record_found_loss(parts, hooks, line)
            _begin_epoch(parts, fleet)
            parts.reload()
            self.writer = GroupWriter(writing, parts.ledger, parts.buffer, hooks)
            undo.callback(self.writer.close)
            self.steps = StepQueue(self.writer, parts)
            self.commands = CommandQueue(self.writer, parts, hooks)
            self.maintenance = StoreMaintenance(
                reading, self.commands, self.writer, parts, hooks,
                partial(open_database, path, write=False, vfs=vfs),
            )  # fmt: skip
            self.cluster = SoleWorker(fences)
            spare.reserve()
            self._open = undo.pop_all()

    def subscribe(self, changed: Callable[[], None]) -> None:
        self.writer.listeners.append(changed)

    def close(self) -> None:
        """Commit what is queued, close the file and let the next runner in."""
        # First by itself: whoever interrupts it leaves the writer its connection, and the lock.
        self.writer.close()
        self._open.close()


def _begin_epoch(parts: WriteParts, fleet: str) -> None:
    """Begin a new epoch: whoever wrote before must not any more."""
    database, fences = parts.database, parts.fences
    fences.epoch = int(read_meta(database, "epoch") or 0) + 1
    hit_failpoint("epoch:before")
    database.begin()
    write_meta(database, "fleet", fleet)
    write_meta(database, "epoch", fences.epoch)
    # Limits look back a day at most.
    old = (parts.now_us() - 3 * DAY_US) // MINUTE_US
    database.execute("DELETE FROM spend WHERE minute<?", (old,))
    database.commit()
    hit_failpoint("epoch:after")


class SqliteReader(StoreReader):
    """A SQLite store opened to read only, beside a running fleet or with none.

    Raises BadStore if there is none, StoreFailed where the disk refused something.
    """

    def __init__(self, folder: Path) -> None:
        path = folder / "store.db"
        with convert_disk_errors(path):
            super().__init__(open_database(path, write=False), ViewFile(folder))

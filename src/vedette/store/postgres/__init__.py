"""The store on PostgreSQL: several workers on one ledger (see `vedette.store` and `leases`).

Each worker has one writer with group commit, as on SQLite. A group takes the fleet's advisory lock
before it looks at anything, so groups of all workers stand one behind the other: the ledger has
one dense sequence, and a publication or a stop is in force for every later group of anybody.

A worker is a state folder: it holds an exclusive lock in it for as long as it lives, so that its
successor may take its leases over at once.
"""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from functools import partial
from pathlib import Path
from typing import Any

from vedette.domain.base import machine
from vedette.domain.base.errors import BadStore
from vedette.domain.base.failpoint import hit_failpoint
from vedette.domain.base.state_folder import secure_folder
from vedette.ledger.merkle import Checkpoint, SigningKey, parse_note, verifier_key
from vedette.store.command_queue import CommandQueue
from vedette.store.dialect import Row
from vedette.store.group_commit import GroupWriter
from vedette.store.loss_detection import holds_checkpoint, record_found_loss, record_instance
from vedette.store.meta import INSTANCE, read_meta, write_meta
from vedette.store.postgres.cluster import LeasedCluster, LeasedFences, WorkerHooks, leased_runs
from vedette.store.postgres.database import PostgresDatabase, read_instance, translate_server_errors
from vedette.store.postgres.leases import Leases
from vedette.store.postgres.schema import check_schema, create_tables, has_schema
from vedette.store.postgres.view_tables import NAME, ViewTables
from vedette.store.reader import StoreReader
from vedette.store.retention import StoreMaintenance
from vedette.store.runner_lock import LOCK_FILE, acquire_lock
from vedette.store.step_queue import StepQueue
from vedette.store.witness import WITNESS_FILE, Witness
from vedette.store.write_parts import open_write_parts

LEASE_US = 5_000_000
# How long what the line reads waits for a server that is away; the whole line waits with it, so
# this is for a server that is started again. After that reads fail until it is back.
PATIENCE_S = 1.0
# How often a worker without a witness looks whether another one lives.
_BEAT_POLL_S = 0.02


class PostgresStore(StoreReader):
    """One fleet's durable state in a database, as one of its workers. Fits `ports.store.Store`."""

    def __init__(
        self,
        url: str,
        folder: Path,
        *,
        fleet: str,
        key: SigningKey,
        key_name: str,
        now_us: Callable[[], int],
        lease_us: int = LEASE_US,
        visit: bool = False,
    ) -> None:
        """Connect and join the fleet's workers; who only visits takes no keys.

        Raises Unavailable if there is no server, StoreBusy if this state folder has a runner,
        BadStore for a store that is not ours.
        """
        secure_folder(folder)
        label = f"{socket.gethostname()}:{os.getpid()}"
        self._witness = Witness(folder / WITNESS_FILE)
        self._instance = ""
        with translate_server_errors(), ExitStack() as undo:
            self._lock = undo.enter_context(
                acquire_lock(
                    folder / LOCK_FILE,
                    "this state folder",
                    "stop it, or give each worker a state folder of its own",
                )
            )
            writing = PostgresDatabase(
                url, name=f"vedette writer {label}", hold_ms=max(1, lease_us // 1000),
                check_connection=self._refuse_older_server,
            )  # fmt: skip
            undo.callback(writing.close)
            create_tables(writing)
            reading = PostgresDatabase(
                url, name=f"vedette reader {label}", hold_ms=0, patience_s=PATIENCE_S,
                check_connection=self._refuse_older_server,
            )  # fmt: skip
            undo.callback(reading.close)
            beating = PostgresDatabase(
                url, name=f"vedette lease {label}", statement_ms=max(1, lease_us // 3000),
                check_connection=self._refuse_older_server,
            )  # fmt: skip
            undo.callback(beating.close)
            worker = folder / "worker"
            self._had_worker, name = worker.exists(), _read_worker_name(worker)
            self._patience_s = lease_us * 1.25 / 1e6
            self._first_beats: tuple[dict[int, int], float] | None = None
            fences = LeasedFences()
            leases = Leases(
                beating, name, label, lease_us=lease_us, visit=visit,
                own_head=lambda: self.parts.ledger.last_seq, add_checkpoint=self._add_checkpoint,
            )  # fmt: skip
            undo.callback(leases.close)
            super().__init__(reading, self._view_home(url), partial(leased_runs, leases))
            undo.callback(self.view.close)
            parts = self.parts = open_write_parts(
                writing, self._witness, fences, fleet=fleet, key=key, key_name=key_name,
                now_us=now_us,
            )  # fmt: skip
            hooks = WorkerHooks(writing, parts, fences, name)
            line = verifier_key(key_name, key.public_key().public_bytes_raw())
            # What was found to be lost when it was opened.
            self.loss = record_found_loss(parts, hooks, line, self._may_join)
            self._join(fleet, line, name)
            fences.granted_epochs = {}
            leases.start()
            hit_failpoint("epoch:after")
            parts.reload()
            self.writer = GroupWriter(writing, parts.ledger, parts.buffer, hooks)
            undo.callback(self.writer.close)
            self.steps = StepQueue(self.writer, parts)
            self.commands = CommandQueue(self.writer, parts, hooks)
            self.maintenance = StoreMaintenance(
                reading, self.commands, self.writer, parts, hooks,
                partial(
                    PostgresDatabase, url, name=f"vedette archive {label}", hold_ms=0,
                    patience_s=PATIENCE_S, check_connection=self._refuse_older_server,
                ),
            )  # fmt: skip
            self.cluster = LeasedCluster(reading, leases, fences, hooks, self.commands)
            self._open = undo.pop_all()

    @staticmethod
    def _view_home(url: str) -> ViewTables:
        return ViewTables(partial(PostgresDatabase, url, name=NAME, patience_s=PATIENCE_S))

    def subscribe(self, changed: Callable[[], None]) -> None:
        self.writer.listeners.append(changed)
        loop = asyncio.get_running_loop()

        def tell() -> None:
            with suppress(RuntimeError):  # the loop is closed
                loop.call_soon_threadsafe(changed)

        self.cluster.leases.listeners.append(tell)

    def close(self) -> None:
        """Commit what is queued, give the leases back, close the connections."""
        # First by itself: whoever interrupts it leaves the writer its connection, and the lock.
        self.writer.close()
        self._open.close()

    # --- the witness ------------------------------------------------------------------------

    def _refuse_older_server(self, ask: Callable[[str, Sequence[Any]], list[Row]]) -> None:
        """Raise BadStore if a server that answers anew may lack what it had.

        What this process holds in memory is of the history that is lost, so it ends; the next
        start says what was lost, and is stopped. Any of our threads may ask.
        """
        point, instance = self._witness.last_checkpoint, read_instance(ask)
        what = ""
        if point is not None and not holds_checkpoint(ask, point):
            what = f"the server went back: it does not hold entry {point.size}, which it had"
        elif instance != (self._instance or instance):
            what = "the server was promoted or the database restored: what others did may be lost"
        if what:
            mend = "start this worker again: the fleet comes up stopped, and says what is lost"
            raise BadStore(what, where="[store]", mend=mend)
        self._instance = instance

    def _add_checkpoint(self, note: str) -> None:
        """Let our witness see a head that another worker signed."""
        self._witness.add_checkpoint(note, Checkpoint.from_body(parse_note(note).body))

    def _may_join(self) -> bool:
        """Say whether this state folder is new to a fleet of which a worker lives.

        A worker shows that it lives by its beat, and beats only at a server that holds the last
        head its own witness saw. A folder that was a worker's had a witness: then it was lost.
        """
        if self._had_worker or not self._has_live_peer():
            return False
        note = self.ledger.last_checkpoint()
        if note is not None:
            self._add_checkpoint(note)
        return not self._witness.is_behind

    def _has_live_peer(self) -> bool:
        """Say whether the beat of another worker moves; wait for it for a lease and a quarter."""
        if self._first_beats is None:
            self._first_beats = self._read_beats(), machine.monotonic_s() + self._patience_s
        met, until = self._first_beats
        while met:
            if any(beat > met.get(life, beat) for life, beat in self._read_beats().items()):
                return True
            if machine.monotonic_s() >= until:
                return False
            machine.sleep_s(_BEAT_POLL_S)
        return False

    def _read_beats(self) -> dict[int, int]:
        return dict(self.parts.database.rows("SELECT life, beat FROM worker"))

    def _join(self, fleet: str, key: str, worker: str) -> None:
        """Say whose store it is and who signs it. Raises BadStore for a key that is not theirs."""
        database = self.parts.database
        _write_worker_name(self._witness.path.with_name("worker"), worker)
        hit_failpoint("epoch:before")
        database.begin()
        try:
            signing = self.ledger.key_in_force() or self.meta("first_key")
            if signing not in (None, key):
                raise BadStore(
                    "this worker signs with another key than the fleet's ledger",
                    mend="copy ledger.key of a worker's state folder into this one",
                )
            write_meta(database, "fleet", fleet)
            if self.meta(INSTANCE) is None:
                record_instance(database)
            if signing is None:
                write_meta(database, "first_key", key)
            database.commit()
        finally:
            database.rollback()


def _read_worker_name(path: Path) -> str:
    """Return the name of the worker whose state folder this is, a new one if it has none."""
    if path.exists():
        return path.read_text("ascii").strip()
    return f"wrk_{machine.random_bytes(16).hex()}"


def _write_worker_name(path: Path, name: str) -> None:
    """Name the worker in its state folder: once its witness saw a head, and not before."""
    if path.exists():
        return
    # Whole or not at all: two workers of the same name would take each other's leases.
    new = path.with_name("worker.new")
    hit_failpoint("worker:before")
    new.write_text(f"{name}\n", encoding="ascii")
    new.replace(path)
    hit_failpoint("worker:after")


def has_store(url: str) -> bool:
    """Say whether a PostgreSQL database has a store. Raises Unavailable if there is no server."""
    database = PostgresDatabase(url, name="vedette looking", hold_ms=0)
    try:
        return has_schema(database)
    finally:
        database.close()


def read_value(url: str, name: str) -> str | None:
    """Return a value of the meta table of a store in a database, of whatever schema it is."""
    database = PostgresDatabase(url, name="vedette looking", hold_ms=0)
    try:
        return read_meta(database, name)
    finally:
        database.close()


class PostgresReader(StoreReader):
    """A PostgreSQL store opened to read only, beside running workers or with none."""

    def __init__(self, url: str) -> None:
        database = PostgresDatabase(url, name="vedette reading", hold_ms=0)
        try:
            database.execute_script("SET default_transaction_read_only=on")
            check_schema(database)
        except BaseException:
            database.close()
            raise
        super().__init__(database, ViewTables(partial(PostgresDatabase, url, name=NAME)))


__all__ = ["PostgresReader", "PostgresStore"]

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
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import orjson

from vedette.domain.base import machine
from vedette.domain.base.canonical import canonical_json
from vedette.domain.base.errors import BadStore
from vedette.domain.base.failpoint import hit_failpoint
from vedette.domain.base.state_folder import secure_folder
from vedette.domain.bundle import Bundle
from vedette.domain.entry import Draft
from vedette.domain.run import Run, Step
from vedette.ledger.merkle import Checkpoint, SigningKey, parse_note, verifier_key
from vedette.store.dialect import Row
from vedette.store.loss_detection import holds_checkpoint, record_instance
from vedette.store.postgres.database import PostgresDatabase, read_instance, translate_server_errors
from vedette.store.postgres.leased_runs import LeasedRuns
from vedette.store.postgres.leases import NOTIFY_CHANNEL, Leases
from vedette.store.postgres.schema import check_schema, create_tables, has_schema
from vedette.store.postgres.shards import shard_in
from vedette.store.read_ledger import INSTANCE
from vedette.store.read_runs import StoreReader
from vedette.store.runner_lock import LOCK_FILE, acquire_lock
from vedette.store.store import SqlStore
from vedette.store.witness import WITNESS_FILE, Witness
from vedette.store.write_runs import StepWriter

LEASE_US = 5_000_000
# How long what the line reads waits for a server that is away; the whole line waits with it, so
# this is for a server that is started again. After that reads fail until it is back.
PATIENCE_S = 1.0
# Under which name a worker keeps which agents it runs, before its own.
_AGENTS_PREFIX = "agents:"
# How often a worker without a witness looks whether another one lives.
_BEAT_POLL_S = 0.02


class LeasedStepWriter(StepWriter):
    """Steps of a worker that holds some of the shards, as of the group's transaction."""

    granted_epochs: dict[int, int]

    def epoch_of(self, position: int, step: Step) -> int:
        """Return the epoch of the shard that a step's own epoch names; -1 if it is not ours."""
        return self.granted_epochs.get(shard_in(step.epoch), -1)


class PostgresStore(LeasedRuns, SqlStore):
    """One fleet's durable state in a database, as one of its workers. See
    `vedette.domain.ports.store.Store`.
    """

    _write: PostgresDatabase
    _step_writer: LeasedStepWriter
    step_writer_type = LeasedStepWriter
    multi_worker = True

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
        self.witness = Witness(folder / WITNESS_FILE)
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
            super().__init__(reading, writing, now_us)
            worker = folder / "worker"
            self._had_worker, name = worker.exists(), _read_worker_name(worker)
            self._patience_s = lease_us * 1.25 / 1e6
            self._first_beats: tuple[dict[int, int], float] | None = None
            self.leases = Leases(
                beating, name, label, lease_us=lease_us, visit=visit, own_head=self._own_head,
                add_checkpoint=self._add_checkpoint,
            )  # fmt: skip
            undo.callback(self.leases.close)
            self._granted_rev, self._shared = -1, False
            self._is_uncertain, self._uncertain_groups, self._foreign_groups = False, 0, 0
            self._key_line = verifier_key(key_name, key.public_key().public_bytes_raw())
            self._start(folder, fleet, key, key_name)
            undo.pop_all()

    def _own_head(self) -> int:
        return self._ledger.last_seq

    # --- the witness ------------------------------------------------------------------------

    def _refuse_older_server(self, ask: Callable[[str, Sequence[Any]], list[Row]]) -> None:
        """Raise BadStore if a server that answers anew may lack what it had.

        What this process holds in memory is of the history that is lost, so it ends; the next
        start says what was lost, and is stopped. Any of our threads may ask.
        """
        point, instance = self.witness.last_checkpoint, read_instance(ask)
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
        self.witness.add_checkpoint(note, Checkpoint.from_body(parse_note(note).body))

    def _may_join(self) -> bool:
        """Say whether this state folder is new to a fleet of which a worker lives.

        A worker shows that it lives by its beat, and beats only at a server that holds the last
        head its own witness saw. A folder that was a worker's had a witness: then it was lost.
        """
        if self._had_worker or not self._has_live_peer():
            return False
        note = self.newest_note()
        if note is not None:
            self._add_checkpoint(note)
        return not self.witness.is_behind

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
        return dict(self._write.rows("SELECT life, beat FROM worker"))

    def _take_ownership(self, fleet: str) -> None:
        """Say whose store it is, and join the others who work on it."""
        _write_worker_name(self.witness.path.with_name("worker"), self.leases.worker)
        hit_failpoint("epoch:before")
        self._write.begin()
        try:
            signing = self.key_in_force() or self.meta("first_key")
            if signing not in (None, self._key_line):
                raise BadStore(
                    "this worker signs with another key than the fleet's ledger",
                    mend="copy ledger.key of a worker's state folder into this one",
                )
            self._commands.set_meta("fleet", fleet)
            if self.meta(INSTANCE) is None:
                record_instance(self._write)
            if signing is None:
                self._commands.set_meta("first_key", self._key_line)
            self._write.commit()
        finally:
            self._write.rollback()
        self._step_writer.granted_epochs = {}
        self.leases.start()
        hit_failpoint("epoch:after")

    def close(self) -> None:
        """Commit what is queued, give the leases back, close the connections."""
        self.writer.close()
        self.leases.close()
        super().close()
        self._lock.close()

    # --- on the writer's thread -------------------------------------------------------------

    def on_begin(self) -> None:
        """See what the others committed: the head, the live revision, stops, leases."""
        rev, policy_rev, stop_epoch, head, workers = self._write.fleet_state
        self._shared = workers > 1 or rev != self._granted_rev
        if self._is_uncertain:
            # The group that was lost is over by now: its session held the lock that we hold.
            self._is_uncertain, self._uncertain_groups = False, self._uncertain_groups + 1
        if head != self._ledger.last_seq:
            # Any worker may answer holds, redrive and drop, and so move runs that are ours. Whoever
            # looks beside us may see our own group on top of it, and take all for ours.
            self._foreign_groups += 1
            self._ledger.load()
            self._step_writer.forget()
        if rev != self._granted_rev:
            rows = self._write.rows(
                "SELECT shard, epoch FROM lease WHERE worker=?", (self.leases.worker,)
            )
            self._step_writer.granted_epochs = {int(shard): int(epoch) for shard, epoch in rows}
            self._step_writer.forget()
            self._granted_rev = rev
        self._fences.policy_rev, self._fences.stop_epoch = policy_rev, stop_epoch

    def on_rollback(self) -> None:
        """Take fences and steps from what stands; without a connection the next group does.

        A COMMIT may have taken effect though nobody was told: what it accepted is looked for.
        """
        self._granted_rev, self._is_uncertain, self._uncertain_groups = (
            -1,
            True,
            self._uncertain_groups + 1,
        )
        away: tuple[type[BaseException], ...] = (*self._write.connection_errors, BadStore)
        try:
            super().on_rollback()
        except away:
            self._write.rollback()

    # --- leases -----------------------------------------------------------------------------

    @property
    def epoch(self) -> int:
        """Return which of the fleet's workers this is, counted from the first that ever joined."""
        return self.leases.life

    @property
    def lease_rev(self) -> int:  # type: ignore[override]
        """Return a number that grows whenever the set of this worker's keys changed.

        Raises BadStore once nobody renews them: the line ends by it.
        """
        if self.leases.failure is not None:
            raise self.leases.failure
        return self.leases.rev

    @property
    def change_counter(self) -> int:
        """Return a number that grows when another worker committed something, or we may have."""
        return self.leases.change_counter + self._uncertain_groups + self._foreign_groups

    def lease_epoch(self, run: Run) -> int | None:
        """Return the epoch under which this worker may handle a run; None if it is not ours."""
        return self.leases.epoch(run.agent, run.key)

    def is_lease_valid(self, epoch: int) -> bool:
        """Say whether a call may start under a lease: it lasts, and nothing newer is published."""
        return self.leases.is_lease_valid(epoch) and self.leases.is_current

    async def announce_agents(self, agents: Collection[str]) -> None:
        """Tell the other workers which agents this one runs."""
        name, told = (
            f"{_AGENTS_PREFIX}{self.leases.worker}",
            canonical_json(sorted(agents)).decode(),
        )
        if self.meta(name) != told:
            await self.remember(name, told)

    def has_other_runner(self, agent: str) -> bool:
        """Say whether another worker that lives runs an agent, or has not said what it runs."""
        sql = "SELECT m.value FROM worker w LEFT JOIN meta m ON m.name=? || w.id WHERE w.id<>?"
        others = self._rows(sql, _AGENTS_PREFIX, self.leases.worker)
        return any(told is None or agent in orjson.loads(told) for (told,) in others)

    def watch_calls(
        self, older: Callable[[int], int], keys: Callable[[], Collection[tuple[str, str]]]
    ) -> None:
        """Be told how to see which calls are out; asked by the thread that keeps the leases."""
        self.leases.count_in_flight, self.leases.keys_in_flight = older, keys

    def subscribe(self, changed: Callable[[], None]) -> None:
        """Have `changed` called on the loop after each commit, here or by another worker."""
        super().subscribe(changed)
        loop = asyncio.get_running_loop()

        def tell() -> None:
            with suppress(RuntimeError):  # the loop is closed
                loop.call_soon_threadsafe(changed)

        self.leases.listeners.append(tell)

    def adopt(self, policy_rev: int, stop_epoch: int) -> None:
        """Say that this process decides and stops by these from now on."""
        self.leases.adopt(policy_rev, stop_epoch)

    @property
    def policy_rev(self) -> int:
        """Return the live policy revision, whoever published it."""
        return max(self._fences.policy_rev, self.leases.live_versions[0])

    @property
    def stop_epoch(self) -> int:
        """Return how often stops were set or lifted, by whomever."""
        return max(self._fences.stop_epoch, self.leases.live_versions[1])

    @property
    def is_leader(self) -> bool:
        """Say whether this worker is the one that runs the sources: it holds the first shard."""
        epoch = self.leases.epochs.get(0)
        return epoch is not None and self.leases.is_lease_valid(epoch)

    @property
    def is_shared(self) -> bool:
        """Say whether there were other workers as of the last group."""
        return self._shared

    @property
    def is_current(self) -> bool:
        """Say whether this process has taken up the live revision and the last stop."""
        return self.leases.is_current

    async def wait_for_barrier(self) -> None:
        """Return once no other worker starts a call under anything older than what is live.

        A worker that does not answer is waited for until its lease has run out.
        """
        policy_rev, stop_epoch = self.policy_rev, self.stop_epoch
        while self.leases.lagging_workers(policy_rev, stop_epoch):  # noqa: ASYNC110 (a thread tells)
            await asyncio.sleep(0.005)

    @property
    def lagging_workers(self) -> Sequence[str]:
        """Return the workers that `wait_for_barrier` waits for; this one if it sees no others."""
        return self.leases.lagging_workers(self.policy_rev, self.stop_epoch)

    # --- orders that every worker must hear of -----------------------------------------------

    async def publish(
        self,
        bundle: Bundle,
        drafts: Sequence[Draft],
        *,
        command: str | None = None,
        number: int | None = None,
        meta: Mapping[str, str] | None = None,
        expected_revision: int | None = None,
        released: int | None = None,
    ) -> int:
        """Make a bundle the live revision, and tell the other workers."""
        commands = self._commands

        def work() -> int:
            published = commands.publish(bundle, drafts, number, meta, expected_revision, released)
            self._write.execute_script(f"NOTIFY {NOTIFY_CHANNEL}")
            return published

        return await self.writer.submit(commands.deduplicate(command, work))

    @property
    def is_scrubbed(self) -> bool:
        """Never: the server's files forget later."""
        return False


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
    """Say whether there is a store in a database. Raises Unavailable if there is no server."""
    database = PostgresDatabase(url, name="vedette looking", hold_ms=0)
    try:
        return has_schema(database)
    finally:
        database.close()


class PostgresReader(StoreReader):
    """A store opened to read only, beside running workers or with none."""

    def __init__(self, url: str) -> None:
        database = PostgresDatabase(url, name="vedette reading", hold_ms=0)
        try:
            database.execute_script("SET default_transaction_read_only=on")
            check_schema(database)
        except BaseException:
            database.close()
            raise
        super().__init__(database)

    def close(self) -> None:
        """Close the connection."""
        self._database.close()


__all__ = ["PostgresReader", "PostgresStore"]

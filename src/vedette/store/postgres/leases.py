"""Leases of shards: which keys this worker may handle, how long, and what the other workers know.

The keys of a fleet fall into 64 shards. A worker shows that it lives by moving its `beat`; a lease
lasts as long as its holder lives. No clock is compared with another: whoever sees a beat stand
still for longer than a lease, by its own monotonic clock, takes the shards over; and a worker that
could not move its beat stops starting calls before that, by its own. What it still commits is
refused by the epoch, which every take-over changes under the same lock as every commit.

A thread of its own does all of this, so that a busy event loop loses no lease.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager, suppress
from typing import Any

from vedette.domain.base import machine
from vedette.domain.base.errors import BadStore
from vedette.domain.base.failpoint import hit_failpoint
from vedette.store.postgres.database import SELECT_FLEET_STATE, PostgresDatabase
from vedette.store.postgres.schema import shard_of
from vedette.store.postgres.shards import Peer, fair_share, shard_in, silent_peers, update_peers

POLL_S = 0.05
NOTIFY_CHANNEL = "vedette"
# How long calls of an older revision are waited for before the others are told all the same.
_DRAIN_US = 2_000_000
# How often a worker that starts asks again for the fleet's lock, a third of a lease each time.
_JOIN_ATTEMPTS = 20

_NEWEST = "SELECT note FROM checkpoint ORDER BY size DESC LIMIT 1"
_PEERS = "SELECT id, life, beat, policy_rev, stop_epoch FROM worker WHERE id<>?"


class Leases:
    """This worker's leases of shards. `start` takes what is free; `close` gives all of it back.

    Everything is read from the event loop and the writer's thread, and written by this object's
    thread alone, by replacing whole values. `rev` grows whenever the set of shards changed,
    `change_counter` whenever another worker committed something. `failure` is what ended the
    thread: no lease is renewed after it.
    """

    def __init__(
        self,
        database: PostgresDatabase,
        worker: str,
        label: str,
        *,
        lease_us: int,
        visit: bool = False,
        own_head: Callable[[], int],
        add_checkpoint: Callable[[str], None] = lambda note: None,
        now: Callable[[], int] = lambda: machine.boot_us(),
    ) -> None:
        """Take over a connection. `own_head` is the last seq that this worker knows of.

        `add_checkpoint` is given the newest signed head whenever another worker has committed.

        A visitor sees the others and takes no keys.
        """
        self.worker, self._label = worker, label
        self._database = database
        self._lease_us, self._beat_us = lease_us, lease_us // 3
        self._patience_us = lease_us + lease_us // 4
        self._own_head, self._now, self._is_visitor = own_head, now, visit
        self._add_checkpoint = add_checkpoint
        # What the line knows of its calls: how many are older than a revision, and of which keys.
        self.count_in_flight: Callable[[int], int] = lambda policy_rev: 0
        self.keys_in_flight: Callable[[], Collection[tuple[str, str]]] = tuple
        self.life = self.rev = self.change_counter = 0
        self.epochs: dict[int, int] = {}
        self.drain_shards: frozenset[int] = frozenset()
        self._drained_shards: frozenset[int] = frozenset()
        self.live_versions = self.adopted_versions = self.peer_versions = (0, 0)
        self.peers: dict[str, Peer] = {}
        self._expires_at = self._beat_at = self._drain_at = self._seen_at = 0
        self._known_rev, self._head, self._acknowledged = -1, 0, (0, 0)
        self._listen_connection: Any = None
        # Called on our thread once `rev`, `change_counter` or `live_versions` is another.
        self.listeners: list[Callable[[], None]] = []
        self.failure: BadStore | None = None
        self._stop_event, self._closed = machine.Event(), False
        self._thread = machine.Thread(target=self._run, name="vedette-leases", daemon=True)

    # --- what others ask ----------------------------------------------------------------------

    def epoch(self, agent: str, key: str) -> int | None:
        """Return the epoch under which this worker may begin with a key; None if it may not."""
        shard = shard_of(agent, key)
        if shard in self.drain_shards or self._now() >= self._expires_at:
            return None
        return self.epochs.get(shard)

    def is_lease_valid(self, epoch: int) -> bool:
        """Say whether an epoch that was given out is still in force, by our own clock."""
        shard = shard_in(epoch)
        if shard in self._drained_shards or self._now() >= self._expires_at:
            return False
        return self.epochs.get(shard) == epoch

    @property
    def is_current(self) -> bool:
        """Say whether this process has taken up the live revision and the last stop."""
        return (
            self.adopted_versions[0] >= self.live_versions[0]
            and self.adopted_versions[1] >= self.live_versions[1]
        )

    def adopt(self, policy_rev: int, stop_epoch: int) -> None:
        """Say that this process decides and stops by these from now on."""
        self.adopted_versions = (
            max(self.adopted_versions[0], policy_rev),
            max(self.adopted_versions[1], stop_epoch),
        )

    def lagging_workers(self, policy_rev: int, stop_epoch: int) -> list[str]:
        """Return the workers that live and may still start a call under something older.

        Those that joined since it was published began with it.
        """
        if self.peer_versions[0] < policy_rev or self.peer_versions[1] < stop_epoch:
            return [self.worker]
        dead = silent_peers(self.peers, self._now(), self._patience_us)
        return [
            name
            for name, peer in self.peers.items()
            if name not in dead and (peer.policy_rev < policy_rev or peer.stop_epoch < stop_epoch)
        ]

    # --- life ---------------------------------------------------------------------------------

    def start(self) -> None:
        """Join the workers, take what is free, and go on doing so on a thread."""
        if self._is_visitor:
            self._beat_at = self._now() + self._beat_us
            self._read_peers()
        else:
            self._join_with_retry()
        self._thread.start()

    def _join_with_retry(self) -> None:
        """Join; where the fleet is so busy that its lock is not free in time, try again."""
        for left in range(_JOIN_ATTEMPTS, -1, -1):
            try:
                self._join()
                return
            except self._database.connection_errors:
                self._database.rollback()
                if not left:
                    raise

    def close(self) -> None:
        """Give everything back, so that the others need not wait for the lease to run out."""
        if self._closed:
            return
        self._closed = True
        self._stop_event.set()
        if self._thread.is_alive():
            self._thread.join()
        self._expires_at = 0
        # If that fails the others wait until the lease has run out.
        with suppress(*self._database.connection_errors, BadStore), self._exclusive_transaction():
            if self._database.execute("DELETE FROM worker WHERE id=? AND life=?", self._identity()):
                self._free_shards(self.worker)
        self._database.close()

    def _identity(self) -> tuple[str, int]:
        return self.worker, self.life

    def _run(self) -> None:
        while not self._stop_event.is_set():
            known = self.rev, self.change_counter, self.live_versions
            try:
                self._wait_for_change()
                self._read_fleet_state()
                if self._now() >= self._beat_at:
                    self._renew()
                if known != (self.rev, self.change_counter, self.live_versions):
                    for tell in self.listeners:
                        tell()
            except BadStore as error:
                # The server is not the one that it was: nothing more starts here.
                self._expires_at, self.failure = 0, error
                return
            except self._database.connection_errors:
                # Without the database nothing is renewed: the lease runs out by itself.
                self._database.rollback()
                # What was under way may stand all the same: see afterwards which leases are ours.
                self._known_rev = -1
                self._stop_event.wait(POLL_S)

    def _wait_for_change(self) -> None:
        connection = self._database.connection
        if connection is not self._listen_connection:
            self._database.execute_script(f"LISTEN {NOTIFY_CHANNEL}")
            self._listen_connection = connection
        for _ in connection.notifies(timeout=POLL_S, stop_after=1):
            pass

    @contextmanager
    def _exclusive_transaction(self) -> Iterator[None]:
        """Do something that no commit of any worker may overlap."""
        self._database.begin()
        try:
            yield
            hit_failpoint("claim:before")
            self._database.commit()
            hit_failpoint("claim:after")
        finally:
            self._database.rollback()

    # --- beat and look ------------------------------------------------------------------------

    def _renew(self) -> None:
        """Renew, and see to it that everybody has a fair share."""
        began = self._now()
        if self._is_visitor:
            self._beat_at = began + self._beat_us
            self._read_peers()
            return
        hit_failpoint("beat:before")
        renewed = self._database.execute(
            "UPDATE worker SET beat=beat+1 WHERE id=? AND life=?", self._identity()
        )
        hit_failpoint("beat:after")
        if not renewed:
            # Others took us for dead and have our keys: from here on we are a new worker.
            self._join()
            return
        until, self._expires_at = self._expires_at, began + self._lease_us
        self._beat_at = began + self._beat_us
        # Nobody took over what had run out, be it while this beat was on its way. What was let go
        # of meanwhile is ours to handle again.
        self.rev += self._now() >= until
        self._read_peers()
        self._rebalance()

    def _read_peers(self) -> None:
        """See who lives, and what they know."""
        asked = self.live_versions
        rows: list[Any] = self._database.rows(_PEERS, (self.worker,))
        self.peers, self.peer_versions = update_peers(self.peers, rows, self._now()), asked

    def _read_fleet_state(self) -> None:
        """See what changed: leases, the live revision, stops, the head of the ledger."""
        ((rev, policy_rev, stop_epoch, head, *_),) = self._database.rows(SELECT_FLEET_STATE)
        if (policy_rev, stop_epoch) != self.live_versions:
            self.live_versions, self._seen_at = (policy_rev, stop_epoch), self._now()
        if head != self._head:
            self._head = head
            if head > self._own_head():
                self.change_counter += 1
                for (note,) in self._database.rows(_NEWEST):
                    self._add_checkpoint(str(note))
        self._acknowledge()
        if rev != self._known_rev:
            self._known_rev = rev
            self._read_leases()
            self._read_peers()
            if not self._is_visitor:
                self._rebalance()
            return
        if self._drain_at and self._now() >= self._drain_at:
            self._rebalance()
        if self.lagging_workers(*self.live_versions):
            self._read_peers()

    def _acknowledge(self) -> None:
        """Tell the others once no call starts here any more under something older.

        From the moment it is seen none does (`is_current`), whatever the event loop is busy with;
        those on their way are waited for within a bound.
        """
        if self._acknowledged == self.live_versions:
            return
        try:
            calling = self.count_in_flight(self.live_versions[0])
        except RuntimeError:  # the loop's own table changed while we counted
            calling = True
        if calling and self._now() - self._seen_at < _DRAIN_US:
            return
        self._database.execute(
            "UPDATE worker SET policy_rev=?, stop_epoch=? WHERE id=? AND life=?",
            (*self.live_versions, *self._identity()),
        )
        self._acknowledged = self.live_versions
        self._database.execute_script(f"NOTIFY {NOTIFY_CHANNEL}")

    # --- shards -------------------------------------------------------------------------------

    def _join(self) -> None:
        """Enter the table of workers under a new life, and take what is free."""
        self.epochs, self._expires_at, self.drain_shards = {}, 0, frozenset()
        self._drain_at, self.rev = 0, self.rev + 1
        began = self._now()
        with self._exclusive_transaction():
            ((life,),) = self._database.rows("UPDATE leasing SET life=life+1 RETURNING life")
            self.life = int(life)
            ((_, policy_rev, stop_epoch, *_),) = self._database.rows(SELECT_FLEET_STATE)
            self.live_versions = self._acknowledged = (policy_rev, stop_epoch)
            self._free_shards(self.worker)
            self._database.execute(
                "INSERT INTO worker VALUES(?,?,0,?,?,?) ON CONFLICT(id) DO UPDATE SET "
                "life=excluded.life, beat=0, policy_rev=excluded.policy_rev, "
                "stop_epoch=excluded.stop_epoch, name=excluded.name",
                (*self._identity(), policy_rev, stop_epoch, self._label),
            )
            ((workers,),) = self._database.rows("SELECT COUNT(*) FROM worker")
            self._lease_shards(fair_share(int(workers)))
        self._expires_at, self._beat_at = began + self._lease_us, began + self._beat_us
        self._read_leases()

    def _rebalance(self) -> None:
        """Take over from the silent, and take or give back what a fair share lacks or is over."""
        dead = silent_peers(self.peers, self._now(), self._patience_us)
        for name, peer in dead.items():
            self._remove_worker(name, peer)
        fair = fair_share(1 + len(self.peers) - len(dead))
        if len(self.epochs) > fair:
            self._release_surplus(fair)
            return
        if self.drain_shards:
            # It is ours for good: what was left to another meanwhile has to be looked for again.
            self.drain_shards = frozenset()
            self.rev += 1
        self._drain_at = 0
        ((free,),) = self._database.rows("SELECT COUNT(*) FROM lease WHERE worker IS NULL")
        if free and len(self.epochs) < fair:
            with self._exclusive_transaction():
                self._lease_shards(fair - len(self.epochs))
            self._read_leases()

    def _remove_worker(self, name: str, peer: Peer) -> None:
        """Free what a silent worker held, if its beat stands still to this moment."""
        with self._exclusive_transaction():
            if self._database.execute(
                "DELETE FROM worker WHERE id=? AND life=? AND beat=?", (name, peer.life, peer.beat)
            ):
                self._free_shards(name)

    def _release_surplus(self, fair: int) -> None:
        """Let go of what is over a fair share: begin nothing of it, and a beat later for good.

        A shard of which a call is out stays until its outcome is durable, or the tool's time is
        over: its next holder would have to find out what the answer says.
        """
        if not self._drain_at:
            self.drain_shards = frozenset(sorted(self.epochs)[fair:])
            self._drain_at, self.rev = self._now() + self._beat_us, self.rev + 1
        elif self._now() >= self._drain_at:
            self._drained_shards = self.drain_shards - self._busy_shards()
            # From here on no call of these starts; one that had its leave a moment ago is seen now.
            self._drained_shards -= self._busy_shards()
            if not self._drained_shards:
                return
            gone = self._drained_shards
            with self._exclusive_transaction():
                for shard in gone:
                    self._database.execute(
                        "UPDATE lease SET worker=NULL WHERE shard=? AND worker=?",
                        (shard, self.worker),
                    )
                self._bump_lease_rev()
            self._read_leases()
            self.drain_shards -= gone
            self._drain_at = self._drain_at if self.drain_shards else 0

    def _busy_shards(self) -> frozenset[int]:
        """Return the shards of which a call is out, as far as its tool has time."""
        try:
            return frozenset(shard_of(agent, key) for agent, key in self.keys_in_flight())
        except RuntimeError:  # the loop's own table changed while we looked
            return self.drain_shards

    def _lease_shards(self, most: int) -> None:
        """Take up to `most` free shards, each under an epoch that no one had before."""
        rev = self._bump_lease_rev()
        self._database.execute(
            "UPDATE lease SET worker=?, epoch=CAST(? AS BIGINT)*64+shard WHERE shard IN ("
            "SELECT shard FROM lease WHERE worker IS NULL ORDER BY shard LIMIT ? "
            "FOR UPDATE SKIP LOCKED)",
            (self.worker, rev, most),
        )

    def _free_shards(self, worker: str) -> None:
        self._database.execute("UPDATE lease SET worker=NULL WHERE worker=?", (worker,))
        self._bump_lease_rev()

    def _bump_lease_rev(self) -> int:
        """Count a change of the leases and tell everybody; return the count."""
        ((rev,),) = self._database.rows("UPDATE leasing SET rev=rev+1 RETURNING rev")
        self._database.execute_script(f"NOTIFY {NOTIFY_CHANNEL}")
        return int(rev)

    def _read_leases(self) -> None:
        """Read which leases are ours."""
        rows = self._database.rows("SELECT shard, epoch FROM lease WHERE worker=?", (self.worker,))
        mine = {int(shard): int(epoch) for shard, epoch in rows}
        if mine != self.epochs:
            self.epochs, self.rev = mine, self.rev + 1
        self._drained_shards = frozenset()

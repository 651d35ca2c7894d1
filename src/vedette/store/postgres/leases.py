"""Leases: which keys this worker may handle, for how long, and what the other workers know.

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
from vedette.domain.base.failpoint import reach
from vedette.store.postgres.database import LOOK, PostgresDatabase
from vedette.store.postgres.schema import shard_of
from vedette.store.postgres.shards import Peer, seen, shard_in, share, silent

POLL_S = 0.05
NEWS = "vedette"
# How long calls of an older revision are waited for before the others are told all the same.
_DRAIN_US = 2_000_000
# How often a worker that starts asks again for the fleet's lock, a third of a lease each time.
_ENTER = 20

_NEWEST = "SELECT note FROM checkpoint ORDER BY size DESC LIMIT 1"
_PEERS = "SELECT id, life, beat, policy_rev, stop_epoch FROM worker WHERE id<>?"


class Leases:
    """This worker's leases. `start` takes what is free; `close` gives all of it back.

    Everything is read from the event loop and the writer's thread, and written by this object's
    thread alone, by replacing whole values. `rev` grows whenever the set of shards changed,
    `news` whenever another worker committed something. `failure` is what ended the thread: no
    lease is renewed after it.
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
        show: Callable[[str], None] = lambda note: None,
        now: Callable[[], int] = lambda: machine.boot_us(),
    ) -> None:
        """Take over a connection. `own_head` is the last seq that this worker knows of.

        `show` is given the newest signed head whenever another worker has committed.

        A visitor sees the others and takes no keys.
        """
        self.worker, self._label = worker, label
        self._database = database
        self._lease_us, self._beat_us = lease_us, lease_us // 3
        self._patience_us = lease_us + lease_us // 4
        self._own_head, self._now, self._visit = own_head, now, visit
        self._show = show
        # What the line knows of its calls: how many are older than a revision, and of which keys.
        self.in_flight: Callable[[int], int] = lambda policy_rev: 0
        self.calling: Callable[[], Collection[tuple[str, str]]] = tuple
        self.life = self.rev = self.news = 0
        self.epochs: dict[int, int] = {}
        self.leaving: frozenset[int] = frozenset()
        self._going: frozenset[int] = frozenset()
        self.seen = self.adopted = self.met = (0, 0)
        self.peers: dict[str, Peer] = {}
        self._until = self._beat_at = self._leave_at = self._seen_at = 0
        self._known_rev, self._head, self._told = -1, 0, (0, 0)
        self._listening: Any = None
        # Called on our thread once `rev`, `news` or `seen` is another.
        self.listeners: list[Callable[[], None]] = []
        self.failure: BadStore | None = None
        self._ending, self._closed = machine.Event(), False
        self._thread = machine.Thread(target=self._run, name="vedette-leases", daemon=True)

    # --- what others ask ----------------------------------------------------------------------

    def epoch(self, agent: str, key: str) -> int | None:
        """Return the epoch under which this worker may begin with a key; None if it may not."""
        shard = shard_of(agent, key)
        if shard in self.leaving or self._now() >= self._until:
            return None
        return self.epochs.get(shard)

    def holds(self, epoch: int) -> bool:
        """Say whether an epoch that was given out is still in force, by our own clock."""
        shard = shard_in(epoch)
        if shard in self._going or self._now() >= self._until:
            return False
        return self.epochs.get(shard) == epoch

    @property
    def current(self) -> bool:
        """Say whether this process has taken up the live revision and the last stop."""
        return self.adopted[0] >= self.seen[0] and self.adopted[1] >= self.seen[1]

    def adopt(self, policy_rev: int, stop_epoch: int) -> None:
        """Say that this process decides and stops by these from now on."""
        self.adopted = max(self.adopted[0], policy_rev), max(self.adopted[1], stop_epoch)

    def behind(self, policy_rev: int, stop_epoch: int) -> list[str]:
        """Return the workers that live and may still start a call under something older.

        Those that joined since it was published began with it.
        """
        if self.met[0] < policy_rev or self.met[1] < stop_epoch:
            return [self.worker]
        dead = silent(self.peers, self._now(), self._patience_us)
        return [
            name
            for name, peer in self.peers.items()
            if name not in dead and (peer.policy_rev < policy_rev or peer.stop_epoch < stop_epoch)
        ]

    # --- life ---------------------------------------------------------------------------------

    def start(self) -> None:
        """Join the workers, take what is free, and go on doing so on a thread."""
        if self._visit:
            self._beat_at = self._now() + self._beat_us
            self._meet()
        else:
            self._enter()
        self._thread.start()

    def _enter(self) -> None:
        """Join; where the fleet is so busy that its lock is not free in time, try again."""
        for left in range(_ENTER, -1, -1):
            try:
                self._join()
                return
            except self._database.gone:
                self._database.rollback()
                if not left:
                    raise

    def close(self) -> None:
        """Give everything back, so that the others need not wait for the lease to run out."""
        if self._closed:
            return
        self._closed = True
        self._ending.set()
        if self._thread.is_alive():
            self._thread.join()
        self._until = 0
        # If that fails the others wait until the lease has run out.
        with suppress(*self._database.gone, BadStore), self._alone():
            if self._database.run("DELETE FROM worker WHERE id=? AND life=?", self._me()):
                self._free(self.worker)
        self._database.close()

    def _me(self) -> tuple[str, int]:
        return self.worker, self.life

    def _run(self) -> None:
        while not self._ending.is_set():
            known = self.rev, self.news, self.seen
            try:
                self._wait()
                self._look()
                if self._now() >= self._beat_at:
                    self._beat()
                if known != (self.rev, self.news, self.seen):
                    for tell in self.listeners:
                        tell()
            except BadStore as error:
                # The server is not the one that it was: nothing more starts here.
                self._until, self.failure = 0, error
                return
            except self._database.gone:
                # Without the database nothing is renewed: the lease runs out by itself.
                self._database.rollback()
                # What was under way may stand all the same: see afterwards which leases are ours.
                self._known_rev = -1
                self._ending.wait(POLL_S)

    def _wait(self) -> None:
        connection = self._database.connection
        if connection is not self._listening:
            self._database.script(f"LISTEN {NEWS}")
            self._listening = connection
        for _ in connection.notifies(timeout=POLL_S, stop_after=1):
            pass

    @contextmanager
    def _alone(self) -> Iterator[None]:
        """Do something that no commit of any worker may overlap."""
        self._database.begin()
        try:
            yield
            reach("claim:before")
            self._database.commit()
            reach("claim:after")
        finally:
            self._database.rollback()

    # --- beat and look ------------------------------------------------------------------------

    def _beat(self) -> None:
        """Renew, and see to it that everybody has a fair share."""
        began = self._now()
        if self._visit:
            self._beat_at = began + self._beat_us
            self._meet()
            return
        reach("beat:before")
        renewed = self._database.run(
            "UPDATE worker SET beat=beat+1 WHERE id=? AND life=?", self._me()
        )
        reach("beat:after")
        if not renewed:
            # Others took us for dead and have our keys: from here on we are a new worker.
            self._join()
            return
        until, self._until = self._until, began + self._lease_us
        self._beat_at = began + self._beat_us
        # Nobody took over what had run out, be it while this beat was on its way. What was let go
        # of meanwhile is ours to handle again.
        self.rev += self._now() >= until
        self._meet()
        self._share()

    def _meet(self) -> None:
        """See who lives, and what they know."""
        asked = self.seen
        rows: list[Any] = self._database.rows(_PEERS, (self.worker,))
        self.peers, self.met = seen(self.peers, rows, self._now()), asked

    def _look(self) -> None:
        """See what changed: leases, the live revision, stops, the head of the ledger."""
        ((rev, policy_rev, stop_epoch, head, _),) = self._database.rows(LOOK)
        if (policy_rev, stop_epoch) != self.seen:
            self.seen, self._seen_at = (policy_rev, stop_epoch), self._now()
        if head != self._head:
            self._head = head
            if head > self._own_head():
                self.news += 1
                for (note,) in self._database.rows(_NEWEST):
                    self._show(str(note))
        self._acknowledge()
        if rev != self._known_rev:
            self._known_rev = rev
            self._take_up()
            self._meet()
            if not self._visit:
                self._share()
            return
        if self._leave_at and self._now() >= self._leave_at:
            self._share()
        if self.behind(*self.seen):
            self._meet()

    def _acknowledge(self) -> None:
        """Tell the others once no call starts here any more under something older.

        From the moment it is seen none does (`current`), whatever the event loop is busy with;
        those on their way are waited for within a bound.
        """
        if self._told == self.seen:
            return
        try:
            calling = self.in_flight(self.seen[0])
        except RuntimeError:  # the loop's own table changed while we counted
            calling = True
        if calling and self._now() - self._seen_at < _DRAIN_US:
            return
        self._database.run(
            "UPDATE worker SET policy_rev=?, stop_epoch=? WHERE id=? AND life=?",
            (*self.seen, *self._me()),
        )
        self._told = self.seen
        self._database.script(f"NOTIFY {NEWS}")

    # --- shards -------------------------------------------------------------------------------

    def _join(self) -> None:
        """Enter the table of workers under a new life, and take what is free."""
        self.epochs, self._until, self.leaving = {}, 0, frozenset()
        self._leave_at, self.rev = 0, self.rev + 1
        began = self._now()
        with self._alone():
            ((life,),) = self._database.rows("UPDATE leasing SET life=life+1 RETURNING life")
            self.life = int(life)
            ((_, policy_rev, stop_epoch, _, _),) = self._database.rows(LOOK)
            self.seen = self._told = (policy_rev, stop_epoch)
            self._free(self.worker)
            self._database.run(
                "INSERT INTO worker VALUES(?,?,0,?,?,?) ON CONFLICT(id) DO UPDATE SET "
                "life=excluded.life, beat=0, policy_rev=excluded.policy_rev, "
                "stop_epoch=excluded.stop_epoch, name=excluded.name",
                (*self._me(), policy_rev, stop_epoch, self._label),
            )
            ((workers,),) = self._database.rows("SELECT COUNT(*) FROM worker")
            self._claim(share(int(workers)))
        self._until, self._beat_at = began + self._lease_us, began + self._beat_us
        self._take_up()

    def _share(self) -> None:
        """Take over from the silent, and take or give back what a fair share lacks or is over."""
        dead = silent(self.peers, self._now(), self._patience_us)
        for name, peer in dead.items():
            self._bury(name, peer)
        fair = share(1 + len(self.peers) - len(dead))
        if len(self.epochs) > fair:
            self._give_back(fair)
            return
        if self.leaving:
            # It is ours for good: what was left to another meanwhile has to be looked for again.
            self.leaving = frozenset()
            self.rev += 1
        self._leave_at = 0
        ((free,),) = self._database.rows("SELECT COUNT(*) FROM lease WHERE worker IS NULL")
        if free and len(self.epochs) < fair:
            with self._alone():
                self._claim(fair - len(self.epochs))
            self._take_up()

    def _bury(self, name: str, peer: Peer) -> None:
        """Free what a silent worker held, if its beat stands still to this moment."""
        with self._alone():
            if self._database.run(
                "DELETE FROM worker WHERE id=? AND life=? AND beat=?", (name, peer.life, peer.beat)
            ):
                self._free(name)

    def _give_back(self, fair: int) -> None:
        """Let go of what is over a fair share: begin nothing of it, and a beat later for good.

        A shard of which a call is out stays until its outcome is durable, or the tool's time is
        over: its next holder would have to find out what the answer says.
        """
        if not self._leave_at:
            self.leaving = frozenset(sorted(self.epochs)[fair:])
            self._leave_at, self.rev = self._now() + self._beat_us, self.rev + 1
        elif self._now() >= self._leave_at:
            self._going = self.leaving - self._busy()
            # From here on no call of these starts; one that had its leave a moment ago is seen now.
            self._going -= self._busy()
            if not self._going:
                return
            gone = self._going
            with self._alone():
                for shard in gone:
                    self._database.run(
                        "UPDATE lease SET worker=NULL WHERE shard=? AND worker=?",
                        (shard, self.worker),
                    )
                self._changed()
            self._take_up()
            self.leaving -= gone
            self._leave_at = self._leave_at if self.leaving else 0

    def _busy(self) -> frozenset[int]:
        """Return the shards of which a call is out, as far as its tool has time."""
        try:
            return frozenset(shard_of(agent, key) for agent, key in self.calling())
        except RuntimeError:  # the loop's own table changed while we looked
            return self.leaving

    def _claim(self, most: int) -> None:
        """Take up to `most` free shards, each under an epoch that no one had before."""
        rev = self._changed()
        self._database.run(
            "UPDATE lease SET worker=?, epoch=CAST(? AS BIGINT)*64+shard WHERE shard IN ("
            "SELECT shard FROM lease WHERE worker IS NULL ORDER BY shard LIMIT ? "
            "FOR UPDATE SKIP LOCKED)",
            (self.worker, rev, most),
        )

    def _free(self, worker: str) -> None:
        self._database.run("UPDATE lease SET worker=NULL WHERE worker=?", (worker,))
        self._changed()

    def _changed(self) -> int:
        """Count a change of the leases and tell everybody; return the count."""
        ((rev,),) = self._database.rows("UPDATE leasing SET rev=rev+1 RETURNING rev")
        self._database.script(f"NOTIFY {NEWS}")
        return int(rev)

    def _take_up(self) -> None:
        """Read which leases are ours."""
        rows = self._database.rows("SELECT shard, epoch FROM lease WHERE worker=?", (self.worker,))
        mine = {int(shard): int(epoch) for shard, epoch in rows}
        if mine != self.epochs:
            self.epochs, self.rev = mine, self.rev + 1
        self._going = frozenset()

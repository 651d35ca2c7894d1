"""The heads of many shards in one database: owners, hand-overs, publishes, stops and a notary.

A history is a function of its seed. Time is simulated, in microseconds; every process is a
generator that yields for how long it waits, or a lock that it waits for. The database is modelled
as PostgreSQL answers at READ COMMITTED: an UPDATE waits for the row's lock and then looks at the
row as it is *now*, what it changed is seen once its transaction is flushed, and all that wait
meanwhile go with the next flush. An owner that stands still for a while (a zombie, if another takes
its shards) goes on where it was; what it had asked the database for happens all the same. Clocks
of workers run at their own rates: a worker holds another for dead when it has not seen it beat for
so long *on its own clock*.

Promises are judged in `judge`; BUGS are ways to break the protocol, for a test that sees each.
"""

from __future__ import annotations

import heapq
import random
from collections import deque
from collections.abc import Generator, Iterator
from dataclasses import dataclass, field, replace
from hashlib import sha256
from itertools import count

S, MS = 1_000_000, 1_000

BUGS = {
    "epoch ignored": "compare-and-set does not look at the epoch",
    "policy ignored": "compare-and-set does not look at the policy revision",
    "stop ignored": "compare-and-set does not look at the stop epoch",
    "one head left out": "a publish does not reach one of the heads",
    "published in halves": "a publish is two transactions",
    "answered early": "a publish is answered before it has all heads",
    "doubt is no": "an owner whose answer was lost takes it that its commit failed",
    "acknowledged early": "events are acknowledged before the compare-and-set",
    "number read late": "the notary reads its last number after the heads",
    "reads apart": "the notary reads the heads in more than one statement",
}


@dataclass(frozen=True, slots=True)
class Setup:
    """What a history is played with. Times in microseconds, rates in events a second."""

    shards: int = 6
    workers: int = 3
    length: int = 5 * S // 2
    events_per_s: float = 600.0
    # The share of the events that one shard has alone.
    hot: float = 0.0
    group: int = 40 * MS  # for how long a group gathers
    most: int = 1000  # events of a group
    judge: int = 0  # an owner's CPU of an event
    travel: int = 300  # to the database, one way
    log: int = 3 * MS  # until a segment is in the log
    row: int = 40  # CPU of a row that is changed
    cores: int = 4  # of the database
    flush: int = 500
    publishes_per_s: float = 1.2
    stops_per_s: float = 0.6
    beat: int = 100 * MS
    dead_after: int = 400 * MS
    pauses_per_s: float = 0.4  # of each worker
    deaths_per_s: float = 0.08
    lost_answers: float = 0.02
    drift: float = 0.4  # rates of clocks lie within 1 +- this
    bug: str = ""


@dataclass(frozen=True, slots=True)
class Head:
    """One row. `last` is the digest of the chain so far."""

    epoch: int = 0
    size: int = 0
    policy_rev: int = 0
    stop_epoch: int = 0
    last: bytes = b""


@dataclass(frozen=True, slots=True)
class Commit:
    """A segment whose head moved: its events' numbers, under what, and when it was flushed."""

    at: int
    shard: int
    worker: int
    epoch: int
    start: int
    events: tuple[int, ...]
    policy_rev: int
    stop_epoch: int
    last: bytes


@dataclass(frozen=True, slots=True)
class Order:
    """A publish or a stop: what it set, when it was ordered, flushed and answered."""

    kind: str
    value: int
    ordered: int
    flushed: int
    answered: int


@dataclass(frozen=True, slots=True)
class Note:
    """What a notary signed: a number, and the heads it read (their digest is the root)."""

    number: int
    at: int
    heads: tuple[Head, ...]

    @property
    def root(self) -> bytes:
        """The digest over all heads."""
        return sha256(b"".join(head.last + bytes([0]) for head in self.heads)).digest()


@dataclass(slots=True)
class History:
    """What happened."""

    setup: Setup
    seed: int
    commits: list[Commit] = field(default_factory=list)
    orders: list[Order] = field(default_factory=list)
    takes: list[tuple[int, int, int]] = field(default_factory=list)  # answered at, shard, epoch
    notes: list[Note] = field(default_factory=list)
    acked: dict[int, list[tuple[int, ...]]] = field(default_factory=dict)
    heads: list[Head] = field(default_factory=list)
    refused: dict[str, int] = field(default_factory=dict)  # segments void, by why
    waits: list[int] = field(default_factory=list)  # of commits for their row
    took: list[int] = field(default_factory=list)  # of commits, log and head
    lags: list[int] = field(default_factory=list)  # from an event to its acknowledgement
    wrong: list[tuple[str, str]] = field(default_factory=list)

    def refuse(self, why: str) -> None:
        """Count a segment that became void."""
        self.refused[why] = self.refused.get(why, 0) + 1


# A process yields microseconds to wait, or a lock to have.
Process = Generator["int | Lock", None, None]


class Lock:
    """A lock that is handed on in the order of asking."""

    def __init__(self, places: int = 1) -> None:
        self.free = places
        self.queue: deque[Process] = deque()


class Loop:
    """Runs processes in simulated time; what falls together runs in the order of asking."""

    def __init__(self) -> None:
        self.now = 0
        self._next: list[tuple[int, int, Process]] = []
        self._ticket = count()

    def start(self, process: Process, after: int = 0) -> None:
        """Begin a process after a while."""
        heapq.heappush(self._next, (self.now + after, next(self._ticket), process))

    def release(self, lock: Lock) -> None:
        """Give up a lock; whoever waited longest has it."""
        if lock.queue:
            self.start(lock.queue.popleft())
        else:
            lock.free += 1

    def run(self, until: int) -> None:
        """Run until there is nothing left, or an instant has come."""
        queue = self._next
        while queue and queue[0][0] <= until:
            self.now, _, process = heapq.heappop(queue)
            self._step(process)

    def _step(self, process: Process) -> None:
        while True:
            try:
                wanted = next(process)
            except StopIteration:
                return
            if isinstance(wanted, int):
                self.start(process, wanted)
                return
            if not wanted.free:
                wanted.queue.append(process)
                return
            wanted.free -= 1


class Database:
    """Rows of heads behind locks, a few cores, and flushes that many share."""

    def __init__(self, loop: Loop, history: History, draw: random.Random) -> None:
        self.loop, self.history, self._draw = loop, history, draw
        self.setup = history.setup
        self.heads = [Head() for _ in range(self.setup.shards)]
        self.locks = [Lock() for _ in self.heads]
        self.orders = Lock()  # one publish or stop at a time, as an advisory lock has it
        self.number = 0
        self._numbers = Lock()
        self._cores = Lock(self.setup.cores)
        self._flushing = Lock()
        self._flushed = 0

    def work(self, rows: int) -> Process:
        """Spend the CPU of some rows."""
        yield self._cores
        yield rows * self.setup.row
        self.loop.release(self._cores)

    def flush(self) -> Process:
        """Wait until what is written by now is flushed; many share one flush."""
        asked = self.loop.now
        yield self._flushing
        if self._flushed <= asked:
            self._flushed = self.loop.now + 1
            yield max(1, round(self.setup.flush * self._draw.uniform(0.7, 1.6)))
        self.loop.release(self._flushing)

    def advance(self, worker: int, shard: int, seen: Head, events: tuple[int, ...],
                answer: list[bool]) -> Process:  # fmt: skip
        """Move a head by compare-and-set, in one statement and transaction."""
        bug, began = self.setup.bug, self.loop.now
        yield self.locks[shard]
        self.history.waits.append(self.loop.now - began)
        yield from self.work(1)
        now = self.heads[shard]
        stands = (
            now.size == seen.size
            and (now.epoch == seen.epoch or bug == "epoch ignored")
            and (now.policy_rev == seen.policy_rev or bug == "policy ignored")
            and (now.stop_epoch == seen.stop_epoch or bug == "stop ignored")
        )
        if stands:
            yield from self.flush()
            last = chain(now.last, events)
            self.heads[shard] = replace(now, size=now.size + len(events), last=last)
            self.history.commits.append(Commit(
                self.loop.now, shard, worker, seen.epoch, seen.size, events, seen.policy_rev,
                seen.stop_epoch, last,
            ))  # fmt: skip
        self.loop.release(self.locks[shard])
        answer.append(stands)

    def take(self, shard: int, answer: list[Head]) -> Process:
        """Give a shard its next epoch."""
        yield self.locks[shard]
        yield from self.work(1)
        yield from self.flush()
        head = replace(self.heads[shard], epoch=self.heads[shard].epoch + 1)
        self.heads[shard] = head
        self.history.takes.append((self.loop.now, shard, head.epoch))
        self.loop.release(self.locks[shard])
        answer.append(head)

    def order(self, kind: str) -> Process:
        """Publish or stop: change all heads in one transaction, then answer."""
        setup, ordered = self.setup, self.loop.now
        yield self.orders
        shards = list(range(setup.shards))
        parts = [shards]
        if setup.bug == "published in halves":
            parts = [shards[: len(shards) // 2], shards[len(shards) // 2 :]]
        value = 1 + max(getattr(head, kind) for head in self.heads)
        answered = 0
        for part in parts:
            for shard in part:
                yield self.locks[shard]
                yield from self.work(1)
                if setup.bug == "answered early" and not answered:
                    answered = self.loop.now
            yield from self.flush()
            for shard in part:
                if setup.bug != "one head left out" or shard != setup.shards - 1:
                    self.heads[shard] = replace(self.heads[shard], **{kind: value})
                self.loop.release(self.locks[shard])
        flushed = self.loop.now
        self.loop.release(self.orders)
        self.history.orders.append(
            Order(kind, value, ordered, flushed, answered or flushed + setup.travel)
        )

    def sign(self, pause: int) -> Process:
        """Read all heads in one snapshot, sign them under the next number, if it still is next."""
        setup = self.setup
        if setup.bug == "reads apart":
            heads: list[Head] = []
            for shard in range(setup.shards):
                heads.append(self.heads[shard])
                yield 2 * setup.travel
        else:
            heads = list(self.heads)
        number = self.number
        yield from self.work(1 + len(heads) // 64)
        yield pause  # it may stand still, too, with its snapshot in its hands
        if setup.bug == "number read late":
            number = self.number
        yield self._numbers
        if self.number == number:
            yield from self.flush()
            self.number = number + 1
            self.history.notes.append(Note(number + 1, self.loop.now, tuple(heads)))
        self.loop.release(self._numbers)


def chain(last: bytes, events: tuple[int, ...]) -> bytes:
    """Return the digest of a chain with a segment more."""
    return sha256(last + repr(events).encode()).digest()


class Source:
    """A shard's events: numbers from 0 on. What is not acknowledged comes again."""

    def __init__(self, rate: float, draw: random.Random) -> None:
        self._gap = S / rate if rate > 0 else 0.0
        self._at = draw.uniform(0, self._gap)
        self.acked = 0

    def due(self, now: int) -> int:
        """Return how many events there have been by now."""
        return 0 if not self._gap or now < self._at else 1 + int((now - self._at) / self._gap)

    def time_of(self, number: int) -> float:
        """Return when an event came."""
        return self._at + number * self._gap


class Worker:
    """Owns shards: which, it works out by itself from who beats."""

    def __init__(self, cluster: Cluster, name: int) -> None:
        self.cluster, self.name = cluster, name
        self.rate = 1 + cluster.draw.uniform(-1, 1) * cluster.setup.drift
        self.died = False
        self.paused_until = 0
        self.mine: dict[int, int] = {}  # shard to the epoch of ours
        self._seen: dict[int, tuple[int, int]] = {}  # worker to its last beat, and when seen

    def lives(self) -> bool:
        """Say whether it was not killed."""
        return not self.died

    def own_time(self, duration: int) -> int:
        """Return how long what this clock calls a duration is."""
        return max(1, round(duration * self.rate))

    def pause(self) -> Process:
        """Stand still while this process is stopped; nothing of it notices."""
        while self.lives() and self.cluster.loop.now < self.paused_until:
            yield self.paused_until - self.cluster.loop.now

    def watch(self) -> Process:
        """Beat, see who beats, and take what should be ours."""
        cluster = self.cluster
        while self.lives():
            yield from self.pause()
            if not self.lives():
                return
            cluster.beats[self.name] += 1
            now = cluster.loop.now
            for name, beat in cluster.beats.items():
                if self._seen.get(name, (-1, 0))[0] != beat:
                    self._seen[name] = beat, now
            limit = self.own_time(cluster.setup.dead_after)
            alive = [name for name, (_, at) in self._seen.items() if now - at <= limit]
            for shard in range(cluster.setup.shards):
                best = max(alive, key=lambda name: _weight(name, shard))
                if best == self.name and shard not in self.mine:
                    self.mine[shard] = -1
                    cluster.loop.start(self.own(shard))
                elif best != self.name:
                    self.mine.pop(shard, None)
            yield self.own_time(cluster.setup.beat)

    def own(self, shard: int) -> Process:
        """Take a shard, and commit its events group by group until it is another's."""
        cluster, setup, history = self.cluster, self.cluster.setup, self.cluster.history
        loop, database, source = cluster.loop, cluster.database, cluster.sources[shard]
        taken: list[Head] = []
        yield setup.travel
        yield from database.take(shard, taken)
        yield setup.travel
        yield from self.pause()
        head = taken[0]
        if not self.lives() or self.mine.get(shard) != -1:
            return
        self.mine[shard] = head.epoch
        # The source is told what is committed, whoever committed it.
        source.acked = max(source.acked, head.size)
        following = head.size
        while self.lives() and self.mine.get(shard) == head.epoch:
            yield self.own_time(setup.group)
            yield from self.pause()
            events = tuple(range(following, min(source.due(loop.now), following + setup.most)))
            if not events or not self.lives():
                continue
            if setup.judge:
                yield setup.judge * len(events)
            began = loop.now
            if setup.bug == "acknowledged early":
                history.acked[shard].append(events)
            yield round(setup.log * cluster.draw.uniform(0.7, 2.0))
            yield from self.pause()
            answer: list[bool] = []
            yield setup.travel
            if not self.lives():
                return
            yield from database.advance(self.name, shard, head, events, answer)
            yield setup.travel
            yield from self.pause()
            if not self.lives():
                return
            moved = answer[0]
            if cluster.draw.random() < setup.lost_answers:
                yield setup.travel * 2
                now = database.heads[shard]
                # Its own commit is there if the chain ends with it, or has gone on from it.
                moved = now.last == chain(head.last, events) and setup.bug != "doubt is no"
                if setup.bug == "doubt is no":
                    head = replace(now, epoch=head.epoch)
                    continue
                if not moved and now.epoch != head.epoch:
                    break
            if moved:
                head = replace(head, size=head.size + len(events), last=chain(head.last, events))
                following += len(events)
                history.took.append(loop.now - began)
                source.acked = max(source.acked, head.size)
                if setup.bug != "acknowledged early":
                    history.acked[shard].append(events)
                lag = loop.now - source.time_of(events[0])
                history.lags.append(round(lag))
                continue
            yield 2 * setup.travel
            now = database.heads[shard]
            if now.epoch != head.epoch:
                history.refuse("epoch")
                break
            why = "policy" if now.policy_rev != head.policy_rev else "stop"
            history.refuse(why)
            head = now
        if self.mine.get(shard) == head.epoch:
            del self.mine[shard]


def _weight(worker: int, shard: int) -> bytes:
    """Return by what workers are ranked for a shard (rendezvous hashing)."""
    return sha256(f"{worker} {shard}".encode()).digest()


class Cluster:
    """Everything of one history."""

    def __init__(self, seed: int, setup: Setup) -> None:
        self.setup = setup
        self.draw = random.Random(f"heads {seed}")
        self.loop = Loop()
        self.history = History(setup, seed, acked={shard: [] for shard in range(setup.shards)})
        self.database = Database(self.loop, self.history, self.draw)
        self.beats: dict[int, int] = {}
        even = setup.events_per_s * (1 - setup.hot) / setup.shards
        rates = [
            even + (setup.events_per_s * setup.hot if n == 0 else 0) for n in range(setup.shards)
        ]
        self.sources = [Source(rate, self.draw) for rate in rates]
        self.workers: list[Worker] = []

    def join(self) -> None:
        """Add a worker."""
        worker = Worker(self, len(self.workers))
        self.workers.append(worker)
        self.beats[worker.name] = 0
        self.loop.start(worker.watch())

    def _at_times(self, rate: float) -> Iterator[int]:
        """Yield instants of a Poisson process before the last quarter, which is left quiet."""
        at = 0.0
        while rate > 0 and (at := at + self.draw.expovariate(rate) * S) < 0.75 * self.setup.length:
            yield round(at)

    def play(self) -> History:
        """Play it to its end."""
        setup, loop = self.setup, self.loop
        for _ in range(setup.workers):
            self.join()
        for rate, kind in (
            (setup.publishes_per_s, "policy_rev"),
            (setup.stops_per_s, "stop_epoch"),
        ):
            for at in self._at_times(rate):
                loop.start(self.database.order(kind), at)
        for at in self._at_times(setup.pauses_per_s * setup.workers):
            loop.start(self._pause(), at)
        for at in self._at_times(setup.deaths_per_s * setup.workers):
            loop.start(self._die(), at)
        for notary in range(2):  # two: one that was held for dead goes on beside its successor
            loop.start(self._notary(), 1 + notary * 70 * MS)
        loop.run(setup.length)
        self.history.heads = list(self.database.heads)
        self.history.wrong = judge(self.history)
        return self.history

    def _living(self) -> list[Worker]:
        return [worker for worker in self.workers if worker.lives()]

    def _pause(self) -> Process:
        worker = self.draw.choice(self._living())
        for_ms = self.draw.choice((20, 200, 1500)) * self.draw.uniform(0.5, 1.5)
        worker.paused_until = max(worker.paused_until, self.loop.now + round(for_ms * MS))
        yield 0

    def _die(self) -> Process:
        self.draw.choice(self._living()).died = True
        self.join()
        yield 0

    def _notary(self) -> Process:
        rate = 1 + self.draw.uniform(-1, 1) * self.setup.drift
        period = S if self.setup.length > 10 * S else 200 * MS
        while True:
            yield round(period * rate)
            pause = self.draw.choice((0, 0, 0, 0, 300)) * MS
            yield from self.database.sign(pause)


def judge(history: History) -> list[tuple[str, str]]:
    """Return what is wrong with a history: the kind, and what was seen.

    Chains dense and every event on them once; acknowledged is committed; no commit of a lower epoch
    once a shard was taken; none under an older revision or stop once that was answered; notes
    numbered densely, each of one revision and stop, heads in them never back and on their chains.
    """
    wrong: list[tuple[str, str]] = []
    at_size: dict[int, dict[int, bytes]] = {n: {0: b""} for n in range(history.setup.shards)}
    size = dict.fromkeys(at_size, 0)
    committed: dict[int, set[int]] = {n: set() for n in at_size}
    takes: dict[int, list[tuple[int, int]]] = {n: [] for n in at_size}
    for at, shard, epoch in history.takes:
        takes[shard].append((at, epoch))
    for one in history.commits:
        where = f"shard {one.shard} at {one.at} us, size {one.start}"
        if one.start != size[one.shard]:
            wrong.append(("sequence", f"{where}: the shard had {size[one.shard]} events"))
        if one.events != tuple(range(one.start, one.start + len(one.events))):
            wrong.append(("twice", f"{where}: events {one.events[:3]}…"))
        size[one.shard] = one.start + len(one.events)
        at_size[one.shard][size[one.shard]] = one.last
        committed[one.shard].update(one.events)
        newest = max((e for at, e in takes[one.shard] if at <= one.at), default=0)
        if one.epoch < newest:
            wrong.append(("epoch", f"{where}: by epoch {one.epoch} after {newest} took it"))
        for order in history.orders:
            if order.answered < one.at and getattr(one, order.kind) < order.value:
                wrong.append((order.kind, f"{where}: under {getattr(one, order.kind)}, "
                              f"{order.value} was answered at {order.answered}"))  # fmt: skip
                break
    for shard, groups in history.acked.items():
        lost = [events for events in groups if not committed[shard].issuperset(events)]
        if lost:
            wrong.append(("lost", f"shard {shard}: {lost[0][:3]}… were acknowledged"))
    for number, note in enumerate(history.notes, start=1):
        if note.number != number:
            wrong.append(("notary", f"note {note.number} is the {number}th"))
        if len({(head.policy_rev, head.stop_epoch) for head in note.heads}) > 1:
            wrong.append(("cut", f"note {number} has heads of two revisions or stops"))
        before = history.notes[number - 2].heads if number > 1 else note.heads
        for shard, (head, was) in enumerate(zip(note.heads, before, strict=True)):
            if head.size < was.size or head.epoch < was.epoch:
                wrong.append(("notary", f"note {number}: shard {shard} went back"))
            if at_size[shard].get(head.size) != head.last:
                wrong.append(("notary", f"note {number}: shard {shard} is not on its chain"))
    return wrong


def play(seed: int, setup: Setup) -> History:
    """Play the history of a seed."""
    return Cluster(seed, setup).play()

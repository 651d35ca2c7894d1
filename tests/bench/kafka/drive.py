"""What runs in the client's environment: owners of shards, the topic's making, the audit.

    python -m tests.bench.kafka.drive topic ADDRESS SHARDS [again]
    python -m tests.bench.kafka.drive own '{"address": …}'      (Plan, as JSON)
    python -m tests.bench.kafka.drive audit '{"address": …}'    (the same)

`own` prints `ready` once it has all its shards and begins when a line comes. With `tells` it
prints a line for each acknowledged group, after the acknowledgement and before the next group.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import msgspec
import psycopg
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from msgspec import Struct
from tests.bench.kafka.kafka_log import DoubtError, KafkaLog, make_topic, read_partition
from tests.bench.kafka.owner import POINTS, Head, LeaseError, Log, Owner
from tests.bench.kafka.postgres import NoLog, PostgresHeads
from tests.bench.kafka.segment import KEY_NAME, Segment, check_chain, read_chain

from vedette.ledger.merkle import verifier_key

# `transaction`: Kafka with the lease; `idempotent`: without; `postgresql`: no broker.
PATHS = ("transaction", "idempotent", "postgresql")
FENCED, UNSURE = 7, 8


class Plan(Struct, frozen=True):
    """What a driver is asked for.

    `at` is where in POINTS it sends itself `signal`, in its cycle number `cycle` of a shard (0 for
    the take-over's own points); `retakes` lets it take a shard again when the broker did not answer
    within `wait_s`.
    """

    address: str
    url: str
    key: str
    shards: tuple[int, ...]
    path: str = "transaction"
    events: int = 128
    seconds: float = 0.0
    groups: int = 0
    tells: bool = False
    retakes: bool = False
    wait_s: float = 30.0
    at: str = ""
    cycle: int = 1
    signal: int = 0


class Figures(Struct):
    """What came of the owners of one process; CPU in seconds, `took_ms` of each group."""

    events: int = 0
    groups: int = 0
    bytes: int = 0
    cpu: float = 0.0
    make_cpu: float = 0.0
    took_ms: list[float] = msgspec.field(default_factory=list)
    refused: int = 0


class Ack(Struct, frozen=True):
    """An acknowledged group: from event `at` to before `end`, and the root then (hex)."""

    shard: int
    epoch: int
    at: int
    end: int
    root: str
    offset: int


class Audit(Struct):
    """What the log and the heads hold in the end.

    `void` counts segments that no chain reaches; in the shards that are `hung` segments that count
    are hidden from a reader of what Kafka calls committed.
    """

    chains: dict[int, list[Ack]]
    heads: dict[int, Ack]
    void: int
    hung: list[int]
    wrong: list[str]


def _key(plan: Plan) -> Ed25519PrivateKey:
    return Ed25519PrivateKey.from_private_bytes(bytes.fromhex(plan.key))


def _log(plan: Plan, shard: int) -> Log:
    if plan.path == "postgresql":
        return NoLog(plan.url, shard)
    return KafkaLog(
        plan.address, shard, transactional=plan.path == "transaction", wait_s=plan.wait_s
    )


class Shard:
    """One shard in one thread."""

    def __init__(self, plan: Plan, shard: int) -> None:
        self.plan = plan
        self.figures = Figures()
        self._cycle = 0
        heads = PostgresHeads(plan.url, with_segments=plan.path == "postgresql")
        self._owner = Owner(shard, _log(plan, shard), heads, _key(plan), self._reach)

    def _reach(self, point: str) -> None:
        if point == self.plan.at and self._cycle == self.plan.cycle:
            os.kill(os.getpid(), self.plan.signal)
            # A signal reaches the process, and this thread only a little later.
            time.sleep(0.05)

    def take(self) -> None:
        """Take the shard; as often as the broker needs to come back, if that is allowed."""
        self._again(self._owner.take)

    def _again(self, call: Callable[[], object]) -> None:
        end = time.monotonic() + 120
        while True:
            try:
                call()
                return
            except DoubtError:
                if not self.plan.retakes or time.monotonic() > end:
                    raise
                if self._owner.head.epoch:
                    self._owner.check_lease()
                call = self._owner.take
                time.sleep(0.2)

    def run(self) -> None:
        """Commit groups until time or number is up."""
        plan, figures, owner = self.plan, self.figures, self._owner
        end = time.monotonic() + plan.seconds
        while figures.groups < plan.groups if plan.groups else time.monotonic() < end:
            self._cycle += 1
            began, cpu = time.perf_counter(), time.thread_time()
            segment = owner.make(plan.events)
            figures.make_cpu += time.thread_time() - cpu
            self._again(partial(self._commit, segment, began))
        figures.refused = owner.refused

    def _commit(self, segment: Segment, began: float) -> None:
        figures, owner, before = self.figures, self._owner, self._owner.head
        if not owner.commit(segment):
            return
        figures.took_ms.append((time.perf_counter() - began) * 1000)
        figures.events += self.plan.events
        figures.groups += 1
        figures.bytes += sum(map(len, segment.records))
        if self.plan.tells:
            _tell(_ack(before, owner.head))


def _ack(before: Head, after: Head) -> Ack:
    return Ack(after.shard, after.epoch, before.size, after.size, after.root.hex(), after.offset)


_PRINTING = threading.Lock()


def _tell(value: object) -> None:
    with _PRINTING:
        sys.stdout.write(msgspec.json.encode(value).decode() + "\n")
        sys.stdout.flush()


def own(plan: Plan) -> int:
    """Own the shards of a plan; return FENCED, UNSURE or 0."""
    if plan.at and plan.at not in POINTS:
        raise SystemExit(f"drive: no point {plan.at}; there are {', '.join(POINTS)}")
    shards = [Shard(plan, shard) for shard in plan.shards]
    total = Figures()
    with ThreadPoolExecutor(len(shards)) as pool:
        try:
            list(pool.map(Shard.take, shards))
            _say("ready")
            sys.stdin.readline()
            cpu = time.process_time()
            list(pool.map(Shard.run, shards))
        except LeaseError as error:
            _say(f"fenced {error.by}")
            return FENCED
        except (DoubtError, psycopg.OperationalError) as error:
            print(f"drive: {error}", file=sys.stderr)
            return UNSURE
    total.cpu = time.process_time() - cpu
    for shard in shards:
        each = shard.figures
        total.events += each.events
        total.groups += each.groups
        total.bytes += each.bytes
        total.make_cpu += each.make_cpu
        total.took_ms += each.took_ms
        total.refused += each.refused
    _tell(total)
    return 0


def _say(text: str) -> None:
    with _PRINTING:
        print(text, flush=True)


def audit(plan: Plan) -> Audit:
    """Read all that was committed; hold chains, heads and trees against one another."""
    heads = PostgresHeads(plan.url)
    verifier = verifier_key(KEY_NAME, _key(plan).public_key().public_bytes_raw())
    found = Audit({}, {}, 0, [], [])
    for shard in plan.shards:
        head = heads.read(shard)
        held = dict(
            NoLog(plan.url, shard).read(0) if plan.path == "postgresql"
            else read_partition(plan.address, shard)
        )  # fmt: skip
        try:
            chain = list(read_chain(held, head.offset))[::-1]
            size, root = check_chain((each for _, each in chain), shard, verifier)
        except ValueError as error:
            found.wrong.append(str(error))
            continue
        if (size, root) != (head.size, head.root):
            found.wrong.append(f"shard {shard}: the head has {head.size} events, the log {size}")
        found.void += len(held) - len(chain)
        if plan.path == "transaction":
            shown = dict(read_partition(plan.address, shard, committed=True))
            if any(offset not in shown for offset, _ in chain):
                found.hung.append(shard)
        found.heads[shard] = _ack(head, head)
        found.chains[shard] = [
            Ack(shard, one.epoch, one.at, one.end, one.tree.root().hex(), offset)
            for offset, one in chain
        ]
    return found


def main(words: list[str]) -> int:
    """Do one of three things."""
    # Ctrl-C is for who started this; it ends us by closing or by a kill.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    if words[0] == "topic":
        make_topic(words[1], int(words[2]), again="again" in words)
        return 0
    plan = msgspec.json.decode(words[1], type=Plan)
    if words[0] == "audit":
        _tell(audit(plan))
        return 0
    return own(plan)


if __name__ == "__main__":
    # The client's threads must not hold up a process that has said all.
    code = main(sys.argv[1:])
    sys.stdout.flush()
    os._exit(code)

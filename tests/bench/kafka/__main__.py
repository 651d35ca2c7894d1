"""`make bench-kafka`: segments by a Kafka broker, heads in PostgreSQL; beside PostgreSQL alone.

The same owners make and sign the same segments (128 acting events of three records, some 170 kB)
and commit group after group, one in flight a shard, shards spread over up to four processes. In
turn, twice: PostgreSQL alone (segment and head in one statement); Kafka with a transaction a
segment, once synced at every append and once as Kafka comes (the system syncs when it likes); and
Kafka's idempotent producer without a transaction, synced. Then the log and the heads are audited.
"""

from __future__ import annotations

import argparse
import secrets
import statistics
import sys
from dataclasses import dataclass, field

import msgspec
from tests.bench.databases import find_server, fresh
from tests.bench.kafka.broker import Broker
from tests.bench.kafka.drive import Figures, Plan
from tests.bench.kafka.driver import audit, drivers, make_topic
from tests.bench.kafka.installation import InstallationError
from tests.bench.kafka.postgres import make_tables
from tests.bench.machine import described, percentile
from tests.bench.peers.work import server_cpu

PROCESSES = 4
HEAD = (
    f"{'path':<34}{'shards':>7}{'events/s':>10}{'MB/s':>7}{'p50 ms':>8}{'p99 ms':>8}"
    f"{'owner':>8}{'(made)':>8}{'broker':>8}{'PG':>7}{'all':>7}   us CPU/event"
)


@dataclass(frozen=True, slots=True)
class Way:
    """One write path, and whether its broker syncs each append (None: it has none)."""

    name: str
    path: str
    flushes: bool | None


WAYS = (
    Way("PostgreSQL alone", "postgresql", None),
    Way("Kafka transaction, synced", "transaction", True),
    Way("Kafka transaction, not synced", "transaction", False),
    Way("Kafka idempotent, synced", "idempotent", True),
)


@dataclass(slots=True)
class Round:
    """What one way took over one stretch of time; CPU in us an event."""

    way: Way
    shards: int
    seconds: float
    figures: Figures = field(default_factory=Figures)
    broker_us: float = 0.0
    server_us: float = 0.0

    def us(self, seconds: float) -> float:
        """Return CPU seconds as us an event."""
        return 1e6 * seconds / max(1, self.figures.events)

    @property
    def all_us(self) -> float:
        """CPU of owners, broker and PostgreSQL."""
        return self.us(self.figures.cpu) + self.broker_us + self.server_us

    @property
    def per_s(self) -> float:
        """Events a second."""
        return self.figures.events / self.seconds

    def row(self) -> str:
        """Return it for people."""
        took, mb = sorted(self.figures.took_ms), self.figures.bytes / self.seconds / 1e6
        return (
            f"{self.way.name:<34}{self.shards:>7}{self.per_s:>10,.0f}{mb:>7.1f}"
            f"{percentile(took, 0.5):>8.1f}{percentile(took, 0.99):>8.1f}"
            f"{self.us(self.figures.cpu):>8.1f}{self.us(self.figures.make_cpu):>8.1f}"
            f"{self.broker_us:>8.1f}{self.server_us:>7.1f}{self.all_us:>7.1f}"
        )


class Bench:
    """One run."""

    def __init__(self, options: argparse.Namespace) -> None:
        self._options = options
        found = find_server()
        if found is None:
            raise InstallationError(
                "PostgreSQL is not here. Mend: install it, or set VEDETTE_PG_BIN"
            )
        self._server = found
        self._brokers = {flushes: Broker(flushes=flushes) for flushes in (True, False)}
        self._key = secrets.token_hex(32)

    def close(self) -> None:
        """Stop the brokers."""
        for broker in self._brokers.values():
            broker.stop()

    def measure(self, way: Way, shards: int, seconds: float) -> Round:
        """Let the owners of a way commit for some seconds, and audit what they left.

        Raises AssertionError if what is there is not what they were told is committed.
        """
        broker = self._brokers[way.flushes] if way.flushes is not None else None
        with fresh(self._server) as database:
            make_tables(database.url, shards)
            address = broker.address if broker is not None else ""
            if broker is not None:
                make_topic(address, shards, again=True)
            plan = Plan(
                address, database.url, self._key, tuple(range(shards)), way.path,
                events=self._options.events, seconds=seconds,
            )  # fmt: skip
            parts = [
                msgspec.structs.replace(plan, shards=tuple(range(one, shards, PROCESSES)))
                for one in range(min(PROCESSES, shards))
            ]
            round_ = Round(way, shards, seconds)
            with drivers(*parts) as owners:
                for each in owners:
                    assert each.wait_ready(), each.failure()
                pids = (broker.pid if broker else 0, self._server.pid)
                before = [server_cpu(pid) for pid in pids]
                for each in owners:
                    each.go()
                codes = [each.wait() for each in owners]
                spent = [server_cpu(pid) - was for pid, was in zip(pids, before, strict=True)]
                assert not any(codes), [each.failure() for each in owners]
                for each in owners:
                    add(round_.figures, msgspec.json.decode(each.said[-1], type=Figures))
            round_.broker_us, round_.server_us = (round_.us(one) for one in spent)
            found = audit(plan)
            assert not found.wrong, found.wrong
            kept = sum(head.end for head in found.heads.values())
            assert kept == round_.figures.events, (kept, round_.figures.events)
        return round_

    def run(self) -> list[Round]:
        """Measure all ways with all numbers of shards, in turn."""
        options, rounds = self._options, list[Round]()
        for way in WAYS:  # the virtual machine compiles what it runs often, and only then
            self.measure(way, max(options.shards), options.seconds)
        for shards in options.shards:
            print(f"\n{HEAD}", flush=True)
            for _ in range(options.turns):
                for way in WAYS:
                    rounds.append(self.measure(way, shards, options.seconds))
                    print(rounds[-1].row(), flush=True)
        return rounds


def add(total: Figures, part: Figures) -> None:
    """Add what one process did to a total."""
    for name in Figures.__struct_fields__:
        setattr(total, name, getattr(total, name) + getattr(part, name))


def ratios(rounds: list[Round]) -> str:
    """Return each way beside PostgreSQL alone, of the same turn and number of shards."""
    lines = []
    for shards in sorted({one.shards for one in rounds}):
        mine = [one for one in rounds if one.shards == shards]
        base = [one for one in mine if one.way is WAYS[0]]
        for way in WAYS[1:]:
            pairs = list(zip((one for one in mine if one.way is way), base, strict=True))
            faster = [one.per_s / other.per_s for one, other in pairs]
            dearer = [one.all_us / other.all_us for one, other in pairs]
            lines.append(
                f"  {shards:>3} shards  {way.name:<32} events/s x {statistics.mean(faster):.2f} "
                f"({min(faster):.2f} to {max(faster):.2f}), CPU x {statistics.mean(dearer):.2f} "
                f"({min(dearer):.2f} to {max(dearer):.2f})"
            )
    return "\n".join(lines)


def main(words: list[str] | None = None) -> int:
    """Print the comparison; 3 if something it needs is not here."""
    parser = argparse.ArgumentParser(prog="make bench-kafka", description=__doc__)
    parser.add_argument("--shards", type=int, nargs="+", default=[1, 4, 16])
    parser.add_argument("--seconds", type=float, default=5.0, help="of each round")
    parser.add_argument("--turns", type=int, default=2)
    parser.add_argument("--events", type=int, default=128, help="of a commit group")
    options = parser.parse_args(words)
    try:
        bench = Bench(options)
    except InstallationError as error:
        print(f"bench-kafka: {error}", file=sys.stderr)
        return 3
    try:
        print(
            f"{described()}\none broker of Kafka in KRaft mode (replication 1) for each setting, "
            f"acks=all; PostgreSQL with fsync;\n{options.events} events a group, one group in "
            f"flight a shard, {options.seconds:g} s a round after a warm-up of each way.\n"
            "synced: log.flush.interval.messages=1, each append to segments, to the log of "
            "transactions and its marks\nis synced before it is answered; not synced: Kafka's "
            "default, nothing is synced before the system does."
        )
        print(f"\nbeside PostgreSQL alone in the same turn:\n{ratios(bench.run())}")
    finally:
        bench.close()
    return 0


if __name__ == "__main__":
    sys.exit(main())

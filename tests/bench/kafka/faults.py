"""`make kafka-faults`: kill -9 of broker and owners on a real broker, zombies, a publish between.

Trials by seed over one broker and one PostgreSQL server. After each: every acknowledged segment is
on its shard's chain exactly once, in order and as it was acknowledged; trees, notes and heads
agree; nothing was acknowledged twice. What a trial found is kept in .tools/kafka-faults under the
commit, so a run that was broken off goes on; `--fresh` begins anew. Exits with 1 if anything was
wrong, or if a control passed, and with 130 after Ctrl-C.
"""

from __future__ import annotations

import argparse
import json
import random
import secrets
import signal
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

import msgspec
from tests import pg
from tests.bench.databases import find_server
from tests.bench.kafka.broker import Broker
from tests.bench.kafka.drive import FENCED, Ack, Plan
from tests.bench.kafka.driver import Driver, audit, drivers, make_topic
from tests.bench.kafka.installation import InstallationError
from tests.bench.kafka.owner import POINTS
from tests.bench.kafka.postgres import make_tables, publish
from tests.bench.machine import described
from tests.faults.every import checkout
from tests.said import ROOT

KEPT = ROOT / ".tools" / "kafka-faults"
SHARDS = 4
# A broker and a database serve so many trials: an audit reads all that they left.
TRIALS_EACH = 25
# Where a zombie stood still, and who has to tell it so when it goes on.
ZOMBIES = {
    "take:log": "log", "take:head": "log", "produce:before": "log", "produce:after": "log",
    "commit:after": "head",
}  # fmt: skip


@dataclass
class Result:
    """What came of a trial: its kind, what was wrong, and what was seen."""

    trial: int
    kind: str
    wrong: list[str] = field(default_factory=list)
    acked: int = 0
    seen: dict[str, int] = field(default_factory=dict)
    seconds: float = 0.0


class Testbed:
    """A broker, a database, and what their owners were told in all trials so far."""

    def __init__(self, server: pg.Server) -> None:
        self.broker = Broker(flushes=True)
        self.server = server
        self._acked: dict[tuple[int, int], Ack] = {}
        self._void = self._hung = 0
        self.revision = 0
        url = server.fresh()
        make_tables(url, SHARDS)
        make_topic(self.broker.address, SHARDS)
        self.plan = Plan(
            self.broker.address, url, secrets.token_hex(32), tuple(range(SHARDS)), events=8,
            groups=4, tells=True, wait_s=4.0,
        )  # fmt: skip

    def plan_of(self, **changes: object) -> Plan:
        """Return the testbed's plan with changes."""
        return msgspec.structs.replace(self.plan, **changes)

    def owner(self, started: list[Driver]) -> int:
        """Let the first driver run; return how it ended."""
        (driver,) = started
        if driver.wait_ready():
            driver.go()
        return driver.wait()

    def settle(self, result: Result, told: list[Ack]) -> None:
        """Let a last owner commit on every shard, then hold what is there against what was told."""
        with drivers(self.plan_of(groups=1)) as (last,):
            if self.owner([last]):
                result.wrong.append(
                    f"the last owner could not go on: {last.said[-2:]}, {last.failure()}"
                )
        for ack in (*told, *last.acks):
            if (ack.shard, ack.at) in self._acked:
                result.wrong.append(f"acknowledged twice: {ack}")
            self._acked[ack.shard, ack.at] = ack
            result.acked += 1
        found = audit(self.plan)
        result.wrong += found.wrong
        there = {(one.shard, one.at): one for chain in found.chains.values() for one in chain}
        for place, ack in self._acked.items():
            if ack.shard in found.chains and there.get(place) != ack:
                result.wrong.append(f"acknowledged as {ack}, there as {there.get(place)}")
        result.seen["void segments"] = found.void - self._void
        result.seen["committed, answer lost"] = len(there) - len(self._acked)
        # Those are told of now; the next trial does not count them again.
        self._acked |= {place: one for place, one in there.items() if place not in self._acked}
        self._void = found.void
        if found.hung:
            result.seen["partitions hung in Kafka"] = len(found.hung) - self._hung
        self._hung = len(found.hung)


def kill_at_point(testbed: Testbed, draw: random.Random, result: Result) -> list[Ack]:
    """An owner of all shards kills itself at a point of a cycle."""
    point = draw.choice(POINTS)
    result.kind += f" {point}"
    cycle = 0 if point.startswith("take") else draw.randint(1, 4)
    plan = testbed.plan_of(at=point, cycle=cycle, signal=signal.SIGKILL)
    with drivers(plan) as (driver,):
        code = testbed.owner([driver])
    if code != -signal.SIGKILL:
        result.wrong.append(f"it ended with {code}, not by the kill: {driver.failure()}")
    return driver.acks


@contextmanager
def running_owner(testbed: Testbed, draw: random.Random, at_most_s: float) -> Iterator[Driver]:
    """Have an owner of all shards that has been at work for a while when the block begins."""
    with drivers(testbed.plan_of(groups=10_000)) as (driver,):
        if driver.wait_ready():
            driver.go()
            time.sleep(draw.uniform(0.0, at_most_s))
        yield driver


def kill_any_time(testbed: Testbed, draw: random.Random, result: Result) -> list[Ack]:
    """An owner is killed from outside, whatever it does just then."""
    with running_owner(testbed, draw, 1.5) as driver:
        driver.send(signal.SIGKILL)
        driver.wait()
    return driver.acks


def kill_broker(testbed: Testbed, draw: random.Random, result: Result) -> list[Ack]:
    """The broker is killed and started again under owners that go on by themselves."""
    halves = (testbed.plan_of(shards=(0, 2), groups=10_000, retakes=True),
              testbed.plan_of(shards=(1, 3), groups=10_000, retakes=True))  # fmt: skip
    with drivers(*halves) as started:
        ready = [each.wait_ready() for each in started]
        for each in started:
            with suppress(OSError):  # it may have ended
                each.go()
        for _ in range(draw.randint(1, 2)):
            time.sleep(draw.uniform(0.1, 2.0))
            testbed.broker.kill()
            time.sleep(draw.choice((0.0, 0.0, 5.0)))  # 5 s: longer than an owner waits
            testbed.broker.start()
        before = [len(each.acks) for each in started]
        end = time.monotonic() + 90
        for each, was in zip(started, before, strict=True):
            while len(each.acks) < was + 4 and each.is_alive() and time.monotonic() < end:
                time.sleep(0.05)
            if len(each.acks) < was + 4:
                result.wrong.append(f"an owner did not go on: {each.said[-2:]}")
        for each in started:
            each.send(signal.SIGKILL)
            each.wait()
    if not all(ready):
        result.wrong.append("an owner did not get its shards")
    return [ack for each in started for ack in each.acks]


def kill_both(testbed: Testbed, draw: random.Random, result: Result) -> list[Ack]:
    """Owner and broker are killed, one soon after the other."""
    with running_owner(testbed, draw, 1.5) as driver:
        kills: list[Callable[[], None]] = [testbed.broker.kill, lambda: driver.send(signal.SIGKILL)]
        draw.shuffle(kills)
        kills[0]()
        time.sleep(draw.choice((0.0, 0.02, 0.2)))
        kills[1]()
        driver.wait()
    testbed.broker.start()
    return driver.acks


def kill_server(testbed: Testbed, draw: random.Random, result: Result) -> list[Ack]:
    """PostgreSQL crashes under an owner, that ends; both are there again after."""
    with running_owner(testbed, draw, 1.0) as driver:
        testbed.server.crash()
        testbed.server.restart()
        driver.wait()
    return driver.acks


def zombie(testbed: Testbed, draw: random.Random, result: Result) -> list[Ack]:
    """An owner stands still, another takes its shards and commits; then the first goes on."""
    point = draw.choice(tuple(ZOMBIES))
    result.kind += f" {point}"
    return _zombie(testbed, draw, result, point, ZOMBIES[point], "transaction")


def zombie_without_lease(testbed: Testbed, draw: random.Random, result: Result) -> list[Ack]:
    """Control: without the producer's epoch the log takes what a zombie says; the head does not."""
    return _zombie(testbed, draw, result, "produce:before", "head", "idempotent")


def _zombie(
    testbed: Testbed, draw: random.Random, result: Result, point: str, by: str, path: str
) -> list[Ack]:
    shard = draw.randrange(SHARDS)
    cycle = 0 if point.startswith("take") else draw.randint(1, 3)
    paused = testbed.plan_of(
        shards=(shard,), at=point, cycle=cycle, signal=signal.SIGSTOP, path=path, groups=10
    )
    other = testbed.plan_of(shards=(shard,), path=path, groups=2)
    with drivers(paused) as (first,):
        if first.wait_ready():
            first.go()
        first.wait_paused()
        with drivers(other) as (second,):
            if testbed.owner([second]):
                result.wrong.append(f"the other could not take it: {second.failure()}")
            first.send(signal.SIGCONT)
            if not first.said:  # it had not even got the shard
                first.wait_ready()
                with suppress(OSError):
                    first.go()
            code = first.wait()
    if (code, first.said[-1:]) != (FENCED, [f"fenced {by}"]):
        result.wrong.append(
            f"the zombie ended with {code}, {first.said[-1:]}; {by} should fence it; "
            f"{first.failure()}"
        )
    result.seen[f"fenced by the {by}"] = 1
    return [*first.acks, *second.acks]


def publish_between(testbed: Testbed, draw: random.Random, result: Result) -> list[Ack]:
    """A policy is published while a segment is in the log, and its head not moved yet."""
    shard = draw.randrange(SHARDS)
    plan = testbed.plan_of(
        shards=(shard,), at="commit:after", cycle=draw.randint(1, 3), signal=signal.SIGSTOP
    )
    with drivers(plan) as (driver,):
        if driver.wait_ready():
            driver.go()
        driver.wait_paused()
        testbed.revision += 1
        publish(testbed.plan.url, testbed.revision)
        driver.send(signal.SIGCONT)
        code = driver.wait()
    refused = json.loads(driver.said[-1])["refused"] if not code else 0
    if refused != 1:
        result.wrong.append(f"ended with {code}, {refused} segments refused; 1 should be")
    result.seen["refused by a publish"] = refused
    return driver.acks


KINDS: tuple[Callable[[Testbed, random.Random, Result], list[Ack]], ...] = (
    kill_at_point, kill_broker, zombie, kill_any_time, kill_at_point, publish_between, kill_both,
    zombie, kill_broker, kill_at_point, zombie_without_lease, kill_server,
)  # fmt: skip


def play(testbed: Testbed, trial: int, seed: int) -> Result:
    """Play one trial."""
    began = time.monotonic()
    kind = KINDS[trial % len(KINDS)]
    result = Result(trial, kind.__name__.replace("_", " "))
    told = kind(testbed, random.Random(f"{seed} {trial}"), result)
    testbed.settle(result, told)
    result.seconds = time.monotonic() - began
    return result


class Kept:
    """What was found so far, line by line in a file; the first says the seed."""

    def __init__(self, folder: Path, seed: int, *, fresh: bool) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._path = folder / f"{checkout()}.jsonl"
        if fresh or not self._path.exists():
            self._path.write_text(json.dumps({"seed": seed}) + "\n")
        head, *lines = self._path.read_text().splitlines()
        self.seed: int = json.loads(head)["seed"]
        self.results: dict[int, Result] = {}
        for line in lines:
            with suppress(ValueError):  # broken off while it was written
                result = Result(**json.loads(line))
                self.results[result.trial] = result

    def add(self, result: Result) -> None:
        """Keep one more."""
        self.results[result.trial] = result
        with self._path.open("a") as file:
            file.write(json.dumps(vars(result)) + "\n")


def summary(results: list[Result]) -> str:
    """Return what was tried, and what came of it."""
    seen: Counter[str] = Counter()
    for one in results:
        seen.update(one.seen)
    kinds = Counter(one.kind for one in results)
    wrong = [f"trial {one.trial} ({one.kind}): {what}" for one in results for what in one.wrong]
    return "\n".join([
        *(f"  {count:>4}  {kind}" for kind, count in sorted(kinds.items())),
        f"{len(results)} trials, {sum(one.acked for one in results):,} segments acknowledged, "
        f"{sum(one.seconds for one in results) / 60:.0f} min",
        *(f"  {count:>4}  {what}" for what, count in sorted(seen.items())),
        f"{len(wrong)} wrong", *wrong[:20],
    ])  # fmt: skip


def main(words: list[str] | None = None) -> int:
    """Play the trials that were not played yet."""
    parser = argparse.ArgumentParser(prog="make kafka-faults", description=__doc__)
    parser.add_argument("--trials", type=int, default=60)
    parser.add_argument("--seed", type=int, default=secrets.randbelow(2**32))
    parser.add_argument("--fresh", action="store_true", help="begin anew")
    parser.add_argument("--folder", type=Path, default=KEPT)
    options = parser.parse_args(words)
    server = find_server()
    if server is None:
        print(
            "kafka-faults: PostgreSQL is not here. Mend: install it, or set VEDETTE_PG_BIN",
            file=sys.stderr,
        )
        return 3
    kept = Kept(options.folder, options.seed, fresh=options.fresh)
    left = [trial for trial in range(options.trials) if trial not in kept.results]
    print(
        f"{described()}\nseed {kept.seed}, {options.trials} trials, {len(left)} to play", flush=True
    )
    testbed, played = None, 0
    try:
        for trial in left:
            if played % TRIALS_EACH == 0:
                if testbed is not None:
                    testbed.broker.stop()
                testbed = Testbed(server)
            played += 1
            assert testbed is not None
            result = play(testbed, trial, kept.seed)
            kept.add(result)
            state = "wrong" if result.wrong else "right"
            print(f"{trial + 1:>4} of {options.trials}  {state}  {result.seconds:5.1f} s  "
                  f"{result.kind}  {result.seen}", flush=True)  # fmt: skip
            for what in result.wrong:
                print(f"        {what}", flush=True)
    except InstallationError as error:
        print(f"kafka-faults: {error}", file=sys.stderr)
        return 3
    except KeyboardInterrupt:
        print("\nbroken off; a further run goes on from here", flush=True)
        return 130
    finally:
        if testbed is not None:
            testbed.broker.stop()
    results = [one for number, one in sorted(kept.results.items()) if number < options.trials]
    print(summary(results))
    return 1 if any(one.wrong for one in results) else 0


if __name__ == "__main__":
    sys.exit(main())

"""`python -m tests.bench.peers`: the line beside its peers, in one run on one machine.

The same three steps and the same effect target for everybody; each system at every concurrency of
the sweep, each in a process of its own; a peer then for half a minute at its best. The best is
compared. A `lean` peer makes a durable step of the effect alone. Like beside like comes first.
Ours, with agents' code in processes of its own, does more per event: a judge with state, the
shipped rules decided and recorded for every action, a ledger with proofs.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import math
import os
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path

from tests.bench.calibrate import Calibration, calibrate
from tests.bench.databases import Database, find_server, fresh
from tests.bench.machine import described
from tests.bench.peers.environment import python, versions
from tests.bench.peers.rounds import (
    HEAD,
    PEERS,
    Peer,
    Round,
    best,
    line_round,
    mean,
    peer_round,
)
from tests.bench.verdict import Verdict, print_verdicts

PEER_SWEEP = (1, 16, 64)
# Beyond the sweep a peer's concurrency is doubled for as long as that makes it faster.
PEER_MOST = 256
LINE_SWEEP = (1, 16, 64, 256, 1024, 2048)
OURS = ("vedette on PostgreSQL", "vedette on SQLite")
# The promises: how many times as many durable events a second, SQLite under ours.
BARS = {
    "DBOS on PostgreSQL": 30.0,
    "LangGraph SQLite, sync": 30.0,
    "DBOS on PostgreSQL, lean": 12.0,
    "LangGraph SQLite, lean": 12.0,
}
# For how long a peer is measured at its best.
LONG_S = 30


class Bench:
    """One run of everything; prints as it goes and keeps the rounds."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.options = options
        self.rounds: list[Round] = []
        self.raw: list[Calibration] = []
        self.interpreter = python()

    def say(self, text: str = "") -> None:
        """Print now: a run takes minutes."""
        print(text, flush=True)

    def calibration(self) -> None:
        """Measure the raw group commit again, and say how busy the machine is."""
        with tempfile.TemporaryDirectory(prefix="vedette-bench-") as folder:
            self.raw.append(asyncio.run(calibrate(Path(folder))))
        self.say(f"{self.raw[-1].line()}; load {os.getloadavg()[0]:.1f}")

    def keep(self, found: Round) -> Round:
        """Print and keep a round."""
        self.say(found.row())
        self.rounds.append(found)
        return found

    @contextmanager
    def database(self, wanted: bool) -> Iterator[Database | None]:
        """Give a round a database of its own on the run's one server, if it wants one."""
        if not wanted:
            yield None
            return
        server = find_server()
        assert server is not None, "asked for before"
        with fresh(server) as made:
            yield made

    def line(self, postgres: bool, at: Round | None = None) -> Round | None:
        """Measure the line over its sweep on a store, or once more as in a round before."""
        questions = [(at.concurrency, at.events)] if at else list(self._line_sweep())
        found = []
        for in_flight, events in questions:
            with self.database(postgres) as database:
                found.append(self.keep(line_round(in_flight, events, database)))
        return best(found)

    def _line_sweep(self) -> Iterator[tuple[int, int]]:
        """Yield what is in flight and how many events: fewer where each waits for its own sync."""
        for in_flight in self.options.line_sweep:
            share = math.sqrt(min(in_flight, 256) / 256)
            yield in_flight, max(100, round(self.options.line_events * share))

    def peer(self, peer: Peer) -> Round | None:
        """Measure a peer over its variants, each at its best concurrency."""
        found: list[Round] = []
        for variant in peer.variants:
            mine = [self._peer(peer, variant, each) for each in self.options.sweep]
            while not self.options.quick and mine[-1] == best(mine):
                further = 2 * mine[-1].concurrency
                if further > PEER_MOST:
                    break
                mine.append(self._peer(peer, variant, further))
            found += mine
        first = best(found)
        if first is None or self.options.quick:
            return first
        events = max(first.events, round(LONG_S * first.events_per_s))
        again = self._peer(peer, first.variant, first.concurrency, events)
        return first if again.wrong else again

    def _peer(self, peer: Peer, variant: str, concurrency: int, events: int = 0) -> Round:
        # Enough for several rounds of all that are in flight.
        events = events or max(self.options.events, 4 * concurrency)
        with self.database(peer.postgres) as database:
            return self.keep(
                peer_round(peer, variant, concurrency, events, self.interpreter, database)
            )

    def beside(self, postgres: bool) -> dict[str, Round | None]:
        """Measure the line and the peers on one kind of store, and the line's best again after.

        The machine may have been busier before or after; the mean of both counts for ours.
        """
        self.say(HEAD)
        ours = OURS[0] if postgres else OURS[1]
        bests = {ours: (first := self.line(postgres))}
        for peer in (each for each in PEERS if each.postgres is postgres):
            bests[peer.name] = self.peer(peer)
        if first is not None:
            repeat = self.line(postgres, first)
            bests[ours] = mean(first, repeat) if repeat is not None else first
        return bests

    def run(self) -> dict[str, Round]:
        """Measure everything; return the best of each system, PostgreSQL first."""
        names = versions(self.interpreter).items()
        peers = ", ".join(f"{name} {version}" for name, version in names)
        self.say(f"{described()}\npeers: {peers}\n")
        self.calibration()
        bests: dict[str, Round | None] = {}
        self.say("\nPostgreSQL beside PostgreSQL: one server, a database for each round")
        if find_server() is None:
            self.say("PostgreSQL is not on this machine")
        else:
            bests |= self.beside(True)
        self.say("\nSQLite beside SQLite")
        bests |= self.beside(False)
        self.say()
        self.calibration()
        return {name: found for name, found in bests.items() if found is not None}


def ratios(bests: dict[str, Round], raw: Sequence[Calibration]) -> str:
    """Return the closing tables: ours against each peer, best against best, like first."""
    lines = []
    for name in OURS:
        ours = bests.get(name)
        if ours is None:
            continue
        lines.append(
            f"{name}, best: {ours.events_per_s:,.0f} events/s ({ours.concurrency} in "
            f"flight), {ours.all_us:,.0f} us CPU/event"
        )
        if name == OURS[1] and raw:
            per_s = sum(each.per_s for each in raw) / len(raw)
            share = 100 * ours.events_per_s / per_s
            lines.append(f"  {share:>8.1f} %  of the raw group commit")
        peers = [each for each in bests if each not in OURS]
        for each in sorted(peers, key=lambda each: ("PostgreSQL" in each) != (name == OURS[0])):
            peer = bests[each]
            faster, cheaper = ours.events_per_s / peer.events_per_s, peer.all_us / ours.all_us
            lines.append(
                f"  {faster:>8.1f} x  {each} ({peer.variant}, {peer.concurrency} in flight, "
                f"{peer.events_per_s:,.0f}/s); CPU {cheaper:,.1f} x less"
            )
    return "\n".join(lines)


def pace(rounds: Sequence[Round]) -> str:
    """Return how steady the machine was over the run."""
    spins = [each.spin_ns for each in rounds]
    return (
        f"a turn of an empty loop took {min(spins):.0f} to {max(spins):.0f} ns over the rounds: "
        f"where that differs much, other work was running, and ratios are as rough"
    )


def verdicts(bests: dict[str, Round]) -> list[Verdict]:
    """Return what was promised of the line on SQLite. What was not measured keeps no promise."""
    ours = bests.get(OURS[1])
    return [
        Verdict(
            f"{OURS[1]} beside {name}", ours.events_per_s / bests[name].events_per_s
            if ours is not None and name in bests else math.nan, bar, "x", least=True,
        )
        for name, bar in BARS.items()
    ]  # fmt: skip


def main(argv: list[str] | None = None) -> int:
    """Print the comparison; 1 if the line's own effects do not add up or a promise is not kept."""
    parser = argparse.ArgumentParser(prog="tests.bench.peers", description=__doc__)
    parser.add_argument("--events", type=int, default=200, help="of a peer, per concurrency")
    parser.add_argument("--line-events", type=int, default=20_000)
    parser.add_argument(
        "--quick", action="store_true",
        help="peers at 16 in flight only, fewer events; no promise is held against it",
    )  # fmt: skip
    parser.add_argument("--json", type=Path, help="write all rounds there as well")
    options = parser.parse_args(argv)
    options.sweep, options.line_sweep = PEER_SWEEP, LINE_SWEEP
    if options.quick:
        options.sweep, options.line_sweep = (16,), (16, 1024)
        options.events, options.line_events = min(options.events, 128), 3000
    bench = Bench(options)
    bests = bench.run()
    print(f"\n{ratios(bests, bench.raw)}\n{pace(bench.rounds)}", flush=True)
    if options.json:
        found = {
            "machine": described(),
            "raw": [asdict(each) for each in bench.raw],
            "rounds": [asdict(each) for each in bench.rounds],
        }
        options.json.write_text(json.dumps(found, indent=2) + "\n", encoding="utf-8")
    failed = any(each.wrong for each in bench.rounds if each.system in OURS)
    if options.quick:
        print("quick: peers at one concurrency, not at their best; no verdict")
        return int(failed)
    return max(print_verdicts(verdicts(bests)), int(failed))


if __name__ == "__main__":
    sys.exit(main())

"""`python -m tests.bench.peers`: the line beside its peers, in one run on one machine.

The same three steps and the same effect target for everybody; each system at every concurrency of
the sweep, each in a process of its own, and the best of each is compared. Like beside like comes
first. Ours does more per event: a judge with state, the shipped rules decided and recorded for
every action, a ledger with proofs.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import sys
import tempfile
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import asdict
from pathlib import Path

import pytest
from tests.bench.calibrate import Calibration, calibrate
from tests.bench.line import STORES
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

PEER_SWEEP = (1, 16, 64)
LINE_SWEEP = (1, 16, 64, 256, 1024, 2048)


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

    def line(self, store: str) -> Round | None:
        """Measure the line over its sweep on a store; None if it cannot run there yet."""
        if store not in STORES:
            self.say(f"vedette on {store}: not yet")
            return None
        found = []
        for in_flight in self.options.line_sweep:
            # One at a time is bound by the sync: a hundredth of the events take as long.
            events = max(100, self.options.line_events * min(in_flight, 256) // 256)
            found.append(self.keep(line_round(in_flight, events, store)))
        return best(found)

    def peer(self, peer: Peer) -> Round | None:
        """Measure a peer over its variants and concurrencies."""
        with ExitStack() as stack:
            url: Callable[[], str] = str
            pid = 0
            if peer.postgres:
                server = _server(stack)
                if server is None:
                    self.say(f"{peer.name}: PostgreSQL is not on this machine")
                    return None
                url, pid = server
            found = [
                self.keep(
                    peer_round(
                        peer, variant, concurrency, self.options.events, self.interpreter,
                        url(), pid,
                    )
                )
                for variant in peer.variants
                for concurrency in self.options.sweep
            ]  # fmt: skip
        return best(found)

    def run(self) -> dict[str, Round]:
        """Measure everything; return the best of each system, ours first."""
        told = ", ".join(
            f"{name} {version}" for name, version in versions(self.interpreter).items()
        )
        self.say(f"{described()}\npeers: {told}\n")
        self.calibration()
        bests: dict[str, Round | None] = {}
        self.say(f"\nPostgreSQL beside PostgreSQL\n{HEAD}")
        bests["vedette on PostgreSQL"] = self.line("postgresql")
        for peer in (each for each in PEERS if each.postgres):
            bests[peer.name] = self.peer(peer)
        self.say(f"\nSQLite beside SQLite\n{HEAD}")
        first = bests["vedette on SQLite"] = self.line("sqlite")
        for peer in (each for each in PEERS if not each.postgres):
            bests[peer.name] = self.peer(peer)
        if first is not None:
            # Once more after the peers, as the machine may have been busier then or before.
            again = self.keep(line_round(first.concurrency, first.events))
            bests["vedette on SQLite"] = mean(first, again)
        self.say()
        self.calibration()
        return {name: found for name, found in bests.items() if found is not None}


def _server(stack: ExitStack) -> tuple[Callable[[], str], int] | None:
    """Start a PostgreSQL server as it is out of the box, with full sync; None without one."""
    from tests.pg import Server, find_bin

    try:
        server = Server(find_bin())
    except (pytest.skip.Exception, pytest.fail.Exception):
        return None
    stack.callback(server.stop)
    return server.fresh, server.pid


def ratios(bests: dict[str, Round], raw: Sequence[Calibration]) -> str:
    """Return the closing table: ours against each peer, best against best."""
    lines = []
    for ours_name in ("vedette on PostgreSQL", "vedette on SQLite"):
        ours = bests.get(ours_name)
        if ours is None:
            continue
        lines.append(
            f"{ours_name}, best: {ours.events_per_s:,.0f} events/s ({ours.concurrency} in "
            f"flight), {ours.all_us:,.0f} us CPU/event"
        )
        if ours_name.endswith("SQLite") and raw:
            per_s = sum(each.per_s for each in raw) / len(raw)
            share = 100 * ours.events_per_s / per_s
            lines.append(f"  {share:>8.1f} %  of the raw group commit")
        for name, peer in bests.items():
            if name.startswith("vedette"):
                continue
            faster, cheaper = ours.events_per_s / peer.events_per_s, peer.all_us / ours.all_us
            lines.append(
                f"  {faster:>8.1f} x  {name} ({peer.variant}, {peer.concurrency} in flight, "
                f"{peer.events_per_s:,.0f}/s); CPU {cheaper:,.0f} x less"
            )
    return "\n".join(lines)


def main(argv: list[str] | None = None) -> int:
    """Print the comparison; 1 if the line's own effects do not add up."""
    parser = argparse.ArgumentParser(prog="tests.bench.peers", description=__doc__)
    parser.add_argument("--events", type=int, default=200, help="of a peer, per concurrency")
    parser.add_argument("--line-events", type=int, default=20_000)
    parser.add_argument("--quick", action="store_true", help="16 in flight only, fewer events")
    parser.add_argument("--json", type=Path, help="write all rounds there as well")
    options = parser.parse_args(argv)
    options.sweep, options.line_sweep = PEER_SWEEP, LINE_SWEEP
    if options.quick:
        options.sweep, options.line_sweep = (16,), (16, 1024)
        options.events, options.line_events = min(options.events, 64), 4000
    bench = Bench(options)
    bests = bench.run()
    print(f"\n{ratios(bests, bench.raw)}")
    if options.json:
        told = {
            "machine": described(),
            "raw": [asdict(each) for each in bench.raw],
            "rounds": [asdict(each) for each in bench.rounds],
        }
        options.json.write_text(json.dumps(told, indent=2) + "\n", encoding="utf-8")
    return 1 if any(each.wrong for each in bench.rounds if "vedette" in each.system) else 0


if __name__ == "__main__":
    sys.exit(main())

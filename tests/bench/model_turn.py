"""`python -m tests.bench.model_turn`: what a model's turn costs outside its provider, in CPU.

A daemon as it is shipped (isolation on, SQLite with full sync), one agent, and for each wire a
strict server of it in this process. Each event takes two turns: the model calls a tool, the effect
is done, the model says that it is done. Counted until all that is durable and in the read model,
by process: the engine, the model's worker, the tools' (hands), the read model's follower. Nothing
of the server is in it, and nothing of what happens once (imports, first connection): events of
before are not counted. With `--against CHECKOUT` the sources of another checkout are measured in
turns with these: A B A B.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import psutil
from tests.bench.machine import described
from tests.bench.spin import empty_turn_ns
from tests.bench.verdict import Verdict, print_verdicts
from tests.model_daemon import DaemonAgent, ModelDaemon, ModelEntry, mark_once
from tests.model_server import KEY, WIRES
from tests.said import ROOT

from vedette.testing.model_server import ModelServer

BAR_MS = 8.0
TURNS = 2  # of an event
WARM = 60
PARTS = ("engine", "model worker", "hands", "follower", "others")


def read_cpu(daemon: ModelDaemon) -> dict[str, float]:
    """Return the CPU seconds of a daemon's processes so far, by what they are for."""
    found = dict.fromkeys(PARTS, 0.0)
    engine = psutil.Process(daemon.pid)
    for process in [engine, *engine.children(recursive=True)]:
        try:
            times, name, words = process.cpu_times(), process.name(), process.cmdline()
        except psutil.Error:
            continue
        if process.pid == engine.pid:
            part = "engine"
        elif name.startswith("model:"):
            part = "model worker"
        elif name.startswith("hands:"):
            part = "hands"
        else:
            part = "follower" if "vedette.app.follower_main" in words else "others"
        found[part] += times.user + times.system
    return found


def measure(wire: Any, events: int, in_flight: int, checkout: Path = ROOT) -> dict[str, float]:
    """Return ms of CPU for a turn by process, with `total` and `spin_ns` (how busy it was).

    Raises AssertionError if an event has not exactly one effect and two calls.
    """
    with (
        ModelServer(mark_once, keys=(KEY,)) as server,
        tempfile.TemporaryDirectory(prefix="vedette-bench-") as made,
    ):
        entries = {"m": ModelEntry(server.url, wire, in_flight)}
        with ModelDaemon(Path(made), entries, [DaemonAgent("worker", "m")], checkout) as daemon:
            _put(daemon, "warm", WARM, WARM)
            before, asked = read_cpu(daemon), len(server.exchanges)
            spin = empty_turn_ns()
            _put(daemon, "event", events, WARM + events)
            after = read_cpu(daemon)
            calls = len(server.exchanges) - asked
            assert calls == TURNS * events, f"{calls} calls for {events} events"
            assert len(daemon.effects) == WARM + events
    turns = TURNS * events
    by_part = {part: 1000 * (after[part] - before[part]) / turns for part in PARTS}
    return {**by_part, "total": sum(by_part.values()), "spin_ns": spin}


def _put(daemon: ModelDaemon, name: str, count: int, in_all: int) -> None:
    """Have so many events handled to their ends, second turns and read model included."""
    ids = [f"{name}{number}" for number in range(count)]
    for at in range(0, count, 100):
        daemon.send("worker", ids[at : at + 100], text="word " * 200)
    daemon.wait_for_effects(ids, 30 + count)
    runs = daemon.wait_for_ends(60)["agents"]["worker"]["runs"]
    assert runs == {"done": in_all}, runs


def _row(name: str, runs: Sequence[Mapping[str, float]]) -> str:
    median = {key: statistics.median(run[key] for run in runs) for key in runs[0]}
    parts = "".join(f"{median[part]:>14.2f}" for part in (*PARTS, "total"))
    return f"{name:<24}{parts}{median['spin_ns']:>9.0f}"


def main(argv: list[str] | None = None) -> int:
    """Print a table in ms of CPU for a turn; 1 if a wire's is above the bar."""
    parser = argparse.ArgumentParser(prog="tests.bench.model_turn", description=__doc__)
    parser.add_argument("--events", type=int, default=300, help="of two turns each")
    parser.add_argument("--in-flight", type=int, default=8)
    parser.add_argument("--wire", choices=WIRES, action="append", help="only these")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--against", type=Path, help="another checkout, in turns")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args(argv)
    checkouts = {"there": options.against.resolve()} if options.against else {}
    checkouts["here"] = ROOT
    print(f"{described()}; {options.events} events of two turns, {options.in_flight} in flight, "
          f"medians of {options.rounds}; ms of CPU for a turn", flush=True)  # fmt: skip
    print(f"{'wire':<24}" + "".join(f"{part:>14}" for part in (*PARTS, "total")) + "  spin ns")
    kept: dict[str, dict[str, list[dict[str, float]]]] = {}
    verdicts = []
    for wire in options.wire or WIRES:
        runs = kept[wire] = {name: [] for name in checkouts}
        for _ in range(options.rounds):
            for name, checkout in checkouts.items():
                runs[name].append(measure(wire, options.events, options.in_flight, checkout))
        for name, found in runs.items():
            print(_row(wire if name == "here" else f"{wire}, the other", found), flush=True)
        total = statistics.median(run["total"] for run in runs["here"])
        verdicts.append(Verdict(f"{wire}: CPU of a turn", total, BAR_MS, "ms"))
    if options.json:
        options.json.write_text(json.dumps(kept))
    return print_verdicts(verdicts)


if __name__ == "__main__":
    sys.exit(main())

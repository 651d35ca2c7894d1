"""One measurement each, in a process of its own: of a peer, or of the line."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from tests.bench.databases import Database
from tests.bench.spin import empty_turn_ns
from tests.said import ROOT

TIMEOUT_S = 600


@dataclass(frozen=True, slots=True)
class Peer:
    """One system as it is compared: `module` drives it, in one of `variants`."""

    name: str
    module: str
    variants: tuple[str, ...]
    postgres: bool = False


PEERS = (
    Peer("DBOS on PostgreSQL", "run_dbos", ("threads", "tasks"), postgres=True),
    Peer("DBOS on PostgreSQL, lean", "run_dbos", ("threads-lean", "tasks-lean"), postgres=True),
    Peer("DBOS on SQLite", "run_dbos", ("threads", "tasks", "threads-wal", "tasks-wal")),
    Peer("LangGraph SQLite, sync", "run_langgraph", ("sync", "sync-threads")),
    Peer("LangGraph SQLite, lean", "run_langgraph", ("sync-lean", "sync-threads-lean")),
    Peer("LangGraph SQLite, exit", "run_langgraph", ("exit", "exit-threads")),
    Peer("ADK Runner on SQLite", "run_adk", ("sqlite", "database")),
)


@dataclass(frozen=True, slots=True)
class Round:
    """What one measurement came to. CPU is of the system's own processes, µs per event.

    `server_us` is what the database server spent beside it. `wrong` says why the numbers do not
    count: an effect is missing or repeated, or the driver broke off. `spin_ns` says how busy the
    machine was with other work: what a turn of an empty loop took just before.
    """

    system: str
    variant: str
    concurrency: int
    events: int = 0
    events_per_s: float = 0.0
    cpu_us: float = 0.0
    server_us: float = 0.0
    p50_ms: float = 0.0
    p99_ms: float = 0.0
    effects: int = 0
    wrong: str = ""
    spin_ns: float = 0.0

    @property
    def all_us(self) -> float:
        """Return the CPU per event of all processes, the database server's included."""
        return self.cpu_us + self.server_us

    def row(self) -> str:
        """Return one row of the table."""
        start = f"{self.system:<24}{self.variant:<14}{self.concurrency:>6}"
        if self.wrong:
            return f"{start}   {self.wrong}"
        server = f"{self.server_us:>9,.0f}" if self.server_us else f"{'-':>9}"
        return (
            f"{start}{self.events_per_s:>12,.1f}{self.cpu_us:>11,.0f}{server}"
            f"{self.p50_ms:>11,.1f}{self.p99_ms:>11,.1f}{self.effects:>9,}{self.spin_ns:>9.0f}"
        )


HEAD = (
    f"{'system':<24}{'variant':<14}{'flight':>6}{'events/s':>12}{'CPU us/ev':>11}"
    f"{'server':>9}{'p50 ms':>11}{'p99 ms':>11}{'effects':>9}{'spin ns':>9}"
)


def peer_round(
    peer: Peer,
    variant: str,
    concurrency: int,
    events: int,
    interpreter: Path,
    database: Database | None = None,
) -> Round:
    """Measure a peer once; without a `database` it keeps its state in a file."""
    with tempfile.TemporaryDirectory(prefix="vedette-peer-", ignore_cleanup_errors=True) as folder:
        command = [
            str(interpreter), "-m", f"tests.bench.peers.{peer.module}", "--folder", folder,
            "--variant", variant, "--concurrency", str(concurrency), "--events", str(events),
            *database_options(database),
        ]  # fmt: skip
        return _measured(peer.name, variant, concurrency, events, command)


def line_round(in_flight: int, events: int, database: Database | None = None) -> Round:
    """Measure the line once; without a `database` on SQLite."""
    store = "postgresql" if database else "sqlite"
    command = [
        sys.executable, "-m", "tests.bench.line", "--json", "--no-raw", "--store", store,
        "--events", str(events), "--in-flight", str(in_flight),
        "--batch", str(max(1, min(256, in_flight // 8))), *database_options(database),
    ]  # fmt: skip
    name = f"vedette on {'PostgreSQL' if database else 'SQLite'}"
    return _measured(name, "line", in_flight, events, command)


def database_options(database: Database | None) -> list[str]:
    """Return the options by which a driver is told of its database; none without one."""
    return ["--url", database.url, "--server", str(database.server)] if database else []


def _measured(
    name: str, variant: str, concurrency: int, events: int, command: Sequence[str]
) -> Round:
    spin = empty_turn_ns()
    try:
        figures = run_driver(command)
    except RuntimeError as error:
        return Round(name, variant, concurrency, events, wrong=str(error), spin_ns=spin)
    return replace(_round(name, variant, concurrency, {"events": events, **figures}), spin_ns=spin)


def _round(name: str, variant: str, concurrency: int, figures: Mapping[str, Any]) -> Round:
    events = figures["events"]
    missing, repeated = events - figures["effects"], figures["repeated"]
    wrong = f"{missing} effects missing, {repeated} repeated" if missing or repeated else ""
    return Round(
        name, variant, concurrency, events, figures["events_per_s"], figures["cpu_us"],
        figures.get("server_us", 0.0), figures["p50_ms"], figures["p99_ms"], figures["effects"],
        wrong,
    )  # fmt: skip


def run_driver(command: Sequence[str], folder: Path = ROOT) -> dict[str, Any]:
    """Run a driver in a checkout and return its JSON line.

    Raises RuntimeError with the end of what it said.
    """
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=TIMEOUT_S, check=False, cwd=folder
        )
    except subprocess.TimeoutExpired:
        raise RuntimeError(f"not done within {TIMEOUT_S} s") from None
    lines = [line for line in done.stdout.splitlines() if line.startswith("{")]
    if done.returncode or not lines:
        said = (done.stderr or done.stdout).strip().splitlines()
        raise RuntimeError(f"failed ({done.returncode}): {said[-1] if said else 'no word'}"[:200])
    document: dict[str, Any] = json.loads(lines[-1])
    return document


def best(rounds: Sequence[Round]) -> Round | None:
    """Return the fastest round that counts."""
    counted = [each for each in rounds if not each.wrong]
    return max(counted, key=lambda each: each.events_per_s, default=None)


def mean(one: Round, other: Round) -> Round:
    """Return the mean of two rounds of the same kind; the one that counts if the other does not."""
    if one.wrong or other.wrong:
        return one if other.wrong else other
    return replace(
        one,
        events_per_s=(one.events_per_s + other.events_per_s) / 2,
        cpu_us=(one.cpu_us + other.cpu_us) / 2,
        server_us=(one.server_us + other.server_us) / 2,
        p50_ms=(one.p50_ms + other.p50_ms) / 2,
        p99_ms=(one.p99_ms + other.p99_ms) / 2,
    )

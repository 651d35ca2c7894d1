"""`make bench-line ARGS=--matrix`: what an event costs, by load, isolation and store.

Each cell is a run of `tests.bench.line` in a process of its own. CPU is that of all processes (the
engine, the agents' workers, the database server) until every run is done, durable and in the tables
that people read. With `--against CHECKOUT` (a checkout with its own .venv that knows `--kind`) each
cell is measured there too, in turns: A B A B.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

from tests.bench.bench_fleet import KINDS
from tests.bench.databases import Database, find_server, fresh
from tests.bench.peers.rounds import database_options, run_driver
from tests.said import ROOT


@dataclass(frozen=True, slots=True)
class Cell:
    """One cell of the matrix."""

    kind: str
    isolated: bool
    store: str

    @property
    def name(self) -> str:
        """Return it in words."""
        return f"{self.kind}, {'isolated' if self.isolated else 'in process'}, {self.store}"


def make_cells(only: str = "") -> list[Cell]:
    """Return the cells whose name has all words of `only`, SQLite first."""
    cells = [
        Cell(kind, isolated, store)
        for store in ("sqlite", "postgresql")
        for kind in KINDS
        for isolated in (True, False)
    ]
    return [cell for cell in cells if all(word in cell.name for word in only.split())]


def measure_cell(cell: Cell, events: int, checkout: Path = ROOT) -> dict[str, Any]:
    """Run a cell in a checkout; return the figures of `tests.bench.line --json`.

    Raises RuntimeError with the end of what it said.
    """
    if cell.store == "sqlite":
        return _run_line(cell, events, checkout)
    server = find_server()
    if server is None:
        raise RuntimeError("PostgreSQL is not here: install it, or set VEDETTE_PG_BIN")
    with fresh(server) as database:
        return _run_line(cell, events, checkout, database)


def _run_line(
    cell: Cell, events: int, checkout: Path, database: Database | None = None
) -> dict[str, Any]:
    python = sys.executable if checkout == ROOT else str(checkout / ".venv" / "bin" / "python")
    command = [
        python, "-m", "tests.bench.line", "--json", "--no-raw", "--kind", cell.kind,
        "--store", cell.store, "--events", str(events),
        *([] if cell.isolated else ["--in-process"]), *database_options(database),
    ]  # fmt: skip
    try:
        return run_driver(command, checkout)
    except RuntimeError as error:
        raise RuntimeError(f"{cell.name}: {error}") from None


HEAD = (
    f"{'load, isolation, store':<34}{'us CPU/event':>14}{'server':>9}{'events/s':>10}"
    f"{'entries':>9}{'spin ns':>9}"
)


def format_row(name: str, runs: Sequence[dict[str, Any]]) -> str:
    """Return the row of a cell's runs: the means."""
    mean = {
        key: fmean(run[key] for run in runs)
        for key in ("cpu_us", "server_us", "events_per_s", "entries_per_event", "spin_ns")
    }
    total = mean["cpu_us"] + mean["server_us"]
    return (
        f"{name:<34}{total:>14,.0f}{mean['server_us']:>9,.0f}{mean['events_per_s']:>10,.0f}"
        f"{mean['entries_per_event']:>9.1f}{mean['spin_ns']:>9.0f}"
    )


def run_matrix(
    events: int, rounds: int, only: str = "", against: Path | None = None
) -> Iterator[str]:
    """Yield the lines of the table as they are measured. Raises RuntimeError as `measure_cell`."""
    yield HEAD
    for cell in make_cells(only):
        here: list[dict[str, Any]] = []
        there: list[dict[str, Any]] = []
        for _ in range(rounds):
            if against is not None:
                there.append(measure_cell(cell, events, against))
            here.append(measure_cell(cell, events))
        yield format_row(cell.name, here)
        if there:
            yield format_row("  the other checkout", there)
            costs = [
                fmean(run["cpu_us"] + run["server_us"] for run in runs) for runs in (there, here)
            ]
            yield f"  the other costs {costs[0] / costs[1]:.2f} times as much"

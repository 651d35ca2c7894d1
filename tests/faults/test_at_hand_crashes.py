"""kill -9 at crash points while rows are taken in, and while an HTTP tool calls: each once."""

from __future__ import annotations

import asyncio
import contextlib
import json
import sqlite3
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from vedette.adapters.sql import source as module
from vedette.adapters.sql.config import SqlFile
from vedette.adapters.sql.source import SqlSource
from vedette.adapters.sql.sqlite import create_file
from vedette.engine.calls_in_flight import MARGIN_US
from vedette.testing.clock import ManualClock
from vedette.testing.faults import run_in_child
from vedette.testing.harness import FleetHarness, remove_tests
from vedette.testing.toy_fleet import World, job, send_proposal, toy_fleet, wait_until

pytestmark = pytest.mark.forks

ROWS = 7
TIMEOUT_US = 30_000_000  # of `wire.send`


@pytest.fixture(scope="module", autouse=True)
def warm(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Load here what every child would load again; the policy is compiled once."""

    async def play(folder: Path) -> None:
        async with toy_fleet(folder, World()):
            pass

    asyncio.run(play(tmp_path_factory.mktemp("warm")))


def board(folder: Path) -> SqlFile:
    """Return the plan of a table of SQLite, made with its rows."""
    path = folder / "board.db"
    with contextlib.closing(sqlite3.connect(path)) as file, file:
        file.execute("CREATE TABLE comment (id TEXT PRIMARY KEY, seq INTEGER)")
        rows = [(f"c{number}", number) for number in range(ROWS)]
        file.executemany("INSERT INTO comment VALUES (?, ?)", rows)
    return SqlFile(
        name="board", table="comment", type="worker.job", id_column="id", order_column="seq",
        path=str(path),
    )  # fmt: skip


def replay_case(
    folder: Path,
    targets: dict[str, dict[str, object]] | None = None,
    clock: ManualClock | None = None,
) -> FleetHarness:
    """Return the fleet that `toy_fleet` laid down in a folder, not opened."""
    return FleetHarness(
        folder, content=folder / "content", policies=folder / "policies",
        targets=targets or {"world": {"kind": "world", "world": World()}}, clock=clock,
    )  # fmt: skip


async def _take_in(folder: Path, plan: SqlFile) -> None:
    async with replay_case(folder) as fleet:
        await SqlSource(plan, ManualClock(), watch=False).deliver(fleet.app.intake)
        await fleet.wait_until_idle()
        accepted = Counter(entry["event"] for entry in fleet.entries("event.accepted"))
        runs = fleet.app.store.tables.counts().get("worker", {})
        fields = {"accepted": sorted(accepted.values()), "runs": runs.get("run.done", 0)}
    (folder / "told.json").write_text(json.dumps(fields))


def test_rows_are_taken_in_once_wherever_it_is_killed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "PAGE", 3)
    whole = _lay(tmp_path / "whole")
    plain = run_in_child(lambda: asyncio.run(_take_in(*whole)))
    assert not plain.error
    assert "commit:before" in plain.points
    for die_at in (plain.passes * part // 6 for part in (1, 3, 5)):
        folder, plan = _lay(tmp_path / f"at{die_at}")

        def work(folder: Path = folder, plan: SqlFile = plan) -> None:
            asyncio.run(_take_in(folder, plan))

        killed = run_in_child(work, die_at=die_at)
        assert killed.killed, killed.error
        assert not run_in_child(work).error
        text = json.loads((folder / "told.json").read_text())
        assert text == {"accepted": [1] * ROWS, "runs": ROWS}, (die_at, killed.last_point)


def _lay(folder: Path) -> tuple[Path, SqlFile]:
    toy_fleet(folder, World())
    return folder, board(folder)


@pytest.mark.parametrize("point", ["sql.create:before", "sql.create:after"])
def test_a_file_is_made_whole_or_not_at_all(tmp_path: Path, point: str) -> None:
    script, path = tmp_path / "board.sql", tmp_path / "state" / "board.db"
    script.write_text("CREATE TABLE comment (id); INSERT INTO comment VALUES (1);")
    killed = run_in_child(lambda: create_file(path, script, "sql:board"), die_at=point)
    assert killed.killed, killed.error
    assert path.exists() == (point == "sql.create:after")
    create_file(path, script, "sql:board")
    with contextlib.closing(sqlite3.connect(path)) as file:
        assert file.execute("SELECT count(*) FROM comment").fetchone() == (1,)


# --- an HTTP tool --------------------------------------------------------------------------------

# Keeps what happened by key in a file, so that it outlives everybody.
SERVER = """
import sys
from http.server import BaseHTTPRequestHandler, HTTPServer
record = sys.argv[1]
class Handler(BaseHTTPRequestHandler):
    def do_POST(self):
        self.rfile.read(int(self.headers["Content-Length"]))
        key = self.headers.get("Idempotency-Key", "none")
        with open(record, "r+") as file:
            if key not in file.read().split():
                print(self.path, key, file=file)
        self.send_response(201); self.end_headers()
    def do_GET(self):
        known = open(record).read().split()
        self.send_response(200 if self.path.rpartition("=")[2] in known else 404)
        self.end_headers()
    def log_message(self, *args):
        pass
server = HTTPServer(("127.0.0.1", 0), Handler)
print(server.server_address[1], flush=True)
server.serve_forever()
"""


@pytest.fixture
def shop(tmp_path: Path) -> Iterator[tuple[int, Path]]:
    record = tmp_path / "record"
    record.touch()
    with subprocess.Popen(
        [sys.executable, "-c", SERVER, str(record)], stdout=subprocess.PIPE, text=True
    ) as server:
        assert server.stdout is not None
        yield int(server.stdout.readline()), record
        server.kill()


async def _order(folder: Path, port: int) -> None:
    shop: dict[str, object] = {
        "kind": "http", "base_url": f"http://127.0.0.1:{port}", "private": True,
    }  # fmt: skip
    clock = ManualClock()
    targets: dict[str, dict[str, object]] = {"shop": shop, "world": {"kind": "world"}}
    async with replay_case(folder, targets, clock) as fleet:
        event = job("1", send_proposal("fair winds"))
        await fleet.send(event)
        await fleet.wait_until_idle()
        (row,) = fleet.actions(event)
        (folder / "told").write_text(str(row.effect))
        # What came of a call that is out is not asked before its time is over.
        clock.advance(TIMEOUT_US + MARGIN_US)
        await wait_until(lambda: fleet.actions(event)[0].effect == "done")


@pytest.mark.parametrize("settles", ["idempotent", "queryable"])
@pytest.mark.parametrize("point", ["call:before", "call:after"])
def test_a_call_that_is_killed_is_one_effect(
    tmp_path: Path, shop: tuple[int, Path], settles: str, point: str
) -> None:
    folder, (port, record) = tmp_path / "fleet", shop
    toy_fleet(folder, World())
    remove_tests(folder / "policies")
    path = folder / "content" / "agents" / "worker" / "agent.yaml"
    http = (
        "http: {url: '/items/{to}', body: {text: '{text}'}, "
        "idempotency_header: Idempotency-Key, query: {url: '/items?key={@key}'}}"
    )
    old = "settles: idempotent, function: act, target: world, attempts: 3,"
    new = f"settles: {settles}, {http}, target: shop, attempts: 3,"
    assert path.read_text().count(old) == 1
    path.write_text(path.read_text().replace(old, new))
    killed = run_in_child(lambda: asyncio.run(_order(folder, port)), die_at=point)
    assert killed.killed, killed.error
    happened = len(record.read_text().splitlines())
    assert happened == (1 if point == "call:after" else 0)
    ended = run_in_child(lambda: asyncio.run(_order(folder, port)))
    assert not ended.error
    waits = settles == "queryable"
    assert (folder / "told").read_text() == ("started" if waits else "done")
    assert len(record.read_text().splitlines()) == 1

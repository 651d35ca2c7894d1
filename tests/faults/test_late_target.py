"""kill -9 in a call that its target does late, within the tool's time: it is done once.

Real processes and a real server, which goes on with what it was asked whatever becomes of who
asked. The restart comes at once, long before the target has done it.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from vedette.testing.toy_fleet import World, toy_fleet

CHILD = Path(__file__).parent / "late_child.py"
TIMEOUT_S, LATE_S = 2.0, 1.6
HTTP: dict[str, Any] = {
    "url": "/items/{to}",
    "query": {"url": "/items?key={@key}", "where": {"/key": "{@key}"}},
    "idempotency_header": "Idempotency-Key",
}


@dataclass
class Shop:
    """What the target was asked, and when it did what, by its own clock."""

    port: int = 0
    calls: list[tuple[str, float]] = field(default_factory=list)
    done: list[tuple[str, float]] = field(default_factory=list)
    asked: list[tuple[str, float]] = field(default_factory=list)


@pytest.fixture
def shop() -> Iterator[Shop]:
    found = Shop()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            self.rfile.read(int(self.headers.get("Content-Length", 0)))
            key = self.headers["Idempotency-Key"]
            found.calls.append((key, time.monotonic()))
            time.sleep(LATE_S)
            found.done.append((key, time.monotonic()))
            self.tell(201, {"key": key})

        def do_GET(self) -> None:
            key = self.path.rpartition("=")[2]
            found.asked.append((key, time.monotonic()))
            there = any(known == key for known, _ in found.done)
            self.tell(200 if there else 404, {"key": key})

        def tell(self, status: int, body: dict[str, str]) -> None:
            raw = json.dumps(body).encode()
            try:
                self.send_response(status)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(raw)))
                self.end_headers()
                self.wfile.write(raw)
            except OSError:
                pass  # who asked was killed

        def log_message(self, format: str, *args: Any) -> None:
            """Say nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    found.port = server.server_address[1]
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield found
    server.shutdown()
    thread.join()
    server.server_close()


def start_fleet(folder: Path, shop: Shop) -> subprocess.Popen[bytes]:
    return subprocess.Popen([sys.executable, str(CHILD), str(folder), str(shop.port)])


def test_a_call_in_flight_at_kill_9_is_done_once(tmp_path: Path, shop: Shop) -> None:
    fleet = toy_fleet(tmp_path, World())
    yaml = fleet.content / "agents" / "worker" / "agent.yaml"
    old = (
        "settles: queryable, function: act, query: ask, target: world, attempts: 3,\n"
        "     timeout: 30s"
    )
    text = yaml.read_text()
    assert text.count(old) == 1
    http = json.dumps(HTTP)
    mine = f"settles: queryable, http: {http}, target: shop, timeout: {TIMEOUT_S:.0f}s"
    yaml.write_text(text.replace(old, mine))
    first = start_fleet(tmp_path, shop)
    try:
        end = time.monotonic() + 60
        while not shop.calls:
            assert time.monotonic() < end, "it was never called"
            time.sleep(0.002)
    finally:
        os.kill(first.pid, signal.SIGKILL)
        first.wait()
    second = start_fleet(tmp_path, shop)
    try:
        assert second.wait(60) == 0
    finally:
        second.kill()
        second.wait()
    ((key, called),) = shop.calls
    assert [known for known, _ in shop.done] == [key]
    assert shop.asked
    assert shop.asked[0][1] - called >= TIMEOUT_S

"""A tiny webhook target that keeps its own record: what an auditor of the fleet reads.

    python samples/receiver/receiver.py --port 8099 --record receiver.jsonl

POST /hook with an Idempotency-Key is recorded on disk before it is answered; a repeated key answers
200 {"duplicate": true} and counts as no second effect, also after a restart on the same record.
GET /record answers every call as a JSON list, GET /counts the totals. Standard library only.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, BinaryIO

BODY_BYTES = 1_000_000


class Record:
    """Every call in the order of arrival, as JSON lines. One per file; safe across threads."""

    def __init__(self, path: Path | None, *, fail_every: int = 0, lose_every: int = 0) -> None:
        self.fail_every = fail_every
        self.lose_every = lose_every
        self.calls: list[dict[str, Any]] = []
        self._ids: dict[str, str] = {}
        self._seen: set[str] = set()
        self._lock = threading.Lock()
        self._file: BinaryIO | None = None
        if path is not None:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._read(path)
            # What is told to a person may be anybody's content: its owner alone reads it.
            opened = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
            self._file = os.fdopen(opened, "ab")

    def _read(self, path: Path) -> None:
        if not path.exists():
            return
        raw = path.read_bytes()
        whole = raw[: raw.rfind(b"\n") + 1]
        if len(whole) < len(raw):
            # A kill within a write left half a line; its call was never answered.
            os.truncate(path, len(whole))
        for line in whole.splitlines():
            self._note(json.loads(line))

    def _note(self, call: dict[str, Any]) -> None:
        self.calls.append(call)
        self._seen.add(call["key"])
        if call["effect"]:
            self._ids[call["key"]] = call["id"]

    def take(self, key: str, body: Any, headers: dict[str, str]) -> dict[str, Any]:
        """Record one call durably and return what was recorded, the answer's status with it."""
        with self._lock:
            number = len(self.calls) + 1
            known = self._ids.get(key)
            fails = self.fail_every > 0 and number % self.fail_every == 0
            loses = self.lose_every > 0 and number % self.lose_every == 0
            effect = known is None and not fails
            call = {
                "n": number,
                "key": key,
                "id": known or f"msg-{number}",
                "first": key not in self._seen,
                "effect": effect,
                "duplicate": known is not None,
                "status": 503 if fails else 0 if loses else 200,
                "lineage": headers.get("vedettelineage", ""),
                "body": body,
            }
            self._append(call)
            self._note(call)
            return call

    def _append(self, call: dict[str, Any]) -> None:
        if self._file is None:
            return
        self._file.write(json.dumps(call, sort_keys=True).encode() + b"\n")
        self._file.flush()
        os.fsync(self._file.fileno())

    def counts(self) -> dict[str, int]:
        """Return how many calls came and how many effects and duplicates they were."""
        with self._lock:
            return {
                "calls": len(self.calls),
                "effects": sum(call["effect"] for call in self.calls),
                "duplicates": sum(call["duplicate"] for call in self.calls),
            }

    def all(self) -> list[dict[str, Any]]:
        """Return every recorded call."""
        with self._lock:
            return list(self.calls)

    def close(self) -> None:
        """Close the file."""
        if self._file is not None:
            self._file.close()


class Server(ThreadingHTTPServer):
    """The target: a thread per connection, one record."""

    daemon_threads = True
    # A fleet that drains a queue opens many connections at once; the default of 5 refuses them.
    request_queue_size = 128

    def __init__(self, host: str, port: int, record: Record, delay_s: float = 0.0) -> None:
        self.record = record
        self.delay_s = delay_s
        super().__init__((host, port), Handler)


class Handler(BaseHTTPRequestHandler):
    """POST /hook, GET /record, GET /counts."""

    server: Server
    protocol_version = "HTTP/1.1"
    timeout = 30

    def do_POST(self) -> None:
        if self.path.partition("?")[0] != "/hook":
            self.close_connection = True
            self._answer(404, {"error": "there is only POST /hook"})
            return
        length = self.headers.get("Content-Length", "")
        if not length.isdigit() or int(length) > BODY_BYTES:
            self.close_connection = True
            self._answer(413 if length.isdigit() else 411, {"error": "send a length up to 1 MB"})
            return
        raw = self.rfile.read(int(length))
        key = self.headers.get("Idempotency-Key", "").strip()
        try:
            body = json.loads(raw)
        except ValueError:
            self._answer(400, {"error": "the body is not JSON"})
            return
        if not key:
            self._answer(400, {"error": "send an Idempotency-Key"})
            return
        if self.server.delay_s:
            time.sleep(self.server.delay_s)
        call = self.server.record.take(key, body, {k.lower(): v for k, v in self.headers.items()})
        if call["status"] == 0:
            # The answer is lost, the effect is not: what an unknown outcome is made of.
            self.close_connection = True
            return
        if call["status"] == 503:
            self._answer(503, {"error": "unavailable, as asked for by --fail-every"})
            return
        self._answer(200, {"id": call["id"], "duplicate": call["duplicate"]})

    def do_GET(self) -> None:
        path = self.path.partition("?")[0]
        if path == "/record":
            self._answer(200, self.server.record.all())
        elif path == "/counts":
            self._answer(200, self.server.record.counts())
        else:
            self._answer(404, {"error": "there is GET /record and GET /counts"})

    def _answer(self, status: int, value: Any) -> None:
        raw = json.dumps(value).encode()
        try:
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(raw)))
            self.end_headers()
            self.wfile.write(raw)
        except OSError:
            # The caller did not wait; what it asked for is on record.
            self.close_connection = True

    def log_message(self, format: str, *args: Any) -> None:
        """Say nothing: the record is the log."""


def main(arguments: list[str] | None = None) -> int:
    """Serve until interrupted. Port 0 takes a free one; the first line printed names it."""
    parser = argparse.ArgumentParser(description="A webhook target that keeps its own record.")
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=0)
    parser.add_argument("--record", type=Path, help="append every call to this JSON lines file")
    parser.add_argument("--fail-every", type=int, default=0, metavar="N", help="503, no effect")
    parser.add_argument("--lose-every", type=int, default=0, metavar="N", help="effect, no answer")
    parser.add_argument("--delay-ms", type=int, default=0, help="wait before recording")
    given = parser.parse_args(arguments)
    record = Record(given.record, fail_every=given.fail_every, lose_every=given.lose_every)
    try:
        server = Server(given.host, given.port, record, given.delay_ms / 1000)
    except OSError as error:
        print(f"receiver: cannot listen on {given.host}:{given.port}: {error}", file=sys.stderr)
        return 3
    print(f"receiver listens on port {server.server_address[1]}", flush=True)
    try:
        server.serve_forever(poll_interval=0.1)
    except KeyboardInterrupt:
        pass
    finally:
        server.server_close()
        record.close()
    return 0


if __name__ == "__main__":
    raise SystemExit(main())

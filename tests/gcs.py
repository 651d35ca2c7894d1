"""Google Cloud Storage in little, over HTTP: objects with generations, and their preconditions.

What the JSON API documents of `objects.get?alt=media` and `objects.insert` is done honestly: each
insert makes a higher generation, and `ifGenerationMatch` is compared under one lock, so of two
writers one is answered 412. With a `token` who does not show it is refused.
"""

from __future__ import annotations

import json
import socket
import struct
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit


@dataclass(slots=True)
class Stored:
    """One object: its bytes, its generation, and what was said of it when it was put there."""

    raw: bytes
    generation: int
    about: dict[str, Any]


@dataclass(slots=True)
class Gcs:
    """The buckets. `failing` is a status that every request is answered with, 0 for none.

    `losing` is how many inserts are done and not answered: the connection is closed. `breaking` is
    how the content of an object breaks off in its midst: "cut" (the connection is closed), "reset"
    or "stall" (nothing more comes), "" for not.
    """

    buckets: dict[str, dict[str, Stored]] = field(default_factory=dict)
    token: str | None = None
    failing: int = 0
    losing: int = 0
    breaking: str = ""
    url: str = ""
    requests: int = 0
    lock: threading.Lock = field(default_factory=threading.Lock)
    _generation: int = 1_700_000_000_000_000

    def insert(self, bucket: str, name: str, raw: bytes, about: dict[str, Any], match: str) -> int:
        """Put an object, if its generation is `match`; return the status."""
        with self.lock:
            objects = self.buckets.get(bucket)
            if objects is None:
                return 404
            there = objects[name].generation if name in objects else 0
            if match and int(match) != there:
                return 412
            self._generation += 1
            objects[name] = Stored(raw, self._generation, about)
            return 200


@contextmanager
def serving(*buckets: str) -> Iterator[Gcs]:
    """Serve empty buckets on a loopback port until the block ends."""
    gcs = Gcs({name: {} for name in buckets})

    class Handler(_Handler):
        store = gcs

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    gcs.url = f"http://127.0.0.1:{server.server_address[1]}"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    try:
        yield gcs
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


class _Handler(BaseHTTPRequestHandler):
    store: Gcs
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        """Answer `objects.get` with the content."""
        path, query = self._asked()
        if self._refused():
            return
        head, _, name = path.partition("/o/")
        objects = self.store.buckets.get(head.removeprefix("/storage/v1/b/"), {})
        found = objects.get(unquote(name))
        if query.get("alt") != ["media"] or found is None:
            self._answer(404, b'{"error": {"code": 404}}')
            return
        fields = {"x-goog-generation": str(found.generation)}
        if self.store.breaking:
            self._break_off(found.raw, fields)
        else:
            self._answer(200, found.raw, fields)

    def _break_off(self, raw: bytes, headers: dict[str, str]) -> None:
        """Send the half of an answer."""
        self.close_connection = True
        self._head(200, len(raw), headers)
        self.wfile.write(raw[: len(raw) // 2])
        if self.store.breaking == "stall":
            self.connection.settimeout(5)
            with suppress(OSError):
                self.connection.recv(1)  # until the reader has had enough
        elif self.store.breaking == "reset":
            # A close that lingers for no time at all is a reset.
            linger = struct.pack("ii", 1, 0)
            self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
            self.connection.close()

    def do_POST(self) -> None:
        """Answer `objects.insert` with uploadType=multipart."""
        path, query = self._asked()
        body = self.rfile.read(int(self.headers["Content-Length"]))
        if self._refused():
            return
        bucket = path.removeprefix("/upload/storage/v1/b/").removesuffix("/o")
        assert query["uploadType"] == ["multipart"], query
        about, raw = self._parts(body)
        match = query.get("ifGenerationMatch", [""])[0]
        status = self.store.insert(bucket, about["name"], raw, about, match)
        if status == 200 and self.store.losing:
            self.store.losing -= 1
            self.close_connection = True
            return
        self._answer(status, b"{}")

    def _parts(self, body: bytes) -> tuple[dict[str, Any], bytes]:
        """Return the metadata and the content of a multipart/related body (RFC 2387)."""
        kind, _, limit = self.headers["Content-Type"].partition("; boundary=")
        assert kind == "multipart/related", kind
        mark = b"--" + limit.encode()
        assert body.startswith(mark)
        assert body.rstrip().endswith(mark + b"--")
        first, second = body[len(mark) + 2 :].rstrip()[: -len(mark) - 2].split(b"\r\n" + mark, 1)
        headers, content = first.split(b"\r\n\r\n", 1)[1], second.split(b"\r\n\r\n", 1)[1]
        return json.loads(headers), content.removesuffix(b"\r\n")

    def _asked(self) -> tuple[str, dict[str, list[str]]]:
        self.store.requests += 1
        parts = urlsplit(self.path)
        return parts.path, parse_qs(parts.query)

    def _refused(self) -> bool:
        token = self.store.token
        if token is not None and self.headers.get("Authorization") != f"Bearer {token}":
            self._answer(401, b"{}")
            return True
        if self.store.failing:
            self._answer(self.store.failing, b"{}")
            return True
        return False

    def _answer(self, status: int, body: bytes, headers: dict[str, str] | None = None) -> None:
        self._head(status, len(body), headers or {})
        self.wfile.write(body)

    def _head(self, status: int, length: int, headers: dict[str, str]) -> None:
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(length))
        self.end_headers()

    def log_message(self, format: str, *args: Any) -> None:
        """Say nothing."""

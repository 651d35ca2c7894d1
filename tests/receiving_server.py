"""A server that an agent's HTTP tools call, with a record of its own of what happened there."""

from __future__ import annotations

import json
import socket
import threading
from collections import Counter
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Literal

# What becomes of a request, beside 201 with its effect: it happens and no answer comes; or it is
# refused, with a status, and nothing happens.
Fate = Literal["lose"] | int | None


class ReceivingServer:
    """On a free port of 127.0.0.1, while the context lasts.

    Each POST takes effect once a key (`Idempotency-Key`). `fate` may say otherwise: it is asked
    with the body, once a key that is not known yet. `calls` are all that came, by their text.
    """

    def __init__(self, fate: Callable[[Any], Fate] = lambda body: None) -> None:
        self.fate = fate
        self.calls: Counter[str] = Counter()
        self.keys: Counter[str] = Counter()
        self.effects: Counter[str] = Counter()
        self._lock = threading.Lock()
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), self._handler())
        self._thread = threading.Thread(
            target=self._server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True
        )

    @property
    def address(self) -> str:
        """Return where it is."""
        return f"http://127.0.0.1:{self._server.server_address[1]}"

    def __enter__(self) -> ReceivingServer:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()

    def take(self, key: str, body: Any) -> Fate:
        """Take a request; return what becomes of it."""
        text = str(body["text"])
        with self._lock:
            self.calls[text] += 1
            if key and self.keys[key]:
                return None
            fate = self.fate(body)
            if not isinstance(fate, int):
                self.keys[key] += 1
                self.effects[text] += 1
            return fate

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        record = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                raw = self.rfile.read(int(self.headers.get("Content-Length", 0)))
                fate = record.take(self.headers.get("Idempotency-Key", ""), json.loads(raw))
                if fate == "lose":
                    self.connection.shutdown(socket.SHUT_RDWR)
                    return
                self.send_response(fate if isinstance(fate, int) else 201)
                self.send_header("Content-Type", "application/json")
                self.end_headers()
                self.wfile.write(b'{"made": true}')

            def log_message(self, format: str, *args: Any) -> None:
                """Say nothing."""

        return Handler

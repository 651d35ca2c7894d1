"""A server on this machine that speaks as Gemini's does, and misbehaves when an event says so.

The real clients speak to it: they are given its URL where they would be given another endpoint's.
What a request asks for stands in the event of its briefing, as `"do"`.
"""

from __future__ import annotations

import json
import re
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

KEY = "a-key-of-the-model"
_DO = re.compile(r'\\"do\\":\s*\\"(\w+)\\"')
_NUMBER = re.compile(r'\\"number\\":\s*(\d+)')


class ModelServer(ThreadingHTTPServer):
    """The server: `requests` are what it was asked to do, for which number, `keys` what it saw.

    Without a word in the event it makes `call` (function, arguments) once in a run, if it has one.
    """

    daemon_threads = True
    request_queue_size = 256

    def __init__(self, call: tuple[str, dict[str, Any]] | None = None) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.call = call
        self.requests: list[tuple[str, int]] = []
        self.bodies: list[dict[str, Any]] = []
        self.keys: set[str] = set()
        self.hold = threading.Event()

    @property
    def url(self) -> str:
        """Return where it is."""
        return f"http://127.0.0.1:{self.server_address[1]}"

    @property
    def environment(self) -> dict[str, str]:
        """Return the variables by which Gemini's client asks it."""
        return {"GOOGLE_API_KEY": KEY, "GOOGLE_GEMINI_BASE_URL": self.url}

    def count(self, do: str) -> int:
        """Return how often it was asked to do something."""
        return sum(done == do for done, _ in self.requests)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that goes is none."""


class _Handler(BaseHTTPRequestHandler):
    server: ModelServer
    protocol_version = "HTTP/1.1"

    def do_POST(self) -> None:
        text = self.rfile.read(int(self.headers["Content-Length"])).decode()
        found, number = _DO.search(text), _NUMBER.search(text)
        do = found[1] if found else "call" if self.server.call else "answer"
        self.server.requests.append((do, int(number[1]) if number else 0))
        self.server.bodies.append(json.loads(text))
        self.server.keys.add(self.headers.get("x-goog-api-key", ""))
        getattr(self, f"do_{do}", self.do_answer)(text)

    def do_answer(self, text: str) -> None:
        self._say_part({"text": "done"})

    def do_call(self, text: str) -> None:
        told = "functionResponse" in text or "ref:/outcome/" in text
        if told or self.server.call is None:
            self.do_answer(text)
        else:
            self._say_call(*self.server.call)

    def do_slow(self, text: str) -> None:
        time.sleep(0.3)
        self.do_answer(text)

    def do_held(self, text: str) -> None:
        """Answer once the test lets it."""
        self.server.hold.wait(60)
        self.do_answer(text)

    def do_block(self, text: str) -> None:
        """Answer never."""
        threading.Event().wait(600)

    def do_huge(self, text: str) -> None:
        """Answer with 20 MB in one argument of a call."""
        self._say_call("mail_file", {"message": "x" * 20_000_000})

    def do_endless(self, text: str) -> None:
        """Answer without an end, faster than anybody could keep."""
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        block = b"x" * (1 << 20)
        self.wfile.write(b'1\r\n"\r\n')
        with suppress(OSError):
            for _ in range(20_000):
                self.wfile.write(b"%x\r\n%s\r\n" % (len(block), block))
        self.close_connection = True

    def _say_call(self, function: str, args: dict[str, Any]) -> None:
        self._say_part({"functionCall": {"name": function, "args": args}})

    def _say_part(self, part: dict[str, Any]) -> None:
        content = {"role": "model", "parts": [part]}
        usage = {"promptTokenCount": 7, "candidatesTokenCount": 2, "totalTokenCount": 9}
        answer = {"content": content, "finishReason": "STOP"}
        self._say({"candidates": [answer], "usageMetadata": usage})

    def _say(self, document: dict[str, Any]) -> None:
        data = json.dumps(document).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, format: str, *args: Any) -> None:
        """Say nothing."""


@contextmanager
def model_server(call: tuple[str, dict[str, Any]] | None = None) -> Iterator[ModelServer]:
    """Open a server that speaks as Gemini's does."""
    with ModelServer(call) as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        try:
            yield server
        finally:
            server.hold.set()
            server.shutdown()
            thread.join()

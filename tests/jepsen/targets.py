"""The targets: one HTTP server with a record of its own, which fails as it is told.

A call is noted when it arrives, and its effect when it happens. An effect of a key that is known
happens once more, unless the tool is one whose target knows keys. `late` calls do their deed within
the caller's timeout and answer then; a `silent` target never answers, its deed done at once or not
at all: no target does anything after the timeout of a call, which is what the engine relies on.
"""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from urllib.parse import parse_qs, urlsplit

from tests.jepsen.fleet import TIMEOUT_S
from tests.simulation.history import Act

# Status, content type and body; None: the connection is closed without an answer.
Answer = tuple[int, str, bytes] | None
KNOWS_KEYS = ("lamp.set", "big.send", "wire.send", "fax.send")
_PAGE = b"<html><title>Sign in</title><body>Please sign in.</body></html>"


class Targets:
    """What the tools reach. `mode` says how it fails now: a word of the schedule, or nothing."""

    def __init__(self, now: Callable[[], float], draw: random.Random) -> None:
        self.now, self.draw = now, draw
        self.mode = ""
        self.cut = False  # nobody reaches them, people neither
        self.acts: list[Act] = []
        self.happened: set[str] = set()
        self.port = 0
        self._calls = set[asyncio.Task[Answer]]()
        self._server: asyncio.Server | None = None

    async def open(self) -> None:
        """Listen on a free port."""
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.port = self._server.sockets[0].getsockname()[1]

    def close(self) -> None:
        """Listen no longer, and let go of what is still under way."""
        if self._server is not None:
            self._server.close()
        for call in self._calls:
            call.cancel()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Answer the requests of one connection; a deed goes on if who asked for it is gone."""
        with suppress(OSError, asyncio.IncompleteReadError, ValueError):
            while head := await reader.readuntil(b"\r\n\r\n"):
                first, *lines = head.decode("latin-1").split("\r\n")
                method, path, _ = first.split(" ")
                headers = {
                    name.lower(): value.strip()
                    for name, _, value in (line.partition(":") for line in lines if line)
                }
                body = await reader.readexactly(int(headers.get("content-length", 0)))
                work = self._query(path) if method == "GET" else self._act(path, headers, body)
                call = asyncio.create_task(work)
                self._calls.add(call)
                call.add_done_callback(self._calls.discard)
                answer = await asyncio.shield(call)
                if answer is None:
                    break
                status, kind, said = answer
                writer.write(
                    f"HTTP/1.1 {status} Said\r\nContent-Type: {kind}\r\n"
                    f"Content-Length: {len(said)}\r\n\r\n".encode()
                    + said
                )
                await writer.drain()
        writer.close()

    async def _act(self, path: str, headers: dict[str, str], body: bytes) -> Answer:
        _, agent, tool = path.split("/")
        key, text = headers["idempotency-key"], json.loads(body)["text"]
        self._note("begun", tool, key, text, agent)
        deed = partial(self._do, tool, key, text, agent)
        chance = self.draw.random()
        if self.mode == "late targets" and chance < 0.8:
            await asyncio.sleep(self.draw.uniform(0.5, TIMEOUT_S - 0.4))
        if self.mode == "silent targets" and chance < 0.5:
            if self.draw.random() < 0.5:
                deed()
            await asyncio.sleep(2 * TIMEOUT_S)
            return None
        if self.mode == "failing targets" and chance < 0.6:
            if chance < 0.3:
                deed()
            return None if chance < 0.2 or chance > 0.5 else (503, "text/plain", b"not now")
        deed()
        return 200, "application/json", json.dumps({"key": key}).encode()

    async def _query(self, path: str) -> Answer:
        key = parse_qs(urlsplit(path).query)["key"][0]
        known = key in self.happened
        self._note("asked", "", key)
        if self.mode == "unreadable targets" and self.draw.random() < 0.6:
            return (
                (200, "text/html", _PAGE) if self.draw.random() < 0.7 else (500, "text/html", b"")
            )
        if not known:
            return 404, "application/json", b"{}"
        return 200, "application/json", json.dumps({"key": key}).encode()

    def _do(self, tool: str, key: str, text: str, agent: str) -> None:
        if tool in KNOWS_KEYS and key in self.happened:
            return
        self.happened.add(key)
        self._note("done", tool, key, text, agent)

    def _note(self, what: str, tool: str, key: str, text: str = "", agent: str = "") -> None:
        self.acts.append(Act(self.now(), what, tool, key, text, agent))

"""The host of `vedette worker`: connects to a gateway and runs one agent's judge for it.

It holds the agent's identity and folder, no store, no target's credential. The judge itself runs in
a process of its own, forked by the same zygote as the engine's workers and under the same limits;
that one holds no identity either. What the host does is carry bytes and present tokens.
"""

from __future__ import annotations

import asyncio
import base64
import os
import random
import socket
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import orjson

from vedette.adapters.reasoners.workers import protocol
from vedette.adapters.reasoners.workers.confinement import read_note
from vedette.adapters.reasoners.workers.frames import ANY, HEAD, Frames, pack
from vedette.adapters.reasoners.workers.supervisor import WorkerPool
from vedette.adapters.reasoners.workers.websocket_server import (
    CHUNK,
    PATH,
    RELEASE,
    TOKEN,
    VERSION,
    quiet,
)
from vedette.adapters.reasoners.workers.worker_start import fork
from vedette.config.part import is_here
from vedette.config.snapshot import Snapshot
from vedette.domain.base.errors import BadCommand, VedetteError

if TYPE_CHECKING:
    from websockets.asyncio.client import ClientConnection

_FIRST_WAIT_S, _LAST_WAIT_S = 0.1, 5.0
_NOTE_S = 0.05
# Which part of a token's life may pass before the next one is presented.
_PRESENT = 0.6


def gateway_address(url: str) -> tuple[str, str | None]:
    """Return a gateway's WebSocket address and, for `unix:PATH`, the socket's path.

    Raises BadCommand for one over which a token would travel in the clear.
    """
    if url.startswith("unix:"):
        return f"ws://localhost{PATH}", url.removeprefix("unix:").removeprefix("//")
    parts = urlsplit(url)
    host = parts.hostname or ""
    here = is_here(host)
    if not host or parts.scheme not in ("http", "https"):
        raise BadCommand(f"{url!r} is no gateway", mend="https://HOST, or unix:PATH")
    if parts.scheme == "http" and not here:
        mend = "use https, or http on this machine only"
        raise BadCommand("a token does not travel in the clear", where=url, mend=mend)
    scheme = "wss" if parts.scheme == "https" else "ws"
    return f"{scheme}://{parts.netloc}{parts.path.rstrip('/')}{PATH}", None


class Relay:
    """One agent's worker host. `mint` returns a token, `keep` a snapshot of the agent's folder.

    It is taken anew for each connection, and says with its digest which release this host has.
    `told` is told what a person should see.
    """

    def __init__(
        self,
        agent: str,
        gateway: str,
        *,
        mint: Callable[[], Awaitable[str]],
        keep: Callable[[], Snapshot],
        pool: WorkerPool,
        told: Callable[[str], None],
    ) -> None:
        self._agent = agent
        self._url, self._path = gateway_address(gateway)
        self._mint = mint
        self._keep = keep
        self._snapshot: Snapshot
        self._pool = pool
        self._told = told
        self._said = ""
        self.connections = 0

    async def run(self) -> None:
        """Connect, and again whenever the connection is lost; ends when it is cancelled."""
        failures = 0
        while True:
            began = time.monotonic()
            try:
                await self._once()
            except (OSError, VedetteError, TimeoutError) as error:
                self._tell(f"{type(error).__name__}: {error}")
            failures = 0 if time.monotonic() - began > _LAST_WAIT_S else failures + 1
            wait = min(_LAST_WAIT_S, _FIRST_WAIT_S * 2.0 ** min(failures, 16))
            # Apart from one another, or all workers of a gateway come back in the same instant.
            await asyncio.sleep(wait * random.uniform(0.5, 1.0))  # noqa: S311

    def _tell(self, told: str) -> None:
        if told != self._said:
            self._said = told
            self._told(told)

    async def _once(self) -> None:
        from websockets.asyncio.client import connect, unix_connect
        from websockets.exceptions import ConnectionClosed, InvalidHandshake, InvalidStatus

        token = await self._mint()
        more: dict[str, Any] = {
            "additional_headers": {"Authorization": f"Bearer {token}"},
            "compression": None,
            "max_size": 4 * CHUNK,
            "ping_interval": 10,
            "ping_timeout": 20,
            "close_timeout": 1,
            "proxy": None,
            "logger": quiet(),
        }
        url = self._url + self._agent
        opened = unix_connect(self._path, url, **more) if self._path else connect(url, **more)
        try:
            async with opened as connection:
                self.connections += 1
                self._snapshot = self._keep()
                hello = {"v": VERSION, "release": self._snapshot.release}
                await connection.send(orjson.dumps(hello).decode())
                await _Connection(self, connection, token).work()
        except InvalidStatus as error:
            body = (error.response.body or b"").decode("utf-8", "replace").strip()
            self._tell(f"the gateway refused: {error.response.status_code} {body}")
        except InvalidHandshake as error:
            self._tell(f"no gateway there: {error}")
        except ConnectionClosed as error:
            code, why = (error.rcvd.code, error.rcvd.reason) if error.rcvd else (0, "lost")
            if code == RELEASE:
                why = "the gateway has another release of this agent's folder"
            elif code == TOKEN:
                why = f"the token is not taken any more: {why}"
            self._tell(f"the connection ended: {why or code}")

    # --- for a connection -------------------------------------------------------------------

    def start(self, number: int, memory: int) -> _Life:
        """Have the judge's process forked."""
        life = _Life(self._agent, number)
        reaches = {"read": (str(self._snapshot.folder.resolve()),)}
        told = {"kind": "judge", "agent": self._agent, "memory": memory, "reaches": reaches}
        seat: Any = life
        life.line, life.note, life.worker = fork(self._pool, seat, told)
        life.line.setblocking(False)
        return life

    def end(self, life: _Life) -> None:
        """End a judge's process."""
        life.wanted = False
        life.line.close()
        self._pool.kill(life.worker)

    async def mint(self) -> str:
        """Return a new token."""
        self._said = ""
        return await self._mint()

    def made(self, words: bytes) -> bytes:
        """Return the words that make a judge with this host's snapshot in them.

        The release stays the one that the gateway names: another one is not loaded.
        """
        (frame,) = Frames(ANY).feed(words)
        _, *rest = protocol.read(frame.plain)
        told = (str(self._snapshot.folder), *rest)
        return pack(frame.number, frame.kind, protocol.pack(told), frame.blob)


class _Life:
    """One life of the judge's process. To the pool it is a seat."""

    kind = "judge"
    pending = ()

    def __init__(self, agent: str, number: int) -> None:
        self.agent = agent
        self.number = number
        self.pid = 0
        self.worker = 0
        self.note = -1
        self.wanted = True
        self.charge = True
        self.born_at = 0.0
        self.line: socket.socket
        self.how: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self.words: asyncio.Queue[bytes] = asyncio.Queue()

    @property
    def used_at(self) -> float:
        return time.monotonic()

    def born(self, pid: int) -> None:
        self.pid = pid

    def ended(self, how: str, *, charge: bool = True) -> str:
        self.charge = charge
        if not self.how.done():
            self.how.set_result(how)
        return ""

    def kill(self, why: str, *, charge: bool = True, quiet: bool = False) -> None:
        """Nobody is let go for idleness here: its gateway says when."""

    def close(self) -> None:
        self.line.close()

    def at(self) -> list[int]:
        """Return (question, step) of what it is at."""
        return list(read_note(self.note))


class _Connection:
    """What goes on while a connection is up."""

    def __init__(self, relay: Relay, connection: ClientConnection, token: str) -> None:
        self._relay = relay
        self._connection = connection
        self._token = token
        self._life: _Life | None = None
        self._parts: list[asyncio.Task[None]] = []

    async def work(self) -> None:
        """Do what the gateway asks until the connection ends."""
        present = asyncio.create_task(self._present())
        try:
            async for message in self._connection:
                if isinstance(message, str):
                    await self._asked(orjson.loads(message))
                    continue
                life = self._life
                if life is not None and int.from_bytes(message[:4], "little") == life.number:
                    life.words.put_nowait(message[4:])
            # The loop ends quietly on a normal close, and raises what else ended it.
        finally:
            present.cancel()
            await self._let_go()
            await asyncio.gather(present, return_exceptions=True)

    async def _asked(self, told: dict[str, Any]) -> None:
        if "begin" in told:
            await self._let_go()
            life = self._life = self._relay.start(int(told["begin"]), int(told["memory"]))
            self._parts = [
                asyncio.create_task(part(life)) for part in (self._feed, self._answer, self._watch)
            ]
        elif "end" in told:
            if self._life is not None and told["end"] == self._life.number:
                await self._let_go()
            await self._connection.send(orjson.dumps({"gone": told["end"]}).decode())

    async def _let_go(self) -> None:
        life, self._life = self._life, None
        for part in self._parts:
            part.cancel()
        await asyncio.gather(*self._parts, return_exceptions=True)
        self._parts = []
        if life is not None:
            self._relay.end(life)
            os.close(life.note)

    async def _feed(self, life: _Life) -> None:
        """Carry the seat's words to the judge; the first are about what it is made of."""
        loop = asyncio.get_running_loop()
        first, size = b"", 0
        while not size or len(first) < size:
            first += await life.words.get()
            if len(first) >= HEAD:
                size = HEAD + sum(_lengths(first))
        with suppress(OSError):  # it died: `_answer` tells
            await loop.sock_sendall(life.line, self._relay.made(first[:size]) + first[size:])
            while True:
                await loop.sock_sendall(life.line, await life.words.get())

    async def _answer(self, life: _Life) -> None:
        """Carry the judge's words to its seat, and say how it ended."""
        loop = asyncio.get_running_loop()
        head = life.number.to_bytes(4, "little")
        with suppress(OSError):
            while data := await loop.sock_recv(life.line, CHUNK):
                await self._connection.send(head + data)
        how = await life.how
        told = {"ended": life.number, "how": how, "note": life.at(), "charge": life.charge}
        await self._connection.send(orjson.dumps(told).decode())

    async def _watch(self, life: _Life) -> None:
        """Tell the gateway what the judge is at: it keeps the time."""
        said: list[int] = []
        while True:
            at = life.at()
            if at != said:
                said = at
                note = {"note": [life.number, *at]}
                await self._connection.send(orjson.dumps(note).decode())
            await asyncio.sleep(_NOTE_S)

    async def _present(self) -> None:
        """Present a new token before the present one expires."""
        while True:
            await asyncio.sleep(max(0.2, _left_s(self._token) * _PRESENT))
            try:
                self._token = await self._relay.mint()
            except (VedetteError, OSError, TimeoutError):
                continue  # the present one holds yet; then the gateway ends the connection
            await self._connection.send(orjson.dumps({"token": self._token}).decode())


def _left_s(token: str) -> float:
    """Return for how many seconds a token of our own still holds; 1 if that is not to be read."""
    part = token.split(".")[1] if token.count(".") == 2 else ""
    try:
        claims = orjson.loads(base64.urlsafe_b64decode(part + "=" * (-len(part) % 4)))
        return float(claims["exp"]) - time.time()
    except (ValueError, KeyError, TypeError):
        return 1.0


def _lengths(head: bytes) -> tuple[int, int]:
    return int.from_bytes(head[:4], "little"), int.from_bytes(head[4:8], "little")

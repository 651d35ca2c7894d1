"""The host of `vedette worker`: connects to a gateway and runs one agent's judge for it.

It holds the agent's identity and folder, no store, no target's credential. The judge itself runs in
a process of its own, forked by a fork server like the engine's workers and under the same limits;
that one holds no identity either. What the host does is forward bytes and present tokens.
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
from vedette.adapters.reasoners.workers.confinement import read_progress
from vedette.adapters.reasoners.workers.frames import (
    HEADER_BYTES,
    UNBOUNDED,
    FrameDecoder,
    pack_frame,
)
from vedette.adapters.reasoners.workers.supervisor import WorkerPool
from vedette.adapters.reasoners.workers.websocket_server import (
    CHUNK,
    INVALID_TOKEN,
    PATH,
    PROTOCOL_ERROR,
    SAME_PROGRAM,
    VERSION,
    WRONG_RELEASE,
    silent_logger,
)
from vedette.adapters.reasoners.workers.worker_start import fork_worker
from vedette.config.snapshot import Snapshot
from vedette.domain.base.errors import BadCommand, VedetteError
from vedette.domain.base.urls import is_loopback

if TYPE_CHECKING:
    from websockets.asyncio.client import ClientConnection

_FIRST_WAIT_S, _LAST_WAIT_S = 0.1, 5.0
_PROGRESS_INTERVAL_S = 0.05
# Which part of a token's life may pass before the next one is presented.
_RENEW_FRACTION = 0.6


def gateway_address(url: str) -> tuple[str, str | None]:
    """Return a gateway's WebSocket address for workers and, for `unix:PATH`, the socket's path.

    Raises BadCommand for one over which a token would travel in the clear.
    """
    if url.startswith("unix:"):
        return f"ws://localhost{PATH}", url.removeprefix("unix:").removeprefix("//")
    parts = urlsplit(url)
    host = parts.hostname or ""
    here = is_loopback(host)
    if not host or parts.scheme not in ("http", "https"):
        raise BadCommand(f"{url!r} is no gateway", mend="https://HOST, or unix:PATH")
    if parts.scheme == "http" and not here:
        mend = "use https, or http on this machine only"
        raise BadCommand("a token does not travel in the clear", where=url, mend=mend)
    scheme = "wss" if parts.scheme == "https" else "ws"
    return f"{scheme}://{parts.netloc}{parts.path.rstrip('/')}{PATH}", None


class Relay:
    """The WebSocket client of an agent's worker. `mint` returns a token, `take_snapshot` a snapshot
    of the agent's folder.

    It is taken anew for each connection, and says with its digest which release this host has.
    `report` is called with what a person should see.
    """

    def __init__(
        self,
        agent: str,
        gateway: str,
        *,
        mint: Callable[[], Awaitable[str]],
        take_snapshot: Callable[[], Snapshot],
        pool: WorkerPool,
        report: Callable[[str], None],
    ) -> None:
        self._agent = agent
        self._url, self._path = gateway_address(gateway)
        self._mint = mint
        self._take_snapshot = take_snapshot
        self._snapshot: Snapshot
        self._pool = pool
        self._report_text = report
        self._last_report = ""
        self.connections = 0

    async def run(self) -> None:
        """Connect, and again whenever the connection is lost; ends when it is cancelled."""
        failures = 0
        while True:
            began = time.monotonic()
            try:
                await self._connect_once()
            except (OSError, VedetteError, TimeoutError) as error:
                self._report(f"{type(error).__name__}: {error}")
            failures = 0 if time.monotonic() - began > _LAST_WAIT_S else failures + 1
            wait = min(_LAST_WAIT_S, _FIRST_WAIT_S * 2.0 ** min(failures, 16))
            # Apart from one another, or all workers of a gateway come back in the same instant.
            await asyncio.sleep(wait * random.uniform(0.5, 1.0))  # noqa: S311

    def _report(self, text: str) -> None:
        if text != self._last_report:
            self._last_report = text
            self._report_text(text)

    async def _connect_once(self) -> None:
        from websockets.asyncio.client import connect, unix_connect
        from websockets.exceptions import ConnectionClosed, InvalidHandshake, InvalidStatus

        token = await self._mint()
        options: dict[str, Any] = {
            "additional_headers": {"Authorization": f"Bearer {token}"},
            "compression": None,
            "max_size": 4 * CHUNK,
            "ping_interval": 10,
            "ping_timeout": 20,
            "close_timeout": 1,
            "proxy": None,
            "logger": silent_logger(),
        }
        url = self._url + self._agent
        connecting = (
            unix_connect(self._path, url, **options) if self._path else connect(url, **options)
        )
        try:
            async with connecting as connection:
                self.connections += 1
                self._snapshot = self._take_snapshot()
                hello = {"v": VERSION, "release": self._snapshot.release}
                await connection.send(orjson.dumps(hello).decode())
                await _GatewayConnection(self, connection, token).run()
        except InvalidStatus as error:
            body = (error.response.body or b"").decode("utf-8", "replace").strip()
            self._report(f"the gateway refused: {error.response.status_code} {body}")
        except InvalidHandshake as error:
            self._report(f"no gateway there: {error}")
        except ConnectionClosed as error:
            code, why = (error.rcvd.code, error.rcvd.reason) if error.rcvd else (0, "lost")
            if code == WRONG_RELEASE:
                why = "the gateway has another release of this agent's folder"
            elif code == INVALID_TOKEN:
                why = f"the token is not taken any more: {why}"
            elif code == PROTOCOL_ERROR and why.endswith("is spoken here"):
                # So a gateway of before tells its own version, and no more.
                why = f"{why}, and this worker speaks version {VERSION}: {SAME_PROGRAM}"
            self._report(f"the connection ended: {why or code}")

    # --- for a connection -------------------------------------------------------------------

    def start_judge(self, number: int, memory: int) -> _JudgeProcess:
        """Have the judge's process forked."""
        process = _JudgeProcess(self._agent, number)
        reaches = {"read": (str(self._snapshot.folder.resolve()),)}
        message = {"kind": "judge", "agent": self._agent, "memory": memory, "reaches": reaches}
        handle: Any = process
        process.connection, process.progress_fd, process.worker_number = fork_worker(
            self._pool, handle, message
        )
        process.connection.setblocking(False)
        return process

    def end_judge(self, process: _JudgeProcess) -> None:
        """End a judge's process."""
        process.wanted = False
        process.connection.close()
        self._pool.kill(process.worker_number)

    async def mint(self) -> str:
        """Return a new token."""
        self._last_report = ""
        return await self._mint()

    def rewrite_make(self, frames: bytes) -> bytes:
        """Return the frame that makes a judge, with this host's snapshot in it.

        The release stays the one that the gateway names: another one is not loaded.
        """
        (frame,) = FrameDecoder(UNBOUNDED).feed(frames)
        _, *rest = protocol.read(frame.plain)
        values = (str(self._snapshot.folder), *rest)
        return pack_frame(frame.number, frame.kind, protocol.pack(values), frame.blob)


class _JudgeProcess:
    """One life of the judge's process. To the pool it is a worker handle."""

    kind = "judge"
    pending = ()

    def __init__(self, agent: str, number: int) -> None:
        self.agent = agent
        self.number = number
        self.pid = 0
        self.worker_number = 0
        self.progress_fd = -1
        self.wanted = True
        self.charge = True
        self.started_at = 0.0
        self.connection: socket.socket
        self.exit_reason: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self.input: asyncio.Queue[bytes] = asyncio.Queue()

    @property
    def used_at(self) -> float:
        return time.monotonic()

    def on_started(self, pid: int) -> None:
        self.pid = pid

    def on_exit(self, reason: str, *, charge: bool = True, reaped: bool = True) -> str:
        self.charge = charge
        if not self.exit_reason.done():
            self.exit_reason.set_result(reason)
        return ""

    def kill(self, why: str, *, charge: bool = True, quiet: bool = False) -> None:
        """Nobody is let go for idleness here: its gateway says when."""

    def close(self) -> None:
        self.connection.close()

    def progress(self) -> list[int]:
        """Return (question, step) of what it is at."""
        return list(read_progress(self.progress_fd))


class _GatewayConnection:
    """What goes on while a connection is up."""

    def __init__(self, relay: Relay, connection: ClientConnection, token: str) -> None:
        self._relay = relay
        self._connection = connection
        self._token = token
        self._process: _JudgeProcess | None = None
        self._parts: list[asyncio.Task[None]] = []

    async def run(self) -> None:
        """Do what the gateway asks until the connection ends."""
        renewal = asyncio.create_task(self._renew_token())
        try:
            async for message in self._connection:
                if isinstance(message, str):
                    await self._handle_message(orjson.loads(message))
                    continue
                process = self._process
                if process is not None and int.from_bytes(message[:4], "little") == process.number:
                    process.input.put_nowait(message[4:])
            # The loop ends quietly on a normal close, and raises what else ended it.
        finally:
            renewal.cancel()
            await self._end_judge()
            await asyncio.gather(renewal, return_exceptions=True)

    async def _handle_message(self, message: dict[str, Any]) -> None:
        if "begin" in message:
            await self._end_judge()
            process = self._process = self._relay.start_judge(
                int(message["begin"]), int(message["memory"])
            )
            self._parts = [
                asyncio.create_task(part(process))
                for part in (self._forward_input, self._forward_output, self._report_progress)
            ]
        elif "end" in message:
            if self._process is not None and message["end"] == self._process.number:
                await self._end_judge()
            await self._connection.send(orjson.dumps({"gone": message["end"]}).decode())

    async def _end_judge(self) -> None:
        process, self._process = self._process, None
        for part in self._parts:
            part.cancel()
        await asyncio.gather(*self._parts, return_exceptions=True)
        self._parts = []
        if process is not None:
            self._relay.end_judge(process)
            os.close(process.progress_fd)

    async def _forward_input(self, process: _JudgeProcess) -> None:
        """Forward the handle's frames to the judge; the first says what it is made of."""
        loop = asyncio.get_running_loop()
        first, size = b"", 0
        while not size or len(first) < size:
            first += await process.input.get()
            if len(first) >= HEADER_BYTES:
                size = HEADER_BYTES + sum(_lengths(first))
        with suppress(OSError):  # it died: `_forward_output` tells
            await loop.sock_sendall(
                process.connection, self._relay.rewrite_make(first[:size]) + first[size:]
            )
            while True:
                await loop.sock_sendall(process.connection, await process.input.get())

    async def _forward_output(self, process: _JudgeProcess) -> None:
        """Forward the judge's frames to its handle, and say how it ended."""
        loop = asyncio.get_running_loop()
        head = process.number.to_bytes(4, "little")
        with suppress(OSError):
            while data := await loop.sock_recv(process.connection, CHUNK):
                await self._connection.send(head + data)
        reason = await process.exit_reason
        message = {
            "ended": process.number,
            "how": reason,
            "note": process.progress(),
            "charge": process.charge,
        }
        await self._connection.send(orjson.dumps(message).decode())

    async def _report_progress(self, process: _JudgeProcess) -> None:
        """Tell the gateway what the judge is at: it keeps the time."""
        reported: list[int] = []
        while True:
            progress = process.progress()
            if progress != reported:
                reported = progress
                note = {"note": [process.number, *progress]}
                await self._connection.send(orjson.dumps(note).decode())
            await asyncio.sleep(_PROGRESS_INTERVAL_S)

    async def _renew_token(self) -> None:
        """Present a new token before the present one expires."""
        while True:
            await asyncio.sleep(max(0.2, _remaining_s(self._token) * _RENEW_FRACTION))
            try:
                self._token = await self._relay.mint()
            except (VedetteError, OSError, TimeoutError):
                continue  # the present one holds yet; then the gateway ends the connection
            await self._connection.send(orjson.dumps({"token": self._token}).decode())


def _remaining_s(token: str) -> float:
    """Return for how many seconds a token of our own still holds; 1 if that is not to be read."""
    part = token.split(".")[1] if token.count(".") == 2 else ""
    try:
        claims = orjson.loads(base64.urlsafe_b64decode(part + "=" * (-len(part) % 4)))
        return float(claims["exp"]) - time.time()
    except (ValueError, KeyError, TypeError):
        return 1.0


def _lengths(head: bytes) -> tuple[int, int]:
    return int.from_bytes(head[:4], "little"), int.from_bytes(head[4:8], "little")

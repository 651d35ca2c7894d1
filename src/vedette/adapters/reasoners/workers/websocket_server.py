"""The server that workers of other hosts connect to by WebSocket (RFC 6455), each with a token.

Runs on a thread with an event loop of its own. It decides who may come in and forwards bytes; what
they mean is between the worker handle and the worker. A connection is one agent's. It may take that
agent's slots only, one after the other, and lasts no longer than its token: a new one is presented
on it before the old one expires.

Messages: bytes are four bytes of the slot's number and a piece of the stream. Text is JSON.
From the worker: {"v", "release"} once, then {"token"}, {"note": [n, question, step]},
{"ended": n, "how", "charge", "note": [question, step]}, and {"gone": n} when it was told
{"end": n}. To it: {"begin": n, "memory"}, {"end": n}.
"""

from __future__ import annotations

import asyncio
import logging
import os
import threading
from collections import deque
from collections.abc import Callable, Mapping
from contextlib import AsyncExitStack, suppress
from http import HTTPStatus
from pathlib import Path
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

import orjson

from vedette.adapters.reasoners.workers.confinement import _PROGRESS
from vedette.adapters.reasoners.workers.remote_reasoner import WorkerSlot
from vedette.domain.base.connections import ConnectionLimiter
from vedette.domain.base.errors import BadFleet, Unavailable
from vedette.domain.ports.tokens import BadToken, Claims, TokenAuthority

if TYPE_CHECKING:
    from websockets.asyncio.server import ServerConnection
    from websockets.http11 import Request, Response

PATH = "/v1/workers/"
VERSION = 4
SAME_PROGRAM = "run the same vedette at both"
CHUNK = 65_536
# Close codes of our own (4000 and above are free for that): why a worker has to go.
INVALID_TOKEN, WRONG_RELEASE, NOT_ASSIGNED, PROTOCOL_ERROR = 4401, 4409, 4403, 4400
_HELLO_S = 10.0
_CHECK_INTERVAL_S = 0.2
# How long a worker that is let go may take to learn it before its connection is cut.
_RELEASE_TIMEOUT_S = 2.0
# Of one agent fewer, or its workers could keep all others out.
_MAX_CONNECTIONS, _MAX_PER_AGENT = 1024, 16


class RemoteWorker:
    """A worker's WebSocket connection whose token was taken."""

    def __init__(self, agent: str, claims: Claims) -> None:
        self.agent = agent
        self.claims = claims
        self.slot: WorkerSlot | None = None
        self.release = ""
        self.assigned_slots: set[int] = set()
        self.is_free = asyncio.Event()


class _Disconnect(Exception):
    """The connection ends; `code` and `why` are sent to the worker."""

    def __init__(self, code: int, why: str) -> None:
        super().__init__(why)
        self.code = code


class WorkerServer:
    """The WebSocket server of workers. `releases` is by agent the digest that its folder must have.

    It may become another while the server is open: who came with the one before has to go.

    `notify` tells the pool; `listen` is a host and port, `path` a Unix socket; either may be None.
    """

    def __init__(
        self,
        *,
        tokens: TokenAuthority,
        releases: Mapping[str, str],
        notify: Callable[..., None],
        now_us: Callable[[], int],
        listen: tuple[str, int] | None = None,
        path: Path | None = None,
        connections: ConnectionLimiter | None = None,
    ) -> None:
        self._connections = connections or ConnectionLimiter(_MAX_CONNECTIONS)
        self._tokens = tokens
        self._releases = releases
        self._notify = notify
        self._now_us = now_us
        self._listen = listen
        self._path = path
        self._vacant_slots: dict[str, deque[WorkerSlot]] = {}
        self._slot_waiters: dict[str, deque[asyncio.Future[WorkerSlot]]] = {}
        # One whose handshake breaks off is never attended to, and goes by itself.
        self._workers: WeakKeyDictionary[Any, RemoteWorker] = WeakKeyDictionary()
        self._slot_connections: dict[int, Any] = {}
        self._loop = asyncio.new_event_loop()
        self._stop = asyncio.Event()
        self._ready = threading.Event()
        self._failure: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="vedette-workers", daemon=True)
        self.address: str | None = None

    # --- life -------------------------------------------------------------------------------

    def open(self) -> None:
        """Begin to listen. Raises BadFleet if that cannot be done: the port is taken, or so."""
        self._thread.start()
        self._ready.wait()
        if self._failure is not None:
            what = f"workers cannot be let in: {type(self._failure).__name__}: {self._failure}"
            raise BadFleet(what, where="vedette.toml: gateway.listen", mend="use another port")

    def close(self) -> None:
        """Send everybody away; returns when the thread has ended."""
        with suppress(RuntimeError):
            self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join(5.0)

    def _run(self) -> None:
        try:
            self._loop.run_until_complete(self._serve())
        except Exception as error:
            if self._ready.is_set():
                raise  # too late for `open` to say so: whoever minds threads does
            self._failure = error
        finally:
            self._ready.set()
            self._loop.close()

    async def _serve(self) -> None:
        from websockets.asyncio.server import serve, unix_serve

        options: dict[str, Any] = {
            "process_request": self._admit,
            "compression": None,
            "max_size": 4 * CHUNK,
            "ping_interval": 10,
            "ping_timeout": 20,
            "close_timeout": 1,
            "server_header": None,
            "logger": silent_logger(),
            "create_connection": _connection_class(self._connections),
        }
        async with AsyncExitStack() as stack:
            if self._path is not None:
                self._path.unlink(missing_ok=True)
                old = os.umask(0o177)
                try:
                    inside: Any = unix_serve(self._serve_connection, str(self._path), **options)
                    await stack.enter_async_context(inside)
                finally:
                    os.umask(old)
            if self._listen is not None:
                host, port = self._listen
                server = await stack.enter_async_context(
                    serve(self._serve_connection, host, port, **options)
                )
                host, port = next(iter(server.sockets)).getsockname()[:2]
                self.address = f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
            self._ready.set()
            await self._stop.wait()

    # --- slots (called by the pool, from its thread) -----------------------------------------

    def offer(self, slot: WorkerSlot) -> None:
        """Offer a slot to the next worker of its agent that is free."""
        with suppress(RuntimeError):
            self._loop.call_soon_threadsafe(self._offer, slot)

    def withdraw(self, number: int) -> None:
        """Take a vacant slot back; a worker that has it sees the end of its stream."""
        with suppress(RuntimeError):
            self._loop.call_soon_threadsafe(self._withdraw, number)

    def _offer(self, slot: WorkerSlot) -> None:
        waiting = self._slot_waiters.get(slot.agent, deque())
        while waiting:
            first = waiting.popleft()
            if not first.done():
                first.set_result(slot)
                return
        self._vacant_slots.setdefault(slot.agent, deque()).append(slot)

    def _withdraw(self, number: int) -> None:
        if number in self._slot_connections:
            self._loop.call_later(_RELEASE_TIMEOUT_S, self._abort, number)
            return
        for slots in self._vacant_slots.values():
            for slot in slots:
                if slot.number == number:
                    slots.remove(slot)
                    self._end_slot(slot)
                    return

    def _abort(self, number: int) -> None:
        """End the connection of a worker that did not go: nothing that is sent gets through."""
        connection = self._slot_connections.get(number)
        if connection is not None:
            connection.transport.abort()

    async def _next_slot(self, agent: str) -> WorkerSlot:
        vacant = self._vacant_slots.get(agent)
        if vacant:
            return vacant.popleft()
        turn: asyncio.Future[WorkerSlot] = self._loop.create_future()
        self._slot_waiters.setdefault(agent, deque()).append(turn)
        try:
            return await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled():
                self._offer(turn.result())
            raise

    def _end_slot(self, slot: WorkerSlot) -> None:
        slot.close()
        self._notify("ended", slot.number, slot.exit_reason, slot.charge)

    # --- who may come in ---------------------------------------------------------------------

    async def _admit(self, connection: ServerConnection, request: Request) -> Response | None:
        """Answer a handshake: None lets it through."""
        agent = request.path.removeprefix(PATH)
        if not request.path.startswith(PATH) or agent not in self._releases:
            return connection.respond(HTTPStatus.NOT_FOUND, "no such agent lives here\n")
        scheme, _, token = request.headers.get("Authorization", "").partition(" ")
        try:
            if scheme.lower() != "bearer":
                raise BadToken("no-token", "there is no token")
            _, claims = await self._tokens.verify(token.strip(), agent)
        except BadToken as error:
            self._notify("refused", agent, error.code, error.what)
            answer = connection.respond(HTTPStatus.UNAUTHORIZED, f"{error.code}: {error.what}\n")
            answer.headers["WWW-Authenticate"] = "Bearer"
            return answer
        except (Unavailable, BadFleet) as error:
            # Whoever cannot be checked is not let in; a worker tries again.
            return connection.respond(HTTPStatus.SERVICE_UNAVAILABLE, f"{error.what}\n")
        mine = sum(guest.agent == agent for guest in self._workers.values())
        if len(self._workers) >= _MAX_CONNECTIONS or mine >= _MAX_PER_AGENT:
            return connection.respond(HTTPStatus.SERVICE_UNAVAILABLE, "too many workers\n")
        self._workers[connection] = RemoteWorker(agent, claims)
        return None

    # --- one connection ----------------------------------------------------------------------

    async def _serve_connection(self, connection: ServerConnection) -> None:
        from websockets.exceptions import ConnectionClosed

        worker = self._workers[connection]
        is_announced = False
        try:
            await self._receive_hello(connection, worker)
            self._notify("came", worker.agent)
            is_announced = True
            tasks = [
                asyncio.ensure_future(part)
                for part in (
                    self._receive_messages(connection, worker),
                    self._assign_slots(connection, worker),
                    self._watch_token(worker),
                )
            ]
            try:
                done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            finally:
                for part in tasks:
                    part.cancel()
                await asyncio.gather(*tasks, return_exceptions=True)
            for part in done:
                part.result()
        except _Disconnect as why:
            await connection.close(why.code, str(why)[:120])
        except ConnectionClosed:
            pass
        finally:
            self._workers.pop(connection, None)
            if is_announced:
                self._notify("left", worker.agent)

    async def _receive_hello(self, connection: ServerConnection, worker: RemoteWorker) -> None:
        try:
            async with asyncio.timeout(_HELLO_S):
                hello = _parse_object(await connection.recv())
        except (TimeoutError, ValueError) as error:
            raise _Disconnect(PROTOCOL_ERROR, "no greeting") from error
        if (version := hello.get("v")) != VERSION:
            spoken = version if isinstance(version, int) else "none"
            what = (
                f"the worker speaks version {spoken} of the protocol, the gateway version {VERSION}"
            )
            self._notify("refused", worker.agent, "other-protocol", what)
            raise _Disconnect(PROTOCOL_ERROR, f"{what}: {SAME_PROGRAM}")
        worker.release = str(hello.get("release"))
        self._check_release(worker)

    def _check_release(self, worker: RemoteWorker) -> None:
        if worker.release != self._releases[worker.agent]:
            what = "its folder is not the one that the gateway has"
            self._notify("refused", worker.agent, "other-release", what)
            raise _Disconnect(WRONG_RELEASE, what)

    async def _watch_token(self, worker: RemoteWorker) -> None:
        """End the connection when its token does, or is revoked."""
        while True:
            self._check_release(worker)
            if self._now_us() >= worker.claims.expires_us:
                self._notify(
                    "refused", worker.agent, "expired", "its token expired on the connection"
                )
                raise _Disconnect(INVALID_TOKEN, "expired")
            if self._tokens.is_revoked(worker.claims):
                self._notify("refused", worker.agent, "revoked", "it was revoked while connected")
                raise _Disconnect(INVALID_TOKEN, "revoked")
            await asyncio.sleep(_CHECK_INTERVAL_S)

    async def _assign_slots(self, connection: ServerConnection, worker: RemoteWorker) -> None:
        """Give the worker one slot after the other, and forward what its handle sends."""
        while True:
            slot = await self._next_slot(worker.agent)
            try:
                self._check_release(worker)
            except _Disconnect:
                self._offer(slot)
                raise
            worker.slot = slot
            worker.assigned_slots.add(slot.number)
            worker.is_free.clear()
            self._slot_connections[slot.number] = connection
            try:
                self._notify("born", slot.number)
                begin = {"begin": slot.number, "memory": slot.memory}
                await connection.send(orjson.dumps(begin).decode())
                head = slot.number.to_bytes(4, "little")
                while data := await self._loop.sock_recv(slot.connection, CHUNK):
                    await connection.send(head + data)
                if not slot.has_ended:
                    await connection.send(orjson.dumps({"end": slot.number}).decode())
            except OSError:
                pass
            except BaseException:
                # The connection is gone, and maybe not through any fault of the pending call.
                slot.exit_reason, slot.charge = "lost its connection", False
                raise
            finally:
                worker.slot = None
                del self._slot_connections[slot.number]
                self._end_slot(slot)
            if not slot.has_ended:
                await self._wait_until_free(worker)

    async def _wait_until_free(self, worker: RemoteWorker) -> None:
        """Wait until a worker says that it is free again: one that hangs gets no other slot."""
        try:
            async with asyncio.timeout(_RELEASE_TIMEOUT_S):
                await worker.is_free.wait()
        except TimeoutError as error:
            raise _Disconnect(PROTOCOL_ERROR, "it did not let go") from error

    async def _receive_messages(self, connection: ServerConnection, worker: RemoteWorker) -> None:
        """Forward what the worker sends to its handle. Ends with the connection."""
        async for message in connection:
            if isinstance(message, str):
                await self._handle_message(_parse_object(message), worker)
                continue
            number = int.from_bytes(message[:4], "little")
            if number not in worker.assigned_slots:
                what = "it answered what was asked of somebody else"
                self._notify("refused", worker.agent, "not-given", what)
                raise _Disconnect(NOT_ASSIGNED, what)
            slot = worker.slot
            if slot is not None and slot.number == number and not slot.has_ended:
                with suppress(OSError):  # the handle hung up: what comes last is not wanted
                    await self._loop.sock_sendall(slot.connection, message[4:])

    async def _handle_message(self, message: Mapping[str, Any], worker: RemoteWorker) -> None:
        if "gone" in message:
            worker.is_free.set()
        elif "token" in message:
            try:
                _, claims = await self._tokens.verify(str(message["token"]), worker.agent)
            except BadToken as error:
                self._notify("refused", worker.agent, error.code, error.what)
                raise _Disconnect(INVALID_TOKEN, error.code) from error
            except Unavailable:
                return  # the present one holds for as long as it does
            worker.claims = claims
            return
        slot = worker.slot
        number = message.get("ended")
        if number is None and isinstance(message.get("note"), list):
            number, *progress = message["note"]
        else:
            progress = message.get("note", [])
        if slot is None or slot.number != number or slot.has_ended:
            return
        if len(progress) == 2 and all(isinstance(n, int) and 0 <= n < 2**63 for n in progress):
            os.pwrite(slot.progress_fd, _PROGRESS.pack(*progress), 0)
        if "ended" in message:
            slot.exit_reason, slot.has_ended = str(message.get("how"))[:200], True
            slot.charge = message.get("charge") is not False
            with suppress(OSError):
                slot.connection.shutdown(2)


def silent_logger() -> logging.Logger:
    """Return a log for WebSockets that says nothing: at its finest it would write tokens down."""
    log = logging.getLogger("vedette.websockets")
    log.setLevel(logging.CRITICAL + 1)
    return log


def _parse_object(message: str | bytes) -> dict[str, Any]:
    """Return a message's JSON object; an empty one for anything else that is JSON."""
    try:
        value = orjson.loads(message)
    except ValueError as error:
        raise _Disconnect(PROTOCOL_ERROR, "no JSON") from error
    return value if isinstance(value, dict) else {}


def _connection_class(connections: ConnectionLimiter) -> type[ServerConnection]:
    """Return a connection that is cut off where there is no room: before its handshake, too."""
    from websockets.asyncio.server import ServerConnection

    class CountedConnection(ServerConnection):
        _peer: str | None = None

        def connection_made(self, transport: asyncio.BaseTransport) -> None:
            super().connection_made(transport)
            address = self.remote_address
            peer = str(address[0]) if isinstance(address, tuple) else ""
            if connections.acquire(peer):
                self._peer = peer
            else:
                self.transport.abort()

        def connection_lost(self, exc: Exception | None) -> None:
            if self._peer is not None:
                connections.release(self._peer)
                self._peer = None
            super().connection_lost(exc)

    return CountedConnection

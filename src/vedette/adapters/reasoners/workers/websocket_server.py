"""Where workers of other hosts come in: WebSockets (RFC 6455), each with the token of its agent.

Runs on a thread with an event loop of its own. It decides who may come in and carries bytes; what
they mean is between the seat and the worker. A connection is one agent's. It may take that agent's
berths only, one after the other, and lasts no longer than its token: a new one is presented on it
before the old one expires.

Messages: bytes are four bytes of the berth's number and a piece of the stream. Text is JSON.
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

from vedette.adapters.reasoners.workers.confinement import _NOTE
from vedette.adapters.reasoners.workers.remote_reasoner import Berth
from vedette.domain.base.connections import Connections
from vedette.domain.base.errors import BadFleet, Unavailable
from vedette.domain.ports.tokens import BadToken, Claims, Tokens

if TYPE_CHECKING:
    from websockets.asyncio.server import ServerConnection
    from websockets.http11 import Request, Response

PATH = "/v1/workers/"
VERSION = 2
CHUNK = 65_536
# Close codes of our own (4000 and above are free for that): why a worker has to go.
TOKEN, RELEASE, NOT_GIVEN, PROTOCOL = 4401, 4409, 4403, 4400
_HELLO_S = 10.0
_LOOK_S = 0.2
# How long a worker that is let go may take to be told so before its connection is cut.
_HANG_S = 2.0
# Of one agent fewer, or its workers could keep all others out.
_MOST_GUESTS, _MOST_OF_ONE = 1024, 16


class Guest:
    """A connection whose token was taken."""

    def __init__(self, agent: str, claims: Claims) -> None:
        self.agent = agent
        self.claims = claims
        self.berth: Berth | None = None
        self.release = ""
        self.given: set[int] = set()
        self.gone = asyncio.Event()


class _Goes(Exception):
    """The connection ends; `code` and `why` are told to the worker."""

    def __init__(self, code: int, why: str) -> None:
        super().__init__(why)
        self.code = code


class Door:
    """Lets workers in. `releases` is by agent the digest of its folder: who has another is refused.

    It may become another while the door is open: who came with the one before has to go.

    `say` tells the pool; `listen` is a host and port, `path` a Unix socket; either may be None.
    """

    def __init__(
        self,
        *,
        tokens: Tokens,
        releases: Mapping[str, str],
        say: Callable[..., None],
        now_us: Callable[[], int],
        listen: tuple[str, int] | None = None,
        path: Path | None = None,
        connections: Connections | None = None,
    ) -> None:
        self._connections = connections or Connections(_MOST_GUESTS)
        self._tokens = tokens
        self._releases = releases
        self._say = say
        self._now_us = now_us
        self._listen = listen
        self._path = path
        self._vacant: dict[str, deque[Berth]] = {}
        self._free: dict[str, deque[asyncio.Future[Berth]]] = {}
        # One whose handshake breaks off is never attended to, and goes by itself.
        self._guests: WeakKeyDictionary[Any, Guest] = WeakKeyDictionary()
        self._sitting: dict[int, Any] = {}
        self._loop = asyncio.new_event_loop()
        self._stop = asyncio.Event()
        self._ready = threading.Event()
        self._failure: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="vedette-door", daemon=True)
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

        more: dict[str, Any] = {
            "process_request": self._admit,
            "compression": None,
            "max_size": 4 * CHUNK,
            "ping_interval": 10,
            "ping_timeout": 20,
            "close_timeout": 1,
            "server_header": None,
            "logger": quiet(),
            "create_connection": _counted(self._connections),
        }
        async with AsyncExitStack() as stack:
            if self._path is not None:
                self._path.unlink(missing_ok=True)
                old = os.umask(0o177)
                try:
                    inside: Any = unix_serve(self._attend, str(self._path), **more)
                    await stack.enter_async_context(inside)
                finally:
                    os.umask(old)
            if self._listen is not None:
                host, port = self._listen
                server = await stack.enter_async_context(serve(self._attend, host, port, **more))
                host, port = next(iter(server.sockets)).getsockname()[:2]
                self.address = f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
            self._ready.set()
            await self._stop.wait()

    # --- berths (called by the pool, from its thread) ----------------------------------------

    def vacant(self, berth: Berth) -> None:
        """Offer a berth to the next worker of its agent that is free."""
        with suppress(RuntimeError):
            self._loop.call_soon_threadsafe(self._offer, berth)

    def drop(self, number: int) -> None:
        """Take a berth back that nobody sits in; whoever sits in one sees its line's end."""
        with suppress(RuntimeError):
            self._loop.call_soon_threadsafe(self._take_back, number)

    def _offer(self, berth: Berth) -> None:
        waiting = self._free.get(berth.agent, deque())
        while waiting:
            first = waiting.popleft()
            if not first.done():
                first.set_result(berth)
                return
        self._vacant.setdefault(berth.agent, deque()).append(berth)

    def _take_back(self, number: int) -> None:
        if number in self._sitting:
            self._loop.call_later(_HANG_S, self._abort, number)
            return
        for berths in self._vacant.values():
            for berth in berths:
                if berth.number == number:
                    berths.remove(berth)
                    self._end(berth)
                    return

    def _abort(self, number: int) -> None:
        """End the connection of a worker that did not go: nothing that is sent gets through."""
        connection = self._sitting.get(number)
        if connection is not None:
            connection.transport.abort()

    async def _next(self, agent: str) -> Berth:
        vacant = self._vacant.get(agent)
        if vacant:
            return vacant.popleft()
        turn: asyncio.Future[Berth] = self._loop.create_future()
        self._free.setdefault(agent, deque()).append(turn)
        try:
            return await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled():
                self._offer(turn.result())
            raise

    def _end(self, berth: Berth) -> None:
        berth.close()
        self._say("ended", berth.number, berth.how, berth.charge)

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
            self._say("refused", agent, error.code, error.what)
            answer = connection.respond(HTTPStatus.UNAUTHORIZED, f"{error.code}: {error.what}\n")
            answer.headers["WWW-Authenticate"] = "Bearer"
            return answer
        except (Unavailable, BadFleet) as error:
            # Whoever cannot be checked is not let in; a worker tries again.
            return connection.respond(HTTPStatus.SERVICE_UNAVAILABLE, f"{error.what}\n")
        mine = sum(guest.agent == agent for guest in self._guests.values())
        if len(self._guests) >= _MOST_GUESTS or mine >= _MOST_OF_ONE:
            return connection.respond(HTTPStatus.SERVICE_UNAVAILABLE, "too many workers\n")
        self._guests[connection] = Guest(agent, claims)
        return None

    # --- one connection ----------------------------------------------------------------------

    async def _attend(self, connection: ServerConnection) -> None:
        from websockets.exceptions import ConnectionClosed

        guest = self._guests[connection]
        came = False
        try:
            await self._greet(connection, guest)
            self._say("came", guest.agent)
            came = True
            parts = [
                asyncio.ensure_future(part)
                for part in (
                    self._read(connection, guest),
                    self._lend(connection, guest),
                    self._mind(guest),
                )
            ]
            try:
                done, _ = await asyncio.wait(parts, return_when=asyncio.FIRST_COMPLETED)
            finally:
                for part in parts:
                    part.cancel()
                await asyncio.gather(*parts, return_exceptions=True)
            for part in done:
                part.result()
        except _Goes as why:
            await connection.close(why.code, str(why)[:120])
        except ConnectionClosed:
            pass
        finally:
            self._guests.pop(connection, None)
            if came:
                self._say("left", guest.agent)

    async def _greet(self, connection: ServerConnection, guest: Guest) -> None:
        try:
            async with asyncio.timeout(_HELLO_S):
                told = _object(await connection.recv())
        except (TimeoutError, ValueError) as error:
            raise _Goes(PROTOCOL, "no greeting") from error
        if told.get("v") != VERSION:
            raise _Goes(PROTOCOL, f"version {VERSION} is spoken here")
        guest.release = str(told.get("release"))
        self._same_release(guest)

    def _same_release(self, guest: Guest) -> None:
        if guest.release != self._releases[guest.agent]:
            what = "its folder is not the one that the gateway has"
            self._say("refused", guest.agent, "other-release", what)
            raise _Goes(RELEASE, what)

    async def _mind(self, guest: Guest) -> None:
        """End the connection when its token does, or is revoked."""
        while True:
            self._same_release(guest)
            if self._now_us() >= guest.claims.expires_us:
                self._say("refused", guest.agent, "expired", "its token expired on the connection")
                raise _Goes(TOKEN, "expired")
            if self._tokens.revoked(guest.claims):
                self._say("refused", guest.agent, "revoked", "it was revoked while connected")
                raise _Goes(TOKEN, "revoked")
            await asyncio.sleep(_LOOK_S)

    async def _lend(self, connection: ServerConnection, guest: Guest) -> None:
        """Give the worker one berth after the other, and carry what its seat says."""
        while True:
            berth = await self._next(guest.agent)
            try:
                self._same_release(guest)
            except _Goes:
                self._offer(berth)
                raise
            guest.berth = berth
            guest.given.add(berth.number)
            guest.gone.clear()
            self._sitting[berth.number] = connection
            try:
                self._say("born", berth.number)
                begin = {"begin": berth.number, "memory": berth.memory}
                await connection.send(orjson.dumps(begin).decode())
                head = berth.number.to_bytes(4, "little")
                while data := await self._loop.sock_recv(berth.line, CHUNK):
                    await connection.send(head + data)
                if not berth.taken:
                    await connection.send(orjson.dumps({"end": berth.number}).decode())
            except OSError:
                pass
            except BaseException:
                # The connection is gone, and maybe not through any fault of what was asked.
                berth.how, berth.charge = "lost its connection", False
                raise
            finally:
                guest.berth = None
                del self._sitting[berth.number]
                self._end(berth)
            if not berth.taken:
                await self._let_go(guest)

    async def _let_go(self, guest: Guest) -> None:
        """Wait until a worker says that it is free again: one that hangs gets no other berth."""
        try:
            async with asyncio.timeout(_HANG_S):
                await guest.gone.wait()
        except TimeoutError as error:
            raise _Goes(PROTOCOL, "it did not let go") from error

    async def _read(self, connection: ServerConnection, guest: Guest) -> None:
        """Carry what the worker says to its seat. Ends with the connection."""
        async for message in connection:
            if isinstance(message, str):
                await self._told(_object(message), guest)
                continue
            number = int.from_bytes(message[:4], "little")
            if number not in guest.given:
                what = "it answered what was asked of somebody else"
                self._say("refused", guest.agent, "not-given", what)
                raise _Goes(NOT_GIVEN, what)
            berth = guest.berth
            if berth is not None and berth.number == number and not berth.taken:
                with suppress(OSError):  # the seat hung up: its last words are not wanted
                    await self._loop.sock_sendall(berth.line, message[4:])

    async def _told(self, told: Mapping[str, Any], guest: Guest) -> None:
        if "gone" in told:
            guest.gone.set()
        elif "token" in told:
            try:
                _, claims = await self._tokens.verify(str(told["token"]), guest.agent)
            except BadToken as error:
                self._say("refused", guest.agent, error.code, error.what)
                raise _Goes(TOKEN, error.code) from error
            except Unavailable:
                return  # the present one holds for as long as it does
            guest.claims = claims
            return
        berth = guest.berth
        number = told.get("ended")
        if number is None and isinstance(told.get("note"), list):
            number, *note = told["note"]
        else:
            note = told.get("note", [])
        if berth is None or berth.number != number or berth.taken:
            return
        if len(note) == 2 and all(isinstance(n, int) and 0 <= n < 2**63 for n in note):
            os.pwrite(berth.note, _NOTE.pack(*note), 0)
        if "ended" in told:
            berth.how, berth.taken = str(told.get("how"))[:200], True
            berth.charge = told.get("charge") is not False
            with suppress(OSError):
                berth.line.shutdown(2)


def quiet() -> logging.Logger:
    """Return a log for connections that says nothing: at its finest it would write tokens down."""
    log = logging.getLogger("vedette.websockets")
    log.setLevel(logging.CRITICAL + 1)
    return log


def _object(message: str | bytes) -> dict[str, Any]:
    """Return a message's JSON object; an empty one for anything else that is JSON."""
    try:
        told = orjson.loads(message)
    except ValueError as error:
        raise _Goes(PROTOCOL, "no JSON") from error
    return told if isinstance(told, dict) else {}


def _counted(connections: Connections) -> type[ServerConnection]:
    """Return a connection that is cut off where there is no room: before its handshake, too."""
    from websockets.asyncio.server import ServerConnection

    class Counted(ServerConnection):
        _peer: str | None = None

        def connection_made(self, transport: asyncio.BaseTransport) -> None:
            super().connection_made(transport)
            address = self.remote_address
            peer = str(address[0]) if isinstance(address, tuple) else ""
            if connections.enter(peer):
                self._peer = peer
            else:
                self.transport.abort()

        def connection_lost(self, exc: Exception | None) -> None:
            if self._peer is not None:
                connections.leave(self._peer)
                self._peer = None
            super().connection_lost(exc)

    return Counted

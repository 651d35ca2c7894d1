"""The server: a thread with a loop, one application for all wires, a record of what came."""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
import struct
import threading
from collections import Counter
from collections.abc import Awaitable, Callable, Collection, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from types import TracebackType
from typing import TYPE_CHECKING, Any

from msgspec import Struct

from vedette.testing.model_server.anthropic import Anthropic
from vedette.testing.model_server.chat_completions import ChatCompletions
from vedette.testing.model_server.fault import (
    CutAnswer,
    ErrorAnswer,
    Fault,
    FaultRule,
    RawAnswer,
    ResetConnection,
    SlowAnswer,
    StallAnswer,
)
from vedette.testing.model_server.gemini import Gemini
from vedette.testing.model_server.ollama import Ollama
from vedette.testing.model_server.responses import Responses
from vedette.testing.model_server.turn import Request, Script, Turn
from vedette.testing.model_server.turn_history import Route, TurnHistory, prefixes
from vedette.testing.model_server.wire import (
    JSON,
    Answer,
    HttpRequest,
    Model,
    Refusal,
    Wire,
    encode,
    ids,
)

if TYPE_CHECKING:
    from vedette.domain.base.clock import Clock

KEY = "test-key"
MODELS = (
    Model("gemini-3-pro-preview", "gemini"),
    Model("gemini-2.5-flash", "gemini", strict=False),
    Model("claude-opus-5-5", "anthropic"),
    Model("claude-sonnet-4-5", "anthropic", strict=False),
    Model("gpt-5.5", "responses"),
    Model("gpt-5.5", "chat"),
    Model("qwen3", "ollama"),
)
# 2025-06-15 15:06:40 UTC: what answers are dated, where the server was given no clock.
_EPOCH_S = 1_750_000_000
# Scripts may wait for one another, so each request in flight has a thread.
_THREADS = 256

Receive = Callable[[], Awaitable[Any]]
Send = Callable[[Any], Awaitable[None]]


class Exchange(Struct):
    """One request and what was said to it.

    `wire` is "" for a path of no wire, `request` None for what was refused before it was read.
    `status` is None as long as no answer has begun; `ended` is False while it is in flight, and
    `cut` tells that the client did not get the whole of the answer.
    """

    number: int
    wire: str
    method: str
    path: str
    headers: Mapping[str, str]
    body: Any
    request: Request | None = None
    status: int | None = None
    ended: bool = False
    cut: bool = False


class ModelServer:
    """Model providers on a free port of 127.0.0.1, while the context lasts.

    `script` makes the turn that answers a request that is well-formed; it runs on a thread of its
    own and may block. `keys` are the API keys taken, `models` those there are. `clock` is what
    faults of a period go by. What a script raises is answered with the wire's error 500 and raised
    again by `close`, and so by the end of the context.
    """

    def __init__(
        self,
        script: Script,
        *,
        keys: Collection[str] = (KEY,),
        models: Sequence[Model] = MODELS,
        clock: Clock | None = None,
    ) -> None:
        self.keys = frozenset(keys)
        self.models = {(model.wire, model.name): model for model in models}
        self.history = TurnHistory()
        self.exchanges: list[Exchange] = []
        self.calls_in_flight = 0
        self.max_calls_in_flight = 0
        self._script = script
        self._clock = clock
        self._rules: list[FaultRule] = []
        self._errors: list[BaseException] = []
        self._ids = ids("model server")
        self._wires: tuple[Wire, ...] = (
            Gemini(self),
            Anthropic(self),
            Responses(self),
            ChatCompletions(self),
            Ollama(self),
        )
        self._socket: socket.socket | None = None
        self._started = threading.Event()
        self._thread: threading.Thread | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._closing: asyncio.Event | None = None
        self._scripts = ThreadPoolExecutor(_THREADS, "model script")

    # --- while it lasts -----------------------------------------------------------------------

    def __enter__(self) -> ModelServer:
        self._socket = socket.create_server(("127.0.0.1", 0))
        # Head and body are two writes: else the second waits for the client's delayed ACK, 40 ms.
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._thread = threading.Thread(target=self._serve, name="model server")
        self._thread.start()
        self._started.wait()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        try:
            self.close()
        except Exception as scripts:
            if error is not None:
                raise scripts from error
            raise

    def close(self) -> None:
        """End all connections and the server. Raises what a script raised, the first of it."""
        if self._thread is not None and self._thread.is_alive():
            assert self._loop is not None
            assert self._closing is not None
            self._loop.call_soon_threadsafe(self._closing.set)
            self._thread.join()
        self._scripts.shutdown()
        if self._errors:
            first, self._errors = self._errors[0], []
            raise first

    @property
    def url(self) -> str:
        """Return where it is: no path, no slash. OpenAI's clients want `/v1` after it."""
        assert self._socket is not None, "the server is not running"
        return f"http://127.0.0.1:{self._socket.getsockname()[1]}"

    # --- what tests order ---------------------------------------------------------------------

    def add_fault(
        self,
        fault: Fault,
        *,
        requests: Collection[int] | None = None,
        period_us: tuple[int, int] | None = None,
        wire: str | None = None,
    ) -> None:
        """Let requests meet with a fault: by number from 1, within a time of the clock, or all.

        Of several that apply the one added first counts. A request that is malformed is refused
        even then. Raises ValueError for a period without a clock.
        """
        if period_us is not None and self._clock is None:
            raise ValueError("a fault of a period needs a clock: ModelServer(script, clock=…)")
        self._rules = [*self._rules, FaultRule(fault, requests, period_us, wire)]

    def end_faults(self) -> None:
        """From the next request on nothing goes wrong."""
        self._rules = []

    def forget_turns(self) -> None:
        """Forget what was handed out, as a provider does that changes its keys.

        Signatures of before are refused from now on, and a conversation without them is taken as
        one with another model.
        """
        self.history = TurnHistory()

    # --- what came ----------------------------------------------------------------------------

    @property
    def requests(self) -> list[Request]:
        """Return the requests that were well-formed, in the order they came."""
        return [each.request for each in list(self.exchanges) if each.request is not None]

    @property
    def statuses(self) -> Counter[int]:
        """Return how often each status was answered."""
        return Counter(each.status for each in list(self.exchanges) if each.status is not None)

    # --- for the wires ------------------------------------------------------------------------

    def new_id(self, prefix: str, digits: int = 24) -> str:
        """Return an opaque name that was never given before."""
        return prefix + next(self._ids)[:digits]

    def now_s(self) -> int:
        """Return the clock's time in whole seconds; without a clock always the same."""
        return self._clock.now_us() // 1_000_000 if self._clock else _EPOCH_S

    # --- the thread ---------------------------------------------------------------------------

    def _serve(self) -> None:
        try:
            asyncio.run(self._run())
        except BaseException as error:
            self._errors.append(error)
        finally:
            self._started.set()

    async def _run(self) -> None:
        import uvicorn

        from vedette.interfaces.http.uvicorn_server import serve

        self._loop = asyncio.get_running_loop()
        self._closing = asyncio.Event()
        config = uvicorn.Config(
            self._application,
            interface="asgi3",
            http=_build_protocol(),
            ws="none",
            lifespan="off",
            loop="none",
            log_config=None,
            log_level="critical",
            access_log=False,
            server_header=False,
            backlog=1024,
        )
        assert self._socket is not None
        async with serve(config, self._socket, "model server", None, grace_s=1):
            self._started.set()
            await self._closing.wait()

    async def _application(self, scope: Any, receive: Receive, send: Send) -> None:
        try:
            await self._receive(scope, receive, send)
        except Exception as error:
            self._errors.append(error)

    async def _receive(self, scope: Any, receive: Receive, send: Send) -> None:
        from starlette.requests import ClientDisconnect
        from starlette.requests import Request as HttpScope

        asked = HttpScope(scope, receive)
        try:
            body = await asked.body()
        except ClientDisconnect:
            return
        http = HttpRequest(
            len(self.exchanges) + 1,
            asked.method,
            asked.url.path,
            dict(asked.query_params),
            {name.lower(): value for name, value in asked.headers.items()},
            body,
        )
        wire = next((wire for wire in self._wires if wire.match(http.method, http.path)), None)
        exchange = Exchange(
            http.number,
            wire.name if wire else "",
            http.method,
            http.path,
            http.headers,
            _json(body),
        )
        self.exchanges.append(exchange)
        self.calls_in_flight += 1
        self.max_calls_in_flight = max(self.max_calls_in_flight, self.calls_in_flight)
        connection = _Connection(
            exchange, send, scope["state"]["protocol"], lambda: self._leave(exchange)
        )
        work = asyncio.ensure_future(self._handle(exchange, wire, http, connection))
        gone = asyncio.ensure_future(_disconnected(receive))
        try:
            await asyncio.wait({work, gone}, return_when=asyncio.FIRST_COMPLETED)
            if not (work.done() or connection.complete):
                work.cancel()
        finally:
            gone.cancel()
            await asyncio.gather(work, gone, return_exceptions=True)
            self._leave(exchange)

    def _leave(self, exchange: Exchange) -> None:
        """Count a call out, once."""
        if not exchange.ended:
            exchange.ended = True
            self.calls_in_flight -= 1

    async def _handle(
        self, exchange: Exchange, wire: Wire | None, http: HttpRequest, connection: _Connection
    ) -> None:
        try:
            if wire is None:
                await connection.send_all(404, JSON, [encode({"error": "404 page not found"})])
                return
            try:
                asked = wire.read(http)
                if isinstance(asked, Answer):
                    await connection.send_all(200, asked.headers, asked.body)
                    return
                exchange.request = asked
                now_us = self._clock.now_us() if self._clock else 0
                rules = (
                    rule for rule in self._rules if rule.applies(http.number, wire.name, now_us)
                )
                rule = next(rules, None)
                await self._answer(wire, asked, rule.fault if rule else None, connection)
            except Refusal as refusal:
                headers = {**JSON, **refusal.headers}
                await connection.send_all(refusal.status, headers, [encode(refusal.body)])
        except asyncio.CancelledError:
            raise
        except BaseException as error:
            self._errors.append(error)
            if exchange.status is not None:
                connection.abort()
                return
            failure = wire.trouble(ErrorAnswer("internal")) if wire else Refusal(500, {})
            await connection.send_all(failure.status, JSON, [encode(failure.body)])

    async def _answer(
        self, wire: Wire, asked: Request, fault: Fault | None, connection: _Connection
    ) -> None:
        if isinstance(fault, ErrorAnswer):
            raise wire.trouble(fault)
        if isinstance(fault, RawAnswer):
            await connection.send_all(fault.status, fault.headers, [fault.body])
            return
        if isinstance(fault, ResetConnection):
            connection.abort()
            return
        assert self._loop is not None
        turn = await self._loop.run_in_executor(self._scripts, self._ask, asked)
        if turn is None:
            raise wire.trouble(ErrorAnswer("internal"))
        answer = wire.write(asked, turn)
        if isinstance(fault, CutAnswer | StallAnswer):
            whole = b"".join(answer.body)
            await connection.begin(200, answer.headers, len(whole))
            await connection.send(whole[: fault.after_bytes])
            if isinstance(fault, CutAnswer):
                connection.abort()
            else:
                await asyncio.Event().wait()
            return
        with self._handed_out(asked, answer, connection):
            if isinstance(fault, SlowAnswer):
                whole = b"".join(answer.body)
                await connection.begin(200, answer.headers, len(whole))
                size = fault.piece_bytes
                for at in range(0, len(whole), size):
                    await asyncio.sleep(fault.pause_s)
                    piece = whole[at : at + size]
                    last = at + size >= len(whole)
                    await (connection.end if last else connection.send)(piece)
            else:
                await connection.send_all(200, answer.headers, answer.body)

    def _ask(self, asked: Request) -> Turn | None:
        try:
            return self._script(asked)
        except BaseException as error:
            # Kept here: a StopIteration would not arrive through a future.
            self._errors.append(error)
            return None

    @contextlib.contextmanager
    def _handed_out(
        self, asked: Request, answer: Answer, connection: _Connection
    ) -> Iterator[None]:
        """Remember a turn before its last byte is sent; not if the client did not get it whole."""
        route: Route = (asked.wire, asked.model, asked.key)
        prefix = prefixes(asked.messages)[-1]
        history = self.history
        history.remember(route, prefix, answer.parts, answer.opaque)
        try:
            yield
        finally:
            if not connection.complete:
                history.retract(route, prefix, answer.parts)


class _Connection:
    """How an answer goes out, byte by byte if need be.

    `leave` is called when the call is over: just before the last bytes are handed to the kernel,
    since the client may ask again before anybody here is told that they arrived.
    """

    def __init__(
        self, exchange: Exchange, send: Send, protocol: Any, leave: Callable[[], None]
    ) -> None:
        self.complete = False
        self._exchange = exchange
        self._send = send
        self._transport: asyncio.Transport = protocol.transport
        self._leave = leave
        protocol.on_end = self._lost

    async def begin(self, status: int, headers: Mapping[str, str], length: int) -> None:
        fields = dict(headers)
        if "event-stream" not in fields.get("content-type", ""):
            fields["content-length"] = str(length)
        self._exchange.status = status
        named = [(name.encode(), value.encode()) for name, value in fields.items()]
        await self._send({"type": "http.response.start", "status": status, "headers": named})

    async def send(self, body: bytes) -> None:
        await self._send({"type": "http.response.body", "body": body, "more_body": True})

    async def end(self, body: bytes = b"") -> None:
        # Empty, it waits until what was sent before has gone.
        await self.send(b"")
        self.complete = not self._exchange.cut
        self._leave()
        await self._send({"type": "http.response.body", "body": body, "more_body": False})

    async def send_all(
        self, status: int, headers: Mapping[str, str], body: Sequence[bytes]
    ) -> None:
        await self.begin(status, headers, sum(map(len, body)))
        for piece in body[:-1]:
            await self.send(piece)
        await self.end(body[-1] if body else b"")

    def abort(self) -> None:
        """Reset the connection: what the client has not read yet may be lost."""
        self._lost()
        connection: socket.socket | None = self._transport.get_extra_info("socket")
        if connection is not None:
            with contextlib.suppress(OSError):
                linger = struct.pack("ii", 1, 0)
                connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
        self._transport.abort()

    def _lost(self) -> None:
        self._exchange.cut = not self.complete
        self._leave()


def _build_protocol() -> type[asyncio.Protocol]:
    """Return uvicorn's protocol, which hands itself on with each request and tells its end."""
    from uvicorn.protocols.http.h11_impl import H11Protocol

    base: Any = H11Protocol

    class ConnectionProtocol(base):  # type: ignore[misc]
        def connection_made(self, transport: asyncio.Transport) -> None:
            own: Any = self
            own.app_state = {**own.app_state, "protocol": self}
            self.on_end: Callable[[], None] = lambda: None
            super().connection_made(transport)

        def connection_lost(self, error: Exception | None) -> None:
            # At once: who left may have asked again, over a connection that is looked at next.
            self.on_end()
            super().connection_lost(error)

    return ConnectionProtocol


async def _disconnected(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


def _json(body: bytes) -> Any:
    """Return a body as JSON, or as the text that it is."""
    try:
        return json.loads(body)
    except ValueError:
        return body.decode("utf-8", "replace")

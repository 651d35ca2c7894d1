"""The connection to an OPA server: a pool on a thread of its own, asked from any other.

A thread and an event loop, because only so is a deadline the whole one: opa-python-client's
synchronous half waits anew for each read, so a server that sends a byte now and then holds it for
as long as it likes (measured: 7.5 s at a timeout of 1.5 s). Nothing is retried, no redirect is
followed, no proxy of the environment is used, and the server is never written to.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Coroutine
from concurrent.futures import CancelledError, Future
from typing import Any, Literal, TypeVar
from urllib.parse import urlsplit

import orjson
from msgspec import Struct

from vedette.domain.bundle import ENTRY_PATH
from vedette.domain.ports.reasoner import Metrics

# How often a server that did not answer is tried again, apart from any decision.
PROBE_S = 0.25
# How much longer than the deadline the asking thread waits for the other to notice it.
_SLACK_S = 0.01
_OPEN_S = 5.0
_MAX_ANSWER_BYTES = 1 << 20
_PATH = f"data/{ENTRY_PATH}?provenance=true"

FailureReason = Literal["down", "timeout", "unreachable", "status", "revision", "shape"]
_T = TypeVar("_T")


class OpaUnavailable(Exception):
    """The OPA server gave no usable answer; `reason` says why, as the metric counts it."""

    def __init__(self, reason: FailureReason, what: str) -> None:
        super().__init__(what)
        self.reason: FailureReason = reason


class Answer(Struct, frozen=True):
    """What an OPA server said: the decision (None: undefined), and under which bundle.

    `digest` is None if the server does not serve one bundle of ours; `version` is the server's.
    """

    result: object
    digest: str | None
    version: str


class OpaConnection:
    """Asks an OPA server for decisions. May be used from any thread; one for a process.

    It remembers whether the server answers and under which bundle, so that a decision does not
    wait for a server that is known to be away.
    """

    def __init__(self, url: str, *, token: str | None, timeout_us: int, metrics: Metrics) -> None:
        """Set it up; nothing is connected before the first question.

        `timeout_us` bounds one question from its start to the last byte of the answer.
        """
        parts = urlsplit(url)
        self._tls = parts.scheme == "https"
        host = parts.hostname or "127.0.0.1"
        self._host = f"[{host}]" if ":" in host else host
        self._port = parts.port or (443 if self._tls else 80)
        self._token = token
        self._timeout_s = timeout_us / 1e6
        self._metrics = metrics
        self._lock = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._client: Any = None
        self._probe_task: Future[None] | None = None
        self._reachable = True
        # None: no bundle of ours, which is not the same as not having heard yet.
        self._served_digest: str | None = None
        self._has_answer = False
        self._wanted_digest = ""
        self._closed = False

    def open(self, digest: str) -> None:
        """Connect, once, and learn what the server serves; waits 5 s at most.

        Without it the first questions would be late: loading the client takes 0.4 s.
        """
        if self._loop is None:
            future = self._schedule(self._connect(digest))
            try:
                future.result(_OPEN_S)
            except Exception:
                future.cancel()
                self.mark_unreachable(digest)

    def is_ready(self, digest: str) -> bool:
        """Say whether it is worth asking: the server serves this bundle, or was never heard."""
        return self._reachable and (not self._has_answer or self._served_digest == digest)

    def ask(self, request: bytes) -> Answer:
        """Put a question (JSON) to the server. Raises OpaUnavailable, by the deadline."""
        future = self._schedule(self._ask(request))
        try:
            answer = future.result(self._timeout_s + _SLACK_S)
        except TimeoutError as error:
            future.cancel()
            raise OpaUnavailable("timeout", "no answer in time") from error
        except CancelledError as error:  # by `close`
            raise OpaUnavailable("unreachable", f"{type(error).__name__}: {error}") from error
        self._record_answer(answer)
        return answer

    def start_probing(self, digest: str) -> None:
        """Leave the server alone from now on, and look in the background until it serves `digest`.

        To be told after every answer that was of no use; costs nothing if that is known already.
        """
        self._wanted_digest = digest
        self._metrics.gauge("policy_engine_up", 0)
        if (self._probe_task is None or self._probe_task.done()) and not self._closed:
            self._probe_task = self._schedule(self._probe())

    def mark_unreachable(self, digest: str) -> None:
        """As `start_probing`, of a server that gave no answer at all."""
        self._reachable = False
        self.start_probing(digest)

    def close(self) -> None:
        """Close the connections and end the thread."""
        with self._lock:
            self._closed = True
            loop, thread = self._loop, self._thread
        if loop is None or thread is None:
            return
        # Whatever hangs there must not keep the fleet from closing its store.
        with contextlib.suppress(Exception):
            asyncio.run_coroutine_threadsafe(self._shut_down(), loop).result(2)
        loop.call_soon_threadsafe(loop.stop)
        thread.join(2)
        if not thread.is_alive():
            loop.close()

    # --- on the connection's own thread -----------------------------------------------------

    async def _ask(self, request: bytes) -> Answer:
        try:
            async with asyncio.timeout(self._timeout_s):
                return _parse_answer(await self._post(b'{"input":%b}' % request))
        except TimeoutError as error:
            raise OpaUnavailable("timeout", "no answer in time") from error
        except OpaUnavailable:
            raise
        except Exception as error:  # whatever the vendor breaks by must not end a decision
            raise OpaUnavailable("unreachable", f"{type(error).__name__}: {error}") from error

    async def _post(self, body: bytes) -> bytes:
        client = self._client = self._client or await self._build_client()
        # The client's own query_rule takes redirects and every status below 400.
        async with client._request(
            "POST",
            f"{client.root_url}/{_PATH}",
            data=body,
            headers={"Content-Type": "application/json"},
            allow_redirects=False,
        ) as response:
            if response.status != 200:
                raise OpaUnavailable("status", f"the server answered {response.status}")
            found = bytearray()
            async for part in response.content.iter_any():
                found += part
                if len(found) > _MAX_ANSWER_BYTES:
                    response.close()
                    raise OpaUnavailable("shape", "the answer is longer than any decision")
            return bytes(found)

    async def _build_client(self) -> Any:
        from opa_client import AsyncOpaClient

        return await AsyncOpaClient(
            host=self._host,
            port=self._port,
            ssl=self._tls,
            token=self._token,
            retries=0,
            timeout=self._timeout_s,
        ).__aenter__()

    def _record_answer(self, answer: Answer) -> None:
        self._served_digest, self._has_answer, self._reachable = answer.digest, True, True

    async def _connect(self, digest: str) -> None:
        self._client = await self._build_client()
        answer = await self._ask(b"{}")
        self._record_answer(answer)
        self._metrics.gauge("policy_engine_up", int(answer.digest == digest))

    async def _probe(self) -> None:
        while not self._closed:
            try:
                answer = await self._ask(b"{}")
            except OpaUnavailable:
                self._reachable = False
            else:
                self._record_answer(answer)
                if answer.digest == self._wanted_digest:
                    self._metrics.gauge("policy_engine_up", 1)
                    return
            await asyncio.sleep(PROBE_S)

    async def _shut_down(self) -> None:
        if self._probe_task is not None:
            self._probe_task.cancel()
        if self._client is not None:
            await self._client.close_connection()
        # What was cancelled must have ended before its loop does.
        others = asyncio.all_tasks() - {asyncio.current_task()}
        for task in others:
            task.cancel()
        await asyncio.gather(*others, return_exceptions=True)

    # --- the thread -------------------------------------------------------------------------

    def _schedule(self, coroutine: Coroutine[Any, Any, _T]) -> Future[_T]:
        with self._lock:
            if self._closed:
                coroutine.close()
                raise OpaUnavailable("down", "the link is closed")
            if self._loop is None:
                self._loop = asyncio.new_event_loop()
                self._thread = threading.Thread(
                    target=self._loop.run_forever, name="vedette-opa", daemon=True
                )
                self._thread.start()
            return asyncio.run_coroutine_threadsafe(coroutine, self._loop)


def _parse_answer(raw: bytes) -> Answer:
    """Read what the server answered. Raises OpaUnavailable for another shape."""
    try:
        document = orjson.loads(raw)
        provenance = document.get("provenance") or {}
        bundles = provenance.get("bundles") or {}
        revisions = [str(each.get("revision", "")).split(" ") for each in bundles.values()]
        # A server may hold bundles of others beside ours (its own authorisation, say).
        ours = [words[1] for words in revisions if len(words) == 2 and len(words[1]) == 64]
        version = str(provenance.get("version") or "unknown")
        return Answer(document.get("result"), ours[0] if len(ours) == 1 else None, version)
    except (orjson.JSONDecodeError, AttributeError) as error:
        raise OpaUnavailable("shape", "the answer is no decision document") from error

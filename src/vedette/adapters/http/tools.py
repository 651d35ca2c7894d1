"""Performs tools that are requests: no agent's code runs, and none sees a credential.

A request runs on a thread that ends with the time of the call: its connection is closed under it.
Only a name that is not resolved can keep one longer, and then nothing has been sent, nor will be.
Every agent has threads of its own: what hangs for one takes nothing from another.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from typing import Any

from msgspec import Struct, field

from vedette.adapters.http.outcomes import outcome_of, query_outcome
from vedette.adapters.http.request import (
    NoResponse,
    Response,
    SendFailure,
    credential_headers,
    parse_endpoint,
    send_request,
)
from vedette.adapters.http.template import BadArgument, Request, build_request
from vedette.adapters.http_client import shut_down
from vedette.domain.base import failpoint, machine
from vedette.domain.effect import Call, Outcome
from vedette.domain.tool import Tool

THREADS = 16  # of one agent
_GRACE_S = 1.0  # that a thread has, behind the end of its call, to come back

_Key = tuple[str, str, str]


class _Attempt(Struct, eq=False):
    """One request. `sent` and `cancelled` exclude each other: whoever is first has its way."""

    deadline: float
    lock: machine.Lock = field(default_factory=lambda: machine.Lock())
    sent: bool = False
    cancelled: bool = False
    sock: socket.socket | None = None

    def may_send(self, sock: socket.socket, may_start: Callable[[], bool]) -> bool:
        """Say whether the first byte may go out now; asked on the thread."""
        with self.lock:
            if self.cancelled or machine.monotonic_s() >= self.deadline or not may_start():
                self.cancelled = True
                return False
            self.sock, self.sent = sock, True
        failpoint.hit_failpoint("call:before")
        return True

    def cancel(self) -> bool:
        """End it; return whether something was sent."""
        with self.lock:
            self.cancelled = not self.sent
            if self.sock is not None:
                shut_down(self.sock)
            return self.sent


class HttpTools:
    """Makes the requests of HTTP tools. Belongs to one event loop."""

    def __init__(self) -> None:
        self._threads: dict[str, machine.ThreadPoolExecutor] = {}
        self._slots: dict[str, asyncio.Semaphore] = {}
        self._running: dict[_Key, asyncio.Future[Any]] = {}

    async def perform(
        self, tool: Tool, call: Call, may_start: Callable[[], bool]
    ) -> Outcome | None:
        """Make the tool's request once; None if it may not start.

        While an earlier request of the key has not come back, none is made.
        """
        if not await self._wait_for_earlier(call):
            return Outcome("unknown", error="an earlier call has not come back yet")
        try:
            answer = await self._run_request(
                build_request(_request(tool), call.args, call.key), call, may_start
            )
        except BadArgument as error:
            return Outcome("failed", error=f"not called: {error}")
        except SendFailure as error:
            return Outcome("retry" if error.transient else "failed", error=f"not called: {error}")
        except NoResponse as error:
            return Outcome("unknown", error=f"no answer: {error}")
        return None if answer is None else outcome_of(tool, answer)

    async def query(self, tool: Tool, call: Call) -> Outcome | None:
        """Ask the target what came of the call's key, by the tool's query; None if it is not there.

        `unknown` while the call has not come back, as nobody can know what it will do yet.
        """
        spec = _request(tool).get("query")
        if spec is None:
            return Outcome("unknown", error="the tool has no query")
        if not await self._wait_for_earlier(call):
            return Outcome("unknown", error="an earlier call has not come back yet")
        try:
            answer = await self._run_request(
                build_request(spec, call.args, call.key), call, lambda: True
            )
            assert answer is not None
            return query_outcome(spec, answer, call)
        except (BadArgument, SendFailure, NoResponse) as error:
            return Outcome("unknown", error=f"the target cannot be asked: {error}")

    async def _wait_for_earlier(self, call: Call) -> bool:
        """Wait for an earlier request of the key, as long as a call may take."""
        key, end = _key(call), machine.monotonic_s() + _seconds(call)
        while (earlier := self._running.get(key)) is not None:
            await asyncio.wait({earlier}, timeout=max(0.0, end - machine.monotonic_s()))
            if not earlier.done():
                return False
            await asyncio.sleep(0)
        return True

    async def _run_request(
        self, request: Request, call: Call, may_start: Callable[[], bool]
    ) -> Response | None:
        """Make one request on a thread. Raises NotSent, NoAnswer."""
        endpoint = parse_endpoint(call.target)
        headers = {
            **credential_headers(call.target, endpoint),
            "traceparent": call.traceparent,
            **call.labels,
            "User-Agent": "vedette",
        }
        async with self._slots.setdefault(call.agent, asyncio.Semaphore(THREADS)):
            attempt = _Attempt(machine.monotonic_s() + _seconds(call))

            def work() -> Response | None:
                answer = send_request(
                    endpoint, request, headers, attempt.deadline,
                    lambda line: attempt.may_send(line, may_start),
                )  # fmt: skip
                failpoint.hit_failpoint("call:after")
                return answer

            running = asyncio.wrap_future(self._submit(call.agent, work))
            self._running[_key(call)] = running
            running.add_done_callback(lambda ended: self._finish_request(call, ended))
            try:
                await asyncio.wait({running}, timeout=_seconds(call))
            except asyncio.CancelledError:
                attempt.cancel()
                raise
            if not running.done():
                sent = attempt.cancel()
                # The thread comes back at once, unless it still waits for a name.
                await asyncio.wait({running}, timeout=_GRACE_S if sent else 0.0)
                if not running.done():
                    if not sent:
                        # It will never send: the next try has not to wait for it.
                        self._forget(call, running)
                    error = f"no answer within {_seconds(call):g} s"
                    raise NoResponse(error) if sent else SendFailure(error)
            return running.result()

    def _submit(self, agent: str, work: Callable[[], Response | None]) -> Future[Response | None]:
        threads = self._threads.get(agent)
        if threads is None:
            # More than are let in: those that wait for a name are counted no longer.
            threads = machine.ThreadPoolExecutor(
                4 * THREADS, thread_name_prefix=f"vedette-http-{agent}"
            )
            self._threads[agent] = threads
        return threads.submit(work)

    def _finish_request(self, call: Call, ended: asyncio.Future[Any]) -> None:
        self._forget(call, ended)
        if not ended.cancelled():
            ended.exception()  # whoever waits is told; nobody may be

    def _forget(self, call: Call, running: asyncio.Future[Any]) -> None:
        if self._running.get(_key(call)) is running:
            del self._running[_key(call)]

    def close(self) -> None:
        """Let the threads end; waits for none."""
        for threads in self._threads.values():
            threads.shutdown(wait=False, cancel_futures=True)


def _request(tool: Tool) -> Mapping[str, Any]:
    assert tool.request is not None
    return tool.request


def _key(call: Call) -> _Key:
    return (call.agent, call.tool, call.key)


def _seconds(call: Call) -> float:
    return call.timeout_us / 1_000_000

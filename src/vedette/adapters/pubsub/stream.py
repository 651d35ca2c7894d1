"""Streaming pull of Pub/Sub, for as long as its source runs: opened, kept alive, opened again.

The broker closes a stream for reasons of its own every so often, so an end is no error. What may
pass is tried again after a pause with full jitter (https://aws.amazon.com/blogs/architecture/
exponential-backoff-and-jitter/); a subscription that is not there, or that we may not read, is
told to a person and asked for again, slowly: it may be made, or granted, while we run.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any

from msgspec import Struct

from vedette.adapters.pubsub.acknowledgement import is_transient
from vedette.adapters.pubsub.client import Connection
from vedette.adapters.pubsub.leases import Leases

# The service closes a stream that hears nothing for about a minute.
HEARTBEAT_S = 30.0
# A stream that lasted so long was a sound one: what comes next is not its failure again.
_HEALTHY_S = 10.0


class Pauses(Struct, frozen=True):
    """How long to wait before a Pub/Sub stream is opened again, in seconds.

    After what may pass from 0 to `first_s`, doubled with each failure up to `last_s`; after what
    somebody has to mend `refused_s`, and up to half of it more.
    """

    first_s: float = 0.25
    last_s: float = 10.0
    refused_s: float = 5.0


class StreamEnd(Exception):
    """A Pub/Sub stream is over: its status by name, the broker's words, and whether it passes."""

    def __init__(self, code: str, said: str, transient: bool) -> None:
        super().__init__(f"{code}: {said}" if said else code)
        self.code, self.transient = code, transient


class PullStream:
    """Reads one Pub/Sub stream while `leases` have room; `on_response` gets each response.

    `first` are the fields of the opening request. `report` is told when something has to be mended,
    and that it was; `on_end` gets the code of each stream that is over.
    """

    def __init__(
        self,
        connection: Connection,
        first: Mapping[str, Any],
        *,
        leases: Leases,
        on_response: Callable[[Any], None],
        report: Callable[[str], None],
        on_end: Callable[[str], None],
        pauses: Pauses,
    ) -> None:
        self._connection = connection
        self._first = first
        self._leases = leases
        self._on_response = on_response
        self._report = report
        self._on_end = on_end
        self._pauses = pauses
        self._refusal_code: str | None = None
        self._call: Any = None
        self._stop = asyncio.Event()

    async def finish(self, within_s: float) -> None:
        """Let `run` end when the broker has ended the stream, which it is asked to. Never raises.

        A stream that is only cancelled may be sent more for a while, and what it is sent is lost
        until its lease runs out. A broker that cannot be reached is not waited for: on a channel
        that still connects, gRPC would take its 20 s and then fail in ways of its own.
        """
        self._stop.set()
        if self._call is not None:
            with suppress(Exception):
                async with asyncio.timeout(within_s):
                    await self._call.done_writing()

    async def run(self) -> None:
        """Read until cancelled, or until the stream that is finished has ended."""
        failures = 0
        loop = asyncio.get_running_loop()
        while not self._stop.is_set():
            began = loop.time()
            try:
                await self._read_stream()
            except StreamEnd as end:
                self._on_end(end.code)
                if loop.time() - began > _HEALTHY_S:
                    failures = 0
                failures += 1
                with suppress(TimeoutError):
                    async with asyncio.timeout(self._pause_s(end, failures)):
                        await self._stop.wait()

    def _pause_s(self, end: StreamEnd, failures: int) -> float:
        pauses = self._pauses
        if end.transient:
            most = min(pauses.last_s, pauses.first_s * 2 ** min(failures - 1, 30))
            return random.uniform(0, most)  # noqa: S311
        if self._refusal_code != end.code:
            self._refusal_code = end.code
            self._report(f"{end}; it is asked for again every {pauses.refused_s:g} s")
        return pauses.refused_s * random.uniform(1, 1.5)  # noqa: S311

    async def _read_stream(self) -> None:
        """Read one stream to its end. Raises Ended."""
        import grpc  # type: ignore[import-untyped]

        call = self._call = self._connection.pull()
        heart: asyncio.Task[None] | None = None
        try:
            await call.write(self._connection.pull_request(**self._first))
            heart = asyncio.create_task(self._send_heartbeats(call))
            while True:
                if self._leases.is_full and not self._stop.is_set():
                    await self._wait_for_room(call)
                response = await call.read()
                if response is grpc.aio.EOF:
                    raise StreamEnd("OK", "the broker closed the stream", True)
                if self._refusal_code is not None:
                    self._refusal_code = None
                    self._report("it is there again")
                self._on_response(response)
        except grpc.aio.AioRpcError as error:
            raise StreamEnd(
                error.code().name, error.details() or "", is_transient(error)
            ) from error
        except asyncio.InvalidStateError as error:
            # Written to a call that was over: its status says why.
            raise await _stream_end(call) from error
        finally:
            if heart is not None:
                heart.cancel()
            self._call = None
            call.cancel()

    async def _wait_for_room(self, call: Any) -> None:
        """Return when there is room, or the end: that a call is over must not be heard of late."""
        waits = [
            asyncio.create_task(each)
            for each in (self._leases.wait_for_room(), call.code(), self._stop.wait())
        ]
        try:
            await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for each in waits:
                each.cancel()

    async def _send_heartbeats(self, call: Any) -> None:
        """Keep the stream alive. How it ended is the reader's to say."""
        import grpc

        with suppress(grpc.aio.AioRpcError, asyncio.InvalidStateError):
            while True:
                await asyncio.sleep(HEARTBEAT_S)
                await call.write(self._connection.pull_request())


async def _stream_end(call: Any) -> StreamEnd:
    """Return how a call that is over has ended."""
    code, said = await call.code(), await call.details()
    good = {"OK", "ABORTED", "CANCELLED", "DEADLINE_EXCEEDED", "INTERNAL"}
    return StreamEnd(code.name, said or "", code.name in good | {"UNAVAILABLE", "UNKNOWN"})

"""Transports to an MCP server: what the SDK's own do, with an end to what a server may send.

The SDK's stdio transport buffers a line for as long as none ends, gives the server the caller's
standard error and starts it in a session of its own; its HTTP client reads an answer of any length.
"""

from __future__ import annotations

import asyncio
import ssl
import subprocess
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from contextvars import ContextVar
from typing import Any

import anyio
import httpx2
import mcp_types as types
from mcp.shared.message import SessionMessage

from vedette.adapters.mcp.frames import MAX_MESSAGE_BYTES

_ERROR_TAIL_BYTES = 2_000
# The SDK carries the context of whoever sends a message along to the task that posts it.
STATUSES: ContextVar[list[int] | None] = ContextVar("statuses", default=None)


class StdioServer:
    """A server that is a program, spoken to by its standard streams, a message a line.

    `ended` says why it is over; `error_tail` is the last that it wrote to its standard error.
    """

    def __init__(self, command: Sequence[str], environment: Mapping[str, str], cwd: str) -> None:
        self._command, self._environment, self._cwd = command, environment, cwd
        self.ended = ""
        self.error_tail = b""

    @asynccontextmanager
    async def transport(self) -> AsyncIterator[tuple[Any, Any]]:
        """Start it; give the streams of an MCP transport. Raises OSError."""
        process = await asyncio.create_subprocess_exec(
            *self._command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
            env=dict(self._environment), cwd=self._cwd, limit=MAX_MESSAGE_BYTES,
        )  # fmt: skip
        received, incoming = anyio.create_memory_object_stream[Any](0)
        outgoing, to_send = anyio.create_memory_object_stream[SessionMessage](0)
        tasks = [
            asyncio.create_task(self._read(process, received)),
            asyncio.create_task(self._write(process, to_send)),
            asyncio.create_task(self._read_errors(process)),
        ]
        try:
            yield incoming, outgoing
        finally:
            with suppress(ProcessLookupError):
                process.kill()
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            for stream in (received, incoming, outgoing, to_send):
                stream.close()

    async def _read(self, process: asyncio.subprocess.Process, received: Any) -> None:
        assert process.stdout is not None
        async with received:
            # Said before the stream is closed: whoever waits on it asks why.
            try:
                while line := await process.stdout.readline():
                    if line.isspace():
                        continue
                    message = types.jsonrpc_message_adapter.validate_json(line, by_name=False)
                    await received.send(SessionMessage(message))
                self.ended = "the server ended"
            except ValueError:  # a line that is too long, or no message of JSON-RPC
                self.ended = f"the server wrote no message of at most {MAX_MESSAGE_BYTES:,} bytes"
            except (anyio.ClosedResourceError, anyio.BrokenResourceError):
                self.ended = "the connection was closed"

    async def _write(self, process: asyncio.subprocess.Process, to_send: Any) -> None:
        assert process.stdin is not None
        with suppress(OSError, anyio.ClosedResourceError):
            async with to_send:
                async for session_message in to_send:
                    text = session_message.message.model_dump_json(
                        by_alias=True, exclude_unset=True
                    )
                    process.stdin.write(text.encode() + b"\n")
                    await process.stdin.drain()

    async def _read_errors(self, process: asyncio.subprocess.Process) -> None:
        assert process.stderr is not None
        while piece := await process.stderr.read(4096):
            self.error_tail = (self.error_tail + piece)[-_ERROR_TAIL_BYTES:]


class BoundedHttp(httpx2.AsyncBaseTransport):
    """HTTP to one origin; follows nothing elsewhere, and reads no more than a message may have.

    The status of each answer to a POST is added to `STATUSES` of whoever sent the message: a GET
    asks for more of an answer, and does nothing.
    """

    def __init__(self, url: str, ca_file: str | None) -> None:
        self._origin = _origin(httpx2.URL(url))
        verify = ssl.create_default_context(cafile=ca_file)
        self._inner = httpx2.AsyncHTTPTransport(verify=verify, trust_env=False)

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        """Send a request. Raises httpx2.TransportError."""
        if _origin(request.url) != self._origin:
            raise httpx2.UnsupportedProtocol("leads to another server", request=request)
        response = await self._inner.handle_async_request(request)
        statuses = STATUSES.get()
        if statuses is not None and request.method == "POST":
            statuses.append(response.status_code)
        if "content-encoding" in response.headers:  # nobody asked for one, and it hides a length
            await response.aclose()
            raise httpx2.DecodingError("answers in an encoding", request=request)
        if not response.headers.get("content-type", "").startswith("text/event-stream"):
            response.stream = _BoundedStream(response.stream)  # of a stream each event is bounded
        return response

    async def aclose(self) -> None:
        """Close its connections."""
        await self._inner.aclose()


class _BoundedStream(httpx2.AsyncByteStream):
    def __init__(self, inner: Any) -> None:
        self._inner = inner

    async def __aiter__(self) -> AsyncIterator[bytes]:
        left = MAX_MESSAGE_BYTES
        async for piece in self._inner:
            left -= len(piece)
            if left < 0:
                raise httpx2.ReadError(f"answers more than {MAX_MESSAGE_BYTES:,} bytes")
            yield piece

    async def aclose(self) -> None:
        await self._inner.aclose()


def _origin(url: httpx2.URL) -> tuple[str, str, int | None]:
    return url.scheme, url.host, url.port

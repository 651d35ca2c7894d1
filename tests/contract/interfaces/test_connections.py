"""Who holds connections at no cost: slow headers, slow bodies, unread answers, many at once."""

from __future__ import annotations

import asyncio
import contextlib
import resource
import socket
import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from vedette.domain.base.connections import (
    RESERVED_DESCRIPTORS,
    ConnectionLimiter,
    connection_capacity,
)
from vedette.domain.base.errors import BadFleet
from vedette.interfaces.http.deadlines import build_protocol

# Seconds: short enough to wait for, long enough to tell one part from another.
HEADER, BODY, READING = 0.3, 0.6, 0.6


@contextlib.asynccontextmanager
async def served(connections: ConnectionLimiter) -> AsyncIterator[tuple[str, int]]:
    """A server of uvicorn's with our protocol: /slow thinks, /large answers much."""
    import uvicorn
    from starlette.applications import Starlette
    from starlette.requests import Request
    from starlette.responses import PlainTextResponse, Response
    from starlette.routing import Route

    async def slow(request: Request) -> Response:
        await asyncio.sleep(1.2)
        return PlainTextResponse("thought about")

    async def large(request: Request) -> Response:
        return Response(bytes(40_000_000))

    async def quick(request: Request) -> Response:
        return PlainTextResponse(f"{len(await request.body())}")

    routes = [
        Route("/slow", slow), Route("/large", large), Route("/", quick, methods=["GET", "POST"])
    ]  # fmt: skip
    made = build_protocol(connections, header_s=HEADER, body_s=BODY, reading_s=READING)
    config = uvicorn.Config(
        Starlette(routes=routes), http=made, ws="none", lifespan="off", log_config=None
    )
    server = uvicorn.Server(config)
    bound = socket.socket()
    bound.bind(("127.0.0.1", 0))
    task = asyncio.create_task(server._serve(sockets=[bound]))
    while not server.started:  # noqa: ASYNC110 (uvicorn offers nothing to await)
        await asyncio.sleep(0.005)
    try:
        yield bound.getsockname()
    finally:
        server.should_exit = server.force_exit = True
        await asyncio.wait({task}, timeout=2)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        bound.close()


async def until_cut(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, trickle: bytes
) -> float:
    """Send a byte of `trickle` now and then; return after how long the other end hung up."""
    began = time.monotonic()
    ended = asyncio.create_task(reader.read())
    async with asyncio.timeout(8):
        for byte in trickle:
            if ended.done():
                break
            with contextlib.suppress(ConnectionError):
                writer.write(bytes([byte]))
                await writer.drain()
            await asyncio.sleep(0.02)
        with contextlib.suppress(ConnectionError):
            assert await ended == b""
    writer.close()
    return time.monotonic() - began


@pytest.mark.parametrize(
    ("before", "trickle"),
    [
        (b"", b""),
        (b"", b"GET / HTTP/1.1\r\nHost: here\r\nX: " + b"x" * 400),
        (b"GET / HTTP/1.1\r\nHost: here\r\n", b"X-A: 1\r\n" * 50),
    ],
    ids=["nothing", "one-long-header", "many-headers"],
)
async def test_a_header_that_does_not_end_is_cut_off(before: bytes, trickle: bytes) -> None:
    connections = ConnectionLimiter(8)
    async with served(connections) as address:
        reader, writer = await asyncio.open_connection(*address)
        writer.write(before)
        took = await until_cut(reader, writer, trickle)
        assert HEADER * 0.8 <= took < 5
        assert connections.open == 0


async def test_the_header_of_a_later_request_has_its_time_too() -> None:
    async with served(ConnectionLimiter(8)) as address:
        reader, writer = await asyncio.open_connection(*address)
        writer.write(b"GET / HTTP/1.1\r\nHost: here\r\n\r\n")
        assert (await reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 200")
        assert await reader.readexactly(1) == b"0"
        took = await until_cut(reader, writer, b"GET / HTTP/1.1\r\nHost: " + b"h" * 400)
        assert took < 5


async def test_a_body_that_does_not_end_is_cut_off() -> None:
    async with served(ConnectionLimiter(8)) as address:
        reader, writer = await asyncio.open_connection(*address)
        writer.write(b"POST / HTTP/1.1\r\nHost: here\r\nContent-Length: 9999\r\n\r\n")
        took = await until_cut(reader, writer, b"x" * 400)
        assert BODY * 0.8 <= took < 5


async def test_an_answer_that_nobody_reads_is_cut_off() -> None:
    connections = ConnectionLimiter(8)
    async with served(connections) as address:
        reader, writer = await asyncio.open_connection(*address, limit=1024)
        writer.write(b"GET /large HTTP/1.1\r\nHost: here\r\n\r\n")
        async with asyncio.timeout(8):
            await reader.readexactly(20)
            while connections.open:  # noqa: ASYNC110 (a real server is waited for)
                await asyncio.sleep(0.02)
        writer.close()


async def test_an_answer_that_takes_long_is_waited_for() -> None:
    async with served(ConnectionLimiter(8)) as address:
        reader, writer = await asyncio.open_connection(*address)
        writer.write(b"GET /slow HTTP/1.1\r\nHost: here\r\n\r\n")
        async with asyncio.timeout(8):
            assert b"thought about" in await reader.readuntil(b"thought about")
        writer.close()


async def test_no_more_are_let_in_than_there_is_room_for_and_each_goes_out_again() -> None:
    connections = ConnectionLimiter(8)
    async with served(connections) as address:
        held = [await asyncio.open_connection(*address) for _ in range(20)]
        await asyncio.sleep(0.1)
        # One peer has half of the room.
        assert connections.open == 4
        assert connections.refusals == 16
        for _, writer in held:
            writer.close()
        async with asyncio.timeout(5):
            while connections.open:  # noqa: ASYNC110 (a real server is waited for)
                await asyncio.sleep(0.01)
        reader, writer = await asyncio.open_connection(*address)
        writer.write(b"GET / HTTP/1.1\r\nHost: here\r\nConnection: close\r\n\r\n")
        assert (await reader.read()).startswith(b"HTTP/1.1 200")
        writer.close()


def test_one_peer_leaves_room_for_another() -> None:
    connections = ConnectionLimiter(6)
    assert [connections.acquire("10.0.0.1") for _ in range(5)] == [True] * 3 + [False] * 2
    assert [connections.acquire(f"10.0.1.{n}") for n in range(4)] == [True] * 3 + [False]
    connections.release("10.0.0.1")
    assert connections.acquire("10.0.0.2")


def test_a_process_with_next_to_no_descriptors_is_told_before_it_serves() -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    used = sum(1 for _ in Path("/dev/fd").iterdir())
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (used + RESERVED_DESCRIPTORS + 40, hard))
        assert 30 <= connection_capacity() <= 41
        resource.setrlimit(resource.RLIMIT_NOFILE, (used + RESERVED_DESCRIPTORS + 4, hard))
        with pytest.raises(BadFleet) as refusal:
            connection_capacity()
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert refusal.value.code == "too-few-descriptors"

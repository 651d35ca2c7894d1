"""Requests of agents' clients: their bodies, read whole, within bounds and in time; their end."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import TYPE_CHECKING, Any, TypeVar

from vedette.domain.base.errors import BadCommand, Unavailable

if TYPE_CHECKING:
    from starlette.requests import Request
    from starlette.types import Receive

T = TypeVar("T")

READ_TIMEOUT_S = 10.0


class _TooLarge(BadCommand):
    """The error of a body that is longer than a call may be."""

    code = "too-large"


async def read_body(request: Request, max_bytes: int) -> bytes:
    """Read the body of a client's request. Raises BadCommand if it is too large or too slow."""
    from starlette.requests import ClientDisconnect

    raw = bytearray()
    try:
        async with asyncio.timeout(READ_TIMEOUT_S):
            async for chunk in request.stream():
                raw += chunk
                if len(raw) > max_bytes:
                    what = f"the body has more than {max_bytes} bytes"
                    raise _TooLarge(what, mend="send a reference instead of the content")
    except (TimeoutError, ClientDisconnect) as error:
        raise BadCommand("the body did not come in time", code="too-slow") from error
    return bytes(raw)


async def while_connected(receive: Receive, work: Coroutine[Any, Any, T]) -> T:
    """Do the work of a request that was read whole, for as long as its client is there.

    What the work waits for goes on without it. Raises Unavailable once the client has gone: nobody
    reads that.
    """
    waiting, gone = asyncio.create_task(work), asyncio.create_task(_await_disconnect(receive))
    try:
        await asyncio.wait({waiting, gone}, return_when=asyncio.FIRST_COMPLETED)
        if not waiting.done():
            raise Unavailable("the client has gone")
        return await waiting
    finally:
        for task in (waiting, gone):
            task.cancel()
        await asyncio.gather(waiting, gone, return_exceptions=True)


async def _await_disconnect(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass

"""What an HTTP client is still sending when it has been answered."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from starlette.requests import Request


async def drain_request(request: Request, max_bytes: int, seconds: float) -> None:
    """Read what is still to come of an HTTP request, within bounds, so that our answer is read.

    Most clients read nothing before they have sent everything; and to close a connection on
    unread bytes resets it, and the answer is lost on the way.
    """
    from starlette.requests import ClientDisconnect

    left = max_bytes
    try:
        async with asyncio.timeout(seconds):
            async for chunk in request.stream():
                left -= len(chunk)
                if left < 0:
                    return
    except (TimeoutError, ClientDisconnect, RuntimeError):
        return  # RuntimeError: the stream was read to its end before

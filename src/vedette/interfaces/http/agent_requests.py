"""Requests of agents' clients: their bodies, read whole, within bounds and in time."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from vedette.domain.base.errors import BadCommand

if TYPE_CHECKING:
    from starlette.requests import Request

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

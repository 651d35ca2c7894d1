"""Frames between the engine and the process that speaks to an MCP server: a length, and JSON."""

from __future__ import annotations

import asyncio
import json
from typing import Any

# Of an answer as a frame: what a server's line may have, and what stands around it.
MAX_FRAME_BYTES = 2 << 20
# Of one message of a server.
MAX_MESSAGE_BYTES = 1 << 20


def pack_frame(message: dict[str, Any]) -> bytes:
    """Return a message as a frame. Raises ValueError if it is too long, or has no JSON form."""
    body = json.dumps(message, separators=(",", ":"), allow_nan=False).encode()
    if len(body) > MAX_FRAME_BYTES:
        raise ValueError(f"{len(body):,} bytes are more than the {MAX_FRAME_BYTES:,} of a message")
    return len(body).to_bytes(4, "big") + body


async def read_frame(reader: asyncio.StreamReader) -> dict[str, Any]:
    """Return the next message. Raises EOFError at the end, ValueError for what is none."""
    size = int.from_bytes(await reader.readexactly(4), "big")
    if size > MAX_FRAME_BYTES:
        raise ValueError("a message is too long")
    message = json.loads(await reader.readexactly(size))
    if not isinstance(message, dict):
        raise ValueError("a message is no object")
    return message

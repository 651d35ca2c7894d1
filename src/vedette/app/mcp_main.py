"""The process that speaks to one MCP server: in a box, with that server's program below it.

Started by the engine as `python -m vedette.app.mcp_main`; the first message on its standard input,
a socket, says what to speak to and what of the machine that needs. It is two processes: the client,
in the box, and outside of it the watcher, which ends the client and all below it with the engine.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import socket
import sys
from typing import Any

from vedette.adapters.mcp.frames import MAX_FRAME_BYTES
from vedette.adapters.mcp.watcher import fork_client
from vedette.adapters.reasoners.workers.confinement import confine
from vedette.adapters.reasoners.workers.sandbox import NOT_ENTERED, Sandbox, enter_sandbox


def main() -> int:
    """Speak to the server that the engine names until the engine hangs up."""
    # Nothing that a library prints may be taken for an answer.
    line = socket.socket(fileno=os.dup(0))
    os.dup2(2, 1)
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.close(nothing)
    fork_client(line)
    _speak(line)
    return 0


def _speak(line: socket.socket) -> None:
    start = _read_start(line)
    if start is None:
        return
    confine(int(start["memory"]))
    if start["box"] is not None:
        try:
            enter_sandbox(Sandbox.from_json(start["box"]), (line.fileno(),))
        except Exception:
            sys.excepthook(*sys.exc_info())
            os._exit(NOT_ENTERED)
    asyncio.run(_serve(start, line))


def _read_start(line: socket.socket) -> dict[str, Any] | None:
    """Return the first message; None if the engine is gone before it has said it."""
    size = int.from_bytes(_read_exactly(line, 4), "big")
    body = _read_exactly(line, min(size, MAX_FRAME_BYTES))
    if not body or len(body) < size:
        return None
    start: dict[str, Any] = json.loads(body)
    return start


def _read_exactly(line: socket.socket, size: int) -> bytes:
    found = b""
    while len(found) < size and (piece := line.recv(size - len(found))):
        found += piece
    return found


async def _serve(start: dict[str, Any], line: socket.socket) -> None:
    # The SDK would write what a server says to our standard error, which is the engine's.
    logging.disable(logging.CRITICAL)
    from vedette.adapters.mcp.session import answer_names, serve

    answer_names(start["addresses"])
    reader, writer = await asyncio.open_connection(sock=line)
    await serve(reader, writer, start)


if __name__ == "__main__":
    sys.exit(main())

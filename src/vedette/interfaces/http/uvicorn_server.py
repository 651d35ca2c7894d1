"""A server of uvicorn's that costs nothing while nobody asks.

uvicorn looks ten times a second whether it should end, and renews the date of its answers then. An
ambient fleet is idle most of the time, so here its end is awaited, and the date is made when a
request comes (RFC 9110, 6.6.1).
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, contextmanager
from email.utils import formatdate
from typing import TYPE_CHECKING

from vedette.domain.base.errors import Unavailable

if TYPE_CHECKING:
    import socket
    from collections.abc import Iterator

    import uvicorn
    from uvicorn.server import ServerState


@asynccontextmanager
async def serve(
    config: uvicorn.Config, bound: socket.socket, name: str,
    supervise: Callable[[asyncio.Task[None]], None] | None, *, grace_s: float | None = None,
) -> AsyncIterator[None]:  # fmt: skip
    """Serve with uvicorn on a bound socket while the context lasts, in a task called `name`.

    `supervise` is given that task. At the end open connections have `grace_s` to close, without it
    as long as the configuration gives them. Raises Unavailable if the server does not start.
    """
    import uvicorn

    class Server(uvicorn.Server):
        ready, ending = asyncio.Event(), asyncio.Event()

        async def main_loop(self) -> None:
            self.ready.set()
            await self.ending.wait()

        @contextmanager
        def capture_signals(self) -> Iterator[None]:
            # They are the runner's.
            yield

    server = Server(config)
    task = asyncio.create_task(server.serve(sockets=[bound]), name=name)
    if supervise is not None:
        supervise(task)
    started = asyncio.create_task(server.ready.wait())
    try:
        await asyncio.wait({task, started}, return_when=asyncio.FIRST_COMPLETED)
        if task.done():
            await task
            raise Unavailable(f"the {name} did not start", where=str(bound.getsockname()))
        yield
    finally:
        started.cancel()
        server.ending.set()
        if grace_s is None:
            await task
        else:
            server.force_exit = True
            # From Python 3.12 on the server waits for connections that a client keeps open.
            await asyncio.wait({task}, timeout=grace_s)
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)


def update_date_header(state: ServerState, config: uvicorn.Config) -> None:
    """Give the answers of a uvicorn server the date of now, to the second."""
    date = formatdate(usegmt=True).encode()
    state.default_headers = [(b"date", date), *config.encoded_headers]

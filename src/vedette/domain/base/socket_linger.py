"""SO_LINGER of a socket: what becomes of unsent bytes when it is closed, be it by kill -9.

By itself a kernel goes on sending them for minutes, when nobody waits for them any more: a call
whose target was asked meanwhile, and knew nothing of it, would be made a second time.
"""

from __future__ import annotations

import socket
import struct
from contextlib import suppress

_DROP, _DELIVER = struct.pack("ii", 1, 0), struct.pack("ii", 0, 0)


def drop_unsent(connection: socket.socket) -> None:
    """Have a socket drop what is not sent when it is closed (SO_LINGER of no time)."""
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _DROP)


def deliver_unsent(connection: socket.socket) -> None:
    """Have a socket deliver what is not sent after it was closed, as is usual.

    Never raises: it is said of a connection whose answer has come, which stands.
    """
    with suppress(OSError):
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _DELIVER)

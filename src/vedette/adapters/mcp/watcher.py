"""The watcher of an MCP client process: what kills its process group, whatever is in the box.

A process that is told of its parent's end by a signal may have been stopped by the server that it
speaks to, and that server's children are told nothing. The watcher is outside of the box and of
the group, so nothing in there can signal it (Landlock; without it, seccomp).
"""

from __future__ import annotations

import os
import select
import signal
import socket
import threading
from contextlib import suppress


def fork_client(line: socket.socket) -> None:
    """Fork, and return in the child, leader of a process group that nobody in a box can leave.

    The parent stays as its watcher, and ends. To be called in a process of one thread.
    """
    client = os.fork()
    # By both, as either may be the first to need it.
    with suppress(PermissionError, ProcessLookupError):
        os.setpgid(client, client or os.getpid())
    if client:
        _watch(client, line)
        os._exit(0)


def _watch(client: int, line: socket.socket) -> None:
    """Kill the client's process group once the engine has hung up, or the client is gone."""

    def kill() -> None:
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(client, signal.SIGKILL)

    def wait_for_engine() -> None:
        poller = select.poll()
        poller.register(line, 0)  # nothing but that it was hung up
        poller.poll()
        kill()

    threading.Thread(target=wait_for_engine, daemon=True).start()
    # Left a zombie: its number must be nobody else's while its group is killed.
    os.waitid(os.P_PID, client, os.WEXITED | os.WNOWAIT)
    kill()

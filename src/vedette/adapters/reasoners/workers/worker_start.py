"""The start of a worker process: what its handle needs of the pool, the fork, and time limits."""

from __future__ import annotations

import os
import select
import socket
import tempfile
from collections.abc import Callable
from typing import Any, Protocol, TypeVar

from vedette.adapters.reasoners.workers.confinement import PROGRESS_BYTES

# How long a worker may take from its start until its agent's code is imported and trained.
START_S = 60.0
# How long a call may wait for a worker that is not there yet.
WORKER_WAIT_S = 60.0
_FIRST_WAIT_S, _LAST_WAIT_S = 0.05, 5.0

Handle = TypeVar("Handle", contravariant=True)


class Pool(Protocol[Handle]):
    """What a worker handle needs of the pool."""

    def start(
        self, handle: Handle, message: dict[str, Any], descriptors: tuple[int, ...]
    ) -> int: ...

    def kill(self, worker: int) -> None: ...

    def reassign(self, worker: int, handle: Handle) -> None: ...

    def block_reason(self) -> str: ...

    def watch(self, handle: Handle) -> None: ...

    def poll(self, register: Callable[[select.poll], None], seconds: float) -> None: ...


def fork_worker(
    pool: Pool[Handle], handle: Handle, message: dict[str, Any]
) -> tuple[socket.socket, int, int]:
    """Have a worker forked; return our end of its socket, its progress file, and its number.

    What can fail for want of files comes before the fork. Raises OSError, and Unavailable once the
    pool is closed.
    """
    ours, theirs = socket.socketpair()
    progress_fd = -1
    try:
        with theirs, tempfile.TemporaryFile(buffering=0) as note:
            note.truncate(PROGRESS_BYTES)
            progress_fd = os.dup(note.fileno())
            return ours, progress_fd, pool.start(handle, message, (theirs.fileno(), note.fileno()))
    except BaseException:
        ours.close()
        if progress_fd >= 0:
            os.close(progress_fd)
        raise


def backoff_s(failures: int) -> float:
    """Return for how many seconds the fork of a worker waits after so many failures in a row."""
    return min(_LAST_WAIT_S, _FIRST_WAIT_S * 2.0 ** min(failures, 16)) if failures > 1 else 0.0

"""Connections: how many strangers may hold, so that descriptors are left for the fleet itself.

A process has a limited number of descriptors (RLIMIT_NOFILE). Whoever uses them up keeps the store,
the sources and the local API from opening anything, `vedette stop` included. So what is served to
the network takes from a counted room, and never from the reserve.
"""

from __future__ import annotations

import resource
from collections import Counter
from pathlib import Path

from vedette.domain.base import machine
from vedette.domain.base.errors import BadFleet

MAX_CONNECTIONS = 512
# A server takes up to so many connections at once before it looks at the first of them.
BACKLOG = 32
# For the store, its readers, the sources, pipes to workers, the local API and one such burst.
RESERVED_DESCRIPTORS = 128
_MIN_CONNECTIONS = 16


class ConnectionLimiter:
    """A count of the connections of all servers in one process; no peer may have more than half.

    Any thread may call: not every server is on the event loop of the fleet.
    """

    def __init__(self, max_open: int) -> None:
        self.max_open = max_open
        self.max_per_peer = max(1, max_open // 2)
        self.refusals = 0
        self._peers: Counter[str] = Counter()
        self._open = 0
        self._lock = machine.Lock()

    @property
    def open(self) -> int:
        """Return how many there are."""
        return self._open

    def acquire(self, peer: str) -> bool:
        """Count a connection in; False if there is no room for it, or none for this peer."""
        # A peer on a Unix socket has no name, and is the owner.
        with self._lock:
            if self._open >= self.max_open or (peer and self._peers[peer] >= self.max_per_peer):
                self.refusals += 1
                return False
            self._open += 1
            self._peers[peer] += 1
            return True

    def release(self, peer: str) -> None:
        """Count one out that was let in."""
        with self._lock:
            self._open -= 1
            self._peers[peer] -= 1
            if not self._peers[peer]:
                del self._peers[peer]


def connection_capacity(limit: int = MAX_CONNECTIONS) -> int:
    """Return how many connections this process has descriptors for, at most `limit`.

    Raises BadFleet (`too-few-descriptors`) if that is next to none.
    """
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    used = sum(1 for _ in Path("/dev/fd").iterdir())
    free = limit if soft == resource.RLIM_INFINITY else soft - used - RESERVED_DESCRIPTORS
    if free < _MIN_CONNECTIONS:
        raise BadFleet(
            f"the process may open {soft} files, of which {used} are open "
            f"and {RESERVED_DESCRIPTORS} reserved",
            where="RLIMIT_NOFILE",
            mend="raise it: ulimit -n 1024, or LimitNOFILE= of the unit",
            code="too-few-descriptors",
        )
    return min(limit, free)

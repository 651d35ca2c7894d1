"""How many connections strangers may hold, so that descriptors are left for the fleet itself.

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

MOST = 512
# A server takes up to so many connections at once before it looks at the first of them.
BACKLOG = 32
# For the store, its readers, the sources, pipes to workers, the local API and one such burst.
RESERVE = 128
_LEAST = 16


class Connections:
    """The connections of the network's servers in one process; no peer has more than half.

    Any thread may call: not every server is on the event loop of the fleet.
    """

    def __init__(self, most: int) -> None:
        self.most = most
        self.of_peer = max(1, most // 2)
        self.refused = 0
        self._peers: Counter[str] = Counter()
        self._open = 0
        self._lock = machine.Lock()

    @property
    def open(self) -> int:
        """Return how many there are."""
        return self._open

    def enter(self, peer: str) -> bool:
        """Count a connection in; False if there is no room for it, or none for this peer."""
        # A peer on a Unix socket has no name, and is the owner.
        with self._lock:
            if self._open >= self.most or (peer and self._peers[peer] >= self.of_peer):
                self.refused += 1
                return False
            self._open += 1
            self._peers[peer] += 1
            return True

    def leave(self, peer: str) -> None:
        """Count one out that was let in."""
        with self._lock:
            self._open -= 1
            self._peers[peer] -= 1
            if not self._peers[peer]:
                del self._peers[peer]


def room(most: int = MOST) -> int:
    """Return how many connections this process has descriptors for, at most `most`.

    Raises BadFleet (`too-few-descriptors`) if that is next to none.
    """
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    used = sum(1 for _ in Path("/dev/fd").iterdir())
    free = most if soft == resource.RLIM_INFINITY else soft - used - RESERVE
    if free < _LEAST:
        raise BadFleet(
            f"the process may open {soft} files, of which {used} are open and {RESERVE} reserved",
            where="RLIMIT_NOFILE", mend="raise it: ulimit -n 1024, or LimitNOFILE= of the unit",
            code="too-few-descriptors",
        )  # fmt: skip
    return min(most, free)

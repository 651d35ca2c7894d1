"""Ancestry of a process, by /proc: agents' code has no business at the local API.

The engine's children (and theirs, and the orphans of those: the process that forks workers adopts
them) are told from everybody else by walking up from the peer. A process id may be used again, so
each process on the way must be older than its child, and the peer is looked at twice. Only Linux
tells; elsewhere nobody is refused for this.
"""

from __future__ import annotations

import os
import socket
import struct
import sys
from pathlib import Path

from vedette.domain.base.errors import FleetProcess, Forbidden

_PROC = Path("/proc")
_MAX_DEPTH = 64  # more processes than this between a peer and the first one are no ordinary start


def refuse_descendant(connection: socket.socket) -> None:
    """Raise FleetProcess if the local API's peer descends from this process.

    Forbidden where that cannot be told. This process itself passes.
    """
    if sys.platform != "linux":
        return
    try:
        raw = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
    except OSError as error:
        raise Forbidden("who you are cannot be told") from error
    peer = int(struct.unpack("3i", raw)[0])
    if peer != os.getpid() and is_descendant(peer, os.getpid()):
        mend = "give commands from a process that the fleet did not start"
        raise FleetProcess(f"process {peer} was started by the fleet itself", mend=mend)


def is_descendant(process: int, ancestor: int, proc: Path = _PROC) -> bool:
    """Say whether a local API's peer was started by another process, or by one that was.

    Raises Forbidden if that cannot be told: a process on the way has gone or is hidden.
    """
    first = at = _read_stat(process, proc)
    for _ in range(_MAX_DEPTH):
        parent, began = at
        if parent == ancestor:
            break
        if parent == 0 or (parent == 1 and ancestor != 1):
            if _read_stat(process, proc) != first:
                raise _unknown_ancestry(process)
            return False
        at = _read_stat(parent, proc)
        if at[1] > began:
            raise _unknown_ancestry(process)  # its parent has gone, and another one has its number
    else:
        raise _unknown_ancestry(process)
    return True


def _read_stat(process: int, proc: Path) -> tuple[int, int]:
    """Return a process's parent and when it began (in ticks since the machine did)."""
    try:
        text = (proc / str(process) / "stat").read_text(encoding="utf-8", errors="replace")
        # The name in the second field may hold anything, also brackets and blanks.
        fields = text.rpartition(")")[2].split()
        return int(fields[1]), int(fields[19])
    except (OSError, ValueError, IndexError) as error:
        raise _unknown_ancestry(process) from error


def _unknown_ancestry(process: int) -> Forbidden:
    mend = "try again; /proc must show the processes of whoever runs the fleet"
    return Forbidden(f"it cannot be told who started process {process}", mend=mend)

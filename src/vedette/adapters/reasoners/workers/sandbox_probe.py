"""How tight a worker's sandbox is on this kernel. Asks the kernel, and changes nothing."""

from __future__ import annotations

from functools import cache
from typing import Any

from msgspec import Struct

from vedette.adapters.reasoners.workers import landlock, seccomp


class Protection(Struct, frozen=True):
    """What this kernel can keep from agents' code: Landlock's ABI (0: none), and seccomp."""

    landlock: int
    seccomp: bool

    @property
    def has_box(self) -> bool:
        """Say whether files, processes and sockets are kept from agents' code."""
        return self.seccomp and self.landlock > 0

    def gaps(self) -> list[str]:
        """Say what a box leaves open on this kernel, and from which Linux on it does not."""
        found = []
        if not self.seccomp:
            found.append("processes, signals and sockets are open (no seccomp for this processor)")
        if not self.landlock:
            found.append("files and ports are open (no Landlock: Linux 5.13 or later has it)")
        elif self.landlock < landlock.MOVES:
            found.append("files are open to tools with a folder as target (Linux 5.19)")
        if 0 < self.landlock < landlock.PORTS:
            found.append("all TCP ports are open to tools that have a target (Linux 6.7)")
        return found

    def to_json(self) -> dict[str, Any]:
        """Return it as `--json` prints it."""
        return {
            "landlock": self.landlock,
            "seccomp": self.seccomp,
            "files": self.landlock >= landlock.MOVES,
            "ports": self.landlock >= landlock.PORTS,
            "signals": self.seccomp or self.landlock >= landlock.SIGNALS,
            "open": self.gaps(),
        }


@cache
def protection() -> Protection:
    """Return what this kernel's Landlock and seccomp can do, looked at once in this process."""
    return Protection(landlock.abi(), seccomp.is_available())

"""A server that tests run: on free ports, ended by its own pid, with this process at the latest.

A shell waits for our end of a pipe to close and then kills the server, however this process ends.
"""

from __future__ import annotations

import atexit
import os
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from contextlib import suppress
from pathlib import Path

_GUARD = (
    '"$@" >"$0" 2>&1 & pid=$!; echo $pid; exec >/dev/null 2>&1; cat; '
    "kill -KILL $pid; wait $pid; true"
)


class Guarded:
    """One server that keeps everything in memory: `kill` and `start` give the same ports again."""

    within_s = 60.0

    def __init__(self, name: str, ports: int) -> None:
        """Start it. Raises RuntimeError with what it said."""
        self._name = name
        self._folder = Path(tempfile.mkdtemp(prefix=f"vedette-{name}-"))
        self._log = self._folder / "log"
        self._guard: subprocess.Popen[bytes] | None = None
        self.pid = 0
        atexit.register(self.close)
        for _ in range(5):
            # Another process may take a port before the server does.
            self.ports = _free_ports(ports)
            if self._started():
                return
        raise RuntimeError(f"{name} did not start: {self._said()}")

    def command(self) -> list[str]:
        """Return what runs the server on `self.ports`."""
        raise NotImplementedError

    def ready(self, log: bytes) -> bool:
        """Say whether it serves; `log` is what it has said."""
        raise NotImplementedError

    def start(self) -> None:
        """Start it again on the same ports, with nothing in it. Raises RuntimeError."""
        self.kill()
        if not self._started():
            raise RuntimeError(f"{self._name} did not start again: {self._said()}")

    def kill(self) -> None:
        """Kill it as kill -9 does: it forgets all. Once is enough."""
        guard, self._guard = self._guard, None
        if guard is None:
            return
        assert guard.stdin is not None
        assert guard.stdout is not None
        if guard.poll() is None:
            # It may have ended by itself, a moment before its guard does.
            with suppress(ProcessLookupError):
                os.kill(self.pid, signal.SIGKILL)
        guard.stdin.close()
        guard.stdout.close()
        guard.wait(30)

    def close(self) -> None:
        """Kill it and remove its folder."""
        self.kill()
        shutil.rmtree(self._folder, ignore_errors=True)

    def _started(self) -> bool:
        """Start it and wait; False if it ended (a port may have been taken meanwhile)."""
        self._log.unlink(missing_ok=True)
        self._guard = subprocess.Popen(
            ["sh", "-c", _GUARD, str(self._log), *self.command()],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd="/",
        )  # fmt: skip
        assert self._guard.stdout is not None
        self.pid = int(self._guard.stdout.readline())
        end = time.monotonic() + self.within_s
        while time.monotonic() < end and _alive(self.pid):
            if self.ready(self._log.read_bytes() if self._log.exists() else b""):
                return True
            time.sleep(0.02)
        self.kill()
        return False

    def _said(self) -> str:
        return self._log.read_text(errors="replace")[-2000:] if self._log.exists() else "nothing"


def _alive(pid: int) -> bool:
    """Say whether the process runs; one that ended but was not waited for does not."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        if Path("/proc/self/stat").exists():
            return False
        try:
            os.kill(pid, 0)
        except ProcessLookupError:
            return False
        return True
    return state != "Z"


def _free_ports(count: int) -> list[int]:
    probes = [socket.socket() for _ in range(count)]
    try:
        for probe in probes:
            probe.bind(("127.0.0.1", 0))
        return [int(probe.getsockname()[1]) for probe in probes]
    finally:
        for probe in probes:
            probe.close()

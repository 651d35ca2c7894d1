"""A fork server's start, which may come before there is a pool: what it imports takes a while.

It does nothing for anybody until it is given the lock of a state folder.
"""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from vedette.adapters.reasoners.workers.environment import filter_environment
from vedette.adapters.reasoners.workers.fork_server import send_control_message
from vedette.domain.base.state_folder import open_file

COMMAND = (sys.executable, "-P", "-m", "vedette.app.worker_main")
LOCK = "workers.lock"
_EXIT_TIMEOUT_S = 1.0


class ForkServerProcess:
    """A fork server without an engine: `assign` gives it one, `end_unassigned` ends it."""

    def __init__(self, command: Sequence[str] = COMMAND) -> None:
        """Start it. Raises OSError."""
        self._is_assigned = False
        self._control, theirs = socket.socketpair()
        try:
            with theirs:
                self._process = subprocess.Popen(  # noqa: S603 (our own command)
                    [*command, str(theirs.fileno())],
                    pass_fds=(theirs.fileno(),),
                    stdin=subprocess.DEVNULL,
                    start_new_session=True,
                    env=filter_environment(os.environ),
                )
        except BaseException:
            self._control.close()
            raise

    def assign(
        self, state: Path, modules: Sequence[str] = ()
    ) -> tuple[socket.socket, subprocess.Popen[bytes]]:
        """Give it the lock that lies in `state`; return what it is spoken to by, and itself.

        `modules` are modules of `vedette` that it imports before it forks. Raises OSError;
        then it is ended.
        """
        try:
            state.mkdir(parents=True, exist_ok=True)
            lock = open_file(state / LOCK, os.O_RDWR | os.O_CREAT)
        except BaseException:
            self.end_unassigned()
            raise
        self._is_assigned = True
        try:
            # One that is gone is found where the pool reads.
            with contextlib.suppress(OSError):
                send_control_message(self._control, {"lock": True, "ahead": list(modules)}, (lock,))
        finally:
            os.close(lock)
        return self._control, self._process

    def end_unassigned(self) -> None:
        """End it if it is nobody's: there was no work for it."""
        if self._is_assigned:
            return
        self._control.close()
        try:
            self._process.wait(_EXIT_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

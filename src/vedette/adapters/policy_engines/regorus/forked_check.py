"""Part of a trial on a second processor: in a fork, which has all that was parsed before it.

A fork and not a thread, because the vendor holds the interpreter's lock and its objects belong to
their thread. What the fork would crash of, its parent then ends of too: to whoever watches the
trial it is one process.
"""

from __future__ import annotations

import os
import signal
import sys
import traceback
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any

import orjson

_CHUNK = 1 << 16


class ForkedCheck:
    """Runs `work` in a fork of this process, which must have one thread only.

    What the fork says by `emit` comes out here if it dies, so that the last step is known.
    """

    def __init__(
        self, work: Callable[[], Sequence[Any]], emit: Callable[[Mapping[str, Any]], None]
    ) -> None:
        self._emit = emit
        self._read_fd, writing = os.pipe()
        self._pid = os.fork()
        if self._pid == 0:
            code = 1
            try:
                os.close(self._read_fd)
                # What it says goes to the pipe: standard output is the parent's.
                os.dup2(writing, 1)
                found = [list(each) for each in work()]
                _write(1, orjson.dumps({"found": found}) + b"\n")
                code = 0
            except BaseException:
                traceback.print_exc()
            finally:
                os._exit(code)
        os.close(writing)

    def result(self) -> list[Any]:
        """Return what `work` found; if it died, say its last step and die of the same."""
        output = b""
        while chunk := os.read(self._read_fd, _CHUNK):
            output += chunk
        lines = output.splitlines()
        code = self._wait()
        last: dict[str, Any] = orjson.loads(lines[-1]) if lines else {}
        if code == 0 and "found" in last:
            return list(last["found"])
        if last:
            self._emit(last)
        if code < 0:
            os.kill(os.getpid(), -code)
        sys.exit(code or 1)

    def end(self) -> None:
        """End the fork if it still runs."""
        if self._pid:
            with suppress(ProcessLookupError):
                os.kill(self._pid, signal.SIGKILL)
            self._wait()
        with suppress(OSError):
            os.close(self._read_fd)

    def _wait(self) -> int:
        """Return the exit code of the fork, negative for a signal."""
        _, status = os.waitpid(self._pid, 0)
        self._pid = 0
        return os.waitstatus_to_exitcode(status)


def _write(number: int, raw: bytes) -> None:
    while raw:
        raw = raw[os.write(number, raw) :]

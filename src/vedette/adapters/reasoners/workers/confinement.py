"""The limits that a worker sets itself before it runs an agent's code, and what is seen of it.

The memory limit is RLIMIT_DATA, set in each worker to what it was born with plus what its agent
may have. RLIMIT_AS would count every library that is mapped and every thread's reserved stack; and
a limit on the fork server would be one for all. What goes around it (shared mappings; macOS, which
does not enforce it) is found by the engine, which looks at the worker's resident size.
"""

from __future__ import annotations

import mmap
import os
import resource
import signal
import struct
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

_PROGRESS = struct.Struct("<QQ")
# The last call that began, of all whose number has the same remainder by `_BEGUN_SLOTS`.
_BEGUN_SLOTS = 64
_BEGUN_TABLE = struct.Struct(f"={_BEGUN_SLOTS}Q")
PROGRESS_BYTES = _PROGRESS.size + _BEGUN_TABLE.size
_PR_SET_PDEATHSIG = 1
_DEFAULT_DATA_BYTES = 64 * 1024 * 1024
# How many threads a worker may have: what numpy and a pool of calls start is far below.
MOST_THREADS = 256


class ProgressRecord:
    """The worker's side of its progress file: its question, in memory shared with the engine.

    It is written before the work begins, so whatever the work does to the process, the engine
    knows who did it. Costs no system call.
    """

    def __init__(self, fd: int) -> None:
        self._shared = mmap.mmap(fd, PROGRESS_BYTES)
        self._lock = threading.Lock()
        # Each slot is written by one store of eight bytes: `pack_into` would clear it before.
        self._begun = memoryview(self._shared)[_PROGRESS.size :].cast("Q")
        self._step = 0

    def begin(self, number: int) -> None:
        """Write down that the work on a question begins."""
        self._step = 0
        _PROGRESS.pack_into(self._shared, 0, number, 0)

    def advance(self, number: int) -> None:
        """Write down that the work went one step further: its time begins anew."""
        self._step += 1
        _PROGRESS.pack_into(self._shared, 0, number, self._step)

    def begin_call(self, number: int) -> None:
        """Write down that a tool's call begins: what is not written here has not begun."""
        slot = number % _BEGUN_SLOTS
        with self._lock:
            self._begun[slot] = max(number, self._begun[slot])


def read_progress(fd: int) -> tuple[int, int]:
    """Return (question, step) of a worker's progress file.

    Read, not mapped: a worker that cuts the file short must not crash the engine.
    """
    data = os.pread(fd, _PROGRESS.size, 0)
    return _PROGRESS.unpack(data) if len(data) == _PROGRESS.size else (0, 0)


def read_begun_calls(fd: int | None) -> Callable[[int], bool]:
    """Return what says, by a worker's progress file, whether a call may have begun there.

    Without a file, and where it does not tell any more, each may have.
    """
    data = b"" if fd is None else os.pread(fd, _BEGUN_TABLE.size, _PROGRESS.size)
    if len(data) != _BEGUN_TABLE.size:
        return lambda number: True
    table = _BEGUN_TABLE.unpack(data)
    return lambda number: table[number % _BEGUN_SLOTS] >= number


def confine(memory: int) -> None:
    """Limit this worker to `memory` bytes beyond what it has now, and tie it to the fork server."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))  # a core file would hold events
    most = _data_bytes() + memory
    with suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_DATA, (most, most))
    # Should the machine run out of memory, the kernel is to end a worker before the engine.
    with suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text("500")
    _die_with_parent()


def peak_bytes() -> int:
    """Return how large this process's resident size has been at most; told in a box, too."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


def name_process(kind: str, agent: str) -> None:
    """Let `ps` and `top` tell workers apart, where the system has short names for processes."""
    with suppress(OSError):
        Path("/proc/self/comm").write_text(f"{kind}:{agent}"[:15])


def _die_with_parent() -> None:
    """Have this process killed when its parent ends, however it ends."""
    parent = os.getppid()
    if sys.platform == "linux":
        import ctypes

        libc = ctypes.CDLL(None, use_errno=True)
        if libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0) == 0:
            if os.getppid() != parent:
                os._exit(0)
            return
    threading.Thread(target=_watch_parent, args=(parent,), daemon=True).start()


def _watch_parent(parent: int) -> None:
    while os.getppid() == parent:
        time.sleep(0.5)
    os._exit(0)


def _data_bytes() -> int:
    """Return how many bytes of data this process has; a guess where nobody tells."""
    try:
        pages = int(Path("/proc/self/statm").read_text().split()[5])
    except (OSError, ValueError, IndexError):
        return _DEFAULT_DATA_BYTES
    return pages * mmap.PAGESIZE


def thread_count(pid: int, proc: str = "/proc") -> int:
    """Return how many threads a worker process has; 0 if it is not known."""
    try:
        with open(f"{proc}/{pid}/stat", "rb") as file:  # noqa: PTH123 (called often)
            return int(file.read().rpartition(b")")[2].split()[17])
    except (OSError, ValueError, IndexError):
        return 0


def resident_bytes(pid: int, proc: str = "/proc") -> int:
    """Return a worker process's resident size in bytes; 0 if it is not known."""
    if not pid:
        return 0
    try:
        with open(f"{proc}/{pid}/statm", "rb") as file:  # noqa: PTH123 (called often)
            return int(file.read().split()[1]) * os.sysconf("SC_PAGESIZE")
    except (OSError, ValueError, IndexError):
        pass
    import psutil

    try:
        size: int = psutil.Process(pid).memory_info().rss
    except psutil.Error:
        return 0
    return size

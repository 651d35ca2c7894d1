"""Crash schedules: run a piece of work in a forked child and kill it at its n-th crash point.

Everything durable passes `vedette.domain.base.failpoint.hit_failpoint`. A parent that has loaded
everything forks a child; the child counts its passes and sends itself SIGKILL at the one it was
told. Who then forks another child on the same folder sees what a runner sees that comes after a
crash.

    ended = in_child(work, die_at=7)
    if ended.killed:
        print(ended.at)  # "commit:mid"

The parent must have no thread of its own while it forks (`is_single_threaded`), or the child may
inherit a lock that nobody will ever let go. Not for Windows.
"""

from __future__ import annotations

import os
import signal
import threading
import time
import traceback
from collections.abc import Callable

from msgspec import Struct

from vedette.domain.base import failpoint


class ChildResult(Struct, frozen=True):
    """How a crash schedule's child ended. `passes` is how many crash points it passed, `last_point`
    the last of them.

    `points` are the names of all that it passed.

    `killed` by its own hand at the point it was told; otherwise it came to its end, or `error`
    says what broke it: a traceback, or the signal that ended it (SIGALRM: it took too long).
    """

    killed: bool
    passes: int
    last_point: str = ""
    error: str = ""
    points: tuple[str, ...] = ()


class _PointCounter:
    """Counts passes over all threads; at the one it was told it tells the parent, and dies."""

    def __init__(self, pipe_fd: int, die_at: int | str | None) -> None:
        self._pipe_fd = pipe_fd
        self._die_at = die_at
        self._lock = threading.Lock()
        self.passes = 0
        self.last_point = ""
        self.points: dict[str, None] = {}

    def report(self) -> str:
        """Return the first line of what the parent is told."""
        return f"{self.passes} {self.last_point} {','.join(self.points)}\n"

    def __call__(self, point: str) -> None:
        with self._lock:
            self.passes += 1
            self.last_point = point
            self.points[point] = None
            if self._die_at in (self.passes, point):
                os.write(self._pipe_fd, self.report().encode())
                os.kill(os.getpid(), signal.SIGKILL)


def is_single_threaded() -> bool:
    """Say whether a crash schedule may fork this process: it has no thread but the main one."""
    return threading.active_count() == 1


def _wait_single_threaded(within_s: float) -> bool:
    """Wait until this process may fork: a pool that was let go needs a moment to end."""
    until = time.monotonic() + within_s
    for thread in threading.enumerate():
        if thread is not threading.current_thread():
            thread.join(max(0.0, until - time.monotonic()))
    return is_single_threaded()


def run_in_child(
    work: Callable[[], object],
    *,
    die_at: int | str | None = None,
    within_s: int = 240,
    parent_work: Callable[[int, int], None] = lambda pid, heard: None,
) -> ChildResult:
    """Do `work` of a test in a forked child; with `die_at` it is killed at that pass (1 is first).

    A name instead of a number is the first pass of that point. `parent_work` is done here
    meanwhile, with the child's number and the pipe that becomes readable when it has done its work,
    or ended.

    Raises RuntimeError if this process has other threads that do not end within three seconds.
    """
    if not _wait_single_threaded(3.0):
        names = sorted(thread.name for thread in threading.enumerate())
        raise RuntimeError(f"cannot fork beside other threads: {', '.join(names)}")
    heard, report = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(heard)
        _run_child(work, report, die_at, within_s)
    os.close(report)
    parent_work(pid, heard)
    with os.fdopen(heard, "rb") as pipe:
        output = pipe.read().decode("utf-8", "replace")
    _, status = os.waitpid(pid, 0)
    first, _, rest = output.partition("\n")
    passes, _, more = first.partition(" ")
    at, _, points = more.partition(" ")
    count = int(passes) if passes.isdigit() else 0
    passed = tuple(points.split(","))
    if os.WIFSIGNALED(status):
        number = os.WTERMSIG(status)
        if number == signal.SIGKILL and die_at is not None and die_at in (count, at):
            return ChildResult(True, count, at, points=passed)
        error = f"ended by signal {number} ({signal.strsignal(number)})"
        return ChildResult(False, count, at, error, passed)
    return ChildResult(False, count, at, rest, passed)


def _run_child(
    work: Callable[[], object], pipe_fd: int, die_at: int | str | None, within_s: int
) -> None:
    """Do the work and leave; nothing of the parent's is run on the way out."""
    error = ""
    counter = _PointCounter(pipe_fd, die_at)
    try:
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        signal.alarm(within_s)
        failpoint.hook = counter
        work()
    except BaseException:
        error = traceback.format_exc()
    try:
        failpoint.hook = None
        os.write(pipe_fd, f"{counter.report()}{error[-4000:]}".encode())
    finally:
        os._exit(1 if error else 0)

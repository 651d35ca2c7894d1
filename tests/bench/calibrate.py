"""The physical limit: a raw log with group commit, and what one fdatasync costs.

1 KB records, as many in flight as asked, one committer thread that appends what has gathered,
calls fdatasync and answers futures on the event loop. It does nothing else: no index, no dedupe,
no reading back. A store is measured against it.
"""

from __future__ import annotations

import asyncio
import os
import sys
import threading
import time
from collections import deque
from dataclasses import dataclass
from pathlib import Path

from tests.bench.machine import percentile

RECORD = b"x" * 1024


@dataclass(frozen=True, slots=True)
class Calibration:
    """`per_s` durable records a second; `sync_p50_us` one append of 1 KB and its fdatasync."""

    per_s: float
    sync_p50_us: float
    sync_p99_us: float

    def line(self) -> str:
        """Return it for people."""
        return (
            f"raw append+fdatasync group commit, 256 in flight: {self.per_s:,.0f}/s; "
            f"fdatasync p50 {self.sync_p50_us:,.0f} us, p99 {self.sync_p99_us:,.0f} us"
        )


def _sync(file: int) -> None:
    """Sync as the platform's full sync does."""
    if sys.platform == "darwin":
        import fcntl

        fcntl.fcntl(file, fcntl.F_FULLFSYNC)
    else:
        os.fdatasync(file)


class RawLog:
    """One committer thread over one file."""

    def __init__(self, path: Path, loop: asyncio.AbstractEventLoop) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        self._loop = loop
        self._queue: deque[tuple[bytes, asyncio.Future[None]]] = deque()
        self._wake = threading.Condition()
        self._ending = False
        self._thread = threading.Thread(target=self._run, name="raw-log")
        self._thread.start()

    def append(self, record: bytes) -> asyncio.Future[None]:
        """Queue a record; the future is done once it is durable."""
        future: asyncio.Future[None] = self._loop.create_future()
        with self._wake:
            self._queue.append((record, future))
            self._wake.notify()
        return future

    def close(self) -> None:
        """End the thread."""
        with self._wake:
            self._ending = True
            self._wake.notify()
        self._thread.join()
        os.close(self._file)

    def _run(self) -> None:
        while True:
            with self._wake:
                while not self._queue and not self._ending:
                    self._wake.wait()
                if not self._queue:
                    return
                group = list(self._queue)
                self._queue.clear()
            os.write(self._file, b"".join(record for record, _ in group))
            _sync(self._file)
            self._loop.call_soon_threadsafe(_answer, [future for _, future in group])


def _answer(futures: list[asyncio.Future[None]]) -> None:
    for future in futures:
        if not future.done():
            future.set_result(None)


async def calibrate(folder: Path, *, in_flight: int = 256, seconds: float = 1.5) -> Calibration:
    """Measure the disk below `folder` and this interpreter for about `seconds` each."""
    log, sync = folder / "calibrate.log", folder / "calibrate.sync"
    per_s = await _group_commit(log, in_flight, seconds)
    took = await asyncio.to_thread(_one_by_one, sync, seconds / 3)
    for path in (log, sync):
        await asyncio.to_thread(path.unlink)
    return Calibration(per_s, percentile(took, 0.5), percentile(took, 0.99))


async def _group_commit(path: Path, in_flight: int, seconds: float) -> float:
    log = RawLog(path, asyncio.get_running_loop())
    done = 0
    end = time.monotonic() + seconds

    async def writer() -> None:
        nonlocal done
        while time.monotonic() < end:
            await log.append(RECORD)
            done += 1

    began = time.monotonic()
    await asyncio.gather(*(writer() for _ in range(in_flight)))
    took = time.monotonic() - began
    log.close()
    return done / took


def _one_by_one(path: Path, seconds: float) -> list[float]:
    file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    took: list[float] = []
    end = time.monotonic() + seconds
    while time.monotonic() < end or len(took) < 20:
        began = time.perf_counter()
        os.write(file, RECORD)
        _sync(file)
        took.append((time.perf_counter() - began) * 1e6)
    os.close(file)
    return sorted(took)

"""What becomes of a run whose handling broke off: another attempt, or a dead letter.

Whatever an agent's code raises ends its own run only.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from traceback import format_exception
from typing import Any, TypeVar

from vedette.backoff import delay_us
from vedette.errors import StoreFailed, Temporary, VedetteError
from vedette.handle import bury
from vedette.line import Line
from vedette.moved import EarlierWaits, Superseded
from vedette.run import Run
from vedette.standing import erred

T = TypeVar("T")

ATTEMPTS = 5
_RETRY_US = 500_000
_LAST_RETRY_US = 60_000_000
# How much a dead letter keeps of where its error arose: the innermost frames, and their text.
_FRAMES, _TRACE = 8, 4096


class Guard:
    """Does the work of runs so that nothing it raises comes out. Belongs to a dispatcher."""

    def __init__(self, line: Line, passed: Callable[[Run], None]) -> None:
        """Tell `passed` of a run that would have gone before an earlier one of its key."""
        self._line, self._passed = line, passed

    async def do(self, run: Run, work: Coroutine[Any, Any, T]) -> T | int | None:
        """Do a run's work; return an instant if it has to be tried again then."""
        line = self._line
        try:
            return await work
        except StoreFailed:
            line.metrics.count("store_failures")
            return self._again(run, line.clock.now_us() + _RETRY_US)
        except Superseded as error:
            if isinstance(error, EarlierWaits):
                self._passed(run)
            return self._again(run, line.clock.now_us() + error.wait_us)
        except Temporary as error:
            run.attempts += 1
            if run.attempts >= ATTEMPTS:
                return await self._bury(run, error)
            await self._count_error(run)
            wait = delay_us(run.attempts, first_us=_RETRY_US, last_us=_LAST_RETRY_US, seed=run.id)
            return self._again(run, line.clock.now_us() + wait)
        except (Exception, asyncio.CancelledError, SystemExit) as error:
            task = asyncio.current_task()
            if isinstance(error, asyncio.CancelledError) and task and task.cancelling():
                raise
            # A judge or a tool's pure part is agents' code: whatever it raises ends this run only,
            # a cancellation of its own that it let escape too.
            return await self._bury(run, error)

    def _again(self, run: Run, at_us: int) -> int:
        """Read the run anew for another attempt and drop what its judge learned meanwhile."""
        line = self._line
        line.forget(run)
        try:
            fresh = line.store.run(run.id)
        except StoreFailed:
            # It is tried as it was known; what was moved on is refused, and read again then.
            line.metrics.count("store_failures")
            return max(at_us, line.clock.now_us() + _RETRY_US)
        if fresh is not None:
            attempts = run.attempts
            for name in Run.__slots__:
                setattr(run, name, getattr(fresh, name))
            run.attempts = max(attempts, run.attempts)
        return at_us

    async def _bury(self, run: Run, error: BaseException) -> int | None:
        line = self._line
        line.forget(run)
        try:
            fresh = line.store.run(run.id) or run
            epoch = line.store.lease(fresh)
            if epoch is None:
                # Another worker has it by now, and finds out for itself.
                return line.clock.now_us()
            trace = "".join(format_exception(error, limit=-_FRAMES))[-_TRACE:]
            code = error.code if isinstance(error, VedetteError) else None
            await bury(line, fresh, epoch, f"{type(error).__name__}: {error}", trace, code)
        except Exception:
            # Whatever it is must not end this handler: the run stays and is tried again.
            line.metrics.count("store_failures")
            return line.clock.now_us() + _RETRY_US
        run.state = "dead"
        line.parking.leave(run)
        await self._count_error(run)
        return None

    async def _count_error(self, run: Run) -> None:
        try:
            await erred(self._line, run.agent)
        except StoreFailed:
            # It is not parked yet; its next error tries again.
            self._line.metrics.count("store_failures")

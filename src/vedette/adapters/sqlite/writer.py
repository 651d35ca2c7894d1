"""The one writer of the store: a thread that commits in groups.

Work is handed over as callables and answered through futures, never before COMMIT. While one
group is being synced the next gathers, so that the cost of a sync is shared by all who wait.
Each item has a savepoint: one that raises loses only its own writes. If the transaction itself
is gone (disk full, I/O error) the whole group fails and the writer says it is not ready.
What SQLite does only outside of a transaction (cutting the log) is done between two groups.
"""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

from vedette.adapters.sqlite.ledger import Ledger
from vedette.errors import StoreFailed

if TYPE_CHECKING:
    import apsw

T = TypeVar("T")

GROUP = 512


class Writer:
    """Owns the writing connection; `submit` may be called from the event loop only."""

    def __init__(
        self,
        connection: apsw.Connection,
        ledger: Ledger,
        undone: Callable[[], None],
        between: Callable[[], None],
    ) -> None:
        """Start the thread. `undone` is called on it after an item or a group was lost.

        `between` is called on it after each COMMIT, before the group is answered; it must not
        raise.
        """
        import apsw

        self._vendor_error = apsw.Error
        self._own_fault = (apsw.ConstraintError, apsw.MismatchError, apsw.TooBigError)
        self._connection = connection
        self._ledger = ledger
        self._undone = undone
        self._between = between
        self._queue: deque[tuple[Callable[[], Any], asyncio.Future[Any]]] = deque()
        self._wake = threading.Condition()
        self._ending = False
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread = threading.Thread(target=self._run, name="vedette-writer", daemon=True)
        self.ready = True
        self.failure = ""
        self.groups = 0
        self.items = 0
        self._thread.start()

    async def submit(self, work: Callable[[], T]) -> T:
        """Run `work` inside the next group's transaction; return what it returned, once durable.

        Raises what `work` raised (its own writes are undone), or StoreFailed if the group is lost.
        """
        return await self.enqueue(work)

    def enqueue(self, work: Callable[[], T]) -> asyncio.Future[T]:
        """Queue `work` now, in the order of calls, and return the future of its answer."""
        loop = asyncio.get_running_loop()
        self._loop = loop
        future: asyncio.Future[T] = loop.create_future()
        with self._wake:
            if self._ending:
                raise StoreFailed("the store is closed")
            self._queue.append((work, future))
            self._wake.notify()
        return future

    def close(self) -> None:
        """Commit what is queued and end the thread."""
        with self._wake:
            self._ending = True
            self._wake.notify()
        self._thread.join()

    def _run(self) -> None:
        while True:
            with self._wake:
                while not self._queue and not self._ending:
                    self._wake.wait()
                if not self._queue:
                    return
                group = [self._queue.popleft() for _ in range(min(GROUP, len(self._queue)))]
            answers = self._commit(group)
            loop = self._loop
            if loop is not None and not loop.is_closed():
                loop.call_soon_threadsafe(_answer, answers)

    def _commit(
        self, group: list[tuple[Callable[[], Any], asyncio.Future[Any]]]
    ) -> list[tuple[asyncio.Future[Any], Any, BaseException | None]]:
        execute = self._connection.execute
        answers: list[tuple[asyncio.Future[Any], Any, BaseException | None]] = []
        try:
            execute("BEGIN IMMEDIATE")
            for work, future in group:
                answers.append(self._one(work, future))
            self._ledger.close_group()
            execute("COMMIT")
        except Exception as error:
            self._undo()
            self.ready, self.failure = False, str(error)
            lost = StoreFailed(f"the commit failed: {error}", mend="free space, check the disk")
            return [(future, None, lost) for _, future in group]
        self._ledger.committed()
        self._between()
        self.ready, self.failure = True, ""
        self.groups += 1
        self.items += len(group)
        return answers

    def _one(
        self, work: Callable[[], Any], future: asyncio.Future[Any]
    ) -> tuple[asyncio.Future[Any], Any, BaseException | None]:
        mark = self._ledger.mark()
        self._connection.execute("SAVEPOINT item")
        try:
            result = work()
        except Exception as error:
            # SQLite rolls the whole transaction back on some errors (full disk); then there is
            # no savepoint to go back to and nobody in this group may be answered. A row that
            # breaks a rule of its table is the fault of this item alone.
            lost = isinstance(error, self._vendor_error) and not isinstance(error, self._own_fault)
            if lost or not self._connection.in_transaction:
                raise
            self._connection.execute("ROLLBACK TO item")
            self._connection.execute("RELEASE item")
            self._ledger.back_to(mark)
            self._undone()
            return future, None, error
        self._connection.execute("RELEASE item")
        return future, result, None

    def _undo(self) -> None:
        self._ledger.failed()
        if self._connection.in_transaction:
            self._connection.execute("ROLLBACK")
        self._undone()


def _answer(answers: list[tuple[asyncio.Future[Any], Any, BaseException | None]]) -> None:
    for future, result, error in answers:
        if future.done():
            continue
        if error is not None:
            future.set_exception(error)
        else:
            future.set_result(result)

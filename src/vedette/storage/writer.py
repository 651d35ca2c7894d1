"""The one writer of the store: a thread that commits in groups.

Work is handed over as callables and answered through futures, never before COMMIT. While one
group is being synced the next gathers, so that the cost of a sync is shared by all who wait: an
idle writer commits at once, a busy one commits what came meanwhile, at most `GROUP` items.

What the line sends (steps, batches of events) either leaves something for the group's end or
fails before it has left anything. Everything else runs in a savepoint of its own, behind a flush.
If the group's end cannot be written the group is done again, item by item, so that one bad row
loses only its own item. If the transaction itself is gone (disk full, I/O error) the whole group
fails and the writer says it is not ready.
"""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import Callable
from typing import Any, Protocol, TypeVar

from vedette.crashpoint import reach
from vedette.errors import StoreFailed
from vedette.storage.database import Database
from vedette.storage.ledger import Ledger
from vedette.storage.pending import Moved, Pending

T = TypeVar("T")

GROUP = 512


class Owner(Protocol):
    """Whose writer it is; all of this is called on the writer's thread."""

    def begun(self) -> None:
        """The group's transaction has begun: see what others have written."""
        ...

    def undone(self) -> None:
        """An item or a group was lost: what was known of the database may be ahead of it."""
        ...

    def between(self) -> None:
        """A group was committed and is not answered yet. Must not raise."""
        ...


Item = tuple[Callable[[], Any], "asyncio.Future[Any]", bool]
Answered = tuple["asyncio.Future[Any]", Any, BaseException | None]


class Writer:
    """Owns the writing connection; `submit` may be called from the event loop only."""

    def __init__(self, database: Database, ledger: Ledger, pending: Pending, owner: Owner) -> None:
        self._database = database
        self._ledger = ledger
        self._pending = pending
        self._owner = owner
        # What makes a group be done again item by item, and what is the whole group's affair.
        self._again: tuple[type[BaseException], ...] = (*database.fault, Moved)
        self._whole: tuple[type[BaseException], ...] = (*database.lost, *self._again)
        self._queue: deque[Item] = deque()
        self._wake = threading.Condition()
        self._ending = self._called = self._due = False
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
        return await self.enqueue(work, guarded=True)

    def enqueue(self, work: Callable[[], T], *, guarded: bool) -> asyncio.Future[T]:
        """Queue `work` now, in the order of calls, and return the future of its answer.

        `guarded` work may write as it goes; other work must fail before it leaves anything.
        """
        loop = asyncio.get_running_loop()
        self._loop = loop
        future: asyncio.Future[T] = loop.create_future()
        with self._wake:
            if self._ending:
                raise StoreFailed("the store is closed")
            self._queue.append((work, future, guarded))
            if not self._called:
                self._called = True
                loop.call_soon(self._go)
        return future

    def _go(self) -> None:
        """Let the writer take what was queued in this turn of the loop.

        So an idle loop commits at once, and a busy one hands over what it made in one turn.
        """
        with self._wake:
            self._called, self._due = False, True
            self._wake.notify()

    def close(self) -> None:
        """Commit what is queued and end the thread."""
        with self._wake:
            self._ending = True
            self._wake.notify()
        self._thread.join()

    def _run(self) -> None:
        while True:
            with self._wake:
                while not self._due and not self._ending:
                    self._wake.wait()
                group = [self._queue.popleft() for _ in range(min(GROUP, len(self._queue)))]
                self._due = bool(self._queue)
                if not group:
                    if self._ending:
                        return
                    continue
            answers = self._commit(group)
            loop = self._loop
            if loop is not None and not loop.is_closed():
                loop.call_soon_threadsafe(_answer, answers)

    def _commit(self, group: list[Item]) -> list[Answered]:
        try:
            try:
                answers = self._group(group, self._item)
            except self._again:
                self._undo()
                answers = self._group(group, self._guarded)
        except Exception as error:
            self._undo()
            self.ready, self.failure = False, str(error)
            lost = StoreFailed(f"the commit failed: {error}", mend="free space, check the disk")
            return [(future, None, lost) for _, future, _ in group]
        self._pending.settled()
        self._ledger.committed()
        self._owner.between()
        self.ready, self.failure = True, ""
        self.groups += 1
        self.items += len(group)
        return answers

    def _group(self, group: list[Item], one: Callable[[Item], Answered]) -> list[Answered]:
        reach("commit:before")
        self._database.begin()
        self._owner.begun()
        answers = [one(item) for item in group]
        self._pending.flush()
        self._ledger.close_group()
        reach("commit:mid")
        self._database.commit()
        reach("commit:after")
        return answers

    def _item(self, item: Item) -> Answered:
        work, future, guarded = item
        if guarded:
            return self._guarded(item)
        try:
            return future, work(), None
        except self._whole:
            raise
        except Exception as error:
            return future, None, error

    def _guarded(self, item: Item) -> Answered:
        work, future, _ = item
        run = self._database.run
        self._pending.flush()
        mark, numbered = self._ledger.mark(), self._pending.numbered
        run("SAVEPOINT item")
        try:
            result = work()
            self._pending.flush()
        except Exception as error:
            # SQLite rolls the whole transaction back on some errors (full disk); then there is
            # no savepoint to go back to and nobody in this group may be answered. A row that
            # breaks a rule of its table is the fault of this item alone.
            lost = isinstance(error, self._database.lost) and not isinstance(
                error, self._database.fault
            )
            if lost or not self._database.in_transaction:
                raise
            run("ROLLBACK TO item")
            run("RELEASE item")
            self._pending.clear(numbered)
            self._ledger.back_to(mark)
            self._owner.undone()
            return future, None, error
        run("RELEASE item")
        return future, result, None

    def _undo(self) -> None:
        self._pending.clear()
        self._database.rollback()
        self._ledger.failed()
        self._owner.undone()


def _answer(answers: list[Answered]) -> None:
    for future, result, error in answers:
        if future.done():
            continue
        if error is not None:
            future.set_exception(error)
        else:
            future.set_result(result)

"""The one writer of the store: it commits in groups, on a thread of its own.

Work is handed over as callables and answered through futures, never before COMMIT. While one
group is being synced the next gathers, so that the cost of a sync is shared by all who wait: an
idle writer commits at once, a busy one commits what came meanwhile, at most `GROUP` items.

A group of little work (`Owner.small`) is written by the event loop itself, where no guarded item
is in it; the thread only makes it durable. Each statement gives the interpreter lock away and has
to win it back: for a thread beside a busy loop that takes longer than the statement. A large group
is written by the thread, as it would hold up the loop.

What the line sends (steps, batches of events) either leaves something for the group's end or
fails before it has left anything. Everything else runs in a savepoint of its own, behind a flush.
If the group's end cannot be written the group is done again, item by item, so that one bad row
loses only its own item. If the transaction itself is gone (disk full, I/O error) the whole group
fails and the writer says it is not ready, until a group stands again.

Some items are `vital`: a stop, what came of a call that was made. If the owner can make room for
them (`Owner.make_room`) they are written all the same, and everything else is refused until the
owner says that there is room again.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Protocol, TypeVar

from vedette.domain.base import machine
from vedette.domain.base.dataclass import dataclass
from vedette.domain.base.errors import StoreFailed, VedetteError
from vedette.domain.base.failpoint import reach
from vedette.store.dialect import Database
from vedette.store.ledger_writer import Ledger
from vedette.store.write_buffer import Moved, Pending

T = TypeVar("T")

GROUP = 512
# For how many turns of the loop, and how long at most, a small group gathers what is about to
# come: a run that was just answered is a few turns from its next step, and a group costs more than
# a step does.
HOPS = 8
HOPS_S = 0.002


class Owner(Protocol):
    """Whose writer it is; what it is asked is asked by whoever writes the group.

    `small` says how many steps the event loop may write itself; 0 where a statement may take long.
    """

    small: int

    def begun(self) -> None:
        """The group's transaction has begun: see what others have written."""
        ...

    def undone(self) -> None:
        """An item or a group was lost: what was known of the database may be ahead of it."""
        ...

    def between(self) -> None:
        """A group was committed and is not answered yet. Must not raise."""
        ...

    def make_room(self, error: Exception) -> bool:
        """A group was lost to this: say whether vital items have room to be written now."""
        ...

    def has_room(self) -> bool:
        """Say whether there is room again for more than vital items."""
        ...


# The work, its answer, whether it is guarded, its size, whether it is vital.
Item = tuple[Callable[[], Any], "asyncio.Future[Any]", bool, int, bool]
Answered = tuple["asyncio.Future[Any]", Any, BaseException | None]


@dataclass(slots=True)
class Group:
    """Items of one transaction; its answers, or what went wrong, if the loop has written it."""

    items: list[Item]
    answers: list[Answered] | None = None
    error: Exception | None = None


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
        self._wake = machine.Condition()
        # `_called`: `_go` is to come. `_due`: the queue may be taken. `_busy`: a group is being
        # written or synced, by the loop or the thread; who has set it has the database.
        self._ending = self._called = self._due = self._busy = False
        self._written: Group | None = None  # by the loop, up to its COMMIT
        self._claimed: tuple[int, Group] | None = None  # being written by that thread's loop
        self._until = 0.0
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread = machine.Thread(target=self._run, name="vedette-writer", daemon=True)
        self.ready = True
        self.failure = ""
        self._why: Exception | None = None
        self._short = False  # only vital items are written: see `Owner.make_room`
        self.groups = 0
        self.items = 0
        # Called on the loop once a group is answered.
        self.listeners: list[Callable[[], None]] = []
        self._thread.start()

    async def submit(self, work: Callable[[], T], *, vital: bool = False) -> T:
        """Run `work` inside the next group's transaction; return what it returned, once durable.

        Raises what `work` raised (its own writes are undone), or StoreFailed if the group is lost.
        """
        return await self.enqueue(work, guarded=True, vital=vital)

    def enqueue(
        self, work: Callable[[], T], *, guarded: bool, size: int = 1, vital: bool = False
    ) -> asyncio.Future[T]:
        """Queue `work` now, in the order of calls, and return the future of its answer.

        `guarded` work may write as it goes; other work must fail before it leaves anything. `size`
        says how much it is, in steps. `vital` work is written though nothing else has room.
        """
        loop = asyncio.get_running_loop()
        future: asyncio.Future[T] = loop.create_future()
        with self._wake:
            if loop is not self._loop:
                self._loop, self._called = loop, False
            if self._ending:
                raise StoreFailed("the store is closed")
            self._queue.append((work, future, guarded, size, vital))
            if not self._called:
                self._call(loop)
        return future

    def _call(self, loop: asyncio.AbstractEventLoop) -> None:
        self._called, self._until = True, loop.time() + HOPS_S
        loop.call_soon(self._go, loop, HOPS)

    def _go(self, loop: asyncio.AbstractEventLoop, hops: int) -> None:
        """Let what is queued be written: little by the loop, once nothing more is about to come.

        So an idle loop commits at once, and a busy one hands over what it made in one turn.
        """
        with self._wake:
            if self._busy or not self._few():
                self._called, self._due = False, True
                self._wake.notify()
                return
            if hops and loop.time() < self._until:
                loop.call_soon(self._go, loop, hops - 1)
                return
            self._called = False
            if not self._queue:
                return
            group = Group(list(self._queue))
            self._busy, self._claimed = True, (machine.get_ident(), group)
            self._queue.clear()
        self._write_here(group)

    def _write_here(self, group: Group) -> None:
        """Write a group on the loop and leave its COMMIT to the thread, or what went wrong.

        If somebody else holds the database, all of it is left to the thread, which may wait.
        """
        try:
            reach("commit:before")
            if self._database.begin_now():
                group.answers = self._write(group.items, self._item)
        except Exception as error:
            group.error = error
        except BaseException:
            group.error = StoreFailed("the commit was interrupted")
            raise
        finally:
            with self._wake:
                self._claimed, self._written = None, group
                self._wake.notify()

    def _few(self) -> bool:
        """Say whether what is queued is little enough for the loop to write."""
        left = self._owner.small
        if len(self._queue) > left or self._ending or self._short:
            return False
        for _, _, guarded, size, _ in self._queue:
            left -= size
            if guarded or left < 0:
                return False
        return True

    def close(self) -> None:
        """Commit what is queued and end the thread."""
        with self._wake:
            self._ending = True
            if self._claimed is not None and self._claimed[0] == machine.get_ident():
                # Whoever interrupted this thread took it out of the midst of writing the group.
                group = self._claimed[1]
                group.error = group.error or StoreFailed("the commit was interrupted")
                self._claimed, self._written = None, group
            self._wake.notify()
        self._thread.join()

    def _next(self) -> Group | None:
        """Wait for a group to commit; None at the end. On the writer's thread."""
        with self._wake:
            while True:
                if self._written is not None:
                    group, self._written = self._written, None
                    return group
                if not self._busy and (self._due or self._ending):
                    items = [self._queue.popleft() for _ in range(min(GROUP, len(self._queue)))]
                    self._due = bool(self._queue)
                    if items:
                        self._busy = True
                        return Group(items)
                    if self._ending:
                        return None
                self._wake.wait()

    def _run(self) -> None:
        while (group := self._next()) is not None:
            answers = self._commit(group)
            loop = self._loop
            alive = loop is not None and not loop.is_closed()
            with self._wake:
                self._busy = False
                go = alive and self._due and self._few()
                self._due = self._due and not go
            if loop is not None and alive:
                with suppress(RuntimeError):  # it was closed just now
                    loop.call_soon_threadsafe(self._answer, loop, answers, go)

    def _answer(self, loop: asyncio.AbstractEventLoop, answers: list[Answered], go: bool) -> None:
        for future, result, error in answers:
            if future.done() or future.get_loop().is_closed():
                continue  # whoever asked has gone
            if error is not None:
                future.set_exception(error)
            else:
                future.set_result(result)
        for tell in self.listeners:
            tell()
        if go and not self._called:
            self._call(loop)

    def _commit(self, group: Group) -> list[Answered]:
        refused: list[Answered] = []
        if self._short and self._owner.has_room():
            self._short = False
        if self._short:
            group, refused = self._part(group.items)
            if not group.items:
                return refused
        try:
            answers = self._make_stand(group)
        except Exception as error:
            self._undo()
            self.ready, self._why = False, error
            self.failure = error.what if isinstance(error, VedetteError) else str(error)
            if not self._owner.make_room(error):
                return refused + self._refuse(group.items)
            self._short = True
            group, lost = self._part(group.items)
            refused += lost
            if not group.items:
                return refused
            try:
                answers = self._make_stand(group)
            except Exception:
                self._undo()
                return refused + self._refuse(group.items)
        self._pending.settled()
        self._ledger.committed()
        self._owner.between()
        if not self._short:
            self.ready, self.failure, self._why = True, "", None
        self.groups += 1
        self.items += len(group.items)
        return answers + refused

    def _make_stand(self, group: Group) -> list[Answered]:
        """Write and commit a group; item by item where that saves the others."""
        try:
            if group.error is not None:
                raise group.error
            answers = group.answers
            if answers is None:
                answers = self._begin_and_write(group.items, self._item)
            self._stand()
        except self._again:
            self._undo()
            answers = self._begin_and_write(group.items, self._guarded)
            self._stand()
        return answers

    def _part(self, items: list[Item]) -> tuple[Group, list[Answered]]:
        """Return a group of the vital items, and the refusal of the others."""
        vital = [item for item in items if item[4]]
        return Group(vital), self._refuse([item for item in items if not item[4]])

    def _refuse(self, items: list[Item]) -> list[Answered]:
        why, mend = self._why, "free space, check the disk"
        if isinstance(why, VedetteError):
            mend = why.mend or mend
        what = f"the commit failed: {self.failure}"
        lost = StoreFailed(what, where=self._database.name, mend=mend)
        lost.__cause__ = why
        return [(item[1], None, lost) for item in items]

    def _begin_and_write(
        self, items: list[Item], one: Callable[[Item], Answered]
    ) -> list[Answered]:
        reach("commit:before")
        self._database.begin()
        return self._write(items, one)

    def _write(self, items: list[Item], one: Callable[[Item], Answered]) -> list[Answered]:
        """Write a group's items into the transaction that was begun, up to its COMMIT."""
        self._owner.begun()
        answers = [one(item) for item in items]
        self._pending.flush()
        self._ledger.close_group()
        return answers

    def _stand(self) -> None:
        """Make what was written durable."""
        reach("commit:mid")
        self._database.commit()
        reach("commit:after")

    def _item(self, item: Item) -> Answered:
        work, future, guarded, _, _ = item
        if guarded:
            return self._guarded(item)
        try:
            return future, work(), None
        except self._whole:
            raise
        except Exception as error:
            return future, None, error

    def _guarded(self, item: Item) -> Answered:
        work, future, _, _, _ = item
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

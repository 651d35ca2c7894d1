"""The one writer of the store: it commits in groups, on a thread of its own.

Work is handed over as callables and answered through futures, never before COMMIT. While one
group is being synced the next gathers, so that the cost of a sync is shared by all who wait: an
idle writer commits at once, a busy one commits what came meanwhile, at most `MAX_GROUP` items.

A group of little work (`CommitHooks.inline_limit`) is written by the event loop itself, where no
item of it needs a savepoint; the thread only makes it durable. Every statement releases the GIL;
winning it back in a thread beside a busy event loop takes longer than the statement. A large group
is written by the thread, as it would hold up the loop.

Steps and batches of events either leave something for the group's end or fail before they have left
anything. Everything else runs in a savepoint of its own, behind a flush. If the group's end cannot
be written the group is done again, item by item, so that one bad row loses only its own item. If
the transaction itself is gone (disk full, I/O error) the whole group fails and the writer says it
is not ready, until a group stands again.

Some items are vital: a stop, what came of a call that was made. If room can be made for them
(`CommitHooks.free_space`) they are written all the same, and everything else is refused until there
is room again.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, TypeVar

from msgspec import Struct

from vedette.domain.base import machine
from vedette.domain.base.errors import StoreFailed, VedetteError
from vedette.domain.base.failpoint import hit_failpoint
from vedette.domain.run import Step
from vedette.store.dialect import Database
from vedette.store.ledger_writer import LedgerWriter
from vedette.store.write_buffer import StepConflict, WriteBuffer

T = TypeVar("T")

MAX_GROUP = 512
# For how many turns of the loop, and how long at most, a small group gathers what is about to
# come: a run that was just answered is a few turns from its next step, and a group costs more than
# a step does.
GATHER_TURNS = 8
GATHER_S = 0.002


class CommitHooks:
    """What a database, or who else writes to it, does around a group commit; here nothing.

    Asked by whoever writes the group. `inline_limit` is how many steps the event loop may write
    itself, 0 where a statement may take long.
    """

    inline_limit = 0
    # Whether the database's files hold nothing any more of what was erased.
    is_scrubbed = False

    def on_begin(self, steps: Sequence[Step]) -> None:
        """The group's transaction has begun: see what others have written, and read for its steps
        what is better read at once.
        """

    def on_order(self) -> None:
        """The group moves runs that may be other workers'; called once."""

    def on_publish(self) -> None:
        """A policy was published in this group: have the other workers hear of it."""

    def on_erasure(self) -> None:
        """Content is erased in this group."""

    def on_rollback(self) -> None:
        """An item or a group was lost: what was known of the database may be ahead of it."""

    def on_commit(self) -> None:
        """A group was committed and is not answered yet. Must not raise."""

    def free_space(self, error: Exception) -> bool:
        """A group was lost to this: say whether vital items have room to be written now."""
        return False

    def has_space(self) -> bool:
        """Say whether there is room again for more than vital items."""
        return True


class CommitItem(Struct):
    """The work of one item in a group commit, with the future of its answer; `size` is in steps.

    `step` is the step that it commits, if it does.
    """

    work: Callable[[], Any]
    future: asyncio.Future[Any]
    in_savepoint: bool
    size: int = 1
    is_vital: bool = False
    step: Step | None = None


# The future of an item with its result, or the error to raise.
ItemResult = tuple["asyncio.Future[Any]", Any, BaseException | None]


class CommitGroup(Struct):
    """The items of one transaction; their answers or error, if the event loop has written it."""

    items: list[CommitItem]
    answers: list[ItemResult] | None = None
    error: Exception | None = None


class GroupWriter:
    """The store's one writer, on its connection; only the event loop may `submit` and `enqueue`."""

    def __init__(
        self, database: Database, ledger: LedgerWriter, buffer: WriteBuffer, hooks: CommitHooks
    ) -> None:
        self._database = database
        self._ledger = ledger
        self._buffer = buffer
        self._hooks = hooks
        # What makes a group be done again item by item, and what is the whole group's affair.
        self._retry_errors: tuple[type[BaseException], ...] = (*database.value_errors, StepConflict)
        self._group_errors: tuple[type[BaseException], ...] = (
            *database.lost_errors,
            *self._retry_errors,
        )
        self._queue: deque[CommitItem] = deque()
        self._wake = machine.Condition()
        # `_is_scheduled`: `_take_group` is to come. `_is_due`: the queue may be taken. `_is_busy`:
        # a group is being written or synced, by the loop or the thread; who has set it has the
        # database.
        self._is_closing = self._is_scheduled = self._is_due = self._is_busy = False
        self._ready_group: CommitGroup | None = None  # by the loop, up to its COMMIT
        self._inline_group: tuple[int, CommitGroup] | None = (
            None  # being written by that thread's loop
        )
        self._gather_until = 0.0
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread = machine.Thread(target=self._run, name="vedette-writer", daemon=True)
        self.is_ready = True
        self.failure = ""
        self._last_error: Exception | None = None
        self._only_vital = False  # only vital items are written: see `CommitHooks.free_space`
        self.groups = 0
        self.items = 0
        # Called on the loop once a group is answered.
        self.listeners: list[Callable[[], None]] = []
        self._thread.start()

    async def submit(self, work: Callable[[], T], *, vital: bool = False) -> T:
        """Run `work` inside the next group's transaction; return what it returned, once durable.

        Raises what `work` raised (its own writes are undone), or StoreFailed if the group is lost.
        """
        return await self.enqueue(work, in_savepoint=True, vital=vital)

    def enqueue(
        self,
        work: Callable[[], T],
        *,
        in_savepoint: bool,
        size: int = 1,
        vital: bool = False,
        step: Step | None = None,
    ) -> asyncio.Future[T]:
        """Queue `work` now, in the order of calls, and return the future of its answer.

        `in_savepoint` work may write as it goes; other work must fail before it leaves anything.
        `size` says how much it is, in steps. `vital` work is written though nothing else has room.
        """
        loop = asyncio.get_running_loop()
        future: asyncio.Future[T] = loop.create_future()
        with self._wake:
            if loop is not self._loop:
                self._loop, self._is_scheduled = loop, False
            if self._is_closing:
                raise StoreFailed("the store is closed")
            self._queue.append(CommitItem(work, future, in_savepoint, size, vital, step))
            if not self._is_scheduled:
                self._schedule(loop)
        return future

    def _schedule(self, loop: asyncio.AbstractEventLoop) -> None:
        self._is_scheduled, self._gather_until = True, loop.time() + GATHER_S
        loop.call_soon(self._take_group, loop, GATHER_TURNS)

    def _take_group(self, loop: asyncio.AbstractEventLoop, hops: int) -> None:
        """Let what is queued be written: little by the loop, once nothing more is about to come.

        So an idle loop commits at once, and a busy one hands over what it made in one turn.
        """
        with self._wake:
            if self._is_busy or not self._is_small():
                self._is_scheduled, self._is_due = False, True
                self._wake.notify()
                return
            if hops and loop.time() < self._gather_until:
                loop.call_soon(self._take_group, loop, hops - 1)
                return
            self._is_scheduled = False
            if not self._queue:
                return
            group = CommitGroup(list(self._queue))
            self._is_busy, self._inline_group = True, (machine.get_ident(), group)
            self._queue.clear()
        self._write_inline(group)

    def _write_inline(self, group: CommitGroup) -> None:
        """Write a group on the loop and leave its COMMIT to the thread, or what went wrong.

        If somebody else holds the database, all of it is left to the thread, which may wait.
        """
        try:
            hit_failpoint("commit:before")
            if self._database.try_begin():
                group.answers = self._write(group.items, self._run_item)
        except Exception as error:
            group.error = error
        except BaseException:
            group.error = StoreFailed("the commit was interrupted")
            raise
        finally:
            with self._wake:
                self._inline_group, self._ready_group = None, group
                self._wake.notify()

    def _is_small(self) -> bool:
        """Say whether what is queued is little enough for the loop to write."""
        left = self._hooks.inline_limit
        if len(self._queue) > left or self._is_closing or self._only_vital:
            return False
        for item in self._queue:
            left -= item.size
            if item.in_savepoint or left < 0:
                return False
        return True

    def close(self) -> None:
        """Commit what is queued and end the thread."""
        with self._wake:
            self._is_closing = True
            if self._inline_group is not None and self._inline_group[0] == machine.get_ident():
                # Whoever interrupted this thread took it out of the midst of writing the group.
                group = self._inline_group[1]
                group.error = group.error or StoreFailed("the commit was interrupted")
                self._inline_group, self._ready_group = None, group
            self._wake.notify()
        self._thread.join()

    def _next_group(self) -> CommitGroup | None:
        """Wait for a group to commit; None at the end. On the writer's thread."""
        with self._wake:
            while True:
                if self._ready_group is not None:
                    group, self._ready_group = self._ready_group, None
                    return group
                if not self._is_busy and (self._is_due or self._is_closing):
                    items = [self._queue.popleft() for _ in range(min(MAX_GROUP, len(self._queue)))]
                    self._is_due = bool(self._queue)
                    if items:
                        self._is_busy = True
                        return CommitGroup(items)
                    if self._is_closing:
                        return None
                self._wake.wait()

    def _run(self) -> None:
        while (group := self._next_group()) is not None:
            answers = self._commit_group(group)
            loop = self._loop
            alive = loop is not None and not loop.is_closed()
            with self._wake:
                self._is_busy = False
                go = alive and self._is_due and self._is_small()
                self._is_due = self._is_due and not go
            if loop is not None and alive:
                with suppress(RuntimeError):  # it was closed just now
                    loop.call_soon_threadsafe(self._resolve_items, loop, answers, go)

    def _resolve_items(
        self, loop: asyncio.AbstractEventLoop, answers: list[ItemResult], go: bool
    ) -> None:
        for future, result, error in answers:
            if future.done() or future.get_loop().is_closed():
                continue  # whoever asked has gone
            if error is not None:
                future.set_exception(error)
            else:
                future.set_result(result)
        for tell in self.listeners:
            tell()
        if go and not self._is_scheduled:
            self._schedule(loop)

    def _commit_group(self, group: CommitGroup) -> list[ItemResult]:
        refused: list[ItemResult] = []
        if self._only_vital and self._hooks.has_space():
            self._only_vital = False
        if self._only_vital:
            group, refused = self._split_vital(group.items)
            if not group.items:
                return refused
        try:
            answers = self._write_and_commit(group)
        except Exception as error:
            self._roll_back()
            self.is_ready, self._last_error = False, error
            self.failure = error.what if isinstance(error, VedetteError) else str(error)
            if not self._hooks.free_space(error):
                return refused + self._refuse_items(group.items)
            self._only_vital = True
            group, lost = self._split_vital(group.items)
            refused += lost
            if not group.items:
                return refused
            try:
                answers = self._write_and_commit(group)
            except Exception:
                self._roll_back()
                return refused + self._refuse_items(group.items)
        self._buffer.confirm_group()
        self._ledger.confirm_group()
        self._hooks.on_commit()
        if not self._only_vital:
            self.is_ready, self.failure, self._last_error = True, "", None
        self.groups += 1
        self.items += len(group.items)
        return answers + refused

    def _write_and_commit(self, group: CommitGroup) -> list[ItemResult]:
        """Write and commit a group; item by item where that saves the others."""
        try:
            if group.error is not None:
                raise group.error
            answers = group.answers
            if answers is None:
                answers = self._begin_and_write(group.items, self._run_item)
            self._make_durable()
        except self._retry_errors:
            self._roll_back()
            answers = self._begin_and_write(group.items, self._run_in_savepoint)
            self._make_durable()
        return answers

    def _split_vital(self, items: list[CommitItem]) -> tuple[CommitGroup, list[ItemResult]]:
        """Return a group of the vital items, and the refusal of the others."""
        vital = [item for item in items if item.is_vital]
        return CommitGroup(vital), self._refuse_items([item for item in items if not item.is_vital])

    def _refuse_items(self, items: list[CommitItem]) -> list[ItemResult]:
        why, mend = self._last_error, "free space, check the disk"
        if isinstance(why, VedetteError):
            mend = why.mend or mend
        what = f"the commit failed: {self.failure}"
        lost = StoreFailed(what, where=self._database.name, mend=mend)
        lost.__cause__ = why
        return [(item.future, None, lost) for item in items]

    def _begin_and_write(
        self, items: list[CommitItem], one: Callable[[CommitItem], ItemResult]
    ) -> list[ItemResult]:
        hit_failpoint("commit:before")
        self._database.begin()
        return self._write(items, one)

    def _write(
        self, items: list[CommitItem], one: Callable[[CommitItem], ItemResult]
    ) -> list[ItemResult]:
        """Write a group's items into the transaction that was begun, up to its COMMIT."""
        # Item by item each asks for itself, so that one that cannot be asked for fails alone.
        ahead = items if one == self._run_item else ()
        self._hooks.on_begin([item.step for item in ahead if item.step is not None])
        answers = [one(item) for item in items]
        if self._buffer.has_wakes or any(item.in_savepoint for item in items):
            self._hooks.on_order()
        self._buffer.flush()
        self._ledger.close_group()
        return answers

    def _make_durable(self) -> None:
        """Make what was written durable."""
        hit_failpoint("commit:mid")
        self._database.commit()
        hit_failpoint("commit:after")

    def _run_item(self, item: CommitItem) -> ItemResult:
        if item.in_savepoint:
            return self._run_in_savepoint(item)
        try:
            return item.future, item.work(), None
        except self._group_errors:
            raise
        except Exception as error:
            return item.future, None, error

    def _run_in_savepoint(self, item: CommitItem) -> ItemResult:
        run = self._database.execute
        self._buffer.flush()
        mark, numbered = self._ledger.mark(), self._buffer.new_action_count
        run("SAVEPOINT item")
        try:
            result = item.work()
            self._buffer.flush()
        except Exception as error:
            # SQLite rolls the whole transaction back on some errors (full disk); then there is
            # no savepoint to go back to and nobody in this group may be answered. A row that
            # breaks a rule of its table is the fault of this item alone.
            lost = isinstance(error, self._database.lost_errors) and not isinstance(
                error, self._database.value_errors
            )
            if lost or not self._database.in_transaction:
                raise
            run("ROLLBACK TO item")
            run("RELEASE item")
            self._buffer.clear(numbered)
            self._ledger.rollback_to(mark)
            self._hooks.on_rollback()
            return item.future, None, error
        run("RELEASE item")
        return item.future, result, None

    def _roll_back(self) -> None:
        self._buffer.clear()
        self._database.rollback()
        self._ledger.discard_group()
        self._hooks.on_rollback()

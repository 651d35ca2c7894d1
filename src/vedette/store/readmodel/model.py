"""The read model of one store: where it lies, who writes it, and how far along the ledger it is.

Whoever writes it, the follower or a reader, does so by `ViewWriter`: a batch of entries is folded
in one transaction with the number that is reached, so that a kill loses nothing and repeats
nothing. Two who write at once are safe (each takes up what the tables say); the lock only spares
the work.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Protocol, TypeVar

from msgspec import Struct

from vedette.domain.base import machine
from vedette.domain.base.errors import StoreFailed, Unavailable, VedetteError
from vedette.domain.base.failpoint import hit_failpoint
from vedette.store.dialect import Database
from vedette.store.readmodel.entry_batches import EntryBatches
from vedette.store.readmodel.entry_index import EntryIndex
from vedette.store.readmodel.schema import VIEW_SCHEMA
from vedette.store.readmodel.tables import ReadTables, compare_rows, fold_ledger

# How many entries are folded in one transaction, at most but for the rest of a group.
BATCH = 5_000
# How long a reader waits for a follower, and how long it folds by itself where there is none.
WAIT_S = 2.0
FOLD_S = 10.0
# Who ran out of that time takes what there is for so long: its next questions cost none again.
RETRY_S = 30.0
_FIRST_PAUSE_S, _MAX_PAUSE_S = 0.001, 0.02

T = TypeVar("T")

_STATE = "SELECT reached, mark FROM view_state"
_WRITE_STATE = (
    "INSERT INTO view_state(one,schema,reached,mark) VALUES(1,?,?,?) "
    "ON CONFLICT(one) DO UPDATE SET reached=excluded.reached, mark=excluded.mark"
)
# What a model says of itself whose row of that is missing: no ledger has this mark.
_NO_STATE = (0, "none")
# What rows that are not as this program writes them make of a fold, besides the database's errors.
_DATA_ERRORS = (ValueError, LookupError, TypeError, AttributeError)


class ViewHome(Protocol):
    """Where a store's read model lies. The follower's lock is that of one process at a time."""

    def open(self) -> tuple[Database, Database]:
        """Return connections to the store's entries and to the model, made if there is none.

        They may be one. Raises StoreFailed where there is no model and none may be made.
        """
        ...

    def exists(self) -> bool:
        """Say whether there is a model already; nothing is made by asking."""
        ...

    def is_current(self) -> bool:
        """Say whether what was opened is still the model: a file may have been made anew."""
        ...

    def recover(self, error: Exception) -> bool:
        """Do away with a model that is spoilt, as an error of it says, so that it is made anew.

        Say whether that was done: then it is to be opened again.
        """
        ...

    def try_lock(self) -> bool:
        """Take the follower's lock if nobody has it; say whether it was taken."""
        ...

    def is_locked(self) -> bool:
        """Say whether anybody has the follower's lock; it is not taken by asking."""
        ...

    def unlock(self) -> None:
        """Give the follower's lock back."""
        ...

    def close(self) -> None:
        """Close what was opened."""
        ...


class Lag(Struct, frozen=True):
    """How far a read model is along the ledger, whose end is the entry `head`.

    `seconds` is how long the first entry that it lacks has been there.
    """

    reached: int
    head: int
    seconds: float = 0.0

    @property
    def entries(self) -> int:
        """Return how many entries it lacks."""
        return max(0, self.head - self.reached)


class ViewWriter:
    """Writes a read model, over connections of its own. Only one thread may."""

    def __init__(self, entries: Database, view: Database) -> None:
        self._view = view
        self._batches = EntryBatches(entries)
        self._tables = ReadTables(view, self._batches)
        self._index = EntryIndex(view)
        # What this writer left in `view_state`; anything else there is somebody else's work.
        self._state: tuple[int, str] | None = None
        self._may_clear = True

    def advance(self, limit: int = BATCH) -> bool:
        """Fold the next batch of entries; say whether there was one.

        Of a model whose rows cannot be folded into it is tried once whether it can be made anew.
        """
        try:
            return self._advance(limit)
        except Exception as error:
            if not (self._may_clear and isinstance(error, _DATA_ERRORS + self._view.value_errors)):
                raise
            self._may_clear = False
        self.clear()
        return self._advance(limit)

    def _advance(self, limit: int) -> bool:
        batches, state = self._batches, self._state
        if (
            state is not None
            and state[0] == batches.last_seq()
            and self.read_state() == state
            and batches.mark_at(state[0]) == state[1]
        ):
            return False
        hit_failpoint("view:before")
        with self._transaction():
            reached = self._take_up()
            batch = batches.read(reached, limit)
            if batch is not None:
                self._tables.write(batch.entries)
                self._index.write(batch.entries)
                self._write_state(batch.last, batch.mark)
            hit_failpoint("view:mid")
        hit_failpoint("view:after")
        return batch is not None

    def clear(self) -> None:
        """Empty the model, up to what the store keeps of archived entries."""
        with self._transaction():
            self._begin_anew()

    @contextmanager
    def _transaction(self) -> Iterator[None]:
        view = self._view
        try:
            view.begin()
            yield
            view.commit()
        except BaseException:
            self._forget()
            view.rollback()
            raise

    def read_state(self) -> tuple[int, str]:
        """Return the entry that the model has reached, and the ledger's mark there."""
        return _read_state(self._view)

    def _take_up(self) -> int:
        """Return the entry to go on from; of another history the model is begun anew."""
        found = self.read_state()
        if found != self._state:
            self._forget()
            self._state = found
        reached, mark = found
        if self._batches.mark_at(reached) == mark and reached >= self._batches.base_seq():
            return reached
        return self._begin_anew()

    def _begin_anew(self) -> int:
        """Take the rows as archived entries left them, and list the entries that are there.

        A store that was brought to this schema keeps rows up to an entry long after those that are
        archived (`old_schemas.VIEW_TO_BASE`): what lies before it is in the rows, but in no list.
        """
        self._forget()
        base = self._batches.base_seq()
        self._tables.replace(self._batches.base_rows() if base else {})
        self._view.execute("DELETE FROM view_entry")
        self._view.execute("DELETE FROM view_list")
        listed = 0
        while listed < base and (batch := self._batches.read(listed, BATCH)):
            self._index.write([entry for entry in batch.entries if entry.seq <= base])
            listed = batch.last
        self._write_state(base, self._batches.mark_at(base) or "")
        return base

    def _write_state(self, reached: int, mark: str) -> None:
        self._view.execute(_WRITE_STATE, (VIEW_SCHEMA, reached, mark))
        self._state = reached, mark

    def _forget(self) -> None:
        self._state = None
        self._tables.forget()
        self._index.forget()


class ReadModel:
    """A store's read model as readers have it; nothing is opened before the first question.

    `patience_s` is how long a question may wait for a follower, `fold_s` how long it may take to
    fold entries itself where none runs; whoever may not wait at all (an event loop that has a
    follower) sets both to 0. A question that ran out of it has used up the time of those that
    come after it (`RETRY_S`). What is not done in time is told by `lag`.
    """

    def __init__(self, home: ViewHome | None = None) -> None:
        self._given = home
        self.patience_s, self.fold_s = WAIT_S, FOLD_S
        self._open: tuple[Database, Database] | None = None
        self._writer: ViewWriter | None = None
        # Why the model could not be brought up to the ledger's end, when it was last tried.
        self.failure = ""
        # Until then no question waits, or folds, again.
        self._wait_at_s = self._fold_at_s = 0.0

    @property
    def _home(self) -> ViewHome:
        if self._given is None:
            what = "no lists are kept where this is read"
            raise StoreFailed(what, mend="read the fleet's own store")
        return self._given

    # --- what is read -------------------------------------------------------------------------

    def rows(self, sql: str, values: Any = ()) -> list[tuple[Any, ...]]:
        """Run a query of the model, brought up to the ledger's end first."""

        def work() -> list[tuple[Any, ...]]:
            self._refresh()
            return self._connect()[1].rows(sql, values)

        return self._attempt(work)

    def stored_rows(self, sql: str, values: Any = ()) -> list[tuple[Any, ...]]:
        """Run a query of the model as it is."""
        return self._attempt(lambda: self._connect()[1].rows(sql, values))

    def refresh(self) -> Lag:
        """Bring the model up to the ledger's end of now, or wait for who does; say how far."""
        return self._attempt(self._refresh)

    def _refresh(self) -> Lag:
        if self._open is not None and not self._home.is_current():
            self.close()
        entries, _ = self._connect()
        return self._reach(EntryBatches(entries).last_seq())

    def lag(self, now_us: int | None = None) -> Lag:
        """Return how far the model is, without waiting for anybody."""
        return self._attempt(lambda: self._measure(now_us))

    def _measure(self, now_us: int | None) -> Lag:
        entries, _ = self._connect()
        batches = EntryBatches(entries)
        reached, head = self._reached(batches), batches.last_seq()
        seconds = 0.0
        if reached < head and now_us is not None:
            first = batches.accepted_us(max(reached + 1, batches.first_seq()))
            seconds = max(0.0, (now_us - (first or now_us)) / 1e6)
        return Lag(reached, head, seconds)

    def is_followed(self) -> bool:
        """Say whether somebody holds the lock: a follower as a rule, or a reader that folds."""
        return self._attempt(self._home.is_locked)

    def rebuild(self) -> int:
        """Make the model anew from the entries, beside whoever follows; return how many rows."""
        return self._attempt(self._rebuild)

    def _rebuild(self) -> int:
        entries, view = self._connect()
        writer = self._writer_of(entries, view)
        writer.clear()
        while writer.advance():
            pass
        ((number,),) = view.rows("SELECT COUNT(*) FROM view_row")
        return int(number)

    def can_be_compared(self) -> bool:
        """Say whether there is a model, and the store has all entries that it was made of."""
        if self._given is None or not self._given.exists():
            return False
        return EntryBatches(self._connect()[0]).first_seq() == 1

    def find_differences(self) -> Iterator[tuple[str, str, str, Any, Any]]:
        """Yield (name, id, column, says, should say) where the rows are not what the entries make.

        Reads the ledger up to where the model is. Raises BadCommand if some of it is archived.
        """
        entries, view = self._connect()
        with view.snapshot():
            batches = EntryBatches(entries)
            reached, mark = _read_state(view)
            if batches.mark_at(reached) != mark:
                reached = 0
            yield from compare_rows(view, fold_ledger(batches, reached))

    @contextmanager
    def without_waiting(self) -> Iterator[None]:
        """Let nobody inside fold or wait: they read what there is."""
        before, self.patience_s, self.fold_s = (self.patience_s, self.fold_s), 0.0, 0.0
        try:
            yield
        finally:
            self.patience_s, self.fold_s = before

    def end_waiting(self) -> None:
        """Let nobody fold or wait any more."""
        self.patience_s = self.fold_s = 0.0

    def close(self) -> None:
        """Close the connections, if there are any."""
        self._open = self._writer = None
        if self._given is not None:
            self._given.close()

    def _attempt(self, work: Callable[[], T]) -> T:
        """Ask of the model; once more if it had to be made anew. Raises StoreFailed."""
        try:
            return self._try_twice(work)
        except Unavailable as error:
            # Whoever runs on while the store is away goes by this one error.
            raise StoreFailed(error.what, where=error.where, mend=error.mend) from error

    def _try_twice(self, work: Callable[[], T]) -> T:
        try:
            return work()
        except (VedetteError, ValueError):  # what was asked is no text, or none that is kept
            raise
        except Exception as error:
            if self._given is None or not self._given.recover(error):
                raise StoreFailed(
                    f"the read model cannot be read: {error}",
                    mend="`vedette verify views --repair` makes it anew",
                ) from error
            self.close()
        return work()

    # --- how it is brought up -------------------------------------------------------------------

    def _reach(self, end: int) -> Lag:
        entries, _ = self._connect()
        batches = EntryBatches(entries)
        began, pause_s = machine.monotonic_s(), _FIRST_PAUSE_S
        while (reached := self._reached(batches)) < end:
            now = machine.monotonic_s()
            if self.fold_s > 0 and now >= self._fold_at_s and self._home.try_lock():
                try:
                    in_time = self._fold(end, began + self.fold_s)
                finally:
                    self._home.unlock()
                if not in_time:
                    self._wait_at_s = self._fold_at_s = machine.monotonic_s() + RETRY_S
                return Lag(self._reached(batches), end)
            if now < self._wait_at_s or self.patience_s <= 0:
                return Lag(reached, end)
            if now - began >= self.patience_s:
                self._wait_at_s = now + RETRY_S
                return Lag(reached, end)
            machine.sleep_s(pause_s)
            pause_s = min(2 * pause_s, _MAX_PAUSE_S)
        self._wait_at_s = self._fold_at_s = 0.0
        return Lag(reached, end)

    def _fold(self, end: int, until_s: float) -> bool:
        """Fold up to an entry; False if an instant came before. A full disk is no error."""
        entries, view = self._connect()
        writer = self._writer_of(entries, view)
        self.failure = ""
        try:
            while writer.advance() and writer.read_state()[0] < end:
                if machine.monotonic_s() >= until_s:
                    return False
        except Exception as error:
            if self._home.recover(error):
                raise
            # What there is can be read all the same, and says how far it goes.
            self.failure = str(error)
            return machine.monotonic_s() < until_s
        return True

    def _reached(self, batches: EntryBatches) -> int:
        """Return the entry that the model has reached; 0 if it is of another history."""
        reached, mark = _read_state(self._connect()[1])
        return reached if batches.mark_at(reached) == mark else 0

    def _connect(self) -> tuple[Database, Database]:
        if self._open is None:
            self._open = self._home.open()
            self._writer = None
        return self._open

    def _writer_of(self, entries: Database, view: Database) -> ViewWriter:
        if self._writer is None:
            self._writer = ViewWriter(entries, view)
        return self._writer


def _read_state(view: Database) -> tuple[int, str]:
    """Return the entry that a model has reached, and the ledger's mark there, as it says."""
    rows = view.rows(_STATE)
    return (int(rows[0][0]), str(rows[0][1])) if rows else _NO_STATE

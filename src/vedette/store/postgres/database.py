"""One PostgreSQL connection behind `vedette.store.dialect.Database`.

The shared SQL is written with `?`; here it gets the server's `$1`. Plain inserts of many rows go
by COPY, upserts of many rows as an array a column, other statements of many rows through libpq's
pipeline, so that a group is few round trips and few statements. A connection that broke is made
anew the next time it is needed outside of a transaction.
"""

from __future__ import annotations

import functools
import itertools
import re
import struct
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from vedette.domain.base import machine
from vedette.domain.base.errors import BadFleet, BadStore, StoreFailed, Unavailable, VedetteError
from vedette.store.dialect import Row
from vedette.store.postgres.arrays import ARRAYS, encode_array, register_arrays
from vedette.store.postgres.dialect import (
    Upsert,
    number_placeholders,
    query_of_each,
    render_statements,
    upsert_of_arrays,
)

if TYPE_CHECKING:
    import psycopg

# Half of an advisory lock's number; the other half is the oid of the fleet's own table.
_LOCK = 0x76646574 << 32
_BATCH = 2000
# Up to so many rows go as text with the next statement, more by COPY or as prepared statements.
_MAX_INLINE_ROWS = 8
# How long a server that did not answer is left alone by who has other things to do: for longer than
# it made them wait, so that a network which drops what is sent takes little of their time.
_MIN_BACKOFF_S, _BACKOFF_FACTOR, _MAX_BACKOFF_S = 0.25, 4, 5.0
# How long who has other things to do waits for an answer to one statement.
ANSWER_TIMEOUT_S = 5.0
_PLAIN_INSERT = re.compile(r"INSERT INTO (\w+)(?:\(([\w,\s]+)\))? VALUES\([?,\s]+\)\Z")
# What a server with other defaults must not change. `idle_in_transaction_session_timeout` ends
# the session of a worker that was stopped in the middle of a group: it holds the fleet's lock.
_SETTINGS = (
    "SET synchronous_commit=on; SET default_transaction_isolation='read committed'; "
    "SET idle_in_transaction_session_timeout='{hold_ms}'; SET client_encoding='UTF8'; "
    "SET standard_conforming_strings=on; SET statement_timeout='{statement_ms}'; SET jit=off"
)


SELECT_FLEET_STATE = (
    "SELECT (SELECT rev FROM leasing), (SELECT COALESCE(MAX(number),0) FROM policy), "
    "COALESCE((SELECT CAST(value AS BIGINT) FROM meta WHERE name='stop_epoch'),0), "
    "(SELECT COALESCE(MAX(last),0) FROM segment), (SELECT COUNT(*) FROM worker), "
    "COALESCE((SELECT CAST(value AS BIGINT) FROM meta WHERE name='orders'),0)"
)


def _psycopg() -> Any:
    """Return the vendor's module. Raises BadFleet where it is not installed: it is an extra."""
    try:
        import psycopg
    except ImportError as error:
        raise BadFleet(
            "the PostgreSQL store needs psycopg, which is not installed",
            where="[store]",
            mend="pip install 'vedette[postgres]'",
        ) from error
    return psycopg


# Which database it is, and of which history; nothing of a standby, which has not begun its own. A
# promoted copy and a point in time go on under a timeline of their own, another cluster has another
# identifier, a dump is put into another database. The first eight digits of a segment's name are
# the timeline in force; that of pg_control_checkpoint() may be the last one for a while.
_INSTANCE = (
    "SELECT CASE WHEN pg_is_in_recovery() THEN '' ELSE "
    "(SELECT CAST(system_identifier AS TEXT) FROM pg_control_system()) || '/' || "
    "substr(pg_walfile_name(pg_current_wal_lsn()), 1, 8) || '/' || "
    "(SELECT CAST(oid AS TEXT) FROM pg_database WHERE datname = current_database()) END"
)


def read_instance(ask: Callable[[str, Sequence[Any]], list[Row]]) -> str:
    """Return which PostgreSQL database of which cluster answers, on which timeline of its history.

    Raises Unavailable for a standby, BadStore for a server that does not tell.
    """
    psycopg = _psycopg()
    try:
        ((instance,),) = ask(_INSTANCE, ())
    except (psycopg.ProgrammingError, psycopg.NotSupportedError) as error:
        raise BadStore(
            f"the server does not say which of its histories it goes on with: {_first_line(error)}",
            where="[store]",
            mend="let the fleet's role call pg_control_system(), pg_current_wal_lsn() and "
            "pg_walfile_name(); a server that lacks them cannot be told from an older copy",
        ) from error
    if not instance:
        raise Unavailable(
            "the server is a standby", mend="promote it, or name the one that it follows"
        )
    return str(instance)


class PostgresDatabase:
    """The store's PostgreSQL connection; used by one thread at a time.

    `hold_ms` bounds how long a transaction may wait for its client, `statement_ms` how long one
    statement may take (0: no bound). With `patience_s` a query outside of a transaction outlasts a
    server that is away for so long; then it raises StoreFailed. Then also no statement is waited
    for beyond `answer_timeout_s`.
    """

    def __init__(
        self,
        url: str,
        *,
        name: str,
        hold_ms: int = 5_000,
        statement_ms: int = 0,
        patience_s: float = 0,
        answer_timeout_s: float = ANSWER_TIMEOUT_S,
        check_connection: Callable[[Callable[[str, Sequence[Any]], list[Row]]], None] | None = None,
    ) -> None:
        """Connect. Raises Unavailable if there is no server, BadFleet for what is no URL.

        `check_connection` is given a way to ask each new connection, before anything else does;
        what it raises is raised instead of what was asked.
        """
        psycopg = _psycopg()
        self.name = "the database server"
        self.lost_errors = _lost_errors()
        self.value_errors: tuple[type[BaseException], ...] = (
            psycopg.DataError,
            psycopg.IntegrityError,
            psycopg.ProgrammingError,
            psycopg.NotSupportedError,
        )
        self.connection_errors: tuple[type[BaseException], ...] = (
            *self.lost_errors,
            Unavailable,
            StoreFailed,
        )
        self._url, self._name = url, name
        self._settings = _SETTINGS.format(hold_ms=hold_ms, statement_ms=statement_ms)
        self._patience_s, self._answer_timeout_s = patience_s, answer_timeout_s
        self._unavailable_since_s = self._retry_at_s = self._connected_s = 0.0
        self._columns: dict[str, tuple[str, tuple[str, ...]]] = {}
        self._key = 0
        self._deferred: list[str] = []
        self._in_savepoint = False
        self.fleet_state: Row = ()
        # What a transaction begins with where it is none of a group: without the fleet's lock.
        self.begin_script = ""
        self._cursors = itertools.count(1)
        self._check_connection = check_connection
        self._connection = self._connect()

    def _connect(self) -> psycopg.Connection[Any]:
        import psycopg
        from psycopg import RawCursor
        from psycopg.types.numeric import Int8BinaryDumper

        try:
            made = self._class().connect(
                self._url, autocommit=True, cursor_factory=RawCursor, prepare_threshold=2,
                application_name=self._name, keepalives_idle=5,
                connect_timeout=2 if self._patience_s else 10,
                keepalives_interval=2, keepalives_count=3, tcp_user_timeout=15_000,
            )  # fmt: skip
        except psycopg.ProgrammingError as error:
            raise BadFleet(
                f"this is no address of a PostgreSQL database: {error}",
                mend="write postgresql://user@host:5432/database",
            ) from error
        except psycopg.OperationalError as error:
            raise Unavailable(
                f"PostgreSQL does not answer: {_first_line(error)}",
                mend="start it, or correct the address",
            ) from error
        made.adapters.register_loader("numeric", _integer_loader())
        # One type for all whole numbers, or every size of a value would be another statement.
        made.adapters.register_dumper(int, Int8BinaryDumper)
        register_arrays(made.adapters)
        try:
            made.execute(self._settings.encode())
            if self._check_connection is not None:
                self._check_connection(
                    lambda sql, values: made.execute(number_placeholders(sql), values).fetchall()
                )
        except BaseException:
            made.close()
            raise
        self._connected_s = machine.monotonic_s()
        return made

    def _class(self) -> type[psycopg.Connection[Any]]:
        import psycopg

        return _bounded_class(self._answer_timeout_s) if self._patience_s else psycopg.Connection

    @property
    def connection(self) -> psycopg.Connection[Any]:
        """Return the connection, made anew if it broke."""
        if self._connection.closed or self._connection.broken:
            self._columns.clear()
            self._connection = self._connect()
        return self._connection

    def has_session(self, session: object) -> bool:
        """Say whether a `connection` of before is the one still, and stands; none is made."""
        found = self._connection
        return found is session and not (found.closed or found.broken)

    # --- statements -------------------------------------------------------------------------

    def rows(self, sql: str, values: Sequence[Any] = ()) -> list[Row]:
        """Run a query and return all its rows."""
        found: list[Row] = self._retry(lambda: self._open_cursor(sql, values).fetchall())
        return found

    def rows_of_each(self, sql: str, values: Sequence[Sequence[Any]]) -> list[Row]:
        """Run a query for each of some rows of values; return the rows of all together."""
        if not values:
            return []
        types = ["bigint" if isinstance(one, int) else "text" for one in values[0]]
        return self.rows(query_of_each(sql, len(types)), _arrays(types, values))

    def iterate_rows(self, sql: str, values: Sequence[Any] = ()) -> Iterator[Row]:
        """Run a query and yield its rows; the server keeps what was not asked for yet."""
        from psycopg import RawServerCursor

        name = f"each{next(self._cursors)}"
        with self._open_snapshot() as connection, RawServerCursor(connection, name) as cursor:
            cursor.execute(number_placeholders(sql), values)
            while found := cursor.fetchmany(_BATCH):
                yield from found

    def execute(self, sql: str, values: Sequence[Any] = ()) -> int:
        """Run a statement and return how many rows it changed."""
        changed: int = self._retry(lambda: self._open_cursor(sql, values).rowcount)
        if sql.startswith(("SAVEPOINT", "RELEASE")):
            # What is wrong within a savepoint has to be raised within it.
            self._in_savepoint = sql.startswith("SAVEPOINT")
        return changed

    def execute_many(self, sql: str, rows: Iterable[Sequence[Any]]) -> int:
        """Run a statement for each row of values; return how many rows were changed in all.

        Few inserts within a transaction are kept back and sent with the next statement, or with
        the COMMIT: then their number is the answer, and what is wrong with them is raised there.
        One that may leave a row alone (an upsert with a WHERE) is not: its number tells something.
        """
        given = rows if isinstance(rows, list) else list(rows)
        if self.in_transaction and len(given) <= _MAX_INLINE_ROWS:
            text = render_statements(sql, given)
            if sql.startswith("INSERT") and " WHERE " not in sql and not self._in_savepoint:
                self._deferred.append(text)
                return len(given)
            return self._send(text, len(given)) if given else 0
        if plain := _PLAIN_INSERT.match(sql):
            return self._copy(plain[1], plain[2], given)
        if upsert := upsert_of_arrays(sql):
            _, types = self._types(upsert.table, upsert.columns)
            if ARRAYS.issuperset(types):
                return self._send_arrays(upsert, types, given)
        self._send_deferred()
        with self.connection.cursor() as cursor:
            cursor.executemany(number_placeholders(sql), given)
            return cursor.rowcount

    def _send_arrays(self, upsert: Upsert, types: Sequence[str], rows: list[Sequence[Any]]) -> int:
        """Send an upsert's rows as an array a column: a row costs a small part of a statement.

        A statement may not change a row twice: the second values of a key go into a second one.
        """
        rounds: list[list[Sequence[Any]]] = []
        seen: dict[tuple[Any, ...], int] = {}
        for row in rows:
            keyed = tuple([row[at] for at in upsert.key])
            before = seen.get(keyed, 0)
            if before == len(rounds):
                rounds.append([])
            rounds[before].append(row)
            seen[keyed] = before + 1
        arrays = [_arrays(types, each) for each in rounds]
        return sum(self._open_cursor(upsert.sql, values).rowcount for values in arrays)

    def _open_cursor(self, sql: str, values: Sequence[Any]) -> psycopg.Cursor[Any]:
        import psycopg

        self._send_deferred()
        try:
            return self.connection.execute(number_placeholders(sql), values)
        except UnicodeEncodeError as error:
            raise psycopg.DataError(str(error)) from error

    def _send_deferred(self) -> None:
        if self._deferred:
            self._send("", 0)

    def _send(self, text: str, counted: int) -> int:
        """Send what was kept back and then `text`; return what its `counted` statements changed."""
        texts, self._deferred = [*self._deferred, text] if text else self._deferred, []
        cursor = self._connection.execute(";".join(texts).encode())
        changed = [cursor.rowcount]
        while cursor.nextset():
            changed.append(cursor.rowcount)
        return sum(changed[len(changed) - counted :])

    def columns_of(self, table: str) -> list[str]:
        """Return the columns of a table that may be given."""
        return self._types(table, None)[0].split(", ")

    def copy_in(self, table: str, rows: list[Sequence[Any]]) -> int:
        """Write rows of all columns that may be given; return how many."""
        return self._copy(f'"{table}"', None, rows)

    def _copy(self, table: str, columns: str | None, rows: list[Sequence[Any]]) -> int:
        names, types = self._types(table, columns)
        with self.connection.cursor() as cursor:
            into = f"COPY {table}({names}) FROM STDIN (FORMAT BINARY)"
            with cursor.copy(into.encode()) as copy:
                copy.set_types(types)
                for row in rows:
                    copy.write_row(row)
            return cursor.rowcount

    def _types(self, table: str, columns: str | None) -> tuple[str, tuple[str, ...]]:
        """Return the columns that an insert names (or all that may be given) and their types."""
        key = f"{table}({columns or ''})"
        found = self._columns.get(key)
        if found is None:
            known = {
                str(name): str(type)
                for name, type in self.rows(
                    "SELECT attname, format_type(atttypid, NULL) FROM pg_attribute WHERE "
                    "attrelid=CAST(? AS regclass) AND attnum>0 AND NOT attisdropped "
                    "AND attgenerated='' ORDER BY attnum",
                    (table,),
                )
            }
            names = [name.strip() for name in columns.split(",")] if columns else list(known)
            found = ", ".join(names), tuple(known[name] for name in names)
            self._columns[key] = found
        return found

    def _retry(self, work: Callable[[], Any]) -> Any:
        """Do it; again on a new connection if the old one broke outside of a transaction.

        Once, or for as long as there is patience, counted from when the server was last there:
        who waits here has nothing else to do. After that it is left alone between tries.
        """
        outside, began = not self.in_transaction, machine.monotonic_s()
        if outside and began < self._retry_at_s:
            raise StoreFailed("PostgreSQL does not answer", mend="start it")
        # Who has waited in vain before tries once.
        tries = int(
            0 < self._unavailable_since_s <= began - self._patience_s and self._patience_s > 0
        )
        while True:
            try:
                done = work()
                self._unavailable_since_s = 0.0
                return done
            except self.connection_errors as error:
                if not outside or not (self._connection.closed or self._connection.broken):
                    raise
                tries, now = tries + 1, machine.monotonic_s()
                self._unavailable_since_s = self._unavailable_since_s or now
                if tries > 1 and now >= self._unavailable_since_s + self._patience_s:
                    raise self._build_failure(error, began, now) from error
            machine.sleep_s(0.05 if tries > 1 else 0)

    def _build_failure(self, error: BaseException, began_s: float, now_s: float) -> StoreFailed:
        """Return what is raised to who began at an instant; leave a server alone that is away."""
        if self._patience_s and self._connected_s >= began_s:
            # It is there, as it let us in: this one statement takes too long.
            told = f"PostgreSQL did not answer a statement: {_first_line(error)}"
            return StoreFailed(told, mend="see in pg_stat_activity what it waits for")
        if self._patience_s:
            self._retry_at_s = now_s + backoff_s(now_s - began_s)
        told = f"PostgreSQL does not answer: {_first_line(error)}"
        if isinstance(error, VedetteError):
            told = error.what
        return StoreFailed(told, mend="start it, or correct the address")

    # --- transactions -----------------------------------------------------------------------

    def instance(self) -> str:
        """Return which database this is (`read_instance`), and which tables: a dump makes new ones.

        Raises Unavailable, BadStore.
        """
        ((oid,),) = self.rows("SELECT CAST(CAST('meta' AS regclass) AS oid)")
        return f"{read_instance(self.rows)}/{oid}"

    def begin(self) -> None:
        """Begin a group's transaction, alone among all writers of this fleet, on any host.

        The lock goes with the transaction, and with its session. Then `fleet_state` says what the
        others did: (count of lease changes, live revision, stop epoch, head, number of workers,
        count of orders).
        """
        self._deferred, self._in_savepoint = [], False
        if self.begin_script:
            self.execute_script(self.begin_script)
            return
        key = self.lock_key()
        text = f"BEGIN; SELECT pg_advisory_xact_lock({key}); {SELECT_FLEET_STATE}"
        cursor = self.connection.execute(text.encode())
        while cursor.nextset():
            pass
        self.fleet_state = cursor.fetchall()[0]

    def try_begin(self) -> bool:
        """Never: the server, and the others' groups, may let one wait."""
        return False

    def commit(self) -> None:
        """Make the transaction durable, with what was kept back."""
        self._send("COMMIT", 0)

    def rollback(self) -> None:
        """Undo the transaction, if there is one still. Never raises for a connection that broke."""
        import psycopg

        self._deferred = []
        try:
            if self.in_transaction:
                self._connection.execute(b"ROLLBACK")
        except psycopg.Error:
            self._connection.close()

    @property
    def in_transaction(self) -> bool:
        """Say whether a transaction stands, if only to be undone."""
        from psycopg.pq import TransactionStatus

        status = self._connection.info.transaction_status
        return status not in (TransactionStatus.IDLE, TransactionStatus.UNKNOWN)

    @contextmanager
    def snapshot(self) -> Iterator[None]:
        """Let all reads inside see one state of the store."""
        with self._open_snapshot():
            yield

    @contextmanager
    def _open_snapshot(self) -> Iterator[psycopg.Connection[Any]]:
        """Hold one state of the store, unless a transaction stands already.

        Raises StoreFailed if the connection breaks meanwhile: what was read is no whole.
        """
        if self.in_transaction:
            yield self._connection
            return
        begin = b"BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY"
        self._retry(lambda: self.connection.execute(begin))
        try:
            yield self._connection
        except self.lost_errors as error:
            raise StoreFailed(
                f"PostgreSQL went away while it was read: {_first_line(error)}", mend="start it"
            ) from error
        finally:
            self.rollback()

    def lock_key(self) -> int:
        """Return the number of the fleet's advisory lock."""
        if not self._key:
            ((oid,),) = self.rows("SELECT CAST(CAST('meta' AS regclass) AS oid)")
            self._key = _LOCK | int(oid)
        return self._key

    def execute_script(self, sql: str) -> None:
        """Run several statements without values."""
        self.connection.execute(sql.encode())

    def close(self) -> None:
        """Close the connection."""
        self._connection.close()


def _arrays(types: Sequence[str], rows: Sequence[Sequence[Any]]) -> list[bytes]:
    """Return rows of values as an array a column. Raises psycopg.DataError."""
    import psycopg

    try:
        return [
            encode_array(type, column)
            for type, column in zip(types, zip(*rows, strict=True), strict=True)
        ]
    except (ValueError, TypeError, struct.error) as error:
        raise psycopg.DataError(str(error)) from error


@contextmanager
def translate_server_errors() -> Iterator[None]:
    """Raise Unavailable for the driver's own error if a PostgreSQL server goes away."""
    try:
        yield
    except _lost_errors() as error:
        raise Unavailable(
            f"PostgreSQL went away: {_first_line(error)}", mend="start it, then this again"
        ) from error


def backoff_s(waited_s: float) -> float:
    """Return for how long a server is left alone that was waited for in vain, in seconds."""
    return min(_MAX_BACKOFF_S, max(_MIN_BACKOFF_S, _BACKOFF_FACTOR * waited_s))


def _lost_errors() -> tuple[type[BaseException], ...]:
    """Return what the driver raises for a server that is not there any more."""
    psycopg = _psycopg()
    return (psycopg.OperationalError, psycopg.InterfaceError, psycopg.InternalError)


@functools.cache
def _bounded_class(seconds: float) -> type[psycopg.Connection[Any]]:
    """Return a class of connections that give up what is not answered for so long."""
    import psycopg
    from psycopg.abc import RV, PQGen
    from psycopg.errors import _WaitTimeout

    class Bounded(psycopg.Connection[Any]):
        def wait(self, gen: PQGen[RV], interval: float = 0.1, timeout: float | None = None) -> RV:
            try:
                return super().wait(gen, interval, seconds if timeout is None else timeout)
            except _WaitTimeout as error:
                self.pgconn.finish()  # what it would still answer is of nobody's question
                raise psycopg.OperationalError(f"no answer within {seconds:g} s") from error

    return Bounded


def _first_line(error: BaseException) -> str:
    return str(error).strip().partition("\n")[0]


def _integer_loader() -> Any:
    """Return a loader for sums: the server adds whole numbers up to a numeric."""
    from psycopg.adapt import Loader

    class Whole(Loader):
        def load(self, data: Any) -> int:
            return int(bytes(data))

    return Whole

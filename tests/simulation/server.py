"""A stand-in for a PostgreSQL server: SQLite underneath, the server's sessions and locks above.

The product's own PostgresStore, Leases and OwnRuns run on it; PostgresDatabase alone, a connection,
is replaced (`is_mutable`). What makes it sound is how the product uses the server: whatever writes
more than one statement takes the fleet's advisory lock first, so such transactions stand one
behind the other anyway. The waiting lies before BEGIN's answer (the lock is held, nothing is
written) and after COMMIT (durable, not answered); what is written between the two is written in one
instant, unless a crash point lets time pass there: then other writers wait, as for the lock.

Simulated: sessions that break, a server that is away, links that are slow or stalled, the advisory
lock, `statement_timeout`, `idle_in_transaction_session_timeout`, LISTEN and NOTIFY, a transaction
that is aborted by an error, and a failover to a copy that lacks the latest commits. Not simulated:
row locks, isolation levels, types, and the server's own planner and files: the contract suite and
the fault tests run those on a real server.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any, ClassVar, TypeVar

import apsw
import psycopg
from tests.simulation.loop import OWNER, Owner, SimLoop
from tests.simulation.threads import Event

from vedette.domain.base.errors import StoreFailed, Unavailable
from vedette.store.postgres.database import SELECT_FLEET_STATE
from vedette.store.postgres.schema import FIND_NAMESPACE, shard_of

Row = tuple[Any, ...]

URL = "postgresql://simulated/"
# What a statement takes on the wire and at the server, and a lock's holder to begin, in seconds.
_LINK = (5e-5, 4e-4)
_BEGIN = (1e-4, 2e-3)
# How long an end keeps a connection whose packets nobody answers (`tcp_user_timeout`).
_GIVE_UP_S = 15.0
_LISTEN, _NOTIFY = "LISTEN ", "NOTIFY "


T = TypeVar("T")

# One process opens its file, and need not tell others what it has locked.
SERVER_VFS = "unix-excl"
# Asked of each row that a query looks at.
_shard_of = cache(shard_of)


class Lost(psycopg.OperationalError):
    """The session is gone, or nobody knows what stands; as the driver says it."""


class Server:
    """One server with one database, which lies in `folder`."""

    _all: ClassVar[dict[str, Server]] = {}

    def __init__(self, loop: SimLoop, folder: Path, trace: Callable[[str], None]) -> None:
        self.loop, self.trace = loop, trace
        self._folder, self._images = folder, 0
        self.timeline = 1
        self.url = f"{URL}{folder.name}"
        self._all[self.url] = self
        self.sessions: list[Session] = []
        self.holder: Session | None = None
        self._waiting: list[tuple[Session, Event]] = []
        self._stalled: dict[Owner | None, float] = {}
        self._away = False
        # Whose transaction is open, and what is read beside it.
        self.writing: Session | None = None
        self._beside: apsw.Connection | None = None
        self._open(folder / "server.db")

    def _open(self, path: Path) -> None:
        self.path, self.db = path, _open(path)

    def close(self) -> None:
        """Be no server any more."""
        self._all.pop(self.url, None)
        self._close()

    def _close(self) -> None:
        self.db.close(True)
        if self._beside is not None:
            self._beside.close(True)
            self._beside = None

    def read(self, session: Session | None) -> apsw.Connection:
        """Return what a session reads, or None outside of all: what is committed, and its own."""
        if self.writing is None or self.writing is session:
            return self.db
        if self._beside is None:
            self._beside = _open(self.path)
        return self._beside

    # --- what befalls it ------------------------------------------------------------------------

    def stall(self, owner: Owner, seconds: float) -> None:
        """Let no packet of an owner's pass for a while; none is lost."""
        until_s = self.loop.time() + seconds
        self._stalled[owner] = max(until_s, self._stalled.get(owner, 0.0))

    def drop(self, owner: Owner) -> None:
        """Break the connections of an owner, be it that its process died."""
        for session in [one for one in self.sessions if one.owner is owner]:
            session.end()

    def stop(self) -> None:
        """Shut down at once: all sessions end, what was not committed is undone."""
        self._away = True
        for session in list(self.sessions):
            session.end()

    def start(self) -> None:
        """Come up again."""
        self._away = False

    def keep(self) -> Path:
        """Copy the database as it stands, as a replica or a backup does; return where it lies."""
        self._images += 1
        path = self._folder / f"image{self._images}.db"
        target = _open(path)
        with target.backup("main", self.read(None), "main") as copying:
            copying.step()
        target.close()
        return path

    def fail_over(self, image: Path) -> None:
        """Let an earlier copy take the place of the database: what came after it is lost."""
        self.stop()
        self._close()
        self._open(image)
        self.timeline += 1
        self.start()

    # --- what sessions ask ----------------------------------------------------------------------

    @classmethod
    def at(cls, url: str) -> Server:
        """Return the server at a URL. Raises Unavailable if there is none, or it is away."""
        server = cls._all.get(url)
        if server is None or server._away:
            raise Unavailable("PostgreSQL does not answer: connection refused", mend="start it")
        return server

    def stalled_s(self, owner: Owner | None) -> float:
        """Return for how long the packets of an owner do not pass yet."""
        return max(0.0, self._stalled.get(owner, 0.0) - self.loop.time())

    def acquire(self, session: Session, timeout_s: float) -> bool:
        """Wait for the fleet's lock; False if it was not free in time (0: as long as it takes)."""
        if self.holder is None:
            self.holder = session
            return True
        mine = session, Event()
        self._waiting.append(mine)
        given = mine[1].wait(timeout_s or None)
        if not given:
            self._waiting.remove(mine)
        return given

    def release(self, session: Session) -> None:
        """Give the lock to whoever waits longest."""
        if self.holder is not session:
            return
        self.holder = None
        while self._waiting:
            self.holder, event = self._waiting.pop(0)
            if self.holder.open:
                event.set()
                return
            self.holder = None

    def forget(self, session: Session) -> None:
        """See a session end: its lock is free, and it waits for none any more."""
        self.release(session)
        for one in [one for one in self._waiting if one[0] is session]:
            self._waiting.remove(one)
            one[1].set()
        self.sessions.remove(session)

    def tell(self) -> None:
        """Wake whoever listens, each a moment later."""
        for session in self.sessions:
            if session.listens:
                wait_s = self.loop.some(*_LINK) + self.stalled_s(session.owner)
                self.loop.later(wait_s, session.news.set)


class Session:
    """One session at the server, with what PostgresDatabase asks of a psycopg connection."""

    def __init__(self, server: Server, name: str, hold_ms: int) -> None:
        self.server, self.name, self._hold_s = server, name, hold_ms / 1000
        self.owner, self.open = OWNER.get(), True
        self.listens, self.news = False, Event()
        self.failed = False  # an error has aborted the transaction
        self._told = False
        self._turn = 0
        server.sessions.append(self)

    @property
    def writes(self) -> bool:
        """Say whether a transaction of its own is open."""
        return self.server.writing is self

    def end(self) -> None:
        """End here and now; what it had not committed is undone."""
        if not self.open:
            return
        self.open = False
        self._undo()
        self.server.forget(self)
        self.news.set()

    def _undo(self) -> None:
        if self.writes:
            self.server.writing = None
            if self.server.db.in_transaction:
                self.server.db.execute("ROLLBACK")

    def link(self) -> None:
        """Let a packet pass. Raises Lost if the session has ended when it arrives."""
        server = self.server
        wait_s = server.loop.some(*_LINK) + server.stalled_s(self.owner)
        server.loop.pause(min(wait_s, _GIVE_UP_S))
        if wait_s > _GIVE_UP_S:
            self.end()
        if not self.open:
            raise Lost("the session was ended")

    def begin(self, timeout_s: float) -> None:
        """Begin a transaction and take the fleet's lock."""
        server = self.server
        self.link()
        if not server.acquire(self, timeout_s):
            self.failed = True
            raise Lost("canceling statement due to statement timeout")
        if not self.open:
            raise Lost("the session was ended")
        self._turn += 1
        if self._hold_s:
            server.loop.later(self._hold_s, self._idle, self._turn)
        server.loop.pause(server.loop.some(*_BEGIN))
        if wait_s := server.stalled_s(self.owner):
            server.loop.pause(wait_s)
        if not self.open:
            raise Lost("terminating connection due to idle-in-transaction timeout")
        server.db.execute("BEGIN IMMEDIATE")
        server.writing = self

    def _idle(self, turn: int) -> None:
        if turn == self._turn and self.open:
            role = self.name.rpartition(" ")[0]  # the rest names this machine and this process
            self.server.trace(f"server ends {role} of {self.owner}, idle in transaction")
            self.end()

    def commit(self) -> None:
        """Make the transaction durable; the answer may be lost."""
        if self.failed:
            self.rollback()
            raise Lost("the transaction was aborted")
        self._turn += 1
        self.server.db.execute("COMMIT")
        self.server.writing = None
        self.server.release(self)
        if self._told:
            self._told = False
            self.server.tell()
        self.link()

    def rollback(self) -> None:
        """Undo the transaction."""
        self._told = self.failed = False
        self._turn += 1
        if self.open:
            self._undo()
            self.server.release(self)

    def notify(self) -> None:
        """Tell the others, with the transaction if there is one."""
        if self.writes:
            self._told = True
        else:
            self.server.tell()

    # --- as psycopg's connection ------------------------------------------------------------------

    def notifies(self, timeout: float, stop_after: int) -> Iterator[None]:
        """Wait for news."""
        self.listens = True
        is_set = self.news.wait(timeout)
        self.news.clear()
        if not self.open:
            raise Lost("the session was ended")
        return iter((None,) if is_set else ())


class SimulatedDatabase:
    """One connection, as `vedette.store.postgres.database.PostgresDatabase` is one."""

    lost_errors: tuple[type[BaseException], ...] = (Lost, apsw.Error)
    value_errors: tuple[type[BaseException], ...] = (
        apsw.ConstraintError,
        apsw.MismatchError,
        apsw.TooBigError,
        apsw.SQLError,
    )
    connection_errors: tuple[type[BaseException], ...] = (Lost, Unavailable, StoreFailed)

    def __init__(
        self,
        url: str,
        *,
        name: str,
        hold_ms: int = 5_000,
        statement_ms: int = 0,
        patience_s: float = 0,
        **_: object,
    ) -> None:
        """Connect. Raises Unavailable if the server is away."""
        self.name = "the database server"
        self._url, self._name, self._hold_ms = url, name, hold_ms
        self._statement_s, self._patience_s = statement_ms / 1000, patience_s
        self._away_since = self._again_from = 0.0
        self._reads = 0
        self._began = False
        self.fleet_state: Row = ()
        self._session = self._connect()

    def _connect(self) -> Session:
        server = Server.at(self._url)
        server.loop.pause(server.loop.some(1e-3, 4e-3) + server.stalled_s(OWNER.get()))
        return Session(Server.at(self._url), self._name, self._hold_ms)

    @property
    def connection(self) -> Session:
        """Return the session, made anew if it ended."""
        if not self._session.open:
            self._session = self._connect()
        return self._session

    # --- statements -------------------------------------------------------------------------------

    def rows(self, sql: str, values: Sequence[Any] = ()) -> list[Row]:
        """Run a query and return all its rows."""
        found: list[Row] = self._again(lambda: self._execute(sql, values)[0])
        return found

    def rows_of_each(self, sql: str, values: Sequence[Sequence[Any]]) -> list[Row]:
        """Run a query for each of some rows of values; return the rows of all together."""
        return [row for each in values for row in self.rows(sql, each)]

    def iterate_rows(self, sql: str, values: Sequence[Any] = ()) -> Iterator[Row]:
        """Run a query and yield its rows."""
        yield from self.rows(sql, values)

    def execute(self, sql: str, values: Sequence[Any] = ()) -> int:
        """Run a statement and return how many rows it changed."""
        changed: int = self._again(lambda: self._execute(sql, values)[1])
        return changed

    def execute_many(self, sql: str, rows: Iterable[Sequence[Any]]) -> int:
        """Run a statement for each row of values; return how many rows were changed in all."""
        session = self._ready()
        for row in (given := list(rows)):
            _refuse(row)
        database = session.server.db
        before = database.total_changes()
        self._tried(session, lambda: database.executemany(_translated(sql), given))
        return database.total_changes() - before

    def execute_script(self, sql: str) -> None:
        """Run several statements without values."""
        session = self._ready()
        if sql.startswith(_NOTIFY):
            session.notify()
        elif sql.startswith("BEGIN"):
            session.begin(0.0)
            self._began = True
        elif not sql.startswith((_LISTEN, "SET ")):
            self._tried(session, lambda: session.server.db.execute(_tables(sql)))

    def _execute(self, sql: str, values: Sequence[Any]) -> tuple[list[Row], int]:
        session = self._ready(sql)
        _refuse(values)
        reads = sql.startswith("SELECT")
        database = session.server.read(session) if reads else session.server.db
        text = _translated(sql)
        if reads:
            return self._tried(session, lambda: database.execute(text, values).fetchall()), 0
        before = database.total_changes()
        found = self._tried(session, lambda: database.execute(text, values).fetchall())
        if sql.startswith("ROLLBACK TO"):
            session.failed = False
        return found, database.total_changes() - before

    def _ready(self, sql: str = "") -> Session:
        """Return the session once a statement has come to the server."""
        if self._began or self.in_transaction or self._reads:
            session = self._session
            if not session.open:
                raise Lost("the session was ended")
            if session.failed and not sql.startswith("ROLLBACK"):
                raise Lost("current transaction is aborted")
            return session
        session = self.connection
        session.link()
        # What writes without the lock waits for what is being written; what reads does not.
        while session.server.writing is not None and not sql.startswith("SELECT"):
            session.link()
        return session

    def _tried(self, session: Session, work: Callable[[], T]) -> T:
        try:
            return work()
        except self.value_errors:
            session.failed = session.writes
            raise

    def _again(self, work: Callable[[], T]) -> T:
        """Do it, and again on a new session if the old one ended outside of a transaction."""
        outside, tries = not (self._began or self.in_transaction), 0
        loop = self._session.server.loop
        if outside and loop.time() < self._again_from:
            raise StoreFailed("PostgreSQL does not answer", mend="start it")
        while True:
            try:
                done = work()
                self._away_since = 0.0
                return done
            except (Lost, Unavailable) as error:
                if not outside or self._session.open:
                    raise
                tries, now = tries + 1, loop.time()
                self._away_since = self._away_since or now
                if tries > 1 and now >= self._away_since + self._patience_s:
                    self._again_from = now + (0.25 if self._patience_s else 0)
                    raise StoreFailed(
                        f"PostgreSQL does not answer: {error}", mend="start it"
                    ) from error
            loop.pause(0.05 if tries > 1 else 0)

    # --- transactions -----------------------------------------------------------------------------

    def instance(self) -> str:
        """Return which database of which cluster this is, on which timeline of its history."""
        self._again(lambda: self._ready("SELECT"))
        return f"{self._session.server.timeline:08X}"

    def begin(self) -> None:
        """Begin a group's transaction, alone among all writers of this fleet."""
        session = self.connection
        self._began = True
        session.begin(self._statement_s)
        self.fleet_state = session.server.db.execute(SELECT_FLEET_STATE).fetchall()[0]

    def try_begin(self) -> bool:
        """Never: the server may let one wait."""
        return False

    def commit(self) -> None:
        """Make the transaction durable."""
        if not self._session.open:
            raise Lost("the session was ended")
        self._began = False
        self._session.commit()

    def rollback(self) -> None:
        """Undo the transaction, if there is one still."""
        self._began = False
        self._session.rollback()

    @property
    def in_transaction(self) -> bool:
        """Say whether a transaction stands, if only to be undone."""
        session = self._session
        return session.open and (session.writes or session.failed)

    @contextmanager
    def snapshot(self) -> Iterator[None]:
        """Let all reads inside see one state of the store: they take no time."""
        if not self.in_transaction:
            self._again(lambda: self._ready("SELECT"))
        self._reads += 1
        try:
            yield
        finally:
            self._reads -= 1

    def close(self) -> None:
        """Close the connection."""
        self._session.end()


def _open(path: Path) -> apsw.Connection:
    # Its disk is a machine of its own, which nothing befalls.
    database = apsw.Connection(str(path), vfs=SERVER_VFS, statementcachesize=256)
    # Else every execution of a query plans it anew for the values of that moment.
    database.config(apsw.SQLITE_DBCONFIG_ENABLE_QPSG, 1)
    pragmas = "PRAGMA journal_mode=WAL; PRAGMA synchronous=OFF; PRAGMA wal_autocheckpoint=0"
    database.execute(pragmas).fetchall()

    def table(name: str) -> str | None:
        found = "SELECT name FROM sqlite_schema WHERE name=?"
        rows = database.execute(found, (name.removeprefix("main."),))
        return next((str(row[0]) for row in rows), None)

    create: Any = database.create_scalar_function
    create("shard_of", _shard_of, 2, deterministic=True)
    create("current_setting", lambda _: "UTF8", 1)
    create("pg_advisory_xact_lock", lambda _: None, 1)
    # Nobody follows here: whoever reads lists makes them.
    create("pg_try_advisory_lock", lambda _: 1, 1)
    create("pg_advisory_unlock", lambda _: 1, 1)
    create("to_regclass", table, 1)
    return database


_WORDS: dict[str, str] = {}


def _translated(sql: str) -> str:
    """Return a statement in SQLite's words."""
    found = _WORDS.get(sql)
    if found is None:
        found = _WORDS[sql] = sql.replace("FOR UPDATE SKIP LOCKED", "").replace(
            FIND_NAMESPACE, "SELECT 'main', 1"
        )
    return found


def _tables(sql: str) -> str:
    """Return the fleet's tables in SQLite's words."""
    sql = re.sub(r"CREATE FUNCTION.*?\$\$;", "", sql, flags=re.DOTALL)
    # Where a server keeps what is long.
    sql = re.sub(r"ALTER TABLE \w+ ALTER COLUMN[^;]+SET STORAGE[^;]+", "", sql)
    sql = sql.replace("STORED", "VIRTUAL").replace(' COLLATE "C"', "")
    series = "SELECT value, 0 FROM json_each('[" + ",".join(map(str, range(64))) + "]')"
    return re.sub(r"SELECT n, 0 FROM generate_series\(0, 63\) AS n", series, sql)


def _refuse(values: Sequence[Any]) -> None:
    """Refuse what the server cannot hold: text with NUL or half a character."""
    for value in values:
        if type(value) is str:
            if "\0" in value:
                raise apsw.MismatchError("text holds NUL")
            if not value.isascii():
                try:
                    value.encode()
                except UnicodeEncodeError as error:
                    raise apsw.MismatchError(str(error)) from error


@contextmanager
def in_place() -> Iterator[None]:
    """Put sessions of simulated servers under the product's own stores."""
    import vedette.store.postgres as product

    there: Any = product
    was = there.PostgresDatabase
    there.PostgresDatabase = SimulatedDatabase
    try:
        yield
    finally:
        there.PostgresDatabase = was

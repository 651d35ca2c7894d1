"""Databases for the benches: on a real PostgreSQL server as initdb makes it, with fsync on."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path

import psutil
import pytest
from tests import pg

from vedette.app.composition_root import App
from vedette.app.follower_process import FollowerProcess
from vedette.config.settings import StorePlan
from vedette.engine.cluster import catch_up_with_cluster, follow_cluster

_SYNCS = "SELECT current_setting('fsync'), current_setting('full_page_writes')"


@dataclass(frozen=True, slots=True)
class Database:
    """An empty database, and the process id of its server (0: not known, its CPU is not told)."""

    url: str
    server: int = 0


def find_server() -> pg.Server | None:
    """Start this process's server; None where PostgreSQL is not on the machine."""
    try:
        return pg.server()
    except (pytest.skip.Exception, pytest.fail.Exception):
        return None


def own_database() -> Database:
    """Make a database on this process's server. Raises SystemExit where there is none."""
    server = find_server()
    if server is None:
        raise SystemExit("line: PostgreSQL is not here: install it, or set VEDETTE_PG_BIN")
    return Database(server.fresh(), server.pid)


def store_plan(folder: Path, database: Database) -> StorePlan:
    """Return the plan of a store in a database; the URL is left in a file of `folder`.

    Raises SystemExit if the server does not sync: what is measured there is something else.
    """
    import psycopg

    with psycopg.connect(database.url, autocommit=True) as connection:
        found = connection.execute(_SYNCS).fetchone()
    if found != ("on", "on"):
        raise SystemExit("line: the server's fsync or full_page_writes is off: no measurement")
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "database.url"
    path.touch(0o600)
    path.write_text(database.url, encoding="utf-8")
    return StorePlan("postgresql", url_file=str(path))


@contextmanager
def fresh(server: pg.Server) -> Iterator[Database]:
    """Make a database for one round and drop it after.

    The checkpoint writes out what the round before has left in the server's buffers: each round
    pays for its own pages, and none for those of its neighbour.
    """
    import psycopg

    url = server.fresh()
    with psycopg.connect(server.url("postgres"), autocommit=True) as admin:
        admin.execute("CHECKPOINT")
    try:
        yield Database(url, server.pid)
    finally:
        name = url.rpartition("/")[2]
        with psycopg.connect(server.url("postgres"), autocommit=True) as admin:
            admin.execute(f"DROP DATABASE {name} WITH (FORCE)".encode())


@asynccontextmanager
async def following(app: App) -> AsyncIterator[Follower]:
    """Do what a runner does beside the line: a follower of the read model, in a process of its own,
    and, where there may be others, what they publish. Yields the follower, which has caught up.

    Raises AssertionError if any of it failed meanwhile.
    """
    troubles: list[str] = []
    follower = Follower(app)
    task = asyncio.create_task(follower.process.run(troubles.append))
    try:
        with app.store.view.without_waiting():
            await follower.catch_up()
            async with _following_workers(app):
                yield follower
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
    assert not troubles, troubles


class Follower:
    """The follower of a fleet that is measured."""

    def __init__(self, app: App) -> None:
        self._app = app
        self.process = FollowerProcess(app.settings, app.store)

    async def catch_up(self) -> None:
        """Return when the read model is at the ledger's end, made by the follower."""
        while self.process.pid is None or self._app.store.view.lag().entries:  # noqa: ASYNC110
            await asyncio.sleep(0.02)

    @property
    def spent_s(self) -> float:
        """Return the seconds of CPU that the follower has spent."""
        if self.process.pid is None:
            return 0.0
        spent = psutil.Process(self.process.pid).cpu_times()
        return float(spent.user + spent.system)

    @property
    def written(self) -> int:
        """Return how many bytes the follower and this process have had written to the disk."""
        pids = [os.getpid(), *([self.process.pid] if self.process.pid else [])]
        return sum(psutil.Process(pid).io_counters().write_bytes for pid in pids)


@asynccontextmanager
async def _following_workers(app: App) -> AsyncIterator[None]:
    if not app.store.cluster.multi_worker:
        yield
        return
    await catch_up_with_cluster(app.services, app.rollout)
    troubles: list[str] = []
    task = asyncio.create_task(
        follow_cluster(app.services, app.rollout, lambda: None, troubles.append)
    )
    try:
        yield
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
    assert not troubles, troubles

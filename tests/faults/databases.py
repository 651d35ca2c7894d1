"""One PostgreSQL server for a shard's schedules: a database for each, copied as folders are."""

from __future__ import annotations

import itertools
from typing import Any

import psutil
from tests import pg
from tests.faults.auditor import COMMANDS, Held, held_of
from tests.segments import read_entries


class Postgres:
    """Makes, copies and drops databases, and looks into them from outside.

    The server does not sync: what is tried is the death of its clients.
    """

    def __init__(self) -> None:
        import psycopg

        self._server = pg.server(fsync=False)
        self._numbers = itertools.count(1)
        self._connect: Any = psycopg.connect

    def cpu_spent(self) -> float:
        """Return the seconds of CPU that the server has used so far."""
        return float(sum(psutil.Process(self._server.pid).cpu_times()[:4]))

    def create(self, like: str | None = None) -> str:
        """Make a database, as a copy if one is named; return its URL.

        The copy stands for the database itself, at an instant; of its own it would say what it is.
        """
        name = f"s{next(self._numbers)}"
        template = ""
        if like is not None:
            template = f" TEMPLATE {_name(like)}"
            self._end_sessions(_name(like))
        self._admin(f"CREATE DATABASE {name}{template}")
        url: str = self._server.url(name)
        with self._connect(url, autocommit=True) as copied:
            if copied.execute("SELECT to_regclass('meta')").fetchone()[0] is not None:
                copied.execute("DELETE FROM meta WHERE name='instance'")
        return url

    def drop(self, url: str) -> None:
        """Drop a database."""
        self._admin(f"DROP DATABASE {_name(url)} WITH (FORCE)")

    def held(self, url: str) -> Held:
        """Return what a database holds durably, once the dead client's sessions are gone."""
        self._end_sessions(_name(url))
        with self._connect(url) as looking:
            there = looking.execute("SELECT to_regclass('segment')").fetchone()
            if there[0] is None:
                return Held()
            raws = [one.raw for one in read_entries(looking)]
            return held_of(raws, [id for (id,) in looking.execute(COMMANDS)])

    def _end_sessions(self, name: str) -> None:
        """Wait until the server has noticed that a client is dead.

        A commit that it had been sent may still stand; nothing comes after it.
        """
        with self._connect(self._server.url("postgres"), autocommit=True) as admin:
            query = "SELECT count(*) FROM pg_stat_activity WHERE datname=%s"
            while admin.execute(query, (name,)).fetchone()[0]:
                admin.execute("SELECT pg_sleep(0.005)")

    def _admin(self, statement: str) -> None:
        with self._connect(self._server.url("postgres"), autocommit=True) as admin:
            admin.execute(statement)


def _name(url: str) -> str:
    return url.rpartition("/")[2]

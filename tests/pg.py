"""A real PostgreSQL server for tests: made by initdb, run as an unprivileged user, stopped by pid.

The binaries are found through VEDETTE_PG_BIN, `pg_config`, PATH or the usual folders; without
them a test is skipped for a person and fails where CI is set. PostgreSQL refuses to run as root,
so root starts it as `postgres`, `nobody` or a number. It listens on a free loopback port and asks
for a password that only this process knows. One server serves the whole test process and ends
with it, however that ends: a shell waits for our end of a pipe to close.
"""

from __future__ import annotations

import atexit
import functools
import itertools
import os
import pwd
import secrets
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

_USUAL = (
    "/usr/lib/postgresql/*/bin",
    "/usr/pgsql-*/bin",
    "/opt/homebrew/opt/postgresql*/bin",
    "/usr/local/opt/postgresql*/bin",
    "/usr/local/pgsql/bin",
)
_NEEDED = ("initdb", "postgres")
_GUARD = '"$@" & pid=$!; cat >/dev/null; kill -INT $pid; wait $pid; rm -rf "$0"'
_DATABASES = itertools.count(1)


def find_bin(environ: Mapping[str, str] = os.environ) -> Path:
    """Return the folder that holds `initdb` and `postgres`.

    Skips the test if there is none, and fails it where CI is set.
    """
    for folder in _folders(environ):
        if all((folder / name).exists() for name in _NEEDED):
            return folder
    if environ.get("CI"):
        pytest.fail(
            "PostgreSQL is missing. Mend: install postgresql, or set VEDETTE_PG_BIN", pytrace=False
        )
    pytest.skip("PostgreSQL is not here: install postgresql, or set VEDETTE_PG_BIN")


def _folders(environ: Mapping[str, str]) -> Iterator[Path]:
    if named := environ.get("VEDETTE_PG_BIN"):
        yield Path(named)
        return
    path = environ.get("PATH", "")
    if config := shutil.which("pg_config", path=path):
        result = subprocess.run(
            [config, "--bindir"], capture_output=True, text=True, timeout=30, check=False
        )
        yield Path(result.stdout.strip())
    if found := shutil.which("postgres", path=path):
        yield Path(found).resolve().parent
    if path:
        for pattern in _USUAL:
            yield from sorted(Path("/").glob(pattern.lstrip("/")), key=_version, reverse=True)


def _version(folder: Path) -> int:
    digits = "".join(c for c in folder.parent.name if c.isdigit())
    return int(digits or 0)


class Server:
    """One running server. `url(database)` is what a client connects with."""

    def __init__(self, binaries: Path, *, fsync: bool = True) -> None:
        """Make a cluster and start it. Raises RuntimeError with what the server said.

        Without `fsync` it asks for passwords cheaply.
        """
        self.binaries = binaries
        self.folder = Path(tempfile.mkdtemp(prefix="vedette-pg-"))
        self.password = secrets.token_urlsafe(12)
        # SCRAM takes 5 ms of CPU at both ends of a connection, most of what a crash test would do.
        self._asks = "scram-sha-256" if fsync else "md5"
        self._as = _unprivileged(self.folder)
        # A guard outlives its server, and removes the folder in the end: each start has one more.
        self._guards: list[subprocess.Popen[bytes]] = []
        self._initdb()
        self._listen(fsync)

    def _initdb(self) -> None:
        secret = self.folder / "password"
        secret.write_text(self.password)
        if self._as:
            os.chown(secret, self._as["user"], self._as["group"])
        done = subprocess.run(
            [str(self.binaries / "initdb"), "--no-sync", "-U", "vedette", "--encoding=UTF8",
             "--locale=C", f"--auth={self._asks}", f"--pwfile={secret}",
             "-D", str(self.folder / "data")],
            capture_output=True, text=True, timeout=120, check=False, cwd="/",
            **self._as,
        )  # fmt: skip
        secret.unlink()
        if done.returncode:
            raise RuntimeError(f"initdb failed: {done.stderr[-2000:]}")

    def _listen(self, fsync: bool) -> None:
        self._fsync = "on" if fsync else "off"
        atexit.register(self.stop)
        for _ in range(5):
            self.port = _free_port()
            if self._started():
                return
        raise RuntimeError(f"the server did not start: {self._told()}")

    def _started(self) -> bool:
        with (self.folder / "log").open("wb") as out:
            guard = subprocess.Popen(
                ["sh", "-c", _GUARD, str(self.folder), str(self.binaries / "postgres"),
                 "-D", str(self.folder / "data"), "-p", str(self.port),
                 "-c", "listen_addresses=127.0.0.1", "-c", "unix_socket_directories=",
                 "-c", f"fsync={self._fsync}", "-c", "max_connections=200"],
                stdin=subprocess.PIPE, stdout=out, stderr=out, cwd="/",
                **self._as,
            )  # fmt: skip
        self._guards.append(guard)
        return self._up()

    def _told(self) -> str:
        return (self.folder / "log").read_text()[-2000:]

    def crash(self) -> None:
        """Shut it down at once (SIGQUIT): no checkpoint, the next start recovers."""
        pid = self.pid
        os.kill(pid, signal.SIGQUIT)
        while (self.folder / "data" / "postmaster.pid").exists():
            time.sleep(0.02)

    def restart(self) -> None:
        """Start it again at its port, which somebody may have for a moment.

        Raises RuntimeError with what it said.
        """
        for _ in range(5):
            if self._started():
                return
            time.sleep(1.0)
        raise RuntimeError(f"the server did not start again: {self._told()}")

    def _up(self) -> bool:
        """Wait for the server; False if it ended (the port may have been taken meanwhile)."""
        import psycopg

        end = time.monotonic() + 60
        pid = self.folder / "data" / "postmaster.pid"
        has_started = False
        while time.monotonic() < end:
            has_started = has_started or pid.exists()
            if has_started and not pid.exists():
                break
            try:
                psycopg.connect(self.url("postgres"), connect_timeout=5).close()
                return True
            except psycopg.OperationalError:
                time.sleep(0.02)
        return False

    @property
    def pid(self) -> int:
        """Return the process id of the server itself."""
        text = (self.folder / "data" / "postmaster.pid").read_text()
        return int(text.splitlines()[0])

    def url(self, database: str) -> str:
        """Return the connection URL of a database."""
        return f"postgresql://vedette:{self.password}@127.0.0.1:{self.port}/{database}"

    def fresh(self, template: str | None = None) -> str:
        """Make a new database and return its URL; `template` is copied."""
        import psycopg

        name = f"t{next(_DATABASES)}"
        like = f" TEMPLATE {template}" if template else ""
        with psycopg.connect(self.url("postgres"), autocommit=True) as connection:
            connection.execute(f"CREATE DATABASE {name}{like}".encode())
        return self.url(name)

    def stop(self) -> None:
        """Stop the server (fast shutdown) and remove its folder; once is enough."""
        for guard in reversed(self._guards):
            if guard.stdin is not None and not guard.stdin.closed:
                guard.stdin.close()
            try:
                guard.wait(30)
            except subprocess.TimeoutExpired:
                guard.kill()
                guard.wait()
        # As root: what the unprivileged shell may not remove is its own folder's place.
        shutil.rmtree(self.folder, ignore_errors=True)


class Copy(Server):
    """A server on a base backup of another; `begin` starts it, as a standby or up to an instant."""

    def __init__(self, source: Server) -> None:
        self.binaries, self.password, self._source = source.binaries, source.password, source
        self.folder = Path(tempfile.mkdtemp(prefix="vedette-pg-"))
        self._as = _unprivileged(self.folder)
        self._guards = []
        self.wal = self.folder / "wal"
        self._run("mkdir", str(self.wal))
        self._run(*self._client("pg_basebackup"), "-D", str(self.folder / "data"), "-c", "fast")

    def _client(self, name: str) -> list[str]:
        return [str(self.binaries / name), "--no-sync", "-d", self._source.url("postgres")]

    def _run(self, *command: str) -> None:
        subprocess.run(command, check=True, timeout=60, cwd="/", capture_output=True, **self._as)

    @contextmanager
    def archiving(self) -> Iterator[None]:
        """Keep the source's write-ahead log for as long as this lasts."""
        import psycopg

        command = [*self._client("pg_receivewal"), "-D", str(self.wal)]
        keeping = subprocess.Popen(command, cwd="/", stderr=subprocess.DEVNULL, **self._as)
        try:
            yield
            with psycopg.connect(self._source.url("postgres"), autocommit=True) as admin:
                ((name,),) = admin.execute("SELECT pg_walfile_name(pg_current_wal_lsn())")
                admin.execute("SELECT pg_switch_wal()")
            end = time.monotonic() + 30
            while not (self.wal / name).exists() and time.monotonic() < end:
                time.sleep(0.02)
        finally:
            keeping.terminate()
            keeping.wait(30)

    def begin(self, *, until: str | None) -> None:
        """Start it: up to an instant, or (None) as a standby that takes over with what it has."""
        data = self.folder / "data"
        if until is None:
            self._run("touch", str(data / "standby.signal"))
        else:
            self._run("touch", str(data / "recovery.signal"))
            with (data / "postgresql.auto.conf").open("a") as settings:
                settings.write(f"restore_command = 'cp {self.wal}/%f %p'\n")
                settings.write(f"recovery_target_time = '{until}'\n")
                settings.write("recovery_target_action = 'promote'\n")
        self._listen(False)
        import psycopg

        with psycopg.connect(self.url("postgres"), autocommit=True) as admin:
            if until is None:
                admin.execute("SELECT pg_promote()")
            end = time.monotonic() + 30
            while admin.execute("SELECT pg_is_in_recovery()").fetchone() != (False,):
                assert time.monotonic() < end
                time.sleep(0.02)


def _unprivileged(folder: Path) -> dict[str, Any]:
    """Return the user to run as, if we are root; give the folder to them."""
    if os.geteuid() != 0:
        return {}
    user, group = 65534, 65534
    for name in ("postgres", "nobody"):
        try:
            found = pwd.getpwnam(name)
        except KeyError:
            continue
        user, group = found.pw_uid, found.pw_gid
        break
    os.chown(folder, user, group)
    return {"user": user, "group": group, "extra_groups": []}


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@functools.cache
def server(*, fsync: bool = True) -> Server:
    """Return this process's server; it ends with the process."""
    return Server(find_bin(), fsync=fsync)


@functools.cache
def database_for(folder: Path) -> str:
    """Return the URL of the database that belongs to a test's folder, made on first use.

    On the server that does not sync: for what is not about power loss.
    """
    return server(fsync=False).fresh()

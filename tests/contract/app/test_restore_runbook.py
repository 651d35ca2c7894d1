"""The runbook docs/guides/restore.md, as it is written, with a real PostgreSQL and its own tools.

A dump, a point in time and a failover to a copy: afterwards the target's own record has each effect
once, and what cannot be asked waits for a person.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import textwrap
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import psycopg
import pytest
from tests.contract.app.test_loss import (
    Place,
    handle,
    happened_once,
    is_stopped,
    jobs,
    nothing_happens_twice,
    rows,
    stands,
)
from tests.pg import Copy, Server, find_bin
from tests.said import Said, vedette

from vedette.domain.base.errors import BadStore, Unavailable
from vedette.store.postgres.database import read_instance
from vedette.store.witness import read_last_checkpoint
from vedette.testing.harness import checkout
from vedette.testing.toy_fleet import World

PAGE = checkout() / "docs" / "guides" / "restore.md"
SETTINGS = """\
fleet = "harbour"
state = "one/state"
[content]
agents = "one/content/agents"
policies = "one/policies"
memory = "one/content/memory"
[targets.world]
kind = "world"
[store]
kind = "postgresql"
url_file = "url"
lease = "1s"
"""
TOOLS = ("pg_basebackup", "pg_dump", "pg_receivewal", "pg_restore", "psql")


@pytest.fixture(scope="module")
def primary() -> Iterator[Server]:
    """The server that is lost. Its tools are needed beside it."""
    folder = find_bin()
    missing = [name for name in TOOLS if not (folder / name).exists()]
    if missing and os.environ.get("CI"):
        pytest.fail(f"{missing} are missing. Mend: install postgresql-client", pytrace=False)
    if missing:
        pytest.skip(f"{missing} are not here: install postgresql-client")
    made = Server(folder, fsync=False)
    yield made
    made.stop()


@pytest.fixture
def world() -> World:
    return World()


class Runbook:
    """The commands of the page, by the word behind their `sh`."""

    def __init__(self, folder: Path, primary: Server, url: str) -> None:
        self.folder = folder
        (folder / "vedette.toml").write_text(SETTINGS)
        (folder / "kept").mkdir()
        output = re.findall(r"^ *```sh (\w+)\n(.*?)```", PAGE.read_text(), re.MULTILINE | re.DOTALL)
        self.blocks = {name: textwrap.dedent(text).strip().splitlines() for name, text in output}
        self.done: set[str] = set()
        self.environ = {
            "PATH": f"{primary.binaries}:{os.environ['PATH']}",
            "KEPT": str(folder / "kept"),
            "STATE": str(folder / "one" / "state"),
            "ADMIN": primary.url("postgres"),
            "VEDETTE_DATABASE": url,
            "RESTORED": primary.url("restored"),
        }

    def do(self, name: str) -> list[Said]:
        """Do what the page says under a word; every command must succeed."""
        self.done.add(name)
        said = []
        for line in self.blocks[name]:
            if line.startswith("vedette "):
                said.append(vedette(self.folder, *shlex.split(line)[1:]))
                assert said[-1].code == 0, said[-1]
            else:
                subprocess.run(["sh", "-ec", line], env=self.environ, check=True, timeout=60)
        return said


@pytest.fixture
def place(tmp_path: Path, world: World, primary: Server) -> Place:
    return Place(tmp_path, world, "postgresql", primary)


@pytest.fixture
def book(tmp_path: Path, primary: Server, place: Place) -> Runbook:
    return Runbook(tmp_path, primary, place.url_file.read_text())


async def test_the_runbook(tmp_path: Path, world: World, place: Place, book: Runbook) -> None:
    """Each command of the page, in its order, by a dump."""
    fleet = place.fleet()
    later = jobs(2, 5)
    async with fleet:
        await handle(fleet, *jobs(0, 2))
        book.do("backup")
        await handle(fleet, *later)
    seen = read_last_checkpoint(place.witness())
    book.do("restore")
    place.url_file.write_text(book.environ["RESTORED"])
    async with fleet:
        assert is_stopped(fleet)
        loss = fleet.app.store.loss
        assert loss is not None
        assert seen is not None
        assert (loss.last, loss.sentence in " ".join(fleet.app.troubles)) == (seen.size, True)
        await handle(fleet, *later)
        assert world.effects() == 15
    verified, status = book.do("verify")
    assert f"entries {loss.size + 1:,} to {loss.last:,} were lost" in verified.out
    assert "the ledger stands" in verified.out
    assert "stopped: all" in status.out
    assert "in doubt since history was lost" in " ".join(status.out.split())
    book.do("resume")
    async with fleet:
        await happened_once(fleet, world, later)
    book.do("settle")
    assert "in doubt" not in vedette(tmp_path, "status").out
    async with fleet:
        new = jobs(5, 6)
        await handle(fleet, *new)
        assert {row.effect for row in rows(fleet, new)} == {"done"}
        assert world.effects("bell.ring") == 6
    assert book.done | {"folder"} == book.blocks.keys()


async def test_the_runbook_where_the_state_folder_is_lost_too(
    tmp_path: Path, world: World, primary: Server, place: Place, book: Runbook
) -> None:
    """Nobody knows what came after the dump: all of it is in doubt, and nothing is done twice."""
    fleet = place.fleet()
    later = jobs(2, 5)
    async with fleet:
        await handle(fleet, *jobs(0, 2))
    book.do("backup")
    async with fleet:
        await handle(fleet, *later)
    shutil.rmtree(fleet.folder / "state")
    with psycopg.connect(primary.url("postgres"), autocommit=True) as admin:
        admin.execute("DROP DATABASE IF EXISTS restored")
    book.do("restore")
    book.do("folder")
    place.url_file.write_text(book.environ["RESTORED"])
    async with fleet:
        assert any("no witness tells" in message for message in fleet.app.troubles)
        await nothing_happens_twice(fleet, world, later)
        assert stands(fleet, place.witness())
        assert stands(fleet, tmp_path / "kept" / "witness.log")


def put_over(server: Server, url: str, dump: str) -> None:
    """Put a dump of a database into its place."""
    for tool, *options in (
        ("pg_dump", "--format=custom", "--file", dump, url),
        ("pg_restore", "--clean", "--exit-on-error", "--dbname", url, dump),
    ):
        subprocess.run([server.binaries / tool, *options], check=True, timeout=60)


async def test_a_server_that_crashed_is_the_one_that_it_was_and_a_dump_put_over_it_is_not(
    tmp_path: Path, world: World, primary: Server, place: Place
) -> None:
    fleet, url = place.fleet(), place.url_file.read_text()
    async with fleet:
        await handle(fleet, *jobs(0, 1))
    primary.crash()
    primary.restart()
    async with fleet:
        assert (fleet.app.store.loss, fleet.app.services.stops.list_scopes()) == (None, [])
    put_over(primary, url, str(tmp_path / "fleet.dump"))
    async with fleet:
        assert is_stopped(fleet)


def test_a_standby_and_a_server_that_does_not_tell_its_history_are_refused(primary: Server) -> None:
    with psycopg.connect(primary.url("postgres"), autocommit=True) as admin:
        instance = read_instance(lambda sql, _: admin.execute(sql.encode()).fetchall())
        assert re.fullmatch(r"[0-9]+/0000000[0-9]/[0-9]+", instance)
        admin.execute("CREATE FUNCTION public.pg_is_in_recovery() RETURNS bool RETURN true")
        admin.execute("SET search_path TO public, pg_catalog")
        with pytest.raises(Unavailable, match="is a standby"):
            read_instance(lambda sql, _: admin.execute(sql.encode()).fetchall())
        admin.execute("DROP FUNCTION public.pg_is_in_recovery")
        admin.execute("CREATE ROLE plain")
        admin.execute("REVOKE EXECUTE ON FUNCTION pg_control_system FROM PUBLIC")
        admin.execute("SET ROLE plain")
        with pytest.raises(BadStore, match="permission denied for function pg_control_system"):
            read_instance(lambda sql, _: admin.execute(sql.encode()).fetchall())
        admin.execute("RESET ROLE")
        admin.execute("GRANT EXECUTE ON FUNCTION pg_control_system TO PUBLIC")


@pytest.mark.parametrize("way", ["point in time", "failover"])
async def test_the_other_ways_back(tmp_path: Path, world: World, primary: Server, way: str) -> None:
    """A base backup with its write-ahead log up to an instant, and a standby that takes over.

    Who comes first saw nothing of what is lost: that it is a copy is told by the server itself.
    """
    place = Place(tmp_path, world, "postgresql", primary)
    url = place.url_file.read_text()
    fleet = place.fleet()
    later = jobs(2, 5)
    async with fleet:
        await handle(fleet, *jobs(0, 1))
        copied = Copy(primary) if way == "point in time" else None
        await handle(fleet, *jobs(1, 2))
        async with place.fleet("other") as other:
            pass
        copied = copied or Copy(primary)
        with psycopg.connect(url) as asking:
            ((until,),) = asking.execute("SELECT CAST(clock_timestamp() AS text)")
        with copied.archiving():
            await handle(fleet, *later)
    copied.begin(until=until if way == "point in time" else None)
    place.url_file.write_text(copied.url(urlsplit(url).path[1:]))
    async with other:
        assert is_stopped(other)
        assert other.app.store.loss is not None
        assert other.app.store.loss.sentence.startswith("the server was promoted")
    async with fleet:
        assert fleet.app.store.tables.event_counts()[0] == 6
        await nothing_happens_twice(fleet, world, later)
        assert stands(fleet, place.witness())
    copied.stop()

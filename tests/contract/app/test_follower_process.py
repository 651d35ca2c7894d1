"""The follower is a process of its own: started, woken, started again, and never left behind."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import psutil
import pytest
from tests import pg

from vedette.app import follower_process
from vedette.app.follower_process import FollowerProcess
from vedette.config.settings import StorePlan
from vedette.testing.harness import FleetHarness
from vedette.testing.toy_fleet import World, job, send_proposal, toy_fleet

WITHIN_S = 60.0


@pytest.fixture(params=["postgres", "sqlite"])
def plan(request: pytest.FixtureRequest, tmp_path: Path) -> StorePlan:
    if request.param == "sqlite":
        return StorePlan()
    path = tmp_path / "database.url"
    path.touch(0o600)
    path.write_text(pg.database_for(tmp_path))
    return StorePlan("postgresql", url_file=str(path))


@asynccontextmanager
async def followed(fleet: FleetHarness, told: list[str]) -> AsyncIterator[FollowerProcess]:
    """Have a process follow the ledger of a fleet, which reads what it has made and no more."""
    process = FollowerProcess(fleet.app.settings, fleet.app.store)
    task = asyncio.create_task(process.run(told.append))
    try:
        with fleet.app.store.view.without_waiting():
            yield process
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def caught_up(fleet: FleetHarness) -> None:
    async with asyncio.timeout(WITHIN_S):
        while fleet.app.store.view.lag().entries:  # noqa: ASYNC110 (another process makes it)
            await asyncio.sleep(0.01)


def has_ended(pid: int) -> bool:
    with suppress(psutil.NoSuchProcess):
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    return True


async def test_it_makes_the_model_and_is_started_again(tmp_path: Path, plan: StorePlan) -> None:
    told: list[str] = []
    fleet = toy_fleet(tmp_path, World())
    fleet._store = plan
    async with fleet:
        tables = fleet.app.store.tables
        async with followed(fleet, told) as process:
            await fleet.send(job("one", send_proposal()))
            await fleet.wait_until_idle()
            await caught_up(fleet)
            assert tables.counts()["worker"]["effect.done"] == 1
            first = process.pid
            assert first is not None
            # As a service manager tells a whole control group: it is its runner that ends it.
            os.kill(first, signal.SIGTERM)
            await fleet.send(job("term", send_proposal(), key="term"))
            await fleet.wait_until_idle()
            await caught_up(fleet)
            assert (process.pid, told) == (first, [])
            os.kill(first, signal.SIGKILL)
            await fleet.send(job("two", send_proposal(), key="other"))
            await fleet.wait_until_idle()
            await caught_up(fleet)
            assert tables.counts()["worker"]["effect.done"] == 3
            second = process.pid
            assert second not in (None, first)
            assert told == [
                "the follower of the read model ended with exit code -9; it is started again"
            ]
        assert process.pid is None
        assert has_ended(second or 0)
        assert tables.find_wrong_rows() == []


async def test_what_it_cannot_write_is_told_once_in_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(follower_process, "_MIN_RETRY_S", 0.0)
    told: list[str] = []
    async with toy_fleet(tmp_path, World()) as fleet:
        view = fleet.app.settings.state / "view.db"
        view.mkdir()
        process = FollowerProcess(fleet.app.settings, fleet.app.store)
        started: list[int] = []
        live = process._live

        async def count() -> str:
            started.append(len(started))
            return await live()

        monkeypatch.setattr(process, "_live", count)
        task = asyncio.create_task(process.run(told.append))
        async with asyncio.timeout(WITHIN_S):
            while len(started) < 3:  # noqa: ASYNC110 (another process ends)
                await asyncio.sleep(0.01)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        view.rmdir()
    (line,) = told
    assert line.startswith("the follower of the read model ended with exit code 1: ")
    assert "view.db" in line
    assert capfd.readouterr().err == ""


@pytest.mark.parametrize(
    ("error", "said"),
    [("apsw.FullError", "the disk is full"), ("psycopg.OperationalError", "OperationalError: x y")],
)
def test_what_ends_it_is_one_line(tmp_path: Path, error: str, said: str) -> None:
    """Of an error of the database too, which is none of ours."""
    code = f"""
import {error.partition(".")[0]}, sys
from vedette.app import follower_main
from vedette.store.readmodel import follower
def fail(*_):
    raise {error}("x\\ny")
follower.follow = fail
sys.exit(follower_main.main())
"""
    done = subprocess.run(
        [sys.executable, "-c", code], input=f'{{"state": "{tmp_path}"}}\n',
        text=True, capture_output=True, check=False,
    )  # fmt: skip
    assert done.returncode == 1
    (line,) = done.stderr.splitlines()
    assert said in line


@pytest.mark.parametrize(
    ("place", "error", "said"),
    [
        ("os.pipe", OSError(24, "Too many open files"), "Too many open files"),
        ("asyncio.create_subprocess_exec", ValueError("odd"), "ValueError: odd"),
    ],
    ids=["pipe", "process"],
)
async def test_what_cannot_be_started_ends_no_fleet(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: str, error: Exception, said: str
) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise error

    told: list[str] = []
    async with toy_fleet(tmp_path, World()) as fleet:
        process = FollowerProcess(fleet.app.settings, fleet.app.store)
        with monkeypatch.context() as patch:
            patch.setattr(place, refuse)
            task = asyncio.create_task(process.run(told.append))
            while not told and not task.done():  # noqa: ASYNC110
                await asyncio.sleep(0)
            assert not task.done()
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
    (line,) = told
    what = f"the follower of the read model could not be started: {said}"
    assert line == f"{what}; it is started again"


RUNNER = """
import asyncio, sys
from pathlib import Path
from vedette.app.follower_process import FollowerProcess
from vedette.testing.toy_fleet import World, job, toy_fleet

async def main():
    async with toy_fleet(Path(sys.argv[1]), World()) as fleet:
        process = FollowerProcess(fleet.app.settings, fleet.app.store)
        task = asyncio.create_task(process.run(print))
        while fleet.app.store.view.lag().entries:
            await asyncio.sleep(0.01)
        print(process.pid, flush=True)
        await task

asyncio.run(main())
"""


def test_it_ends_when_its_runner_is_killed(tmp_path: Path) -> None:
    runner = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(RUNNER), str(tmp_path)], stdout=subprocess.PIPE
    )
    assert runner.stdout is not None
    pid = int(runner.stdout.readline())
    assert not has_ended(pid)
    runner.kill()
    runner.wait()
    until = time.monotonic() + WITHIN_S
    while not has_ended(pid) and time.monotonic() < until:
        time.sleep(0.01)
    assert has_ended(pid)
    runner.stdout.close()

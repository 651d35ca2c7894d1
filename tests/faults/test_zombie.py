"""A worker that was stopped past its lease and goes on: nothing of it starts, nothing commits."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

import pytest
from tests.faults.zombie_child import open_worker
from tests.pg import server

from vedette.domain.base.machine import boot_us
from vedette.domain.run import CommitStatus, Run
from vedette.store.postgres import PostgresStore
from vedette.testing.sample_steps import accept_events, closing_step, event

CHILD = Path(__file__).parent / "zombie_child.py"
# A call that had its leave may be recorded this much later: a check and a write apart.
MOMENT_US = 20_000


class Zombie:
    """The worker in a process of its own, and what it recorded of its calls."""

    def __init__(self, process: subprocess.Popen[str], record: Path) -> None:
        self.process, self.record = process, record

    def line(self) -> list[str]:
        output: IO[str] | None = self.process.stdout
        assert output is not None
        return output.readline().split()

    def say(self) -> None:
        ear: IO[str] | None = self.process.stdin
        assert ear is not None
        ear.write("\n")
        ear.flush()

    def calls(self) -> list[int]:
        return [int(line) for line in self.record.read_text().split()]


@contextmanager
def zombie(mode: str, url: str, folder: Path) -> Iterator[Zombie]:
    record = folder / "calls"
    process = subprocess.Popen(
        [sys.executable, str(CHILD), mode, url, str(folder / "zombie"), str(record)],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        env={**os.environ, "PYTHONPATH": str(CHILD.parents[2])},
    )  # fmt: skip
    try:
        yield Zombie(process, record)
    finally:
        process.kill()
        process.communicate()


async def wait_for(store: PostgresStore, shards: int, within_s: float = 30) -> None:
    end = time.monotonic() + within_s
    while len(store.cluster.leases.epochs) != shards:
        assert time.monotonic() < end, f"{len(store.cluster.leases.epochs)} shards, not {shards}"
        await asyncio.sleep(0.005)


@pytest.fixture
def url() -> str:
    return server(fsync=False).fresh()


async def begin_run(child: Zombie, url: str, folder: Path) -> tuple[PostgresStore, Run]:
    """Open the other worker beside a child and let the child begin to call; return its run."""
    assert child.line() == ["joined"]
    other = open_worker(url, folder / "other")
    other.cluster.adopt(0, 0)
    await wait_for(other, 32)
    child.say()
    word, name = await asyncio.to_thread(child.line)
    assert word == "calling"
    run = other.runs.run(name)
    assert run is not None
    return other, run


@pytest.mark.parametrize("mode", ["careful", "careless"])
async def test_a_zombie_starts_no_call_and_commits_nothing(
    mode: str, url: str, tmp_path: Path
) -> None:
    with zombie(mode, url, tmp_path) as child:
        other, run = await begin_run(child, url, tmp_path)
        try:
            await asyncio.sleep(0.2)
            child.process.send_signal(signal.SIGSTOP)
            assert child.calls(), "it must have called while the lease was its own"
            await wait_for(other, 64)
            elapsed_us = boot_us()
            # The successor does the work; then the zombie wakes up.
            assert (
                await other.steps.commit(closing_step(other, run))
            ).status is CommitStatus.COMMITTED
            child.process.send_signal(signal.SIGCONT)
            child.say()
            assert await asyncio.to_thread(child.line) == ["answer", "fenced:", "lease"]
            end = time.monotonic() + (0.2 if mode == "careful" else 10)
            late_calls: list[int] = []
            while time.monotonic() < end and not late_calls:
                await asyncio.sleep(0.02)
                late_calls = [at for at in child.calls() if at > elapsed_us + MOMENT_US]
            if mode == "careful":
                assert late_calls == []
            else:
                assert late_calls, "the control must call, or the test could not fail"
            after = other.runs.run(run.id)
            assert after is not None
            assert (after.state, after.steps) == ("done", 1)
        finally:
            other.close()


async def test_a_zombie_with_the_fleet_s_lock_holds_nobody_up_for_long(
    url: str, tmp_path: Path
) -> None:
    """Stopped in the middle of a group: the server ends its session, and with it the lock."""
    with zombie("group", url, tmp_path) as child:
        other, run = await begin_run(child, url, tmp_path)
        try:
            began = time.monotonic()
            await asyncio.wait_for(accept_events(other, event(1000)), 30)
            assert time.monotonic() - began < 10
            await wait_for(other, 64)
            assert (
                await other.steps.commit(closing_step(other, run))
            ).status is CommitStatus.COMMITTED
            child.process.send_signal(signal.SIGCONT)
            child.say()
            assert await asyncio.to_thread(child.line) == ["answer", "fenced:", "lease"]
            assert [seq for seq, *_ in other.ledger.walk()] == list(
                range(1, other.ledger.last_seq() + 1)
            )
        finally:
            other.close()


async def test_a_killed_worker_s_keys_go_over_and_nothing_is_lost(url: str, tmp_path: Path) -> None:
    with zombie("careful", url, tmp_path) as child:
        other, _ = await begin_run(child, url, tmp_path)
        try:
            child.process.kill()
            await wait_for(other, 64)
            left = other.schedule.ready_runs(0, 1000)
            assert len(left) == 200
            answers = await asyncio.gather(
                *(other.steps.commit(closing_step(other, run)) for run in left)
            )
            assert {answer.status for answer in answers} == {CommitStatus.COMMITTED}
            assert other.schedule.ready_runs(0, 1000) == []
        finally:
            other.close()

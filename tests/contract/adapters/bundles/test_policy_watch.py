"""The policy folder is watched through saves, reads, and while it is replaced."""

from __future__ import annotations

import asyncio
import shutil
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from watchdog.observers.api import BaseObserver

from vedette.adapters.bundles import watch
from vedette.adapters.bundles.watch import watch_folder
from vedette.testing.toy_fleet import wait_until


@pytest.fixture(autouse=True)
def looks_often(monkeypatch: pytest.MonkeyPatch) -> None:
    """So that nobody waits for seconds, and a slow machine is no pause between two saves."""
    monkeypatch.setattr(watch, "QUIET_S", 0.3)
    monkeypatch.setattr(watch, "MISSING_POLL_S", 0.1)
    monkeypatch.setattr(watch, "PRESENCE_POLL_S", 0.3)


@asynccontextmanager
async def watching(
    folder: Path, then: Callable[[], None] = lambda: None
) -> AsyncIterator[asyncio.Queue[None]]:
    """Yield a queue of what `saved` tells; `then` is done whenever it does. It never ends."""
    queue: asyncio.Queue[None] = asyncio.Queue()

    async def report_changes() -> None:
        async for _ in watch_folder(folder):
            then()
            queue.put_nowait(None)

    task = asyncio.create_task(report_changes())
    await wait_until(lambda: any(isinstance(one, BaseObserver) for one in threading.enumerate()))
    try:
        yield queue
        assert not task.done(), task
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def quiet(queue: asyncio.Queue[None]) -> bool:
    await asyncio.sleep(0.8)
    return queue.empty()


async def test_saves_are_told_once_they_are_whole_and_reads_are_not(tmp_path: Path) -> None:
    below = tmp_path / "gateway"
    below.mkdir()
    (below / "a.rego").write_text("package a\n")
    async with watching(tmp_path) as changes:
        (below / "a.rego").read_text()
        assert await quiet(changes)
        for text in ("one", "two", "three"):
            (below / "a.rego").write_text(text)
            await asyncio.sleep(0.02)
        await asyncio.wait_for(changes.get(), 5)
        assert await quiet(changes), "told more than once"
        (below / "b.rego").write_text("package b\n")
        (below / "b.rego").rename(below / "c.rego")
        await asyncio.wait_for(changes.get(), 5)
        (below / "c.rego").unlink()
        await asyncio.wait_for(changes.get(), 5)


async def test_a_folder_that_was_replaced_is_told_and_watched_again(tmp_path: Path) -> None:
    folder = tmp_path / "policies"
    folder.mkdir()
    async with watching(folder) as changes:
        folder.rename(tmp_path / "old")
        (folder / "new").mkdir(parents=True)
        await asyncio.wait_for(changes.get(), 8)
        while not changes.empty():
            changes.get_nowait()
        await asyncio.sleep(0.3)
        (folder / "new" / "a.rego").write_text("package a\n")
        await asyncio.wait_for(changes.get(), 8)


async def test_a_folder_that_was_deleted_and_made_anew_is_watched_again(tmp_path: Path) -> None:
    """At once, as a checkout does it: on many file systems it has the same inode then."""
    folder = tmp_path / "policies"
    folder.mkdir()
    async with watching(folder) as changes:
        shutil.rmtree(folder)
        folder.mkdir()
        await asyncio.wait_for(changes.get(), 8)
        while not await quiet(changes):
            changes.get_nowait()
        (folder / "a.rego").write_text("package a\n")
        await asyncio.wait_for(changes.get(), 8)


async def test_what_is_saved_while_a_folder_that_came_back_is_read_is_told(tmp_path: Path) -> None:
    folder = tmp_path / "policies"
    folder.mkdir()
    left = ["package a\n"]

    def save() -> None:
        if folder.is_dir() and left:
            (folder / "a.rego").write_text(left.pop())

    async with watching(folder, save) as changes:
        folder.rename(tmp_path / "old")
        await asyncio.sleep(0.5)
        folder.mkdir()
        while left:
            await asyncio.wait_for(changes.get(), 10)
        await asyncio.wait_for(changes.get(), 8)


async def test_a_folder_that_goes_again_while_it_is_read_ends_nothing(tmp_path: Path) -> None:
    folder = tmp_path / "policies"
    folder.mkdir()
    back = [True]

    def remove() -> None:
        if back and folder.is_dir():
            back.pop()
            folder.rmdir()

    async with watching(folder, remove) as changes:
        folder.rename(tmp_path / "old")
        await asyncio.sleep(0.5)
        folder.mkdir()
        while back:
            await asyncio.wait_for(changes.get(), 10)
        await asyncio.sleep(0.2)
        folder.mkdir()
        while not changes.empty():
            changes.get_nowait()
        await asyncio.wait_for(changes.get(), 8)

"""The policy folder is watched through saves, reads, and while it is replaced."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from vedette.adapters.policy_watch import saved


@asynccontextmanager
async def watching(folder: Path) -> AsyncIterator[asyncio.Queue[None]]:
    """Yield a queue of what `saved` tells."""
    told: asyncio.Queue[None] = asyncio.Queue()

    async def tell() -> None:
        async for _ in saved(folder):
            told.put_nowait(None)

    task = asyncio.create_task(tell())
    await asyncio.sleep(0.3)
    try:
        yield told
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def quiet(told: asyncio.Queue[None]) -> bool:
    await asyncio.sleep(0.5)
    return told.empty()


async def test_saves_are_told_once_they_are_whole_and_reads_are_not(tmp_path: Path) -> None:
    below = tmp_path / "gateway"
    below.mkdir()
    (below / "a.rego").write_text("package a\n")
    async with watching(tmp_path) as told:
        (below / "a.rego").read_text()
        assert await quiet(told)
        for text in ("one", "two", "three"):
            (below / "a.rego").write_text(text)
            await asyncio.sleep(0.02)
        await asyncio.wait_for(told.get(), 5)
        assert await quiet(told), "told more than once"
        (below / "b.rego").write_text("package b\n")
        (below / "b.rego").rename(below / "c.rego")
        await asyncio.wait_for(told.get(), 5)
        (below / "c.rego").unlink()
        await asyncio.wait_for(told.get(), 5)


async def test_a_folder_that_was_replaced_is_told_and_watched_again(tmp_path: Path) -> None:
    folder = tmp_path / "policies"
    folder.mkdir()
    async with watching(folder) as told:
        folder.rename(tmp_path / "old")
        (folder / "new").mkdir(parents=True)
        await asyncio.wait_for(told.get(), 8)
        while not told.empty():
            told.get_nowait()
        await asyncio.sleep(0.3)
        (folder / "new" / "a.rego").write_text("package a\n")
        await asyncio.wait_for(told.get(), 8)

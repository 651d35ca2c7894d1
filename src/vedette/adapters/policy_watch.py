"""Watches the policy folder: a saved change is offered once the folder has been quiet.

Editors write in several steps, so a bundle is read only when nothing changed for `QUIET_S`, and
read again if the folder changed while it was being read. What is offered may still be refused.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import suppress
from pathlib import Path

QUIET_S = 0.1
# How often a folder that was removed is looked for again, and how often whether it was moved away.
GONE_S, THERE_S = 1.0, 5.0


async def saved(folder: Path) -> AsyncIterator[None]:
    """Yield whenever the folder was changed and has then been quiet for 100 ms.

    A folder that was removed and is there again counts as changed. Raises OSError if the system
    has no notice left to give.
    """
    while True:
        async for _ in _changes(folder):
            yield None
        while _inode(folder) is None:  # noqa: ASYNC110 (nobody tells of what is not there)
            await asyncio.sleep(GONE_S)
        yield None


async def _changes(folder: Path) -> AsyncIterator[None]:
    """Yield as `saved` does, until the folder is gone."""
    from watchdog import events
    from watchdog.observers import Observer

    # Not that a file was opened or read: we do that ourselves.
    kinds = [
        events.FileCreatedEvent, events.FileModifiedEvent, events.FileDeletedEvent,
        events.FileMovedEvent, events.DirCreatedEvent, events.DirDeletedEvent, events.DirMovedEvent,
    ]  # fmt: skip
    loop, changed = asyncio.get_running_loop(), asyncio.Event()

    class Notices(events.FileSystemEventHandler):
        def on_any_event(self, event: events.FileSystemEvent) -> None:
            loop.call_soon_threadsafe(changed.set)

    observer = Observer()
    observer.schedule(Notices(), str(folder), recursive=True, event_filter=kinds)
    observer.start()
    inode = _inode(folder)
    try:
        while inode is not None and _inode(folder) == inode:
            with suppress(TimeoutError):
                async with asyncio.timeout(THERE_S):
                    await changed.wait()
            if not changed.is_set():
                continue
            while changed.is_set():
                changed.clear()
                await asyncio.sleep(QUIET_S)
            yield None
    finally:
        observer.stop()
        observer.join()


def _inode(folder: Path) -> int | None:
    """Return which folder it is; None while there is none."""
    return folder.stat().st_ino if folder.is_dir() else None

"""Watches the policy folder by watchdog: a saved change is offered once the folder has been quiet.

Editors write in several steps, so a bundle is read only when nothing changed for `QUIET_S`, and
read again if the folder changed while it was being read. What is offered may still be refused.
"""

from __future__ import annotations

import asyncio
import stat
from collections.abc import AsyncIterator
from contextlib import suppress
from pathlib import Path

QUIET_S = 0.1
# How often a folder that was removed is looked for again, and how often whether it was moved away.
MISSING_POLL_S, PRESENCE_POLL_S = 1.0, 5.0


async def watch_folder(folder: Path) -> AsyncIterator[None]:
    """Yield whenever watchdog saw the policy folder change, and it was then quiet for 100 ms.

    A folder that was removed and is there again counts as changed. Raises OSError if the system
    has no notice left to give.
    """
    present = True
    while True:
        try:
            async for _ in _watch_until_removed(folder, notify_first=not present):
                yield None
        except FileNotFoundError:  # it went while it was being looked at
            await asyncio.sleep(MISSING_POLL_S)
        present = False
        while _inode(folder) is None:  # noqa: ASYNC110 (nobody tells of what is not there)
            await asyncio.sleep(MISSING_POLL_S)


async def _watch_until_removed(folder: Path, *, notify_first: bool) -> AsyncIterator[None]:
    """Yield as `watch_folder` does, until the folder is gone.

    One that is there `notify_first` is told once it is watched: nothing is saved between the two.
    """
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
    inode = _inode(folder)  # before it is watched: what takes its place meanwhile is another
    observer.start()
    if notify_first:
        changed.set()
    try:
        # One that was deleted ends its emitter, and one made after it may have the same inode.
        while _inode(folder) == inode and all(one.is_alive() for one in observer.emitters):
            with suppress(TimeoutError):
                async with asyncio.timeout(PRESENCE_POLL_S):
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
    with suppress(FileNotFoundError, NotADirectoryError):
        found = folder.stat()
        return found.st_ino if stat.S_ISDIR(found.st_mode) else None
    return None

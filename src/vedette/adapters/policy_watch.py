"""Watches the policy folder: a saved change is offered once the folder has been quiet.

Editors write in several steps, so a bundle is read only when nothing changed for `QUIET_MS`, and
read again if the folder changed while it was being read. What is offered may still be refused.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

QUIET_MS = 100


async def saved(folder: Path, stop: asyncio.Event) -> AsyncIterator[None]:
    """Yield whenever the folder was changed and has then been quiet for 100 ms."""
    from watchfiles import awatch

    async for _ in awatch(
        folder,
        stop_event=stop,
        debounce=60_000,
        step=QUIET_MS,
        yield_on_timeout=False,
        recursive=True,
        ignore_permission_denied=True,
    ):
        yield None

"""Fleets that were made before a history begins: made once in a process, and copied to each.

An image has a seed of its own and ends before the first instant of any history, so what a history
is copied from does not depend on what this process did before.
"""

from __future__ import annotations

import asyncio
import shutil
from pathlib import Path

from tests.simulation.engine import Life, read_once, settings_of
from tests.simulation.fleet import write_keys, write_secret
from tests.simulation.loop import BOOT_S, SimLoop
from tests.simulation.server import Server, in_place
from tests.simulation.world import closed_world

from vedette.config.settings import StorePlan

LEASE_US = 2_000_000
# So long before a history its fleet is founded, and within this time, in seconds.
_BEFORE_S, _WITHIN_S = 100.0, 60.0


def machine_of(folder: Path, slot: int, life: int = 0) -> Path:
    """Return the state folder of a life of a worker, in the folder of its history."""
    return folder / f"w{slot}.{life}"


def store_of(server: Server | None, folder: Path) -> StorePlan:
    """Return where the worker with a state folder keeps its state."""
    if server is None:
        return StorePlan()
    url = folder / "url"
    write_secret(url, server.url.encode())
    return StorePlan("postgresql", url_file=str(url), lease_us=LEASE_US)


class FleetImages:
    """The founded fleets of a process, over the fleet of `content`; they lie in `folder`."""

    def __init__(self, content: Path, folder: Path) -> None:
        self._content, self._folder = content, folder
        self._made: dict[tuple[str, int], Path] = {}

    def copy(self, store: str, workers: int, to: Path) -> None:
        """Give the empty folder of a history the state of a fleet that was closed in good order."""
        which = store, workers
        if which not in self._made:
            folder = self._folder / f"{store}{workers}"
            folder.mkdir(parents=True)
            _found(self._content, folder, store, workers)
            self._made[which] = folder
        shutil.copytree(self._made[which], to, dirs_exist_ok=True)


def _found(content: Path, folder: Path, store: str, workers: int) -> None:
    read_once()
    loop = SimLoop(0, BOOT_S - _BEFORE_S)
    server = Server(loop, folder, lambda _: None) if store == "postgresql" else None

    async def whole(slot: int) -> None:
        state = machine_of(folder, slot)
        write_keys(state)
        life = Life(loop, state.name, settings_of(content, state, None, store_of(server, state)))
        await life.open()
        await asyncio.sleep(1.0)
        await life.close()

    async def all_of_them() -> None:
        await asyncio.gather(*(whole(slot) for slot in range(workers)))

    with closed_world(loop, 0), in_place():
        try:
            loop.run(all_of_them(), _WITHIN_S)
            if server is not None:
                server.keep().replace(server.path)
        finally:
            loop.close()
            if server is not None:
                server.close()

"""Scratch folders: each worker has one of its own, made before it is forked, removed after its end.

What agents' code left there is removed beside the event loop.
"""

from __future__ import annotations

import tempfile
import threading
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from vedette.domain.base.tree_removal import remove_tree

# The folder of the state folder in which they lie.
SCRATCH = "scratch"


class ScratchFolders:
    """The scratch folders of one pool's workers, below `state`."""

    def __init__(self, state: Path) -> None:
        self._root = (state / SCRATCH).absolute()
        self._folders: dict[int, Path] = {}

    def remove_leftovers(self) -> None:
        """Begin to remove what earlier runs have left. The caller has the workers' lock."""
        with suppress(OSError):
            _remove_in_background(sorted({*self._root.iterdir()} - {*self._folders.values()}))

    def create(self, worker: int, agent: str, kind: str) -> Path:
        """Return a new folder, of no name that there was, for a worker. Raises OSError."""
        self._root.mkdir(mode=0o700, parents=True, exist_ok=True)
        made = Path(tempfile.mkdtemp(prefix=f"{agent}.{kind}.", dir=self._root))
        self._folders[worker] = made
        return made

    def remove(self, worker: int) -> None:
        """Begin to remove the folder of a worker that has ended, if it had one."""
        made = self._folders.pop(worker, None)
        if made is not None:
            _remove_in_background([made])

    def remove_all(self) -> None:
        """Begin to remove the folders of all workers, once these have ended."""
        for worker in list(self._folders):
            self.remove(worker)


def _remove_in_background(paths: Sequence[Path]) -> None:
    def remove() -> None:
        for path in paths:
            remove_tree(path)

    if paths:
        threading.Thread(target=remove, name="vedette-scratch", daemon=True).start()

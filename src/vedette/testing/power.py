"""Power loss under the shipped store: the process is killed, the disk has what was synced.

At write number `cut_at` of all files the power fails: `spared` gets every file as a disk might
have it then (`disk`); then the process is killed.

    pull_plug(spared, seed=3, cut_at=120, others=[witness])

Files that were written past SQLite (`others`) keep a seeded prefix of their bytes.
"""

from __future__ import annotations

import os
import random
import signal
from collections.abc import Sequence
from pathlib import Path

from vedette.testing.disk import WatchedDisk

# A VFS that nobody holds is taken away from under its files.
_PLUGGED: list[PowerLoss] = []


class PowerLoss(WatchedDisk):
    """The VFS. `writes` counts the writes of all files; see the module."""

    def __init__(
        self,
        spared: Path,
        *,
        seed: int,
        cut_at: int | None,
        others: Sequence[Path] = (),
        torn: bool = True,
        name: str = "vedette-power",
    ) -> None:
        super().__init__(name)
        self.writes = 0
        self._to = spared
        self._draw = random.Random(seed)  # noqa: S311 - drawn again from the same seed
        self._cut_at = cut_at
        self._others = tuple(others)
        self._torn = torn

    def wrote(self, path: str) -> None:
        """Count a write; fail at the one that was agreed on."""
        self.writes += 1
        if self.writes == self._cut_at:
            self._fail()

    def _fail(self) -> None:
        for path, written in sorted(self.files.items()):
            (self._to / Path(path).name).write_bytes(written.left(self._draw, self._torn))
        for other in self._others:
            raw = other.read_bytes() if other.exists() else b""
            (self._to / other.name).write_bytes(raw[: self._draw.randint(0, len(raw))])
        os.kill(os.getpid(), signal.SIGKILL)


def pull_plug(
    spared: Path, *, seed: int, cut_at: int | None, others: Sequence[Path] = (), torn: bool = True
) -> PowerLoss:
    """Put the VFS under every SQLite file that this process opens from here on.

    With `cut_at` None the power stays; then `writes` tells how many writes a run has.
    """
    power = PowerLoss(spared, seed=seed, cut_at=cut_at, others=others, torn=torn)
    _PLUGGED.append(power)
    return power

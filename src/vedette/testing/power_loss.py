"""Power loss under the shipped store: the process is killed, the disk has what was synced.

At write number `cut_at` of all files the power fails: `spared` gets every file as a disk might
have it then (`disk`); then the process is killed.

    pull_plug(spared, seed=3, cut_at=120, others=[witness])

Files that were written past SQLite (`others`) keep a seeded prefix of their bytes, and what they
held when they were synced last. Names of files
are taken to be durable, and a file that was deleted stays so.
"""

from __future__ import annotations

import os
import random
import signal
from collections.abc import Sequence
from pathlib import Path

from vedette.testing.disk import WatchedDisk

# A VFS that nobody holds is taken away from under its files.
_LIVE_DISKS: list[PowerLoss] = []


class PowerLoss(WatchedDisk):
    """The VFS of a power loss test. `writes` counts the writes of all files; see the module."""

    def __init__(
        self,
        image_folder: Path,
        *,
        seed: int,
        cut_at: int | None,
        other_files: Sequence[Path] = (),
        torn: bool = True,
        name: str = "vedette-power",
    ) -> None:
        super().__init__(name)
        self.writes = 0
        self._image_folder = image_folder
        self._random = random.Random(seed)  # noqa: S311 - drawn again from the same seed
        self._cut_at = cut_at
        self._other_files = tuple(other_files)
        self._fsync = os.fsync
        self._synced_sizes: dict[tuple[int, int], int] = {}
        self._torn = torn

    def after_write(self, path: str) -> None:
        """Count a write; fail at the one that was agreed on."""
        self.writes += 1
        if self.writes == self._cut_at:
            self._cut_power()

    def fsync(self, file: int) -> None:
        """Sync a file that was written past SQLite; from here on it keeps what it holds now."""
        self._fsync(file)
        found = os.fstat(file)
        self._synced_sizes[found.st_dev, found.st_ino] = found.st_size

    def _cut_power(self) -> None:
        for path, written in sorted(self.files.items()):
            (self._image_folder / Path(path).name).write_bytes(
                written.draw_crash_image(self._random, self._torn)
            )
        for other in self._other_files:
            if not other.exists():
                continue
            raw, found = other.read_bytes(), other.stat()
            synced = self._synced_sizes.get((found.st_dev, found.st_ino), 0)
            (self._image_folder / other.name).write_bytes(
                raw[: self._random.randint(synced, len(raw))]
            )
        os.kill(os.getpid(), signal.SIGKILL)


def install_power_loss(
    image_folder: Path,
    *,
    seed: int,
    cut_at: int | None,
    other_files: Sequence[Path] = (),
    torn: bool = True,
) -> PowerLoss:
    """Put a test's VFS under every SQLite file that this process opens from here on.

    With `cut_at` None the power stays; then `writes` tells how many writes a run has.
    """
    power = PowerLoss(image_folder, seed=seed, cut_at=cut_at, other_files=other_files, torn=torn)
    _LIVE_DISKS.append(power)
    os.fsync = power.fsync  # type: ignore[assignment]
    return power

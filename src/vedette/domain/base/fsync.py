"""What makes a file's content, or the names in a folder, outlast a power cut."""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from vedette.domain.base.failpoint import reach

_PART = ".part"


def sync(path: Path) -> None:
    """Return when a file's content, or a folder's list of names, is on the disk. Raises OSError."""
    opened = os.open(path, os.O_RDONLY)
    try:
        os.fsync(opened)
    finally:
        os.close(opened)


def create_whole(path: Path, raw: bytes, point: str) -> None:
    """Write a new file that its owner alone may read: durable and whole, or not there at all.

    `point` names the crash points. Raises FileExistsError if somebody else was here first, and
    OSError.
    """
    # A link, not a rename: what is there already keeps its place.
    _write_whole(path, raw, point, os.link)


def replace_whole(path: Path, raw: bytes, point: str) -> None:
    """Write a file as `create_whole` does, in the place of what is there; needs no hard links."""
    _write_whole(path, raw, point, os.replace)


def _write_whole(path: Path, raw: bytes, point: str, put: Callable[[str, Path], None]) -> None:
    reach(f"{point}:before")
    import tempfile  # a key is made once, and loading this costs every start

    descriptor, name = tempfile.mkstemp(prefix=f".{path.name}.", suffix=_PART, dir=path.parent)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(raw)
            file.flush()
            os.fsync(file.fileno())
        reach(f"{point}:mid")
        put(name, path)
    finally:
        with suppress(OSError):  # it is dropped later
            Path(name).unlink()
    sync(path.parent)
    reach(f"{point}:after")


def drop_parts(folder: Path) -> None:
    """Remove what is left of files that were broken off while they were made. Raises OSError."""
    for left in folder.glob(f".*{_PART}"):
        left.unlink()

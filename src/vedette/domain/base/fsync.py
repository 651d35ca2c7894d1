"""fsync: what makes a file's content, or the names in a folder, outlast a power cut."""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from vedette.domain.base.failpoint import hit_failpoint

_PARTIAL_SUFFIX = ".part"


def sync(path: Path) -> None:
    """Return when a file's content, or a folder's list of names, is on the disk. Raises OSError."""
    opened = os.open(path, os.O_RDONLY)
    try:
        os.fsync(opened)
    finally:
        os.close(opened)


def create_atomic(path: Path, raw: bytes, point: str) -> None:
    """Write a new file to the disk, for its owner alone: durable and whole, or not there at all.

    `point` names the crash points. Raises FileExistsError if somebody else was here first, and
    OSError.
    """
    # A link, not a rename: what is there already keeps its place.
    _write_atomic(path, raw, point, os.link)


def replace_atomic(path: Path, raw: bytes, point: str) -> None:
    """Write a file as `create_atomic` does, in the place of what is there; needs no hard links."""
    _write_atomic(path, raw, point, os.replace)


def _write_atomic(path: Path, raw: bytes, point: str, commit: Callable[[str, Path], None]) -> None:
    hit_failpoint(f"{point}:before")
    import tempfile  # a key is made once, and loading this costs every start

    descriptor, name = tempfile.mkstemp(
        prefix=f".{path.name}.", suffix=_PARTIAL_SUFFIX, dir=path.parent
    )
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(raw)
            file.flush()
            os.fsync(file.fileno())
        hit_failpoint(f"{point}:mid")
        commit(name, path)
    finally:
        with suppress(OSError):  # it is dropped later
            Path(name).unlink()
    sync(path.parent)
    hit_failpoint(f"{point}:after")


def remove_partial_files(folder: Path) -> None:
    """Remove what `create_atomic` and `replace_atomic` broke off. Raises OSError."""
    for left in folder.glob(f".*{_PARTIAL_SUFFIX}"):
        left.unlink()

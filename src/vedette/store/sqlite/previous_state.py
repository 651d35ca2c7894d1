"""The store's state from before a migration: a copy that an older program can go on with.

It lies in `before/schema-N` of the state folder: the store, the memory bank and the witness file.
"""

from __future__ import annotations

import os
import re
import shutil
from pathlib import Path

from vedette.domain.base.errors import StoreFailed
from vedette.domain.base.fsync import sync
from vedette.store.sqlite.online_backup import copy_database

FOLDER = "before"
# How many copies are kept: of the last two schemas that were left.
_MAX_COPIES = 2
_DATABASES = ("store.db", "memory.db")
_NAME = re.compile(r"schema-([0-9]+)")


def copy_state(state: Path, schema: int) -> Path:
    """Copy a store's files of schema `schema`; return where the copy lies, durable.

    Raises StoreFailed (`no-space`) where the disk has no room for the copy and for a migration,
    which writes every row once more, into the log and into the file; then nothing was changed.
    """
    sizes = {name: _size(state, name) for name in _DATABASES}
    needed = sum(sizes.values()) + 2 * sizes["store.db"]
    room = os.statvfs(state)
    free = room.f_bavail * room.f_frsize
    if free < needed:
        raise StoreFailed(
            f"the store has the older schema {schema}: to copy it and to bring it up takes "
            f"{needed:,} bytes, and {free:,} are free", where=str(state), code="no-space",
            mend="make room, then start again; nothing was changed",
        )  # fmt: skip
    kept = state / FOLDER / f"schema-{schema}"
    new = kept.with_name(f"{kept.name}.new")
    for left in (new, kept):
        shutil.rmtree(left, ignore_errors=True)
    new.parent.mkdir(mode=0o700, exist_ok=True)
    new.mkdir(mode=0o700)
    for name in _DATABASES:
        if (state / name).exists():
            copy_database(state / name, new / name)
    if (state / "witness.log").exists():
        shutil.copy2(state / "witness.log", new)
        sync(new / "witness.log")
    sync(new)
    new.rename(kept)
    sync(kept.parent)
    _forget_older(kept.parent)
    return kept


def _size(state: Path, name: str) -> int:
    files = (state / name, state / f"{name}-wal")
    return sum(file.stat().st_size for file in files if file.exists())


def _forget_older(folder: Path) -> None:
    found = {
        int(match[1]): each for each in folder.iterdir() if (match := _NAME.fullmatch(each.name))
    }
    for schema in sorted(found)[:-_MAX_COPIES]:
        shutil.rmtree(found[schema], ignore_errors=True)

"""The store's state from before an upgrade: what an older program can go on with.

It lies in `before/schema-N` of the state folder: the store, the memory bank and the witness file.
"""

from __future__ import annotations

import os
import re
import shutil
from pathlib import Path

from vedette.domain.base.fsync import sync
from vedette.store.sqlite.online_backup import copy_database

FOLDER = "before"
# How many are kept: of the last two schemas that were left.
_MAX_COPIES = 2
_NAME = re.compile(r"schema-([0-9]+)")


def keep_state(state: Path, schema: int) -> Path:
    """Keep a store's files of schema `schema`; return where they lie, durable.

    The store's file, beside which no log lies, gets a second name where the disk knows hard links,
    and is copied where it does not: another file is about to take its place, and this one must not
    change any more. Raises BadStore, StoreFailed.
    """
    kept = state / FOLDER / f"schema-{schema}"
    new = kept.with_name(f"{kept.name}.new")
    for left in (new, kept):
        shutil.rmtree(left, ignore_errors=True)
    new.parent.mkdir(mode=0o700, exist_ok=True)
    new.mkdir(mode=0o700)
    try:
        os.link(state / "store.db", new / "store.db")
    except OSError:
        copy_database(state / "store.db", new / "store.db")
    if (state / "memory.db").exists():
        copy_database(state / "memory.db", new / "memory.db")
    if (state / "witness.log").exists():
        shutil.copy2(state / "witness.log", new)
        sync(new / "witness.log")
    sync(new)
    new.rename(kept)
    sync(kept.parent)
    _forget_older(kept.parent)
    return kept


def _forget_older(folder: Path) -> None:
    found = {
        int(match[1]): each for each in folder.iterdir() if (match := _NAME.fullmatch(each.name))
    }
    for schema in sorted(found)[:-_MAX_COPIES]:
        shutil.rmtree(found[schema], ignore_errors=True)

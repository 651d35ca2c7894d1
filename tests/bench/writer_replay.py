"""Gives a store's writer again what `tests.bench.writer` recorded: `writer_replay.py FOLDER GROUP`.

In one thread and without an engine, so that the figure is the writer's own. Salts and clock are the
same each time, so what is written can be compared byte for byte: between versions, and with what
the store answered when it was recorded. Imports vedette alone, to measure any checkout.
"""

from __future__ import annotations

import gc
import hashlib
import itertools
import json
import pickle
import shutil
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from vedette.domain.base import machine
from vedette.interfaces.cli.run import GC_THRESHOLDS
from vedette.store.sqlite.connection import open_database
from vedette.store.sqlite.database import SqliteDatabase
from vedette.store.witness import Witness
from vedette.store.write_parts import WriteParts, open_write_parts
from vedette.store.write_runs import Fences

PARTS = ("accept", "steps", "flush", "head", "commit", "after")


class Salts:
    """Bytes that are the same in every run."""

    def __init__(self) -> None:
        self._drawn = 0

    def __call__(self, size: int) -> bytes:
        """Return the next `size` bytes."""
        self._drawn += 1
        return hashlib.shake_128(str(self._drawn).encode()).digest(size)


@contextmanager
def repeatable() -> Iterator[None]:
    """Let salts be the same in every run, and rubbish be collected as `vedette run` does."""
    drawn, thresholds = machine.random_bytes, gc.get_threshold()
    machine.random_bytes = Salts()
    gc.collect()
    gc.freeze()
    gc.set_threshold(*GC_THRESHOLDS)
    try:
        yield
    finally:
        machine.random_bytes = drawn
        gc.set_threshold(*thresholds)
        gc.unfreeze()


def replay(folder: Path, group_size: int = 0) -> dict[str, Any]:
    """Write what was recorded in `folder`, in groups as recorded or of `group_size` items at most.

    Returns the events, the groups, microseconds of CPU an event by part, and the digest of every
    row and of the witness. Raises AssertionError if the store answers otherwise than it did.
    """
    recorded = pickle.loads((folder / "recorded").read_bytes())
    groups = [[pickle.loads(item) for item in group] for group in recorded["groups"]]
    if group_size:
        groups = list(_regroup(groups, group_size))
    events = sum(len(given[0]) for group in groups for name, given, _ in group if name == "accept")
    folder = folder / "replay"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    shutil.copy(folder.parent / "store.db", folder / "store.db")
    with repeatable():
        database = open_database(folder / "store.db", write=True)
        parts = _open_parts(database, folder, recorded)
        spent = _write(groups, parts)
    digest = _digest(database, folder)
    database.close()
    shutil.rmtree(folder)
    micros = {name: spent[name] / 1e3 / events for name in PARTS}
    return {"events": events, "groups": len(groups), "cpu_us": micros, "digest": digest}


def _regroup(groups: list[list[Any]], size: int) -> Iterator[list[Any]]:
    for group in groups:
        for at in range(0, len(group), size):
            yield group[at : at + size]


def _open_parts(database: SqliteDatabase, folder: Path, recorded: dict[str, Any]) -> WriteParts:
    clock, fences = itertools.count(recorded["now_us"]), Fences()
    parts = open_write_parts(
        database, Witness(folder / "witness"), fences, fleet=recorded["fleet"],
        key=Ed25519PrivateKey.from_private_bytes(recorded["key"]),
        key_name=recorded["key_name"], now_us=lambda: next(clock),
    )  # fmt: skip
    parts.reload()
    fences.epoch = recorded["epoch"]
    return parts


def _write(groups: list[list[Any]], parts: WriteParts) -> dict[str, int]:
    """Return the nanoseconds of CPU by part."""
    spent, now = dict.fromkeys(PARTS, 0), time.thread_time_ns
    database, steps = parts.database, parts.steps
    for group in groups:
        began = now()
        database.begin()
        for name, given, answered in group:
            if name == "accept":
                at = now()
                spent["steps"] += at - began
                steps.accept(*given)
                began = now()
                spent["accept"] += began - at
            else:
                answer = steps.commit(given)
                assert (answer.status, answer.last) == answered, (answer, answered)
        written = now()
        parts.buffer.flush()
        flushed = now()
        parts.ledger.close_group()
        closed = now()
        database.commit()
        committed = now()
        parts.buffer.confirm_group()
        parts.ledger.confirm_group()
        spent["steps"] += written - began
        spent["flush"] += flushed - written
        spent["head"] += closed - flushed
        spent["commit"] += committed - closed
        spent["after"] += now() - committed
    return spent


def _digest(database: SqliteDatabase, folder: Path) -> str:
    digest = hashlib.sha256((folder / "witness").read_bytes())
    tables = "SELECT name FROM sqlite_master WHERE type='table' ORDER BY name"
    for (name,) in database.rows(tables):
        for row in database.iterate_rows(f'SELECT * FROM "{name}" ORDER BY 1, 2'):
            digest.update(f"{name} {row!r}\n".encode())
    return digest.hexdigest()


if __name__ == "__main__":
    print(json.dumps(replay(Path(sys.argv[1]), int(sys.argv[2]))))

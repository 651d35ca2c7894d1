"""A virtual day that was played in a process of its own, and what is left of it: its ledger."""

from __future__ import annotations

import json
import os
import shutil
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from tests.acceptance.virtual_day import DAY_US, START_US
from tests.said import ROOT, environment

from vedette.adapters.ledger_export import LedgerExport, export
from vedette.domain.ports.ledger_reader import RawEntry
from vedette.ledger.history.reconstruction import Reconstruction, reconstruct
from vedette.store.sqlite import SqliteReader

SEED = 1
# Events and kills: the day as it is promised, and a part of it.
WHOLE, SHORT = (10_000, 52), (2_000, 8)
END_US = START_US + 2 * DAY_US
SETTINGS = """\
fleet = "harbour"
state = "state"
[content]
agents = "content/agents"
policies = "policies"
memory = "content/memory"
"""

Line = dict[str, Any]


def lines(path: Path) -> list[Line]:
    return [json.loads(line) for line in path.read_bytes().splitlines()]


@dataclass(frozen=True)
class Played:
    """A day that was played: what was done, what the world knows, and the ledger that is left."""

    folder: Path
    told: Line
    number: int
    kills: int

    @property
    def state(self) -> Path:
        """Return a folder with the store's file, and nothing beside it but the public key."""
        return self.folder / "state"

    @cached_property
    def record(self) -> list[Line]:
        return lines(self.folder / "world.jsonl")

    @cached_property
    def effects(self) -> list[Line]:
        return [line for line in self.record if line["effect"]]

    @cached_property
    def happened(self) -> list[tuple[str, str]]:
        return [(line["tool"], line["key"]) for line in self.effects]

    @cached_property
    def entries(self) -> list[Line]:
        return lines(self.folder / "export" / "entries.jsonl")

    @cached_property
    def rebuilt(self) -> Reconstruction:
        store = SqliteReader(self.state)
        try:
            return reconstruct(store.ledger, START_US, END_US)
        finally:
            store.close()

    @cached_property
    def walked(self) -> list[RawEntry]:
        return list(LedgerExport(self.folder / "export").walk())


@dataclass(frozen=True)
class Spoilt:
    """A ledger in memory, as an export would be read, for a test that spoilt it."""

    walked: list[RawEntry]

    def walk(self, kinds: tuple[str, ...] | None = None, after: int = 0) -> Iterator[RawEntry]:
        for walked in self.walked:
            if walked[0] > after and (kinds is None or json.loads(walked[1])["kind"] in kinds):
                yield walked


def played(folder: Path, size: tuple[int, int]) -> Played:
    """Play a day of so many events and kills, then take away everything but the ledger."""
    number, kills = size
    done = subprocess.run(
        [
            sys.executable, "-m", "tests.acceptance.virtual_day", str(folder),
            f"--events={number}", f"--kills={kills}", f"--seed={SEED}",
        ],
        cwd=ROOT, env=environment(PYTHONPATH=f"{ROOT / 'src'}{os.pathsep}{ROOT}"),
        capture_output=True, text=True, timeout=900, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-4000:]
    used = folder / "state"
    # Opened once for writing, the file takes in what the killed process left in the log beside it.
    sqlite3.connect(used / "store.db").execute("PRAGMA wal_checkpoint(TRUNCATE)").close()
    used.rename(folder / "used")
    (folder / "state").mkdir()
    for name in ("store.db", "ledger.pub", "witness.log"):
        (folder / "used" / name).rename(folder / "state" / name)
    shutil.rmtree(folder / "used")
    (folder / "vedette.toml").write_text(SETTINGS)
    store = SqliteReader(folder / "state")
    try:
        key = (folder / "state" / "ledger.pub").read_text()
        witness = folder / "state" / "witness.log"
        export(store.ledger, folder / "export", verifier_key=key, witness=witness, bodies=True)
    finally:
        store.close()
    return Played(folder, json.loads(done.stdout), number, kills)

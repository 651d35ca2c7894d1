"""The ledger of the month as an auditor has it: entries and content, read past the engine."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import apsw
import orjson
from tests.segments import SEGMENTS, Entry, entries_of

from vedette.adapters.ledger_export import Archive

Fields = dict[str, Any]


@dataclass
class Ledger:
    """Entries in their order, parsed, and what lies beside them by seq, as far as it is kept.

    `raws` are the bytes of the entries, `salted` salt and content; `first` is the first entry that
    is not in an archive.
    """

    entries: list[Fields]
    bodies: dict[int, Fields] = field(default_factory=dict)
    raws: list[bytes] = field(default_factory=list)
    salted: dict[int, bytes] = field(default_factory=dict)
    first: int = 1

    def of(self, *kinds: str) -> Iterator[Fields]:
        """Give the entries of some kinds."""
        return (entry for entry in self.entries if entry["kind"] in kinds)

    def between(self, since_us: int, until_us: int) -> Ledger:
        """Return the part of an interval of time."""
        part = [entry for entry in self.entries if since_us <= entry["at"] < until_us]
        return Ledger(part, self.bodies)

    @cached_property
    def by_run(self) -> dict[str, list[Fields]]:
        """Return the entries of each run."""
        found = defaultdict(list)
        for entry in self.entries:
            if "run" in entry:
                found[entry["run"]].append(entry)
        return found


def read_ledger(state: Path, archive: Path, since: int = 0) -> Ledger:
    """Read a machine's ledger after entry `since`, what is archived included."""
    store = apsw.Connection(str(state / "store.db"), flags=apsw.SQLITE_OPEN_READWRITE, vfs="unix")
    sql = SEGMENTS.replace("ORDER BY", "WHERE last>? ORDER BY")
    kept = list(entries_of(store.execute(sql, (since,))))
    store.close()
    first = kept[0].seq if kept else 1
    there = [Entry(seq, raw, None, salt, data) for seq, raw, salt, data in _archived(archive)
             if since < seq < first]  # fmt: skip
    found = Ledger([], first=first)
    for one in (*there, *(one for one in kept if one.seq > since)):
        found.entries.append(orjson.loads(one.raw))
        found.raws.append(one.raw)
        if one.data is not None and one.salt is not None:
            found.bodies[one.seq] = orjson.loads(one.data)
            if one.seq >= first:
                found.salted[one.seq] = one.salt + one.data
    return found


def _archived(folder: Path) -> Iterator[tuple[int, bytes, bytes | None, bytes | None]]:
    if folder.is_dir() and any(folder.glob("*[0-9]")):
        for _, _, segment in Archive(folder).segments:
            yield from segment.walk()

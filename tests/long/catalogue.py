"""Which tests are `long`: the gate leaves them out, `make long` runs them.

A row of catalogue.toml names a test. Of a test with parameters `but` are the ids that stay in the
gate; of any other `stays` is a test of the gate that fails for the same defect.
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

FILE = Path(__file__).with_name("catalogue.toml")
ROOT = Path(__file__).resolve().parents[2]


@dataclass(frozen=True, slots=True)
class LongTest:
    """A test of which nothing is in the gate, or but a few of its parameters' ids."""

    name: str
    but: frozenset[str] = frozenset()
    stays: str = ""

    @property
    def file(self) -> Path:
        """Return the file that it is in."""
        return ROOT / self.name.partition("::")[0]


def load() -> dict[str, LongTest]:
    """Return the rows by the test's name. Raises ValueError for one that leaves nothing."""
    found: dict[str, LongTest] = {}
    for row in tomllib.loads(FILE.read_text(encoding="utf-8"))["test"]:
        one = LongTest(row["name"], frozenset(row.get("but", ())), row.get("stays", ""))
        if one.name in found or bool(one.but) == bool(one.stays):
            raise ValueError(f"{FILE}: {one.name}: once, with one of `but` and `stays`")
        found[one.name] = one
    return found


def split(nodeid: str) -> tuple[str, str]:
    """Return a test's name and the id of its parameters."""
    name, _, rest = nodeid.partition("[")
    return name, rest.removesuffix("]")


def unknown(rows: dict[str, LongTest], nodeids: Iterable[str]) -> list[str]:
    """Return what the rows name and the whole of the tests does not have, or not in the gate."""
    ids: dict[str, set[str]] = {}
    for nodeid in nodeids:
        name, given = split(nodeid)
        ids.setdefault(name, set()).add(given)
    wrong = [name for name in rows if name not in ids]
    wrong += [f"{one.name}[{each}]" for one in rows.values() if one.name in ids
              for each in one.but - ids[one.name]]  # fmt: skip
    wrong += [
        one.stays
        for one in rows.values()
        if one.stays and (one.stays not in ids or (one.stays in rows and not rows[one.stays].but))
    ]
    return wrong

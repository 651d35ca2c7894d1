"""What a store keeps of archived entries: what memories are made of, and what corrections led to.

An archive takes entries and drops content. A memory that a person promoted outlives both, and must
still be told, taken back and erased. So the archiving commit copies the entries of its kinds here,
with the text of what was proposed; everything else of them is in the archive.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import orjson

from vedette.domain.base.canonical import canonical_json
from vedette.domain.memory_state import MEMORY_ENTRY_KINDS, PROPOSED
from vedette.store.dialect import Database, Row
from vedette.store.stored_entries import EntryReader, erase_content, kind_of

# No agent's rows can be called so: names have no colon.
COLLECTION = "vedette:kept"
CORRECTED = "run.corrected"
KINDS = (*MEMORY_ENTRY_KINDS, CORRECTED)

_KEEP = 'INSERT INTO "row"(collection,key,data,seq) VALUES(?,?,?,?) ON CONFLICT DO NOTHING'
_ALL = 'SELECT seq, data FROM "row" WHERE collection=? ORDER BY seq'
_EMPTY = 'UPDATE "row" SET data=? WHERE collection=? AND key=?'


def keep_entries(database: Database, size: int) -> None:
    """Copy what a store keeps of the archived entries 1 to `size`; their bodies go here."""
    found = list(EntryReader(database).rare(KINDS, upto=size))
    database.execute_many(
        _KEEP,
        [(COLLECTION, _key(one.seq), _pack(one.raw, one.data, one.salt), one.seq) for one in found],
    )
    erase_content(database, [one.seq for one in found if kind_of(one.raw) == PROPOSED])


def read_entries(
    database: Database, kinds: Sequence[str] = KINDS
) -> list[tuple[int, bytes, bytes | None]]:
    """Return (seq, entry bytes, body or None if erased) of the archived entries kept, in order."""
    found = []
    for seq, data in database.rows(_ALL, (COLLECTION,)):
        value = orjson.loads(data)
        raw, body = value["entry"].encode(), value["body"]
        if orjson.loads(raw)["kind"] in kinds:
            found.append((int(seq), raw, None if body is None else body.encode()))
    return found


def read_salted_bodies(database: Database) -> dict[int, tuple[bytes, bytes]]:
    """Return (salt, body) of archived entries kept with their content, by the seq of each.

    What an older version kept has no salt, so that nobody can compare it with its entry.
    """
    found = {}
    for seq, data in database.rows(_ALL, (COLLECTION,)):
        value = orjson.loads(data)
        if value["body"] is not None and (salt := value.get("salt")) is not None:
            found[int(seq)] = bytes.fromhex(salt), value["body"].encode()
    return found


def entries_with_body(database: Database) -> list[Row]:
    """Return (seq, entry bytes, about) of the archived entries kept with their content."""
    return [
        (seq, raw, orjson.loads(raw).get("about"))
        for seq, raw, body in read_entries(database)
        if body is not None
    ]


def erase_bodies(database: Database, rows: Iterable[Row]) -> None:
    """Erase the content that a store keeps of these archived entries (seq, entry bytes, …)."""
    gone = [(_pack(row[1], None, None), COLLECTION, _key(row[0])) for row in rows]
    database.execute_many(_EMPTY, gone)


def _key(seq: int) -> str:
    return f"{seq:016}"


def _pack(raw: bytes, body: bytes | None, salt: bytes | None) -> bytes:
    # Only what was proposed is needed for good; what people said of it and of runs is not.
    proposed = orjson.loads(raw)["kind"] == PROPOSED
    if not proposed or body is None or salt is None:
        return canonical_json({"entry": raw.decode(), "body": None})
    return canonical_json({"entry": raw.decode(), "body": body.decode(), "salt": salt.hex()})

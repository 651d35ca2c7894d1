"""A store's segments from outside: what entries lie in them, and edits that no code of it makes.

It knows the format by itself, and imports nothing of the engine. Whoever edits here knows it, too,
and has no key: what finds entries is made to fit what was edited, as indexes fitted a table.

    with apsw.Connection("store.db") as store:
        edit_content(store, 7, data=b"{}")
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import suppress
from typing import Any, NamedTuple

import msgspec
import zstandard

SEGMENTS = "SELECT last, first, entries, bodies FROM segment ORDER BY last"
# The kinds that are found without their table: what every event leaves.
_COMMON = frozenset({
    "event.accepted", "recall.decided", "budget.reserved", "turn.reasoned", "action.decided",
    "effect.intended", "effect.started", "effect.done", "budget.settled", "run.closed",
})  # fmt: skip


class Entry(NamedTuple):
    """An entry as it lies in a segment."""

    seq: int
    raw: bytes
    about: int | None = None
    salt: bytes | None = None
    data: bytes | None = None


def pack(value: Any) -> bytes:
    """Return the bytes that a segment keeps of a value."""
    return zstandard.ZstdCompressor().compress(msgspec.msgpack.encode(value))


def unpack(packed: bytes) -> Any:
    """Return the value that a segment's bytes keep."""
    return msgspec.msgpack.decode(zstandard.ZstdDecompressor().decompress(packed), strict=False)


def unpacked_in(raw: bytes) -> Iterator[bytes]:
    """Yield what is packed in a file's bytes, wherever it lies there whole."""
    at = raw.find(zstandard.FRAME_HEADER)
    while at >= 0:
        with suppress(zstandard.ZstdError):
            yield zstandard.ZstdDecompressor().decompressobj().decompress(raw[at : at + (1 << 20)])
        at = raw.find(zstandard.FRAME_HEADER, at + 1)


def is_in(phrase: bytes, raw: bytes) -> bool:
    """Say whether a file's bytes hold a phrase, be it packed or not."""
    return phrase in raw or any(phrase in one for one in unpacked_in(raw))


def entries_of(segments: Iterable[Sequence[Any]]) -> Iterator[Entry]:
    """Yield the entries in rows of `SEGMENTS`."""
    for _, first, entries, bodies in segments:
        raws, abouts = unpack(bytes(entries))
        content = unpack(bytes(bodies)) if bodies is not None else {}
        for seq, (raw, about) in enumerate(zip(raws, abouts, strict=True), first):
            yield Entry(seq, raw, about, *content.get(seq, (None, None)))


def read_entries(store: Any) -> list[Entry]:
    """Return the entries of a store, by a connection of its own or one of the vendors'."""
    return list(entries_of(_ask(store, SEGMENTS)))


def change_entries(store: Any, change: Callable[[Entry], Entry | None]) -> int:
    """Put what `change` makes of each entry in its place, or nothing; return how many changed.

    A segment falls apart where an entry goes, and places are those of the new ones. The kinds that
    entries are found by change only where an entry goes or moves.
    """
    gone: list[int] = []
    made: list[list[Entry]] = []
    moved: list[tuple[Entry, Entry | None]] = []
    for row in _ask(store, SEGMENTS):
        old = list(entries_of([row]))
        new = [change(one) for one in old]
        changed = [(one, other) for one, other in zip(old, new, strict=True) if one != other]
        if changed:
            gone.append(row[0])
            made.extend(_runs(one for one in new if one is not None))
            moved += changed
    for last in gone:
        _ask(store, "DELETE FROM segment WHERE last=?", last)
        _ask(store, "DELETE FROM place WHERE last=?", last)
    for one, other in moved:
        if other is None or other.seq != one.seq:
            _ask(store, "DELETE FROM rare_entry WHERE seq=?", one.seq)
    for one, other in moved:
        if other is not None and other.seq != one.seq:
            _put_kind(store, other)
    for entries in made:
        _put_segment(store, entries)
    assert moved, "nothing was changed"
    return len(moved)


def add_entry(store: Any, raw: bytes) -> None:
    """Add an entry behind all others, without content."""
    value = json.loads(raw)
    added = Entry(value["seq"], raw, value.get("about"))
    _put_segment(store, [added])
    _put_kind(store, added)


def replace_entry(store: Any, entry: Entry) -> None:
    """Put an entry in the place of the one that has its seq."""
    change_entries(store, lambda one: entry if one.seq == entry.seq else one)


def edit_entry(store: Any, seq: int, raw: bytes) -> None:
    """Write other bytes over an entry's; its content, and what it is found by, stay as they are."""
    change_entries(store, lambda one: one._replace(raw=raw) if one.seq == seq else one)


def edit_about(store: Any, seq: int, about: int | None) -> None:
    """Let an entry belong to another event, as far as its bytes do not say so."""
    change_entries(store, lambda one: one._replace(about=about) if one.seq == seq else one)


def edit_content(
    store: Any, seq: int, *, data: bytes | None = None, salt: bytes | None = None
) -> None:
    """Write other content, or another salt, over an entry's; or beside one that has none."""

    def change(one: Entry) -> Entry:
        if one.seq != seq:
            return one
        return one._replace(salt=salt or one.salt or bytes(16), data=data or one.data or b"{}")

    change_entries(store, change)


def remove_content(store: Any, *seqs: int) -> None:
    """Take the content of entries away; that they were erased is said nowhere."""
    assert seqs
    change_entries(
        store, lambda one: one._replace(salt=None, data=None) if one.seq in seqs else one
    )


def remove_entries(store: Any, seqs: Collection[int]) -> None:
    """Take entries away, with their content and all that they are found by."""
    change_entries(store, lambda one: None if one.seq in seqs else one)


def _runs(entries: Iterable[Entry]) -> Iterator[list[Entry]]:
    """Yield entries that follow one another."""
    run: list[Entry] = []
    for one in entries:
        if run and one.seq != run[-1].seq + 1:
            yield run
            run = []
        run.append(one)
    if run:
        yield run


def _put_segment(store: Any, entries: Sequence[Entry]) -> None:
    first, last = entries[0].seq, entries[-1].seq
    content = {
        one.seq: (one.salt, one.data)
        for one in entries if one.salt is not None and one.data is not None
    }  # fmt: skip
    packed = pack([[one.raw for one in entries], [one.about for one in entries]])
    sql = "INSERT INTO segment(last,first,entries,bodies) VALUES(?,?,?,?)"
    _ask(store, sql, last, first, packed, pack(content) if content else None)
    for about in {one.about for one in entries if one.about is not None and one.about < first}:
        _ask(store, "INSERT INTO place(about,last) VALUES(?,?)", about, last)


def _put_kind(store: Any, entry: Entry) -> None:
    kind = json.loads(entry.raw)["kind"]
    if kind not in _COMMON:
        _ask(store, "INSERT INTO rare_entry(kind,seq) VALUES(?,?)", kind, entry.seq)


def _ask(store: Any, sql: str, *values: Any) -> list[Sequence[Any]]:
    """Run a statement on a `Database` of the store's, or on a vendor's connection."""
    if hasattr(store, "rows"):
        if sql.startswith("SELECT"):
            return list(store.rows(sql, values))
        store.execute(sql, values)
        return []
    marks = sql.replace("?", "%s") if type(store).__module__.startswith("psycopg") else sql
    found = store.execute(marks, values)
    return list(found) if sql.startswith("SELECT") else []

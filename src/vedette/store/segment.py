"""A segment: entries that follow one another in the ledger, with their content, as one row.

What a commit group wrote is one segment, or a few where it is long. The entries' canonical bytes
are in it as they were made; beside them stands what each is about, and apart from them lies their
content, which can go without them. Both are msgpack, compressed by Zstandard (RFC 8878).
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from typing import Annotated

import msgspec
import zstandard
from msgspec import Meta, Struct

from vedette.domain.base import machine
from vedette.domain.base.errors import DamagedSegment

# So many entries, or bytes of them, at most: whoever asks for one reads and unpacks all of these.
MAX_ENTRIES = 128
MAX_BYTES = 1 << 18
# What unpacks to more was not written here: content is what events, answers and files may be.
_MAX_ENTRY_BYTES = 1 << 26
_MAX_CONTENT_BYTES = 1 << 28
_LEVEL = 1

# (salt, content)
Body = tuple[bytes, bytes]


class StoredEntry(Struct, frozen=True):
    """An entry as a store has it: its canonical bytes, and its salt and content unless erased.

    `about` is the seq of the event that it belongs to.
    """

    seq: int
    raw: bytes
    about: int | None = None
    salt: bytes | None = None
    data: bytes | None = None


class _Entries(Struct, array_like=True, frozen=True, forbid_unknown_fields=True):
    """The packed form of a segment's entries."""

    raws: Annotated[list[bytes], Meta(max_length=MAX_ENTRIES)]
    abouts: Annotated[list[int | None], Meta(max_length=MAX_ENTRIES)]


_encoder = msgspec.msgpack.Encoder()
_entries_decoder = msgspec.msgpack.Decoder(_Entries)
_bodies_decoder = msgspec.msgpack.Decoder(Annotated[dict[int, Body], Meta(max_length=MAX_ENTRIES)])
_DAMAGE = (msgspec.DecodeError, zstandard.ZstdError, TypeError, ValueError, MemoryError)


class _Codec(machine.local):
    """Zstandard's contexts of one thread: it lets go of the interpreter lock while it uses them."""

    def __init__(self) -> None:
        self.compress = zstandard.ZstdCompressor(level=_LEVEL).compress
        self.decompress = zstandard.ZstdDecompressor().decompress


_codec = _Codec()


def pack_entries(entries: Sequence[StoredEntry]) -> bytes:
    """Return the packed bytes of entries, without their content."""
    raws, abouts = [one.raw for one in entries], [one.about for one in entries]
    return _codec.compress(_encoder.encode(_Entries(raws, abouts)))


def pack_bodies(bodies: dict[int, Body]) -> bytes | None:
    """Return the packed content of a segment's entries, by their seq; None if there is none."""
    return _codec.compress(_encoder.encode(bodies)) if bodies else None


def unpack_bodies(last: int, packed: bytes | None) -> dict[int, Body]:
    """Return a segment's content by the seq of its entries. Raises DamagedSegment if it is none."""
    if packed is None:
        return {}
    try:
        content: dict[int, Body] = _bodies_decoder.decode(_decompress(packed, _MAX_CONTENT_BYTES))
    except _DAMAGE as error:
        raise _damaged(last, error) from error
    return content


class Segment:
    """The entries of one segment. Content is unpacked when an entry is asked for that has some.

    What is asked raises DamagedSegment where the content is none.
    """

    __slots__ = ("_abouts", "_bodies", "_content", "_raws", "first", "last")

    def __init__(self, first: int, last: int, entries: _Entries, bodies: bytes | None) -> None:
        self.first, self.last = first, last
        self._raws, self._abouts, self._bodies = entries.raws, entries.abouts, bodies
        self._content: dict[int, Body] | None = None

    def entry(self, seq: int) -> StoredEntry:
        """Return the entry of a seq from `first` to `last`."""
        at = seq - self.first
        salt, data = self._body(seq)
        return StoredEntry(seq, self._raws[at], self._abouts[at], salt, data)

    def entries(self) -> list[StoredEntry]:
        """Return all entries in order."""
        return [self.entry(seq) for seq in range(self.first, self.last + 1)]

    def about(self, events: Collection[int]) -> Iterator[tuple[int, bytes]]:
        """Yield (seq, bytes) of the entries that are about some events, in order."""
        for seq, (raw, about) in enumerate(zip(self._raws, self._abouts, strict=True), self.first):
            if about in events:
                yield seq, raw

    def _body(self, seq: int) -> Body | tuple[None, None]:
        if self._bodies is None:
            return None, None
        if self._content is None:
            self._content = unpack_bodies(self.last, self._bodies)
            if not all(self.first <= one <= self.last for one in self._content):
                raise _damaged(self.last, ValueError("it holds the content of other entries"))
        return self._content.get(seq, (None, None))


def unpack_segment(first: int, last: int, packed: bytes, bodies: bytes | None) -> Segment:
    """Return a segment of its row. Raises DamagedSegment for what is none."""
    try:
        if last - first >= MAX_ENTRIES:
            raise ValueError(f"it has more than {MAX_ENTRIES} entries")
        entries = _entries_decoder.decode(_decompress(packed, _MAX_ENTRY_BYTES))
        if not 0 < len(entries.raws) == len(entries.abouts) == last + 1 - first:
            # One without entries would hide those of the next from whoever looks for them.
            raise ValueError(f"it has {len(entries.raws)} entries from {first} on")
    except _DAMAGE as error:
        raise _damaged(last, error) from error
    return Segment(first, last, entries, bodies)


def _decompress(packed: bytes, limit: int) -> bytes:
    size = zstandard.frame_content_size(packed)
    if not 0 <= size <= limit:
        raise ValueError(f"it says that it unpacks to {size} bytes")
    return _codec.decompress(packed, allow_extra_data=False)


def _damaged(last: int, error: Exception) -> DamagedSegment:
    return DamagedSegment(
        f"the segment that ends at entry {last} cannot be read: {error}",
        mend="restore a backup: `vedette restore`; what its entries said stands there",
    )

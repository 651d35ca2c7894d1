"""A segment: entries that follow one another in the ledger, with their content, as one row.

What a commit group wrote is one segment, or a few where it is long. The entries' canonical bytes
are in it as they were made; beside them stands what each is about, and apart from them lies their
content, which can go without them. Both are msgpack, compressed by Zstandard (RFC 8878).
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import zstandard
from msgspec import Struct

from vedette.domain.base import machine
from vedette.domain.base.errors import DamagedSegment

# So many entries, or bytes of them, at most: whoever asks for one reads and unpacks all of these.
MAX_ENTRIES = 128
MAX_BYTES = 1 << 18
# What unpacks to more was not written here: one entry's content alone may be beyond MAX_BYTES.
_MAX_UNPACKED = 1 << 30
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

    raws: list[bytes]
    abouts: list[int | None]


_encoder = msgspec.msgpack.Encoder()
_entries_decoder = msgspec.msgpack.Decoder(_Entries)
_bodies_decoder = msgspec.msgpack.Decoder(dict[int, Body])


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
        return _bodies_decoder.decode(_decompress(packed))
    except (msgspec.DecodeError, zstandard.ZstdError, TypeError, ValueError) as error:
        raise _damaged(last, error) from error


def unpack_segment(first: int, last: int, packed: bytes, bodies: bytes | None) -> list[StoredEntry]:
    """Return the entries of a segment in order. Raises DamagedSegment if it is none."""
    try:
        entries = _entries_decoder.decode(_decompress(packed))
        if not 0 < len(entries.raws) == len(entries.abouts) == last + 1 - first:
            # One without entries would hide those of the next from whoever looks for them.
            raise ValueError(f"it has {len(entries.raws)} entries from {first} on")
    except (msgspec.DecodeError, zstandard.ZstdError, TypeError, ValueError) as error:
        raise _damaged(last, error) from error
    content = unpack_bodies(last, bodies)
    if not all(first <= seq <= last for seq in content):
        raise _damaged(last, ValueError("it holds the content of other entries"))
    return [
        StoredEntry(seq, raw, about, *content.get(seq, (None, None)))
        for seq, (raw, about) in enumerate(zip(entries.raws, entries.abouts, strict=True), first)
    ]


def _decompress(packed: bytes) -> bytes:
    size = zstandard.frame_content_size(packed)
    if not 0 <= size <= _MAX_UNPACKED:
        raise ValueError(f"it says that it unpacks to {size} bytes")
    return _codec.decompress(packed, allow_extra_data=False)


def _damaged(last: int, error: Exception) -> DamagedSegment:
    return DamagedSegment(
        f"the segment that ends at entry {last} cannot be read: {error}",
        mend="restore a backup: `vedette restore`; what its entries said stands there",
    )

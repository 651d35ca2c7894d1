"""A segment's bytes: what was packed comes out again, and nothing else does, whoever wrote it."""

from __future__ import annotations

import tracemalloc
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import msgspec
import pytest
import zstandard
from tests.segments import entries_of, pack, unpack

from vedette.domain.base.errors import DamagedSegment
from vedette.store import segment
from vedette.store.segment import (
    StoredEntry,
    pack_bodies,
    pack_entries,
    unpack_bodies,
    unpack_segment,
)

SALT = bytes(range(16))


def made(seq: int, text: bytes = b"{}", *, about: int | None = 1, content: bool = True) -> Any:
    if not content:
        return StoredEntry(seq, text, about)
    return StoredEntry(seq, text, about, SALT, b'{"of":%d}' % seq)


ENTRIES = [
    made(7, b'{"seq":7}'),
    made(8, b'{"seq":8}', about=None, content=False),
    made(9, b"", about=7),
    StoredEntry(10, "caf\u00e9 \U0001f9ed".encode(), 2**62, b"", b""),
]


def bodies_of(entries: list[StoredEntry]) -> bytes | None:
    return pack_bodies({
        one.seq: (one.salt, one.data)
        for one in entries if one.salt is not None and one.data is not None
    })  # fmt: skip


def unpacked(first: int, last: int, packed: bytes, bodies: bytes | None) -> list[StoredEntry]:
    return unpack_segment(first, last, packed, bodies).entries()


# --- there and back -----------------------------------------------------------------------------


def test_what_was_packed_comes_out_again() -> None:
    assert unpacked(7, 10, pack_entries(ENTRIES), bodies_of(ENTRIES)) == ENTRIES


def test_without_content_the_entries_come_out_alone() -> None:
    bare = [StoredEntry(one.seq, one.raw, one.about) for one in ENTRIES]
    assert unpacked(7, 10, pack_entries(ENTRIES), None) == bare
    assert pack_bodies({}) is None
    assert unpack_bodies(10, None) == {}


def test_content_goes_alone() -> None:
    packed = bodies_of(ENTRIES)
    left = unpack_bodies(10, packed)
    assert list(left) == [7, 9, 10]
    del left[9]
    whole = unpacked(7, 10, pack_entries(ENTRIES), pack_bodies(left))
    assert [one.data is None for one in whole] == [False, True, True, False]
    assert [one.raw for one in whole] == [one.raw for one in ENTRIES]
    assert b'{"of":9}' not in unpack_all(pack_bodies(left))


def unpack_all(packed: bytes | None) -> bytes:
    assert packed is not None
    return zstandard.ZstdDecompressor().decompress(packed)


def test_the_format_is_what_is_described() -> None:
    """As who looks at a store from outside reads it: msgpack in one frame of Zstandard."""
    assert unpack(pack_entries(ENTRIES)) == [
        [one.raw for one in ENTRIES],
        [1, None, 7, 2**62],
    ]
    assert unpack(bodies_of(ENTRIES) or b"") == {
        7: [SALT, b'{"of":7}'], 9: [SALT, b'{"of":9}'], 10: [b"", b""],
    }  # fmt: skip
    row = (10, 7, pack_entries(ENTRIES), bodies_of(ENTRIES))
    assert [tuple(one) for one in entries_of([row])] == [
        (one.seq, one.raw, one.about, one.salt, one.data) for one in ENTRIES
    ]


def test_equal_entries_have_equal_bytes() -> None:
    assert pack_entries(ENTRIES) == pack_entries(list(ENTRIES))
    assert bodies_of(ENTRIES) == bodies_of(list(ENTRIES))


@pytest.mark.parametrize("size", [0, 1, 255, 1 << 16, (1 << 24) + 1])
def test_content_of_any_size_comes_out_again(size: int) -> None:
    data = bytes(i * i % 251 for i in range(4096)) * (size // 4096 + 1)
    one = StoredEntry(3, b"{}", 3, SALT, data[:size])
    assert unpacked(3, 3, pack_entries([one]), bodies_of([one])) == [one]


# --- what is none -------------------------------------------------------------------------------

GOOD = pack_entries(ENTRIES)


def frame(value: Any) -> bytes:
    return pack(value)


WRONG_ENTRIES: dict[str, bytes] = {
    "nothing": b"",
    "no frame": b"\x28\xb5\x2f\xfd",
    "text": b'[["{}"],[1]]',
    "msgpack without a frame": msgspec.msgpack.encode([[b"a"], [1]]),
    "an empty frame": zstandard.ZstdCompressor().compress(b""),
    "a frame of unknown size": zstandard.ZstdCompressor(write_content_size=False).compress(
        msgspec.msgpack.encode([[b"a"] * 4, [None] * 4])
    ),
    "two frames": GOOD + GOOD,
    "a byte more": GOOD + b"\0",
    "a byte less": GOOD[:-1],
    "no entries": frame([[], []]),
    "an entry less": frame([[b"a"] * 3, [None] * 3]),
    "an entry more": frame([[b"a"] * 5, [None] * 5]),
    "fewer events than entries": frame([[b"a"] * 4, [None] * 3]),
    "more events than entries": frame([[b"a"] * 4, [None] * 5]),
    "a third list": frame([[b"a"] * 4, [None] * 4, []]),
    "one list": frame([[b"a"] * 4]),
    "texts": frame([["a"] * 4, [None] * 4]),
    "an event that is no number": frame([[b"a"] * 4, [None, 1.5, None, None]]),
    "an event that is a text": frame([[b"a"] * 4, ["1", None, None, None]]),
    "a map": frame({"raws": [b"a"] * 4, "abouts": [None] * 4}),
    "a number": frame(4),
    "two values": zstandard.ZstdCompressor().compress(
        msgspec.msgpack.encode([[b"a"] * 4, [None] * 4]) * 2
    ),
}
WRONG_BODIES: dict[str, bytes] = {
    "nothing": b"",
    "text": b"{}",
    "a byte more": frame({7: (SALT, b"{}")}) + b"x",
    "a list": frame([[7, SALT, b"{}"]]),
    "one text": frame({7: b"{}"}),
    "three texts": frame({7: (SALT, b"{}", b"")}),
    "a name": frame({"7": (SALT, b"{}")}),
    "a salt that is a text": frame({7: ("salt", b"{}")}),
    "no content": frame({7: (SALT, None)}),
    "content of the entry before": frame({7: (SALT, b"{}"), 6: (SALT, b"{}")}),
    "content of the entry behind": frame({11: (SALT, b"{}")}),
    "content of no entry": frame({-7: (SALT, b"{}")}),
    "content of an entry that cannot be": frame({2**63: (SALT, b"{}")}),
}


@pytest.mark.parametrize("what", WRONG_ENTRIES)
def test_entries_that_are_none_are_refused(what: str) -> None:
    with pytest.raises(DamagedSegment, match="the segment that ends at entry 10 cannot be read"):
        unpacked(7, 10, WRONG_ENTRIES[what], None)


@pytest.mark.parametrize("what", WRONG_BODIES)
def test_content_that_is_none_is_refused(what: str) -> None:
    with pytest.raises(DamagedSegment, match="the segment that ends at entry 10 cannot be read"):
        unpacked(7, 10, GOOD, WRONG_BODIES[what])


@pytest.mark.parametrize(("first", "last"), [(8, 10), (6, 10), (7, 9), (7, 11), (11, 10), (10, 7)])
def test_borders_that_are_not_those_of_the_entries_are_refused(first: int, last: int) -> None:
    with pytest.raises(DamagedSegment):
        unpacked(first, last, GOOD, None)


def test_a_segment_of_no_entries_is_refused() -> None:
    for first, last in ((11, 10), (1, 0)):
        with pytest.raises(DamagedSegment, match="it has 0 entries"):
            unpacked(first, last, frame([[], []]), None)


def test_no_byte_of_a_segment_can_be_changed_into_other_entries_unseen() -> None:
    """It is refused or comes out as other bytes, of which the tree tells; nothing else happens."""
    bodies = bodies_of(ENTRIES)
    assert bodies is not None
    refused = 0
    for packed, other in ((GOOD, bodies), (bodies, GOOD)):
        for at in range(len(packed)):
            for bit in (1, 16, 128):
                spoilt = packed[:at] + bytes([packed[at] ^ bit]) + packed[at + 1 :]
                pair = (spoilt, other) if packed is GOOD else (other, spoilt)
                try:
                    found = unpacked(7, 10, *pair)
                except DamagedSegment:
                    refused += 1
                else:
                    assert len(found) == 4
        for size in range(len(packed)):
            with pytest.raises(DamagedSegment):
                unpacked(
                    7, 10, *((packed[:size], other) if packed is GOOD else (other, packed[:size]))
                )
    assert refused > len(GOOD)


def test_what_swells_beyond_what_was_ever_written_is_refused_before_it_does(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A frame of some kilobytes may say, and even hold, gigabytes."""
    bomb = zstandard.ZstdCompressor().compress(bytes(1 << 26))
    assert len(bomb) < 1 << 13
    monkeypatch.setattr(segment, "_MAX_ENTRY_BYTES", (1 << 26) - 1)
    monkeypatch.setattr(segment, "_MAX_CONTENT_BYTES", (1 << 26) - 1)
    tracemalloc.start()
    try:
        with pytest.raises(DamagedSegment, match="unpacks to 67108864 bytes"):
            unpacked(7, 10, bomb, None)
        with pytest.raises(DamagedSegment, match="unpacks to 67108864 bytes"):
            unpacked(7, 10, GOOD, bomb)
        assert tracemalloc.get_traced_memory()[1] < 1 << 22
    finally:
        tracemalloc.stop()


def test_a_list_that_is_longer_than_any_is_refused_before_it_is_made() -> None:
    """Its few kilobytes would be gigabytes of objects."""
    many = zstandard.ZstdCompressor().compress(
        b"\x92\xdd" + (30_000_000).to_bytes(4, "big") + b"\xc4\x00" * 30_000_000
    )
    tracemalloc.start()
    try:
        with pytest.raises(DamagedSegment, match="length <= 128"):
            unpacked(7, 10, many, None)
        assert tracemalloc.get_traced_memory()[1] < 1 << 27
    finally:
        tracemalloc.stop()
    with pytest.raises(DamagedSegment, match="more than 128 entries"):
        unpacked(1, 129, GOOD, None)


def test_a_frame_that_says_less_than_it_holds_is_refused() -> None:
    whole = zstandard.ZstdCompressor(level=1).compress(msgspec.msgpack.encode([[b"a" * 300], [1]]))
    size = zstandard.frame_content_size(whole)
    at = whole.index((size - 256).to_bytes(2, "little"))
    lied = whole[:at] + (1).to_bytes(2, "little") + whole[at + 2 :]
    assert zstandard.frame_content_size(lied) == 257
    with pytest.raises(DamagedSegment):
        unpacked(1, 1, lied, None)
    assert len(unpacked(1, 1, whole, None)) == 1


def test_threads_pack_and_unpack_at_once() -> None:
    """The writer's, and those of all who read beside it."""

    def work(number: int) -> bool:
        entries = [made(seq, b"%d " % (seq * number) * 2000) for seq in range(1, 41)]
        return all(
            unpacked(1, 40, pack_entries(entries), bodies_of(entries)) == entries for _ in range(60)
        )

    with ThreadPoolExecutor(8) as pool:
        assert all(pool.map(work, range(1, 9)))

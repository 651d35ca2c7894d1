"""Frames on a socket between engine and worker: a length, a number, a kind, two byte strings.

    plain length u32 | blob length u32 | number u32 | kind u8 | plain | blob      (little-endian)

`number` ties an answer to its question. What a worker sends is bounded before it is read: a
frame that announces more than `most` bytes is refused, whatever follows.
"""

from __future__ import annotations

import struct
from typing import NamedTuple

_HEADER = struct.Struct("<IIIB")
HEADER_BYTES = _HEADER.size

# The longest frame that is taken from a worker. A checkpoint of the shipped judges is 66 KB.
MAX_FRAME_BYTES = 8 * 1024 * 1024
# The engine's own frames carry histories of any length.
UNBOUNDED = 2**32 - 1


class BadFrame(ValueError):
    """A worker's socket brought what is no frame, or no answer of the kind that was asked for."""


class Frame(NamedTuple):
    """One frame between engine and worker, as it came over the socket."""

    number: int
    kind: int
    plain: bytes
    blob: bytes


def pack_frame(number: int, kind: int, plain: bytes = b"", blob: bytes = b"") -> bytes:
    """Return the bytes of a frame between engine and worker."""
    return _HEADER.pack(len(plain), len(blob), number, kind) + plain + blob


class FrameDecoder:
    """The decoder that cuts the bytes of a worker's socket into frames."""

    __slots__ = ("_data", "_most")

    def __init__(self, most: int) -> None:
        self._most = most
        self._data = bytearray()

    def feed(self, data: bytes) -> list[Frame]:
        """Take in what was read; return the frames that are whole now. Raises BadFrame."""
        self._data += data
        found = []
        buffer, at = self._data, 0
        while len(buffer) - at >= HEADER_BYTES:
            plain, blob, number, kind = _HEADER.unpack_from(buffer, at)
            if plain + blob > self._most:
                raise BadFrame(f"a frame of {plain + blob} bytes, at most {self._most} are taken")
            end = at + HEADER_BYTES + plain + blob
            if end > len(buffer):
                break
            middle = at + HEADER_BYTES + plain
            found.append(
                Frame(
                    number,
                    kind,
                    bytes(buffer[at + HEADER_BYTES : middle]),
                    bytes(buffer[middle:end]),
                )
            )
            at = end
        if at:
            del buffer[:at]
        return found

"""The .tar.gz of a bundle archive: one way to write it, and a reader that takes nothing else.

Stored, not compressed: what a compressor writes depends on its version, and an archive that is
known by its digest must not. So do the headers and the end that `tarfile` and `gzip` write
(decision 49). A bundle is small (tens of kilobytes).
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterator, Mapping

from vedette.domain.base.errors import BadPolicy

# RFC 1952: no name, no time, unknown system.
_HEADER = b"\x1f\x8b\x08\x00\x00\x00\x00\x00\x00\xff"
_MAX_STORED = 0xFFFF
_BLOCK = 512


def write_tar(files: Mapping[str, bytes]) -> bytes:
    """Return the .tar.gz of a bundle's files by path; their order is the order of the names.

    Raises BadPolicy for a path that has no place in a tar header (over 255 bytes).
    """
    inner = b"".join(_member(path, raw) for path, raw in sorted(files.items())) + bytes(2 * _BLOCK)
    trailer = struct.pack("<II", zlib.crc32(inner), len(inner))
    return _HEADER + b"".join(_stored_blocks(inner)) + trailer


def read_tar(raw: bytes) -> dict[str, bytes]:
    """Return the files of a bundle's .tar.gz, as `write_tar` writes it.

    Raises BadPolicy for anything else; what is not caught here is by writing it again.
    """
    inner = _inflate(raw)
    files: dict[str, bytes] = {}
    at = 0
    while inner[at : at + 1] not in (b"", b"\0"):
        header = inner[at : at + _BLOCK]
        size = _octal(header[124:135])
        name, prefix = (_text(header[a:b]) for a, b in ((0, 100), (345, 500)))
        path = f"{prefix}/{name}" if prefix else name
        if path in files:
            raise _bad_archive(f"holds {path!r} twice")
        at += _BLOCK
        files[path] = inner[at : at + size]
        if len(files[path]) != size:
            raise _bad_archive("is cut off")
        at += size + -size % _BLOCK
    return files


def _member(path: str, raw: bytes) -> bytes:
    """Return a file as a member of the POSIX ustar format, without owner and time."""
    prefix, name = _split(path)
    fields = (
        name.ljust(100, b"\0"), b"0000644\0", b"0000000\0", b"0000000\0",
        b"%011o\0" % len(raw), b"0" * 11 + b"\0", b" " * 8, b"0", bytes(100),
        b"ustar\x0000", bytes(64), b"0000000\0", b"0000000\0", prefix.ljust(155, b"\0"), bytes(12),
    )  # fmt: skip
    header = b"".join(fields)
    header = header[:148] + b"%06o\0 " % sum(header) + header[156:]
    return header + raw + bytes(-len(raw) % _BLOCK)


def _split(path: str) -> tuple[bytes, bytes]:
    raw = path.encode("utf-8")
    if len(raw) <= 100:
        return b"", raw
    for place, byte in enumerate(raw[:156]):
        if byte == 0x2F and len(raw) - place - 1 <= 100:
            return raw[:place], raw[place + 1 :]
    raise BadPolicy("the path is too long for an archive", where=path, mend="shorten it")


def _stored_blocks(inner: bytes) -> Iterator[bytes]:
    """Yield a deflate stream of stored blocks (RFC 1951, 3.2.4)."""
    for at in range(0, len(inner), _MAX_STORED):
        part = inner[at : at + _MAX_STORED]
        last = at + _MAX_STORED >= len(inner)
        yield struct.pack("<BHH", last, len(part), len(part) ^ 0xFFFF) + part


def _inflate(raw: bytes) -> bytes:
    unpacker = zlib.decompressobj(wbits=zlib.MAX_WBITS | 16)
    try:
        # What is stored is less than its archive; so nothing that was compressed swells here.
        inner = unpacker.decompress(raw, len(raw))
    except zlib.error as error:
        raise _bad_archive("is damaged") from error
    if not unpacker.eof:
        raise _bad_archive("is cut off, or compressed")
    return inner


def _octal(raw: bytes) -> int:
    try:
        return int(raw, 8)
    except ValueError as error:
        raise _bad_archive("is damaged") from error


def _text(raw: bytes) -> str:
    try:
        return raw.rstrip(b"\0").decode("utf-8")
    except UnicodeDecodeError as error:
        raise _bad_archive("is damaged") from error


def _bad_archive(why: str) -> BadPolicy:
    return BadPolicy(f"the archive {why}", mend="fetch it again from whoever published it")

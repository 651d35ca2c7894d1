"""The Merkle tree by the recursive definitions of RFC 9162: slow, and the oracle of the product's.

Leaves are leaf hashes.
"""

from __future__ import annotations

from hashlib import sha256


def split(size: int) -> int:
    """The largest power of two below `size`."""
    return 1 << (size - 1).bit_length() - 1


def head(leaves: list[bytes]) -> bytes:
    """MTH, by the recursion of RFC 9162 section 2.1.1."""
    if len(leaves) < 2:
        return leaves[0] if leaves else sha256(b"").digest()
    k = split(len(leaves))
    return sha256(b"\x01" + head(leaves[:k]) + head(leaves[k:])).digest()


def path(m: int, leaves: list[bytes]) -> list[bytes]:
    """PATH, by the recursion of section 2.1.3.1."""
    if len(leaves) == 1:
        return []
    k = split(len(leaves))
    if m < k:
        return [*path(m, leaves[:k]), head(leaves[k:])]
    return [*path(m - k, leaves[k:]), head(leaves[:k])]


def subproof(m: int, leaves: list[bytes], whole: bool) -> list[bytes]:
    """SUBPROOF, by the recursion of section 2.1.4.1."""
    if m == len(leaves):
        return [] if whole else [head(leaves)]
    k = split(len(leaves))
    if m <= k:
        return [*subproof(m, leaves[:k], whole), head(leaves[k:])]
    return [*subproof(m - k, leaves[k:], False), head(leaves[:k])]

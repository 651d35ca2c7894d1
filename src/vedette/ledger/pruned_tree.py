"""A pruned tree: only its end is at hand, behind the peaks of its beginning.

What an archived ledger needs to go on: appending needs the peaks alone (`Frontier`), and so do
proofs about leaves behind them, because a subtree beside such a leaf's way to the root is either
built of the leaves at hand or is a peak of the beginning.
"""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Struct, field

from vedette.ledger.merkle import Frontier, ProofError, node_hash


class PrunedTree(Struct):
    """The leaves `base.size`, `base.size + 1`, … of a tree whose beginning is `base`."""

    base: Frontier = field(default_factory=Frontier)
    leaves: list[bytes] = field(default_factory=list)

    @property
    def size(self) -> int:
        """The number of leaves of the whole tree."""
        return self.base.size + len(self.leaves)

    def inclusion(self, index: int) -> list[bytes]:
        """Return PATH(index, tree) of RFC 9162 §2.1.3.1: the siblings from a leaf to the root.

        Raises IndexError for a leaf that is not at hand.
        """
        if not self.base.size <= index < self.size:
            raise IndexError(f"leaf {index} is not among {self.base.size} to {self.size - 1}")
        return self._path(index)

    def consistency(self, m: int) -> list[bytes]:
        """Return PROOF(m, tree) of RFC 9162 §2.1.4.1: the first m leaves are a prefix of all.

        Empty for m = 0 and m = size.

        Raises IndexError for an m within the beginning.
        """
        if not self.base.size <= m <= self.size:
            raise IndexError(f"first {m} leaves are not within {self.base.size} to {self.size}")
        if m in (0, self.size):
            return []
        # The widest complete subtree that ends the first tree; where it is that whole tree, the
        # verifier has its hash already.
        height = 0
        while (m - 1) >> height & 1:
            height += 1
        node = (m - 1) >> height
        return self._path(node, height, with_itself=node > 0)

    def _path(self, index: int, height: int = 0, *, with_itself: bool = False) -> list[bytes]:
        """Return the siblings from node `index` of the level `height` up to the root."""
        start, level = self.base.size, list(self.leaves)
        peaks = list(self.base.peaks)
        path: list[bytes] = []
        at = 0
        while True:
            if start & 1:
                # The first node at hand is a right child: its sibling is the next narrower peak.
                level.insert(0, peaks.pop())
                start -= 1
            if at >= height:
                if at == height and with_itself:
                    path.append(level[index - start])
                sibling = (index ^ 1) - start
                if sibling < len(level):
                    path.append(level[sibling])
                index >>= 1
            if start == 0 and len(level) <= 1:
                break
            level = _parent_level(level)
            start >>= 1
            at += 1
        return path


def _parent_level(level: Sequence[bytes]) -> list[bytes]:
    """Return the level above; a last node without a partner rises unchanged."""
    above = [node_hash(level[at - 1], level[at]) for at in range(1, len(level), 2)]
    if len(level) & 1:
        above.append(level[-1])
    return above


def frontier_of(size: int, peaks: Sequence[bytes]) -> Frontier:
    """Return the frontier of a tree by its size and peaks, widest first. Raises ProofError."""
    if size < 0:
        raise ProofError("a tree has no negative size")
    return Frontier.from_bytes(b"\x01" + size.to_bytes(8, "big") + b"".join(peaks))

"""The tree against its recursive definition, and every proof against every small change."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.merkle import head, path, subproof

from vedette.ledger.merkle import Frontier, leaf_hash, verify_consistency, verify_inclusion
from vedette.ledger.pruned_tree import PrunedTree

ALL_SIZES = 33  # past two powers of two: every shape of proof occurs
LEAVES = [leaf_hash(b"%d" % number) for number in range(300)]


@pytest.mark.parametrize("size", range(1, ALL_SIZES + 1))
def test_every_proof_of_a_size_is_the_recursive_one_and_verifies(size: int) -> None:
    leaves = LEAVES[:size]
    root = head(leaves)
    for index in range(size):
        proof = PrunedTree(leaves=leaves).inclusion(index)
        assert proof == path(index, leaves)
        assert verify_inclusion(leaves[index], index, size, proof, root)
        for other in set(range(size)) - {index}:
            assert not verify_inclusion(leaves[index], other, size, proof, root)
    for first in range(1, size + 1):
        proof = PrunedTree(leaves=leaves).consistency(first)
        assert proof == subproof(first, leaves, True)
        assert verify_consistency(first, size, head(leaves[:first]), root, proof)


@settings(deadline=None)
@given(st.integers(0, 300), st.data())
def test_a_frontier_taken_up_again_anywhere_has_the_root_of_the_whole(
    size: int, data: st.DataObject
) -> None:
    cut = data.draw(st.integers(0, size))
    tree = Frontier()
    for leaf in LEAVES[:cut]:
        tree.append(leaf)
    tree = Frontier.from_bytes(tree.to_bytes())
    for leaf in LEAVES[cut:size]:
        tree.append(leaf)
    assert (tree.size, tree.root()) == (size, head(LEAVES[:size]))
    assert len(tree.peaks) == size.bit_count()


def changed(value: bytes, at: int) -> bytes:
    """`value` with one bit of it turned."""
    return value[: at // 8] + bytes([value[at // 8] ^ 1 << at % 8]) + value[at // 8 + 1 :]


def broken(data: st.DataObject, proof: list[bytes]) -> list[bytes]:
    """`proof` with one thing wrong."""
    ways = ["longer", "before"]
    if proof:
        ways += ["bit", "shorter", "headless", "cut", "joined"]
    if proof != proof[::-1]:
        ways += ["reversed"]
    way = data.draw(st.sampled_from(ways))
    extra = data.draw(st.binary(min_size=32, max_size=32))
    if way == "longer":
        return [*proof, extra]
    if way == "before":
        return [extra, *proof]
    if way == "shorter":
        return proof[:-1]
    if way == "headless":
        return proof[1:]
    if way == "cut":
        return [*proof[:-1], proof[-1][:-1]]
    if way == "joined":
        return [b"".join(proof) + extra]
    if way == "reversed":
        return proof[::-1]
    at = data.draw(st.integers(0, len(proof) - 1))
    return [*proof[:at], changed(proof[at], data.draw(st.integers(0, 255))), *proof[at + 1 :]]


@settings(deadline=None)
@given(st.integers(1, 130), st.data())
def test_a_changed_inclusion_proof_is_refused(size: int, data: st.DataObject) -> None:
    leaves = LEAVES[:size]
    index = data.draw(st.integers(0, size - 1))
    leaf, root, proof = leaves[index], head(leaves), PrunedTree(leaves=leaves).inclusion(index)
    bit = data.draw(st.integers(0, 255))
    assert verify_inclusion(leaf, index, size, proof, root)
    assert not verify_inclusion(changed(leaf, bit), index, size, proof, root)
    assert not verify_inclusion(leaf, index, size, proof, changed(root, bit))
    assert not verify_inclusion(leaf, index, size, broken(data, proof), root)


@settings(deadline=None)
@given(st.integers(2, 130), st.data())
def test_a_changed_consistency_proof_is_refused(second: int, data: st.DataObject) -> None:
    leaves = LEAVES[:second]
    first = data.draw(st.integers(1, second - 1))
    old, new = head(leaves[:first]), head(leaves)
    proof = PrunedTree(leaves=leaves).consistency(first)
    bit = data.draw(st.integers(0, 255))
    assert verify_consistency(first, second, old, new, proof)
    assert not verify_consistency(first, second, changed(old, bit), new, proof)
    assert not verify_consistency(first, second, old, changed(new, bit), proof)
    assert not verify_consistency(first, second, old, new, broken(data, proof))


@settings(deadline=None)
@given(st.integers(2, 130), st.data())
def test_a_history_written_anew_is_not_consistent(second: int, data: st.DataObject) -> None:
    first = data.draw(st.integers(1, second - 1))
    at = data.draw(st.integers(0, first - 1))
    anew = LEAVES[:second]
    anew[at] = leaf_hash(b"another entry")
    proof = PrunedTree(leaves=anew).consistency(first)
    assert verify_consistency(first, second, head(anew[:first]), head(anew), proof)
    assert not verify_consistency(first, second, head(LEAVES[:first]), head(anew), proof)

"""A tree known by its beginning's peaks proves what the whole tree proves, byte for byte."""

from __future__ import annotations

from hashlib import sha256

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.merkle import path, subproof

from vedette.ledger.key_history import KeyChain
from vedette.ledger.merkle import (
    Frontier,
    ProofError,
    read_notes,
    verify_consistency,
    verify_inclusion,
)
from vedette.ledger.pruned_log import EMPTY_PREFIX, ArchivedPrefix
from vedette.ledger.pruned_tree import PrunedTree, frontier_of

LEAVES = [sha256(bytes([number])).digest() for number in range(200)]


def tree_of(leaves: list[bytes]) -> Frontier:
    tree = Frontier()
    for leaf in leaves:
        tree.append(leaf)
    return tree


@st.composite
def sizes(draw: st.DrawFn) -> tuple[int, int, int]:
    whole = draw(st.integers(1, len(LEAVES)))
    base = draw(st.integers(0, whole - 1))
    return base, draw(st.integers(base, whole - 1)), whole


@given(sizes())
def test_proofs_equal_those_of_the_whole_tree(drawn: tuple[int, int, int]) -> None:
    base, at, whole = drawn
    tree = PrunedTree(tree_of(LEAVES[:base]), LEAVES[base:whole])
    root = tree_of(LEAVES[:whole]).root()
    siblings = tree.inclusion(at)
    assert siblings == path(at, LEAVES[:whole])
    assert verify_inclusion(LEAVES[at], at, whole, siblings, root)
    growth = tree.consistency(at)
    assert growth == (subproof(at, LEAVES[:whole], True) if at else [])
    assert verify_consistency(at, whole, tree_of(LEAVES[:at]).root(), root, growth)


def test_what_is_not_at_hand_is_not_proved() -> None:
    tree = PrunedTree(tree_of(LEAVES[:5]), LEAVES[5:9])
    for index in (-1, 4, 9):
        with pytest.raises(IndexError):
            tree.inclusion(index)
    for size in (4, 10):
        with pytest.raises(IndexError):
            tree.consistency(size)


@given(st.integers(0, 200))
def test_an_archived_part_reads_back(size: int) -> None:
    tree = tree_of(LEAVES[:size])
    archived = ArchivedPrefix(size, tree.peaks)
    assert ArchivedPrefix.from_bytes(archived.to_bytes()) == archived
    assert archived.frontier().root() == tree.root()
    assert frontier_of(size, tree.peaks).size == size


@pytest.mark.parametrize(
    "raw",
    [
        b"{", b"[]", b'{"schema":"other"}',
        b'{"schema":"vedette.archived/1","size":3,"peaks":[],"handovers":[]}',
        b'{"schema":"vedette.archived/1","size":-1,"peaks":[],"handovers":[]}',
        b'{"schema":"vedette.archived/1","size":true,"peaks":["00"],"handovers":[]}',
        b'{"schema":"vedette.archived/1","size":0,"peaks":[],"handovers":[{}]}',
    ],
)  # fmt: skip
def test_what_is_no_archived_part_is_refused(raw: bytes) -> None:
    with pytest.raises(ProofError):
        ArchivedPrefix.from_bytes(raw)


def test_nothing_is_archived_where_nothing_is_said() -> None:
    assert ArchivedPrefix.from_bytes(None) == ArchivedPrefix.from_bytes(b"") == EMPTY_PREFIX


def test_a_chain_begins_at_a_key() -> None:
    first, second = (f"vedette/x+{number}" for number in ("77d2f4c3+AQ==", "0+AQ=="))
    for line in (first, second):
        with pytest.raises(ProofError):
            KeyChain(line)


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("o\n1\nr\n\n\u2014 n s\n\n", 1),
        ("o\n1\nr\n\n\u2014 n s\n\no\n2", 1),  # broken off
        ("o\n1\nr\n\n\u2014 n s\n\no\n2\nr\n\n", 1),  # broken off before the signature
        ("o\n1\nr\n\n\u2014 n s\n\no\n2\nr\n\nx n s\n\n", 2),  # spoilt
        ("o\n1\nr\n\nx n s\n\n", 1),
    ],
)
def test_a_spoilt_note_is_not_left_out(text: str, number: int) -> None:
    assert len(read_notes(text)) == number

"""Known answers: the certificate-transparency reference tree, and the Go project's signed note."""

from __future__ import annotations

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from vedette.ledger.merkle import (
    EMPTY_ROOT,
    Checkpoint,
    Frontier,
    ProofError,
    key_id,
    leaf_hash,
    node_hash,
    parse_note,
    parse_verifier_key,
    sign_note,
    verifier_key,
    verify_consistency,
    verify_inclusion,
    verify_note,
)
from vedette.ledger.pruned_tree import PrunedTree

INPUTS = [
    bytes.fromhex(text)
    for text in (
        "",
        "00",
        "10",
        "2021",
        "3031",
        "40414243",
        "5051525354555657",
        "606162636465666768696a6b6c6d6e6f",
    )
]
LEAVES = [leaf_hash(entry) for entry in INPUTS]
ROOTS = [
    "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855",
    "6e340b9cffb37a989ca544e6bb780a2c78901d3fb33738768511a30617afa01d",
    "fac54203e7cc696cf0dfcb42c92a1d9dbaf70ad9e621f4bd8d98662f00e3c125",
    "aeb6bcfe274b70a14fb067a5e5578264db0fa9b51af5e0ba159158f329e06e77",
    "d37ee418976dd95753c1c73862b9398fa2a2cf9b4ff0fdfe8b30cd95209614b7",
    "4e3bbb1f7b478dcfe71fb631631519a3bca12c9aefca1612bfce4c13a86264d4",
    "76e67dadbcdf1e10e1b74ddc608abd2f98dfb16fbce75277b5232a127f2087ef",
    "ddb89be403809e325750d3d263cd78929c2942b7942a34b77e122c9594a74c8c",
    "5dc9da79a70659a9ad559cb701ded9a2ab9d823aad2f4960cfe370eff4604328",
]
INCLUSION = {  # (index, size): path
    (0, 1): [],
    (0, 8): [
        "96a296d224f285c67bee93c30f8a309157f0daa35dc5b87e410b78630a09cfc7",
        "5f083f0a1a33ca076a95279832580db3e0ef4584bdff1f54c8a360f50de3031e",
        "6b47aaf29ee3c2af9af889bc1fb9254dabd31177f16232dd6aab035ca39bf6e4",
    ],
    (5, 8): [
        "bc1a0643b12e4d2d7c77918f44e0f4f79a838b6cf9ec5b5c283e1f4d88599e6b",
        "ca854ea128ed050b41b35ffc1b87b8eb2bde461e9e3b5596ece6b9d5975a0ae0",
        "d37ee418976dd95753c1c73862b9398fa2a2cf9b4ff0fdfe8b30cd95209614b7",
    ],
    (2, 3): ["fac54203e7cc696cf0dfcb42c92a1d9dbaf70ad9e621f4bd8d98662f00e3c125"],
    (1, 5): [
        "6e340b9cffb37a989ca544e6bb780a2c78901d3fb33738768511a30617afa01d",
        "5f083f0a1a33ca076a95279832580db3e0ef4584bdff1f54c8a360f50de3031e",
        "bc1a0643b12e4d2d7c77918f44e0f4f79a838b6cf9ec5b5c283e1f4d88599e6b",
    ],
}
CONSISTENCY = {  # (first, second): proof
    (1, 1): [],
    (1, 8): [
        "96a296d224f285c67bee93c30f8a309157f0daa35dc5b87e410b78630a09cfc7",
        "5f083f0a1a33ca076a95279832580db3e0ef4584bdff1f54c8a360f50de3031e",
        "6b47aaf29ee3c2af9af889bc1fb9254dabd31177f16232dd6aab035ca39bf6e4",
    ],
    (6, 8): [
        "0ebc5d3437fbe2db158b9f126a1d118e308181031d0a949f8dededebc558ef6a",
        "ca854ea128ed050b41b35ffc1b87b8eb2bde461e9e3b5596ece6b9d5975a0ae0",
        "d37ee418976dd95753c1c73862b9398fa2a2cf9b4ff0fdfe8b30cd95209614b7",
    ],
    (2, 5): [
        "5f083f0a1a33ca076a95279832580db3e0ef4584bdff1f54c8a360f50de3031e",
        "bc1a0643b12e4d2d7c77918f44e0f4f79a838b6cf9ec5b5c283e1f4d88599e6b",
    ],
}

GO_KEY = "PeterNeumann+c74f20a3+ARpc2QcUPDhMQegwxbzhKqiBfsVkmqq/LDE4izWy10TW"
GO_NOTE = (
    "If you think cryptography is the answer to your problem,\n"
    "then you don't know what your problem is.\n"
    "\n"
    "— PeterNeumann x08go/ZJkuBS9UG/SffcvIAQxVBtiFupLLr8pAcElZInNIuGUgYN1FFYC2pZSNXg"
    "KvqfqdngotpRZb6KE6RyyBwJnAM=\n"
)

KEY = Ed25519PrivateKey.from_private_bytes(bytes(range(32)))
OTHER = Ed25519PrivateKey.from_private_bytes(bytes(range(1, 33)))
NAME = "vedette/first"
VERIFIER = verifier_key(NAME, KEY.public_key().public_bytes_raw())
POINT = Checkpoint(NAME, 8, bytes.fromhex(ROOTS[8]))


def test_roots_are_those_of_the_reference_tree() -> None:
    tree = Frontier()
    assert tree.root() == EMPTY_ROOT
    for size, root in enumerate(ROOTS):
        assert (tree.size, tree.root().hex()) == (size, root)
        if size < 8:
            tree.append(LEAVES[size])


@pytest.mark.parametrize(("at", "path"), INCLUSION.items())
def test_inclusion_proofs_are_those_of_the_reference_tree(
    at: tuple[int, int], path: list[str]
) -> None:
    index, size = at
    proof = PrunedTree(leaves=LEAVES[:size]).inclusion(index)
    assert [value.hex() for value in proof] == path
    root = bytes.fromhex(ROOTS[size])
    assert verify_inclusion(LEAVES[index], index, size, proof, root)
    assert not verify_inclusion(LEAVES[index], index, size + 8, proof, root)
    assert not verify_inclusion(LEAVES[index], size, size, proof, root)
    assert not verify_inclusion(LEAVES[index], -1, size, proof, root)


@pytest.mark.parametrize(("sizes", "path"), CONSISTENCY.items())
def test_consistency_proofs_are_those_of_the_reference_tree(
    sizes: tuple[int, int], path: list[str]
) -> None:
    first, second = sizes
    proof = PrunedTree(leaves=LEAVES[:second]).consistency(first)
    assert [value.hex() for value in proof] == path
    old, new = bytes.fromhex(ROOTS[first]), bytes.fromhex(ROOTS[second])
    assert verify_consistency(first, second, old, new, proof)
    assert not verify_consistency(first, second, EMPTY_ROOT, new, proof)
    assert not verify_consistency(first, second, old, EMPTY_ROOT, proof)
    assert not verify_consistency(second + 1, second, old, new, proof)


def test_the_empty_tree_is_the_beginning_of_every_tree() -> None:
    root = bytes.fromhex(ROOTS[8])
    assert PrunedTree(leaves=LEAVES).consistency(0) == []
    assert verify_consistency(0, 8, EMPTY_ROOT, root, [])
    assert not verify_consistency(0, 8, root, root, [])
    assert not verify_consistency(0, 8, EMPTY_ROOT, root, [root])
    assert not verify_consistency(3, 8, bytes.fromhex(ROOTS[3]), root, [])


def test_a_proof_of_the_wrong_length_is_refused_even_if_its_root_was_made_for_it() -> None:
    """Whoever may choose the root as well must not stretch or shorten a proof."""
    roots = [bytes.fromhex(text) for text in ROOTS]
    extra = LEAVES[7]
    proof = PrunedTree(leaves=LEAVES).inclusion(3)
    assert not verify_inclusion(LEAVES[3], 3, 8, [*proof, extra], node_hash(extra, roots[8]))
    assert not verify_inclusion(LEAVES[3], 3, 8, proof[:2], roots[4])
    proof = [*PrunedTree(leaves=LEAVES).consistency(6), extra]
    old, new = node_hash(extra, roots[6]), node_hash(extra, roots[8])
    assert not verify_consistency(6, 8, old, new, proof)
    assert not verify_consistency(1, 8, roots[1], roots[2], [LEAVES[1]])


def test_a_hash_of_another_length_is_refused_even_if_its_root_was_made_for_it() -> None:
    short = LEAVES[1][:31]
    assert not verify_inclusion(LEAVES[0], 0, 2, [short], node_hash(LEAVES[0], short))
    assert not verify_consistency(1, 2, LEAVES[0], node_hash(LEAVES[0], short), [short])
    assert verify_inclusion(LEAVES[0], 0, 2, LEAVES[1:2], node_hash(*LEAVES[:2]))
    assert verify_consistency(1, 2, LEAVES[0], node_hash(*LEAVES[:2]), LEAVES[1:2])


def test_proofs_outside_the_tree_are_refused() -> None:
    for index in (-1, 8):
        with pytest.raises(IndexError):
            PrunedTree(leaves=LEAVES).inclusion(index)
    for size in (-1, 9):
        with pytest.raises(IndexError):
            PrunedTree(leaves=LEAVES).consistency(size)


def test_a_copy_of_the_frontier_is_independent() -> None:
    tree = Frontier()
    tree.append(LEAVES[0])
    twin = tree.copy()
    twin.append(LEAVES[1])
    assert (tree.size, tree.root().hex()) == (1, ROOTS[1])
    assert (twin.size, twin.root().hex()) == (2, ROOTS[2])


def test_a_damaged_frontier_is_refused() -> None:
    tree = Frontier()
    for leaf in LEAVES[:7]:
        tree.append(leaf)
    raw = tree.to_bytes()
    assert Frontier.from_bytes(raw).peaks == tree.peaks
    for bad in (b"", raw[:-1], raw + b"\0", b"\2" + raw[1:], raw[:8] + b"\x08" + raw[9:]):
        with pytest.raises(ProofError):
            Frontier.from_bytes(bad)


def test_the_reference_note_of_go_verifies() -> None:
    assert verify_note(GO_NOTE, GO_KEY) == GO_NOTE.partition("\n\n")[0] + "\n"
    name, raw = parse_verifier_key(GO_KEY)
    assert (name, key_id(name, raw).hex()) == ("PeterNeumann", "c74f20a3")
    assert verifier_key(name, raw) == GO_KEY
    with pytest.raises(ProofError, match="is not of this text"):
        verify_note(GO_NOTE.replace("answer", "Answer"), GO_KEY)


def test_a_checkpoint_has_the_text_of_the_specification() -> None:
    point = Checkpoint.from_body(
        "example.com/behind-the-sofa\n20852163\nCsUYapGGPo4dkMgIAUqom/Xajj7h2fB2MPA3j2jxq2I=\n"
    )
    assert (point.origin, point.size) == ("example.com/behind-the-sofa", 20852163)
    assert Checkpoint.from_body(point.body()) == point
    assert Checkpoint.from_body(point.body() + "an extension\n") == point


@pytest.mark.parametrize(
    "body",
    [
        "",
        "\n",
        "a\n1\n",
        POINT.body()[:-1],
        POINT.body() + "\n",
        POINT.body().replace("\n8\n", "\n08\n"),
        POINT.body().replace("\n8\n", "\n-8\n"),
        POINT.body().replace("\n8\n", "\n8 \n"),
        POINT.body().replace("\n8\n", "\n٨\n"),
        POINT.body().replace("\n8\n", "\n" + "9" * 5000 + "\n"),
        POINT.body().replace("=\n", "\n"),
        POINT.body().replace("=\n", "==\n"),
        "a\n1\nAAAA\n",
        "a\n1\nXcnaeacGWamtVZy3Ad7ZoqudgjqtL0lgz+Nw7/RgQyi=\n",
        "\n1\n" + POINT.body().split("\n")[2] + "\n",
    ],
)
def test_what_is_no_checkpoint_is_refused(body: str) -> None:
    with pytest.raises(ProofError):
        Checkpoint.from_body(body)


def test_a_checkpoint_that_could_not_be_read_back_is_not_made() -> None:
    for origin, size, root in (
        ("", 1, EMPTY_ROOT),
        ("a\nb", 1, EMPTY_ROOT),
        ("a", -1, EMPTY_ROOT),
        ("a", 1, b"short"),
    ):
        with pytest.raises(ProofError):
            Checkpoint(origin, size, root)


def test_a_signed_note_verifies_and_only_with_its_key_and_name() -> None:
    text = sign_note(POINT.body(), NAME, KEY)
    assert Checkpoint.from_body(verify_note(text, VERIFIER)) == POINT
    assert [made.name for made in parse_note(text).signatures] == [NAME]
    public = KEY.public_key().public_bytes_raw()
    for wrong in (
        verifier_key(NAME, OTHER.public_key().public_bytes_raw()),
        verifier_key("vedette/second", public),
    ):
        with pytest.raises(ProofError, match="is not signed by"):
            verify_note(text, wrong)


def test_a_cosignature_by_an_unknown_key_is_passed_over() -> None:
    text = sign_note(POINT.body(), NAME, KEY)
    line = sign_note(POINT.body(), "witness", OTHER).split("\n")[-2]
    assert verify_note(f"{text}{line}\n", VERIFIER) == POINT.body()


def test_one_wrong_signature_in_our_name_refuses_the_note() -> None:
    text = sign_note(POINT.body(), NAME, KEY)
    forged = sign_note("another\n", NAME, KEY).split("\n")[-2]
    with pytest.raises(ProofError, match="is not of this text"):
        verify_note(f"{text}{forged}\n", VERIFIER)


def test_every_single_character_of_a_note_matters() -> None:
    text = sign_note(POINT.body(), NAME, KEY)
    for at in range(len(text)):
        for changed in (text[:at] + "~" + text[at + 1 :], text[:at] + text[at + 1 :], text[:at]):
            with pytest.raises(ProofError):
                verify_note(changed, VERIFIER)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "no signature\n",
        "no gap\n— a AAAAAAA=\n",
        "body\n\n",
        "body\n\n- a AAAAAAA=\n",
        "body\n\n— a AAAAAAA=",
        "body\n\n—  AAAAAAA=\n",
        "body\n\n— a+b AAAAAAA=\n",
        "body\n\n— a AAAA\n",
        "body\r\n\n— a AAAAAAA=\n",
        "body\ud800\n\n— a AAAAAAA=\n",
        "b" * 100_000 + "\n\n— a AAAAAAA=\n",
    ],
)
def test_what_is_no_note_is_refused(text: str) -> None:
    with pytest.raises(ProofError):
        parse_note(text)
    assert parse_note("body\n\n— a AAAAAAA=\n").body == "body\n"


@pytest.mark.parametrize("body", ["", "no newline", "a\tb\n", "\ud800\n"])
def test_what_cannot_be_a_note_is_not_signed(body: str) -> None:
    with pytest.raises(ProofError):
        sign_note(body, NAME, KEY)


@pytest.mark.parametrize("name", ["", "a b", "a+b", "a\nb", "a\u2003b", "a\x1bb"])
def test_a_key_name_that_would_be_ambiguous_is_refused(name: str) -> None:
    with pytest.raises(ProofError):
        sign_note(POINT.body(), name, KEY)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "name",
        GO_KEY.replace("c74f", "c74e"),
        GO_KEY.replace("Peter", "peter"),
        GO_KEY.replace("ARpc", "BBpc"),
        GO_KEY[:-4],
        GO_KEY + "!",
    ],
)
def test_what_is_no_verifier_key_is_refused(text: str) -> None:
    with pytest.raises(ProofError):
        parse_verifier_key(text)

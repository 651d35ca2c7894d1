"""Proofs about a ledger that stand alone: of one entry, and of one checkpoint in a later one.

Each carries the handovers that lead from the first key to the one that signed: whoever checks it
needs the first verifier key and nothing else.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from vedette.adapters.ledger_export.files import Walk, archived_of, read_object, size_of, snapshot
from vedette.domain.base.dataclass import dataclass
from vedette.domain.base.errors import BadCommand
from vedette.ledger.key_history import ROTATED, Handover, KeyChain, chain_of
from vedette.ledger.merkle import (
    Checkpoint,
    ProofError,
    leaf_hash,
    parse_note,
    verify_consistency,
    verify_inclusion,
    verify_note,
)
from vedette.ledger.pruned_log import Archived
from vedette.ledger.pruned_tree import Tail

PROOF = "vedette.proof/1"
CONSISTENCY = "vedette.consistency/1"


@dataclass(slots=True)
class Grown:
    """The tree of a record at its newest checkpoint, and what proofs about it need."""

    begun: Archived
    tree: Tail
    notes: list[str]
    rotations: dict[int, bytes]

    @classmethod
    def read(cls, record: Walk) -> Grown:
        """Read a whole record. Raises BadCommand if it has no checkpoint yet."""
        with snapshot(record):
            begun = archived_of(record)
            notes = [note for note in record.notes() if size_of(note) >= begun.size]
            if not notes:
                raise BadCommand("the ledger has no checkpoint yet", mend="let the fleet run once")
            end = size_of(notes[-1])
            tree = Tail(begun.frontier())
            rotations: dict[int, bytes] = {}
            for seq, raw, _, _ in record.walk(after=begun.size):
                if tree.size == end:
                    break
                tree.leaves.append(leaf_hash(raw))
                if ROTATED.encode() in raw and read_object(raw).get("kind") == ROTATED:
                    rotations[seq] = raw
        return cls(begun, tree, notes, rotations)

    def at(self, size: int) -> Tail:
        """Return the tree as it was at a size within what is at hand."""
        return Tail(self.tree.base, self.tree.leaves[: size - self.tree.base.size])

    def note(self, size: int) -> str:
        """Return the checkpoint of a size. Raises BadCommand if there is none."""
        for note in self.notes:
            if size_of(note) == size:
                return note
        raise BadCommand(
            f"there is no checkpoint of size {size}",
            mend=f"name one from {size_of(self.notes[0])} to {size_of(self.notes[-1])}",
        )

    def handovers(self, upto: int) -> tuple[Handover, ...]:
        """Return the handovers of all keys that were in force up to a size."""
        found = list(self.begun.handovers)
        for seq, raw in sorted(self.rotations.items()):
            note = next((one for one in self.notes if size_of(one) >= seq), None)
            if note is None or size_of(note) > upto:
                continue
            path = self.at(size_of(note)).inclusion(seq - 1)
            found.append(Handover(raw, tuple(path), note))
        return tuple(found)


def prove(record: Walk, seq: int) -> dict[str, Any]:
    """Return the proof that an entry stands in the ledger, against its newest checkpoint.

    Costs a pass over the entries. Raises BadCommand for an entry that no checkpoint covers, or
    that is not at hand because it was archived.
    """
    grown = Grown.read(record)
    note, begun = grown.notes[-1], grown.begun.size
    size = size_of(note)
    if 1 <= seq <= begun:
        raise BadCommand(
            f"entry {seq} was archived", mend="name the folder it is in: --archive FOLDER"
        )
    if not begun < seq <= min(grown.tree.size, size):
        raise BadCommand(
            f"entry {seq} is not in the ledger's newest checkpoint, which covers 1 to {size}",
            mend="name one of these",
        )
    entry = next(raw for at, raw, _, _ in record.walk(after=seq - 1) if at == seq)
    return {
        "schema": PROOF,
        "seq": seq,
        "entry": entry.decode("utf-8"),
        "proof": [node.hex() for node in grown.tree.inclusion(seq - 1)],
        "checkpoint": note,
        "handovers": [one.to_json() for one in grown.handovers(size)],
    }


def prove_growth(record: Walk, size: int) -> dict[str, Any]:
    """Return the proof that the checkpoint of a size is a beginning of the newest one.

    Raises BadCommand if the ledger has no checkpoint of that size at hand.
    """
    grown = Grown.read(record)
    earlier, later = grown.note(size), grown.notes[-1]
    return {
        "schema": CONSISTENCY,
        "from": earlier,
        "to": later,
        "proof": [node.hex() for node in grown.tree.consistency(size)],
        "handovers": [one.to_json() for one in grown.handovers(size_of(later))],
    }


def verify_proof(proof: Mapping[str, Any], verifier_key: str) -> Checkpoint:
    """Check a proof of one entry offline; return the checkpoint it leads to. Raises ProofError."""
    try:
        if proof["schema"] != PROOF:
            raise ProofError(f"not a {PROOF}")
        point = _point(proof["checkpoint"], _chain(proof, verifier_key))
        raw = proof["entry"].encode("utf-8")
        path = [bytes.fromhex(node) for node in proof["proof"]]
        seq = proof["seq"]
        whole = read_object(raw).get("seq") == seq and type(seq) is int
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        raise _as_proof_error(error) from error
    if not whole or not verify_inclusion(leaf_hash(raw), seq - 1, point.size, path, point.root):
        raise ProofError(f"entry {seq} is not in the ledger of that checkpoint")
    return point


def verify_growth(proof: Mapping[str, Any], verifier_key: str) -> tuple[Checkpoint, Checkpoint]:
    """Check that one checkpoint is a beginning of another; return both. Raises ProofError."""
    try:
        if proof["schema"] != CONSISTENCY:
            raise ProofError(f"not a {CONSISTENCY}")
        chain = _chain(proof, verifier_key)
        before, after = _point(proof["from"], chain), _point(proof["to"], chain)
        path = [bytes.fromhex(node) for node in proof["proof"]]
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        raise _as_proof_error(error) from error
    if before.origin != after.origin or not verify_consistency(
        before.size, after.size, before.root, after.root, path
    ):
        raise ProofError(f"checkpoint {before.size} is no beginning of checkpoint {after.size}")
    return before, after


def _chain(proof: Mapping[str, Any], verifier_key: str) -> KeyChain:
    return chain_of(verifier_key, [Handover.from_json(one) for one in proof.get("handovers", [])])


def _point(note: str, chain: KeyChain) -> Checkpoint:
    claimed = Checkpoint.from_body(parse_note(note).body)
    return Checkpoint.from_body(verify_note(note, chain.of(claimed.size)))


def _as_proof_error(error: Exception) -> ProofError:
    return error if isinstance(error, ProofError) else ProofError(f"no proof: {error}")

"""Proofs exported from a ledger, to stand alone: of one entry, of one checkpoint in a later one.

Each carries the handovers that lead from the first key to the one that signed: whoever checks it
needs the first verifier key and nothing else.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from msgspec import Struct

from vedette.adapters.ledger_export.files import (
    VerifiableLedger,
    archived_part,
    entry_object,
    note_size,
    snapshot,
)
from vedette.domain.base.errors import BadCommand
from vedette.ledger.key_history import ROTATED, Handover, KeyChain, build_chain
from vedette.ledger.merkle import (
    Checkpoint,
    ProofError,
    leaf_hash,
    parse_note,
    verify_consistency,
    verify_inclusion,
    verify_note,
)
from vedette.ledger.pruned_log import ArchivedPrefix
from vedette.ledger.pruned_tree import PrunedTree

PROOF = "vedette.proof/1"
CONSISTENCY = "vedette.consistency/1"


class ProofTree(Struct):
    """The tree of a record at its newest checkpoint, and what proofs exported of it need."""

    archived: ArchivedPrefix
    tree: PrunedTree
    notes: list[str]
    rotations: dict[int, bytes]

    @classmethod
    def read(cls, record: VerifiableLedger) -> ProofTree:
        """Read a whole record. Raises BadCommand if it has no checkpoint yet."""
        with snapshot(record):
            archived = archived_part(record)
            notes = [note for note in record.checkpoints() if note_size(note) >= archived.size]
            if not notes:
                raise BadCommand("the ledger has no checkpoint yet", mend="let the fleet run once")
            end = note_size(notes[-1])
            tree = PrunedTree(archived.frontier())
            rotations: dict[int, bytes] = {}
            for seq, raw, _, _ in record.walk(after=archived.size):
                if tree.size == end:
                    break
                tree.leaves.append(leaf_hash(raw))
                if ROTATED.encode() in raw and entry_object(raw).get("kind") == ROTATED:
                    rotations[seq] = raw
        return cls(archived, tree, notes, rotations)

    def tree_at(self, size: int) -> PrunedTree:
        """Return the tree as it was at a size within what is at hand."""
        return PrunedTree(self.tree.base, self.tree.leaves[: size - self.tree.base.size])

    def find_note(self, size: int) -> str:
        """Return the checkpoint of a size. Raises BadCommand if there is none."""
        for note in self.notes:
            if note_size(note) == size:
                return note
        raise BadCommand(
            f"there is no checkpoint of size {size}",
            mend=f"name one from {note_size(self.notes[0])} to {note_size(self.notes[-1])}",
        )

    def handovers(self, upto: int) -> tuple[Handover, ...]:
        """Return the handovers of all keys that were in force up to a size."""
        found = list(self.archived.handovers)
        for seq, raw in sorted(self.rotations.items()):
            note = next((one for one in self.notes if note_size(one) >= seq), None)
            if note is None or note_size(note) > upto:
                continue
            path = self.tree_at(note_size(note)).inclusion(seq - 1)
            found.append(Handover(raw, tuple(path), note))
        return tuple(found)


def prove_inclusion(record: VerifiableLedger, seq: int) -> dict[str, Any]:
    """Return, for export, the proof that an entry stands in the ledger's newest checkpoint.

    Costs a pass over the entries. Raises BadCommand for an entry that no checkpoint covers, or
    that is not at hand because it was archived.
    """
    proof_tree = ProofTree.read(record)
    note, archived_size = proof_tree.notes[-1], proof_tree.archived.size
    size = note_size(note)
    if 1 <= seq <= archived_size:
        raise BadCommand(
            f"entry {seq} was archived", mend="name the folder it is in: --archive FOLDER"
        )
    if not archived_size < seq <= min(proof_tree.tree.size, size):
        raise BadCommand(
            f"entry {seq} is not in the ledger's newest checkpoint, which covers 1 to {size}",
            mend="name one of these",
        )
    entry = next(raw for at, raw, _, _ in record.walk(after=seq - 1) if at == seq)
    return {
        "schema": PROOF,
        "seq": seq,
        "entry": entry.decode("utf-8"),
        "proof": [node.hex() for node in proof_tree.tree.inclusion(seq - 1)],
        "checkpoint": note,
        "handovers": [one.to_json() for one in proof_tree.handovers(size)],
    }


def prove_consistency(record: VerifiableLedger, size: int) -> dict[str, Any]:
    """Return, for export, the proof that a size's checkpoint is a beginning of the newest one.

    Raises BadCommand if the ledger has no checkpoint of that size at hand.
    """
    proof_tree = ProofTree.read(record)
    earlier, later = proof_tree.find_note(size), proof_tree.notes[-1]
    return {
        "schema": CONSISTENCY,
        "from": earlier,
        "to": later,
        "proof": [node.hex() for node in proof_tree.tree.consistency(size)],
        "handovers": [one.to_json() for one in proof_tree.handovers(note_size(later))],
    }


def verify_inclusion_proof(proof: Mapping[str, Any], verifier_key: str) -> Checkpoint:
    """Check an exported proof of an entry; return the checkpoint it leads to. Raises ProofError."""
    try:
        if proof["schema"] != PROOF:
            raise ProofError(f"not a {PROOF}")
        point = _verify_checkpoint(proof["checkpoint"], _chain(proof, verifier_key))
        raw = proof["entry"].encode("utf-8")
        path = [bytes.fromhex(node) for node in proof["proof"]]
        seq = proof["seq"]
        whole = entry_object(raw).get("seq") == seq and type(seq) is int
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        raise _to_proof_error(error) from error
    if not whole or not verify_inclusion(leaf_hash(raw), seq - 1, point.size, path, point.root):
        raise ProofError(f"entry {seq} is not in the ledger of that checkpoint")
    return point


def verify_consistency_proof(
    proof: Mapping[str, Any], verifier_key: str
) -> tuple[Checkpoint, Checkpoint]:
    """Check an exported proof that a checkpoint begins another; return both. Raises ProofError."""
    try:
        if proof["schema"] != CONSISTENCY:
            raise ProofError(f"not a {CONSISTENCY}")
        chain = _chain(proof, verifier_key)
        before, after = (
            _verify_checkpoint(proof["from"], chain),
            _verify_checkpoint(proof["to"], chain),
        )
        path = [bytes.fromhex(node) for node in proof["proof"]]
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        raise _to_proof_error(error) from error
    if before.origin != after.origin or not verify_consistency(
        before.size, after.size, before.root, after.root, path
    ):
        raise ProofError(f"checkpoint {before.size} is no beginning of checkpoint {after.size}")
    return before, after


def _chain(proof: Mapping[str, Any], verifier_key: str) -> KeyChain:
    return build_chain(
        verifier_key, [Handover.from_json(one) for one in proof.get("handovers", [])]
    )


def _verify_checkpoint(note: str, chain: KeyChain) -> Checkpoint:
    claimed = Checkpoint.from_body(parse_note(note).body)
    return Checkpoint.from_body(verify_note(note, chain.key_at(claimed.size)))


def _to_proof_error(error: Exception) -> ProofError:
    return error if isinstance(error, ProofError) else ProofError(f"no proof: {error}")

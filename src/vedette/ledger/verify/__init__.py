"""Verify a ledger offline: entries, checkpoints, a public key and the witness's copy, no store.

One forward pass over the entries. Memory grows with the checkpoints, the runs and the missing
bodies, never with the entries. Nothing is believed but the verifier key: every checkpoint is
verified as a signed note before it counts, and every root is computed again. Later keys are
believed because the one before handed over to them in an entry.

What this cannot find, because nothing outside the store knows of it: a cut after the last
witnessed checkpoint. `Report.witnessed` says how far the witness reaches. Nor can it tell that
the holder of the signing key wrote another history before any checkpoint reached a witness.
"""

from __future__ import annotations

from collections.abc import Container, Iterable

from vedette.ledger.merkle import Frontier, ProofError, leaf_hash, parse_verifier_key
from vedette.ledger.pruned_log import EMPTY_PREFIX, ArchivedPrefix
from vedette.ledger.verify.checkpoint_check import STORE, WITNESS, CheckpointChecker
from vedette.ledger.verify.entry_check import BodyLookup, EntryChecker
from vedette.ledger.verify.entry_stream import EntryStream
from vedette.ledger.verify.finding import Code, Finding, Findings, RecordedLoss, Report


def verify_ledger(
    entries: Iterable[tuple[int, bytes]],
    checkpoints: Iterable[str],
    verifier_key: str,
    witness: Iterable[str] = (),
    bodies: BodyLookup | None = None,
    *,
    origin: str | None = None,
    limit: int = 100,
    archived: ArchivedPrefix = EMPTY_PREFIX,
) -> Report:
    """Verify a whole ledger and report everything that is wrong with it.

    `entries` are (seq, canonical bytes) in storage order, from the one after the `archived`
    (from seq 1 if nothing is). `checkpoints` and `witness` are signed notes, each in the order
    written: those kept in the store, and those copied out of its reach. `bodies` None leaves the
    bodies unchecked, as the proof over the entries does not need them. `origin` is the origin
    every checkpoint must name, the key's name if None. `limit` is how many findings of each code
    are kept.

    Raises ProofError only for a malformed `verifier_key`: what is wrong with the ledger is
    reported, never raised.
    """
    found = Findings(limit)
    parse_verifier_key(verifier_key)
    heads = CheckpointChecker(verifier_key, origin, found)
    heads.add_notes(STORE, checkpoints)
    heads.add_notes(WITNESS, witness)
    tree = _beginning(archived, found)
    reader = EntryChecker(found, bodies, tree.size)
    roots = _read(entries, reader, tree, heads.sizes())
    judged = heads.check(roots, tree.size, reader.rotations, reader.restores, archived)
    if judged.reach < tree.size:
        # Without this, whoever drops the last checkpoints could rewrite what they covered.
        found.add(
            Code.UNSIGNED_TAIL,
            judged.reach + 1,
            f"entries {judged.reach + 1} to {tree.size} are covered by no signed checkpoint",
        )
    return Report(
        size=tree.size,
        root=tree.root(),
        runs=len(reader.runs),
        checkpoints=heads.counts[STORE],
        witness_checkpoints=heads.counts[WITNESS],
        signed=judged.agreed_sizes[STORE],
        witnessed=judged.agreed_sizes[WITNESS],
        bodies=reader.verified_bodies if bodies is not None else None,
        erased=len(reader.erased_digests),
        counts=dict(found.counts),
        findings=tuple(found.items),
        archived=archived.size,
        keys=judged.keys,
        restored=judged.restored,
        lost=judged.lost,
    )


def _read(
    entries: Iterable[tuple[int, bytes]],
    reader: EntryChecker,
    tree: Frontier,
    wanted: Container[int],
) -> dict[int, bytes]:
    """Check every entry and grow the tree by it; return the roots at the sizes `wanted`."""
    roots = {0: Frontier().root(), tree.size: tree.root()}
    for seq, raw in entries:
        reader.read(seq, raw)
        tree.append(leaf_hash(raw))
        if tree.size in wanted:
            roots[tree.size] = tree.root()
    reader.close()
    return roots


def _beginning(archived: ArchivedPrefix, found: Findings) -> Frontier:
    try:
        return archived.frontier()
    except ProofError as error:
        found.add(Code.BAD_ARCHIVE, None, f"the archived beginning is not readable: {error}")
        return Frontier()


__all__ = [
    "BodyLookup",
    "Code",
    "EntryStream",
    "Finding",
    "RecordedLoss",
    "Report",
    "verify_ledger",
]  # fmt: skip

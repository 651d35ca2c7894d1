"""Proves a ledger by its own heads and salted digests; shares no code with the engine."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping

import orjson
from tests.faults.auditor import compute_roots, find_gaps, read_heads


def check_proof(
    ledger: list[bytes], notes: Iterable[str], bodies: Mapping[int, bytes], first: int
) -> Iterator[str]:
    """Say what of a ledger's entries does not agree with its heads (RFC 9162) and its bodies.

    `bodies` are salt and content by the entry's seq; those of entries before `first` are in the
    archive. Signatures are the verifier's business.
    """
    entries = [orjson.loads(raw) for raw in ledger]
    yield from find_gaps(entries)
    heads = dict(read_heads("\n\n".join(f"{note.strip()}\n" for note in notes)))
    if max(heads, default=0) != len(ledger):
        yield f"{len(ledger)} entries, the last head is of {max(heads, default=0)}"
    roots = dict(compute_roots(ledger))
    yield from (f"head {size} differs" for size, root in heads.items() if roots.get(size) != root)
    erased = {digest for entry in entries for digest in entry.get("erased", ())}
    for entry in entries:
        seq, digest = entry["seq"], entry.get("body")
        if seq in bodies and hashlib.sha256(bodies[seq]).hexdigest() != digest:
            yield f"the body of entry {seq} differs"
        if seq in bodies and digest in erased:
            yield f"the body of entry {seq} is there, and was erased"
        if seq not in bodies and digest and seq >= first and digest not in erased:
            yield f"the body of entry {seq} is missing"

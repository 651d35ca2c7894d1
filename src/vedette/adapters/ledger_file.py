"""The ledger as files: exports that anybody can verify, proofs of one entry, and verification.

An export is a folder: `entries.jsonl` (the canonical bytes of every entry, one a line, in
order), `checkpoints` and `witness` (signed notes, each followed by an empty line), `bodies.jsonl`
(salt and text of the bodies, if asked for), `ledger.pub` (the verifier key, one line) and, written
last, `export.json`. The key and the witness of an export are copies: who distrusts the sender
verifies with a key and a witness file of their own.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Protocol

import orjson

from vedette.errors import BadCommand, BadStore
from vedette.proof import (
    Checkpoint,
    ProofError,
    inclusion_proof,
    leaf_hash,
    parse_note,
    read_notes,
    verify_inclusion,
    verify_note,
)
from vedette.verify import Code, Finding, Report, verify_ledger

EXPORT = "vedette.export/1"
PROOF = "vedette.proof/1"

# The typed columns that a store keeps beside the bytes, in the order in which it yields them.
COLUMNS = (
    "seq", "at", "kind", "run", "event", "agent", "action", "outcome", "rule", "policy_rev",
    "actor", "cause",
)  # fmt: skip

_LIMIT = 100

Walked = tuple[int, bytes, bytes | None, bytes | None]


class Walk(Protocol):
    """What can be verified: entries in order with their bodies, and signed checkpoints."""

    def walk(self, kinds: tuple[str, ...] | None = None, after: int = 0) -> Iterator[Walked]: ...

    def notes(self) -> Iterator[str]: ...


# --- files ----------------------------------------------------------------------------------


def export(
    record: Walk, folder: Path, *, verifier_key: str, witness: Path | None, bodies: bool = False
) -> dict[str, Any]:
    """Write a record into a new or empty folder; return what `export.json` says.

    Raises BadCommand if the folder holds something already.
    """
    folder.mkdir(parents=True, exist_ok=True)
    if any(folder.iterdir()):
        raise BadCommand("the folder is not empty", where=str(folder), mend="name a new one")
    shown = _read_witness(witness)
    size = written = 0
    with _snapshot(record):
        (folder / "checkpoints").write_text(_notes_text(record.notes()), encoding="utf-8")
        with (
            (folder / "entries.jsonl").open("wb") as entries,
            (folder / "bodies.jsonl").open("wb") as beside,
        ):
            for seq, raw, salt, data in record.walk():
                entries.write(raw + b"\n")
                size += 1
                if bodies and salt is not None and data is not None:
                    beside.write(_body_line(seq, salt, data))
                    written += 1
    if not bodies:
        (folder / "bodies.jsonl").unlink()
    (folder / "witness").write_text(_notes_text(shown), encoding="utf-8")
    (folder / "ledger.pub").write_text(verifier_key.strip() + "\n", encoding="utf-8")
    told = {"schema": EXPORT, "entries": size, "bodies": written if bodies else None}
    (folder / "export.json").write_bytes(orjson.dumps(told) + b"\n")
    return told


def _body_line(seq: int, salt: bytes, data: bytes) -> bytes:
    value = {"seq": seq, "salt": salt.hex(), "data": data.decode("utf-8")}
    return orjson.dumps(value) + b"\n"


def _notes_text(notes: Iterable[str]) -> str:
    return "".join(note + "\n" for note in notes)


def _read_witness(path: Path | None) -> list[str]:
    if path is None or not path.exists():
        return []
    return read_notes(path.read_text(encoding="utf-8", errors="replace"))


@dataclass(slots=True)
class Exported:
    """An export read back; offers what a store offers to verification and proofs."""

    folder: Path
    told: Mapping[str, Any] = field(init=False)

    def __post_init__(self) -> None:
        """Raises BadStore if the folder is not a complete export."""
        path = self.folder / "export.json"
        try:
            self.told = orjson.loads(path.read_bytes())
            if self.told["schema"] != EXPORT:
                raise ValueError(f"it says {self.told['schema']!r}")
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise BadStore(
                f"not a complete {EXPORT}: {error}",
                where=str(path),
                mend="export the ledger again",
            ) from error

    @property
    def key(self) -> str:
        """Return the verifier key that came with the export."""
        return (self.folder / "ledger.pub").read_text(encoding="utf-8").strip()

    @property
    def witness(self) -> Path:
        """Return the witness file that came with the export."""
        return self.folder / "witness"

    @property
    def has_bodies(self) -> bool:
        """Say whether the export holds bodies."""
        return (self.folder / "bodies.jsonl").exists()

    def walk(self, kinds: tuple[str, ...] | None = None, after: int = 0) -> Iterator[Walked]:
        """Yield (seq, bytes, salt, body); the seq is what the line says, as far as it says one."""
        bodies = self._bodies()
        body = next(bodies, None)
        last = 0
        with (self.folder / "entries.jsonl").open("rb") as lines:
            for line in lines:
                raw = line.removesuffix(b"\n")
                value = _object(raw)
                told = value.get("seq")
                seq = last = told if type(told) is int else last + 1
                while body is not None and body[0] < seq:
                    body = next(bodies, None)
                found = body if body is not None and body[0] == seq else (seq, None, None)
                if seq > after and (kinds is None or value.get("kind") in kinds):
                    yield seq, raw, found[1], found[2]

    def _bodies(self) -> Iterator[tuple[int, bytes, bytes]]:
        if not self.has_bodies:
            return
        with (self.folder / "bodies.jsonl").open("rb") as lines:
            for line in lines:
                value = _object(line)
                try:
                    yield value["seq"], bytes.fromhex(value["salt"]), value["data"].encode()
                except (KeyError, TypeError, ValueError, AttributeError):
                    continue  # its entry will be found to lack its body

    def notes(self) -> Iterator[str]:
        """Yield the signed checkpoints of the store in order."""
        yield from _read_witness(self.folder / "checkpoints")


def _object(raw: bytes) -> dict[str, Any]:
    try:
        value = orjson.loads(raw)
    except ValueError:
        return {}
    return value if isinstance(value, dict) else {}


# --- verify ---------------------------------------------------------------------------------


class _Stream:
    """Hands entries to the verifier one by one, and with each the body that lies beside it."""

    def __init__(self, rows: Iterable[Walked], found: list[Finding]) -> None:
        self._rows = rows
        self._found = found
        self._body: tuple[bytes, bytes] | None = None
        self._asked = True
        self.strays = 0

    def __iter__(self) -> Iterator[tuple[int, bytes]]:
        for seq, raw, salt, data in self._rows:
            self._body = None if salt is None or data is None else (salt, data)
            self._asked = self._body is None
            yield seq, raw
            if not self._asked:
                # It would be shown beside an entry that vouches for nothing.
                self.strays += 1
                if self.strays <= _LIMIT:
                    what = f"a body lies beside entry {seq}, which has none"
                    self._found.append(Finding(Code.BODY_MISMATCH, seq, what))

    def get(self, digest: str, /) -> tuple[bytes, bytes] | None:
        """Return the body of the entry at hand, whatever its digest: the verifier compares."""
        self._asked = True
        return self._body


def verify_store(
    record: Walk, verifier_key: str, witness: Path | None = None, *, bodies: bool = True
) -> Report:
    """Verify a store or an export against a key and a witness file: see `verify_ledger`.

    Of a store the typed columns are held against the bytes too. The witness is read before the
    entries, so a fleet that goes on running meanwhile is not mistaken for a cut. Raises ProofError
    for a malformed key; what is wrong with the record is reported.
    """
    shown = _read_witness(witness)
    found: list[Finding] = []
    with _snapshot(record):
        stream = _Stream(record.walk(), found)
        report = verify_ledger(
            stream, record.notes(), verifier_key, shown, stream if bodies else None
        )
        wrong, columns = _columns(record)
    counts = dict(report.counts)
    if stream.strays and bodies:
        counts[Code.BODY_MISMATCH] = counts.get(Code.BODY_MISMATCH, 0) + stream.strays
        columns = found + columns
    if wrong:
        counts[Code.COLUMN_MISMATCH] = wrong
    return replace(report, counts=counts, findings=(*report.findings, *columns))


def _columns(record: Walk) -> tuple[int, list[Finding]]:
    """Return how many entries have a column that differs from their bytes, and the first ones."""
    read: Callable[[], Iterator[tuple[Any, ...]]] | None = getattr(record, "columns", None)
    wrong, found = 0, []
    for row in read() if read is not None else ():
        *columns, raw = row
        value = _object(raw)
        bad = [n for n, c in zip(COLUMNS, columns, strict=True) if c != value.get(n)]
        if bad:
            wrong += 1
            if wrong <= _LIMIT:
                what = f"column {bad[0]} of entry {row[0]} is not what the entry's bytes say"
                found.append(Finding(Code.COLUMN_MISMATCH, row[0], what))
    return wrong, found


def _snapshot(record: Walk) -> AbstractContextManager[None]:
    make: Callable[[], AbstractContextManager[None]] | None = getattr(record, "snapshot", None)
    return make() if make is not None else nullcontext()


# --- proofs of one entry --------------------------------------------------------------------


def prove(record: Walk, seq: int) -> dict[str, Any]:
    """Return the proof that an entry stands in the ledger, against its newest checkpoint.

    Costs a pass over the entries. Raises BadCommand for an entry that no checkpoint covers.
    """
    with _snapshot(record):
        last = deque(record.notes(), maxlen=1)
        if not last:
            raise BadCommand("the ledger has no checkpoint yet", mend="let the fleet run once")
        point = Checkpoint.from_body(parse_note(last[0]).body)
        leaves: list[bytes] = []
        entry = b""
        for _, raw, _, _ in record.walk():
            leaves.append(leaf_hash(raw))
            if len(leaves) == seq:
                entry = raw
            if len(leaves) == point.size:
                break
    if not 1 <= seq <= len(leaves):
        raise BadCommand(
            f"entry {seq} is not in the ledger's newest checkpoint, which covers 1 to {point.size}",
            mend="name one of these",
        )
    return {
        "schema": PROOF,
        "seq": seq,
        "entry": entry.decode("utf-8"),
        "proof": [node.hex() for node in inclusion_proof(leaves, seq - 1)],
        "checkpoint": last[0],
    }


def verify_proof(proof: Mapping[str, Any], verifier_key: str) -> Checkpoint:
    """Check a proof of one entry offline; return the checkpoint it leads to. Raises ProofError."""
    try:
        if proof["schema"] != PROOF:
            raise ProofError(f"not a {PROOF}")
        point = Checkpoint.from_body(verify_note(proof["checkpoint"], verifier_key))
        raw = proof["entry"].encode("utf-8")
        path = [bytes.fromhex(node) for node in proof["proof"]]
        seq = proof["seq"]
        whole = _object(raw).get("seq") == seq and type(seq) is int
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        raise (
            error if isinstance(error, ProofError) else ProofError(f"no proof: {error}")
        ) from error
    if not whole or not verify_inclusion(leaf_hash(raw), seq - 1, point.size, path, point.root):
        raise ProofError(f"entry {seq} is not in the ledger of that checkpoint")
    return point

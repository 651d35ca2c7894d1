"""Exports: the ledger, or a segment of it, as a folder of files that anybody can verify.

`entries.jsonl` (the canonical bytes of every entry, one a line, in order), `checkpoints` and
`witness` (signed notes, each followed by an empty line), `bodies.jsonl` (salt and text of the
bodies, if asked for), `ledger.pub` (the verifier key, one line) and, written last, `export.json`.
The key and the witness of an export are copies: who distrusts the sender verifies with a key and
a witness file of their own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import orjson

from vedette.domain.base.errors import BadCommand, BadStore
from vedette.domain.base.fsync import sync
from vedette.ledger.merkle import Checkpoint, ProofError, parse_note, read_notes
from vedette.ledger.pruned_log import EMPTY_PREFIX, ArchivedPrefix

EXPORT = "vedette.export/1"

EntryRow = tuple[int, bytes, bytes | None, bytes | None]


class VerifiableLedger(Protocol):
    """A ledger to export or verify: entries in order with their bodies, and signed checkpoints.

    A store, an export or an archive with a store behind it. What only some have
    (`sized_checkpoints`, `frontier`, `archived`, `snapshot`) is asked for where it is there.
    """

    def walk(self, kinds: tuple[str, ...] | None = None, after: int = 0) -> Iterator[EntryRow]: ...

    def checkpoints(self) -> Iterator[str]: ...


def archived_part(record: VerifiableLedger) -> ArchivedPrefix:
    """Return what of a ledger to export was archived and is not at hand. Raises BadStore."""
    ask: Callable[[], bytes | None] | None = getattr(record, "archived", None)
    try:
        return ArchivedPrefix.from_bytes(ask()) if ask is not None else EMPTY_PREFIX
    except ProofError as error:
        raise BadStore(
            f"what was archived cannot be told: {error}",
            mend="restore the store from a backup",
        ) from error


def snapshot(record: VerifiableLedger) -> AbstractContextManager[None]:
    """Let all reads of a record inside, for exports and proofs, see one state of it."""
    make: Callable[[], AbstractContextManager[None]] | None = getattr(record, "snapshot", None)
    return make() if make is not None else nullcontext()


def note_size(note: str) -> int:
    """Return the size that a note in a record or an export claims; 0 for one that claims none."""
    try:
        return Checkpoint.from_body(parse_note(note).body).size
    except ProofError:
        return 0


# --- writing --------------------------------------------------------------------------------


def export(
    record: VerifiableLedger,
    folder: Path,
    *,
    verifier_key: str,
    witness: Path | None,
    bodies: bool = False,
    upto: int | None = None,
) -> dict[str, Any]:
    """Export a record into a new or empty folder; return what its `export.json` says.

    With `upto` (the size of a checkpoint) only the entries up to there: a segment. Raises
    BadCommand if the folder holds something already.
    """
    folder.mkdir(parents=True, exist_ok=True)
    if any(folder.iterdir()):
        raise BadCommand("the folder is not empty", where=str(folder), mend="name a new one")
    shown = read_witness(witness)
    last = written = 0
    with snapshot(record):
        archived = archived_part(record)
        last = archived.size
        notes = (n for n in record.checkpoints() if upto is None or note_size(n) <= upto)
        (folder / "checkpoints").write_text(_notes_text(notes), encoding="utf-8")
        with (
            (folder / "entries.jsonl").open("wb") as entries,
            (folder / "bodies.jsonl").open("wb") as body_file,
        ):
            for seq, raw, salt, data in record.walk(after=last):
                if upto is not None and seq > upto:
                    break
                entries.write(raw + b"\n")
                last = seq
                if bodies and salt is not None and data is not None:
                    body_file.write(_body_line(seq, salt, data))
                    written += 1
    if not bodies:
        (folder / "bodies.jsonl").unlink()
    (folder / "witness").write_text(_notes_text(shown), encoding="utf-8")
    (folder / "ledger.pub").write_text(verifier_key.strip() + "\n", encoding="utf-8")
    summary: dict[str, Any] = {
        "schema": EXPORT,
        "entries": last - archived.size,
        "bodies": written if bodies else None,
    }
    if archived.size:
        summary["archived"] = orjson.loads(archived.to_bytes())
    sync_folder(folder)
    (folder / "export.json").write_bytes(orjson.dumps(summary) + b"\n")
    sync_folder(folder)
    return summary


def sync_folder(folder: Path) -> None:
    """Make the files of an export's or a backup's folder durable, and their names."""
    files = sorted(path for path in folder.iterdir() if path.is_file())
    for path in (*files, folder, folder.parent):
        sync(path)


def _body_line(seq: int, salt: bytes, data: bytes) -> bytes:
    value = {"seq": seq, "salt": salt.hex(), "data": data.decode("utf-8")}
    return orjson.dumps(value) + b"\n"


def _notes_text(notes: Iterable[str]) -> str:
    return "".join(note + "\n" for note in notes)


def read_witness(path: Path | None) -> list[str]:
    """Return a witness file's notes in order, for exports and checks; none without the file."""
    if path is None or not path.exists():
        return []
    return read_notes(path.read_text(encoding="utf-8", errors="replace"))


# --- reading --------------------------------------------------------------------------------


@dataclass(slots=True)
class LedgerExport:
    """An export folder read back; offers what a store offers to verification and proofs."""

    folder: Path
    summary: Mapping[str, Any] = field(init=False)

    def __post_init__(self) -> None:
        """Raises BadStore if the folder is not a complete export."""
        path = self.folder / "export.json"
        try:
            self.summary = orjson.loads(path.read_bytes())
            if self.summary["schema"] != EXPORT:
                raise ValueError(f"it says {self.summary['schema']!r}")
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise BadStore(
                f"not a complete {EXPORT}: {error}",
                where=str(path),
                mend="export the ledger again",
            ) from error
        for name in ("entries.jsonl", "checkpoints"):
            if not (self.folder / name).is_file():
                raise BadStore(
                    f"a file of this {EXPORT} is missing",
                    where=str(self.folder / name),
                    mend="export the ledger again",
                )

    @property
    def key(self) -> str:
        """Return the verifier key that came with the export. Raises BadStore without one."""
        path = self.folder / "ledger.pub"
        try:
            return path.read_text(encoding="utf-8").strip()
        except (OSError, UnicodeDecodeError) as error:
            mend = "name a copy of the fleet's ledger.pub (--key FILE)"
            raise BadStore("the verifier key cannot be read", where=str(path), mend=mend) from error

    @property
    def witness(self) -> Path:
        """Return the witness file that came with the export."""
        return self.folder / "witness"

    @property
    def has_bodies(self) -> bool:
        """Say whether the export holds bodies."""
        return (self.folder / "bodies.jsonl").exists()

    def archived(self) -> bytes | None:
        """Return what lies before the export's first entry, as `Archived` reads it."""
        archived = self.summary.get("archived")
        return orjson.dumps(archived) if archived is not None else None

    def walk(self, kinds: tuple[str, ...] | None = None, after: int = 0) -> Iterator[EntryRow]:
        """Yield (seq, bytes, salt, body); the seq is what the line says, as far as it says one."""
        bodies = self._bodies()
        body = next(bodies, None)
        last = archived_part(self).size
        with (self.folder / "entries.jsonl").open("rb") as lines:
            for line in lines:
                raw = line.removesuffix(b"\n")
                value = entry_object(raw)
                number = value.get("seq")
                seq = last = number if type(number) is int else last + 1
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
                value = entry_object(line)
                if type(value.get("seq")) is not int:
                    continue  # its entry will be found to lack its body
                try:
                    yield value["seq"], bytes.fromhex(value["salt"]), value["data"].encode()
                except (KeyError, TypeError, ValueError, AttributeError):
                    continue  # the same

    def checkpoints(self) -> Iterator[str]:
        """Yield the signed checkpoints of the store in order."""
        yield from read_witness(self.folder / "checkpoints")


def entry_object(raw: bytes) -> dict[str, Any]:
    """Return an exported or recorded entry's JSON object; an empty one if its bytes are none."""
    try:
        value = orjson.loads(raw)
    except ValueError:
        return {}
    return value if isinstance(value, dict) else {}

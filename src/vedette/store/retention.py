"""Upkeep of a store: rotating the key, letting archived entries go, expiring content, restoring.

The functions write inside the writer's transaction; `StoreMaintenance` hands them to the writer.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Iterator, Sequence
from itertools import islice
from typing import Any

import orjson
from msgspec import Struct
from msgspec.structs import replace

from vedette.domain.base import machine
from vedette.domain.base.errors import BadCommand
from vedette.domain.entry import Draft
from vedette.domain.erasure import ErasureResult
from vedette.domain.memory_state import PROPOSED, LedgerMemory
from vedette.domain.policy_wasm import META_PREFIX
from vedette.ledger.key_history import ROTATED
from vedette.ledger.merkle import Checkpoint, ProofError, SigningKey, parse_note
from vedette.ledger.pruned_log import ArchivedPrefix
from vedette.store import read_archived_memories as kept
from vedette.store.command_queue import CommandQueue
from vedette.store.dialect import Database, Row
from vedette.store.erasure import (
    accepted_positions,
    clear_subjects,
    erase_memories,
    event_positions,
)
from vedette.store.group_commit import CommitHooks, GroupWriter
from vedette.store.ledger_writer import LedgerWriter
from vedette.store.loss_detection import Loss, record_loss
from vedette.store.meta import ARCHIVED, KEY, RESTORED, read_meta, write_meta
from vedette.store.read_ledger import LedgerReader
from vedette.store.read_policy import PolicyReader
from vedette.store.readmodel.entry_batches import EntryBatches
from vedette.store.readmodel.tables import RowFold, write_base
from vedette.store.schema import in_list
from vedette.store.segment import MAX_ENTRIES
from vedette.store.states import find_unkept
from vedette.store.stored_entries import EntryReader, delete_segments, erase_content, kind_of
from vedette.store.write_parts import WriteParts

# How much content, and how many segments, are deleted in one transaction: the line's commits wait
# for it.
CHUNK = 1000
SEGMENTS = 64
# Of so many bundles an archiving says on which Wasm they were published with: 13 KB of one entry.
BUNDLES = 100

_OPEN = "SELECT position FROM run WHERE position IN ({0}) AND state IN ('ready', 'waiting')"


class BaseRows(Struct, frozen=True):
    """The read model's rows as the entries up to `reached` leave them, to be kept with the store.

    `before` is up to where rows were kept when these were made of them.
    """

    before: int
    reached: int
    rows: Sequence[Row]


def make_base_rows(database: Database, size: int, stop: machine.Event) -> BaseRows:
    """Fold what is not archived yet of the entries up to `size` into the rows that are kept.

    Ends early, with rows that nobody may keep, once `stop` is set.
    """
    fold = RowFold(EntryBatches(database))
    before = fold.reached
    for _ in fold.slices(size):
        if stop.is_set():
            break
    return BaseRows(before, fold.reached, list(fold.values().values()))


def rotate_key(
    database: Database, ledger: LedgerWriter, draft: Draft, key: SigningKey, line: str, at_us: int
) -> int:
    """Write the entry that hands the store over to `key`, from the next group; return its seq."""
    placed = Draft(ROTATED, {**draft.fields, "key": line}, body=draft.body)
    seq = ledger.append([placed], None, 0, at_us)
    ledger.rotate_key(seq, key)
    write_meta(database, KEY, line)
    return seq


def record_archive(
    database: Database,
    ledger: LedgerWriter,
    archived: ArchivedPrefix,
    draft: Draft,
    at_us: int,
    base: BaseRows,
) -> int:
    """Write the entry that a store's beginning is archived, and keep what goes on without it.

    What memories are made of is copied in the same commit (`vedette.store.read_archived_memories`).
    So is what lists show of these entries (`base`): it could not be made again. The entry says
    which Wasm the last bundles were published with, and what restores have lost: so it stays said
    in what the ledger signs, though the entries go that said it first.
    Raises BadCommand unless a checkpoint of the store vouches for exactly that beginning, and no
    run needs any of it (a dead letter may have been taken up again since it was archived), or if
    somebody else archived since `base` was made.
    """
    refuse_open_run(database, archived)
    if EntryBatches(database).base_seq() != base.before:
        raise BadCommand(
            "entries were archived meanwhile by somebody else",
            mend="archive again; no entry was deleted",
        )
    kept.keep_entries(database, archived.size)
    rows = database.rows("SELECT note FROM checkpoint WHERE size=?", (archived.size,))
    try:
        root = archived.frontier().root()
    except ProofError:
        root = b""
    if not rows or Checkpoint.from_body(parse_note(rows[0][0]).body).root != root:
        raise BadCommand(
            f"entries 1 to {archived.size} of the archive are not those of this store",
            mend="archive again; nothing was deleted",
        )
    if next(EntryReader(database).content(0, archived.size), None) is not None:
        raise BadCommand(
            f"there is content of entries 1 to {archived.size} that was not erased",
            mend="archive again; no entry was deleted",
        )
    fields = {
        **draft.fields,
        "size": archived.size,
        "root": root.hex(),
        "wasm": _published_wasm(PolicyReader(database)) or None,
        "restores": _read_losses(LedgerReader(database), archived.size) or None,
    }
    seq = ledger.append([replace(draft, fields=fields)], None, 0, at_us)
    write_meta(database, ARCHIVED, archived.to_bytes().decode())
    if base.reached > base.before:
        write_base(database, base.reached, base.rows)
    return seq


def _published_wasm(policy: PolicyReader) -> dict[str, str]:
    """Return which Wasm the bundles that were live last were published with."""
    digests = dict.fromkeys(digest for _, digest, _ in policy.revisions())
    found = {digest: policy.published_wasm(digest) for digest in islice(digests, BUNDLES)}
    return {digest: wasm for digest, wasm in found.items() if wasm is not None}


def _read_losses(ledger: LedgerReader, size: int) -> list[dict[str, Any]]:
    """Return what the entries up to `size`, and those archived before, tell of lost history."""
    losses: dict[int, dict[str, Any]] = {}
    for seq, raw, _, _ in ledger.walk(("store.restored", "ledger.archived")):
        entry = orjson.loads(raw)
        if entry["kind"] == "ledger.archived":
            losses |= {one["seq"]: one for one in entry.get("restores") or ()}
        elif seq <= size:
            losses[seq] = {name: entry.get(name) for name in ("seq", "size", "heads")}
    return [losses[seq] for seq in sorted(losses)]


def refuse_open_run(database: Database, archived: ArchivedPrefix) -> None:
    """Raise BadCommand if a store's archived part holds entries of a run that has not ended."""
    open_from = LedgerReader(database).first_open_entry()
    if open_from is not None and open_from <= archived.size:
        raise BadCommand(
            f"the run of entry {open_from} is open again and needs entries of this archive",
            mend="archive again; no entry was deleted",
        )


def delete_archived_rows(database: Database, size: int, limit: int) -> int:
    """Delete up to `limit` segments of archived entries; return how many rows went.

    With the last of them goes the Wasm that no entry names any more.
    """
    gone = delete_segments(database, size, limit)
    if EntryReader(database).first_seq() > size:
        _drop_wasm(database)
    # The checkpoint at the end of the archived part stays: it vouches for what is kept of it.
    return gone + database.execute("DELETE FROM checkpoint WHERE size<?", (size,))


def _drop_wasm(database: Database) -> None:
    """Delete what was compiled for bundles whose publication is not told of any more."""
    named: set[object] = set()
    for entry in EntryReader(database, content=False).rare(["policy.published", "ledger.archived"]):
        wasm = orjson.loads(entry.raw).get("wasm")
        named |= set(wasm.values()) if isinstance(wasm, dict) else {wasm}
    kept = database.rows("SELECT name FROM meta WHERE name LIKE ?", (f"{META_PREFIX}%",))
    unnamed = [row for row in kept if row[0].removeprefix(META_PREFIX) not in named]
    database.execute_many("DELETE FROM meta WHERE name=?", unnamed)


def expire_bodies(
    database: Database, ledger: LedgerWriter, rows: Sequence[Row], stateless: Collection[str],
    draft: Draft, at_us: int,
) -> ErasureResult:  # fmt: skip
    """Delete the rows of bodies that were found by `expiring`, and say so in the ledger.

    A run may have been taken up again since, and content erased: what of it is still there, and
    still of closed runs, is deleted and named; not that of an event that a judge has observed and
    no kept state holds, unless its agent is `stateless`. With nothing left nothing is written.
    """
    ends = (rows[0][0] - 1, rows[-1][0]) if rows else (0, 0)
    still = {row[0] for row in _closed_content(database, *ends)}
    unkept = {run.position for run in find_unkept(database, accepted_positions(rows), stateless)}
    rows = [row for row in rows if row[0] in still and row[2] not in unkept]
    if not rows:
        return ErasureResult((), ())
    erase_content(database, [row[0] for row in rows])
    abouts = event_positions(rows)
    left = {one.about for one in EntryReader(database).of_events(abouts) if one.data is not None}
    database.execute_many(
        "UPDATE action SET record=NULL, answer=NULL WHERE position=?",
        [(about,) for about in abouts if about not in left],
    )
    clear_subjects(database, [row[0] for row in rows if row[0] == row[2]])
    digests = sorted(str(orjson.loads(row[1])["body"]) for row in rows)
    ledger.append([replace(draft, fields={**draft.fields, "erased": digests})], None, 0, at_us)
    return ErasureResult(tuple(digests), ())


def _closed_content(database: Database, after: int, upto: int) -> Iterator[Row]:
    """Yield (seq, entry bytes, about) of content between two seqs that no open run needs."""
    found = iter(EntryReader(database).content(after, upto))
    while part := list(islice(found, MAX_ENTRIES)):
        abouts = sorted({one.about for one in part if one.about is not None})
        marks, values = in_list(abouts or [0])
        open = {int(at) for (at,) in database.rows(_OPEN.format(marks), values)}
        for one in part:
            if one.about not in open:
                yield one.seq, one.raw, one.about


class StoreMaintenance:
    """Fits `vedette.operations.maintenance.MaintenanceStore`; what else a store's upkeep needs."""

    def __init__(
        self, reading: Database, commands: CommandQueue, writer: GroupWriter, parts: WriteParts,
        hooks: CommitHooks, open_reader: Callable[[], Database],
    ) -> None:  # fmt: skip
        """Take what it works with; `open_reader` opens one more connection that reads."""
        self._reading = reading
        self._commands = commands
        self._writer = writer
        self._parts = parts
        self._hooks = hooks
        self._open_reader = open_reader

    async def rotate(
        self, key: SigningKey, line: str, draft: Draft, *, command: str | None = None
    ) -> int:
        parts = self._parts
        return await self._commands.submit(
            command,
            lambda: rotate_key(parts.database, parts.ledger, draft, key, line, parts.now_us()),
        )

    async def record_archive(
        self, archived: ArchivedPrefix, draft: Draft, *, command: str | None = None
    ) -> int:
        parts = self._parts
        # Off the loop: it may be all that the store has, and the line goes on.
        stop = machine.Event()
        try:
            base = await asyncio.to_thread(self._make_base_rows, archived.size, stop)
        finally:
            stop.set()  # whoever ends the run does not wait for it
        return await self._commands.submit(
            command,
            lambda: record_archive(
                parts.database, parts.ledger, archived, draft, parts.now_us(), base
            ),
        )

    def _make_base_rows(self, size: int, stop: machine.Event) -> BaseRows:
        database = self._open_reader()
        try:
            return make_base_rows(database, size, stop)
        finally:
            database.close()

    async def trim(self) -> int:
        size = ArchivedPrefix.from_bytes(LedgerReader(self._reading).archived()).size
        if not size or EntryReader(self._reading).first_seq() > size:
            return 0
        return await self._writer.submit(
            lambda: delete_archived_rows(self._parts.database, size, SEGMENTS)
        )

    def expiring_bodies(self, upto: int, *, after: int = 0) -> list[Row]:
        found = _closed_content(self._reading, after, upto)
        return list(islice((row for row in found if kind_of(row[1]) != PROPOSED), CHUNK))

    def refuse_open(self, archived: ArchivedPrefix) -> None:
        refuse_open_run(self._reading, archived)

    async def expire(
        self, rows: Sequence[Row], draft: Draft, *, stateless: Collection[str] = ()
    ) -> ErasureResult:
        parts = self._parts

        def work() -> ErasureResult:
            self._hooks.on_erasure()
            return expire_bodies(
                parts.database, parts.ledger, rows, stateless, draft, parts.now_us()
            )

        return await self._writer.submit(work)

    async def forget_memories(
        self, old: Sequence[LedgerMemory], upto: int, draft: Draft
    ) -> ErasureResult:
        parts = self._parts

        def work() -> ErasureResult:
            self._hooks.on_erasure()
            return erase_memories(parts.database, parts.ledger, old, upto, draft, parts.now_us())

        return await self._writer.submit(work)

    async def record_restore(self, loss: Loss, *, actor: str, reason: str) -> int:
        """Record that this store took the place of a lost one, and stop; return the entry's seq."""
        return await self._writer.submit(
            lambda: record_loss(self._parts, loss, actor=actor, reason=reason)
        )

    async def close_loss_window(self, draft: Draft, *, command: str | None = None) -> int:
        parts, ledger = self._parts, LedgerReader(self._reading)

        def work() -> int:
            doubt = ledger.loss_window()
            if doubt is None or doubt.until:
                raise BadCommand("there is no doubt to end", mend="see `vedette status`")
            seq = parts.ledger.append([draft], None, 0, parts.now_us())
            kept = {**orjson.loads(read_meta(self._reading, RESTORED) or "{}"), "until": seq}
            write_meta(parts.database, RESTORED, orjson.dumps(kept).decode())
            return seq

        return await self._commands.submit(command, work)

"""Memory banks in SQLite: a projection of reviewed files and of committed steps.

The file is apart from the ledger and holds nothing that could not be made again: revisions come
from the reviewed files, candidates and what people made of them from the ledger. So it is written
with synchronous=NORMAL: a power cut may lose the last transactions, never damage the file, and the
next start brings it up to date.

Ranking is BM25 over plain postings (k1 = 1.2, b = 0.75; idf and mean length within one scope, so
that no scope learns anything of another). A memory that is not active has no postings at all.
A scope that was asked for is held in memory (`scope_index`) for as long as all that are held have
`MAX_POSTINGS` together; one more is ranked in the file, by statements that are meant to run on
PostgreSQL too: no FTS5, no SQLite functions.
"""

from __future__ import annotations

import json
import math
import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import apsw

from vedette.domain.base import failpoint, machine
from vedette.domain.base.disk_errors import convert_disk_errors, to_disk_error
from vedette.domain.base.errors import BadStore, StoreFailed
from vedette.domain.base.fsync import sync
from vedette.domain.base.state_folder import create_file
from vedette.domain.memory import BankPlan, Memory
from vedette.store.banks.candidates import CandidateStore, is_older, migrate
from vedette.store.banks.scope_index import ScopeIndex
from vedette.store.banks.statements import COUNT, FIELDS, NOT_EXPIRED, SCHEMA, ranking_query
from vedette.store.banks.terms import MAX_TERMS, indexed_text, query_terms, stemmer_version, terms

_FORMAT = 2
# What all scopes that are held in memory may come to: 60 to 100 MB.
MAX_POSTINGS = 250_000
_SIZES = (4, 8, 16, 32, MAX_TERMS)  # queries are padded to these, so few statements are prepared
_MOVE_AWAY = "move the file away; it is built again from memory/ and what people decided"


class _FileLock:
    """The lock of the file: what a disk refuses to whoever holds it comes out as StoreFailed."""

    __slots__ = ("_lock", "_where")

    def __init__(self, where: Path | str) -> None:
        self._lock, self._where = machine.RLock(), where

    def __enter__(self) -> None:
        self._lock.acquire()

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        self._lock.release()
        at = error
        while isinstance(at, Exception):
            if isinstance(at, apsw.CorruptError):
                what, mend = f"is damaged: {at}", f"stop the fleet and {_MOVE_AWAY}"
                raise StoreFailed(
                    what, where=str(self._where), mend=mend, code="disk-failed"
                ) from error
            if (told := to_disk_error(at, self._where)) is not None:
                raise told from error
            # What the disk refused ended the transaction, and a rollback had nothing left to do.
            at = at.__context__


class SqliteBank(CandidateStore):
    """The memory banks as `ports.BankStore`: one SQLite connection behind a lock, for any thread.

    Every method raises StoreFailed where the disk refuses something.
    """

    def __init__(self, path: Path | str, *, max_postings: int = MAX_POSTINGS) -> None:
        """Open or create the file (`:memory:` for tests).

        Raises BadStore for another format, StoreFailed where the disk refused something.
        """
        self._lock = _FileLock(path)
        self._max_postings = max_postings
        # By bank and scope; None for one that is ranked in the file, as it found no room.
        self._indexes: dict[tuple[str, str], ScopeIndex | None] = {}
        self._changed: set[tuple[str, str]] = set()
        self._versions: dict[str, int] = {}
        self._plans: dict[str, BankPlan] = {}
        # What a person should know of how it was opened.
        self.remarks: tuple[str, ...] = ()
        try:
            with convert_disk_errors(path):
                self._open(path)
        except apsw.Error as error:
            told = f"is no bank store: {error}"
            raise BadStore(told, where=str(path), mend=_MOVE_AWAY) from error

    def _open(self, path: Path | str) -> None:
        if isinstance(path, Path):
            create_file(path)
        self._db = apsw.Connection(str(path))
        try:
            self._db.set_busy_timeout(5000)
            self._db.execute("PRAGMA journal_mode = WAL; PRAGMA synchronous = NORMAL")
            self._db.execute("PRAGMA secure_delete = ON")
            _ensure_ln(self._db)
            if isinstance(path, Path) and is_older(self._db):
                self.remarks = (_back_up(self._db, path),)
            with self._db:
                self._db.execute(SCHEMA)
                self._check_format()
        except BaseException:
            self._db.close()
            raise

    @classmethod
    def open_copy(cls, path: Path) -> SqliteBank:
        """Return a bank in memory that begins as a file is, if there is one; writes nothing."""
        bank = cls(":memory:")
        if path.exists():
            source = apsw.Connection(str(path), flags=apsw.SQLITE_OPEN_READONLY)
            try:
                with bank._db.backup("main", source, "main") as copy:
                    copy.step()
            finally:
                source.close()
            with bank._db:
                bank._check_format()
        return bank

    def close(self) -> None:
        """Close the file."""
        with self._lock:
            self._db.close()

    # --- reading -----------------------------------------------------------------------------

    def version(self, bank: str) -> int:
        """Return the bank's version: it grows with every change; 0 for a bank never loaded.

        It is asked before every recall and kept in memory: the file has one writer, this object.
        """
        known = self._versions.get(bank)
        if known is None:
            with self._lock:
                found = self._db.execute("SELECT version FROM bank WHERE name = ?", (bank,))
                row = found.fetchone()
            known = self._versions[bank] = int(row[0]) if row else 0
        return known

    def recall(
        self, bank: str, scope: str, topics: Sequence[str], text: str, now_us: int, limit: int
    ) -> list[Memory]:
        """Return the active memories of the scope that best match `text`; ties by id.

        With `topics` only memories that have one of them. The first 60 distinct terms of `text`
        count; a text without any word matches nothing.
        """
        wanted = query_terms(text)
        if not wanted or limit < 1:
            return []
        with self._lock:
            index = self._find_index(bank, scope)
            if index is not None:
                return index.search(wanted, topics, now_us, limit)
        size = next(size for size in _SIZES if size >= len(wanted))
        wanted += wanted[-1:] * (size - len(wanted))
        values: dict[str, Any] = {"b": bank, "s": scope, "now": now_us, "limit": limit}
        values |= {f"t{index}": term for index, term in enumerate(wanted)}
        values |= {f"u{index}": topic for index, topic in enumerate(topics)}
        with self._lock:
            count, mean = self._db.execute(COUNT, values).fetchall()[0]
            if not count:
                return []
            values |= {"n": count, "mean": mean}
            found = list(self._db.execute(ranking_query(size, len(topics)), values))
        return [_memory(row) for row in found]

    @property
    def held_postings(self) -> int:
        """Return how many postings of memories are held in memory."""
        return sum(index.size for index in list(self._indexes.values()) if index is not None)

    @property
    def scopes_in_file(self) -> int:
        """Return how many of the scopes that were asked for are ranked in the file."""
        return sum(index is None for index in list(self._indexes.values()))

    def _find_index(self, bank: str, scope: str) -> ScopeIndex | None:
        """Return the index of a scope, brought up to what the file holds; None if it has none."""
        for place in [place for place in self._changed if place[0] == bank]:
            self._take_up(*place)
        if (bank, scope) not in self._indexes:
            self._indexes[bank, scope] = self._build_index(bank, scope)
        return self._indexes[bank, scope]

    def _build_index(self, bank: str, scope: str) -> ScopeIndex | None:
        place = bank, scope
        counted: Any = self._db.execute(
            "SELECT COUNT(*) FROM post WHERE bank = ? AND scope = ?", place
        ).fetchone()
        if self.held_postings + counted[0] > self._max_postings:
            return None
        counts: dict[str, dict[str, int]] = {}
        postings = "SELECT memory_id, term, tf FROM post WHERE bank = ? AND scope = ?"
        for id, term, tf in self._db.execute(postings, place):
            counts.setdefault(id, {})[sys.intern(term)] = tf
        index = ScopeIndex()
        memories = f"SELECT {FIELDS} FROM memory WHERE bank = ? AND scope = ? AND state = 'active'"
        for row in self._db.execute(memories, place):
            memory = _memory(row)
            index.put(memory, counts.get(memory.id, {}))
        return index

    def _take_up(self, bank: str, id: str) -> None:
        """Bring the index of its scope to what the file holds of a memory that was changed."""
        held = self._find_memory(bank, id)
        index = None if held is None else self._indexes.get((bank, held[0].scope))
        if held is not None and held[1] == "active" and index is not None:
            postings = "SELECT term, tf FROM post WHERE bank = ? AND memory_id = ?"
            rows = self._db.execute(postings, (bank, id))
            index.put(held[0], {sys.intern(term): tf for term, tf in rows})
            if self.held_postings > self._max_postings:
                self._indexes[bank, held[0].scope] = None
        self._changed.discard((bank, id))

    def _mark_changed(self, bank: str, id: str) -> None:
        """Let go of a memory that is being changed; the next recall takes up what then stands."""
        for place, index in list(self._indexes.items()):
            if place[0] != bank:
                continue
            if index is None:
                del self._indexes[place]  # it may find room now
            else:
                index.drop(id)
                self._changed.add((bank, id))

    def lessons(self, bank: str, scope: str, now_us: int) -> list[Memory]:
        """Return every active memory of a scope, by id."""
        statement = (
            f"SELECT {FIELDS} FROM memory"
            f" WHERE bank = :b AND scope = :s AND state = 'active' AND {NOT_EXPIRED} ORDER BY id"
        )
        with self._lock:
            rows = list(self._db.execute(statement, {"b": bank, "s": scope, "now": now_us}))
        return [_memory(row) for row in rows]

    def read_revision(self, bank: str, id: str, revision: int) -> Memory | None:
        """Return a memory as it was at a revision; None if there was none or it was erased."""
        with self._lock:
            row = self._db.execute(
                "SELECT b.body FROM memory_rev r JOIN memory_body b"
                " ON b.bank = r.bank AND b.id = r.id AND b.digest = r.digest"
                " WHERE r.bank = ? AND r.id = ? AND r.revision = ? AND r.state = 'active'",
                (bank, id, revision),
            ).fetchone()
        if row is None:
            return None
        return _memory([{**json.loads(row[0]), "revision": revision}[k] for k in _names()])

    def revisions(self, bank: str, id: str) -> list[tuple[int, str, str, int]]:
        """Return (revision, state, digest, bank version) of each change, oldest first."""
        statement = (
            "SELECT revision, state, digest, bank_version FROM memory_rev"
            " WHERE bank = ? AND id = ? ORDER BY seq"
        )
        with self._lock:
            return [(r[0], r[1], r[2], r[3]) for r in self._db.execute(statement, (bank, id))]

    # --- writing -----------------------------------------------------------------------------

    def load(self, plans: Sequence[BankPlan]) -> dict[str, int]:
        """Bring the banks to the reviewed files in one transaction; return each bank's version.

        A new or changed memory gets its next revision, a removed one is retired; a bank that is
        no longer there loses all its reviewed memories. The version grows once per changed bank.
        What a person promoted (trust `learned`) stands in no file and is left alone.
        """
        versions = {}
        failpoint.hit_failpoint("bank:before")
        with self._lock, self._db:
            known = list(self._db.execute("SELECT name FROM bank"))
            for plan in plans:
                versions[plan.name] = self._load(plan.name, plan.memories, plan.digest)
                self._update_expiry(plan)
            for (name,) in known:
                if name not in versions:
                    versions[name] = self._load(name, (), "")
        failpoint.hit_failpoint("bank:after")
        self._versions = dict(versions)
        self._plans = {plan.name: plan for plan in plans}
        return versions

    def _load(self, bank: str, memories: Sequence[Memory], digest: str) -> int:
        row = self._db.execute("SELECT version, digest FROM bank WHERE name = ?", (bank,))
        before = row.fetchone() or (0, None)
        if before[1] == digest:
            return int(before[0])
        version = int(before[0]) + 1
        self._db.execute(
            "INSERT INTO bank VALUES (?,?,?) ON CONFLICT (name)"
            " DO UPDATE SET version = excluded.version, digest = excluded.digest",
            (bank, version, digest),
        )
        held = {
            row[0]: (row[1], row[2], row[3])
            for row in self._db.execute(
                "SELECT id, revision, state, digest FROM memory"
                " WHERE bank = ? AND trust = 'reviewed'",
                (bank,),
            )
        }
        for memory in memories:
            revision, state, present = held.pop(memory.id, (0, "", ""))
            wanted = "off" if self.is_hidden(bank, memory.id) else "active"
            if (state, present) == (wanted, memory.digest):
                continue
            self._activate(memory, revision + 1, version)
            if wanted == "off":
                self._retire(bank, memory.id, revision + 2, memory.digest, version, "off")
        for id, (revision, state, present) in held.items():
            if state != "retired":
                self._retire(bank, id, revision + 1, present, version)
        return version

    def _activate(self, memory: Memory, revision: int, version: int) -> None:
        bank, id = memory.bank, memory.id
        topics = json.dumps(memory.topics)
        counts = Counter(terms(indexed_text(memory)))
        length = sum(counts.values())
        row = (
            bank, id, revision, "active", memory.scope, memory.kind, topics, memory.text,
            memory.digest, memory.reviewed_by, memory.reviewed_on, memory.expires_us,
            memory.label, memory.trust, length,
        )  # fmt: skip
        self._mark_changed(bank, id)
        self._unindex(bank, id)
        marks = ",".join("?" * len(row))
        self._db.execute(f"INSERT OR REPLACE INTO memory VALUES ({marks})", row)
        self._db.executemany(
            "INSERT INTO memory_topic VALUES (?,?,?)",
            [(bank, id, topic) for topic in dict.fromkeys(memory.topics)],
        )
        self._index(bank, id, memory.scope, memory.expires_us, counts)
        body = {name: getattr(memory, name) for name in _names() if name != "revision"}
        body["topics"] = topics
        self._db.execute(
            "INSERT INTO memory_body VALUES (?,?,?,?) ON CONFLICT DO NOTHING",
            (bank, id, memory.digest, json.dumps(body, ensure_ascii=False)),
        )
        self._record(bank, id, revision, "active", memory.digest, version)

    def _retire(
        self, bank: str, id: str, revision: int, digest: str, version: int, state: str = "retired"
    ) -> None:
        """Keep a memory from recall: `retired` if its file is gone, else `off`."""
        self._mark_changed(bank, id)
        self._unindex(bank, id)
        self._db.execute(
            "UPDATE memory SET state = ?, revision = ? WHERE bank = ? AND id = ?",
            (state, revision, bank, id),
        )
        self._record(bank, id, revision, state, digest, version)

    def _find_memory(self, bank: str, id: str) -> tuple[Memory, str] | None:
        """Return a memory as it is kept, and its state; None if there is none."""
        statement = f"SELECT {FIELDS}, state FROM memory WHERE bank = ? AND id = ?"
        row: Any = self._db.execute(statement, (bank, id)).fetchone()
        return None if row is None else (_memory(row[:-1]), row[-1])

    def _record(
        self, bank: str, id: str, revision: int, state: str, digest: str, version: int
    ) -> None:
        self._db.execute(
            "INSERT INTO memory_rev (bank, id, revision, state, digest, bank_version)"
            " VALUES (?,?,?,?,?,?)",
            (bank, id, revision, state, digest, version),
        )

    def _index(self, bank: str, id: str, scope: str, expires_us: int, counts: Counter[str]) -> None:
        length = sum(counts.values())
        self._db.executemany(
            "INSERT INTO post VALUES (?,?,?,?,?,?,?)",
            [(bank, scope, term, id, tf, length, expires_us) for term, tf in counts.items()],
        )

    def _unindex(self, bank: str, id: str) -> None:
        for table in ("post", "memory_topic"):
            statement = f"DELETE FROM {table} WHERE bank = ? AND memory_id = ?"
            self._db.execute(statement, (bank, id))

    def _check_format(self) -> None:
        """Refuse another format; list every memory again if the stemmer is another one."""
        rows: Any = self._db.execute("SELECT name, value FROM meta")
        held: dict[str, str] = dict(rows)
        if held.get("format") in ("1", "2"):
            migrate(self._db)
        elif held.get("format", str(_FORMAT)) != str(_FORMAT):
            raise BadStore(
                f"a newer version of vedette wrote this memory bank (format {held['format']})",
                code="newer-store", mend="use that version; the bank is whole",
            )  # fmt: skip
        stemmer = stemmer_version()
        if held.get("stemmer", stemmer) != stemmer:
            self._db.execute("DELETE FROM post")
            select = f"SELECT {FIELDS} FROM memory WHERE state = 'active'"
            for memory in [_memory(row) for row in self._db.execute(select)]:
                counts = Counter(terms(indexed_text(memory)))
                self._index(memory.bank, memory.id, memory.scope, memory.expires_us, counts)
        self._db.executemany(
            "INSERT OR REPLACE INTO meta VALUES (?,?)",
            [("format", str(_FORMAT)), ("stemmer", stemmer)],
        )


def _names() -> list[str]:
    return FIELDS.split(", ")


def _memory(row: Sequence[Any]) -> Memory:
    values = dict(zip(_names(), row, strict=True))
    return Memory(**{**values, "topics": tuple(json.loads(values["topics"]))})


def _ensure_ln(db: apsw.Connection) -> None:
    """SQLite may be built without its mathematical functions."""

    def ln(*values: Any) -> float:
        return math.log(values[0])

    try:
        db.execute("SELECT ln(1.0)").fetchone()
    except apsw.SQLError:
        db.create_scalar_function("ln", ln, 1, deterministic=True)


def _back_up(db: apsw.Connection, path: Path) -> str:
    """Copy a bank as it is before it is changed; return that in words. Raises apsw.Error."""
    kept = path.parent / "before" / path.name
    kept.parent.mkdir(mode=0o700, exist_ok=True)
    kept.unlink(missing_ok=True)
    db.execute("VACUUM INTO ?", (str(kept),))
    kept.chmod(0o600)
    sync(kept)
    return f"the memory bank was brought to this version's form; as it was it lies in {kept}"

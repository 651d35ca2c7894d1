"""The curated part of a memory bank: what people promoted, rejected and took back.

Where a memory stands is what the ledger says; this brings the tables to it. A memory is recalled
if it stands in a reviewed file or was promoted, nobody took it back, and no memory that is recalled
replaces it.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Sequence
from typing import Any

import apsw

from vedette.domain.base import failpoint
from vedette.domain.base.canonical import canonical_json, sha256_hex
from vedette.domain.base.clock import MICROS, iso
from vedette.domain.base.errors import Permanent
from vedette.domain.memory import BankPlan, Candidate, Memory, find_candidate_fault
from vedette.domain.memory_state import LedgerMemory

_COLUMNS = "id, bank, scope, text, topics, agent, run, event, kind, label, evidence, replaces"
_MIGRATION = {
    "kind": "TEXT NOT NULL DEFAULT 'fact'",
    "label": "TEXT",
    "evidence": "TEXT NOT NULL DEFAULT '[]'",
    "replaces": "TEXT",
    "decided_by": "TEXT NOT NULL DEFAULT ''",
    "decided_us": "INTEGER NOT NULL DEFAULT 0",
    "promoted_us": "INTEGER NOT NULL DEFAULT 0",
}
_DAY_US = 86_400 * MICROS


class CandidateStore:
    """The candidates' part of `SqliteBank`, which has the connection, the lock and the postings."""

    _db: apsw.Connection
    _lock: Any
    _versions: dict[str, int]
    _plans: dict[str, BankPlan]

    def version(self, bank: str) -> int:
        raise NotImplementedError

    def _activate(self, memory: Memory, revision: int, version: int) -> None:
        raise NotImplementedError

    def _retire(
        self, bank: str, id: str, revision: int, digest: str, version: int, state: str = "retired"
    ) -> None:
        raise NotImplementedError

    def _find_memory(self, bank: str, id: str) -> tuple[Memory, str] | None:
        raise NotImplementedError

    def _mark_changed(self, bank: str, id: str) -> None:
        raise NotImplementedError

    # --- candidates -------------------------------------------------------------------------

    def find_refusal(self, bank: str, scope: str, agent: str | None) -> str:
        """Say why a bank takes no candidate of an agent (None: a person's) for a scope; "" if so.

        What bank.yaml says of its writers, as it was loaded.
        """
        if not self.version(bank):
            return f"there is no bank {bank!r} to propose to"
        plan = self._plans.get(bank)
        writers = {} if plan is None else plan.writers
        if scope not in writers:
            return f"bank {bank!r} has no scope {scope!r}"
        if agent is not None and agent not in writers[scope]:
            return f"bank {bank!r} does not list {agent!r} as writer of {scope!r}"
        return ""

    def candidates(self, bank: str) -> list[Candidate]:
        """Return what was proposed for a bank and nobody has decided, oldest first."""
        statement = (
            f"SELECT {_COLUMNS} FROM candidate"
            " WHERE bank = ? AND state = 'candidate' ORDER BY proposed_us, id"
        )
        with self._lock:
            return [_candidate(row) for row in list(self._db.execute(statement, (bank,)))]

    def find_fault(self, of: Candidate) -> str:
        """Say why what is proposed for a scope that takes it is not kept as it is; "" if it is."""
        why = find_candidate_fault(of, self.topics(of.bank))
        if why or of.replaces is None or self._has_memory(of.bank, of.scope, of.replaces):
            return why
        return f"{of.bank}/{of.scope} has no memory {str(of.replaces)[:40]!r} to replace"

    def _has_memory(self, bank: str, scope: str, id: object) -> bool:
        if not isinstance(id, str):
            return False
        with self._lock:
            return any(
                self._db.execute(
                    f"SELECT 1 FROM {table} WHERE bank = ? AND scope = ? AND id = ?",
                    (bank, scope, id),
                ).fetchone()
                for table in ("memory", "candidate")
            )

    def retention_us(self, bank: str) -> int:
        """Return for how many microseconds a bank keeps what was learned; 0 for an unknown one."""
        plan = self._plans.get(bank)
        return 0 if plan is None else plan.retention_days * _DAY_US

    def topics(self, bank: str) -> tuple[str, ...]:
        """Return the topics that bank.yaml names; a memory without one is not recalled by topic."""
        plan = self._plans.get(bank)
        return () if plan is None else plan.topics

    def propose(self, candidate: Candidate, now_us: int) -> None:
        """Keep a candidate. It is in no index; the same one proposed twice is one.

        Raises Permanent if the bank was never loaded.
        """
        if not self.version(candidate.bank):
            raise Permanent(f"there is no bank {candidate.bank!r} to propose to")
        of = candidate
        values = (
            of.key, of.bank, of.scope, of.text, json.dumps(of.topics), of.agent, of.run, of.event,
            "candidate", now_us, of.kind, of.label, json.dumps(of.evidence), of.replaces,
        )  # fmt: skip
        failpoint.hit_failpoint("candidate:before")
        with self._lock:
            self._db.execute(
                "INSERT INTO candidate (id, bank, scope, text, topics, agent, run, event, state,"
                " proposed_us, kind, label, evidence, replaces)"
                " VALUES (?,?,?,?,?,?,?,?,?,?,?,?,?,?) ON CONFLICT DO NOTHING",
                values,
            )
        failpoint.hit_failpoint("candidate:after")

    def forget(self, events: Collection[str], kept: Collection[Candidate] = ()) -> int:
        """Delete what was learned of erased events, except what is `kept`; return how many.

        Promoted or not: what they said is overwritten in the file and cut out of its log.
        """
        keep = {candidate.key for candidate in kept}
        failpoint.hit_failpoint("forget:before")
        with self._lock:
            with self._db:
                held: list[Any] = [
                    row
                    for event in sorted(events)
                    for row in self._db.execute(
                        "SELECT bank, id, replaces FROM candidate WHERE event = ?", (event,)
                    )
                ]
                gone = [(bank, id, was) for bank, id, was in held if id not in keep]
                self._delete_candidates(gone)
            if gone:
                failpoint.hit_failpoint("forget:mid")
                self._db.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
        failpoint.hit_failpoint("forget:after")
        return len(gone)

    def _delete_candidates(self, gone: Sequence[tuple[str, str, str | None]]) -> None:
        """Delete candidates and, of those that were promoted, the memories; bring others back."""
        for bank, id, _ in gone:
            self._mark_changed(bank, id)
            held = self._find_memory(bank, id)
            if held is not None:
                memory, state = held
                if state == "active":
                    version = self._bump_version(bank)
                    self._retire(bank, id, memory.revision + 1, memory.digest, version)
                for table in ("memory", "memory_body"):
                    self._db.execute(
                        f"DELETE FROM {table} WHERE bank = ? AND id = ?",
                        (bank, id),
                    )
            self._db.execute("DELETE FROM candidate WHERE id = ?", (id,))
        self._sync_memories((bank, was) for bank, _, was in gone if was is not None)

    # --- where memories stand ---------------------------------------------------------------

    def sync_states(self, learned: Iterable[LedgerMemory]) -> set[str]:
        """Bring memories to where the ledger says they stand; return the banks that changed.

        In one transaction; what stands there already is left alone. A candidate that the bank does
        not have is kept first.
        """
        wanted = [one for one in learned if self.version(one.bank)]
        for one in wanted:
            if one.candidate is not None:
                self.propose(one.candidate, one.proposed_us)
        failpoint.hit_failpoint("settle:before")
        before = dict(self._versions)
        with self._lock:
            try:
                with self._db:
                    erased = self._write_states(wanted)
            except BaseException:
                self._versions.clear()  # they grew in what did not stand
                raise
            if erased:
                self._db.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
        failpoint.hit_failpoint("settle:after")
        return {bank for bank, number in self._versions.items() if number != before.get(bank)}

    def _write_states(self, wanted: Sequence[LedgerMemory]) -> bool:
        """Write where memories stand; say whether the content of any had to go."""
        names: list[tuple[str, str]] = []
        gone = []
        for one in wanted:
            row = self._db.execute(
                "SELECT replaces FROM candidate WHERE bank = ? AND id = ?", (one.bank, one.id)
            ).fetchone()
            if one.state == "erased":
                gone += [(one.bank, one.id, None if row[0] is None else str(row[0]))] if row else []
                continue
            self._db.execute(
                "UPDATE candidate SET state = ?, decided_by = ?, decided_us = ?, promoted_us = ?"
                " WHERE id = ?",
                (one.state, one.by, one.at_us, one.promoted_us, one.id),
            )
            mark = "INSERT OR IGNORE INTO taken_back (bank, id) VALUES (?,?)"
            if one.state != "off":
                mark = "DELETE FROM taken_back WHERE bank = ? AND id = ?"
            self._db.execute(mark, (one.bank, one.id))
            names.append((one.bank, one.id))
            if row is not None and row[0] is not None:
                names.append((one.bank, str(row[0])))
        self._delete_candidates(gone)
        self._sync_memories(names)
        return bool(gone)

    def _sync_memories(self, names: Iterable[tuple[str, str]]) -> None:
        for bank, id in names:
            learned = self._find_promoted(bank, id)
            held = self._find_memory(bank, id)
            if learned is None and (held is None or held[1] == "retired"):
                continue  # a candidate that waits, or a file that is not there any more
            memory = learned or (held[0] if held is not None else None)
            assert memory is not None
            revision = held[0].revision if held is not None else 0
            present = held[1] if held is not None else ""
            if not self.is_hidden(bank, id):
                if present != "active":
                    self._activate(memory, revision + 1, self._bump_version(bank))
            elif present == "active":
                self._retire(bank, id, revision + 1, memory.digest, self._bump_version(bank), "off")

    def is_hidden(self, bank: str, id: str) -> bool:
        """Say whether a memory is kept from recall: taken back, never promoted, or replaced."""
        ask = self._db.execute
        if ask("SELECT 1 FROM taken_back WHERE bank = ? AND id = ?", (bank, id)).fetchone():
            return True
        own = ask("SELECT state FROM candidate WHERE bank = ? AND id = ?", (bank, id)).fetchone()
        if own is not None and own[0] != "active":
            return True
        over = "SELECT 1 FROM candidate WHERE bank = ? AND replaces = ? AND state = 'active'"
        return ask(over, (bank, id)).fetchone() is not None

    def _find_promoted(self, bank: str, id: str) -> Memory | None:
        """Return the memory that a promoted candidate is; None if it is none."""
        row = self._db.execute(
            f"SELECT {_COLUMNS}, decided_by, decided_us, promoted_us FROM candidate"
            " WHERE bank = ? AND id = ? AND state IN ('active', 'off')",
            (bank, id),
        ).fetchone()
        if row is None:
            return None
        *of, by, at_us, promoted_us = row
        keeps_us = self.retention_us(bank)
        ends_us = int(promoted_us) + keeps_us if promoted_us and keeps_us else 0
        return learned_memory(_candidate(of), str(by), int(at_us), ends_us)

    def _update_expiry(self, plan: BankPlan) -> None:
        """Have what was learned end when the bank's retention says now."""
        keeps_us = plan.retention_days * _DAY_US
        promoted = self._db.execute(
            "SELECT c.id, c.promoted_us + ?1 FROM candidate c JOIN memory m"
            " ON m.bank = c.bank AND m.id = c.id WHERE c.bank = ?2 AND c.promoted_us > 0"
            " AND m.trust = 'learned' AND m.expires_us <> c.promoted_us + ?1",
            (keeps_us, plan.name),
        ).fetchall()
        for id, ends_us in promoted:
            self._mark_changed(plan.name, str(id))
            for table, column in (("memory", "id"), ("post", "memory_id")):
                self._db.execute(
                    f"UPDATE {table} SET expires_us = ? WHERE bank = ? AND {column} = ?",
                    (ends_us, plan.name, id),
                )

    def _bump_version(self, bank: str) -> int:
        number = self.version(bank) + 1
        self._db.execute("UPDATE bank SET version = ? WHERE name = ?", (number, bank))
        self._versions[bank] = number
        return number

    # --- looking ----------------------------------------------------------------------------

    def list_memories(self, bank: str | None = None) -> list[dict[str, Any]]:
        """Return every candidate and memory, or a bank's, as data; retired files are left out."""
        where, values = ("WHERE bank = ?", (bank,)) if bank is not None else ("", ())
        with self._lock:
            proposed = {
                (row[1], row[0]): (_candidate(row[:12]), row[12], row[13], row[14], row[15])
                for row in list(
                    self._db.execute(
                        f"SELECT {_COLUMNS}, state, proposed_us, decided_by, decided_us"
                        f" FROM candidate {where}",
                        values,
                    )
                )
            }
            memories = [
                self._find_memory(of, id)
                for of, id in list(
                    self._db.execute(
                        f"SELECT bank, id FROM memory {where} ORDER BY bank, id",
                        values,
                    )
                )
            ]
        told = [_memory_object(*held) for held in memories if held is not None]
        found = [one for one in told if one["state"] != "retired" and one["trust"] == "reviewed"]
        for candidate, state, proposed_us, by, at_us in proposed.values():
            found.append(_candidate_object(candidate, state, proposed_us, by, at_us))
        return sorted(found, key=lambda one: (one["bank"], one["proposed_at"] or 0, one["id"]))


def is_older(db: apsw.Connection) -> bool:
    """Say whether a bank's file lacks columns of the present format; one that is new does not."""
    names = {row[1] for row in db.execute("PRAGMA table_info(candidate)")}
    return bool(names) and not names.issuperset(_MIGRATION)


def migrate(db: apsw.Connection) -> None:
    """Add the columns of the present format to an older bank's file; what it holds stays."""
    names = {row[1] for row in db.execute("PRAGMA table_info(candidate)")}
    for name, kind in _MIGRATION.items():
        if name not in names:
            db.execute(f"ALTER TABLE candidate ADD COLUMN {name} {kind}")


def learned_memory(candidate: Candidate, by: str, at_us: int, ends_us: int) -> Memory:
    """Return the memory that a bank makes of a candidate, by whoever had it recalled last and when.

    From `ends_us` on its bank does not keep it (0: always).
    """
    facts = {"by": by, "on": iso(at_us)[:10], **candidate.to_json()}
    return Memory(
        id=candidate.key,
        bank=candidate.bank,
        revision=0,
        scope=candidate.scope,
        kind=candidate.kind,
        topics=candidate.topics,
        text=candidate.text,
        digest=sha256_hex(canonical_json(facts)),
        reviewed_by=by,
        reviewed_on=iso(at_us)[:10],
        expires_us=ends_us,
        label=candidate.label,
        trust="learned",
    )


def _candidate(row: Sequence[Any]) -> Candidate:
    id, bank, scope, text, topics, agent, run, event, kind, label, evidence, replaces = row
    return Candidate(
        bank, scope, text, tuple(json.loads(topics)), agent, run, event, kind, label,
        tuple(json.loads(evidence)), replaces, id,
    )  # fmt: skip


def _memory_object(memory: Memory, state: str) -> dict[str, Any]:
    return {
        "id": memory.id, "bank": memory.bank, "scope": memory.scope, "state": state,
        "kind": memory.kind, "label": memory.label, "topics": list(memory.topics),
        "trust": memory.trust, "text": memory.text, "by": memory.reviewed_by,
        "on": memory.reviewed_on, "agent": "", "run": "", "event": "", "evidence": [],
        "replaces": None, "proposed_at": None,
    }  # fmt: skip


def _candidate_object(
    candidate: Candidate, state: str, proposed_us: int, by: str, at_us: int
) -> dict[str, Any]:
    return {
        "id": candidate.key, "bank": candidate.bank, "scope": candidate.scope, "state": state,
        "kind": candidate.kind, "label": candidate.label, "topics": list(candidate.topics),
        "trust": "learned", "text": candidate.text, "by": by,
        "on": iso(at_us)[:10] if at_us else None, "agent": candidate.agent, "run": candidate.run,
        "event": candidate.event, "evidence": list(candidate.evidence),
        "replaces": candidate.replaces, "proposed_at": proposed_us,
    }  # fmt: skip

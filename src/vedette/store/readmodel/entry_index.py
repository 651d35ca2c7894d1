"""The lists of entries that people page through: for each list, the seqs of its entries.

A list is named by what it is of. Kinds that are few are in none: the store itself finds those
(`schema.IS_RARE`), and the events are a table of their own.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import repeat

from vedette.ledger.history.ledger_entry import LedgerEntry
from vedette.store.dialect import Database
from vedette.store.schema import LINE_KINDS, in_list

_LISTED_KINDS = frozenset(LINE_KINDS) - {"event.accepted"}
_BATCH = 128
_MAX_IDS = 65_536

# What a list is of, and its values.
ListKey = tuple[str, str, object]


def agent_list(agent: str, kind: str) -> ListKey:
    """Return the list of an agent's entries of a kind."""
    return "agent", kind, agent


def kind_list(kind: str) -> ListKey:
    """Return the list of the entries of a kind that every event leaves."""
    return "kind", kind, ""


def rule_list(rule: str, outcome: str) -> ListKey:
    """Return the list of decisions by a rule with an outcome."""
    return "rule", outcome, rule


def revision_list(revision: int, outcome: str) -> ListKey:
    """Return the list of decisions under a revision with an outcome."""
    return "revision", outcome, revision


def actor_list(actor: str) -> ListKey:
    """Return the list of what somebody did."""
    return "actor", "", actor


def list_name(key: ListKey) -> str:
    """Return the name that a list is kept under."""
    return "|".join(map(str, key))


class EntryIndex:
    """Writes the lists. `database` is the read model's; in its writer's transaction."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._ids: dict[ListKey, int] = {}

    def forget(self) -> None:
        """Forget which lists there are: somebody else may have written, or it may not stand."""
        self._ids.clear()

    def write(self, entries: Sequence[LedgerEntry]) -> None:
        """Put entries on their lists."""
        kinds: dict[tuple[str, str | None], list[int]] = {}
        lists: dict[ListKey, list[int]] = {}
        for entry in entries:
            kind, seq = entry.kind, entry.seq
            kinds.setdefault((kind, entry.agent), []).append(seq)
            if kind == "action.decided":
                outcome = entry.outcome or ""
                lists.setdefault(rule_list(entry.rule, outcome), []).append(seq)
                lists.setdefault(revision_list(entry.policy_rev, outcome), []).append(seq)
            if entry.actor is not None:
                lists.setdefault(actor_list(entry.actor), []).append(seq)
        for (kind, agent), seqs in kinds.items():
            if agent is not None:
                lists[agent_list(agent, kind)] = seqs
            if kind in _LISTED_KINDS:
                lists.setdefault(kind_list(kind), []).extend(seqs)
        if len(self._ids) > _MAX_IDS:
            self._ids.clear()
        self._name_lists([key for key in lists if key not in self._ids])
        rows: list[tuple[int, int]] = []
        for key, seqs in lists.items():
            rows += zip(repeat(self._ids[key]), sorted(seqs), strict=False)
        if rows:
            self._database.execute_many("INSERT INTO view_entry(list,seq) VALUES(?,?)", rows)

    def _name_lists(self, keys: Sequence[ListKey]) -> None:
        """Learn the numbers of lists; those that are new get one."""
        if not keys:
            return
        found: dict[str, int] = {}
        names = [list_name(key) for key in keys]
        for at in range(0, len(names), _BATCH):
            marks, asked = in_list(names[at : at + _BATCH])
            sql = f"SELECT name, id FROM view_list WHERE name IN ({marks})"
            found |= {name: int(id) for name, id in self._database.rows(sql, asked)}
        new = sorted(set(names) - found.keys())
        if new:
            ((last,),) = self._database.rows("SELECT COALESCE(MAX(id),0) FROM view_list")
            found |= {name: int(last) + at for at, name in enumerate(new, start=1)}
            rows = [(found[name], name) for name in new]
            self._database.execute_many("INSERT INTO view_list(id,name) VALUES(?,?)", rows)
        self._ids |= {key: found[list_name(key)] for key in keys}

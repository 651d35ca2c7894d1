"""Rows of a store held against its entries: what an edit changed, by table, row and column.

Entries are proved by checkpoints; rows are what the engine and people go by. For each row the value
that the entries come to is made again, as far as they tell it. What they do not tell is listed in
`UNCHECKED` with what an edit of it could do: a column is in one of the two, and a test sees to it.

Rows of entries that were archived are not looked at: what they came to is proved by the archive.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import orjson
from msgspec import Struct, field

from vedette.domain.action import action_id
from vedette.domain.base.canonical import canonical_json, sha256_hex
from vedette.domain.budget import FLEET
from vedette.domain.bundle import bundle_digest
from vedette.domain.decision import format_obligations
from vedette.domain.effect import state_after
from vedette.domain.entry import HOLD_ANSWERS
from vedette.domain.event import Event, subject_of
from vedette.domain.policy_wasm import META_PREFIX, unpack_wasm
from vedette.domain.row_proof import OUTDATED_REVISION, REDRIVEN_RULE, compare_record
from vedette.domain.run import event_run_id
from vedette.store.dialect import Database
from vedette.store.place_check import find_place_mismatches
from vedette.store.readmodel.model import ReadModel
from vedette.store.schema import tag
from vedette.store.stored_entries import EntryReader

_TIMING = "when and how often it is tried; each try is decided again before anything is called"
_COUNTER = "a counter for limits; every decision's own counts are in its question, and replayed"
_STATE = "a judge's state; `vedette verify judgements` makes it again of the events"
# (table, column) -> what an edit could do, and why the ledger does not tell it.
UNCHECKED: Mapping[tuple[str, str], str] = {
    ("meta", "name"): "which values the engine keeps for itself; those that decide are checked",
    ("meta", "value"): "the fleet's name, the key and the policy's Wasm are checked",
    ("refused", "subject"): "under whose name content is found to be erased",
    ("run", "key"): "in which order events are judged; made of the agent's charter of that time",
    ("run", "steps"): "another number refuses the run's next step, and nothing is done",
    ("run", "attempts"): _TIMING,
    ("run", "wake_us"): _TIMING,
    ("run", "waits"): _TIMING,
    ("run", "observed"): _STATE,
    ("run", "prior"): _STATE,
    ("head", "agent"): _STATE,
    ("head", "key"): _STATE,
    ("head", "position"): _STATE,
    ("old_id", "id"): "finds runs from before ids led home",
    ("old_id", "position"): "finds runs from before ids led home",
    ("action", "decisions"): "how often it was decided, to be shown",
    ("action", "waits"): _TIMING,
    ("action", "until_us"): "when silence on an open hold is a no; an approval's own end is told",
    ("action", "tries"): _TIMING,
    ("action", "not_before_us"): _TIMING,
    ("action", "seq"): "the place in the list of holds",
    ("action", "last"): "the cause that the next entry names; it can only be an earlier one",
    ("action", "counted_us"): _COUNTER,
    ("state", "agent"): _STATE,
    ("state", "key"): _STATE,
    ("state", "position"): _STATE,
    ("state", "blob"): _STATE,
    ("row", "collection"): "which of a tool's own rows it is; the entry seals their content",
    ("row", "seq"): "by which step it was written; what was archived is older and not compared",
    ("position", "source"): "where a source goes on; what comes twice is known by its id",
    ("position", "value"): "where a source goes on; what comes twice is known by its id",
    ("spend", "agent"): _COUNTER,
    ("spend", "unit"): _COUNTER,
    ("spend", "minute"): _COUNTER,
    ("spend", "amount"): _COUNTER,
    **{("total", name): _COUNTER for name in (
        "name", "unit", "hour_us", "hour", "hour_told", "day_us", "day", "day_told",
    )},
    **{("view_base", name): "what lists show of archived entries, which tell it no more" for name in
       ("name", "id", "version", "sort", "data")},
    ("command", "id"): "which orders were carried out; a person may give one again",
    ("command", "seq"): "which orders were carried out; a person may give one again",
    **{("candidate", name): "a table of older stores; memories are read from the entries" for name
       in ("seq", "bank", "scope", "agent", "run", "event")},
}  # fmt: skip
# Proved by checkpoints, salted digests and the keys: `vedette.ledger.verify`.
PROVED_TABLES = frozenset({"segment", "checkpoint"})


class RowMismatch(Struct, frozen=True):
    """A store's row that is not what the entries come to; None: there is, or should be, none."""

    table: str
    row: str
    column: str
    actual: Any
    expected: Any

    def __str__(self) -> str:
        place = f"{self.table} {self.row}: {self.column}"
        return f"{place} says {_shorten(self.actual)}, and should say {_shorten(self.expected)}"


def find_mismatches(database: Database) -> Iterator[RowMismatch]:
    """Yield every column of a store's row that the entries contradict; reads the whole ledger."""
    expected = _ExpectedRows()
    entries = EntryReader(database)
    first = entries.first_seq()
    for one in entries.walk():
        # Entries of before they said themselves what they are about: their store knows.
        entry = {"about": one.about, **orjson.loads(one.raw)}
        try:
            expected.add_entry(one.seq, entry, one.data)
        except (LookupError, TypeError, ValueError, AttributeError) as error:
            # It may be signed all the same: whoever has the key can write what is no entry.
            why = f"{type(error).__name__}: {error}"
            yield RowMismatch("entry", str(one.seq), "bytes", why, f"what a {entry['kind']} says")
    for odd in find_place_mismatches(database):
        yield RowMismatch(odd.table, odd.row, "*", odd.actual, odd.expected)
    yield from _trees(database)
    yield from _policies(database, expected, whole=first == 1)
    yield from _wasm(database, expected)
    if first == 1:
        yield from _check_table(database, "stop", "scope,name", ("seq",), expected.stops)
        columns = ("name", "amount", "until_us")
        yield from _check_table(database, "raised", "seq,unit,span", columns, expected.raised)
    yield from _events(database, expected, first)
    yield from _runs(database, expected, first)
    yield from _actions(database, expected, first)
    yield from _rows(database, expected, first)


def find_view_mismatches(view: ReadModel) -> Iterator[RowMismatch]:
    """Yield every column of a read model's row that the entries contradict, as far as it goes.

    Nothing of a store without one: nobody is shown anything of it. Nor of one whose first entries
    are archived: what those came to is told by none.
    """
    if view.can_be_compared():
        for name, id, column, says, should in view.find_differences():
            yield RowMismatch("view_row", f"{name} {id}".strip(), column, says, should)


class _Action(Struct):
    """What the entries say of an action."""

    fixed: dict[str, Any]
    seq: int = 0
    decided: str | None = None
    rule: str | None = None
    policy_rev: int | None = None
    # What the row says of it by now: no room makes of a permit a hold, a change a denial.
    row_outcome: str | None = None
    held: bool = False
    answer: str | None = None
    answers: list[tuple[str, str | None]] = field(default_factory=list)
    effect: str | None = None
    outcome: bytes | None = None
    question: Mapping[str, Any] | None = None
    obliges: str | None = None
    until_us: int = 0

    def decide(self, outcome: str) -> None:
        """Take in what became of the action: only a permit plans an effect
        (`vedette.engine.action_holds`).
        """
        self.row_outcome = outcome
        if self.effect not in ("done", "failed"):
            self.effect = "intended" if outcome == "permit" else None

    def set_effect(self, effect: str) -> None:
        """Take in a change of its effect.

        One that was planned, and is held or denied by now, is not what may be tried again: the
        entry says whether it may have happened, and the row that it is not to be.
        """
        if effect in ("cancelled", "unknown") and self.row_outcome in ("hold", "deny"):
            self.effect = None if self.row_outcome == "hold" else "cancelled"
        else:
            self.effect = effect


class _ExpectedRows(Struct):
    """What the entries come to, as far as rows say the same."""

    policies: dict[tuple[Any, ...], tuple[Any, ...]] = field(default_factory=dict)
    wasm: set[str] = field(default_factory=set)
    stops: dict[tuple[Any, ...], tuple[Any, ...]] = field(default_factory=dict)
    raised: dict[tuple[Any, ...], tuple[Any, ...]] = field(default_factory=dict)
    events: dict[int, str] = field(default_factory=dict)
    subjects: dict[int, str | None] = field(default_factory=dict)
    refused: dict[int, str | None] = field(default_factory=dict)
    runs: dict[str, list[Any]] = field(default_factory=dict)
    dead_runs: set[str] = field(default_factory=set)
    redrives: dict[str, int] = field(default_factory=dict)
    actions: dict[str, _Action] = field(default_factory=dict)
    # The runs that wrote rows of this content.
    row_writers: dict[bytes, set[str]] = field(default_factory=dict)
    has_erased_body: bool = False

    def add_entry(self, seq: int, entry: Mapping[str, Any], data: bytes | None) -> None:
        kind = entry["kind"]
        if "body" in entry and data is None:
            self.has_erased_body = True
        if kind == "ledger.archived":
            self.wasm |= set((entry.get("wasm") or {}).values())
        if kind == "policy.published":
            self.wasm |= {entry["wasm"]} if entry.get("wasm") else set()
            self.policies[(entry["policy_rev"],)] = (entry["bundle"], seq, entry["at"])
        elif entry.get("run") is None and (rev := (entry.get("policy_rev"),)) in self.policies:
            # What was published with it, in one order: the row names the last entry of that.
            bundle, last, at = self.policies[rev]
            if (seq, entry["at"]) == (last + 1, at):
                self.policies[rev] = (bundle, seq, at)
        elif kind in ("stop.set", "stop.lifted"):
            scope, _, name = entry["what"].partition(":")
            if kind == "stop.set":
                self.stops[(scope, name)] = (seq,)
            else:
                self.stops.pop((scope, name), None)
        elif kind == "budget.raised":
            for limit, amount in entry["spend"].items():
                unit, _, span = limit.rpartition(".")
                of = (entry.get("agent") or FLEET, amount, entry["until"])
                self.raised[(seq, unit, span)] = of
        elif kind == "event.accepted":
            self.events[seq] = entry["event"]
            event = None if data is None else _parse_event(data)
            # Our own events stand under the name of the event that they come of.
            if event is not None and not event.source.startswith("vedette:"):
                self.subjects[seq] = subject_of(event)
        elif kind == "event.refused":
            self.refused[seq] = entry.get("event")
        # A claim and a note of a hold name its action and no run: they change no row.
        if entry.get("run") is not None:
            self._add_run_entry(seq, entry, kind)
            if entry.get("action") is not None:
                self._add_action_entry(seq, entry, kind, data)

    def _add_run_entry(self, seq: int, entry: Mapping[str, Any], kind: str) -> None:
        known = self.runs.setdefault(entry["run"], [entry["about"], entry["agent"], "", 0, 0, 0])
        known[3], known[4] = entry["n"], seq
        if kind in ("run.closed", "run.dropped"):
            known[2] = "done"
        elif kind == "run.dead":
            known[2] = "dead"
            self.dead_runs.add(entry["run"])
        elif kind == "run.redriven":
            known[2] = ""
            self.redrives[entry["run"]] = seq
        elif kind == "turn.reasoned":
            known[5] = entry["turn"]

    def _add_action_entry(
        self, seq: int, entry: Mapping[str, Any], kind: str, data: bytes | None
    ) -> None:
        id = entry["action"]
        fixed = {"run": entry["run"], "agent": entry["agent"], "position": entry["about"]}
        known = self.actions.setdefault(id, _Action({**fixed, "tool": entry["tool"]}))
        known.seq = seq
        if kind == "action.decided":
            known.decided, known.rule = entry["outcome"], entry["rule"]
            known.policy_rev = entry["policy_rev"]
            known.decide(entry["outcome"])
            known.fixed["digest"] = entry["action_digest"]
            known.held = known.held or entry["outcome"] == "hold"
            body = {} if data is None else orjson.loads(data)
            known.obliges = None
            if isinstance(decision := body.get("decision"), dict):
                duties = decision.get("obligations") or ()
                known.obliges = format_obligations(duties)
            question = body.get("question")
            if isinstance(question, dict) and known.question is None:
                # The first: later ones are asked of what the row says by then.
                known.question = question
        elif kind in HOLD_ANSWERS:
            known.answers.append((kind.removeprefix("hold."), entry.get("actor")))
            known.until_us = entry.get("until") or 0
        elif kind == "budget.refused":
            known.decide("hold")
        elif kind == "action.refused":
            known.decide("deny")
        elif kind.startswith("effect."):
            known.set_effect(state_after(kind))
            known.outcome = data
            if data is not None and known.effect == "done":
                value = orjson.loads(data).get("data")
                rows = value.get("rows") if isinstance(value, dict) else None
                for row in rows if isinstance(rows, list) else ():
                    self.row_writers.setdefault(canonical_json(row), set()).add(entry["run"])


def _parse_event(body: bytes) -> Event | None:
    """Return the event of a body; None for one that is no event: it is another, and found so."""
    try:
        return Event.from_body(orjson.loads(body))
    except (LookupError, TypeError, ValueError):
        return None


def _trees(database: Database) -> Iterator[RowMismatch]:
    """Yield the heads with a tree but for the newest, which alone has one."""
    sql = "SELECT size FROM checkpoint WHERE frontier IS NOT NULL ORDER BY size DESC"
    for (size,) in database.rows(sql)[1:]:
        yield RowMismatch("checkpoint", str(size), "frontier", "a tree", None)


def _policies(database: Database, expected: _ExpectedRows, *, whole: bool) -> Iterator[RowMismatch]:
    rows = {
        (row[0],): row[1:]
        for row in database.rows("SELECT number, digest, seq, at FROM policy ORDER BY number")
    }
    for key in sorted(rows.keys() | expected.policies.keys()):
        if not whole and key not in expected.policies:
            continue
        yield from _compare_row(
            "policy", key, ("digest", "seq", "at"), rows.get(key), expected.policies.get(key)
        )
    kept = set()
    for digest, files in database.iterate_rows("SELECT digest, files FROM bundle ORDER BY digest"):
        kept.add(digest)
        try:
            value = {path: text.encode() for path, text in orjson.loads(files).items()}
            found = bundle_digest(value)
        except (ValueError, AttributeError) as error:
            found = f"unreadable: {error}"
        if found != digest:
            yield RowMismatch("bundle", digest[:12], "files", found, digest)
    for digest, _, _ in expected.policies.values():
        if digest not in kept:
            yield RowMismatch("bundle", digest[:12], "digest", None, digest)


def _wasm(database: Database, expected: _ExpectedRows) -> Iterator[RowMismatch]:
    """Yield the compiled policies that are not what the entries name, and those that are gone."""
    sql = "SELECT name, value FROM meta WHERE name LIKE ? ORDER BY name"
    rows = database.iterate_rows(sql, (f"{META_PREFIX}%",))  # one by one: each is up to 16 MiB
    digests = {
        name.removeprefix(META_PREFIX): sha256_hex(unpack_wasm(value)) for name, value in rows
    }
    for digest in sorted(digests.keys() | expected.wasm):
        says = digests.get(digest)
        if says != digest:
            yield RowMismatch("meta", f"{META_PREFIX}{digest[:12]}", "value", says, digest)


def _check_table(
    database: Database,
    table: str,
    key: str,
    columns: tuple[str, ...],
    expected: Mapping[tuple[Any, ...], tuple[Any, ...]],
) -> Iterator[RowMismatch]:
    width = key.count(",") + 1
    sql = f"SELECT {key},{','.join(columns)} FROM {table}"
    rows = {tuple(row[:width]): tuple(row[width:]) for row in database.rows(sql)}
    for each in sorted(rows.keys() | expected.keys()):
        yield from _compare_row(table, each, columns, rows.get(each), expected.get(each))


def _compare_row(
    table: str, key: tuple[Any, ...], columns: tuple[str, ...], row: Any, should: Any
) -> Iterator[RowMismatch]:
    name = " ".join(str(part) for part in key)
    if row is None or should is None:
        yield RowMismatch(table, name, "*", row, should)
        return
    for column, says, right in zip(columns, row, should, strict=True):
        if says != right:
            yield RowMismatch(table, name, column, says, right)


def _events(database: Database, expected: _ExpectedRows, first: int) -> Iterator[RowMismatch]:
    seen = set()
    sql = "SELECT seq, tag, key, subject FROM event ORDER BY seq"
    for seq, number, key, subject in database.iterate_rows(sql):
        seen.add(seq)
        if seq < first:
            continue
        should = expected.events.get(seq)
        if key != should:
            yield RowMismatch("event", str(seq), "key", key, should)
        elif number != tag(key):
            yield RowMismatch("event", str(seq), "tag", number, tag(key))
        elif seq in expected.subjects and subject != expected.subjects[seq]:
            yield RowMismatch("event", str(seq), "subject", subject, expected.subjects[seq])
    refused: dict[int, str | None] = dict(database.rows("SELECT seq, key FROM refused"))
    for seq in sorted(refused.keys() | expected.refused.keys()):
        if seq >= first and (seq not in refused or seq not in expected.refused):
            yield RowMismatch(
                "refused", str(seq), "seq", refused.get(seq), expected.refused.get(seq)
            )
        elif seq >= first and refused[seq] != expected.refused[seq]:
            yield RowMismatch("refused", str(seq), "key", refused[seq], expected.refused[seq])
    for seq in sorted(expected.events.keys() - seen):
        yield RowMismatch("event", str(seq), "*", None, expected.events[seq])


def _runs(database: Database, expected: _ExpectedRows, first: int) -> Iterator[RowMismatch]:
    old = {id for (id,) in database.rows("SELECT id FROM old_id")}
    seen = set()
    sql = "SELECT id, position, agent, state, entries, last, turn FROM run ORDER BY position, agent"
    for id, position, agent, state, entries, last, turn in database.iterate_rows(sql):
        seen.add(id)
        if position < first:
            continue
        event = expected.events.get(position)
        if event is None or (id not in old and id != event_run_id(event, agent)):
            yield RowMismatch(
                "run", id, "id", id, None if event is None else event_run_id(event, agent)
            )
            continue
        should = expected.runs.get(id, [position, agent, "", 0, position, 0])
        for column, says, right in zip(
            ("position", "agent", "entries", "last"), (position, agent, entries, last),
            (*should[:2], *should[3:5]), strict=True,
        ):  # fmt: skip
            if says != right:
                yield RowMismatch("run", id, column, says, right)
        if state not in ((should[2],) if should[2] else ("ready", "waiting")):
            yield RowMismatch("run", id, "state", state, should[2] or "ready or waiting")
        # A last turn that came to nothing is told by the end of its run alone.
        if turn - should[5] not in ((0, 1) if state == "done" else (0,)):
            yield RowMismatch("run", id, "turn", turn, should[5])
    for id in sorted(expected.runs.keys() - seen):
        if expected.runs[id][0] >= first:
            yield RowMismatch("run", id, "*", None, expected.runs[id][0])


_ROW = (
    "id", "run", "agent", "position", "turn", "ordinal", "tool", "digest", "decided", "rule",
    "policy_rev", "hold", "until_us", "approver", "effect", "answer", "record", "obliges",
)  # fmt: skip


def _actions(database: Database, expected: _ExpectedRows, first: int) -> Iterator[RowMismatch]:
    old = {id for (id,) in database.rows("SELECT id FROM old_id")}
    seen = set()
    sql = f"SELECT {','.join(_ROW)} FROM action ORDER BY position, agent, turn, ordinal"
    for values in database.iterate_rows(sql):
        row = dict(zip(_ROW, values, strict=True))
        seen.add(row["id"])
        if row["position"] < first:
            continue
        made = action_id(row["run"], row["turn"], row["ordinal"])
        if row["id"] != made and row["run"] not in old:
            yield RowMismatch("action", row["id"], "id", row["id"], made)
        known = expected.actions.get(row["id"])
        if known is None:
            # Planned in a turn whose later entries are to come: nothing may be said of it yet.
            for column in ("decided", "hold", "approver", "effect", "answer"):
                if row[column] is not None:
                    yield RowMismatch("action", row["id"], column, row[column], None)
            continue
        # Nothing was said of it since its run was taken up again: it is to be decided anew.
        reopened = expected.redrives.get(row["run"], 0) > known.seq
        for column, says, right in _check_action(
            row, known, row["run"] in expected.dead_runs, reopened
        ):
            yield RowMismatch("action", row["id"], column, says, right)
    for id in sorted(expected.actions.keys() - seen):
        if expected.actions[id].fixed["position"] >= first:
            yield RowMismatch("action", id, "*", None, expected.actions[id].fixed["tool"])


def _check_action(
    row: Mapping[str, Any], known: _Action, is_dead: bool, reopened: bool
) -> Iterator[tuple[str, Any, Any]]:
    """Yield (column, what it says, what it should say) of an action's row."""
    for column, right in known.fixed.items():
        if row[column] != right:
            yield column, row[column], right
    last, by = known.answers[-1] if known.answers else (None, None)
    cancelled = known.effect == "cancelled"
    # What is to be decided again, was refused for lack of room, or was ended with its run.
    ended = is_dead or last in ("denied", "expired")
    if row["decided"] not in (
        known.decided,
        None,
        "hold",
        *(("deny",) if _may_deny(known, ended) else ()),
    ):
        yield "decided", row["decided"], known.decided
    elif row["decided"] == known.decided == "permit" and row["rule"] not in (
        known.rule,
        REDRIVEN_RULE,
    ):
        yield "rule", row["rule"], known.rule
    if row["decided"] == "permit" and row["policy_rev"] not in (
        known.policy_rev,
        OUTDATED_REVISION,
    ):
        yield "policy_rev", row["policy_rev"], known.policy_rev
    if row["hold"] is not None or not reopened:
        yield from _check_hold(row, known, last, by)
    if row["hold"] == "approved" and last == "approved" and row["until_us"] != known.until_us:
        yield "until_us", row["until_us"], known.until_us
    if known.obliges is not None and row["obliges"] != known.obliges:
        yield "obliges", row["obliges"], known.obliges
    if row["effect"] not in ((known.effect, None) if reopened and cancelled else (known.effect,)):
        yield "effect", row["effect"], known.effect
    if row["answer"] is not None and known.outcome is not None and row["answer"] != known.outcome:
        yield "answer", bytes(row["answer"]), known.outcome
    elif row["answer"] is not None and known.effect is None:
        yield "answer", bytes(row["answer"]), None
    if row["record"] and known.question is not None:
        yield from compare_record(row["record"], known.question)


# What a hold may have become after a person's last answer, or without any: see
# `vedette.domain.hold`.
_HOLDS: Mapping[str | None, frozenset[str]] = {
    None: frozenset({"open", "released", "denied"}),
    "approved": frozenset({"approved", "used", "open", "released", "denied"}),
    "denied": frozenset({"denied"}),
    "expired": frozenset({"expired"}),
}


def _may_deny(known: _Action, ended: bool) -> bool:
    """Say whether a row may say deny though the last decision did not."""
    return ended or known.row_outcome == "deny" or known.effect in ("cancelled", "failed")


def _check_hold(
    row: Mapping[str, Any], known: _Action, last: str | None, by: str | None
) -> Iterator[tuple[str, Any, Any]]:
    """Yield what a row says of a hold and its answer that no person's entry says."""
    hold, approver = row["hold"], row["approver"]
    persons = {actor for _, actor in known.answers if actor}
    if hold is None:
        if known.held:
            yield "hold", None, last or "open"
        return
    if hold not in _HOLDS[last]:
        yield "hold", hold, last or "open"
    if approver is not None and approver not in persons:
        yield "approver", approver, by
    elif approver is None and hold in ("approved", "used"):
        yield "approver", None, by


def _rows(database: Database, expected: _ExpectedRows, first: int) -> Iterator[RowMismatch]:
    if expected.has_erased_body:
        return  # content was erased, and with it what was written
    sql = (
        'SELECT collection, key, data FROM "row" '
        "WHERE seq>=? AND collection NOT LIKE 'vedette:%' ORDER BY collection, key"
    )
    written = _written_keys(database, expected)
    for collection, key, data in database.iterate_rows(sql, (first,)):
        keys = written.get(bytes(data))
        if keys is None:
            yield RowMismatch(
                "row", f"{collection} {key}", "data", bytes(data), "what a tool wrote"
            )
        elif key not in keys:
            yield RowMismatch("row", f"{collection} {key}", "key", key, " or ".join(sorted(keys)))


def _written_keys(database: Database, expected: _ExpectedRows) -> dict[bytes, set[str]]:
    """Return the keys of the runs that wrote rows of each content."""
    if not expected.row_writers:
        return {}
    sql = "SELECT position, agent, key FROM run"
    keys = {(position, agent): str(key) for position, agent, key in database.iterate_rows(sql)}
    return {
        content: {
            keys.get((expected.runs[run][0], expected.runs[run][1]), "a run's key") for run in runs
        }
        for content, runs in expected.row_writers.items()
    }


def _shorten(value: Any) -> str:
    text = "nothing" if value is None else ascii(value)
    return text if len(text) <= 120 else f"{text[:120]}..."

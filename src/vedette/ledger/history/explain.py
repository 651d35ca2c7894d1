"""Explain: everything the record knows of one run, event, action, hold or effect, as one object.

What was asked, decided and done is read from the entries and their bodies, which the ledger's
proof covers; from the tables of present state comes only where things stand now.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from vedette.domain.identity import Identity
from vedette.domain.ports.store import StoreReader
from vedette.domain.run import ActionRow, Run
from vedette.ledger.history.action import action_object
from vedette.ledger.history.compensations import undo_object
from vedette.ledger.history.entry_view import (
    AcceptanceEntry,
    CandidateEntry,
    CorrectionEntry,
    EntryView,
    JudgementEntry,
    RecallEntry,
    SettlementEntry,
)
from vedette.ledger.history.reader import resolve, to_action_id
from vedette.ledger.history.review import about_event, acceptance
from vedette.ledger.history.run import RunHistory, read_run

EXPLAIN = "vedette.explain/1"


def explain(record: StoreReader, text: str) -> dict[str, Any]:
    """Return what the record knows of an id, or a unique beginning of one: the explain object.

    The id of an event gives all its runs; that of an action, hold or effect its run, with
    `focus` naming the action. Instants are microseconds UTC, confidences 0..1000, content that
    was erased is null and said to be `erased`. Raises BadCommand if the id names nothing.
    """
    kind, name = resolve(record, text)
    focus = None
    if kind == "event":
        event, runs = name, record.runs.runs_of_event(name)
    else:
        row = record.runs.action(to_action_id(name)) if kind != "run" else None
        focus = row.id if row is not None else None
        run = record.runs.run(row.run if row is not None else name)
        assert run is not None  # resolve found it, and rows are never deleted
        event, runs = run.event, [run]
    accepted = acceptance(record, event)
    return {
        "schema": EXPLAIN,
        "id": name,
        "kind": kind,
        "focus": focus,
        "head": record.ledger.last_seq(),
        "event": {**_event(event, accepted), "about": about_event(record, accepted)},
        "runs": [_run(record, run, accepted) for run in runs],
    }


def _event(event: str, accepted: AcceptanceEntry | None) -> dict[str, Any]:
    if accepted is None:
        return {"id": event, "seq": None, "erased": True, "attributes": None, "data": None}
    body = accepted.body or {}
    names = ("source", "id", "type", "subject", "time", "extensions")
    return {
        "id": event,
        "seq": accepted.seq,
        "at": accepted.at,
        "woke": accepted.get("woke"),
        "hops": accepted.get("hops") or 0,
        "erased": accepted.erased,
        "attributes": None if accepted.erased else {name: body.get(name) for name in names},
        "lineage": body.get("lineage", []),
        "vouched": body.get("vouched", []),
        "data": body.get("data"),
    }


def _run(record: StoreReader, run: Run, accepted: AcceptanceEntry | None) -> dict[str, Any]:
    history, rows = read_run(record.ledger, run.id), record.runs.actions(run.id)
    turns = history.turns
    fleet = record.meta("fleet")
    return {
        "id": run.id,
        "agent": run.agent,
        "identity": Identity(str(fleet), run.agent).spiffe_id if fleet else None,
        "release": history.release,
        "key": run.key,
        "state": run.state,
        "turns": run.turn,
        "attempts": run.attempts,
        "waits": run.waits,
        "wake_at": run.wake_us or None,
        "dead": None if history.death is None else _reason_object(history.death),
        "match": {"agent": run.agent, "key": run.key, "position": run.position},
        "reads": [_recall(one) for one in history.of_type(RecallEntry)],
        "memories": history.memories,
        "model_calls": [
            _model_call(one, one.model_call)
            for one in history.of_type(SettlementEntry)
            if one.model_call is not None
        ],
        "judgements": [_turn(turn, history, rows) for turn in turns]
        or [_quiet_judgement(one) for one in history.quiet_judgements],
        "actions": [
            {
                **action_object(row, history.action(row.id), turns),
                "undone": undo_object(record.runs, str(fleet) if fleet else None, row),
            }
            for row in rows
        ],
        "corrections": [_correction(one) for one in history.of_type(CorrectionEntry)],
        "proposed": [_candidate(one) for one in history.of_type(CandidateEntry)],
        "timeline": [
            entry.item() for entry in (*([accepted] if accepted else ()), *history.entries)
        ],
        "cut": history.is_truncated,
    }


def _reason_object(entry: EntryView) -> dict[str, Any]:
    return {"seq": entry.seq, "at": entry.at, "why": entry.why, "erased": entry.erased}


def _correction(one: CorrectionEntry) -> dict[str, Any]:
    """Return what a person said of the run, in the order in which people did."""
    return {
        "seq": one.seq, "at": one.at, "outcome": one.outcome, "by": one.actor, "was": one.was,
        "should": one.should, "note": one.note, "reason": one.reason, "event": one.made_event,
        "erased": one.erased,
    }  # fmt: skip


def _candidate(one: CandidateEntry) -> dict[str, Any]:
    """Return what the run proposed to remember; what became of it `vedette memory show` tells."""
    return {
        "seq": one.seq, "at": one.at, "bank": one.bank, "candidate": one.id, "scope": one.scope,
        "kind": one.memory_kind, "label": one.label, "text": one.text, "erased": one.erased,
    }  # fmt: skip


def _recall(one: RecallEntry) -> dict[str, Any]:
    return {
        "seq": one.seq, "at": one.at, "memory": one.memory, "outcome": one.outcome,
        "rule": one.rule, "bundle": one.bundle, "revision": one.revision,
    }  # fmt: skip


def _model_call(one: SettlementEntry, told: Mapping[str, Any]) -> dict[str, Any]:
    """Return how a turn's call of a model went. What nobody told is null; `took` is in µs."""
    tokens = told.get("tokens", {})
    return {
        "seq": one.seq, "at": one.at, "turn": one.turn, "model": told["model"],
        "asked": told.get("asked"), "answered": told.get("answered"), "calls": told["calls"],
        "input": tokens.get("input"), "output": tokens.get("output"),
        "took": told.get("call_took", told["took"]), "finish": told.get("finish"),
        "error": told.get("error") or one.failure,
    }  # fmt: skip


def _quiet_judgement(one: JudgementEntry) -> dict[str, Any]:
    """Return the judgement of an uneventful run: its one entry holds all there is."""
    return _judgement(one, turn=1, detail=None, final=True, proposals=[], erased=False)


def _turn(one: JudgementEntry, history: RunHistory, rows: Sequence[ActionRow]) -> dict[str, Any]:
    actions = {row.ordinal: row.id for row in rows if row.turn == one.turn}
    refusals = history.refusals(one.turn)
    nothing = {"tool": None, "args": None, "why": None}
    proposals = [
        {
            **(one.proposals[at] if one.proposals else nothing),
            "ordinal": at,
            "action": actions.get(at),
            "refused": _reason_object(refusals[at]) if at in refusals else None,
        }
        for at in range(one.proposal_count or 0)
    ]
    return _judgement(
        one, turn=one.turn, detail=one.detail, final=one.final, proposals=proposals,
        erased=one.erased,
    )  # fmt: skip


def _judgement(
    one: JudgementEntry, *, turn: int | None, detail: Any, final: bool | None, proposals: list[Any],
    erased: bool,
) -> dict[str, Any]:  # fmt: skip
    return {
        "turn": turn,
        "seq": one.seq,
        "at": one.at,
        "label": one.label,
        "confidence_milli": one.confidence_milli,
        "score_milli": one.score_milli,
        "threshold_milli": one.threshold_milli,
        "detail": detail,
        "deferred": one.is_deferred,
        "final": final,
        "notes": one.notes,
        "memories": one.memories or [],
        "proposals": proposals,
        "erased": erased,
    }

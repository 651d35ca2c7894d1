"""Explain: everything the record knows of one run, event, action, hold or effect, as one object.

What was asked, decided and done is read from the entries and their bodies, which the ledger's
proof covers; from the tables of present state comes only where things stand now.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from vedette.identity import Identity
from vedette.run import ActionRow, Run
from vedette.timeline.actions import action_object
from vedette.timeline.record import Record, Shown, action_of, resolve, shown
from vedette.timeline.review import about_event, acceptance
from vedette.timeline.undone import undone_object

EXPLAIN = "vedette.explain/1"

_ENTRIES = 1000


def explain(record: Record, text: str) -> dict[str, Any]:
    """Return the explain object of an id or a unique beginning of one.

    The id of an event gives all its runs; that of an action, hold or effect its run, with
    `focus` naming the action. Instants are microseconds UTC, confidences 0..1000, content that
    was erased is null and said to be `erased`. Raises BadCommand if the id names nothing.
    """
    kind, name = resolve(record, text)
    focus = None
    if kind == "event":
        event, runs = name, record.runs_of_event(name)
    else:
        row = record.action(action_of(name)) if kind != "run" else None
        focus = row.id if row is not None else None
        run = record.run(row.run if row is not None else name)
        assert run is not None  # resolve found it, and rows are never deleted
        event, runs = run.event, [run]
    accepted = acceptance(record, event)
    return {
        "schema": EXPLAIN,
        "id": name,
        "kind": kind,
        "focus": focus,
        "head": record.head(),
        "event": {**_event(event, accepted), "about": about_event(record, accepted)},
        "runs": [_run(record, run, accepted) for run in runs],
    }


def _event(event: str, accepted: Shown | None) -> dict[str, Any]:
    if accepted is None:
        return {"id": event, "seq": None, "erased": True, "attributes": None, "data": None}
    body = accepted.body or {}
    names = ("source", "id", "type", "subject", "time", "extensions")
    return {
        "id": event,
        "seq": accepted.seq,
        "at": accepted.get("at"),
        "woke": accepted.get("woke"),
        "hops": accepted.get("hops") or 0,
        "erased": accepted.erased,
        "attributes": None if accepted.erased else {name: body.get(name) for name in names},
        "lineage": body.get("lineage", []),
        "vouched": body.get("vouched", []),
        "data": body.get("data"),
    }


def _run(record: Record, run: Run, accepted: Shown | None) -> dict[str, Any]:
    told = [shown(*row) for row in record.entries("run", run.id, _ENTRIES)]
    rows = record.actions(run.id)
    turns = [entry for entry in told if entry.kind == "turn.reasoned"]
    judgements = [_judgement(turn, told, rows) for turn in turns]
    if not turns:
        judgements = [_quiet(entry) for entry in told if entry.get("label") is not None]
    # The latest; one that was taken up again since is in the timeline.
    ends = [entry for entry in told if entry.kind in ("run.dead", "run.redriven")]
    dead = ends[-1] if ends and ends[-1].kind == "run.dead" else None
    items = [entry.item() for entry in ([accepted] if accepted else []) + told]
    fleet = record.meta("fleet")
    return {
        "id": run.id,
        "agent": run.agent,
        "identity": Identity(str(fleet), run.agent).spiffe_id if fleet else None,
        "release": next((entry.get("release") for entry in told if entry.get("release")), None),
        "key": run.key,
        "state": run.state,
        "turns": run.turn,
        "attempts": run.attempts,
        "waits": run.waits,
        "wake_at": run.wake_us or None,
        "dead": None if dead is None else _because(dead, "why"),
        "match": {"agent": run.agent, "key": run.key, "position": run.position},
        "reads": [_read(entry) for entry in told if entry.kind == "recall.decided"],
        "memories": _memories(turns),
        "judgements": judgements,
        "actions": [
            {
                **action_object(row, _of(row, told), turns),
                "undone": undone_object(record, str(fleet) if fleet else None, row),
            }
            for row in rows
        ],
        "corrections": [_correction(entry) for entry in told if entry.kind == "run.corrected"],
        "proposed": [_proposed(entry) for entry in told if entry.kind == "memory.proposed"],
        "timeline": items,
        "cut": len(told) >= _ENTRIES,
    }


def _of(row: ActionRow, told: Sequence[Shown]) -> list[Shown]:
    return [entry for entry in told if entry.get("action") == row.id]


def _because(entry: Shown, name: str) -> dict[str, Any]:
    return {
        "seq": entry.seq,
        "at": entry.get("at"),
        "why": entry.told(name),
        "erased": entry.erased,
    }


def _correction(entry: Shown) -> dict[str, Any]:
    """Return what a person said of the run, in the order in which people did."""
    told = {name: entry.told(name) for name in ("was", "should", "note", "reason")}
    by, outcome = entry.get("actor"), entry.get("outcome")
    return {
        "seq": entry.seq, "at": entry.get("at"), "outcome": outcome, "by": by, **told,
        "event": entry.get("what"), "erased": entry.erased,
    }  # fmt: skip


def _proposed(entry: Shown) -> dict[str, Any]:
    """Return what the run proposed to remember; what became of it `vedette memory show` tells."""
    told = {name: entry.told(name) for name in ("scope", "kind", "label", "text")}
    return {
        "seq": entry.seq, "at": entry.get("at"), "bank": entry.get("memory"),
        "candidate": entry.get("what"), **told, "erased": entry.erased,
    }  # fmt: skip


def _read(entry: Shown) -> dict[str, Any]:
    names = ("memory", "outcome", "rule", "bundle")
    fields = {name: entry.get(name) for name in names}
    return {"seq": entry.seq, "at": entry.get("at"), **fields, "revision": entry.get("policy_rev")}


def _memories(turns: Sequence[Shown]) -> list[str]:
    """Return what was cited (id@revision), each once, in the order of the briefings."""
    return list(dict.fromkeys(cite for turn in turns for cite in turn.told("memories") or []))


def _quiet(entry: Shown) -> dict[str, Any]:
    """Return the judgement of an uneventful run: its one entry holds all there is."""
    return {
        "turn": 1,
        "seq": entry.seq,
        "at": entry.get("at"),
        **_numbers(entry),
        "detail": None,
        "final": True,
        "memories": [],
        "proposals": [],
        "erased": False,
    }


def _numbers(entry: Shown) -> dict[str, Any]:
    """Return the numbers of a judgement in thousandths, as the entry holds them."""
    return {
        "label": entry.told("label") or entry.get("label"),
        "confidence_milli": entry.get("confidence_milli"),
        "score_milli": entry.get("score_milli"),
        "threshold_milli": entry.get("threshold_milli"),
    }


def _judgement(turn: Shown, told: Sequence[Shown], rows: Sequence[ActionRow]) -> dict[str, Any]:
    number = turn.get("turn")
    proposals = turn.told("proposals")
    actions = {row.ordinal: row.id for row in rows if row.turn == number}
    refused = {
        entry.get("ordinal"): _because(entry, "why")
        for entry in told
        if entry.kind == "action.refused" and entry.get("turn") == number
    }
    count = turn.get("proposals") or 0
    return {
        "turn": number,
        "seq": turn.seq,
        "at": turn.get("at"),
        **_numbers(turn),
        "detail": turn.told("detail"),
        "final": turn.told("final"),
        "memories": turn.told("memories") or [],
        "proposals": [
            {
                **(proposals[at] if proposals else {"tool": None, "args": None, "why": None}),
                "ordinal": at,
                "action": actions.get(at),
                "refused": refused.get(at),
            }
            for at in range(count)
        ],
        "erased": turn.erased,
    }

"""One action in the explain object: arguments and origins, decisions, hold, effect."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from vedette.action_record import BadRecord, read_record
from vedette.entry import EFFECT_KINDS
from vedette.origin import escape
from vedette.run import ActionRow
from vedette.timeline.attention import notes_of
from vedette.timeline.intent import OPEN
from vedette.timeline.record import Shown

_ANSWERS = ("hold.approved", "hold.denied", "hold.expired")
# Outcomes after which a call is repeated, as long as there are tries.
AGAIN = ("retry", "unknown")


def action_object(
    row: ActionRow, told: Sequence[Shown], turns: Sequence[Shown] = ()
) -> dict[str, Any]:
    """Return an action with all that was decided and done about it.

    `told` are the entries of the action, oldest first, `turns` the recorded turns of its run.
    """
    asked = [entry for entry in told if entry.kind == "action.decided"]
    question = next((q for q in (entry.told("question") for entry in reversed(asked)) if q), None)
    put = question["action"] if question else None
    proposal = _proposal(row, turns)
    record = _record(row)
    return {
        "id": row.id,
        "turn": row.turn,
        "ordinal": row.ordinal,
        "tool": row.tool,
        "verb": put["verb"] if put else None,
        "resource": question["resource"] if question else None,
        "settles": put["settles"] if put else None,
        "high_impact": put["high_impact"] if put else None,
        "inverse": record.get("inverse"),
        "digest": row.digest,
        "why": proposal.get("why") or record.get("why"),
        "confidence_milli": record.get("confidence"),
        "erased": put is None,
        "arguments": _arguments(put, proposal, record),
        "decisions": [decision_object(entry) for entry in asked],
        "outcome": row.decided,
        "rule": row.rule,
        "revision": row.policy_rev,
        "hold": _hold(row, told),
        "effect": _effect(row, told, put["settles"] if put else None),
    }


def _record(row: ActionRow) -> Mapping[str, Any]:
    """Return what a row says of its action; nothing if that was erased, or is no record."""
    try:
        return read_record(row.record) if row.record else {}
    except BadRecord:
        return {}


def _proposal(row: ActionRow, turns: Sequence[Shown]) -> Mapping[str, Any]:
    for turn in turns:
        proposals = turn.told("proposals")
        if turn.get("turn") == row.turn and proposals and row.ordinal < len(proposals):
            found: Mapping[str, Any] = proposals[row.ordinal]
            return found
    return {}


def _arguments(
    put: Mapping[str, Any] | None, proposal: Mapping[str, Any], record: Mapping[str, Any]
) -> list[dict[str, Any]] | None:
    """Return every argument with its origin; `source` is the pointer it was drawn from.

    A part of one follows it as a row of its own if it is a sink, was drawn by a reference, or has
    another origin than what it is a part of.
    """
    if put is None:
        return None
    given, origins, sinks = proposal.get("args") or {}, put["origins"], set(put["sinks"])
    named = {f"/{escape(name)}": (each or {}).get("ref") for name, each in given.items()}
    drawn = {**(record.get("sources") or {}), **{at: ref for at, ref in named.items() if ref}}
    # Where something is told of a part: nothing is looked for below any other place.
    inner = {at[:end] for at in (*origins, *sinks) for end, c in enumerate(at) if c == "/" and end}
    arguments: list[dict[str, Any]] = []

    def tell(pointer: str, name: str, value: Any, above: str | None) -> None:
        origin = origins.get(pointer, above)
        whole, sink, source = pointer.count("/") == 1, pointer in sinks, drawn.get(pointer)
        if whole or sink or source or origin != above:
            arguments.append(
                {
                    "pointer": pointer,
                    "name": name,
                    "value": value,
                    "origin": origin,
                    "source": source,
                    "sink": sink,
                }
            )
        if pointer in inner and isinstance(value, Mapping | list):
            parts = value.items() if isinstance(value, Mapping) else enumerate(value)
            for key, part in parts:
                below = f"{pointer}/{escape(str(key))}"
                tell(below, below[1:], part, origin)

    for name, value in put["args"].items():
        tell(f"/{escape(name)}", name, value, None)
    return arguments


def decision_object(entry: Shown) -> dict[str, Any]:
    """Return one decision: outcome, rule and revision are always there, the rest until erased."""
    decision = entry.told("decision") or {}
    question = entry.told("question") or {}
    context = question.get("context") or {}
    return {
        "seq": entry.seq,
        "at": entry.get("at"),
        "outcome": entry.get("outcome"),
        "rule": entry.get("rule"),
        "reasons": decision.get("reasons"),
        "revision": entry.get("policy_rev"),
        "bundle": entry.get("bundle"),
        "engine": entry.get("engine"),
        "wait": entry.get("wait"),
        "until": entry.get("until"),
        "would": entry.get("would"),
        "obligations": decision.get("obligations"),
        "requested_mode": (question.get("subject") or {}).get("requested_mode"),
        "approvals": context.get("approvals"),
        "stopped": context.get("stopped"),
        "erased": entry.erased,
    }


def _hold(row: ActionRow, told: Sequence[Shown]) -> dict[str, Any] | None:
    if row.hold is None:
        return None
    return {
        "id": "hold_" + row.id.removeprefix("act_"),
        "state": row.hold,
        "waits": row.waits,
        "until": row.until_us or None,
        "by": row.approver,
        "notes": notes_of(told),
        "answers": [
            {
                "seq": entry.seq,
                "at": entry.get("at"),
                "answer": entry.kind.removeprefix("hold."),
                "by": entry.get("actor"),
                "reason": entry.told("reason"),
                "until": entry.get("until"),
                "shown_digest": entry.get("shown_digest"),
                "erased": entry.erased,
            }
            for entry in told
            if entry.kind in _ANSWERS
        ],
    }


def tries_told(effect: Mapping[str, Any]) -> str:
    """Say how often an effect was tried where its states do not: it is open, or was given up."""
    outcome = effect["outcome"] or {}
    if effect["state"] == "failed" and outcome.get("state") in AGAIN:
        return "its tries are used up"
    if effect["state"] in OPEN and effect["tries"]:
        return f"tried {times(effect['tries'])} so far"
    return ""


def quiet_told(effect: Mapping[str, Any]) -> str:
    """Say when and why not sooner it is asked what came of what perhaps happened; else nothing.

    What is said has a place for the instant, `{at}`.
    """
    if effect["state"] not in ("started", "unknown") or not effect["next_try_at"]:
        return ""
    return "nobody knows yet, and nobody is asked before the call's time is over, at {at}"


def times(number: int) -> str:
    """Return how often, in words."""
    return "once" if number == 1 else f"{number:,} times"


def _word(row: ActionRow, life: Sequence[Shown], settles: str | None) -> str | None:
    """Return whose word it is that an effect is done: verified at the target, or claimed."""
    if row.effect != "done":
        return None
    sure = any(entry.get("verified") for entry in life if entry.kind == "effect.done")
    # What a transactional tool writes is part of the commit that says so.
    return "verified" if sure or settles == "transactional" else "claimed"


def _effect(row: ActionRow, told: Sequence[Shown], settles: str | None) -> dict[str, Any] | None:
    life = [entry for entry in told if entry.kind in EFFECT_KINDS]
    if row.effect is None and not life:
        return None
    answered = next((entry for entry in reversed(life) if entry.get("body")), None)
    return {
        "id": "eff_" + row.id.removeprefix("act_"),
        "key": row.id.removeprefix("act_"),
        "state": row.effect,
        "tries": row.tries,
        "next_try_at": row.not_before_us or None,
        "outcome": answered.body if answered else None,
        "word": _word(row, life, settles),
        "erased": bool(answered and answered.erased),
        "states": [
            {
                "seq": entry.seq,
                "at": entry.get("at"),
                "state": entry.kind.removeprefix("effect."),
                "revision": entry.get("policy_rev"),
                "tries": entry.get("tries"),
            }
            for entry in life
        ],
    }

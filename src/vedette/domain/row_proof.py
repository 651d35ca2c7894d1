"""The proof of an action's row by its entries, before it is decided again or performed.

Rows are a cache that nobody signs: whoever can write to the database could write an approval into
one, a permit, or better origins, and its record may have any shape. So a row that was read back
from the store (after a restart, a wait, a person's answer) is compared with the ledger's entries of
its action before it is used: the last decision, the first request, and for an approval its entry,
which carries a signature of the fleet's key of its own (an entry's place in the tree can be proved
by a pass over the ledger only).
"""

from __future__ import annotations

import base64
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import orjson

from vedette.domain.base.canonical import canonical_json
from vedette.domain.base.errors import BadProposal
from vedette.domain.decision import format_obligations
from vedette.domain.effect import FINAL_STATES
from vedette.domain.entry import HOLD_ANSWERS
from vedette.domain.run import ActionRow
from vedette.domain.sink import judge_origins

# The kinds that are read of an action; an `EntryRecord` is such an entry and its body, None if that
# is gone. What is done or failed is final. A cancelled effect is not: a person may redrive its run,
# and after a cancelled permit its action may be held again.
_FINAL_EFFECTS = ("effect.done", "effect.failed")
_EFFECT_ENDS = (*_FINAL_EFFECTS, "effect.cancelled")
# What is cancelled after it may have happened is said to be unknown.
_NO_EFFECT = ("effect.cancelled", "effect.unknown")
DECIDED_KIND = "action.decided"
STARTED_KIND = "effect.started"
REFUSED_KIND = "action.refused"
PROOF_KINDS = (*HOLD_ANSWERS, *_EFFECT_ENDS, STARTED_KIND, "effect.unknown", REFUSED_KIND)
# What denies an action beside its last decision.
_DENIALS = ("hold.denied", "hold.expired", REFUSED_KIND)
EntryRecord = tuple[Mapping[str, Any], bytes | None]

# The rule in the row of a permit whose run was a dead letter, and was taken up again.
REDRIVEN_RULE = "run.redriven"
# The revision in such a row: older than any, so that it is decided anew before it is repeated.
OUTDATED_REVISION = 0

_SIGNED_FIELDS = ("event", "agent", "action", "action_digest", "tool", "actor", "until")


def approval_bytes(entry: Mapping[str, Any]) -> bytes:
    """Return what an approval signs of its entry `hold.approved`: who approves what, until when."""
    value = {name: entry.get(name) for name in _SIGNED_FIELDS}
    return canonical_json({"schema": "vedette.approval/1", **value})


def format_signature(raw: bytes) -> str:
    """Return an approval's signature as the field `signature` of an entry has it."""
    return base64.b64encode(raw).decode("ascii")


def is_approved(
    row: ActionRow, records: Sequence[EntryRecord], is_signed: Callable[[bytes, bytes], bool]
) -> bool:
    """Say whether the last answer to a hold is the approval that its row tells of, not used yet.

    A permit alone does not use it (there may be no room for its effect): what came of that does.
    `is_signed` says whether a signature (the second) is the fleet's, of some bytes (the first).
    """
    answers = [entry for entry, _ in records if entry["kind"] in HOLD_ANSWERS]
    if not answers or answers[-1]["kind"] != "hold.approved":
        return False
    given = answers[-1]
    if any(entry["kind"] in _FINAL_EFFECTS and entry["seq"] > given["seq"] for entry, _ in records):
        return False
    named = (given.get("action_digest"), given.get("actor"), given.get("until"))
    if named != (row.digest, row.approver, row.until_us):
        return False
    try:
        signature = base64.b64decode(given.get("signature") or "", validate=True)
    except ValueError:
        return False
    return is_signed(approval_bytes(given), signature)


def find_row_fault(row: ActionRow, records: Sequence[EntryRecord]) -> str | None:
    """Return what an action's row says that its entries do not; None if it may be gone by."""
    decisions = [one for one in records if one[0]["kind"] == DECIDED_KIND]
    if not decisions:
        return "no entry says that it was decided"
    last = decisions[-1][0]
    if last["action_digest"] != row.digest:
        return "it was decided under another digest"
    planned = row.effect is not None and row.effect not in FINAL_STATES
    if planned and (last["outcome"] != "permit" or row.rule not in (last["rule"], REDRIVEN_RULE)):
        return f"its last decision is {last['outcome']} by {last['rule']}"
    ended = [
        entry
        for entry, _ in records
        if entry["kind"] in _EFFECT_ENDS and entry["seq"] > last["seq"]
    ]
    if planned and ended:
        return f"its last entry is {ended[-1]['kind']}"
    over = [entry for entry, _ in records if entry["kind"] in _FINAL_EFFECTS]
    if over and not row.is_final:
        return f"its effect is over: {over[-1]['kind']}"
    if planned and row.policy_rev not in (last["policy_rev"], OUTDATED_REVISION):
        return f"its last decision is of revision {last['policy_rev']}"
    question = _parse_request(decisions[0][1])
    if question is None:
        return "what was first asked of it cannot be read"
    for name, says, _ in compare_record(row.record or b"{}", question):
        return f"its {name} says {orjson.dumps(says).decode()[:120]}, which was not asked"
    return None


def _parse_request(body: bytes | None) -> Mapping[str, Any] | None:
    """Return the question in a decision's body; None for one that is gone, or is none."""
    try:
        request = orjson.loads(body or b"").get("question")
    except (ValueError, AttributeError):
        return None
    return request if isinstance(request, dict) else None


def find_end_fault(row: ActionRow, records: Sequence[EntryRecord]) -> str | None:
    """Return what the row of an action that is over says that its entries do not; None if it is so.

    Beside what `find_outcome_fault` says of an effect: that what is denied or cancelled was that.
    """
    if row.effect in ("done", "failed") or row.answer is not None:
        return find_outcome_fault(row, records)
    decisions = [entry for entry, _ in records if entry["kind"] == DECIDED_KIND]
    if not decisions or decisions[-1]["action_digest"] != row.digest:
        return "no entry says that this was decided"
    since = [entry["kind"] for entry, _ in records if entry["seq"] > decisions[-1]["seq"]]
    if over := [entry["kind"] for entry, _ in records if entry["kind"] in _FINAL_EFFECTS]:
        return f"its effect is over: {over[-1]}"
    if row.effect == "cancelled":
        ends = any(kind in _NO_EFFECT for kind in since)
        return None if ends else "no entry says that its effect was cancelled"
    denied = decisions[-1]["outcome"] == "deny" or any(kind in _DENIALS for kind in since)
    return None if denied else f"its last decision is {decisions[-1]['outcome']}"


def find_outcome_fault(row: ActionRow, records: Sequence[EntryRecord]) -> str | None:
    """Return what the row of an ended effect says that its entries do not; None if it is so.

    Beside what `find_fault` looks at: how it ended, what was answered, and what the last decision
    obliged to (which says whether the answer may be trusted).
    """
    fault = find_row_fault(row, records)
    if fault is not None:
        return fault
    last, body = [one for one in records if one[0]["kind"] == DECIDED_KIND][-1]
    ends = [data for entry, data in records
            if entry["kind"] == f"effect.{row.effect}" and entry["seq"] > last["seq"]]  # fmt: skip
    if not ends:
        return f"no entry says that its effect is {row.effect}"
    if ends[-1] != row.answer:
        return "its answer is not the one that was recorded"
    if body is None:
        return "what it was obliged to cannot be read"
    duties = orjson.loads(body)["decision"]["obligations"]
    if format_obligations(duties) != row.obliges:
        return f"its last decision does not oblige to {row.obliges or 'nothing'}"
    return None


def compare_record(record: bytes, request: Mapping[str, Any]) -> Iterator[tuple[str, Any, Any]]:
    """Yield (column, says, should) of what an action's record says that was not asked of it.

    `request` is the one of its action's first decision.
    """
    action, context = request.get("action"), request.get("context", {})
    if not isinstance(action, dict) or not isinstance(context, dict):
        yield "record", "what was asked of it", "unreadable"
        return
    try:
        fields = parse_record(record)
    except BadRecord as error:
        yield "record", f"unreadable: {error}", action.get("args")
        return
    request_fields = {name: action.get(name) for name in ("args", "sources", "readers")}
    request_fields["confidence"] = context.get("confidence")
    for name, right in request_fields.items():
        says = fields.get(name, {} if name == "readers" else None)
        if right is not None and says != right:
            yield "record", {name: says}, {name: right}
    if fields.get("asks", "") != context.get("asks", ""):
        yield "record", {"asks": fields.get("asks", "")}, {"asks": context.get("asks", "")}
    says, first = fields["origins"], action.get("origins") or fields["origins"]
    if not isinstance(first, dict):
        yield "record", {"origins": says}, {"origins": first}
        return
    # Told anew from the registry of the day whenever it is decided.
    anew = {at: first[at] for at in says.keys() & first.keys() - fields["sources"].keys()
            if says[at] == "registered"}  # fmt: skip
    if first not in _judged_readings(action, fields["args"], {**says, **anew}):
        yield "record", {"origins": says}, {"origins": first}


def _judged_readings(
    action: Mapping[str, Any], args: Mapping[str, Any], origins: Mapping[str, Any]
) -> list[Mapping[str, Any]]:
    """Return what policy was told of origins, both as of a tool with a schema and without: the
    question does not say which. What was told of sinks within arguments is made of the rest.
    """
    sinks = [sink for sink in action.get("sinks") or () if isinstance(sink, str)]
    try:
        return [judge_origins(sinks, args, origins, is_whole=whole) for whole in (False, True)]
    except (BadProposal, KeyError):  # sinks that are no pointers, origins that are none
        return []


# --- the record of a row ----------------------------------------------------------------------


class BadRecord(ValueError):
    """The error of an action's record that is none; says what of it is not so."""


def parse_record(raw: bytes) -> dict[str, Any]:
    """Return what `vedette.engine.turn.action_row` wrote: args, origins, sources, readers,
    confidence, why.

    Only `readers`, `inverse` and `asks` may be missing. Raises BadRecord for any other shape; what
    the values say is compared by `compare_record`.
    """
    try:
        record = orjson.loads(raw)
    except ValueError as error:
        raise BadRecord("it is no JSON") from error
    if not isinstance(record, dict):
        raise BadRecord("it is no object")
    _expect(isinstance(record.get("args"), dict), "args")
    _expect(_is_texts(record.get("origins")), "origins")
    _expect(_is_texts(record.get("sources")), "sources")
    _expect(_is_readers(record.get("readers", {})), "readers")
    _expect(type(record.get("confidence")) is int, "confidence")
    _expect(isinstance(record.get("why"), str), "why")
    _expect(isinstance(record.get("inverse", ""), str), "inverse")
    _expect(isinstance(record.get("asks", ""), str), "asks")
    return record


def _expect(fits: bool, name: str) -> None:
    if not fits:
        raise BadRecord(f"its {name!r} is missing, or of another shape")


def _is_texts(value: Any) -> bool:
    return isinstance(value, Mapping) and all(isinstance(each, str) for each in value.values())


def _is_readers(value: Any) -> bool:
    return isinstance(value, Mapping) and all(
        isinstance(names, list) and all(isinstance(name, str) for name in names)
        for names in value.values()
    )

"""Proves an action's row by its entries, before it is decided again or carried out.

The engine goes by rows, and nobody signs those: whoever can write to the database could write an
approval into one, a permit, or better origins. So a row that was read back from the store (after a
restart, a wait, a person's answer) counts as far as the entries of its action say the same: the
last decision, the first question, and for an approval its entry, which carries a signature of the
fleet's key of its own (an entry's place in the tree can be proved by a pass over the ledger only).
"""

from __future__ import annotations

import base64
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import orjson

from vedette.domain.action_record import BadRecord, read_record
from vedette.domain.base.canonical import canonical
from vedette.domain.effect import SETTLED
from vedette.domain.entry import ANSWERS
from vedette.domain.run import ActionRow

# What is read of an action; `Told` is one of these entries and its body, None if that is gone.
# An effect that was made, or given up, is over for good. A cancelled one is not: a person may take
# its run up again, and what is held again after a permit was cancelled, too.
_OVER = ("effect.done", "effect.failed")
_EFFECT_ENDS = (*_OVER, "effect.cancelled")
DECIDED = "action.decided"
STARTED = "effect.started"
READ = (*ANSWERS, *_EFFECT_ENDS, STARTED)
Told = tuple[Mapping[str, Any], bytes | None]

# The rule in the row of a permit whose run was a dead letter, and was taken up again.
REDRIVEN = "run.redriven"
# The revision in such a row: older than any, so that it is decided anew before it is repeated.
ANEW = 0

_SIGNED = ("event", "agent", "action", "action_digest", "tool", "actor", "until")


def approval_bytes(entry: Mapping[str, Any]) -> bytes:
    """Return what is signed of an entry `hold.approved`: who approves what, until when."""
    value = {name: entry.get(name) for name in _SIGNED}
    return canonical({"schema": "vedette.approval/1", **value})


def write_signature(raw: bytes) -> str:
    """Return a signature as the field `signature` of an entry has it."""
    return base64.b64encode(raw).decode("ascii")


def is_approved(
    row: ActionRow, told: Sequence[Told], is_signed: Callable[[bytes, bytes], bool]
) -> bool:
    """Say whether the last answer to a hold is the approval that its row tells of, not used yet.

    A permit alone does not use it (there may be no room for its effect): what came of that does.
    `is_signed` says whether a signature (the second) is the fleet's, of some bytes (the first).
    """
    answers = [entry for entry, _ in told if entry["kind"] in ANSWERS]
    if not answers or answers[-1]["kind"] != "hold.approved":
        return False
    given = answers[-1]
    if any(entry["kind"] in _OVER and entry["seq"] > given["seq"] for entry, _ in told):
        return False
    named = (given.get("action_digest"), given.get("actor"), given.get("until"))
    if named != (row.digest, row.approver, row.until_us):
        return False
    try:
        signature = base64.b64decode(given.get("signature") or "", validate=True)
    except ValueError:
        return False
    return is_signed(approval_bytes(given), signature)


def find_fault(row: ActionRow, told: Sequence[Told]) -> str | None:
    """Return what a row says that its entries do not; None if it may be gone by."""
    decisions = [one for one in told if one[0]["kind"] == DECIDED]
    if not decisions:
        return "no entry says that it was decided"
    last = decisions[-1][0]
    if last["action_digest"] != row.digest:
        return "it was decided under another digest"
    planned = row.effect is not None and row.effect not in SETTLED
    if planned and (last["outcome"] != "permit" or row.rule not in (last["rule"], REDRIVEN)):
        return f"its last decision is {last['outcome']} by {last['rule']}"
    ended = [
        entry for entry, _ in told if entry["kind"] in _EFFECT_ENDS and entry["seq"] > last["seq"]
    ]
    if planned and ended:
        return f"its last entry is {ended[-1]['kind']}"
    over = [entry for entry, _ in told if entry["kind"] in _OVER]
    if over and not row.settled:
        return f"its effect is over: {over[-1]['kind']}"
    if planned and row.policy_rev not in (last["policy_rev"], ANEW):
        return f"its last decision is of revision {last['policy_rev']}"
    question = _question(decisions[0][1])
    if question is None:
        return "what was first asked of it cannot be read"
    for name, says, _ in compare_record(row.record or b"{}", question):
        return f"its {name} says {orjson.dumps(says).decode()[:120]}, which was not asked"
    return None


def _question(body: bytes | None) -> Mapping[str, Any] | None:
    """Return the question in a decision's body; None for one that is gone, or is none."""
    try:
        question = orjson.loads(body or b"").get("question")
    except (ValueError, AttributeError):
        return None
    return question if isinstance(question, dict) else None


def find_outcome_fault(row: ActionRow, told: Sequence[Told]) -> str | None:
    """Return what the row of an ended effect says that its entries do not; None if it is so.

    Beside what `find_fault` looks at: how it ended, what was answered, and what the last decision
    obliged to (which says whether the answer may be trusted).
    """
    fault = find_fault(row, told)
    if fault is not None:
        return fault
    last, body = [one for one in told if one[0]["kind"] == DECIDED][-1]
    ends = [data for entry, data in told
            if entry["kind"] == f"effect.{row.effect}" and entry["seq"] > last["seq"]]  # fmt: skip
    if not ends:
        return f"no entry says that its effect is {row.effect}"
    if ends[-1] != row.answer:
        return "its answer is not the one that was recorded"
    if body is None:
        return "what it was obliged to cannot be read"
    duties = orjson.loads(body)["decision"]["obligations"]
    if write_duties(duties) != row.obliges:
        return f"its last decision does not oblige to {row.obliges or 'nothing'}"
    return None


def write_duties(obligations: Sequence[Mapping[str, str]]) -> str:
    """Return a decision's obligations as a row names them."""
    return ",".join(sorted({item["type"] for item in obligations}))


def compare_record(record: bytes, question: Mapping[str, Any]) -> Iterator[tuple[str, Any, Any]]:
    """Yield (column, says, should) of what a row's record says that was not asked of it.

    `question` is the one of its action's first decision.
    """
    action, context = question.get("action"), question.get("context", {})
    if not isinstance(action, dict) or not isinstance(context, dict):
        yield "record", "what was asked of it", "unreadable"
        return
    try:
        told = read_record(record)
    except BadRecord as error:
        yield "record", f"unreadable: {error}", action.get("args")
        return
    asked = {name: action.get(name) for name in ("args", "sources", "readers")}
    asked["confidence"] = context.get("confidence")
    for name, right in asked.items():
        says = told.get(name, {} if name == "readers" else None)
        if right is not None and says != right:
            yield "record", {name: says}, {name: right}
    says, first = told["origins"], action.get("origins") or told["origins"]
    if not isinstance(first, dict):
        yield "record", {"origins": says}, {"origins": first}
        return
    right = dict(first)
    for pointer in says.keys() & right.keys() - told["sources"].keys():
        if says[pointer] == "registered":
            # Told anew from the registry of the day whenever it is decided.
            right[pointer] = "registered"
    if says != right:
        yield "record", {"origins": says}, {"origins": right}

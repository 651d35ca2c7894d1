"""The history of one action: what was decided of it, what people answered, what came of it.

An action is found by its idempotency key, which is its id. Its history is a fold of the entries
about it, in their order; all views of an action are made from here. Each entry can be held
against those before it: an effect that nothing permitted, a plan made twice, an approval that
nobody gave and a question about another action are faults.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import orjson
from msgspec import Struct

from vedette.domain.effect import OPEN_STATES, EffectState
from vedette.domain.entry import EFFECT_KINDS, HOLD_ANSWERS
from vedette.domain.origin import escape_pointer
from vedette.domain.row_proof import BadRecord, parse_record
from vedette.domain.run import ActionRow
from vedette.domain.sink import find_places
from vedette.ledger.history.entry_view import (
    AnswerEntry,
    ClaimEntry,
    DecisionEntry,
    EffectEntry,
    EntryView,
    JudgementEntry,
    NoteEntry,
    WithdrawalEntry,
)

# The kinds that decide of an action or move its effect.
ACTION_KINDS = frozenset(
    {"action.decided", "action.refused", "budget.refused", *HOLD_ANSWERS, *EFFECT_KINDS}
)
# Outcomes after which a call is repeated, as long as there are tries.
RETRY_OUTCOMES = ("retry", "unknown")

Finding = dict[str, Any]


def finding(code: str, seq: int, what: str) -> Finding:
    """Return a finding of an action's history: its code, the entry it is at, and a sentence."""
    return {"code": code, "seq": seq, "what": what}


class ActionHistory(Struct, frozen=True):
    """The history of one action: what the ledger's entries about it come to, in their order.

    Content that was erased is not told; `missing_fields` names what the ledger does not tell though
    it should, erased content aside.
    """

    id: str
    run: str = ""
    agent: str = ""
    event: str | None = None
    tool: str = ""
    decisions: tuple[DecisionEntry, ...] = ()
    answers: tuple[AnswerEntry, ...] = ()
    effects: tuple[EffectEntry, ...] = ()
    attention: tuple[ClaimEntry | NoteEntry, ...] = ()
    # By which (outcome, rule) it stands, and the entry that planned its effect.
    outcome: str | None = None
    rule: str | None = None
    plan: int | None = None

    @classmethod
    def start(cls, entry: EntryView) -> ActionHistory:
        """Return the history of an action before its first entry, which this is."""
        action, run, agent = str(entry.action), str(entry.run), str(entry.agent)
        return cls(action, run, agent, entry.event, str(entry.tool))

    def with_entry(self, entry: EntryView) -> ActionHistory:
        """Return the history with the next entry about the action."""
        decisions, answers, effects, attention = (
            self.decisions, self.answers, self.effects, self.attention
        )  # fmt: skip
        outcome, rule, plan = self.outcome, self.rule, self.plan
        if isinstance(entry, DecisionEntry):
            decisions += (entry,)
            outcome, rule = str(entry.outcome), entry.rule
        elif isinstance(entry, EffectEntry):
            effects += (entry,)
            if (word := entry.change) in ("intended", "cancelled"):
                plan = entry.seq if word == "intended" else None
        elif isinstance(entry, AnswerEntry):
            answers += (entry,)
            if entry.answer != "approved":
                outcome, rule = "deny", entry.kind
        elif isinstance(entry, WithdrawalEntry):
            outcome, rule = entry.outcome, entry.rule
        elif isinstance(entry, ClaimEntry | NoteEntry):
            attention += (entry,)
        else:
            return self
        return ActionHistory(
            self.id, self.run, self.agent, self.event, self.tool,
            decisions, answers, effects, attention, outcome, rule, plan,
        )  # fmt: skip

    # --- what was decided -------------------------------------------------------------------

    @property
    def decision(self) -> DecisionEntry | None:
        """Return the decision that was made last."""
        return self.decisions[-1] if self.decisions else None

    @property
    def readable_decision(self) -> DecisionEntry | None:
        """Return the last decision whose question is there to be read."""
        return next((one for one in reversed(self.decisions) if one.body is not None), None)

    @property
    def erased(self) -> bool:
        """Say whether the question of a decision was erased."""
        return any(one.body is None for one in self.decisions)

    @property
    def digest(self) -> str | None:
        """Return the digest of the exact action that was decided last."""
        return self.decision.digest if self.decision is not None else None

    @property
    def identity(self) -> str | None:
        """Return the SPIFFE ID that asked."""
        return (
            self.readable_decision.subject.get("id") if self.readable_decision is not None else None
        )

    @property
    def origins(self) -> Mapping[str, str] | None:
        """Return where its arguments come from, by JSON Pointer."""
        return (
            self.readable_decision.requested_action.get("origins")
            if self.readable_decision is not None
            else None
        )

    @property
    def settles(self) -> str | None:
        """Return how its tool settles a call of unknown outcome."""
        return (
            self.readable_decision.requested_action.get("settles")
            if self.readable_decision is not None
            else None
        )

    @property
    def approval(self) -> AnswerEntry | None:
        """Return the answer of a person by which the last question was permitted."""
        decision = self.readable_decision
        return None if decision is None else self._approval(decision)

    def _approval(self, decision: DecisionEntry) -> AnswerEntry | None:
        if not decision.approvals or decision.outcome != "permit":
            return None
        by, digest = (decision.approvals[0].get(name) for name in ("by", "action_digest"))
        return next(
            (
                one
                for one in reversed(self.answers)
                if one.answer == "approved" and one.actor == by and one.seq < decision.seq
                and digest == decision.digest
            ),
            None,
        )  # fmt: skip

    # --- what people said meanwhile ---------------------------------------------------------

    @property
    def notes(self) -> list[NoteEntry]:
        """Return what people noted about its hold."""
        return [one for one in self.attention if isinstance(one, NoteEntry)]

    def claim_at(self, now_us: int) -> ClaimEntry | None:
        """Return who claimed its hold last, if that claim still stands. A claim is no lock."""
        claims = [one for one in self.attention if isinstance(one, ClaimEntry)]
        return claims[-1] if claims and int(claims[-1].until or 0) > now_us else None

    # --- what came of it --------------------------------------------------------------------

    @property
    def key(self) -> str:
        """Return the idempotency key under which the target knows the effect."""
        return self.id.removeprefix("act_")

    @property
    def state(self) -> EffectState | None:
        """Return the state that the effect is in; None if nothing was begun."""
        return self.effects[-1].state if self.effects else None

    @property
    def is_open(self) -> bool:
        """Say whether the end of the effect is not known."""
        return self.state in OPEN_STATES

    @property
    def is_external(self) -> bool:
        """Say whether the effect is done at a target, not in the fleet's own rows."""
        return self.settles != "transactional"

    @property
    def missing_fields(self) -> list[str]:
        """Return what the ledger does not tell of an effect; an empty list if it tells all."""
        last = self.decision
        fields: dict[str, Any] = {
            "event": self.event,
            "revision": last and last.revision,
            "bundle": last and last.bundle,
            "decision": self.outcome,
            "digest": self.digest,
        }
        if not self.erased:
            fields |= {"identity": self.identity, "origins": self.origins}
        if self.is_external:
            fields["intent"] = self.plan
        return [name for name, value in fields.items() if value is None]

    # --- what is wrong with it --------------------------------------------------------------

    def faults(self, entry: EntryView) -> list[Finding]:
        """Return what is wrong with the next entry about the action, by those before it."""
        if isinstance(entry, DecisionEntry):
            return self._decision_faults(entry)
        return self._effect_faults(entry) if isinstance(entry, EffectEntry) else []

    def _decision_faults(self, entry: DecisionEntry) -> list[Finding]:
        if entry.body is None:
            return []
        wrong = []
        if entry.requested_action.get("digest") != entry.digest:
            what = f"{self.id} was decided by a question about another action"
            wrong.append(finding("digest", entry.seq, what))
        approved = entry.approvals and entry.outcome == "permit"
        if approved and self._approval(entry) is None:
            what = f"{self.id} was permitted by an approval that nobody gave"
            wrong.append(finding("approval", entry.seq, what))
        return wrong

    def _effect_faults(self, entry: EffectEntry) -> list[Finding]:
        seq, word, wrong = entry.seq, entry.change, []
        if entry.key not in (None, self.key):
            wrong.append(finding("key", seq, f"{self.id} has an effect under another key"))
        if word == "intended":
            if self.outcome != "permit":
                wrong.append(finding("unpermitted", seq, f"{self.id} was intended unpermitted"))
            if self.plan is not None and not self._may_replan:
                wrong.append(finding("twice", seq, f"{self.id} was intended twice"))
        elif self.plan is None and not (self.outcome == "permit" and self._needs_no_plan):
            wrong.append(finding("unplanned", seq, f"{self.id} came to {word} without a plan"))
        return wrong

    @property
    def _needs_no_plan(self) -> bool:
        """Say whether the effect may be written in the step itself, as far as that is known."""
        return self.erased or not self.is_external

    @property
    def _may_replan(self) -> bool:
        """Say whether a call of unknown outcome may be planned anew: it was decided again since.

        What was begun is not cancelled when it is taken back: nobody may know what came of it.
        """
        last = self.decision
        return self.state == "unknown" and last is not None and last.seq > self.effects[-1].seq


def history_of(action: str, entries: Iterable[EntryView]) -> ActionHistory:
    """Return the history that the entries about an action come to, oldest first."""
    history: ActionHistory | None = None
    for entry in entries:
        history = (history or ActionHistory.start(entry)).with_entry(entry)
    return history or ActionHistory(action)


# --- as explain and the list of holds show it ---------------------------------------------------


def action_object(
    row: ActionRow, history: ActionHistory, turns: Sequence[JudgementEntry] = ()
) -> dict[str, Any]:
    """Return an action as explain and the inbox show it: what its row and its entries tell.

    What was asked and decided is that of the entries, where it stands now that of its row. `turns`
    are the recorded turns of its run.
    """
    last = next((one for one in reversed(history.decisions) if one.request), None)
    requested = last.request["action"] if last is not None else None
    settles = requested["settles"] if requested else None
    proposal = _proposal(row, turns)
    record = _record(row)
    return {
        "id": row.id,
        "turn": row.turn,
        "ordinal": row.ordinal,
        "tool": row.tool,
        "verb": requested["verb"] if requested else None,
        "resource": last.request["resource"] if last is not None else None,
        "settles": settles,
        "high_impact": requested["high_impact"] if requested else None,
        "inverse": record.get("inverse"),
        "digest": row.digest,
        "why": proposal.get("why") or record.get("why"),
        "confidence_milli": record.get("confidence"),
        "erased": requested is None,
        "arguments": _arguments(requested, proposal, record),
        "decisions": [_decision(one) for one in history.decisions],
        "outcome": row.decided,
        "rule": row.rule,
        "revision": row.policy_rev,
        "hold": _hold(row, history),
        "effect": _effect(row, history, settles),
    }


def _record(row: ActionRow) -> Mapping[str, Any]:
    """Return what a row says of its action; nothing if that was erased, or is no record."""
    try:
        return parse_record(row.record) if row.record else {}
    except BadRecord:
        return {}


def _proposal(row: ActionRow, turns: Sequence[JudgementEntry]) -> Mapping[str, Any]:
    for turn in turns:
        if turn.turn == row.turn and turn.proposals and row.ordinal < len(turn.proposals):
            return turn.proposals[row.ordinal]
    return {}


def _arguments(
    requested: Mapping[str, Any] | None, proposal: Mapping[str, Any], record: Mapping[str, Any]
) -> list[dict[str, Any]] | None:
    """Return every argument with its origin; `source` is the pointer it was drawn from.

    A part of one follows it as a row of its own if it is a sink, was drawn by a reference, or has
    another origin than what it is a part of.
    """
    if requested is None:
        return None
    given, origins = proposal.get("args") or {}, requested["origins"]
    sinks = {at for sink in requested["sinks"] for at in find_places(requested["args"], sink)}
    named = {f"/{escape_pointer(name)}": (each or {}).get("ref") for name, each in given.items()}
    drawn = {**(record.get("sources") or {}), **{at: ref for at, ref in named.items() if ref}}
    # Where a part has something of its own to show: nothing is looked for below any other place.
    inner = {at[:end] for at in (*origins, *sinks) for end, c in enumerate(at) if c == "/" and end}
    arguments: list[dict[str, Any]] = []

    def add_argument(pointer: str, name: str, value: Any, above: str | None) -> None:
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
                below = f"{pointer}/{escape_pointer(str(key))}"
                add_argument(below, below[1:], part, origin)

    for name, value in requested["args"].items():
        add_argument(f"/{escape_pointer(name)}", name, value, None)
    return arguments


def _decision(one: DecisionEntry) -> dict[str, Any]:
    """Return one decision: outcome, rule and revision are always there, the rest until erased."""
    return {
        "seq": one.seq,
        "at": one.at,
        "outcome": one.outcome,
        "rule": one.rule,
        "reasons": one.reasons,
        "revision": one.revision,
        "bundle": one.bundle,
        "engine": one.engine,
        "wait": one.wait,
        "until": one.until,
        "would": one.would,
        "obligations": one.obligations,
        "requested_mode": one.subject.get("requested_mode"),
        "approvals": one.approvals,
        "stopped": one.context.get("stopped"),
        "erased": one.erased,
    }


def _hold(row: ActionRow, history: ActionHistory) -> dict[str, Any] | None:
    if row.hold is None:
        return None
    return {
        "id": "hold_" + row.id.removeprefix("act_"),
        "state": row.hold,
        "waits": row.waits,
        "until": row.until_us or None,
        "by": row.approver,
        "notes": notes_object(history),
        "answers": [
            {
                "seq": one.seq,
                "at": one.at,
                "answer": one.answer,
                "by": one.actor,
                "reason": one.reason,
                "until": one.until,
                "shown_digest": one.shown_digest,
                "erased": one.erased,
            }
            for one in history.answers
        ],
    }


def notes_object(history: ActionHistory) -> list[dict[str, Any]]:
    """Return the notes that the ledger has of a hold, oldest first; erased text is null."""
    return [
        {"seq": n.seq, "at": n.at, "by": n.actor, "text": n.text, "erased": n.erased}
        for n in history.notes
    ]


def format_tries(effect: Mapping[str, Any]) -> str:
    """Say how often an explained effect was tried if its states do not: it is open, or given up."""
    outcome = effect["outcome"] or {}
    if effect["state"] == "failed" and outcome.get("state") in RETRY_OUTCOMES:
        return "its tries are used up"
    if effect["state"] in OPEN_STATES and effect["tries"]:
        return f"tried {format_tries_count(effect['tries'])} so far"
    return ""


def format_awaited(awaits: Mapping[str, Any]) -> str:
    """Say what an action waits for (`tell_awaited`); until when is for the caller to add."""
    if awaits["waits"] != "event":
        return {"time": "its time", "child": "another run"}[awaits["waits"]]
    args = awaits["for"] or {}
    source = {"/source": args["source"]} if "source" in args else {}
    where = {**args.get("where", {}), **source}
    of = f" with {orjson.dumps(where).decode()}" if where else ""
    return f"an event {args.get('event', '(erased)')}{of}"


def format_quiet_time(effect: Mapping[str, Any]) -> str:
    """Say that an explained effect's call has its quiet time still; nothing if it has none.

    What is said has a place for the instant, `{at}`.
    """
    if effect["state"] not in ("started", "unknown") or not effect["next_try_at"]:
        return ""
    return "nobody knows yet, and nobody is asked before the call's time is over, at {at}"


def format_tries_count(number: int) -> str:
    """Return a number of tries in words, as explain and the report tell it."""
    return "once" if number == 1 else f"{number:,} times"


def _certainty(row: ActionRow, history: ActionHistory, settles: str | None) -> str | None:
    """Return whose word it is that an effect is done: verified at the target, or claimed."""
    if row.effect != "done":
        return None
    sure = any(one.verified for one in history.effects if one.state == "done")
    # What a transactional tool writes is part of the commit that says so.
    return "verified" if sure or settles == "transactional" else "claimed"


def _effect(row: ActionRow, history: ActionHistory, settles: str | None) -> dict[str, Any] | None:
    if row.effect is None and not history.effects:
        return None
    answered = next((one for one in reversed(history.effects) if one.get("body")), None)
    return {
        "id": "eff_" + history.key,
        "key": history.key,
        "state": row.effect,
        "tries": row.tries,
        "next_try_at": None if row.is_awaited else row.not_before_us or None,
        "awaits": tell_awaited(row),
        "outcome": answered.body if answered else None,
        "word": _certainty(row, history, settles),
        "erased": bool(answered and answered.erased),
        "states": effect_states(history),
    }


def tell_awaited(row: ActionRow) -> dict[str, Any] | None:
    """Return what an action waits for whose outcome comes later, and until when; None: nothing.

    `for` are its arguments, as far as they are not erased.
    """
    if not row.is_awaited:
        return None
    args = parse_record(row.record)["args"] if row.record else None
    return {"waits": row.waits, "until": row.not_before_us, "for": args}


def effect_states(history: ActionHistory) -> list[dict[str, Any]]:
    """Return the changes of an effect, out of its action's history, oldest first."""
    return [
        {
            "seq": one.seq, "at": one.at, "state": one.change, "revision": one.revision,
            "tries": one.tries,
        }
        for one in history.effects
    ]  # fmt: skip

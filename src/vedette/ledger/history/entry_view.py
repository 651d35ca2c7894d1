"""Entries as people see them: what an entry and its body say, by the entry's kind.

Here the fields and bodies of the ledger get their meaning for all that reads it: a `DecisionEntry`
tells its question, an `EffectEntry` its outcome, a `JudgementEntry` its label. Which kind has what
is in `vedette.domain.entry`. A body that was erased tells nothing: its parts are None or empty, and
`erased` is said.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Generic, TypeVar

import orjson
from msgspec import Struct

from vedette.domain.artefact import HEAD_CHARS, STORED_KIND, artefact_id
from vedette.domain.effect import EffectState, state_after
from vedette.domain.entry import EFFECT_KINDS, HOLD_ANSWERS
from vedette.domain.notes import decode_notes

T = TypeVar("T")


class _Field(Generic[T]):
    """A field of the entry; None if it has no such field."""

    def __init__(self, name: str) -> None:
        self.name = name

    def __get__(self, view: EntryView, owner: type) -> T:
        value: T = view.entry.get(self.name)  # type: ignore[assignment]
        return value


class _Content(Generic[T]):
    """A field of the body; None if the body is erased or has no such field."""

    def __init__(self, name: str) -> None:
        self.name = name

    def __get__(self, view: EntryView, owner: type) -> T:
        value: T = view.content(self.name)
        return value


JsonObject = Mapping[str, Any]


class EntryView(Struct, frozen=True):
    """One entry of the ledger with its body as JSON; `erased` says that it has its body no more.

    Instants (`at`) are microseconds UTC.
    """

    seq: int
    entry: Mapping[str, Any]
    body: Any
    erased: bool

    at = _Field[int]("at")
    about = _Field[int | None]("about")
    run = _Field[str | None]("run")
    event = _Field[str | None]("event")
    agent = _Field[str | None]("agent")
    action = _Field[str | None]("action")
    tool = _Field[str | None]("tool")
    actor = _Field[str | None]("actor")
    why = _Content[Any]("why")

    @property
    def kind(self) -> str:
        """Return the kind of entry."""
        return str(self.entry["kind"])

    def get(self, name: str) -> Any:
        """Return a field of the entry, or None."""
        return self.entry.get(name)

    def content(self, name: str) -> Any:
        """Return a field of the body; None if the body is erased or has no such field."""
        return self.body.get(name) if isinstance(self.body, dict) else None

    def without_content(self, fields: Mapping[str, Any]) -> EntryView:
        """Return the entry with these fields, without what of its content may be long."""
        return build_view(self.seq, fields, self.body, erased=self.erased)

    def item(self) -> dict[str, Any]:
        """Return the entry as an item of a timeline."""
        fields = {
            name: value
            for name, value in self.entry.items()
            if name not in ("v", "seq", "at", "kind", "cause", "body")
        }
        item = {"seq": self.seq, "at": self.entry["at"], "kind": self.kind, **fields}
        return {**item, "cause": self.get("cause"), "body": self.body, "erased": self.erased}


# --- of an action -------------------------------------------------------------------------------


class DecisionEntry(EntryView, frozen=True):
    """The view of `action.decided`: what policy decided of an action, and the question to it."""

    outcome = _Field[str]("outcome")
    rule = _Field[str | None]("rule")
    revision = _Field[int | None]("policy_rev")
    bundle = _Field[str | None]("bundle")
    engine = _Field[str | None]("engine")
    release = _Field[str | None]("release")
    digest = _Field[str | None]("action_digest")
    wait = _Field[str | None]("wait")
    until = _Field[int | None]("until")
    would = _Field[str | None]("would")

    @property
    def needs_approval(self) -> bool:
        """Say whether the action came to wait for a person's approval by this."""
        return self.outcome == "hold" and self.wait == "approval"

    @property
    def request(self) -> JsonObject:
        """Return the question (docs/design/question.md); empty once erased."""
        return self.content("question") or {}

    @property
    def requested_action(self) -> JsonObject:
        """Return the action as the question has it."""
        return self.request.get("action") or {}

    @property
    def context(self) -> JsonObject:
        """Return what the question tells beside subject, action and resource."""
        return self.request.get("context") or {}

    @property
    def subject(self) -> JsonObject:
        """Return who asked, as the question has it."""
        return self.request.get("subject") or {}

    @property
    def reasons(self) -> Sequence[str] | None:
        """Return the names of all rules that spoke."""
        return (self.content("decision") or {}).get("reasons")

    @property
    def obligations(self) -> Sequence[JsonObject] | None:
        """Return what must be done along with the action."""
        return (self.content("decision") or {}).get("obligations")

    @property
    def approvals(self) -> Sequence[JsonObject] | None:
        """Return the approvals that policy was shown: `by`, `action_digest`, `until`."""
        return self.context.get("approvals")

    def without_content(self, fields: Mapping[str, Any]) -> EntryView:
        """Return the decision with who asked what about which event, without its arguments."""
        if self.body is None:
            return DecisionEntry(self.seq, fields, None, self.erased)
        parts: Mapping[str, tuple[JsonObject, tuple[str, ...]]] = {
            "subject": (self.subject, ("id",)),
            "action": (self.requested_action, ("digest", "origins", "settles")),
            "context": (self.context, ("turn", "event", "approvals")),
        }
        question = {
            part: {name: part_fields[name] for name in names if name in part_fields}
            for part, (part_fields, names) in parts.items()
        }
        return DecisionEntry(self.seq, fields, {"question": question}, self.erased)


class WithdrawalEntry(EntryView, frozen=True):
    """The view of a permit that does not stand: no room for it, or its action is another by now.

    `budget.refused` leaves it held and `action.refused` denied. Without an action, the first is of
    a turn that there was no room for, the second of a proposal (`turn`, `ordinal`) that was none.
    """

    turn = _Field[int | None]("turn")
    ordinal = _Field[int | None]("ordinal")

    @property
    def outcome(self) -> str:
        """Return what became of the permit: hold or deny."""
        return "hold" if self.kind == "budget.refused" else "deny"

    @property
    def rule(self) -> str:
        """Return by which rule."""
        return self.get("rule") or "engine.changed"


class AnswerEntry(EntryView, frozen=True):
    """The view of a hold's answer: `approved` or `denied` by a person, `expired` by nobody."""

    until = _Field[int | None]("until")
    shown_digest = _Field[str | None]("shown_digest")
    reason = _Content[str | None]("reason")

    @property
    def answer(self) -> str:
        """Return approved, denied or expired."""
        return self.kind.removeprefix("hold.")


class ClaimEntry(EntryView, frozen=True):
    """The view of `hold.claimed`: a person looks at a hold, until an instant."""

    until = _Field[int | None]("until")


class NoteEntry(EntryView, frozen=True):
    """The view of `hold.noted`: what a person noted about a hold."""

    text = _Content[str | None]("note")


class EffectEntry(EntryView, frozen=True):
    """A change of an effect; its body is the outcome (`vedette.domain.effect.Outcome`), where it
    has one.

    `verified` is said of one that is done where its target says so itself.
    """

    revision = _Field[int | None]("policy_rev")
    key = _Field[str | None]("effect_key")
    tries = _Field[int | None]("tries")
    verified = _Field[bool | None]("verified")
    result = _Content[str | None]("state")
    data = _Content[JsonObject | None]("data")

    @property
    def change(self) -> str:
        """Return what the entry calls the change; `absent` plans the effect anew."""
        return self.kind.removeprefix("effect.")

    @property
    def state(self) -> EffectState:
        """Return the state that the effect is in from then on."""
        return state_after(self.kind)

    def without_content(self, fields: Mapping[str, Any]) -> EntryView:
        """Return the change without its outcome."""
        return EffectEntry(self.seq, fields, None, self.erased)


class ArtefactEntry(EntryView, frozen=True):
    """The view of `artefact.stored`; its body is the artefact (`vedette.domain.artefact`).

    Of the text a list shows the beginning, as a reference does; `artefact show` reads it.
    """

    type = _Field[str]("what")
    size = _Field[int]("size")
    text = _Content[str | None]("text")
    head = _Content[str | None]("head")
    label = _Content[str | None]("label")
    readers = _Content[Sequence[str] | None]("readers")

    @property
    def id(self) -> str:
        """Return the artefact's id."""
        return artefact_id(str(self.event), self.entry["body"])

    def item(self) -> dict[str, Any]:
        """Return the entry as an item of a timeline, with the beginning of the text only."""
        item = super().item()
        if isinstance(self.body, dict):
            kept = {name: self.body[name] for name in self.body if name != "text"}
            head = self.head if self.text is None else self.text[:HEAD_CHARS]
            item["body"] = {**kept, "artefact": self.id, "head": head}
        return item

    def without_content(self, fields: Mapping[str, Any]) -> EntryView:
        """Return the entry without the artefact."""
        return ArtefactEntry(self.seq, fields, None, self.erased)


# --- of a run -----------------------------------------------------------------------------------


class AcceptanceEntry(EntryView, frozen=True):
    """The view of `event.accepted`; its body is the event (`vedette.domain.event.Event.to_body`).

    Only what a person had the engine make, an undo or a correction, has a `cause`.
    """

    cause = _Field[int | None]("cause")
    subject = _Content[str | None]("subject")
    time = _Content[str | None]("time")
    data = _Content[Any]("data")


class JudgementEntry(EntryView, frozen=True):
    """The view of a reasoner's answer: a turn, or all that an uneventful run has, its end.

    A run that had turns has an end without a label. Numbers are in thousandths.
    """

    turn = _Field[int | None]("turn")
    release = _Field[str | None]("release")
    confidence_milli = _Field[int | None]("confidence_milli")
    score_milli = _Field[int | None]("score_milli")
    threshold_milli = _Field[int | None]("threshold_milli")
    proposal_count = _Field[int | None]("proposals")
    proposals = _Content[Sequence[JsonObject] | None]("proposals")
    memories = _Content[Sequence[str] | None]("memories")
    detail = _Content[JsonObject | None]("detail")
    final = _Content[bool | None]("final")

    @property
    def notes(self) -> Any:
        """Return what the turn left for the run's next one; None if it left nothing."""
        text = self.content("notes")
        return None if text is None else decode_notes(text)

    @property
    def is_deferred(self) -> bool:
        """Say whether a judge was not sure enough, and the next turn is a model's."""
        return bool(self.get("what") == "deferred")

    @property
    def label(self) -> str | None:
        """Return what it was judged; of an erased turn what the entry itself keeps of it."""
        label: str | None = self.content("label") or self.get("label")
        return label


class SettlementEntry(EntryView, frozen=True):
    """The view of `budget.settled`: what a turn spent, and how its call of a model went."""

    turn = _Field[int]("turn")
    failure = _Field[str | None]("what")
    model_call = _Field[JsonObject | None]("model_call")


class RecallEntry(EntryView, frozen=True):
    """The view of `recall.decided`: whether policy lets an agent read a scope of memories."""

    memory = _Field[str | None]("memory")
    outcome = _Field[str]("outcome")
    rule = _Field[str | None]("rule")
    bundle = _Field[str | None]("bundle")
    revision = _Field[int | None]("policy_rev")


class CorrectionEntry(EntryView, frozen=True):
    """The view of `run.corrected`: a person's `right`, or `wrong` and what it should have been."""

    outcome = _Field[str]("outcome")
    made_event = _Field[str | None]("what")
    was = _Content[str | None]("was")
    should = _Content[str | None]("should")
    note = _Content[str | None]("note")
    reason = _Content[str | None]("reason")


class CandidateEntry(EntryView, frozen=True):
    """The view of `memory.proposed`: what a run, or a person, proposed to remember."""

    bank = _Field[str | None]("memory")
    id = _Field[str | None]("what")
    scope = _Content[str | None]("scope")
    memory_kind = _Content[str | None]("kind")
    label = _Content[str | None]("label")
    text = _Content[str | None]("text")


class DeathEntry(EntryView, frozen=True):
    """The view of `run.dead`: a run was given up, and is a dead letter."""

    trace = _Content[str | None]("trace")

    @property
    def error(self) -> str | None:
        """Return the class of the reason: what it says before its first colon."""
        return self.why.partition(":")[0] if isinstance(self.why, str) else None


_VIEWS: Mapping[str, type[EntryView]] = {
    "event.accepted": AcceptanceEntry,
    "recall.decided": RecallEntry,
    "turn.reasoned": JudgementEntry,
    "run.closed": JudgementEntry,
    "run.corrected": CorrectionEntry,
    "run.dead": DeathEntry,
    "memory.proposed": CandidateEntry,
    "action.decided": DecisionEntry,
    "action.refused": WithdrawalEntry,
    "budget.refused": WithdrawalEntry,
    "budget.settled": SettlementEntry,
    **dict.fromkeys(HOLD_ANSWERS, AnswerEntry),
    "hold.claimed": ClaimEntry,
    "hold.noted": NoteEntry,
    **dict.fromkeys(EFFECT_KINDS, EffectEntry),
    STORED_KIND: ArtefactEntry,
}


def read_entry(seq: int, raw: bytes, data: bytes | None) -> EntryView:
    """Read a ledger entry. Raises ValueError if it is no JSON, KeyError for an entry of no kind."""
    return view_entry(seq, orjson.loads(raw), data)


def view_entry(seq: int, entry: Mapping[str, Any], data: bytes | None) -> EntryView:
    """View an entry's fields with its body. A body that the entry does not name is not shown."""
    if "body" not in entry:
        return build_view(seq, entry, None, erased=False)
    return build_view(seq, entry, None if data is None else orjson.loads(data), erased=data is None)


def build_view(seq: int, entry: Mapping[str, Any], body: Any, *, erased: bool) -> EntryView:
    """Return the view of an entry, of the class that stands for the entry's kind."""
    return _VIEWS.get(entry["kind"], EntryView)(seq, entry, body, erased)

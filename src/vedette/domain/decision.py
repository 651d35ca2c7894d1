"""The request put to policy and the Decision that comes back: closed, typed, versioned shapes.

Whatever does not have exactly this shape is a deny. AuthZEN's words carry the request: subject,
action, resource, context.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property, lru_cache
from types import GenericAlias
from typing import Any, Literal, Protocol, cast, get_args

import orjson
from msgspec import UNSET, Struct, UnsetType, ValidationError, convert, defstruct
from msgspec.structs import replace

from vedette.domain.agent import Agent
from vedette.domain.base.canonical import canonical_json, canonicalize_normalized
from vedette.domain.base.errors import Unavailable
from vedette.domain.delegation import ASK_RULE, DelegationState, list_uncovered, needs_person
from vedette.domain.done_condition import PERSON_ASKED, TaskState, list_unmet
from vedette.domain.entry import Body, Draft
from vedette.domain.event import Event
from vedette.domain.origin import Origin

REQUEST_SCHEMA = "vedette.question/2"
# What was asked before: such records are decided again, under the bundles of their time.
REQUEST_SCHEMA_1 = "vedette.question/1"
DECISION_SCHEMA = "vedette.decision/1"

DecisionOutcome = Literal["permit", "hold", "deny"]
WaitReason = Literal["approval", "time", "resume"]

# Obligations that the engine knows how to fulfil. One it does not know is a deny.
OBLIGATIONS = frozenset({"notify", "label_output", "verify"})


class Decision(Struct, frozen=True, dict=True):
    """A decision of policy. `rule` is the deciding rule, `reasons` all that spoke.

    `wait` says what a hold waits for, `until_us` until when (0: until a person acts or the hold
    expires). `would` is what the outcome would have been in mode act. `obligations` are all known.
    """

    outcome: DecisionOutcome
    rule: str
    reasons: tuple[str, ...]
    wait: WaitReason | None = None
    until_us: int = 0
    would: DecisionOutcome | None = None
    obligations: tuple[Mapping[str, str], ...] = ()

    def to_json(self) -> dict[str, Any]:
        """Return the decision as it is recorded."""
        return {
            "schema": DECISION_SCHEMA,
            "outcome": self.outcome,
            "rule": self.rule,
            "reasons": list(self.reasons),
            "wait": self.wait,
            "until": self.until_us,
            "would": self.would,
            "obligations": [dict(item) for item in self.obligations],
        }

    @cached_property
    def encoded(self) -> bytes:
        """The canonical bytes of the decision as it is recorded."""
        return canonical_json(self.to_json())

    @cached_property
    def duties(self) -> str:
        """The types of its obligations as an action's row names them."""
        return format_obligations(self.obligations)


def format_obligations(obligations: Sequence[Mapping[str, str]]) -> str:
    """Return a Decision's obligations as an action's row names them."""
    return ",".join(sorted({item["type"] for item in obligations}))


def build_denial(rule: str, *reasons: str) -> Decision:
    """Return the Decision, a deny, that stands where policy gave no usable answer."""
    return Decision("deny", rule, reasons or (rule,))


# Of an answer this long what was parsed is kept; one of a shipped policy has some 200 bytes.
_KEPT_BYTES = 4096
_TEXT = frozenset({str})
_DECISION_KEYS = {"schema", "outcome", "rule", "reasons", "wait", "until", "would", "obligations"}


def parse_decision(raw: object) -> Decision:
    """Parse an engine's answer into a Decision: all but the exact shape is a deny; never raise."""
    if not isinstance(raw, dict):
        return build_denial("engine.undefined", "the policy gave no decision")
    if raw.keys() != _DECISION_KEYS or raw["schema"] != DECISION_SCHEMA:
        return build_denial("engine.shape", "the policy's answer is not a " + DECISION_SCHEMA)
    outcome, rule, reasons = raw["outcome"], raw["rule"], raw["reasons"]
    if outcome not in ("permit", "hold", "deny") or not isinstance(rule, str) or not rule:
        return build_denial("engine.shape", "the policy's answer has no outcome or no rule")
    if type(reasons) is not list or not _TEXT.issuperset(map(type, reasons)):
        return build_denial("engine.shape", "the policy's reasons are not texts")
    wait, until, would = raw["wait"], raw["until"], raw["would"]
    if wait not in (None, "approval", "time", "resume") or (outcome == "hold") != (
        wait is not None
    ):
        return build_denial(
            "engine.shape", "a hold must say what it waits for, and nothing else may"
        )
    if type(until) is not int or until < 0:
        return build_denial("engine.shape", "the policy's 'until' is not an instant")
    if wait == "time" and until == 0:
        return build_denial("engine.shape", "a hold for time must say until when")
    if would not in (None, "permit", "hold", "deny"):
        return build_denial("engine.shape", "the policy's 'would' is not an outcome")
    obligations = raw["obligations"]
    if not isinstance(obligations, list):
        return build_denial("engine.shape", "the policy's obligations are not a list")
    for item in obligations:
        if not isinstance(item, dict) or not all(isinstance(value, str) for value in item.values()):
            return build_denial("engine.shape", "an obligation is not an object of texts")
        if item.get("type") not in OBLIGATIONS:
            return build_denial("engine.obligation", f"unknown obligation {item.get('type')!r}")
    ordered = tuple(sorted(obligations, key=lambda item: sorted(item.items())))
    return Decision(outcome, rule, tuple(sorted(reasons)), wait, until, would, ordered)


def parse_decision_text(raw: object) -> Decision:
    """Parse an engine's answer that is given as its JSON (bytes) as `parse_decision` does.

    What was parsed of a short one is kept: a policy says the same few things over and over.
    """
    if type(raw) is not bytes:
        return parse_decision(None)
    return _parse_known(raw) if len(raw) <= _KEPT_BYTES else _parse_text(raw)


def _parse_text(raw: bytes) -> Decision:
    try:
        answer = orjson.loads(raw)
    except ValueError:
        answer = None
    return parse_decision(answer)


_parse_known = lru_cache(256)(_parse_text)


# --- what is asked ----------------------------------------------------------------------------


class Approval(Struct, frozen=True):
    """A person's approval of a hold, as far as policy may see it."""

    action_digest: str
    by: str
    until_us: int


class DecisionContext(Struct, frozen=True):
    """The context of a Decision: what is known of the run while its action is decided.

    `memories` are what the turn was briefed with: (citation, trust) each. `trigger` is given only
    where it is asked what would be: else it is the one that the event wakes the agent by. Of an
    action that reads an artefact `artefact` says whose that is (`domain.artefact.Owner`). `task` is
    what the engine found of a task's done conditions, where its finish is decided; `refuses` the
    rule of its own by which it does not let a task's action be done. `escrow` are the actions that
    an ask would set aside: its agent's counters are asked about with those taken.
    """

    agent: Agent
    event: Event
    turn: int
    now_us: int
    memories: Sequence[tuple[str, str]] = ()
    actions_in_run: int = 0
    stopped: bool = False
    approval: Approval | None = None
    trigger: str | None = None
    artefact: str = ""
    task: TaskState | None = None
    delegation: DelegationState | None = None
    refuses: str = ""
    escrow: int = 0


_RequestShape = Mapping[str, Mapping[str, type]]

_SHAPE_1: _RequestShape = {
    "subject": {"id": str, "agent": str, "release": str, "owner": str, "requested_mode": str},
    "action": {
        "tool": str,
        "verb": str,
        "digest": str,
        "declared": str,
        "settles": str,
        "high_impact": bool,
        "args": dict,
        "origins": dict,
        "sinks": list,
    },
    "resource": {"type": str, "id": str},
    "context": {
        "event": dict,
        "confidence": int,
        "memories": list,
        "counters": dict,
        "budget": dict,
        "approvals": list,
        "stopped": bool,
        "turn": int,
    },
}
_SHAPE_2: _RequestShape = {
    **_SHAPE_1,
    "action": {**_SHAPE_1["action"], "sources": dict, "links": list, "readers": dict},
    "context": {**_SHAPE_1["context"], "trigger": str},
}
_SCHEMAS: Mapping[object, _RequestShape] = {REQUEST_SCHEMA: _SHAPE_2, REQUEST_SCHEMA_1: _SHAPE_1}
_REQUEST_KEYS = {"schema", "now", *_SHAPE_2}
# Fields that a request may have beside those of its shape.
_OPTIONAL: Mapping[str, Mapping[str, type]] = {
    "/context": {"artefact": str, "asks": str, "delegation": dict, "refuses": str, "task": dict}
}
_TASK = {"conditions": list, "person": bool}
_CONDITION = {"name": str, "held": bool, "why": str}
_DELEGATION = {"ancestors": list, "room": bool}
_ANCESTOR = {"agent": str, "cover": str, "owner": str, "requested_mode": str}
_EVENT = {"type": str, "source": str, "hops": int, "lineage": list, "vouched": list}
_COUNTERS = {"minute": int, "hour": int, "day": int, "run": int}
_BUDGET = {"hour": int, "day": int, "run": int}
_ORIGINS = get_args(Origin)
_APPROVAL = {"action_digest": str, "by": str, "until": int}
_LINK = {"at": str, "link": str, "host": str, "origin": str}


def _define_request() -> type[Struct]:
    """Return the type of a request of today's shape, for `msgspec.convert`."""

    def define(name: str, fields: Mapping[str, Any]) -> Any:
        return defstruct(name, [*fields.items()], forbid_unknown_fields=True)

    context = {
        **_SHAPE_2["context"],
        "event": define("Event", _EVENT),
        "counters": define("Counters", _COUNTERS),
        "budget": define("Budget", _BUDGET),
        "approvals": GenericAlias(list, define("Approval", _APPROVAL)),
    }
    action = {
        **_SHAPE_2["action"],
        "origins": dict[Any, Origin],
        "sources": dict[Any, str],
        "links": GenericAlias(list, define("Link", {**_LINK, "origin": Origin})),
        "readers": dict[Any, list[str]],
    }
    parts = {**_SHAPE_2, "action": action}
    fields = {name: define(name.title(), part) for name, part in parts.items()}
    conditions = GenericAlias(list, define("Condition", _CONDITION))
    task = define("Task", {**_TASK, "conditions": conditions})
    ancestors = GenericAlias(list, define("Ancestor", _ANCESTOR))
    delegation = define("Delegation", {**_DELEGATION, "ancestors": ancestors})
    texts = [(name, str, "") for name in ("artefact", "asks", "refuses")]
    optional = [
        *texts, ("task", task | UnsetType, UNSET), ("delegation", delegation | UnsetType, UNSET),
    ]  # fmt: skip
    fields["context"] = defstruct(
        "Context", [*context.items(), *optional], forbid_unknown_fields=True
    )
    return cast(
        "type[Struct]", define("Request", {"schema": Literal[REQUEST_SCHEMA], "now": int, **fields})
    )


_REQUEST = _define_request()


def check_request(request: Mapping[str, Any]) -> str | None:
    """Return what is wrong with a policy request's shape; None if it is a `vedette.question/2`.

    One of an older schema, as the ledger may hold it, is checked for the shape that it had.
    """
    try:
        convert(request, _REQUEST)
    except (ValidationError, UnicodeEncodeError):
        return _find_fault(request)
    return None


def _find_fault(request: Mapping[str, Any]) -> str | None:
    schema = request.get("schema")
    parts = _SCHEMAS.get(schema) if isinstance(schema, str) else None
    if parts is None or request.keys() != _REQUEST_KEYS:
        return "the question is not a " + REQUEST_SCHEMA
    if not _is_instance(request["now"], int):
        return "/now is not an instant"
    for part, fields in parts.items():
        wrong = _check_fields(request[part], fields, f"/{part}")
        if wrong:
            return wrong
    context = request["context"]
    wrong = (
        _check_fields(context["event"], _EVENT, "/context/event")
        or _check_fields(context["counters"], _COUNTERS, "/context/counters")
        or _check_fields(context["budget"], _BUDGET, "/context/budget")
    )
    for approval in context["approvals"]:
        wrong = wrong or _check_fields(approval, _APPROVAL, "/context/approvals")
    if "task" in context:
        task = context["task"]
        wrong = wrong or _check_fields(task, _TASK, "/context/task")
        for condition in () if wrong else task["conditions"]:
            wrong = wrong or _check_fields(condition, _CONDITION, "/context/task/conditions")
    if "delegation" in context:
        delegation = context["delegation"]
        wrong = wrong or _check_fields(delegation, _DELEGATION, "/context/delegation")
        for ancestor in () if wrong else delegation["ancestors"]:
            wrong = wrong or _check_fields(ancestor, _ANCESTOR, "/context/delegation/ancestors")
    for pointer, origin in request["action"]["origins"].items():
        if origin not in _ORIGINS:
            wrong = wrong or f"/action/origins{pointer} is not an origin"
    if parts is _SHAPE_2:
        wrong = wrong or _check_outgoing(request["action"])
    return wrong


def _check_outgoing(action: Mapping[str, Any]) -> str | None:
    """Return what is wrong with sources, links and readers of an action's arguments."""
    for link in action["links"]:
        wrong = _check_fields(link, _LINK, "/action/links")
        if wrong or link["origin"] not in _ORIGINS:
            return wrong or "/action/links has an origin that is none"
    for pointer, source in action["sources"].items():
        if not isinstance(source, str):
            return f"/action/sources{pointer} is no reference"
    for pointer, readers in action["readers"].items():
        if not isinstance(readers, list) or not all(isinstance(one, str) for one in readers):
            return f"/action/readers{pointer} is no list of readers"
    return None


def _check_fields(value: Any, fields: Mapping[str, Any], at: str) -> str | None:
    fields = {**fields, **{name: kind for name, kind in _OPTIONAL.get(at, {}).items()
                           if isinstance(value, dict) and name in value}}  # fmt: skip
    if not isinstance(value, dict) or value.keys() != fields.keys():
        return f"{at} has not exactly the fields {', '.join(sorted(fields))}"
    for name, kind in fields.items():
        if not _is_instance(value[name], kind):
            return f"{at}/{name} is not of its type"
    return None


def _is_instance(value: Any, kind: Any) -> bool:
    return isinstance(value, kind) and not (kind is int and isinstance(value, bool))


# --- asking, and what is recorded of it -------------------------------------------------------


class EngineAnswer(Struct, frozen=True):
    """The Decision that one policy engine answered to a request."""

    engine: str
    decision: Decision

    def to_json(self) -> dict[str, Any]:
        """Return the answer as it is recorded."""
        return {"engine": self.engine, "decision": self.decision.to_json()}


class DecisionRecord(Struct, frozen=True):
    """A Decision with all that is needed to make it again: the exact request and the bundle.

    `answers` are there where two engines were asked and differed: whose decision it would have
    been first. The decision is then the deny that `build_difference_denial` makes of them.
    """

    decision: Decision
    request: bytes
    policy_rev: int
    bundle: str
    engine: str
    answers: tuple[EngineAnswer, ...] = ()

    def to_body(self) -> bytes:
        """Return the body of the decision's entry: question, decision and answers, canonical."""
        answers = b""
        if self.answers:
            raw_answers = canonical_json([answer.to_json() for answer in self.answers])
            answers = b'"answers":%b,' % raw_answers
        return b'{%b"decision":%b,"question":%b}' % (
            answers,
            self.decision.encoded,
            self.request,
        )


DIFFERENCE_RULE = "engine.differs"
OTHER_ARTEFACT_RULE = "artefact.other"
# Who gave the other answer where nobody was there to be asked.
NO_ENGINE = "none"


def build_difference_denial(answers: Sequence[Mapping[str, Any]]) -> Decision:
    """Return the Decision, a deny, that stands where engines differed, by their recorded answers.

    A pure function of the record, so that replay makes the same of it.
    """
    return build_denial(
        DIFFERENCE_RULE,
        *(
            f"{answer['engine']}: {answer['decision']['outcome']} by {answer['decision']['rule']}"
            for answer in answers
        ),
    )


def difference_kind(other: EngineAnswer, where: str) -> str:
    """Return where Decisions were found to differ; `alone` if nobody else was there to be asked."""
    return "alone" if other.engine == NO_ENGINE else where


def build_difference_entry(record: DecisionRecord, where: str, **fields: Any) -> Draft:
    """Return the Draft for Decisions that differ: who would have decided, and both answers.

    `where` is `permit` (it was a deny at once) or `sample` (found afterwards); the entry says
    `alone` where there was nobody else to ask, so that nothing differed.
    """
    first, other = record.answers
    return Draft(
        "engine.differed",
        {
            "what": difference_kind(other, where),
            "engine": first.engine,
            "outcome": first.decision.outcome,
            "rule": first.decision.rule,
            "policy_rev": record.policy_rev,
            "bundle": record.bundle,
            **fields,
        },
        body=Body(canonical_json({"answers": [answer.to_json() for answer in record.answers]})),
    )


class NullPolicyEngine:
    """The policy engine that stands where none is to decide: the gateway denies."""

    name = "nobody"

    def decide(self, request: bytes) -> object:
        """Raise Unavailable."""
        raise Unavailable("no policy engine answers")


class Decider(Protocol):
    """What asking for a Decision needs of a policy engine.

    One that has its answers as JSON may have `decide_json` too: what `decide` returns,
    as bytes (None if undefined), for a question that whoever asks has encoded itself.
    """

    def decide(self, request: bytes) -> object: ...


def request_decision(engine: Decider, request: Mapping[str, Any]) -> tuple[Decision, bytes]:
    """Ask a policy engine for a Decision; return it and the exact bytes that were asked.

    The gateway and `verify decisions` both ask so. Whatever goes wrong is a deny: a question of
    another shape, an engine that fails, an answer that is not an exact decision.
    """
    denial, raw = check_decision_request(request)
    return evaluate_request(engine, raw) if denial is None else denial, raw


def check_decision_request(request: Mapping[str, Any]) -> tuple[Decision | None, bytes]:
    """Return the Decision, a deny, on a request of another shape, None for the right one.

    With it the exact bytes that are asked and recorded.
    """
    try:
        raw = canonicalize_normalized(request)
    except ValueError:
        # What has no canonical form cannot be recorded; the empty question stands for it.
        request, raw = {}, b"{}"
    problem = check_request(request)
    if problem is not None:
        return build_denial("engine.question", problem), raw
    return None, raw


def evaluate_request(engine: Decider, raw: bytes) -> Decision:
    """Return a policy engine's Decision on a canonical request; whatever goes wrong is a deny.

    What a person is to decide is held, if the engine would permit it (`ask_person`); what reads an
    artefact that is not the run's is denied (`deny_other_artefact`), and so is what ends a task
    while a done condition is unmet (`deny_unmet`), what the engine refuses (`deny_refused`), and
    what an agent above may not do (`deny_uncovered`).
    """
    decide_json = getattr(engine, "decide_json", None)
    try:
        if decide_json is not None:
            decision = parse_decision_text(decide_json(raw))
        else:
            decision = parse_decision(engine.decide(raw))
        if b'"artefact":' in raw:
            decision = deny_other_artefact(decision, raw)
        if b'"task":' in raw:
            decision = deny_unmet(decision, raw)
        if b'"refuses":' in raw:
            decision = deny_refused(decision, raw)
        if b'"delegation":' in raw:
            decision = deny_uncovered(decision, raw)
        asks = b'"asks":' in raw or b'"task":' in raw or b'"delegation":' in raw
        return ask_person(decision, raw) if asks else decision
    except Exception as error:
        return build_denial("engine.error", f"the policy engine failed: {type(error).__name__}")


def deny_other_artefact(decision: Decision, raw: bytes) -> Decision:
    """Return a policy engine's Decision, a deny if the artefact is not the run's to read.

    The engine's own rule and no bundle's, as `ask_person`: only the engine knows whose it is.
    """
    owner = (orjson.loads(raw).get("context") or {}).get("artefact")
    if owner in (None, "own"):
        return decision
    return build_denial(OTHER_ARTEFACT_RULE, *decision.reasons, OTHER_ARTEFACT_RULE)


def deny_unmet(decision: Decision, raw: bytes) -> Decision:
    """Return a policy engine's Decision, a deny if it ends a task whose conditions do not all hold.

    The engine's own rule and no bundle's, as `ask_person`: a bundle can only refuse more.
    """
    task = (orjson.loads(raw).get("context") or {}).get("task")
    if task is None:
        return decision
    return _deny_by(decision, list_unmet(task))


def _deny_by(decision: Decision, reasons: Sequence[str]) -> Decision:
    """Return a policy engine's Decision, a deny by the first of the engine's own reasons if any."""
    if not reasons:
        return decision
    if decision.outcome == "deny":
        return replace(decision, would="deny") if decision.would is not None else decision
    denial = build_denial(reasons[0].partition(":")[0], *decision.reasons, *reasons)
    return replace(denial, would=None if decision.would is None else "deny")


def deny_refused(decision: Decision, raw: bytes) -> Decision:
    """Return a policy engine's Decision, a deny by the rule by which the engine itself refuses it.

    The engine's own rule and no bundle's: only the engine knows whether it is in its place.
    """
    rule = (orjson.loads(raw).get("context") or {}).get("refuses")
    if not rule:
        return decision
    denial = build_denial(rule, *decision.reasons, rule)
    return replace(denial, would=None if decision.would is None else "deny")


def deny_uncovered(decision: Decision, raw: bytes) -> Decision:
    """Return a policy engine's Decision, a deny if an agent above may not do it, or if the part of
    a budget that was set aside has no room.

    The engine's own rule and no bundle's, as `ask_person`: a bundle can only refuse more.
    """
    delegation = (orjson.loads(raw).get("context") or {}).get("delegation")
    if delegation is None:
        return decision
    return _deny_by(decision, list_uncovered(delegation))


def ask_person(decision: Decision, raw: bytes) -> Decision:
    """Return a policy engine's Decision, a hold where it permits what a person is to decide.

    This is the engine's own rule and no bundle's: it holds under whatever policy is live, and as a
    function of the request it is the same whoever decides, and in each replay. An approval of the
    very action answers it. Where policy asks a person itself, it is one reason more.
    """
    request = orjson.loads(raw)
    context, action = request.get("context") or {}, request.get("action") or {}
    # A finish asks whoever is a condition of its task today, too, whatever it was bound with.
    is_condition = (context.get("task") or {}).get("person") is True
    above = ASK_RULE if needs_person(context.get("delegation")) else None
    reason = context.get("asks") or (PERSON_ASKED if is_condition else above)
    if not reason or any(
        one["action_digest"] == action["digest"] and one["by"] and one["until"] > request["now"]
        for one in context["approvals"]
    ):
        return decision
    if decision.outcome == "permit":
        return Decision("hold", reason, (reason,), "approval")
    if decision.wait == "approval":
        return replace(decision, reasons=tuple(sorted({*decision.reasons, reason})))
    return replace(decision, would="hold") if decision.would == "permit" else decision

"""What a decision is made of: the Situation the engine knows, and the Decided that is recorded."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from msgspec import Struct

from vedette.domain.agent import Agent
from vedette.domain.base.canonical import canonical_json, canonicalize_normalized
from vedette.domain.base.errors import Unavailable
from vedette.domain.decision import Decision, build_denial, check_request, parse_decision
from vedette.domain.entry import Body, Draft
from vedette.domain.event import Event


class Approval(Struct, frozen=True):
    """What a person answered to a hold, as far as policy may see it."""

    action_digest: str
    by: str
    until_us: int


class DecisionContext(Struct, frozen=True):
    """What the engine knows of the run while one of its actions is decided.

    `memories` are what the turn was briefed with: (citation, trust) each. `trigger` is given only
    where it is asked what would be: else it is the one that the event wakes the agent by.
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


class EngineAnswer(Struct, frozen=True):
    """What one engine said of a question."""

    engine: str
    decision: Decision

    def to_json(self) -> dict[str, Any]:
        """Return the answer as it is recorded."""
        return {"engine": self.engine, "decision": self.decision.to_json()}


class DecisionRecord(Struct, frozen=True):
    """A decision with all that is needed to make it again: the exact question and the bundle.

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
            canonical_json(self.decision.to_json()),
            self.request,
        )


DIFFERENCE_RULE = "engine.differs"
# Who gave the other answer where nobody was there to be asked.
NO_ENGINE = "none"


def build_difference_denial(answers: Sequence[Mapping[str, Any]]) -> Decision:
    """Return the deny that stands where engines differed, from their recorded answers.

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
    """Return where a difference was found; `alone` if nobody else was there to be asked."""
    return "alone" if other.engine == NO_ENGINE else where


def build_difference_entry(record: DecisionRecord, where: str, **fields: Any) -> Draft:
    """Return the entry of a difference: who would have decided, and in the body both answers.

    `where` is `permit` (it was a deny at once) or `sample` (found beside the line); the entry says
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
    """Who decides where no engine is to: nobody, and so the gateway denies."""

    name = "nobody"

    def decide(self, request: bytes) -> object:
        """Raise Unavailable."""
        raise Unavailable("no policy engine answers")


class Decider(Protocol):
    """What deciding needs of a policy engine."""

    def decide(self, request: bytes) -> object: ...


def request_decision(engine: Decider, request: Mapping[str, Any]) -> tuple[Decision, bytes]:
    """Put a question to an engine; return the decision and the exact bytes that were asked.

    The gateway and `verify decisions` both ask through here. Whatever goes wrong is a deny: a
    question of another shape, an engine that fails, an answer that is not an exact decision.
    """
    try:
        raw = canonicalize_normalized(request)
    except ValueError:
        # What has no canonical form cannot be recorded; the empty question stands for it.
        request, raw = {}, b"{}"
    problem = check_request(request)
    if problem is not None:
        return build_denial("engine.question", problem), raw
    return evaluate_request(engine, raw), raw


def evaluate_request(engine: Decider, raw: bytes) -> Decision:
    """Return what an engine makes of a canonical question; whatever goes wrong is a deny."""
    try:
        answer = engine.decide(raw)
    except Exception as error:
        return build_denial("engine.error", f"the policy engine failed: {type(error).__name__}")
    return parse_decision(answer)

"""What a decision is made of: the Situation the engine knows, and the Decided that is recorded."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from vedette.domain.agent import Agent
from vedette.domain.base.canonical import canonical, tamed
from vedette.domain.base.dataclass import dataclass
from vedette.domain.base.errors import Unavailable
from vedette.domain.decision import Decision, check_question, denied, read_decision
from vedette.domain.entry import Body, Draft
from vedette.domain.event import Event


@dataclass(frozen=True, slots=True)
class Approval:
    """What a person answered to a hold, as far as policy may see it."""

    action_digest: str
    by: str
    until_us: int


@dataclass(frozen=True, slots=True)
class Situation:
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


@dataclass(frozen=True, slots=True)
class Answer:
    """What one engine said of a question."""

    engine: str
    decision: Decision

    def to_json(self) -> dict[str, Any]:
        """Return the answer as it is recorded."""
        return {"engine": self.engine, "decision": self.decision.to_json()}


@dataclass(frozen=True, slots=True)
class Decided:
    """A decision with all that is needed to make it again: the exact question and the bundle.

    `answers` are there where two engines were asked and differed: whose decision it would have
    been first. The decision is then the deny that `differing` makes of them.
    """

    decision: Decision
    question: bytes
    policy_rev: int
    bundle: str
    engine: str
    answers: tuple[Answer, ...] = ()

    def record(self) -> bytes:
        """Return the body of the decision's entry: question, decision and answers, canonical."""
        answers = b""
        if self.answers:
            told = canonical([answer.to_json() for answer in self.answers])
            answers = b'"answers":%b,' % told
        return b'{%b"decision":%b,"question":%b}' % (
            answers,
            canonical(self.decision.to_json()),
            self.question,
        )


DIFFERS = "engine.differs"
# Who gave the other answer where nobody was there to be asked.
NOBODY = "none"


def differing(answers: Sequence[Mapping[str, Any]]) -> Decision:
    """Return the deny that stands where engines differed, from their recorded answers.

    A pure function of the record, so that replay makes the same of it.
    """
    return denied(
        DIFFERS,
        *(
            f"{answer['engine']}: {answer['decision']['outcome']} by {answer['decision']['rule']}"
            for answer in answers
        ),
    )


def occasion(other: Answer, where: str) -> str:
    """Return where a difference was found; `alone` if nobody else was there to be asked."""
    return "alone" if other.engine == NOBODY else where


def difference(decided: Decided, where: str, **fields: Any) -> Draft:
    """Return the entry of a difference: who would have decided, and in the body both answers.

    `where` is `permit` (it was a deny at once) or `sample` (found beside the line); the entry says
    `alone` where there was nobody else to ask, so that nothing differed.
    """
    first, other = decided.answers
    return Draft(
        "engine.differed",
        {
            "what": occasion(other, where),
            "engine": first.engine,
            "outcome": first.decision.outcome,
            "rule": first.decision.rule,
            "policy_rev": decided.policy_rev,
            "bundle": decided.bundle,
            **fields,
        },
        body=Body(canonical({"answers": [answer.to_json() for answer in decided.answers]})),
    )


class Nobody:
    """Who decides where no engine is to: nobody, and so the gateway denies."""

    name = "nobody"

    def decide(self, question: bytes) -> object:
        """Raise Unavailable."""
        raise Unavailable("no policy engine answers")


class Answers(Protocol):
    """What deciding needs of a policy engine."""

    def decide(self, question: bytes) -> object: ...


def ask(engine: Answers, question: Mapping[str, Any]) -> tuple[Decision, bytes]:
    """Put a question to an engine; return the decision and the exact bytes that were asked.

    The gateway and `replay` both ask through here. Whatever goes wrong is a deny: a question of
    another shape, an engine that fails, an answer that is not an exact decision.
    """
    try:
        raw = tamed(question)
    except ValueError:
        # What has no canonical form cannot be recorded; the empty question stands for it.
        question, raw = {}, b"{}"
    wrong = check_question(question)
    if wrong is not None:
        return denied("engine.question", wrong), raw
    return answer_of(engine, raw), raw


def answer_of(engine: Answers, raw: bytes) -> Decision:
    """Return what an engine makes of a canonical question; whatever goes wrong is a deny."""
    try:
        answer = engine.decide(raw)
    except Exception as error:
        return denied("engine.error", f"the policy engine failed: {type(error).__name__}")
    return read_decision(answer)

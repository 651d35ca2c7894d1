"""What a decision is made of: the Situation the engine knows, and the Decided that is recorded."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from vedette.agent import Agent
from vedette.decision import Decision
from vedette.digest import canonical
from vedette.event import Event
from vedette.memory import Memory


@dataclass(frozen=True, slots=True)
class Approval:
    """What a person answered to a hold, as far as policy may see it."""

    action_digest: str
    by: str
    until_us: int


@dataclass(frozen=True, slots=True)
class Situation:
    """What the engine knows of the run while one of its actions is decided."""

    agent: Agent
    event: Event
    turn: int
    now_us: int
    memories: Sequence[Memory] = ()
    actions_in_run: int = 0
    stopped: bool = False
    approval: Approval | None = None


@dataclass(frozen=True, slots=True)
class Decided:
    """A decision with all that is needed to make it again: the exact question and the bundle."""

    decision: Decision
    question: bytes
    policy_rev: int
    bundle: str
    engine: str

    def record(self) -> bytes:
        """Return the body of the decision's entry: question and decision, canonical."""
        return b'{"decision":%b,"question":%b}' % (
            canonical(self.decision.to_json()),
            self.question,
        )

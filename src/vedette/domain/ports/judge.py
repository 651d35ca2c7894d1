"""The port of judges: local, deterministic models that settle clear cases, with a confidence."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from msgspec import Struct, field

from vedette.domain.action import Proposal
from vedette.domain.base.dataclass_fields import DataclassFields
from vedette.domain.event import Event
from vedette.domain.memory import Briefing, Candidate, Memory


class Judgement(Struct, frozen=True):
    """What a judge makes of one event.

    `confidence` is calibrated: of the cases judged at 0.9, nine in ten are right. It is a number
    from 0 to 1; a judgement that says anything else is refused, and its run a dead letter.
    `detail` holds what `explain` shows (values drawn, nearest examples): JSON, floats allowed.
    `candidates` are what the judge would like remembered; they change nothing before a person
    promotes them.
    One that is not `final` asks for another turn of its run (`Judge.judge_outcomes`), which is
    given its `notes`: any JSON, at most 64 KiB of it. A final one's are not kept.
    """

    __dataclass_fields__ = DataclassFields()

    label: str
    confidence: float
    proposals: tuple[Proposal, ...] = ()
    score: float | None = None
    threshold: float | None = None
    detail: Mapping[str, Any] = field(default_factory=dict)
    candidates: tuple[Candidate, ...] = ()
    final: bool = True
    notes: Any = None


class Judge:
    """The port of judges, their base: a judge without state overrides `judge` only.

    State is kept per key (see `order_by` in agent.yaml). `observe` must be a function of the
    state and the event alone, since after a crash the engine loads the last checkpoint and
    observes again what came since. All opinion belongs into `judge`.
    """

    def __init__(self, charter: Mapping[str, Any], lessons: Sequence[Memory]) -> None:
        self.charter = charter
        self.lessons = lessons

    def blank(self) -> Any:
        """Return the state of a key that no event was seen of."""
        return None

    def observe(self, state: Any, event: Event) -> Any:
        """Advance the state by one event and return what was seen of it."""
        return None

    def judge(self, seen: Any, briefing: Briefing) -> Judgement:
        """Say what the event means and what should be done."""
        raise NotImplementedError

    def judge_outcomes(self, briefing: Briefing) -> Judgement:
        """Say in a later turn what came of the run's turns before, and what should be done next.

        Called for a run whose last judgement was not final, or that is a task which is not done,
        once all its actions are over.
        `briefing.turns` tells of its turns and what came of their proposals, `briefing.notes` is
        what the last one left. It must be a function of the briefing and what the judge was made
        of: the key's state may be events ahead, and is not at hand.
        """
        raise NotImplementedError("the run takes another turn: define judge_outcomes")

    def dump(self, state: Any) -> bytes:
        """Return the state as bytes from which `load` makes an equal one."""
        return b""

    def load(self, blob: bytes) -> Any:
        """Return the state that `dump` wrote."""
        return self.blank()

"""The ports of reasoning and of performing, and of what is counted of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

from msgspec import Struct, field

from vedette.domain.action import Proposal
from vedette.domain.effect import Call, Outcome, RowWrite
from vedette.domain.event import Event
from vedette.domain.memory import Briefing, Candidate
from vedette.domain.model_turn import NO_METADATA, ModelCallMetadata, ModelTurn, ModelUse
from vedette.domain.tool import Tool


class ReasonerJudgement(Struct, frozen=True):
    """The answer of a reasoner, by its port, to a briefing.

    `needs_state` asks for `restore` first: the reasoner's state for this key is not at
    `briefing.previous`. `checkpoint` is due state to make durable with the decision; `state` names
    the one that was judged from (`vedette.domain.judge_state`). `final` says that the run needs no
    further turn whatever comes of the proposals; else the next one is given the `notes`
    (`vedette.domain.notes`). Without a `confidence` it is refused, whatever it
    proposes. `spent` counts the tokens of its `model_calls` (`input_tokens`, `output_tokens`), as
    far as the vendor tells, `metadata` is what else is known of them; `model_turn` is what a model
    said, to be told of it again. What is `deferred` is an opinion: the run's next turn is another
    reasoner's (`domain.cascade`). `asks` is why a person is to decide its proposals. These two are
    for the engine to say, no reasoner.
    """

    label: str = ""
    confidence: float | None = None
    proposals: tuple[Proposal, ...] = ()
    score: float | None = None
    threshold: float | None = None
    detail: Mapping[str, Any] = field(default_factory=dict)
    final: bool = True
    observed: bool = True
    checkpoint: bytes | None = None
    needs_state: bool = False
    model_calls: int = 0
    spent: Mapping[str, int] = field(default_factory=dict)
    candidates: tuple[Candidate, ...] = ()
    state: str = ""
    model_turn: ModelTurn | None = None
    deferred: bool = False
    metadata: ModelCallMetadata = NO_METADATA
    asks: str = ""
    notes: Any = None

    @property
    def use(self) -> ModelUse:
        """Return what the turn used of its model."""
        return ModelUse(self.model_calls, self.spent)


class Reasoner(Protocol):
    """The port that turns briefings into proposals, across processes: serialisable in and out."""

    async def reason(self, briefing: Briefing) -> ReasonerJudgement:
        """Judge a briefing. Raises ModelError for a model that gave no turn, with its cost."""
        ...

    def restore_state(
        self,
        agent: str,
        key: str,
        checkpoint: bytes | None,
        at: int,
        since: Sequence[tuple[int, Event]],
    ) -> None:
        """Bring the state of a key to the last of `since`, from a checkpoint at position `at`."""
        ...

    def drop_state(self, agent: str, key: str) -> None:
        """Drop the state of a key: what it learned last was not committed."""
        ...

    def fold_state(
        self, agent: str, checkpoint: bytes | None, since: Sequence[tuple[int, Event]]
    ) -> bytes | None:
        """Return the checkpoint that stands for `checkpoint` and what came since; None: no state.

        Touches no state that is held.
        """
        ...


class StatelessReasoner:
    """A base of the port Reasoner for one that keeps nothing from one event to the next."""

    def restore_state(
        self,
        agent: str,
        key: str,
        checkpoint: bytes | None,
        at: int,
        since: Sequence[tuple[int, Event]],
    ) -> None:
        """Do nothing: there is no state."""

    def drop_state(self, agent: str, key: str) -> None:
        """Do nothing: there is no state."""

    def fold_state(
        self, agent: str, checkpoint: bytes | None, since: Sequence[tuple[int, Event]]
    ) -> bytes | None:
        """Return that there is no state."""
        return None


class ToolExecutor(Protocol):
    """The port that performs tools; it decides nothing."""

    def compute_rows(self, tool: Tool, call: Call, row: Mapping[str, Any] | None) -> list[RowWrite]:
        """Return what a transactional tool writes; pure. Raises what the tool raises."""
        ...

    async def perform(
        self, tool: Tool, call: Call, may_start: Callable[[], bool]
    ) -> Outcome | None:
        """Call the tool once. Never raises for what the target did: that is an Outcome.

        `may_start` is asked before the call, wherever it runs, and at most `PERMIT_LIFE_US` before
        it; on no, the call is not made and None is returned.
        """
        ...

    async def query(self, tool: Tool, call: Call) -> Outcome | None:
        """Ask a queryable target what came of `call.key`; None if it knows nothing of it."""
        ...


class RunJournal(Protocol):
    """The port of which runs are in the hands of agents' code, beyond the death of this process."""

    def begin(self, run: str) -> None: ...

    def end(self, run: str) -> None: ...

    def unfinished(self) -> list[str]:
        """Return the runs that were in hand when the process before this one died."""
        ...


class Metrics(Protocol):
    """The port that counts and observes. Names are documented in docs/telemetry.md."""

    def count(self, name: str, amount: int = 1, **labels: str) -> None: ...

    def gauge(self, name: str, value: float, **labels: str) -> None: ...

    def observe(self, name: str, value: float, **labels: str) -> None: ...

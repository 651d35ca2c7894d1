"""The ports of runs in a store: what is read of them, which are due, what makes steps durable."""

from __future__ import annotations

from collections.abc import Awaitable, Collection, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

from msgspec import Struct

from vedette.domain.artefact import Artefact, ArtefactHead, StoredArtefact
from vedette.domain.budget import BudgetRaise
from vedette.domain.erasure import ErasureSurvey, ErasureTarget
from vedette.domain.event import Event
from vedette.domain.ports.sources import Refused
from vedette.domain.run import ActionRow, CommitResult, Run, Step
from vedette.domain.spend import SpendTotal


class Arrival(Struct, frozen=True):
    """An Event on its way in: its canonical payload, and for each agent it wakes the key.

    `cause` is the entry that led to it, where that is one of ours. One that came `over_hops`, more
    than the fleet takes, wakes nobody that waits, as it begins no run.
    """

    event: Event
    body: bytes
    wakes: tuple[tuple[str, str], ...]
    subject: str | None
    cause: int | None = None
    over_hops: bool = False


class AcceptResult(Struct, frozen=True):
    """The answer to an Arrival: its new runs, or none if the event was known already.

    `at_us` is when it was accepted now, `seq` the entry of that; `woken` are runs that waited for
    such an event.
    """

    event: str
    duplicate: bool
    runs: tuple[Run, ...] = ()
    at_us: int = 0
    seq: int = 0
    woken: tuple[str, ...] = ()


class AcceptedEvent(NamedTuple):
    """An event, the bytes of it, and when it was accepted."""

    event: Event
    octets: int
    at_us: int


class StateHistory(NamedTuple):
    """What a judge's state of a key is made of: a checkpoint, and the events observed since.

    `checkpoint_position` is the checkpoint's position (0: there is none), `last_position` that of
    the last event that was observed, be its content there or not.
    """

    checkpoint: bytes | None
    checkpoint_position: int
    later_events: list[tuple[int, Event]]
    last_position: int


class RunReader(Protocol):
    """The port of what the store knows of runs, their events and actions."""

    def run(self, run: str) -> Run | None: ...

    def runs_of_event(self, event: str) -> list[Run]: ...

    def runs_at(self, positions: Sequence[int]) -> list[Run]:
        """Return the runs of the events at these positions."""
        ...

    def runs_page(
        self,
        *,
        agent: str | None,
        state: str | None,
        before: int | None,
        limit: int,
        beside: str = "",
        after: int | None = None,
    ) -> list[Run]:
        """Return runs, newest first, on one side of a run.

        The place of a run is (position, agent): an event may wake several. `beside` is the agent
        of the run at `before` or `after`; `after` asks for the nearest newer ones.
        """
        ...

    def event(self, key: str) -> Event | None:
        """Return an accepted event; None if it is unknown or its body was erased, or edited."""
        ...

    def event_at(self, position: int) -> Event | None:
        """Return the event that an entry accepted; None as `event` does."""
        ...

    def events_at(self, positions: Sequence[int]) -> Mapping[int, AcceptedEvent]:
        """Return the events that entries accepted, by position.

        Those that `event_at` has not, or cannot read, are left out.
        """
        ...

    def actions(self, run: str) -> list[ActionRow]:
        """Return the actions of a run, in order of turn and ordinal."""
        ...

    def action(self, action: str) -> ActionRow | None: ...

    def holds_page(self, *, after: int, limit: int, beside: str = "") -> list[ActionRow]:
        """Return actions that wait for anything, oldest first, after the one at (seq, id).

        Actions of one step share their seq; `beside` is the id of the last one seen ("" asks for
        all with that seq, too).
        """
        ...

    def turns(self, run: str) -> list[Mapping[str, Any]]:
        """Return the bodies of a run's recorded turns, oldest first; none that was edited."""
        ...

    def artefact(self, id: str) -> StoredArtefact | None:
        """Return what is known of an artefact; None if no entry stored one of this id."""
        ...

    def artefact_sizes(self, run: str) -> Mapping[str, int]:
        """Return how many characters each artefact of a run has, by id. No content is read."""
        ...

    def task_entries(self, run: str) -> list[tuple[Mapping[str, Any], Mapping[str, Any] | None]]:
        """Return the entries of what was said of a run's task, oldest first, each with its body:
        None for one that was erased, or edited.
        """
        ...

    def artefact_heads(self, run: str, after: int = 0) -> Sequence[ArtefactHead]:
        """Return a run's artefacts of entries after another, oldest first. No content is read."""
        ...

    def artefact_of(self, seq: int) -> Artefact | None:
        """Return the artefact that an entry stored; None once erased, or if it was edited."""
        ...

    def turns_back(self, run: str, before: int | None = None) -> Iterator[Mapping[str, Any]]:
        """Yield the bodies of a run's recorded turns, newest first, as far as they are asked for.

        From the one before the entry `before`, if that is given; none that was edited.
        """
        ...

    def row(self, collection: str, key: str) -> Mapping[str, Any] | None:
        """Return one row of a fleet-owned collection."""
        ...

    def source_position(self, source: str) -> str | None:
        """Return where a source was as of its last durable batch."""
        ...

    def find_by_prefix(self, table: str, prefix: str) -> list[str]:
        """Return up to 20 ids of a table (run, action, event) that begin with `prefix`."""
        ...

    def survey(self, target: ErasureTarget) -> ErasureSurvey:
        """Return what an erasure would find; nothing is changed."""
        ...

    def without_state(self, target: ErasureTarget) -> list[Run]:
        """Return the observed runs of what an erasure would find that no kept state holds."""
        ...

    def without_state_of(self, rows: Sequence[tuple[Any, ...]]) -> list[Run]:
        """Return the observed runs of contents (seq, entry, about) that no kept state holds."""
        ...


class RunSchedule(Protocol):
    """The port of which runs are to be handled: this worker's, where several share them."""

    def ready_runs(self, after: int, limit: int, agent: str | None = None) -> list[Run]:
        """Return ready runs with position > `after`, oldest first; of one agent, or of all."""
        ...

    def ready_counts(self) -> dict[str, int]:
        """Return how many runs are ready, for each agent that has any."""
        ...

    def due_runs(self, now_us: int, limit: int, without: Collection[str] = ()) -> list[Run]:
        """Return waiting runs whose instant has come, or that a person woke.

        Runs of the agents of `without` (stopped ones) are left out.
        """
        ...

    def unjudged_runs(self, agent: str, key: str, limit: int) -> list[Run]:
        """Return the runs of a key that wait for their first turn, oldest first, of any worker."""
        ...

    def parked_runs(self) -> list[Run]:
        """Return the runs that wait for a target, oldest first, of any worker."""
        ...


class JudgeStateReader(Protocol):
    """The port of judges' states, each of one key: those kept, and what they are made of."""

    def previous_position(self, agent: str, key: str, before: int) -> int:
        """Return the position of the last observed event of a key before `before`; 0 if none."""
        ...

    def history(self, agent: str, key: str, before: int) -> StateHistory:
        """Return what the judge's state of a key was made of before a position, in order."""
        ...

    def kept(self) -> list[tuple[str, str, int, bytes]]:
        """Return (agent, key, position, checkpoint) of every judge's state that is kept."""
        ...

    def last_positions(self) -> list[tuple[str, str, int]]:
        """Return (agent, key, position of the last observed event) of every key."""
        ...

    def observed_positions(self) -> Iterator[tuple[str, str, int, int]]:
        """Yield (agent, key, position, position of the one before) of every observed event."""
        ...


class SpendReader(Protocol):
    """The port of what was spent of the budgets, by unit."""

    def of_run(self, run: str) -> Mapping[str, int]:
        """Return what a run has used; what was booked and never settled counts in full."""
        ...

    def by_minute(self, since_minute: int) -> list[tuple[str, str, int, int]]:
        """Return (agent, unit, minute, amount) of what was spent from a minute on, oldest first."""
        ...

    def totals(self) -> list[tuple[str, str, SpendTotal]]:
        """Return (name, unit, total) of every agent and, under FLEET, of the fleet."""
        ...

    def raises(self, now_us: int) -> list[BudgetRaise]:
        """Return the raises of budgets in force at an instant."""
        ...


class StepQueue(Protocol):
    """The port that makes events and steps durable, answering after COMMIT or by StoreFailed."""

    @property
    def is_ready(self) -> bool:
        """Say whether the last commit stood and new work has room; no call may start else."""
        ...

    async def probe(self) -> None:
        """Try to commit as much as a step has, and leave nothing. Raises StoreFailed."""
        ...

    async def accept(
        self, arrivals: Sequence[Arrival | Refused], position: tuple[str, str] | None
    ) -> list[AcceptResult]:
        """Make a batch durable: events, the runs they wake, refusals, and the source's position."""
        ...

    def send(self, step: Step) -> Awaitable[CommitResult]:
        """Queue a step now; steps are taken in the order in which they were sent."""
        ...

    async def commit(self, step: Step) -> CommitResult:
        """Send a step and wait for its answer."""
        ...

    async def keep_state(self, agent: str, key: str, history: StateHistory, blob: bytes) -> bool:
        """Keep the state that a history comes to; False, and nothing is kept, if it is another."""
        ...

    def is_signed(self, data: bytes, signature: bytes) -> bool:
        """Say whether the key in force signed something; one of before a rotation did not."""
        ...

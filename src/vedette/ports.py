"""Ports: what the line asks of the world. Adapters need not import these; they only have to fit.

No transaction object, no SQL and no vendor's type crosses a port.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from vedette.action import Proposal
from vedette.approval import HoldState
from vedette.budget import Raise
from vedette.bundle import Bundle
from vedette.effect import Call, Outcome, RowWrite
from vedette.entry import Draft
from vedette.event import Event
from vedette.memory import BankPlan, Briefing, Candidate, Memory
from vedette.question import Decided, Situation
from vedette.run import ActionRow, Committed, Run, Step
from vedette.stop import Stop
from vedette.tool import Tool
from vedette.totals import Total

# --- sources ---------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Refused:
    """One delivery of a batch that is no event: what it was (bounded), where, why and the mend.

    `event` (a key) and `subject` are what its content is found and erased by, where known.
    """

    where: str
    why: str
    raw: bytes = b""
    event: str | None = None
    subject: str | None = None


@dataclass(frozen=True, slots=True)
class Receipt:
    """What became of one delivery, told after the commit: the broker may forget it now."""

    status: str  # accepted | duplicate | refused
    event: str | None = None
    runs: tuple[str, ...] = ()
    error: str | None = None


class Intake(Protocol):
    """Where sources hand over. Returns only when everything is durable; awaits under load."""

    async def accept(
        self, deliveries: Sequence[Event | Refused], *, position: tuple[str, str] | None = None
    ) -> list[Receipt]:
        """Make a batch durable. `position` (source name, where to go on) moves with it."""
        ...

    def position(self, source: str) -> str | None:
        """Return where the source was, as of the last durable batch."""
        ...


class Source(Protocol):
    """Where events come from. `finite` sources end by returning from `deliver`."""

    name: str
    finite: bool

    async def deliver(self, intake: Intake) -> None:
        """Hand over batches until there is no more (finite) or until cancelled."""
        ...


# --- store -----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Arrival:
    """An event on its way in: its canonical payload, and for each agent it wakes the key."""

    event: Event
    payload: bytes
    wakes: tuple[tuple[str, str], ...]
    subject: str | None


@dataclass(frozen=True, slots=True)
class Accepted:
    """What the store made of an arrival: new runs, or none if the event was known already."""

    event: str
    duplicate: bool
    runs: tuple[Run, ...] = ()


@dataclass(frozen=True, slots=True)
class Erased:
    """What was erased: the digests of the bodies, and the keys of the events they belonged to.

    `scrubbed` is false while a reader keeps older pages of the store's files from being cut.
    """

    digests: tuple[str, ...]
    events: tuple[str, ...]
    scrubbed: bool = True


@dataclass(frozen=True, slots=True)
class Ended:
    """What became of an order about dead letters: the runs that moved, and why others did not."""

    moved: tuple[str, ...]
    refused: tuple[tuple[str, str], ...] = ()


class Store(Protocol):
    """Durable state of one fleet. Every method that writes answers after COMMIT."""

    several: bool

    @property
    def lease_rev(self) -> int:
        """Return a number that grows whenever what `lease` answers may have changed for any run."""
        ...

    @property
    def shared(self) -> bool:
        """Say whether other workers handled this store's runs as of the last group."""
        ...

    @property
    def news(self) -> int:
        """Return a number that grows when another worker committed something."""
        ...

    @property
    def current(self) -> bool:
        """Say whether this process has adopted the live revision and the last stop."""
        ...

    def adopt(self, policy_rev: int, stop_epoch: int) -> None:
        """Say that this process decides and stops by these from now on."""
        ...

    def holds(self, epoch: int) -> bool:
        """Say whether a call may start under a lease: it lasts, and nothing newer is published.

        To be asked immediately before the call.
        """
        ...

    async def everywhere(self) -> None:
        """Return once no other worker starts a call under anything older than what is live."""
        ...

    @property
    def epoch(self) -> int:
        """Return the epoch of this worker."""
        ...

    @property
    def policy_rev(self) -> int:
        """Return the live policy revision, as of the last group committed."""
        ...

    @property
    def stop_epoch(self) -> int:
        """Return how often stops were set or lifted, as of the last group committed."""
        ...

    def lease(self, run: Run) -> int | None:
        """Return the epoch under which this worker may handle a run; None if it is not ours.

        `lease_rev` grows whenever the answer may have changed for any run.
        """
        ...

    async def accept(
        self, arrivals: Sequence[Arrival | Refused], position: tuple[str, str] | None
    ) -> list[Accepted]: ...

    def send(self, step: Step) -> Awaitable[Committed]:
        """Queue a step now; steps are taken in the order in which they were sent.

        What is returned answers after COMMIT. Raises StoreFailed if the commit did not stand.
        """
        ...

    async def commit(self, step: Step) -> Committed:
        """Send a step and wait for its answer."""
        ...

    async def publish(
        self, bundle: Bundle, drafts: Sequence[Draft], *, command: str | None = None
    ) -> int:
        """Make a bundle the live revision; no step made under an older one commits after this."""
        ...

    async def stop(
        self, draft: Draft, scope: str, name: str, on: bool, *, command: str | None = None
    ) -> int:
        """Set or lift a stop; return the new stop epoch."""
        ...

    async def raise_budget(
        self, draft: Draft, raises: Sequence[Raise], *, command: str | None = None
    ) -> int:
        """Give more room until an instant and wake what waits for it; return the entry's seq."""
        ...

    def spent(self, since_minute: int) -> list[tuple[str, str, int, int]]:
        """Return (agent, unit, minute, amount) of what was spent from a minute on."""
        ...

    def totals(self) -> list[tuple[str, str, Total]]:
        """Return (name, unit, total) of every agent and, under FLEET, of the fleet."""
        ...

    def raises(self, now_us: int) -> list[Raise]:
        """Return the raises of budgets in force at an instant."""
        ...

    def reserved(self, run: str) -> Mapping[str, int]:
        """Return what a run has used by unit; what was booked and never settled counts in full."""
        ...

    async def settle_hold(
        self,
        action: str,
        to: HoldState,
        draft: Draft,
        *,
        approver: str | None,
        until_us: int,
        command: str | None = None,
    ) -> ActionRow:
        """Move a hold, write the entry into its run and wake the run. Raises BadCommand."""
        ...

    async def redrive(
        self, runs: Sequence[str], draft: Draft, *, command: str | None = None
    ) -> Ended:
        """Let dead letters be handled again. Raises BadCommand if the only one named cannot be."""
        ...

    async def drop(
        self, runs: Sequence[str], draft: Draft, *, command: str | None = None
    ) -> Ended:
        """Close dead letters for good. Raises BadCommand if the only one named cannot be."""
        ...

    async def erase(
        self,
        *,
        event: str | None = None,
        subject: str | None = None,
        entry: int | None = None,
        draft: Draft,
        command: str | None = None,
    ) -> Erased:
        """Delete the bodies found by one of event, subject and entry (seq). Raises BadCommand."""
        ...

    def candidates(self, events: Collection[str]) -> list[Candidate]:
        """Return what was proposed for memory out of these events and is not erased."""
        ...

    async def keep_state(self, agent: str, key: str, position: int, blob: bytes) -> None:
        """Keep a checkpoint of a judge's state that holds the events up to `position`."""
        ...

    def runs_with(
        self, *, event: str | None = None, subject: str | None = None, entry: int | None = None
    ) -> list[Run]:
        """Return the runs whose content is found by an event, a subject or an event's entry."""
        ...

    async def note(self, drafts: Sequence[Draft], bundle: Bundle | None = None) -> int:
        """Write entries that belong to no run; return the seq of the last."""
        ...

    def head(self) -> int:
        """Return the seq of the ledger's last entry."""
        ...

    def revision(self) -> tuple[int, str]:
        """Return the live policy revision and its bundle's digest; (0, '') before the first."""
        ...

    def bundle(self, digest: str) -> Mapping[str, bytes] | None:
        """Return the files of a recorded bundle."""
        ...

    def run(self, run: str) -> Run | None: ...

    def action(self, action: str) -> ActionRow | None: ...

    def stops(self) -> list[tuple[str, str]]:
        """Return what is stopped: (scope, name) with scope all, agent or tool."""
        ...

    def stops_set(self) -> list[Stop]:
        """Return the stops in force, with the entries that set them and when they end."""
        ...

    def position(self, source: str) -> str | None:
        """Return where a source was as of its last durable batch."""
        ...

    def previous(self, agent: str, key: str, before: int) -> int:
        """Return the position of the last observed event of a key before `before`; 0 if none."""
        ...

    def backlog(self, after: int, limit: int, agent: str | None = None) -> list[Run]:
        """Return ready runs with position > `after`, oldest first; of one agent, or of all."""
        ...

    def backlogged(self) -> dict[str, int]:
        """Return how many runs are ready, for each agent that has any."""
        ...

    def parked(self) -> list[Run]:
        """Return the runs that wait for a target, oldest first."""
        ...

    def due(self, now_us: int, limit: int, without: Collection[str] = ()) -> list[Run]:
        """Return waiting runs whose instant has come, or that a person woke.

        Runs of the agents of `without` (stopped ones) are left out.
        """
        ...

    def event(self, key: str) -> Event | None:
        """Return an accepted event; None if its body was erased."""
        ...

    def actions(self, run: str) -> list[ActionRow]:
        """Return the actions of a run, in order of turn and ordinal."""
        ...

    def turns(self, run: str) -> list[Mapping[str, Any]]:
        """Return the recorded turns of a run, oldest first."""
        ...

    def row(self, collection: str, key: str) -> Mapping[str, Any] | None: ...

    def history(
        self, agent: str, key: str, before: int
    ) -> tuple[bytes | None, int, list[tuple[int, Event]]]:
        """Return the judge's last checkpoint for a key, its position, and what it has not seen.

        The events are those observed after the checkpoint and before position `before`, in order.
        """
        ...


# --- policy ----------------------------------------------------------------------------------


class PolicyEngine(Protocol):
    """Evaluates one bundle. A pure function of (bundle, question): it reads nothing else."""

    name: str
    digest: str

    def decide(self, question: bytes) -> object:
        """Return what the entry point says of a canonical question; None if undefined.

        May raise anything; whatever is not an exact decision becomes a deny in the gateway.
        """
        ...


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing wrong with a bundle: where (file, line), what, and the mend."""

    file: str
    line: int
    what: str
    mend: str = ""

    def __str__(self) -> str:
        return f"{self.file}:{self.line}: {self.what}" + (f" ({self.mend})" if self.mend else "")


class Gate(Protocol):
    """What recall asks of the gateway."""

    policy_rev: int

    def may_read(self, situation: Situation, bank: str, scope: str) -> Decided:
        """Decide whether an agent may read a memory scope."""
        ...


class PolicyStage(Protocol):
    """Tries a bundle apart from the running fleet, where it cannot harm it."""

    async def try_out(self, bundle: Bundle) -> list[Finding]:
        """Return what is wrong with the bundle; an empty list admits it."""
        ...

    def load(self, bundle: Bundle) -> PolicyEngine:
        """Make an engine of an admitted bundle. Raises BadPolicy."""
        ...


# --- memory ----------------------------------------------------------------------------------


class BankStore(Protocol):
    """Memory banks: a projection of reviewed files and of committed steps."""

    def load(self, plans: Sequence[BankPlan]) -> Mapping[str, int]:
        """Bring the banks to the reviewed files; return each bank's version."""
        ...

    def version(self, bank: str) -> int: ...

    def recall(
        self, bank: str, scope: str, topics: Sequence[str], text: str, now_us: int, limit: int
    ) -> list[Memory]:
        """Return the memories that matter most to `text`, best first; ties by id."""
        ...

    def lessons(self, bank: str, scope: str, now_us: int) -> list[Memory]:
        """Return every active memory of a scope, by id: what a judge is trained on at load."""
        ...

    def propose(self, candidate: Candidate, now_us: int) -> None: ...

    def forget(self, events: Collection[str], kept: Collection[Candidate] = ()) -> int:
        """Delete the candidates of erased events, except what is `kept`; return how many."""
        ...


# --- reasoning and performing ----------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Thought:
    """What a reasoner answers to a briefing.

    `needs_state` asks for `restore` first: the reasoner's state for this key is not at
    `briefing.previous`. `checkpoint` is due state to make durable with the decision. `final` says
    that the run needs no further turn whatever comes of the proposals. `spent` counts the tokens
    of its `model_calls` (`input_tokens`, `output_tokens`), as far as the vendor tells.
    """

    label: str = ""
    confidence: float = 1.0
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


class Reasoner(Protocol):
    """Turns briefings into proposals. A process boundary: serialisable in, serialisable out."""

    async def reason(self, briefing: Briefing) -> Thought: ...

    def restore(
        self,
        agent: str,
        key: str,
        checkpoint: bytes | None,
        at: int,
        since: Sequence[tuple[int, Event]],
    ) -> None:
        """Bring the state of a key to the last of `since`, from a checkpoint at position `at`."""
        ...

    def forget(self, agent: str, key: str) -> None:
        """Drop the state of a key: what it learned last was not committed."""
        ...

    def fold(
        self, agent: str, checkpoint: bytes | None, since: Sequence[tuple[int, Event]]
    ) -> bytes | None:
        """Return the checkpoint that stands for `checkpoint` and what came since; None: no state.

        Touches no state that is held.
        """
        ...


class Performer(Protocol):
    """Performs tools. It holds the hands; it decides nothing."""

    def rows(self, tool: Tool, call: Call, row: Mapping[str, Any] | None) -> list[RowWrite]:
        """Return what a transactional tool writes; pure. Raises what the tool raises."""
        ...

    async def perform(
        self, tool: Tool, call: Call, may_start: Callable[[], bool]
    ) -> Outcome | None:
        """Call the tool once. Never raises for what the target did: that is an Outcome.

        `may_start` is asked immediately before the call, wherever it runs; on no, the call is not
        made and None is returned.
        """
        ...

    async def ask(self, tool: Tool, call: Call) -> Outcome | None:
        """Ask a queryable target what came of `call.key`; None if it knows nothing of it."""
        ...


class InHand(Protocol):
    """Remembers, beyond the death of this process, which runs were in the hands of agents' code."""

    def take(self, run: str) -> None: ...

    def put_back(self, run: str) -> None: ...

    def left_over(self) -> list[str]:
        """Return the runs that were in hand when the process before this one died."""
        ...


class Metrics(Protocol):
    """Counts and observes. Names are documented in docs/telemetry.md."""

    def count(self, name: str, amount: int = 1, **labels: str) -> None: ...

    def gauge(self, name: str, value: float, **labels: str) -> None: ...

    def observe(self, name: str, value: float, **labels: str) -> None: ...

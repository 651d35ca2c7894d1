"""Durable state of one fleet."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

from msgspec import Struct

from vedette.domain.base.canonical import canonical_json, sha256_hex
from vedette.domain.budget import Raise
from vedette.domain.bundle import Bundle
from vedette.domain.entry import Draft
from vedette.domain.event import Event
from vedette.domain.hold import HoldState
from vedette.domain.memory import Candidate
from vedette.domain.memory_state import LedgerMemory
from vedette.domain.ports.sources import Refused
from vedette.domain.row_proof import EntryRecord
from vedette.domain.run import ActionRow, CommitResult, LossWindow, Run, Step
from vedette.domain.spend import SpendTotal
from vedette.domain.stop import Stop


class Arrival(Struct, frozen=True):
    """An event on its way in: its canonical payload, and for each agent it wakes the key.

    `cause` is the entry that led to it, where that is one of ours.
    """

    event: Event
    body: bytes
    wakes: tuple[tuple[str, str], ...]
    subject: str | None
    cause: int | None = None


class AcceptResult(Struct, frozen=True):
    """What the store made of an arrival: new runs, or none if the event was known already."""

    event: str
    duplicate: bool
    runs: tuple[Run, ...] = ()


class ErasureResult(Struct, frozen=True):
    """What was erased: the digests of the bodies, and the keys of the events they belonged to.

    `is_scrubbed` is false while a reader keeps older pages of the store's files from being cut.
    """

    digests: tuple[str, ...]
    events: tuple[str, ...]
    is_scrubbed: bool = True


class StateHistory(NamedTuple):
    """What a judge's state of a key is made of: a checkpoint, and the events observed since.

    `checkpoint_position` is the checkpoint's position (0: there is none), `last_position` that of
    the last event that was observed, be its content there or not.
    """

    checkpoint: bytes | None
    checkpoint_position: int
    later_events: list[tuple[int, Event]]
    last_position: int


class ErasureSurvey(Struct, frozen=True):
    """What an erasure would find: keys of events, their runs, contents, and what waits on them.

    `bodies` are the entries (seq) whose content would go, in order; `open_runs` the runs that have
    not ended, `holds` the actions of those that are held. It would have to deny these, or is
    refused.
    """

    events: tuple[str, ...]
    runs: int
    bodies: tuple[int, ...]
    open_runs: tuple[Run, ...]
    holds: tuple[ActionRow, ...]

    @property
    def body_count(self) -> int:
        """Return how many contents would go."""
        return len(self.bodies)

    @property
    def digest(self) -> str:
        """Return the digest (SHA-256, hexadecimal) of what would go and of what would be ended."""
        value = {
            "schema": "vedette.survey/1",
            "events": list(self.events),
            "bodies": list(self.bodies),
            "open": [run.id for run in self.open_runs],
            "holds": [row.id for row in self.holds],
        }
        return sha256_hex(canonical_json(value))

    def to_json(self, memories: int) -> dict[str, Any]:
        """Return it as `--json` prints it; `memories` were learned of it."""
        return {
            "events": list(self.events),
            "runs": self.runs,
            "contents": self.body_count,
            "memories": memories,
            "open": [
                {"run": run.id, "state": run.state, "waits": run.waits} for run in self.open_runs
            ],
            "holds": [
                {"hold": row.id.replace("act_", "hold_"), "tool": row.tool, "run": row.run}
                for row in self.holds
            ],
            "digest": self.digest,
        }


class DeadLetterResult(Struct, frozen=True):
    """What became of an order about dead letters: the runs that moved, and why others did not."""

    runs: tuple[str, ...]
    refusals: tuple[tuple[str, str], ...] = ()


class Store(Protocol):
    """Durable state of one fleet. Every method that writes answers after COMMIT."""

    multi_worker: bool

    @property
    def lease_rev(self) -> int:
        """Return a number that grows whenever what `lease_epoch` answers may have changed for any
        run.
        """
        ...

    @property
    def is_shared(self) -> bool:
        """Say whether other workers handled this store's runs as of the last group."""
        ...

    @property
    def change_counter(self) -> int:
        """Return a number that grows when another worker committed something."""
        ...

    @property
    def is_current(self) -> bool:
        """Say whether this process has adopted the live revision and the last stop."""
        ...

    def subscribe(self, changed: Callable[[], None]) -> None:
        """Have `changed` called on the loop after each commit, here or by another worker."""
        ...

    def adopt(self, policy_rev: int, stop_epoch: int) -> None:
        """Say that this process decides and stops by these from now on."""
        ...

    @property
    def is_ready(self) -> bool:
        """Say whether the last commit stood and new work has room; no call may start else."""
        ...

    async def probe(self) -> None:
        """Try to commit as much as a step has, and leave nothing. Raises StoreFailed."""
        ...

    def is_lease_valid(self, epoch: int) -> bool:
        """Say whether a call may start under a lease: it lasts, and nothing newer is published.

        To be asked immediately before the call.
        """
        ...

    async def wait_for_barrier(self) -> None:
        """Return once no other worker starts a call under anything older than what is live."""
        ...

    @property
    def lagging_workers(self) -> Sequence[str]:
        """Return the workers that `wait_for_barrier` waits for; this one if it sees no others."""
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

    def has_other_runner(self, agent: str) -> bool:
        """Say whether another worker that lives runs an agent, or has not said what it runs."""
        ...

    def lease_epoch(self, run: Run) -> int | None:
        """Return the epoch under which this worker may handle a run; None if it is not ours.

        `lease_rev` grows whenever the answer may have changed for any run.
        """
        ...

    async def accept(
        self, arrivals: Sequence[Arrival | Refused], position: tuple[str, str] | None
    ) -> list[AcceptResult]: ...

    def send(self, step: Step) -> Awaitable[CommitResult]:
        """Queue a step now; steps are taken in the order in which they were sent.

        What is returned answers after COMMIT. Raises StoreFailed if the commit did not stand.
        """
        ...

    async def commit(self, step: Step) -> CommitResult:
        """Send a step and wait for its answer."""
        ...

    def is_command_done(self, command: str) -> bool:
        """Say whether a command of this id was carried out."""
        ...

    async def publish(
        self,
        bundle: Bundle,
        drafts: Sequence[Draft],
        *,
        command: str | None = None,
        number: int | None = None,
        meta: Mapping[str, str] | None = None,
        expected_revision: int | None = None,
        released: int | None = None,
    ) -> int:
        """Make a bundle the live revision; no step made under an older one commits after this.

        Without `number` it is the next one. `meta` are kept in the same commit, as `remember`
        keeps one. Raises Outrun if a revision of that number or a higher one is there, if another
        than `expected_revision` is live, or if an agent was released after the entry `released`.
        """
        ...

    async def stop(
        self,
        draft: Draft,
        scope: str,
        name: str,
        on: bool,
        *,
        command: str | None = None,
        lifted_after_us: int | None = None,
    ) -> int:
        """Set or lift a stop; return the new stop epoch. Raises BadCommand if it is so already.

        With `lifted_after_us` it is lifted again in the same commit if a person lifted its scope
        after this instant.
        """
        ...

    async def raise_budget(
        self, draft: Draft, raises: Sequence[Raise], *, command: str | None = None
    ) -> int:
        """Give more room until an instant and wake what waits for it; return the entry's seq."""
        ...

    def spend_by_minute(self, since_minute: int) -> list[tuple[str, str, int, int]]:
        """Return (agent, unit, minute, amount) of what was spent from a minute on."""
        ...

    def spend_totals(self) -> list[tuple[str, str, SpendTotal]]:
        """Return (name, unit, total) of every agent and, under FLEET, of the fleet."""
        ...

    def budget_raises(self, now_us: int) -> list[Raise]:
        """Return the raises of budgets in force at an instant."""
        ...

    def run_spend(self, run: str) -> Mapping[str, int]:
        """Return what a run has used by unit; what was booked and never settled counts in full."""
        ...

    async def transition_hold(
        self,
        action: str,
        to: HoldState,
        draft: Draft,
        *,
        approver: str | None,
        until_us: int,
        command: str | None = None,
    ) -> ActionRow:
        """Move a hold, write the entry into its run and wake the run.

        Raises BadCommand; NotShown if the draft says by its `shown_digest` that it is for what was
        shown under that, and it is another in the commit.
        """
        ...

    async def record_correction(
        self, run: str, draft: Draft, arrival: Arrival | None, *, command: str | None = None
    ) -> tuple[int, AcceptResult | None]:
        """Write what a person says of a run and, in the same commit, accept the event of it.

        Raises AlreadyDone if this person said so last, NotFound without such a run, BadCommand if
        its content was erased.
        """
        ...

    async def accept_undo(
        self, action: str, arrival: Arrival, *, command: str | None = None
    ) -> AcceptResult:
        """Accept the event that takes an action's effect back, which holds a copy of its record.

        Raises AlreadyDone if it was accepted already, BadCommand if the content was erased.
        """
        ...

    async def move_memories(
        self, *moves: tuple[Draft, Sequence[str]], command: str | None = None
    ) -> list[LedgerMemory]:
        """Move memories (`bank/id`) as an order says, all or none; return where they stand.

        Each move is the entry to write and whom it is about.

        Raises what `vedette.domain.memory_state.check_transition` raises.
        """
        ...

    async def propose_memory(self, draft: Draft, *, command: str | None = None) -> int:
        """Write what a person proposes to remember; return the entry's seq. Raises AlreadyDone."""
        ...

    def memories(self) -> dict[str, LedgerMemory]:
        """Return where every memory stands that the ledger tells of, by `bank/id`."""
        ...

    async def redrive(
        self, runs: Sequence[str], draft: Draft, *, command: str | None = None
    ) -> DeadLetterResult:
        """Let dead letters be handled again. Raises BadCommand if the only one named cannot be."""
        ...

    async def drop(
        self, runs: Sequence[str], draft: Draft, *, command: str | None = None
    ) -> DeadLetterResult:
        """Close dead letters for good. Raises BadCommand if the only one named cannot be."""
        ...

    async def erase(
        self,
        *,
        event: str | None = None,
        subject: str | None = None,
        entry: int | None = None,
        draft: Draft,
        stateless: Collection[str] = (),
        end: bool = False,
        shown: str | None = None,
        command: str | None = None,
    ) -> ErasureResult:
        """Delete the bodies found by one of event, subject and entry (seq).

        With `end` what waits on them is denied and ended first, in the same commit; with `shown`,
        the beginning of a survey's digest, only what that survey found. Raises BadCommand;
        StateNotKept if a judge has observed an event of it that no kept state holds, and its
        agent is not one of the `stateless`.
        """
        ...

    def candidates(self, events: Collection[str]) -> list[Candidate]:
        """Return what was proposed for memory out of these events and is not erased."""
        ...

    async def keep_state(self, agent: str, key: str, history: StateHistory, blob: bytes) -> bool:
        """Keep the state that a history comes to; False, and nothing is kept, if it is another."""
        ...

    def runs_without_state(
        self, *, event: str | None = None, subject: str | None = None, entry: int | None = None
    ) -> list[Run]:
        """Return the observed runs of what `erase` would find that no kept state holds."""
        ...

    async def append_entries(
        self,
        drafts: Sequence[Draft],
        bundle: Bundle | None = None,
        *,
        command: str | None = None,
        policy_rev: int | None = None,
    ) -> int:
        """Write entries that belong to no run; return the seq of the last.

        With `policy_rev`, Outrun if another revision than that is live.
        """
        ...

    def entry(self, seq: int) -> tuple[int, bytes, bytes | None] | None:
        """Return (seq, bytes, body) of an entry; None if there is none, the body if erased."""
        ...

    def last_seq(self) -> int:
        """Return the seq of the ledger's last entry."""
        ...

    def live_revision(self) -> tuple[int, str]:
        """Return the live policy revision and its bundle's digest; (0, '') before the first."""
        ...

    def revisions(self) -> list[tuple[int, str, int]]:
        """Return (number, digest, instant) of every revision there was, newest first."""
        ...

    def bundle_files(self, digest: str) -> Mapping[str, bytes] | None:
        """Return the files of a recorded bundle."""
        ...

    def published_wasm(self, digest: str) -> str | None:
        """Return the digest of the Wasm that a bundle was published with last, if any was."""
        ...

    def run(self, run: str) -> Run | None: ...

    def action(self, action: str) -> ActionRow | None: ...

    def meta(self, name: str) -> str | None:
        """Return a durable value that is kept under a name, or None."""
        ...

    def stop_scopes(self) -> list[tuple[str, str]]:
        """Return what is stopped: (scope, name) with scope all, agent or tool."""
        ...

    def active_stops(self) -> list[Stop]:
        """Return the stops in force, with the entries that set them and when they end."""
        ...

    def latest_entries(
        self, kinds: Sequence[str], after: int, limit: int
    ) -> list[tuple[int, bytes]]:
        """Return (seq, bytes) of the newest entries of some kinds after a seq, oldest first."""
        ...

    def loss_window(self) -> LossWindow | None:
        """Return from where effects may have happened in history that was lost."""
        ...

    def position(self, source: str) -> str | None:
        """Return where a source was as of its last durable batch."""
        ...

    def previous_position(self, agent: str, key: str, before: int) -> int:
        """Return the position of the last observed event of a key before `before`; 0 if none."""
        ...

    def ready_runs(self, after: int, limit: int, agent: str | None = None) -> list[Run]:
        """Return ready runs with position > `after`, oldest first; of one agent, or of all."""
        ...

    def unjudged_runs(self, agent: str, key: str, limit: int) -> list[Run]:
        """Return the runs of a key that wait for their first turn, oldest first."""
        ...

    def ready_counts(self) -> dict[str, int]:
        """Return how many runs are ready, for each agent that has any."""
        ...

    def parked_runs(self) -> list[Run]:
        """Return the runs that wait for a target, oldest first."""
        ...

    def due_runs(self, now_us: int, limit: int, without: Collection[str] = ()) -> list[Run]:
        """Return waiting runs whose instant has come, or that a person woke.

        Runs of the agents of `without` (stopped ones) are left out.
        """
        ...

    def event(self, key: str) -> Event | None:
        """Return an accepted event; None if its body was erased."""
        ...

    def proof_entries(self, actions: Collection[str]) -> dict[str, list[EntryRecord]]:
        """Return the entries that the rows of a run's actions are proved by, in order, by id."""
        ...

    def is_signed(self, data: bytes, signature: bytes) -> bool:
        """Say whether the fleet's key signed something."""
        ...

    def actions(self, run: str) -> list[ActionRow]:
        """Return the actions of a run, in order of turn and ordinal."""
        ...

    def turns(self, run: str) -> list[Mapping[str, Any]]:
        """Return the recorded turns of a run, oldest first."""
        ...

    def row(self, collection: str, key: str) -> Mapping[str, Any] | None: ...

    def state_history(self, agent: str, key: str, before: int) -> StateHistory:
        """Return what the judge's state of a key was made of before a position, in order."""
        ...

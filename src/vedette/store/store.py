"""The Store port over a database: reads beside the line, writes through the one writer.

An adapter opens the connections, sees to it that the store is its own, and calls `_start`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path

from msgspec.structs import replace

from vedette.domain.base.errors import BadStore
from vedette.domain.base.failpoint import hit_failpoint
from vedette.domain.budget import DAY_US, MINUTE_US, Raise
from vedette.domain.bundle import Bundle
from vedette.domain.entry import Draft
from vedette.domain.hold import HoldState
from vedette.domain.identity import ENGINE
from vedette.domain.memory_state import LedgerMemory
from vedette.domain.ports.sources import Refused
from vedette.domain.ports.store import (
    AcceptResult,
    Arrival,
    DeadLetterResult,
    ErasureResult,
    StateHistory,
)
from vedette.domain.run import ActionRow, CommitResult, Run, Step
from vedette.ledger.merkle import SigningKey, verifier_key
from vedette.store.dead_letters import drop, redrive
from vedette.store.dialect import Database
from vedette.store.erasure import erase
from vedette.store.group_commit import Writer
from vedette.store.ledger_writer import LedgerWriter
from vedette.store.loss_detection import Loss, find_loss, quarantine_database, record_loss
from vedette.store.retention import StoreMaintenance
from vedette.store.states import keep_state
from vedette.store.witness import Witness
from vedette.store.write_buffer import WriteBuffer
from vedette.store.write_commands import CommandWriter
from vedette.store.write_memories import (
    accept_undo,
    move_memories,
    propose_memory,
    record_correction,
)
from vedette.store.write_runs import Fences, StepWriter


class SqlStore(StoreMaintenance):
    """One fleet's durable state, as `vedette.domain.ports.store.Store` says.

    All writes answer after COMMIT.
    """

    writer: Writer
    witness: Witness  # set by the adapter before it connects
    # What was found to be lost when it was opened.
    loss: Loss | None = None
    lease_rev = 0
    multi_worker = False
    # What a person should know of how it was opened.
    remarks: Sequence[str] = ()
    # How many steps of a group the event loop may write: see `Writer`.
    inline_limit = 0
    step_writer_type: type[StepWriter] = StepWriter

    def __init__(self, reading: Database, writing: Database, now_us: Callable[[], int]) -> None:
        super().__init__(reading)
        self._write = writing
        self._now_us = now_us

    def _start(self, folder: Path, fleet: str, key: SigningKey, key_name: str) -> None:
        """Check that the store is this fleet's and whole, begin a new epoch, start the writer."""
        named = self.meta("fleet")
        if named not in (None, fleet):
            raise BadStore(
                f"this store belongs to the fleet {named!r}, not {fleet!r}",
                where=str(folder),
                mend="use another state folder or the fleet's own name",
            )
        self._ledger = LedgerWriter(
            self._write,
            origin=f"vedette/{fleet}",
            key_name=key_name,
            key=key,
            witness=self.witness,
            now_us=self._now_us,
        )
        buffer = self._buffer = WriteBuffer(self._write, self._ledger)
        self._fences = Fences()
        parts = (self._write, self._ledger, buffer, self._fences, self._now_us)
        self._step_writer, self._commands = self.step_writer_type(*parts), CommandWriter(*parts)
        self.loss = self._record_loss(verifier_key(key_name, key.public_key().public_bytes_raw()))
        self._take_ownership(fleet)
        self._read_fences()
        self.writer = Writer(self._write, self._ledger, buffer, self)

    def _record_loss(self, key: str) -> Loss | None:
        """Record what is lost of the history that the witness saw; return it. Raises BadStore."""
        if self._find_loss(key) is None:
            return None
        self._write.begin()
        try:
            self._read_fences()  # the stop comes after those that there were
            self.on_begin()
            loss = self._find_loss(key)  # another worker may have recorded it meanwhile
            if loss is not None:
                record_loss(
                    self._write, self._ledger, self._commands, loss, actor=str(ENGINE),
                    reason=loss.sentence, at_us=self._now_us(),
                )  # fmt: skip
                self._buffer.flush()
                self._ledger.close_group()
                self._write.commit()
        finally:
            self._write.rollback()
        if loss is not None:
            self._ledger.confirm_group()
        return loss

    def _find_loss(self, key: str) -> Loss | None:
        found = find_loss(self._write, self.witness.path, key, self._may_join)
        loss, self.witness.last_checkpoint = found.loss, found.last
        if loss is not None and loss.heads and not self.multi_worker:
            # A server goes back by itself; a file does not: somebody put it there.
            raise BadStore(
                f"the witness saw a ledger of {loss.last} entries that this store does not hold",
                where=str(self.witness.path),
                mend="put the store's whole folder back, or `vedette restore` a backup",
            )
        if found.has_diverged:
            # Before any head is shown: whoever is killed now finds it again.
            quarantine_database(self.witness.path.with_name("memory.db"))
        return loss

    def _may_join(self) -> bool:
        """Say whether others vouch for the store, so that a folder without a witness may join."""
        return False

    def _take_ownership(self, fleet: str) -> None:
        """Begin a new epoch: whoever wrote before must not any more."""
        self._fences.epoch = int(self.meta("epoch") or 0) + 1
        hit_failpoint("epoch:before")
        self._write.begin()
        self._commands.set_meta("fleet", fleet)
        self._commands.set_meta("epoch", self._fences.epoch)
        # Limits look back a day at most.
        old = (self._now_us() - 3 * DAY_US) // MINUTE_US
        self._write.execute("DELETE FROM spend WHERE minute<?", (old,))
        self._write.commit()
        hit_failpoint("epoch:after")

    # --- what the writer asks of its owner, on its thread -----------------------------------

    def on_begin(self) -> None:
        """A group's transaction has begun. Nobody else writes here, so nothing is to be seen."""

    def on_rollback(self) -> None:
        """Take fences and steps from what stands.

        A publication, a stop or a step moves them as soon as it has its place in a group; if the
        item or the group is lost they must not stay ahead of the store, or every later step would
        be refused.
        """
        self._step_writer.forget()
        self._read_fences()

    def on_commit(self) -> None:
        """A group was committed."""

    def free_space(self, error: Exception) -> bool:
        """Where the disk is not this machine's nothing can be given up for it."""
        return False

    def has_space(self) -> bool:
        """Say whether there is room for more than what is vital."""
        return True

    def mark_erasure(self) -> None:
        """An erasure is part of this group."""

    def _read_fences(self) -> None:
        rows = self._write.rows("SELECT COALESCE(MAX(number),0) FROM policy")
        stop = self._write.rows("SELECT value FROM meta WHERE name='stop_epoch'")
        self._fences.policy_rev = int(rows[0][0])
        self._fences.stop_epoch = int(stop[0][0]) if stop else 0

    # --- state ------------------------------------------------------------------------------

    @property
    def epoch(self) -> int:
        """Return the epoch of this worker."""
        return self._fences.epoch

    @property
    def policy_rev(self) -> int:
        """Return the live policy revision."""
        return self._fences.policy_rev

    @property
    def stop_epoch(self) -> int:
        """Return how often stops were set or lifted."""
        return self._fences.stop_epoch

    @property
    def is_ready(self) -> bool:
        """Say whether the last commit stood, and new work has room: no call starts else."""
        return self.writer.is_ready

    async def probe(self) -> None:
        """Try to commit as much as a step has, and leave nothing. Raises StoreFailed."""

        def work() -> None:
            # What fits into room that is left here and there says nothing of the next step.
            self._commands.set_meta("probed", "0" * _PROBE_CHARS)
            self._commands.set_meta("probed", self._now_us())

        await self.writer.submit(work)

    def lease_epoch(self, run: Run) -> int | None:
        """Return the epoch under which this worker may handle a run; None if it is not ours."""
        return self._fences.epoch

    # --- what only several workers on one store need; the adapter for PostgreSQL has them ------

    @property
    def is_leader(self) -> bool:
        """Say whether this worker is the one that runs the fleet's sources."""
        return True

    @property
    def is_shared(self) -> bool:
        """Say whether other workers handle this store's runs."""
        return False

    @property
    def change_counter(self) -> int:
        """Return a number that grows when another worker committed something."""
        return 0

    @property
    def is_current(self) -> bool:
        """Say whether this process has adopted the live revision and the last stop."""
        return True

    async def announce_agents(self, agents: Collection[str]) -> None:
        """Tell the other workers which agents this one runs."""

    def has_other_runner(self, agent: str) -> bool:
        """Say whether another worker that lives runs an agent, or has not said what it runs."""
        return False

    def is_lease_valid(self, epoch: int) -> bool:
        """Say whether a call may start under a lease: it lasts, and nothing newer is published."""
        return epoch == self._fences.epoch

    def watch_calls(
        self, older: Callable[[int], int], keys: Callable[[], Collection[tuple[str, str]]]
    ) -> None:
        """Be told how to see which calls are out: how many older than a revision, of which keys."""

    def subscribe(self, changed: Callable[[], None]) -> None:
        """Have `changed` called on the loop after each commit, here or by another worker."""
        self.writer.listeners.append(changed)

    def adopt(self, policy_rev: int, stop_epoch: int) -> None:
        """Say that this process decides and stops by these from now on."""

    async def wait_for_barrier(self) -> None:
        """Return once no other worker starts a call under anything older than what is live."""

    @property
    def lagging_workers(self) -> Sequence[str]:
        """Return the workers that `wait_for_barrier` waits for; this one if it sees no others."""
        return ()

    def close(self) -> None:
        """Commit what is queued and close the connections."""
        self.writer.close()
        self._database.close()
        self._write.close()

    # --- what the line writes ---------------------------------------------------------------

    async def accept(
        self, arrivals: Sequence[Arrival | Refused], position: tuple[str, str] | None
    ) -> list[AcceptResult]:
        """Make a batch durable: events, the runs they wake, refusals, the source's position."""
        work = self._step_writer.accept
        return await self.writer.enqueue(
            lambda: work(arrivals, position), in_savepoint=False, size=_size_of(arrivals)
        )

    async def accept_undo(
        self, action: str, arrival: Arrival, *, command: str | None = None
    ) -> AcceptResult:
        """Accept the event that takes an action's effect back; see `write_memories.accept_undo`."""
        return await self.writer.submit(
            self._commands.deduplicate(
                command, lambda: accept_undo(self._write, self._step_writer, action, arrival)
            )
        )

    def send(self, step: Step) -> asyncio.Future[CommitResult]:
        """Queue a step now, in the order of calls; the future has its answer after COMMIT."""
        bodies = sum(len(draft.body.data) for draft in step.drafts if draft.body is not None)
        size = 1 + bodies // _STEP_BYTES
        # A decision is new work, also where a row of the fleet's own is done with it at once.
        vital = step.policy_rev is None and any(
            row.effect in _CALL_OUTCOMES for row in step.actions
        )
        return self.writer.enqueue(
            lambda: self._step_writer.commit(step), in_savepoint=False, size=size, vital=vital
        )

    async def commit(self, step: Step) -> CommitResult:
        """Make a step durable, or say why not: see `CommitResult`."""
        return await self.send(step)

    # --- orders -----------------------------------------------------------------------------

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
        """Make a bundle the live revision; steps made under older ones are refused from here on.

        `drafts` are written with the new number in their `policy_rev`; `meta` are kept in the same
        commit. Returns the number. Raises Outrun if `number` is no higher than what is live, if
        another number than `expected_revision` is, or if an agent was released after the entry
        `released`.
        """
        commands = self._commands

        def work() -> int:
            return commands.publish(bundle, drafts, number, meta, expected_revision, released)

        return await self.writer.submit(commands.deduplicate(command, work))

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

        See `Orders.stop` for `lifted_after_us`.
        """
        commands = self._commands

        def work() -> int:
            return commands.stop(draft, scope, name, on, lifted_after_us)

        return await self.writer.submit(commands.deduplicate(command, work), vital=on)

    async def raise_budget(
        self, draft: Draft, raises: Sequence[Raise], *, command: str | None = None
    ) -> int:
        """Give more room until an instant and wake what waits for it; return the entry's seq."""
        commands = self._commands
        return await self.writer.submit(
            commands.deduplicate(command, lambda: commands.raise_budget(draft, raises))
        )

    def is_signed(self, data: bytes, signature: bytes) -> bool:
        """Say whether the key in force signed something; one of before a rotation did not."""
        return self._ledger.is_signed(data, signature)

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

        Raises BadCommand; NotShown if the draft's `shown_digest` is not that of the hold as it is.
        """
        commands = self._commands

        def work() -> ActionRow:
            self._step_writer.forget()
            return commands.transition_hold(action, to, draft, approver, until_us)

        return await self.writer.submit(commands.deduplicate(command, work))

    async def record_correction(
        self, run: str, draft: Draft, arrival: Arrival | None, *, command: str | None = None
    ) -> tuple[int, AcceptResult | None]:
        """Write what a person says of a run and, in the same commit, accept the event of it."""

        def work() -> tuple[int, AcceptResult | None]:
            # What is known of this run's steps is not so any more.
            self._step_writer.forget()
            return record_correction(
                self._write, self._ledger, self._step_writer, run, draft, arrival, self._now_us()
            )

        return await self.writer.submit(self._commands.deduplicate(command, work))

    async def move_memories(
        self, *moves: tuple[Draft, Sequence[str]], command: str | None = None
    ) -> list[LedgerMemory]:
        """Move memories (`bank/id`) as an order says, all in one commit; see `write_memories`."""
        return await self.writer.submit(
            self._commands.deduplicate(
                command, lambda: move_memories(self._write, self._ledger, moves, self._now_us())
            )
        )

    async def propose_memory(self, draft: Draft, *, command: str | None = None) -> int:
        """Write what a person proposes to remember; return the entry's seq."""
        return await self.writer.submit(
            self._commands.deduplicate(
                command, lambda: propose_memory(self._write, self._ledger, draft, self._now_us())
            )
        )

    async def redrive(
        self, runs: Sequence[str], draft: Draft, *, command: str | None = None
    ) -> DeadLetterResult:
        """Let dead letters be handled again. Raises BadCommand if the only one named cannot be."""
        return await self._move_dead_letters(
            lambda: redrive(self._write, self._ledger, self._buffer, runs, draft, self._now_us()),
            command,
        )

    async def drop(
        self, runs: Sequence[str], draft: Draft, *, command: str | None = None
    ) -> DeadLetterResult:
        """Close dead letters for good. Raises BadCommand if the only one named cannot be."""
        return await self._move_dead_letters(
            lambda: drop(self._write, self._ledger, runs, draft, self._now_us()), command
        )

    async def _move_dead_letters(
        self, work: Callable[[], DeadLetterResult], command: str | None
    ) -> DeadLetterResult:
        def alone() -> DeadLetterResult:
            # What is known of these runs' steps is not so any more.
            self._step_writer.forget()
            return work()

        return await self.writer.submit(self._commands.deduplicate(command, alone))

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
        commands = self._commands
        return await self.writer.submit(
            commands.deduplicate(
                command, lambda: commands.append_entries(drafts, bundle, policy_rev)
            )
        )

    async def remember(self, name: str, value: str) -> None:
        """Keep a value of the runner's own under a name; `meta` reads it."""
        await self.writer.submit(lambda: self._commands.set_meta(name, value))

    async def compare_and_set(self, name: str, was: str | None, value: str) -> bool:
        """Keep a value as `remember` does if `name` still holds `was`; say whether it was so."""
        return await self.writer.submit(lambda: self._commands.compare_and_set(name, was, value))

    async def mark_live(
        self, number: int, marks: Mapping[str, str], name: str, was: str | None
    ) -> bool:
        """Keep values in one commit if revision `number` is live and `name` still holds `was`.

        Returns whether it was so: another worker may have published meanwhile.
        """
        commands = self._commands
        return await self.writer.submit(lambda: commands.mark_live(number, marks, name, was))

    async def keep_state(self, agent: str, key: str, history: StateHistory, blob: bytes) -> bool:
        """Keep the state that a history comes to; False, and nothing is kept, if it is another."""
        return await self.writer.submit(lambda: keep_state(self._write, agent, key, history, blob))

    @property
    def is_scrubbed(self) -> bool:
        """Say whether the store's files hold nothing any more of what was erased."""
        raise NotImplementedError

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
        """Delete the bodies found by event, subject or entry; with `end` end what waits on them.

        The entry that names them is written in the same commit. Action records of the same runs
        lose their arguments.
        """

        def work() -> ErasureResult:
            self.mark_erasure()
            # What is known of the runs that are ended is not so any more.
            self._step_writer.forget()
            return erase(
                self._write, self._ledger, event=event, subject=subject, entry=entry, draft=draft,
                at_us=self._now_us(), stateless=stateless, end=self._buffer if end else None,
                shown=shown,
            )  # fmt: skip

        erased = await self.writer.submit(self._commands.deduplicate(command, work))
        return replace(erased, is_scrubbed=self.is_scrubbed)


# How many bytes are as much work as a step.
_STEP_BYTES = 16_384
# How many characters are written to find out whether the store commits again.
_PROBE_CHARS = 65_536
# What a call that was made can have come to: nobody else knows, so it is recorded first.
_CALL_OUTCOMES = ("done", "failed", "unknown")


def _size_of(arrivals: Sequence[Arrival | Refused]) -> int:
    """Return how much work a batch is, in steps."""
    held = sum(len(each.raw if isinstance(each, Refused) else each.body) for each in arrivals)
    return len(arrivals) + held // _STEP_BYTES

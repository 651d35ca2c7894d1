"""Orders on their way into the store's groups: each in its own savepoint, once for each id."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import TypeVar

from msgspec.structs import replace

from vedette.domain.budget import BudgetRaise
from vedette.domain.bundle import Bundle
from vedette.domain.entry import Draft
from vedette.domain.erasure import ErasureResult, ErasureTarget
from vedette.domain.hold import HoldState
from vedette.domain.memory_state import LedgerMemory
from vedette.domain.ports.command_store import DeadLetterResult
from vedette.domain.ports.run_store import AcceptResult, Arrival
from vedette.domain.run import ActionRow, Run
from vedette.store.dead_letters import drop_dead_letters, redrive_dead_letters
from vedette.store.erasure import erase_content
from vedette.store.group_commit import CommitHooks, GroupWriter
from vedette.store.meta import write_meta
from vedette.store.write_memories import (
    accept_undo,
    move_memories,
    propose_memory,
    record_correction,
)
from vedette.store.write_parts import WriteParts

T = TypeVar("T")


class CommandQueue:
    """The queue of orders into the store's groups; fits `ports.command_store.CommandQueue`."""

    def __init__(self, writer: GroupWriter, parts: WriteParts, hooks: CommitHooks) -> None:
        self._writer = writer
        self._parts = parts
        self._hooks = hooks

    async def submit(
        self,
        command: str | None,
        work: Callable[[], T],
        *,
        vital: bool = False,
        moves_runs: bool = False,
    ) -> T:
        """Do `work` in a group. Raises AlreadyDone if a command of this id was carried out.

        What is known of the steps of runs does not hold any more after work that `moves_runs`.
        """
        parts = self._parts

        def once() -> T:
            parts.commands.claim(command)
            if moves_runs:
                parts.steps.forget()
            return work()

        return await self._writer.submit(once, vital=vital)

    async def append_entries(
        self,
        drafts: Sequence[Draft],
        bundle: Bundle | None = None,
        *,
        command: str | None = None,
        policy_rev: int | None = None,
    ) -> int:
        writer = self._parts.commands
        return await self.submit(command, lambda: writer.append_entries(drafts, bundle, policy_rev))

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
        writer = self._parts.commands

        def work() -> int:
            revision = writer.publish(
                bundle, drafts, number, meta or {}, expected_revision, released
            )
            self._hooks.on_publish()
            return revision

        return await self.submit(command, work)

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
        writer = self._parts.commands
        return await self.submit(
            command, lambda: writer.stop(draft, scope, name, on, lifted_after_us), vital=on
        )

    async def raise_budget(
        self, draft: Draft, raises: Sequence[BudgetRaise], *, command: str | None = None
    ) -> int:
        return await self.submit(command, lambda: self._parts.commands.raise_budget(draft, raises))

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
        writer = self._parts.commands
        return await self.submit(
            command,
            lambda: writer.transition_hold(action, to, draft, approver, until_us),
            moves_runs=True,
        )

    async def move_task(self, run: str, draft: Draft, *, command: str | None = None) -> Run:
        writer = self._parts.commands
        return await self.submit(command, lambda: writer.move_task(run, draft), moves_runs=True)

    async def record_correction(
        self, run: str, draft: Draft, arrival: Arrival | None, *, command: str | None = None
    ) -> tuple[int, AcceptResult | None]:
        parts = self._parts

        def work() -> tuple[int, AcceptResult | None]:
            return record_correction(
                parts.database, parts.ledger, parts.steps, run, draft, arrival, parts.now_us()
            )

        return await self.submit(command, work, moves_runs=True)

    async def accept_undo(
        self, action: str, arrival: Arrival, *, command: str | None = None
    ) -> AcceptResult:
        parts = self._parts
        return await self.submit(
            command, lambda: accept_undo(parts.database, parts.steps, action, arrival)
        )

    async def move_memories(
        self, *moves: tuple[Draft, Sequence[str]], command: str | None = None
    ) -> list[LedgerMemory]:
        parts = self._parts
        return await self.submit(
            command, lambda: move_memories(parts.database, parts.ledger, moves, parts.now_us())
        )

    async def propose_memory(self, draft: Draft, *, command: str | None = None) -> int:
        parts = self._parts
        return await self.submit(
            command, lambda: propose_memory(parts.database, parts.ledger, draft, parts.now_us())
        )

    async def redrive(
        self, runs: Sequence[str], draft: Draft, *, command: str | None = None
    ) -> DeadLetterResult:
        parts = self._parts

        def work() -> DeadLetterResult:
            return redrive_dead_letters(
                parts.database, parts.ledger, parts.buffer, runs, draft, parts.now_us()
            )

        return await self.submit(command, work, moves_runs=True)

    async def drop(
        self, runs: Sequence[str], draft: Draft, *, command: str | None = None
    ) -> DeadLetterResult:
        parts = self._parts
        return await self.submit(
            command,
            lambda: drop_dead_letters(parts.database, parts.ledger, runs, draft, parts.now_us()),
            moves_runs=True,
        )

    async def erase(
        self,
        target: ErasureTarget,
        draft: Draft,
        *,
        stateless: Collection[str] = (),
        end: bool = False,
        shown: str | None = None,
        command: str | None = None,
    ) -> ErasureResult:
        parts, hooks = self._parts, self._hooks

        def work() -> ErasureResult:
            hooks.on_erasure()
            return erase_content(
                parts.database, parts.ledger, target, draft, parts.now_us(), stateless=stateless,
                end=parts.buffer if end else None, shown=shown,
            )  # fmt: skip

        erased = await self.submit(command, work, moves_runs=True)
        return replace(erased, is_scrubbed=hooks.is_scrubbed)

    async def set_meta(self, name: str, value: str) -> None:
        await self._writer.submit(lambda: write_meta(self._parts.database, name, value))

    async def compare_and_set_meta(self, name: str, was: str | None, value: str) -> bool:
        writer = self._parts.commands
        return await self._writer.submit(lambda: writer.compare_and_set_meta(name, was, value))

    async def set_meta_if_live(
        self, number: int, values: Mapping[str, str], name: str, was: str | None
    ) -> bool:
        writer = self._parts.commands
        return await self._writer.submit(lambda: writer.set_meta_if_live(number, values, name, was))

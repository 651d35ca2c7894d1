"""The port of what people and the engine order of the store. Every order answers after COMMIT.

An order with the id of one that was carried out before raises AlreadyDone.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Protocol

from msgspec import Struct

from vedette.domain.budget import BudgetRaise
from vedette.domain.bundle import Bundle
from vedette.domain.entry import Draft
from vedette.domain.erasure import ErasureResult, ErasureTarget
from vedette.domain.hold import HoldState
from vedette.domain.memory_state import LedgerMemory
from vedette.domain.ports.run_store import AcceptResult, Arrival
from vedette.domain.run import ActionRow, Run


class DeadLetterResult(Struct, frozen=True):
    """The result of an order about dead letters: the runs that moved, and why others did not."""

    runs: tuple[str, ...]
    refusals: tuple[tuple[str, str], ...] = ()


class CommandQueue(Protocol):
    """The port of orders on policy, stops, holds, budgets, memories, dead letters and content."""

    async def append_entries(
        self,
        drafts: Sequence[Draft],
        bundle: Bundle | None = None,
        *,
        command: str | None = None,
        policy_rev: int | None = None,
    ) -> int:
        """Write entries that belong to no run; return the seq of the last.

        With `policy_rev`, WriteConflict if another revision than that is live.
        """
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

        `drafts` are written with the new number in their `policy_rev`; without `number` it is the
        next one. `meta` are kept in the same commit. Returns the number. Raises WriteConflict if a
        revision of that number or a higher one is there, if another than `expected_revision` is
        live, or if an agent was released after the entry `released`.
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

        A stop that lasts longer takes the place of one with an end. A lift with a cause lifts the
        stop that this entry set, and no other: a person may have made it last longer meanwhile.
        A stop that is recorded late comes with `lifted_after_us`, when it was ordered: if its scope
        was lifted by a person after that, it is lifted again in the same commit.
        """
        ...

    async def raise_budget(
        self, draft: Draft, raises: Sequence[BudgetRaise], *, command: str | None = None
    ) -> int:
        """Give more room until an instant and wake what waits for it; return the entry's seq."""
        ...

    async def move_task(self, run: str, draft: Draft, *, command: str | None = None) -> Run:
        """Write what a person says of a task into its run, and wake it; return it as it was.

        Raises NotFound, and BadCommand for one that has ended.
        """
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

        Raises NotFound without such a hold, BadCommand; DisplayMismatch if the draft says by its
        `shown_digest` that it is for what was shown under that, and it is another in the commit.
        """
        ...

    async def record_correction(
        self, run: str, draft: Draft, arrival: Arrival | None, *, command: str | None = None
    ) -> tuple[int, AcceptResult | None]:
        """Write what a person says of a run and, in the same commit, accept the event of it.

        Returns the entry's seq and what was accepted. Raises AlreadyDone if that is what this
        person said of it last, NotFound without such a run, BadCommand if its content was erased.
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

        Each move is the entry to write and the memories it is about. Raises what
        `vedette.domain.memory_state.check_transition` raises.
        """
        ...

    async def propose_memory(self, draft: Draft, *, command: str | None = None) -> int:
        """Write what a person proposes to remember; return the entry's seq. Raises AlreadyDone."""
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
        target: ErasureTarget,
        draft: Draft,
        *,
        stateless: Collection[str] = (),
        end: bool = False,
        shown: str | None = None,
        command: str | None = None,
    ) -> ErasureResult:
        """Delete the content found by a target, and say so in the ledger.

        With an event go the events that hold a copy of it, however many steps away: those of its
        corrections, and those that undo what was done because of it. With `end` the runs that wait
        on it are ended first, their holds denied by the same person; with `shown`, the beginning of
        a survey's digest, nothing goes but what that survey found. Raises BadCommand if there is no
        content, or if a run needs it; DisplayMismatch for another survey; StateNotKept for an event
        that a judge has observed and no kept state holds, unless its agent is `stateless`.
        """
        ...

    async def set_meta(self, name: str, value: str) -> None:
        """Keep a value under a name; `meta` reads it."""
        ...

    async def compare_and_set_meta(self, name: str, was: str | None, value: str) -> bool:
        """Keep a value if `name` still holds `was` (None: nothing); say whether it was so."""
        ...

    async def set_meta_if_live(
        self, number: int, values: Mapping[str, str], name: str, was: str | None
    ) -> bool:
        """Keep values if revision `number` is live and `name` still holds `was`; say whether so."""
        ...

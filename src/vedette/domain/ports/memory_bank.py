"""The port of memory banks."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, Protocol

from vedette.domain.memory import BankPlan, Candidate, Memory
from vedette.domain.memory_state import LedgerMemory


class BankStore(Protocol):
    """The port of memory banks: a projection of reviewed files and of committed steps.

    Every method raises StoreFailed where a disk refuses something.
    """

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

    def find_refusal(self, bank: str, scope: str, agent: str | None) -> str:
        """Say why a bank takes no candidate of an agent (None: a person's); "" if it does."""
        ...

    def find_fault(self, of: Candidate) -> str:
        """Say why what is proposed is not kept as it is written; "" if it is."""
        ...

    def retention_us(self, bank: str) -> int:
        """Return for how many microseconds a bank keeps what was learned; 0 if it is unknown."""
        ...

    def topics(self, bank: str) -> tuple[str, ...]:
        """Return the topics that a memory of a bank may have."""
        ...

    def propose(self, candidate: Candidate, now_us: int) -> None: ...

    def sync_states(self, learned: Iterable[LedgerMemory]) -> set[str]:
        """Bring memories to where the ledger says they stand; return the banks that changed."""
        ...

    def list_memories(self, bank: str | None = None) -> list[dict[str, Any]]:
        """Return every candidate and memory that is not of a removed file, as data."""
        ...

    def forget(self, events: Collection[str], kept: Collection[Candidate] = ()) -> int:
        """Delete what was learned of erased events, except what is `kept`; return how many."""
        ...

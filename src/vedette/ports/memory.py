"""Memory banks."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Protocol

from vedette.memory import BankPlan, Candidate, Memory


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

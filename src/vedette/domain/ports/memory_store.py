"""The port of memories as the ledger tells of them."""

from __future__ import annotations

from collections.abc import Collection
from typing import Protocol

from vedette.domain.memory import Candidate
from vedette.domain.memory_state import LedgerMemory


class MemoryReader(Protocol):
    """The port of where memories stand, archived or not."""

    def all(self) -> dict[str, LedgerMemory]:
        """Return where every memory stands that the ledger tells of, by `bank/id`."""
        ...

    def candidates(self, events: Collection[str]) -> list[Candidate]:
        """Return what was proposed for memory out of these events and is not erased."""
        ...

    def entries(self, kinds: tuple[str, ...]) -> list[tuple[int, bytes, bytes | None]]:
        """Return (seq, bytes, body) of entries that memories are made of, oldest first.

        `kinds` are some of `vedette.domain.memory_state.KEPT_KINDS`.
        """
        ...

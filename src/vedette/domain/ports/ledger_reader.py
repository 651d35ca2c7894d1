"""The port of the ledger: entries in order, with their content, and what vouches for them."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any, Protocol

from vedette.domain.row_proof import EntryRecord
from vedette.domain.run import LossWindow

# (seq, canonical bytes, salt, body); without salt and body if there is none, or it was erased.
RawEntry = tuple[int, bytes, bytes | None, bytes | None]
# (seq, canonical bytes, body)
EntryWithBody = tuple[int, bytes, bytes | None]


class EntryLog(Protocol):
    """The port of entries in order: of a store, an export, or an archive with a store behind it."""

    def walk(self, kinds: tuple[str, ...] | None = None, after: int = 0) -> Iterator[RawEntry]:
        """Yield all entries in order, or those of some kinds."""
        ...


class LedgerReader(EntryLog, Protocol):
    """The port of a store's ledger, whose entries are found by an index."""

    def last_seq(self) -> int:
        """Return the seq of the last entry; 0 if there is none."""
        ...

    def seq_at(self, at_us: int) -> int:
        """Return the last entry that is not younger than an instant; 0 if none is."""
        ...

    def entry(self, seq: int) -> EntryWithBody | None: ...

    def entries(
        self, column: str, value: str, limit: int = 1000, after: int = 0
    ) -> list[EntryWithBody]:
        """Return the entries of a run, event or action (`column`) after a seq, oldest first.

        In the place of an artefact's text is its beginning (`domain.artefact.abridge_body`).
        """
        ...

    def run_entries(self, run: str, kinds: Sequence[str]) -> list[EntryWithBody]:
        """Return the entries of a run that are of these kinds, oldest first."""
        ...

    def entries_after(self, after: int, limit: int) -> list[tuple[int, bytes]]:
        """Return (seq, bytes) of the next entries, oldest first."""
        ...

    def entries_page(
        self, filters: Mapping[str, Any], *, before: int | None, after: int | None, limit: int
    ) -> list[tuple[int, bytes]]:
        """Return (seq, bytes) of entries, newest first, on one side of a seq.

        `after` asks for the nearest newer ones. Raises ValueError for a set of filters that no
        index answers.
        """
        ...

    def latest_entries(
        self, kinds: Sequence[str], after: int, limit: int
    ) -> list[tuple[int, bytes]]:
        """Return (seq, bytes) of the newest entries of some kinds after a seq, oldest first.

        What every event leaves is told by the read model, which may be a moment behind; what is
        rare, by the store itself.
        """
        ...

    def latest_decisions(self, limit: int) -> list[int]:
        """Return the seqs of decisions of the latest events that were acted on, newest first."""
        ...

    def latest_of_agent(self, agent: str, kinds: tuple[str, ...], runs: int) -> list[bytes]:
        """Return the entries of some kinds of an agent's latest runs, newest first.

        By the store itself, never by the read model: orders are checked against them.
        """
        ...

    def proof_entries(self, actions: Collection[str]) -> dict[str, list[EntryRecord]]:
        """Return the entries that rows are proved by (`vedette.domain.row_proof`), in order, by
        action. The actions are of one run. A body that its entry does not name is as if gone.
        """
        ...

    def loss_window(self) -> LossWindow | None:
        """Return from where effects may have happened in history that was lost."""
        ...

"""The history of one run: what it read, judged and proposed, what people said, how it ended."""

from __future__ import annotations

from typing import TypeVar

from msgspec import Struct

from vedette.domain.ports.ledger_reader import LedgerReader
from vedette.ledger.history.action import ActionHistory, history_of
from vedette.ledger.history.entry_view import (
    DeathEntry,
    EntryView,
    JudgementEntry,
    WithdrawalEntry,
    read_entry,
)

# As many entries of a run are read; of longer ones the first.
ENTRIES = 1000

V = TypeVar("V", bound=EntryView)


class RunHistory(Struct, frozen=True):
    """The entries of one run in the order of the ledger, and what they come to."""

    id: str
    entries: tuple[EntryView, ...] = ()

    @property
    def is_truncated(self) -> bool:
        """Say whether there may be more entries than were read."""
        return len(self.entries) >= ENTRIES

    def of_type(self, view: type[V]) -> list[V]:
        """Return the entries of one kind of view."""
        return [entry for entry in self.entries if isinstance(entry, view)]

    def action(self, id: str) -> ActionHistory:
        """Return the history of one of its actions."""
        return history_of(id, (entry for entry in self.entries if entry.action == id))

    @property
    def release(self) -> str | None:
        """Return the release of its agent that first acted."""
        return next((entry.get("release") for entry in self.entries if entry.get("release")), None)

    @property
    def turns(self) -> list[JudgementEntry]:
        """Return the recorded turns."""
        return [one for one in self.of_type(JudgementEntry) if one.kind == "turn.reasoned"]

    def turn(self, number: int) -> list[JudgementEntry]:
        """Return the recorded turn of a number; none if there is none."""
        return [one for one in self.turns if one.turn == number]

    @property
    def opinion(self) -> JudgementEntry | None:
        """Return the turn of a judge that deferred to a model; None if none did."""
        return next((one for one in self.turns if one.is_deferred), None)

    @property
    def quiet_judgements(self) -> list[JudgementEntry]:
        """Return the judgement of an uneventful run, which is told by its end alone."""
        return [one for one in self.of_type(JudgementEntry) if one.get("label") is not None]

    @property
    def memories(self) -> list[str]:
        """Return what was cited (id@revision), each once, in the order of the briefings."""
        return list(dict.fromkeys(cite for turn in self.turns for cite in turn.memories or ()))

    def refusals(self, turn: int | None) -> dict[int | None, WithdrawalEntry]:
        """Return why proposals of a turn became no action, by ordinal."""
        return {
            one.ordinal: one
            for one in self.of_type(WithdrawalEntry)
            if one.kind == "action.refused" and one.turn == turn
        }

    @property
    def death(self) -> DeathEntry | None:
        """Return why it is a dead letter; None if it is none, or was taken up again since."""
        ends = [e for e in self.entries if e.kind in ("run.dead", "run.redriven")]
        return ends[-1] if ends and isinstance(ends[-1], DeathEntry) else None


def read_run(ledger: LedgerReader, run: str) -> RunHistory:
    """Return the history of a run, read from the ledger's entries."""
    return RunHistory(run, tuple(read_entry(*row) for row in ledger.entries("run", run, ENTRIES)))

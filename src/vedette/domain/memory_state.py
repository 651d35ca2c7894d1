"""The states of memories: their entries, folded into where each stands and what became of it.

The ledger is the truth and a bank a projection of it: what is recalled can be told, and made
again, from these entries and their bodies alone. A memory that a person reviewed as a file has an
entry only once it was taken back.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Literal

from msgspec import Struct

from vedette.domain.base.errors import AlreadyDone, BadCommand, NotFound
from vedette.domain.memory import Candidate, MemoryState

PROPOSED = "memory.proposed"
# What `body.erased` names of content that is erased because an archive has its entries.
ARCHIVE_CAUSE = "archive"
# What a person orders, and where that leads.
TRANSITIONS: Mapping[str, MemoryState] = {
    "memory.promoted": "active",
    "memory.rejected": "rejected",
    "memory.retired": "off",
    "memory.restored": "active",
}
MEMORY_ENTRY_KINDS = (PROPOSED, *TRANSITIONS)

# From where each order may be given.
_REQUIRED_STATE: Mapping[str, MemoryState] = {
    "memory.promoted": "candidate",
    "memory.rejected": "candidate",
    "memory.retired": "active",
    "memory.restored": "off",
}
_STATE_TEXTS = {"active": "is recalled", "rejected": "was rejected", "off": "was taken back",
           "candidate": "was never promoted", "erased": "was erased"}  # fmt: skip


class LedgerMemory(Struct):
    """The state of one memory as its entries tell of it.

    `seq` is the entry that proposed it (0: a reviewed file), `last` the latest about it; `by` is
    whose order that was and `at_us` when (0: nobody decided yet). Erased, it has no candidate;
    `digest` is that of its body. `promoted_us` is when it was promoted (0: never). `proposed_by` is
    the person who proposed it (empty: an agent did), `recalled_by` are those who ever had it
    recalled, by promoting it or bringing it back.
    """

    bank: str
    id: str
    state: MemoryState | Literal["erased"]
    candidate: Candidate | None = None
    event: str = ""
    seq: int = 0
    last: int = 0
    by: str = ""
    at_us: int = 0
    proposed_us: int = 0
    digest: str = ""
    promoted_us: int = 0
    proposed_by: str = ""
    recalled_by: tuple[str, ...] = ()

    @property
    def retention_start_us(self) -> int:
        """Return from when its bank's retention counts: its promotion, or else its proposal."""
        return self.promoted_us or self.proposed_us

    def apply(self, kind: str, by: str, at_us: int) -> None:
        """Take an order for what it makes of the memory."""
        self.by, self.at_us = by, at_us
        if kind == "memory.promoted":
            self.promoted_us = at_us
        if TRANSITIONS[kind] == "active" and by not in self.recalled_by:
            self.recalled_by += (by,)
        if self.state != "erased":
            self.state = TRANSITIONS[kind]

    @property
    def name(self) -> str:
        """Return how entries name it."""
        return f"{self.bank}/{self.id}"


MemoryEntry = tuple[int, Mapping[str, Any], Mapping[str, Any] | None]


def fold_memories(rows: Iterable[MemoryEntry]) -> dict[str, LedgerMemory]:
    """Fold entries into the state of every memory that they tell of, by `bank/id`.

    `rows` are (seq, entry, body) of the kinds in TOLD, oldest first; the body is None if erased.
    """
    found: dict[str, LedgerMemory] = {}
    for seq, entry, body in rows:
        if entry["kind"] == PROPOSED:
            candidate = None if body is None else Candidate.from_entry(entry, body)
            id = entry.get("what", "") if candidate is None else candidate.key
            if not id:
                continue  # erased, and from before candidates had ids: found by its event alone
            one = LedgerMemory(
                entry["memory"], id, "erased" if candidate is None else "candidate", candidate,
                entry.get("event", ""), seq, seq, entry.get("actor", ""), 0, entry["at"],
                entry.get("body", ""), proposed_by=entry.get("actor", ""),
            )  # fmt: skip
            found[one.name] = one
            continue
        bank, _, id = entry["memory"].partition("/")
        known = found.setdefault(entry["memory"], LedgerMemory(bank, id, "active"))
        known.last = seq
        known.apply(entry["kind"], entry.get("actor", ""), entry["at"])
    return found


def check_transition(kind: str, memory: LedgerMemory) -> None:
    """Raise if the states of a memory let no order of this kind be given about it as it stands.

    AlreadyDone if it stands there already, NotFound if its content was erased, else BadCommand.
    """
    if memory.state == "erased":
        raise NotFound(f"the content of {memory.name} was erased", mend="see `vedette memory show`")
    if memory.state == TRANSITIONS[kind]:
        raise AlreadyDone(f"{memory.name} {_STATE_TEXTS[memory.state]} already")
    if memory.state != _REQUIRED_STATE[kind]:
        raise BadCommand(
            f"{memory.name} {_STATE_TEXTS[memory.state]}",
            mend=f"see `vedette memory show {memory.id}`",
        )

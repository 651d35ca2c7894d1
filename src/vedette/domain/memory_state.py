"""What became of candidates: the entries of memory, folded into where each memory stands.

The ledger is the truth and a bank a projection of it: what is recalled can be told, and made
again, from these entries and their bodies alone. A memory that a person reviewed as a file has an
entry only once it was taken back.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Literal

from vedette.domain.base.dataclass import dataclass
from vedette.domain.base.errors import AlreadyDone, BadCommand, NotFound
from vedette.domain.memory import Candidate, State

PROPOSED = "memory.proposed"
# What `body.erased` names of content that is erased because an archive has its entries.
ARCHIVING = "archive"
# What a person orders, and where that leads.
MOVES: Mapping[str, State] = {
    "memory.promoted": "active",
    "memory.rejected": "rejected",
    "memory.retired": "off",
    "memory.restored": "active",
}
TOLD = (PROPOSED, *MOVES)

# From where each order may be given.
_FROM: Mapping[str, State] = {
    "memory.promoted": "candidate",
    "memory.rejected": "candidate",
    "memory.retired": "active",
    "memory.restored": "off",
}
_STATES = {"active": "is recalled", "rejected": "was rejected", "off": "was taken back",
           "candidate": "was never promoted", "erased": "was erased"}  # fmt: skip


@dataclass(slots=True)
class Learned:
    """One memory as the ledger tells of it.

    `seq` is the entry that proposed it (0: a reviewed file), `last` the latest about it; `by` is
    whose order that was and `at_us` when (0: nobody decided yet). Erased, it has no candidate;
    `digest` is that of its body. `promoted_us` is when it was promoted (0: never). `proposed_by` is
    the person who proposed it (empty: an agent did), `recalled_by` are those who ever had it
    recalled, by promoting it or bringing it back.
    """

    bank: str
    id: str
    state: State | Literal["erased"]
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
    def since_us(self) -> int:
        """Return from when its bank's retention counts: its promotion, or else its proposal."""
        return self.promoted_us or self.proposed_us

    def move(self, kind: str, by: str, at_us: int) -> None:
        """Take an order for what it makes of the memory."""
        self.by, self.at_us = by, at_us
        if kind == "memory.promoted":
            self.promoted_us = at_us
        if MOVES[kind] == "active" and by not in self.recalled_by:
            self.recalled_by += (by,)
        if self.state != "erased":
            self.state = MOVES[kind]

    @property
    def name(self) -> str:
        """Return how entries name it."""
        return f"{self.bank}/{self.id}"


Row = tuple[int, Mapping[str, Any], Mapping[str, Any] | None]


def fold(rows: Iterable[Row]) -> dict[str, Learned]:
    """Return where every memory stands that the entries tell of, by `bank/id`.

    `rows` are (seq, entry, body) of the kinds in TOLD, oldest first; the body is None if erased.
    """
    found: dict[str, Learned] = {}
    for seq, entry, body in rows:
        if entry["kind"] == PROPOSED:
            candidate = None if body is None else Candidate.told(entry, body)
            id = entry.get("what", "") if candidate is None else candidate.key
            if not id:
                continue  # erased, and from before candidates had ids: found by its event alone
            one = Learned(
                entry["memory"], id, "erased" if candidate is None else "candidate", candidate,
                entry.get("event", ""), seq, seq, entry.get("actor", ""), 0, entry["at"],
                entry.get("body", ""), proposed_by=entry.get("actor", ""),
            )  # fmt: skip
            found[one.name] = one
            continue
        bank, _, id = entry["memory"].partition("/")
        known = found.setdefault(entry["memory"], Learned(bank, id, "active"))
        known.last = seq
        known.move(entry["kind"], entry.get("actor", ""), entry["at"])
    return found


def refuse(kind: str, one: Learned) -> None:
    """Raise if an order of this kind may not be given about a memory as it stands.

    AlreadyDone if it stands there already, NotFound if its content was erased, else BadCommand.
    """
    if one.state == "erased":
        raise NotFound(f"the content of {one.name} was erased", mend="see `vedette memory list`")
    if one.state == MOVES[kind]:
        raise AlreadyDone(f"{one.name} {_STATES[one.state]} already")
    if one.state != _FROM[kind]:
        raise BadCommand(
            f"{one.name} {_STATES[one.state]}", mend=f"see `vedette memory show {one.id}`"
        )

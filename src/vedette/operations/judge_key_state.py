"""What a replay of judges knows of a key: what was observed of it, and what state comes of it."""

from __future__ import annotations

from bisect import bisect_left, bisect_right

from msgspec import Struct, field

from vedette.domain.agent import Agent
from vedette.domain.judge_state import advance_digest, advance_digest_all, initial_digest
from vedette.domain.memory import Memory


class JudgeRelease(Struct, frozen=True):
    """A judge at hand for a replay: the agent's release, and what it was taught."""

    agent: Agent
    lessons: tuple[Memory, ...]
    digest: str


class KeyState(Struct):
    """What is known of an agent's key, as of the entry that is looked at.

    `observed` are positions in order, `judged` the entries that judged them. `base` is the last
    checkpoint's position (0: none) with its bytes, if they are known; `digest` is what the ledger
    says of them. `reasoner_state` is (judge, position) of the state that the reasoner holds.
    `has_unnamed` says that there are judgements whose states have no name, or whose entries are
    archived.
    """

    observed: list[int] = field(default_factory=list)
    judged: list[int] = field(default_factory=list)
    base: int = 0
    blob: bytes | None = None
    digest: str = ""
    reasoner_state: tuple[str, int] | None = None
    has_unnamed: bool = False
    seen: bytes = field(default_factory=lambda: initial_digest(0))
    seen_at: int = 0
    judge: JudgeRelease | None = None

    def positions_between(self, base: int, position: int) -> list[int]:
        """Return the observed positions after `base` and before `position`."""
        return self.observed[
            bisect_right(self.observed, base) : bisect_left(self.observed, position)
        ]

    def find_base(self, position: int) -> int:
        """Return the checkpoint that a state before a position is taken up from."""
        return self.base if self.base < position else 0

    def expected_seen(self, position: int) -> bytes:
        """Return what a state has seen that was taken up for a position and has observed it."""
        if self.seen_at == self.previous(position) and self.find_base(position) == self.base:
            return advance_digest(self.seen, position)
        base = self.find_base(position)
        return advance_digest_all(
            initial_digest(base), [*self.positions_between(base, position), position]
        )

    def previous(self, position: int) -> int:
        """Return the last observed position before one; 0 if there is none."""
        at = bisect_left(self.observed, position)
        return self.observed[at - 1] if at else 0

    def observe(self, position: int, seq: int, seen: bytes | None) -> None:
        """Take a position in its place. `seen` None: what the state has seen is not known."""
        at = bisect_left(self.observed, position)
        last = at == len(self.observed)
        if position < self.base:
            # A state that lacked a late event was given up when it came: see `store/states.py`.
            self.checkpoint(0, None, "")
        self.observed.insert(at, position)
        self.judged.insert(at, seq)
        self.seen_at = position if last and seen is not None else -1
        self.seen = seen or b""

    def checkpoint(self, position: int, blob: bytes | None, digest: str) -> None:
        """Go on from a checkpoint."""
        self.base, self.blob, self.digest = position, blob, digest
        self.seen, self.seen_at = initial_digest(position), position

"""A shard's owner: takes the shard, then commits group after group to a log and to its head.

Two writes, one commit point. A segment goes to the log first; then the head is moved to it by one
compare-and-set on (epoch, size, policy revision, stop epoch). *What the head does not reach never
happened*: nothing is acknowledged, and no effect permitted, before. So

- a crash before the head leaves a segment that no chain reaches. It is void for ever; the events
  come again from their source and are decided anew, under the policy of then;
- a crash after the head leaves a whole commit whose answer was lost. The next owner finds it;
- a publish or a stop that came between makes the compare-and-set fail, and the segment void;
- an owner whose lease another took is refused twice: by the log (its producer's epoch) and, if it
  had passed there, by the head.

The other order, log last, would let a head name a segment that an aborted transaction took away;
and with the log as commit point a publish would have to reach each owner, not each head.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from msgspec import Struct
from tests.bench.kafka.segment import NOTHING, Segment, make_records, make_segment

from vedette.ledger.merkle import EMPTY_ROOT, Frontier, SigningKey

# Where a kill or a pause may be asked for, in the order of one cycle.
POINTS = (
    "take:log", "take:head", "produce:before", "produce:after", "commit:after", "head:after",
)  # fmt: skip


class LeaseError(Exception):
    """Another has the shard now; `by` is who said so, "log" or "head"."""

    def __init__(self, by: str, why: str) -> None:
        super().__init__(f"fenced by the {by}: {why}")
        self.by = by


class LogError(Exception):
    """The log and the head do not fit: nobody may go on before people have looked."""


class Head(Struct, frozen=True):
    """A shard's head: its lease, how many events, their root, and where the last segment lies."""

    shard: int
    epoch: int = 0
    size: int = 0
    root: bytes = EMPTY_ROOT
    offset: int = NOTHING
    policy_rev: int = 0
    stop_epoch: int = 0

    @property
    def fence(self) -> tuple[int, int]:
        """What a commit must have been decided under."""
        return self.policy_rev, self.stop_epoch


class Log(Protocol):
    """One shard's log, as one owner writes it."""

    def take(self) -> None:
        """Fence whoever wrote before, and end what they left open."""

    def append(self, segment: Segment, reach: Callable[[str], None]) -> int:
        """Make a segment durable; return its offset. Raises LeaseError if another has the log.

        Tells `reach` of "produce:after" when the segment is sent, and not committed yet.
        """

    def read(self, offset: int) -> list[tuple[int, Segment]]:
        """Return what it holds from an offset on, with what was aborted or not."""


class Heads(Protocol):
    """The heads of all shards, where compare-and-set is one transaction."""

    def take(self, shard: int) -> Head:
        """Give the shard its next epoch and return the head."""

    def read(self, shard: int) -> Head:
        """Return the head as it stands."""

    def advance(self, before: Head, after: Head, segment: Segment) -> bool:
        """Move a head if it still is `before`; say whether it did."""


def pass_by(point: str) -> None:
    """Do nothing at a point."""


class Owner:
    """An owner of one shard. After a LeaseError or a LogError of `commit` it must not go on."""

    def __init__(
        self, shard: int, log: Log, heads: Heads, key: SigningKey,
        reach: Callable[[str], None] = pass_by,
    ) -> None:  # fmt: skip
        self.shard, self._log, self._heads, self._key, self._reach = shard, log, heads, key, reach
        self.head = Head(shard)
        self._tree = Frontier()
        # Segments behind the head that the take-over found: left by crashes, void for ever.
        self.void = 0
        # Commits that a publish or a stop made void.
        self.refused = 0

    def take(self) -> None:
        """Take the shard: fence at the log, then at the head, and take up its tree.

        Raises LogError if the log does not hold what the head says.
        """
        self._log.take()
        self._reach("take:log")
        self.head = self._heads.take(self.shard)
        self._reach("take:head")
        self.mend()

    def mend(self) -> None:
        """Read the log from the head on: the head's segment must be there, the rest is void."""
        head = self.head
        found = self._log.read(max(head.offset, 0))
        if head.offset == NOTHING:
            self._tree, self.void = Frontier(), len(found)
            return
        if not found or found[0][0] != head.offset:
            raise LogError(
                f"shard {self.shard}: the log has lost the head's segment ({head.offset})"
            )
        segment = found[0][1]
        if (segment.end, segment.tree.root()) != (head.size, head.root):
            raise LogError(f"shard {self.shard}: the segment at {head.offset} is not the head's")
        self._tree, self.void = segment.tree, len(found) - 1

    def check_lease(self) -> None:
        """Raise LeaseError if another has the shard: asked before it is taken again in doubt."""
        now = self._heads.read(self.shard)
        if now.epoch != self.head.epoch:
            raise LeaseError("head", f"epoch {now.epoch} has the shard, not {self.head.epoch}")

    def make(self, events: int) -> Segment:
        """Return the next segment of some events, decided under the head's policy."""
        head = self.head
        records = make_records(self.shard, head.size, events, head.policy_rev)
        return make_segment(
            self.shard, head.epoch, head.size, head.offset, head.fence, self._tree, records,
            self._key,
        )  # fmt: skip

    def commit(self, segment: Segment) -> bool:
        """Commit what `make` returned; False if a publish or a stop came first: make it anew.

        Only after True may events be acknowledged and permits given.
        """
        self._reach("produce:before")
        offset = self._log.append(segment, self._reach)
        self._reach("commit:after")
        head, tree = self.head, segment.tree
        after = Head(
            self.shard, head.epoch, segment.end, tree.root(), offset, head.policy_rev,
            head.stop_epoch,
        )  # fmt: skip
        moved = self._heads.advance(head, after, segment)
        self._reach("head:after")
        if moved:
            self.head, self._tree = after, tree
            return True
        now = self._heads.read(self.shard)
        if now.epoch != head.epoch:
            raise LeaseError("head", f"epoch {now.epoch} has the shard, not {head.epoch}")
        if (now.size, now.root, now.offset) != (head.size, head.root, head.offset):
            raise LogError(f"shard {self.shard}: its head moved under its owner's epoch")
        self.refused += 1
        self.head = now
        return False

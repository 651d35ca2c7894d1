"""A log and heads in memory, that keep the contracts of tests.bench.kafka.owner: for its tests."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import msgspec
from tests.bench.kafka.owner import Head, LeaseError
from tests.bench.kafka.segment import Segment


@dataclass
class Partition:
    """What a broker keeps of one shard. None stands where a transaction left its mark."""

    epoch: int = 0
    held: list[bytes | None] = field(default_factory=list)
    open: set[int] = field(default_factory=set)

    def take(self) -> int:
        """Give out the next producer epoch; what was open is aborted."""
        self.epoch += 1
        for offset in self.open:
            self.held[offset] = None
        self.open.clear()
        return self.epoch

    def read(self, offset: int = 0) -> list[tuple[int, Segment]]:
        """Return what is committed from an offset on."""
        return [
            (at, Segment.from_bytes(raw))
            for at, raw in enumerate(self.held)
            if raw is not None and at >= offset and at not in self.open
        ]


class MemoryLog:
    """One owner's hand on a partition. `fences` off: a control that lets a zombie append."""

    def __init__(self, partition: Partition, *, fences: bool = True) -> None:
        self._partition, self._fences, self._epoch = partition, fences, 0

    def take(self) -> None:
        """See Log."""
        self._epoch = self._partition.take()

    def append(self, segment: Segment, reach: Callable[[str], None]) -> int:
        """See Log."""
        partition = self._partition
        self._check()
        offset = len(partition.held)
        partition.held.append(segment.to_bytes())
        partition.open.add(offset)
        reach("produce:after")
        self._check()
        partition.open.discard(offset)
        partition.held.append(None)
        return offset

    def read(self, offset: int) -> list[tuple[int, Segment]]:
        """See Log."""
        return self._partition.read(offset)

    def _check(self) -> None:
        if self._fences and self._partition.epoch != self._epoch:
            raise LeaseError("log", f"epoch {self._partition.epoch} writes, not {self._epoch}")


class MemoryHeads:
    """Heads in a dictionary. `fences` off: a control whose compare-and-set ignores the epoch."""

    def __init__(self, shards: int, *, fences: bool = True) -> None:
        self.heads = {shard: Head(shard) for shard in range(shards)}
        self._fences = fences

    def take(self, shard: int) -> Head:
        """See Heads."""
        head = self.heads[shard]
        self.heads[shard] = msgspec.structs.replace(head, epoch=head.epoch + 1)
        return self.heads[shard]

    def read(self, shard: int) -> Head:
        """See Heads."""
        return self.heads[shard]

    def advance(self, before: Head, after: Head, segment: Segment) -> bool:
        """See Heads."""
        now = self.heads[before.shard]
        if now.size != before.size or now.fence != before.fence:
            return False
        if self._fences and now.epoch != before.epoch:
            return False
        self.heads[before.shard] = msgspec.structs.replace(after, epoch=now.epoch)
        return True

    def publish(self, policy_rev: int, stop_epoch: int) -> None:
        """Put a policy revision and a stop's epoch into all heads at once."""
        for shard, head in self.heads.items():
            self.heads[shard] = msgspec.structs.replace(
                head, policy_rev=policy_rev, stop_epoch=stop_epoch
            )

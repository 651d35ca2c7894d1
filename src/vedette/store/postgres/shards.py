"""Who gets which shards: arithmetic over what a worker sees of the others. No I/O, no clock."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from msgspec import Struct
from msgspec.structs import replace

from vedette.store.postgres.schema import SHARDS


class Peer(Struct, frozen=True):
    """What is seen of another worker. `since` is when its beat was first seen as it is now, in
    microseconds of the watcher's own monotonic clock.
    """

    life: int
    beat: int
    policy_rev: int
    stop_epoch: int
    since: int


def update_peers(
    before: Mapping[str, Peer], rows: Iterable[tuple[str, int, int, int, int]], now: int
) -> dict[str, Peer]:
    """Return the peers as just read, each with the instant since which its beat stands still."""
    peers = {}
    for name, life, beat, policy_rev, stop_epoch in rows:
        peer = Peer(life, beat, policy_rev, stop_epoch, now)
        old = before.get(name)
        if old is not None and (old.life, old.beat) == (life, beat):
            peer = replace(peer, since=old.since)
        peers[name] = peer
    return peers


def silent_peers(peers: Mapping[str, Peer], now: int, patience: int) -> dict[str, Peer]:
    """Return the peers whose beat has not moved for `patience` microseconds."""
    return {name: peer for name, peer in peers.items() if now - peer.since >= patience}


def fair_share(workers: int) -> int:
    """Return how many shards a worker may hold when so many live."""
    return -(-SHARDS // max(1, workers))


def shard_in(epoch: int) -> int:
    """Return the shard that an epoch names (see `Leases._claim`)."""
    return epoch % SHARDS

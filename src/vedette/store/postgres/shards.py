"""Shards as workers share them: arithmetic over what one sees of the others. No I/O, no clock."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from msgspec import Struct
from msgspec.structs import replace

from vedette.store.postgres.schema import SHARDS


class Peer(Struct, frozen=True):
    """A worker that shares the shards, as seen. `since` is when its beat was first seen as now, in
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
    """Return the peers as just read from the store, each with since when its beat stands still."""
    peers = {}
    for name, life, beat, policy_rev, stop_epoch in rows:
        peer = Peer(life, beat, policy_rev, stop_epoch, now)
        old = before.get(name)
        if old is not None and (old.life, old.beat) == (life, beat):
            peer = replace(peer, since=old.since)
        peers[name] = peer
    return peers


def silent_peers(peers: Mapping[str, Peer], now: int, patience: int) -> dict[str, Peer]:
    """Return the peers whose beat in the store has not moved for `patience` microseconds."""
    return {name: peer for name, peer in peers.items() if now - peer.since >= patience}


def fair_share(workers: int) -> int:
    """Return how many shards a worker may hold when so many live."""
    return -(-SHARDS // max(1, workers))


def shard_in(epoch: int) -> int:
    """Return the shard that an epoch names (see `Leases._claim`)."""
    return epoch % SHARDS

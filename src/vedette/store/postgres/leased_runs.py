"""What is this worker's own: the runs of its shards."""

from __future__ import annotations

from collections.abc import Collection

from vedette.domain.event import Event
from vedette.domain.run import Run
from vedette.store.postgres.leases import Leases
from vedette.store.postgres.schema import SHARDS
from vedette.store.read_runs import StoreReader, read_event
from vedette.store.row_mapper import SELECT_RUNS, to_run
from vedette.store.schema import tag


class LeasedRuns(StoreReader):
    """Reads that find only the runs whose keys this worker has leased."""

    leases: Leases

    def _shard_condition(self) -> tuple[str, list[int]]:
        """Return a condition on `r.shard`, with its values."""
        shards = sorted(self.leases.epochs.keys() - self.leases.drain_shards)
        if len(shards) == SHARDS:
            return "", []
        if not shards:
            return " AND FALSE", []
        # Always as many marks, so that there is one statement to prepare.
        shards += shards[-1:] * (SHARDS - len(shards))
        return f" AND r.shard IN ({','.join('?' * SHARDS)})", shards

    def ready_runs(self, after: int, limit: int, agent: str | None = None) -> list[Run]:
        """Return our ready runs with position > `after`, oldest first; of one agent, or of all."""
        ours, shards = self._shard_condition()
        one = " AND r.agent=?" if agent is not None else ""
        where = f"r.state='ready' AND r.position>?{one}{ours}"
        sql = f"{SELECT_RUNS} WHERE {where} ORDER BY r.position LIMIT ?"
        of = [] if agent is None else [agent]
        return [to_run(row) for row in self._rows(sql, after, *of, *shards, limit)]

    def ready_counts(self) -> dict[str, int]:
        """Return how many runs of ours are ready, for each agent that has any."""
        ours, shards = self._shard_condition()
        sql = f"SELECT r.agent, COUNT(*) FROM run r WHERE r.state='ready'{ours} GROUP BY r.agent"
        return {str(agent): int(number) for agent, number in self._rows(sql, *shards)}

    def event(self, key: str) -> Event | None:
        """Return what `Reads.event` does, in one round trip."""
        sql = (
            "SELECT n.bytes, b.salt, b.data FROM event e JOIN entry n ON n.seq=e.seq "
            "JOIN body b ON b.seq=e.seq WHERE e.tag=? AND e.key=?"
        )
        return read_event(self._rows(sql, tag(key), key))

    def due_runs(self, now_us: int, limit: int, without: Collection[str] = ()) -> list[Run]:
        """Return our waiting runs whose instant has come, but those of the agents of `without`."""
        ours, shards = self._shard_condition()
        none = f" AND r.agent NOT IN ({','.join('?' * len(without))})" if without else ""
        sql = (
            f"{SELECT_RUNS} WHERE r.state='waiting' AND r.wake_us>0 AND r.wake_us<=?{none}{ours} "
            "ORDER BY r.wake_us LIMIT ?"
        )
        return [to_run(row) for row in self._rows(sql, now_us, *without, *shards, limit)]

"""The worker among those that share a PostgreSQL store: its leases, and what others committed."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Sequence

import orjson

from vedette.domain.base.canonical import canonical_json
from vedette.domain.base.errors import BadStore
from vedette.domain.run import Run, Step
from vedette.store.command_queue import CommandQueue
from vedette.store.dialect import Database
from vedette.store.group_commit import CommitHooks
from vedette.store.meta import ORDERS, read_meta, write_meta
from vedette.store.postgres.database import PostgresDatabase
from vedette.store.postgres.leases import NOTIFY_CHANNEL, Leases
from vedette.store.postgres.schema import SHARDS
from vedette.store.postgres.shards import shard_in
from vedette.store.write_parts import WriteParts
from vedette.store.write_runs import Fences

# Under which name a worker keeps which agents it runs, before its own.
_AGENTS_PREFIX = "agents:"


class LeasedFences(Fences):
    """The fences of a worker that holds some of the shards, as of the group's transaction."""

    def __init__(self) -> None:
        super().__init__()
        self.granted_epochs: dict[int, int] = {}

    def epoch_of(self, step: Step) -> int:
        """Return the epoch of the shard that a step's own epoch names; -1 if it is not ours."""
        return self.granted_epochs.get(shard_in(step.epoch), -1)


class WorkerHooks(CommitHooks):
    """The commit hooks by which a group with the fleet's lock sees what other workers have done.

    `uncertain_groups` counts groups that may stand though nobody was told, `foreign_groups` those
    that found something committed by others; `is_shared` says whether there were other workers.
    """

    def __init__(
        self, database: PostgresDatabase, parts: WriteParts, fences: LeasedFences, worker: str
    ) -> None:
        self._database = database
        self._parts = parts
        self._fences = fences
        self._worker = worker
        self.is_shared = False
        self.uncertain_groups = self.foreign_groups = 0
        self._granted_rev, self._known_orders, self._is_uncertain = -1, -1, False

    def on_begin(self, steps: Sequence[Step]) -> None:
        """See what the others committed: the head, the live revision, stops, leases."""
        ledger, fences = self._parts.ledger, self._fences
        rev, policy_rev, stop_epoch, head, workers, orders = self._database.fleet_state
        self.is_shared = workers > 1 or rev != self._granted_rev
        if self._is_uncertain:
            # The group that was lost is over by now: its session held the lock that we hold.
            self._is_uncertain, self.uncertain_groups = False, self.uncertain_groups + 1
        if head != ledger.last_seq:
            # Whoever looks beside us may see our own group on top of it, and take all for ours.
            self.foreign_groups += 1
            ledger.load()
            self._parts.buffer.totals.clear()
            self._parts.steps.forget_waits()
        if orders != self._known_orders:
            # Any worker may answer holds, redrive and drop, or wake what waits, and so move runs
            # that are ours. What else others do moves runs and keys of theirs.
            self._known_orders = orders
            self._parts.steps.forget()
        if rev != self._granted_rev:
            rows = self._database.rows(
                "SELECT shard, epoch FROM lease WHERE worker=?", (self._worker,)
            )
            fences.granted_epochs = {int(shard): int(epoch) for shard, epoch in rows}
            self._parts.steps.forget()
            self._granted_rev = rev
        fences.policy_rev, fences.stop_epoch = policy_rev, stop_epoch
        self._parts.steps.read_ahead(steps)

    def on_order(self) -> None:
        """Let the other workers forget what they know of runs; ours is right, or forgotten."""
        *_, orders = self._database.fleet_state
        write_meta(self._database, ORDERS, orders + 1)
        if self._known_orders == orders:
            self._known_orders = orders + 1

    def on_publish(self) -> None:
        """Tell the other workers."""
        self._database.execute_script(f"NOTIFY {NOTIFY_CHANNEL}")

    def on_rollback(self) -> None:
        """Take fences and steps from what stands; without a connection the next group does.

        A COMMIT may have taken effect though nobody was told: what it accepted is looked for.
        """
        self._granted_rev, self._known_orders, self._is_uncertain = -1, -1, True
        self.uncertain_groups += 1
        away: tuple[type[BaseException], ...] = (*self._database.connection_errors, BadStore)
        try:
            self._parts.reload()
        except away:
            self._database.rollback()


class LeasedCluster:
    """The worker of a shared PostgreSQL store by its leases; fits `ports.cluster.Cluster`."""

    multi_worker = True

    def __init__(
        self,
        database: Database,
        leases: Leases,
        fences: Fences,
        hooks: WorkerHooks,
        commands: CommandQueue,
    ) -> None:
        self._database = database
        self.leases = leases
        self._fences = fences
        self._hooks = hooks
        self._commands = commands

    @property
    def epoch(self) -> int:
        """Return which of the fleet's workers this is, counted from the first that ever joined."""
        return self.leases.life

    @property
    def lease_rev(self) -> int:
        if self.leases.failure is not None:
            raise self.leases.failure
        return self.leases.rev

    def lease_epoch(self, run: Run) -> int | None:
        return self.leases.epoch(run.agent, run.key)

    def is_lease_valid(self, epoch: int) -> bool:
        return self.leases.is_lease_valid(epoch) and self.leases.is_current

    @property
    def is_leader(self) -> bool:
        # It holds the first shard.
        epoch = self.leases.epochs.get(0)
        return epoch is not None and self.leases.is_lease_valid(epoch)

    @property
    def is_shared(self) -> bool:
        return self._hooks.is_shared

    @property
    def change_counter(self) -> int:
        hooks = self._hooks
        return self.leases.change_counter + hooks.uncertain_groups + hooks.foreign_groups

    @property
    def policy_rev(self) -> int:
        return max(self._fences.policy_rev, self.leases.live_versions[0])

    @property
    def stop_epoch(self) -> int:
        return max(self._fences.stop_epoch, self.leases.live_versions[1])

    @property
    def is_current(self) -> bool:
        return self.leases.is_current

    def adopt(self, policy_rev: int, stop_epoch: int) -> None:
        self.leases.adopt(policy_rev, stop_epoch)

    async def wait_for_barrier(self) -> None:
        # A worker that does not answer is waited for until its lease has run out.
        policy_rev, stop_epoch = self.policy_rev, self.stop_epoch
        while self.leases.lagging_workers(policy_rev, stop_epoch):  # noqa: ASYNC110 (a thread tells)
            await asyncio.sleep(0.005)

    @property
    def lagging_workers(self) -> Sequence[str]:
        return self.leases.lagging_workers(self.policy_rev, self.stop_epoch)

    async def announce_agents(self, agents: Collection[str]) -> None:
        name = f"{_AGENTS_PREFIX}{self.leases.worker}"
        value = canonical_json(sorted(agents)).decode()
        if read_meta(self._database, name) != value:
            await self._commands.set_meta(name, value)

    def has_other_runner(self, agent: str) -> bool:
        sql = "SELECT m.value FROM worker w LEFT JOIN meta m ON m.name=? || w.id WHERE w.id<>?"
        others = self._database.rows(sql, (_AGENTS_PREFIX, self.leases.worker))
        return any(names is None or agent in orjson.loads(names) for (names,) in others)

    def watch_calls(
        self, older: Callable[[int], int], keys: Callable[[], Collection[tuple[str, str]]]
    ) -> None:
        # The thread that keeps the leases asks.
        self.leases.count_in_flight, self.leases.keys_in_flight = older, keys


def leased_runs(leases: Leases) -> tuple[str, list[int]]:
    """Return an SQL condition on `r.shard` for the runs whose keys are leased, with its values."""
    shards = sorted(leases.epochs.keys() - leases.drain_shards)
    if len(shards) == SHARDS:
        return "", []
    if not shards:
        return " AND FALSE", []
    # Always as many marks, so that there is one statement to prepare.
    shards += shards[-1:] * (SHARDS - len(shards))
    return f" AND r.shard IN ({','.join('?' * SHARDS)})", shards

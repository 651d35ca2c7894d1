"""The only worker of a store: every run is its own, and nobody else commits anything."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence

from vedette.domain.run import Run
from vedette.store.write_runs import Fences


class SoleWorker:
    """The only worker of a SQLite store. Fits `ports.cluster.Cluster`."""

    multi_worker = False
    lease_rev = 0
    change_counter = 0
    is_leader = is_current = True
    is_shared = False
    lagging_workers: Sequence[str] = ()

    def __init__(self, fences: Fences) -> None:
        self._fences = fences

    @property
    def epoch(self) -> int:
        return self._fences.epoch

    @property
    def policy_rev(self) -> int:
        return self._fences.policy_rev

    @property
    def stop_epoch(self) -> int:
        return self._fences.stop_epoch

    def lease_epoch(self, run: Run) -> int | None:
        return self._fences.epoch

    def is_lease_valid(self, epoch: int) -> bool:
        return epoch == self._fences.epoch

    def adopt(self, policy_rev: int, stop_epoch: int) -> None: ...

    async def wait_for_barrier(self) -> None: ...

    async def announce_agents(self, agents: Collection[str]) -> None: ...

    def has_other_runner(self, agent: str) -> bool:
        return False

    def watch_calls(
        self, older: Callable[[int], int], keys: Callable[[], Collection[tuple[str, str]]]
    ) -> None: ...

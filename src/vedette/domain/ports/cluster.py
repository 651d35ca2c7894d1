"""The port of a store's workers: this one among the others; alone, it holds everything."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import Protocol

from vedette.domain.run import Run


class Cluster(Protocol):
    """The port of which runs are this worker's, and what others published, stopped or committed."""

    multi_worker: bool

    @property
    def epoch(self) -> int:
        """Return the epoch of this worker."""
        ...

    @property
    def lease_rev(self) -> int:
        """Return a number that grows whenever what `lease_epoch` answers may have changed for any
        run. Raises BadStore once nobody renews the leases.
        """
        ...

    def lease_epoch(self, run: Run) -> int | None:
        """Return the epoch under which this worker may handle a run; None if it is not ours."""
        ...

    def is_lease_valid(self, epoch: int) -> bool:
        """Say whether a call may start under a lease: it lasts, and nothing newer is published.

        To be asked before the call, and `PERMIT_LIFE_US` before it begins at most.
        """
        ...

    @property
    def is_leader(self) -> bool:
        """Say whether this worker is the one that runs the fleet's sources."""
        ...

    @property
    def is_shared(self) -> bool:
        """Say whether other workers handled this store's runs as of the last group."""
        ...

    @property
    def change_counter(self) -> int:
        """Return a number that grows when another worker committed something, or we may have."""
        ...

    @property
    def policy_rev(self) -> int:
        """Return the live policy revision, as of the last group committed."""
        ...

    @property
    def stop_epoch(self) -> int:
        """Return how often stops were set or lifted, as of the last group committed."""
        ...

    @property
    def is_current(self) -> bool:
        """Say whether this process has adopted the live revision and the last stop."""
        ...

    def adopt(self, policy_rev: int, stop_epoch: int) -> None:
        """Say that this process decides and stops by these from now on."""
        ...

    async def wait_for_barrier(self) -> None:
        """Return once no other worker starts a call under anything older than what is live."""
        ...

    @property
    def lagging_workers(self) -> Sequence[str]:
        """Return the workers that `wait_for_barrier` waits for; this one if it sees no others."""
        ...

    async def announce_agents(self, agents: Collection[str]) -> None:
        """Tell the other workers which agents this one runs."""
        ...

    def has_other_runner(self, agent: str) -> bool:
        """Say whether another worker that lives runs an agent, or has not said what it runs."""
        ...

    def watch_calls(
        self, older: Callable[[int], int], keys: Callable[[], Collection[tuple[str, str]]]
    ) -> None:
        """Be told how to see which calls are out: how many older than a revision, of which keys."""
        ...

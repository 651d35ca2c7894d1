"""The port of a store, one fleet's durable state, by parts: each is one role with its own port."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    # Verbs that read one part load no other for its type.
    from vedette.domain.ports.cluster import Cluster
    from vedette.domain.ports.command_store import CommandQueue
    from vedette.domain.ports.ledger_reader import LedgerReader
    from vedette.domain.ports.memory_store import MemoryReader
    from vedette.domain.ports.policy_store import PolicyReader
    from vedette.domain.ports.run_store import (
        JudgeStateReader,
        RunReader,
        RunSchedule,
        SpendReader,
        StepQueue,
    )


class TableReader(Protocol):
    """The port of the read model: counts, brought up to the ledger's end before they are read.

    Whoever reads waits for a follower, or folds entries itself where none runs, for a bounded time.
    """

    def counts(self) -> Mapping[str, Mapping[str, int]]:
        """Return, for each agent, runs by state, decisions by outcome, effects and holds by state
        (`run.done`, `decided.permit`, `effect.unknown`, `hold.open` …).
        """
        ...

    def would(self) -> Mapping[str, Mapping[str, int]]:
        """Return, for each agent, what its denials in mode observe would have been."""
        ...

    def wait_counts(self) -> Mapping[str, int]:
        """Return how many runs wait, by what they wait for."""
        ...

    def open_counts(self) -> Mapping[str, Mapping[str, int]]:
        """Return, for each agent, how many runs are open, by what they wait for; `ready` of those
        that wait for nothing.
        """
        ...

    def event_counts(self) -> tuple[int, int]:
        """Return (events accepted, of which woke nobody)."""
        ...

    def lag(self, now_us: int) -> Mapping[str, Any]:
        """Return how far the read model is: the entry `reached`, how many entries and `seconds` it
        is `behind`, and whether it is `followed`.
        """
        ...


class StoreReader(Protocol):
    """The port of a store that is read, beside running workers or with none."""

    @property
    def runs(self) -> RunReader: ...

    @property
    def judge_states(self) -> JudgeStateReader: ...

    @property
    def spend(self) -> SpendReader: ...

    @property
    def schedule(self) -> RunSchedule: ...

    @property
    def ledger(self) -> LedgerReader: ...

    @property
    def policy(self) -> PolicyReader: ...

    @property
    def memories(self) -> MemoryReader: ...

    @property
    def tables(self) -> TableReader: ...

    def meta(self, name: str) -> str | None:
        """Return a durable value that is kept under a name, or None."""
        ...

    def is_command_done(self, command: str) -> bool:
        """Say whether a command of this id was carried out."""
        ...

    def snapshot(self) -> AbstractContextManager[None]:
        """Let all reads inside see one state of the store, whatever is committed meanwhile.

        The read model goes on: counts and lists may tell of what was committed since.
        """
        ...

    def close(self) -> None:
        """Close the connections, once what is queued is committed."""
        ...


class Store(StoreReader, Protocol):
    """The port of a worker's store. All writes answer after COMMIT."""

    @property
    def steps(self) -> StepQueue: ...

    @property
    def commands(self) -> CommandQueue: ...

    @property
    def cluster(self) -> Cluster: ...

    def subscribe(self, changed: Callable[[], None]) -> None:
        """Have `changed` called on the loop after each commit, here or by another worker."""
        ...

"""The judges that are at hand to judge again: of the releases and the lessons that are kept.

A release is found in its snapshot, or is the agent's folder as it is; its lessons are those of the
memory banks as they are. A judge that is made of anything else than an entry names is not there.
Judges run as those of the fleet do: in workers of their own, which know nothing of one another.
"""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import orjson

from vedette.config.snapshot import FOLDER, find_snapshot
from vedette.domain.agent import Agent
from vedette.domain.base.clock import Clock
from vedette.domain.judge_state import made_of
from vedette.domain.ports import Reasoner
from vedette.operations.judge_replay import Made, replay_judges
from vedette.operations.judge_report import JudgeReport

if TYPE_CHECKING:
    from vedette.config import Settings
    from vedette.config.fleet import Read
    from vedette.domain.memory import BankPlan, Memory
    from vedette.store.read_runs import Reads

# So that no judge makes a checkpoint by itself: those of the record are made again.
_NEVER = 2**62


def judge_again(
    settings: Settings, store: Reads, clock: Clock, read: Read | None = None
) -> JudgeReport:
    """Make every judgement of a store again (`vedette.operations.judge_replay`). Runs its own event
    loop.

    `read` is the fleet as `read_fleet` found it; without it, it is read.
    """

    async def work() -> JudgeReport:
        with open_judges(settings, store, clock, read) as judges:
            return await replay_judges(store, judges)

    return asyncio.run(work())


@contextmanager
def open_judges(
    settings: Settings, store: Reads, clock: Clock, read: Read | None = None
) -> Iterator[JudgeReleases]:
    """Yield the judges that are at hand; their workers are ended after it."""
    from vedette.config import read_fleet

    agents, banks, _ = read or read_fleet(settings.root, settings, now_us=clock.now_us())
    with ExitStack() as stack:
        pools = []
        for _ in range(2 if settings.isolation.processes else 0):
            from vedette.adapters.reasoners.workers.supervisor import WorkerPool

            folder = Path(
                stack.enter_context(tempfile.TemporaryDirectory(prefix="vedette-judges-"))
            )
            boxed, closed = settings.isolation.box, settings.closed
            pool = WorkerPool(folder, boxed=boxed, closed=closed)
            stack.callback(pool.close)
            pools.append(pool)
        judges = JudgeReleases(settings, store, agents, banks, pools)
        stack.callback(judges.close)
        yield judges


class JudgeReleases:
    """Fits `judge_replay.Judges`. Belongs to the event loop that it is first asked on."""

    def __init__(
        self,
        settings: Settings,
        store: Reads,
        agents: Mapping[str, Agent],
        banks: Sequence[BankPlan],
        pools: list[Any],
    ) -> None:
        from vedette.operations.curation import feed
        from vedette.store.banks import SqliteBank

        self._settings, self._store, self._agents, self._pools = settings, store, agents, pools
        self._banks = SqliteBank.copied(settings.state / "memory.db")
        self._banks.load(banks)
        feed(self._banks, store)
        self._refused = self._unread()
        self._made: dict[tuple[str, str], Made | None] = {}
        self._reasoners: dict[tuple[str, str, int], Reasoner] = {}

    def close(self) -> None:
        """Let go of the memory banks."""
        self._banks.close()

    def judged(self, agent: str) -> bool:
        """Say whether an agent has a judge, or had one and is gone."""
        known = self._agents.get(agent)
        return known is None or known.reasoner == "judge"

    def find(self, agent: str, made: str, at_us: int) -> Made | None:
        """Return the judge that is made of what `made` names; None if it is not at hand."""
        if (agent, made) not in self._made:
            self._made[(agent, made)] = self._find(agent, made, at_us)
        return self._made[(agent, made)]

    def _find(self, name: str, made: str, at_us: int) -> Made | None:
        for release in self._kept(name):
            agent = self._release(name, release)
            if agent is not None:
                taught = self._taught(agent, at_us)
                if made_of(release, taught) == made:
                    return Made(agent, tuple(taught), made)
        return None

    def _kept(self, name: str) -> Iterator[str]:
        """Yield the releases of an agent that are here: its folder's, and those of snapshots."""
        if name in self._agents:
            yield self._agents[name].release
        for folder in sorted((self._settings.state / FOLDER).glob("*")):
            if (folder / name).is_dir():
                yield folder.name

    def _unread(self) -> dict[str, set[str]]:
        """Return the scopes, as bank/scope, that policy last refused each agent to read."""
        found: dict[str, set[str]] = {}
        for _, raw, _, _ in self._store.walk(("recall.decided",)):
            entry = orjson.loads(raw)
            scopes = found.setdefault(entry["agent"], set())
            (scopes.discard if entry["outcome"] == "permit" else scopes.add)(entry["memory"])
        return found

    def _release(self, name: str, release: str) -> Agent | None:
        """Return a release of an agent as its snapshot declares it; None if it is not kept."""
        from vedette.config import read_fleet

        present = self._agents.get(name)
        if present is not None and present.release == release:
            return present
        kept = find_snapshot(self._settings.state, release, name)
        if kept is None:
            return None
        beside = replace(self._settings, agents=kept.folder.parent)
        agents, _, _ = read_fleet(self._settings.root, beside)
        if name not in agents:
            return None
        return replace(agents[name], folder=str(kept.folder), release=release)

    def _taught(self, agent: Agent, at_us: int) -> list[Memory]:
        from vedette.memory.training_set import Lessons

        lessons = Lessons(self._banks, {agent.name: agent})
        scopes = {(scope.bank, scope.scope): None for scope in agent.scopes}
        refused = self._refused.get(agent.name, set())
        granted = (scope for scope in scopes if "/".join(scope) not in refused)
        lessons.take({agent.name: tuple(granted)}, 0)
        return lessons.now(agent.name, at_us)

    def reasoner(self, made: Made, attempt: int) -> Reasoner:
        """Return what runs a judge: in a worker, or in this process if the fleet has none."""
        key = (made.agent.name, made.digest, attempt)
        if key not in self._reasoners:
            self._reasoners[key] = self._run(made, attempt)
        return self._reasoners[key]

    def _run(self, made: Made, attempt: int) -> Reasoner:
        agent = made.agent
        if not self._pools:
            from vedette.adapters.reasoners.in_process import LocalJudges
            from vedette.config import build_judge

            return LocalJudges(lambda _: build_judge(agent, made.lessons), checkpoint_every=_NEVER)
        from vedette.adapters.reasoners.workers.reasoner_client import Making, WorkerJudges

        making = Making(
            agent.folder, agent.charter, made.lessons, agent.limits, _NEVER, agent.release
        )
        return WorkerJudges(self._pools[attempt], lambda _: making)

    def registry(self, bundle: str) -> Mapping[str, Any]:
        """Return the registry of a recorded bundle. Raises BadPolicy for a row that was changed."""
        from vedette.policy.bundle_data import mount

        found = mount(self._store.bundle(bundle) or {}).get("registry")
        return found if isinstance(found, dict) else {}

"""Judges of kept releases, at hand to judge again: made of the snapshots and lessons that are kept.

A release is found in its snapshot, or is the agent's folder as it is; its lessons are those of the
memory banks as they are. A judge that is made of anything else than an entry names is not there.
Judges run as those of the fleet do: in workers of their own, which know nothing of one another.
"""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import orjson

from vedette.app.release_archive import load_kept_release
from vedette.config.snapshot import RELEASES_FOLDER
from vedette.domain.agent import Agent
from vedette.domain.base.clock import Clock
from vedette.domain.base.errors import BadCommand
from vedette.domain.entry import RELEASE_KINDS, releases_of
from vedette.domain.judge_state import judge_digest
from vedette.domain.ports.reasoner import Reasoner
from vedette.operations.judge_key_state import JudgeRelease
from vedette.operations.judge_replay import replay_judges
from vedette.operations.judge_report import JudgeReport

if TYPE_CHECKING:
    from vedette.config.fleet import FleetContents
    from vedette.config.settings import Settings
    from vedette.domain.memory import BankPlan, Memory
    from vedette.store.reader import StoreReader

# So that no judge makes a checkpoint by itself: those of the record are made again.
_NO_CHECKPOINT = 2**62


def rejudge_store(
    settings: Settings, store: StoreReader, clock: Clock, contents: FleetContents | None = None
) -> JudgeReport:
    """Wire the judges of kept releases and replay every judgement of a store with them
    (`vedette.operations.judge_replay`). Runs its own event loop.

    `contents` is the fleet as `read_fleet` found it; without it, it is read.
    """

    async def work() -> JudgeReport:
        with open_judges(settings, store, clock, contents) as judges:
            return await replay_judges(store, judges)

    return asyncio.run(work())


@contextmanager
def open_judges(
    settings: Settings, store: StoreReader, clock: Clock, contents: FleetContents | None = None
) -> Iterator[JudgeReleases]:
    """Yield the kept releases' judges that are at hand; their workers are ended after it."""
    from vedette.config.fleet import read_fleet

    agents, banks, _ = contents or read_fleet(settings.root, settings, now_us=clock.now_us())
    with ExitStack() as stack:
        pools = []
        for _ in range(2 if settings.isolation.use_processes else 0):
            from vedette.adapters.reasoners.workers.supervisor import WorkerPool

            folder = Path(
                stack.enter_context(tempfile.TemporaryDirectory(prefix="vedette-judges-"))
            )
            boxed, closed = settings.isolation.sandbox, settings.protected_folders
            pool = WorkerPool(folder, sandboxed=boxed, closed_folders=closed)
            stack.callback(pool.close)
            pools.append(pool)
        judges = JudgeReleases(settings, store, agents, banks, pools)
        stack.callback(judges.close)
        yield judges


class JudgeReleases:
    """The judges of kept releases, for a replay. Belongs to the event loop it is first asked on."""

    def __init__(
        self,
        settings: Settings,
        store: StoreReader,
        agents: Mapping[str, Agent],
        banks: Sequence[BankPlan],
        pools: list[Any],
    ) -> None:
        from vedette.operations.curation import sync_banks
        from vedette.store.banks import SqliteBank

        self._settings, self._store, self._agents, self._pools = settings, store, agents, pools
        self._banks = SqliteBank.open_copy(settings.state / "memory.db")
        self._banks.load(banks)
        sync_banks(self._banks, store)
        self._refused = self._refused_scopes()
        self._made: dict[tuple[str, str], JudgeRelease | None] = {}
        self._reasoners: dict[tuple[str, str, int], Reasoner] = {}

    def close(self) -> None:
        """Let go of the memory banks."""
        self._banks.close()

    def has_judge(self, agent: str) -> bool:
        """Say whether an agent has a judge, or had one and is gone."""
        known = self._agents.get(agent)
        return known is None or known.has_judge

    def has_cascade(self, agent: str) -> bool:
        """Say whether an agent has a cascade."""
        known = self._agents.get(agent)
        return known is not None and known.cascade is not None

    def find(self, agent: str, digest: str, at_us: int) -> JudgeRelease | None:
        """Return the judge that is made of what `digest` names; None if it is not at hand."""
        if (agent, digest) not in self._made:
            self._made[(agent, digest)] = self._find(agent, digest, at_us)
        return self._made[(agent, digest)]

    def _find(self, name: str, digest: str, at_us: int) -> JudgeRelease | None:
        for release in self._release_digests(name):
            agent = self._load_release(name, release)
            if agent is not None:
                lessons = self._load_lessons(agent, at_us)
                if judge_digest(release, lessons) == digest:
                    return JudgeRelease(agent, tuple(lessons), digest)
        return None

    def _release_digests(self, name: str) -> Iterator[str]:
        """Yield what may be releases of an agent: its folder's, those of snapshots, and those that
        the record names, which the store may have.
        """
        found: dict[str, None] = {}
        if name in self._agents:
            found[self._agents[name].release] = None
        for folder in sorted((self._settings.state / RELEASES_FOLDER).glob("*")):
            if (folder / name).is_dir():
                found[folder.name] = None
        for _, raw, _, _ in self._store.ledger.walk(RELEASE_KINDS):
            if (release := releases_of(orjson.loads(raw)).get(name)) is not None:
                found[release] = None
        yield from found

    def _refused_scopes(self) -> dict[str, set[str]]:
        """Return the scopes, as bank/scope, that policy last refused each agent to read."""
        found: dict[str, set[str]] = {}
        for _, raw, _, _ in self._store.ledger.walk(("recall.decided",)):
            entry = orjson.loads(raw)
            scopes = found.setdefault(entry["agent"], set())
            (scopes.discard if entry["outcome"] == "permit" else scopes.add)(entry["memory"])
        return found

    def _load_release(self, name: str, release: str) -> Agent | None:
        """Return a release of an agent as its kept files declare it; None if there are none."""
        present = self._agents.get(name)
        if present is not None and present.release == release:
            return present
        with suppress(BadCommand, OSError):
            return load_kept_release(self._settings, self._store, name, release)
        return None

    def _load_lessons(self, agent: Agent, at_us: int) -> list[Memory]:
        from vedette.memory.training_set import Lessons

        lessons = Lessons(self._banks, {agent.name: agent})
        scopes = {(scope.bank, scope.scope): None for scope in agent.scopes}
        refused = self._refused.get(agent.name, set())
        granted = (scope for scope in scopes if "/".join(scope) not in refused)
        lessons.adopt({agent.name: tuple(granted)}, 0)
        return lessons.preview_lessons(agent.name, at_us)

    def reasoner(self, judge: JudgeRelease, attempt: int) -> Reasoner:
        """Return what runs a judge: in a worker, or in this process if the fleet has none."""
        key = (judge.agent.name, judge.digest, attempt)
        if key not in self._reasoners:
            self._reasoners[key] = self._build_reasoner(judge, attempt)
        return self._reasoners[key]

    def _build_reasoner(self, judge: JudgeRelease, attempt: int) -> Reasoner:
        agent = judge.agent
        if not self._pools:
            from vedette.adapters.reasoners.in_process import InProcessReasoner
            from vedette.config.agent_loader import build_judge

            return InProcessReasoner(
                lambda _: build_judge(agent, judge.lessons), checkpoint_every=_NO_CHECKPOINT
            )
        from vedette.adapters.reasoners.workers.reasoner_client import JudgeSpec, WorkerReasoner

        making = JudgeSpec(
            agent.folder, agent.charter, judge.lessons, agent.limits, _NO_CHECKPOINT, agent.release
        )
        return WorkerReasoner(self._pools[attempt], lambda _: making)

    def registry(self, bundle: str) -> Mapping[str, Any]:
        """Return the registry of a recorded bundle. Raises BadPolicy for a row that was changed."""
        from vedette.policy.bundle_data import mount

        found = mount(self._store.policy.bundle_files(bundle) or {}).get("registry")
        return found if isinstance(found, dict) else {}

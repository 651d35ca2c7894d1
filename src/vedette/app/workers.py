"""Wiring of agents' code in worker processes; without them it runs in the engine's own."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

from vedette.config.reach import Reach, reach_of
from vedette.domain.agent import Agent, Fleet, Limits
from vedette.domain.base.clock import Clock
from vedette.domain.base.dataclass import dataclass
from vedette.domain.base.errors import BadFleet
from vedette.domain.judge_state import made_of
from vedette.domain.memory import Memory
from vedette.domain.ports import InHand, Metrics, Performer, Reasoner
from vedette.memory.training_set import Lessons

if TYPE_CHECKING:
    from vedette.adapters.reasoners.adk.reasoner import Describe
    from vedette.adapters.reasoners.workers.fork_server_start import Begun
    from vedette.adapters.reasoners.workers.sandbox_probe import Protection
    from vedette.adapters.reasoners.workers.supervisor import WorkerPool
    from vedette.config import Settings
    from vedette.judging import Judge

# What an agent's code imports of the judging kit.
_KIT = re.compile(rb"^from vedette\.judging\.([a-z_]+) import ", re.MULTILINE)


def open_pool(
    settings: Settings, fleet: Fleet, metrics: Metrics, begun: Begun | None = None
) -> WorkerPool | None:
    """Make the pool of workers, if the settings want them; it comes up beside the engine.

    Its zygote is the one that was `begun`, if there is one.
    """
    if not settings.isolation.processes:
        return None
    from vedette.adapters.reasoners.workers.supervisor import WorkerPool

    def told(agent: str, kind: str, why: str) -> None:
        metrics.count("worker_deaths", agent=agent, kind=kind)

    idle_s = settings.isolation.idle_us / 1_000_000
    return WorkerPool(
        settings.state, idle_s=idle_s, told=told, begun=begun, ahead=_kit(fleet),
        boxed=settings.isolation.box, closed=settings.closed,
    )  # fmt: skip


@dataclass(frozen=True, slots=True)
class Containment:
    """How tightly agents' code is closed in.

    `protection` is what the kernel does, None where nothing is asked of it and `why` says so.
    `datagrams` names agents whose tools may use UDP.
    """

    protection: Protection | None
    why: str = ""
    datagrams: tuple[str, ...] = ()

    def lacks(self) -> list[str]:
        """Say what of the fleet agents' code could reach; empty where it reaches nothing."""
        found = [self.why] if self.protection is None else self.protection.lacks()
        if self.protection is not None and self.datagrams:
            names = ", ".join(self.datagrams)
            found.append(f"UDP is open to tools that look up names by themselves: {names}")
        return found

    def to_json(self) -> dict[str, Any]:
        """Return it as `--json` prints it."""
        from vedette.adapters.reasoners.workers.sandbox_probe import Protection

        boxed = self.protection is not None
        told = (self.protection or Protection(0, False)).to_json()
        return {**told, "boxed": boxed, "open": self.lacks()}


def containment(settings: Settings, agents: Mapping[str, Agent]) -> Containment:
    """Return how tightly the code of these agents is closed in on this machine."""
    isolation = settings.isolation
    if not isolation.processes:
        why = "agents' code runs in the engine's process ([isolation] workers = none)"
        return Containment(None, why)
    if not isolation.box:
        return Containment(None, "workers run in no box ([isolation] box = none)")
    from vedette.adapters.reasoners.workers.sandbox_probe import protection

    asking = (name for name, agent in agents.items() if _reach(agent, settings.targets).datagrams)
    return Containment(protection(), "", tuple(sorted(asking)))


def require_box(settings: Settings, found: Containment) -> None:
    """Raise BadFleet if the settings require a whole box and this is none."""
    lacks = found.lacks()
    if settings.isolation.require and lacks:
        raise BadFleet(
            f"agents' code would not be closed in: {'; '.join(lacks)}",
            where="vedette.toml: isolation.require",
            mend="mend that, or write require = false and trust the agents' code",
            code="not-boxed",
        )


def _kit(fleet: Fleet) -> list[str]:
    """Return the modules of the judging kit that the agents' code names."""
    found: set[bytes] = set()
    for agent in fleet.agents.values():
        for path in Path(agent.folder).glob("*.py"):
            found.update(_KIT.findall(path.read_bytes()))
    return sorted(f"judging.{name.decode()}" for name in found)


def performer(
    fleet: Fleet, pool: WorkerPool | None, targets: Mapping[str, Mapping[str, Any]]
) -> Performer:
    """Return what performs the tools of a fleet's agents."""
    from vedette.adapters.http import with_http

    return with_http(fleet, _code_performer(fleet, pool, targets))


def _code_performer(
    fleet: Fleet, pool: WorkerPool | None, targets: Mapping[str, Mapping[str, Any]]
) -> Performer:
    """Return what calls the functions of agents' tools.py."""
    if pool is None:
        from vedette.adapters.tools.in_process import LocalHands
        from vedette.config import load_module

        def tools_of(name: str) -> ModuleType:
            agent = fleet.agents[name]
            return load_module(Path(agent.folder), "tools", agent.release)

        return LocalHands(tools_of)
    from vedette.adapters.reasoners.workers.tool_client import WorkerHands

    def made(name: str) -> tuple[str, str, Limits]:
        agent = fleet.agents[name]
        return agent.folder, agent.release, agent.limits

    return WorkerHands(pool, made, lambda name: _reach(fleet.agents[name], targets))


def _reach(agent: Agent, targets: Mapping[str, Mapping[str, Any]]) -> Reach:
    """Return what the code of an agent's tools reaches: what their targets declare."""
    tools = agent.tools.values()
    named = {tool.target for tool in tools if tool.http is None and tool.target in targets}
    return reach_of(targets[target] for target in sorted(filter(None, named)))


def judges(
    fleet: Fleet,
    lessons: Lessons,
    clock: Clock,
    pool: WorkerPool | None,
    prepare: Callable[[str], None] | None = None,
) -> Reasoner:
    """Return what runs the judges of a fleet's agents.

    `prepare` is told of an agent whose judge is about to be made in a worker, if it has tools
    that the line waits for.
    """

    def expired(name: str) -> bool:
        return lessons.expired(name, clock.now_us())

    if pool is None:
        from vedette.adapters.reasoners.in_process import LocalJudges
        from vedette.config import build_judge

        made: dict[str, str] = {}

        def build(name: str) -> Judge:
            agent, taught = fleet.agents[name], lessons.of(name, clock.now_us())
            made[name] = made_of(agent.release, taught)
            return build_judge(agent, taught)

        return LocalJudges(build, expired=expired, made=made.__getitem__)
    from vedette.adapters.reasoners.workers.reasoner_client import Making, WorkerJudges

    def make(name: str) -> Making:
        agent = fleet.agents[name]
        taught = lessons.of(name, clock.now_us())
        return Making(agent.folder, agent.charter, taught, agent.limits, release=agent.release)

    def beside(name: str) -> None:
        if prepare is not None and any(
            tool.settles == "transactional" for tool in fleet.agents[name].tools.values()
        ):
            prepare(name)

    return WorkerJudges(pool, make, beside, expired)


def root_agents(settings: Settings) -> Describe:
    """Return what has workers tell of agents' root_agents: asked by name, with folder and release.

    Their zygote imports ADK, once for all of them, and is gone with them: no other worker is
    forked from what that takes. Raises BadFleet for an agent.py that cannot be imported or makes
    no root_agent. Who asks while others are told waits: all use one folder.
    """
    one_at_a_time = asyncio.Lock()

    async def describe(wanted: Mapping[str, tuple[Path, str]]) -> dict[str, Any]:
        async with one_at_a_time:
            told = await ask(wanted)
        for one in told:
            if isinstance(one, BaseException):
                raise one
        return dict(zip(wanted, told, strict=True))

    async def ask(wanted: Mapping[str, tuple[Path, str]]) -> list[Any]:
        from vedette.adapters.reasoners.workers.root_agents import describe_in_worker
        from vedette.adapters.reasoners.workers.supervisor import WorkerPool

        pool = WorkerPool(
            settings.state / "models", ahead=("adapters.reasoners.adk.root_agent",),
            boxed=settings.isolation.box, closed=settings.closed,
        )  # fmt: skip
        try:
            asked = (describe_in_worker(pool, name, *where) for name, where in wanted.items())
            told: list[Any] = await asyncio.gather(*asked, return_exceptions=True)
            return told
        finally:
            await pool.close_beside()

    return describe


async def try_judge(judges: Any, agent: Agent, taught: Sequence[Memory]) -> None:
    """Make the judge of a release once, where `judges` would run it, and let it go again.

    The judges that run stay as they are. Raises what making it raises. What runs elsewhere, or is
    no code of the agent's folder, is not tried.
    """
    from vedette.adapters.reasoners.in_process import LocalJudges

    if isinstance(judges, LocalJudges):
        from vedette.config import build_judge
        from vedette.config.agent_loader import import_aside

        import_aside(agent.name, lambda: build_judge(agent, taught))
        return
    from vedette.adapters.reasoners.workers.reasoner_client import Making, WorkerJudges

    if isinstance(judges, WorkerJudges):
        made = Making(agent.folder, agent.charter, taught, agent.limits, release=agent.release)
        await judges.try_making(agent.name, made)


def in_hand(settings: Settings, fleet: Fleet, pool: WorkerPool | None) -> InHand | None:
    """Return what remembers runs whose code could take the engine with it, if there is such code.

    A worker takes nobody with it; what asks a model runs in the engine's process.
    """
    if pool is not None and all(agent.reasoner == "judge" for agent in fleet.agents.values()):
        return None
    from vedette.adapters.reasoners.workers.run_journal import InHand as Held

    return Held(settings.state)

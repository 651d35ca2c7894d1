"""Wiring of agents' code into worker processes; without them it runs in the engine's own."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

from msgspec import Struct

from vedette.config.reach import Reach, build_reach, target_folder, target_plugin
from vedette.domain.agent import Agent, Fleet, ResourceLimits
from vedette.domain.base.clock import Clock
from vedette.domain.base.errors import BadFleet
from vedette.domain.judge_state import judge_digest
from vedette.domain.memory import Memory
from vedette.domain.ports.plugin import BoxSettings
from vedette.domain.ports.reasoner import Metrics, Reasoner, RunJournal, ToolExecutor
from vedette.memory.training_set import Lessons

if TYPE_CHECKING:
    from vedette.adapters.reasoners.workers.fork_server_start import ForkServerProcess
    from vedette.adapters.reasoners.workers.sandbox_probe import Protection
    from vedette.adapters.reasoners.workers.supervisor import WorkerPool
    from vedette.config.settings import Settings
    from vedette.judging import Judge

_NO_CHECKPOINT = 2**62

# What an agent's code imports of the judging kit.
_KIT = re.compile(rb"^from vedette\.judging\.([a-z_]+) import ", re.MULTILINE)


def open_pool(
    settings: Settings,
    fleet: Fleet,
    metrics: Metrics,
    fork_server: ForkServerProcess | None = None,
    folder: Path | None = None,
) -> WorkerPool | None:
    """Wire the pool of workers, if the settings want them; it comes up beside the engine.

    Its fork server is `fork_server`, if that was started before; its lock lies in `folder`, or in
    the state folder.
    """
    return build_pool(settings, metrics, folder or settings.state, _kit(fleet), fork_server)


def build_pool(
    settings: Settings,
    metrics: Metrics,
    folder: Path,
    preload: Sequence[str],
    fork_server: ForkServerProcess | None = None,
) -> WorkerPool | None:
    """Wire a pool whose lock lies in `folder`; None if the settings want no workers."""
    if not settings.isolation.use_processes:
        return None
    from vedette.adapters.reasoners.workers.supervisor import WorkerPool

    def count_death(agent: str, kind: str, why: str) -> None:
        metrics.count("worker_deaths", agent=agent, kind=kind)

    return WorkerPool(
        folder,
        idle_s=settings.isolation.idle_us / 1_000_000,
        on_worker_lost=count_death,
        fork_server=fork_server,
        preload=preload,
        sandboxed=settings.isolation.sandbox,
        closed_folders=settings.protected_folders,
    )


class Containment(Struct, frozen=True):
    """How tightly agents' code is closed in, for the composition root and the doctor.

    `protection` is what the kernel does, None where nothing is required of it and `why` says so.
    `udp_agents` names agents whose tools may use UDP.
    """

    protection: Protection | None
    why: str = ""
    udp_agents: tuple[str, ...] = ()

    def gaps(self) -> list[str]:
        """Say what of the fleet agents' code could reach; empty where it reaches nothing."""
        found = [self.why] if self.protection is None else self.protection.gaps()
        if self.protection is not None and self.udp_agents:
            names = ", ".join(self.udp_agents)
            found.append(f"UDP is open to tools that look up names by themselves: {names}")
        return found

    def to_json(self) -> dict[str, Any]:
        """Return it as `--json` prints it."""
        from vedette.adapters.reasoners.workers.sandbox_probe import Protection

        boxed = self.protection is not None
        document = (self.protection or Protection(0, False)).to_json()
        return {**document, "boxed": boxed, "open": self.gaps()}


def assess_containment(settings: Settings, agents: Mapping[str, Agent]) -> Containment:
    """Return how tightly the code of a fleet's agents is closed in on this machine."""
    isolation = settings.isolation
    if not isolation.use_processes:
        runs = "agents' code runs in the engine's process"
        if any(agent.last_reasoner == "adk" for agent in agents.values()):
            runs = "agents' code runs, and models are asked, in the engine's process"
        return Containment(None, f"{runs} ([isolation] workers = none)")
    if not isolation.sandbox:
        return Containment(None, "workers run in no box ([isolation] box = none)")
    from vedette.adapters.reasoners.workers.sandbox_probe import protection

    targets = settings.targets
    asking = (
        name
        for name, agent in agents.items()
        for tool in agent.tools.values()
        if (table := targets.get(tool.target or "")) and target_plugin(table).uses_udp(table)
    )
    return Containment(protection(), "", tuple(sorted(set(asking))))


def require_foreign_box(found: Containment, agents: Mapping[str, Agent]) -> None:
    """Refuse with BadFleet to open a fleet with an imported agent where the kernel has no box."""
    from vedette.config.foreign_agent import has_foreign_source

    kernel = found.protection
    if kernel is not None and kernel.has_box:
        return
    for name, agent in agents.items():
        if has_foreign_source(Path(agent.folder)):
            what = f"{name} was imported, and its code runs in a box only: {found.gaps()[0]}"
            raise BadFleet(what, where=agent.folder, mend="remove it here", code="not-boxed")


def require_sandbox(settings: Settings, found: Containment) -> None:
    """Refuse with BadFleet to open a fleet whose settings require a whole box, if this is none."""
    gaps = found.gaps()
    if settings.isolation.require_sandbox and gaps:
        raise BadFleet(
            f"agents' code would not be closed in: {'; '.join(gaps)}",
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


def box_settings(settings: Settings) -> BoxSettings:
    """Return how a fleet's settings box the programs that plugins start."""
    isolation, scratch = settings.isolation, settings.state / "programs"
    sandboxed = isolation.is_boxed
    return BoxSettings(scratch, settings.protected_folders, sandboxed)


def build_tool_executor(settings: Settings, fleet: Fleet, pool: WorkerPool | None) -> ToolExecutor:
    """Wire what performs the tools of a fleet's agents."""
    from vedette.adapters.tools.performers import PluginTools
    from vedette.config.plugins import plugins
    from vedette.domain.ports.plugin import TOOLS, ToolPerformer

    def build(name: str) -> ToolPerformer:
        with plugins(TOOLS).wrap_errors(name):
            performer: ToolPerformer = plugins(TOOLS).get(name).build_with(box_settings(settings))
        return performer

    return PluginTools(_build_code_executor(fleet, pool, settings.targets), build)


def _build_code_executor(
    fleet: Fleet, pool: WorkerPool | None, targets: Mapping[str, Mapping[str, Any]]
) -> ToolExecutor:
    """Return what calls the functions of agents' tools.py."""
    if pool is None:
        from vedette.adapters.tools.in_process import InProcessTools
        from vedette.config.agent_loader import load_module

        def tools_of(name: str) -> ModuleType:
            agent = fleet.agents[name]
            return load_module(Path(agent.folder), "tools", agent.release)

        return InProcessTools(tools_of)
    from vedette.adapters.reasoners.workers.tool_client import WorkerTools

    def code_of(name: str) -> tuple[str, str, ResourceLimits]:
        agent = fleet.agents[name]
        return agent.folder, agent.release, agent.limits

    return WorkerTools(pool, code_of, lambda name: _agent_reach(fleet.agents[name], targets))


def _agent_reach(agent: Agent, targets: Mapping[str, Mapping[str, Any]]) -> Reach:
    """Return what the code of an agent's tools reaches: what their targets declare.

    A box opens what is there, so a folder that is to be made is made before.
    """
    tools = agent.tools.values()
    named = {tool.target for tool in tools if tool.performer is None and tool.target in targets}
    tables = [targets[target] for target in sorted(filter(None, named))]
    for table in tables:
        if table.get("create") and (folder := target_folder(table)) is not None:
            Path(folder).mkdir(parents=True, exist_ok=True)
    return build_reach(tables)


def build_judge_reasoner(
    fleet: Fleet,
    lessons: Lessons,
    clock: Clock,
    pool: WorkerPool | None,
    prepare: Callable[[str], None] | None = None,
    *,
    makes_checkpoints: bool = True,
) -> Reasoner:
    """Wire what runs the judges of a fleet's agents, in workers or in the engine's process.

    `prepare` is called with an agent whose judge is about to be made in a worker, if it has tools
    that the event loop waits for. Without `makes_checkpoints` no state of theirs is ever stored.
    """
    often = {} if makes_checkpoints else {"checkpoint_every": _NO_CHECKPOINT}

    def expired(name: str) -> bool:
        return lessons.pop_expired(name, clock.now_us())

    if pool is None:
        from vedette.adapters.reasoners.in_process import InProcessReasoner
        from vedette.config.agent_loader import build_judge

        made: dict[str, str] = {}

        def build(name: str) -> Judge:
            agent, taught = fleet.agents[name], lessons.load_lessons(name, clock.now_us())
            made[name] = judge_digest(agent.release, taught)
            return build_judge(agent, taught)

        return InProcessReasoner(build, is_expired=expired, digest_of=made.__getitem__, **often)
    from vedette.adapters.reasoners.workers.reasoner_client import JudgeSpec, WorkerReasoner

    def make(name: str) -> JudgeSpec:
        agent = fleet.agents[name]
        taught = lessons.load_lessons(name, clock.now_us())
        return JudgeSpec(
            agent.folder,
            agent.charter,
            taught,
            agent.limits,
            release=agent.release,
            takes_tasks=agent.judges_tasks,
            **often,
        )

    def prepare_tools(name: str) -> None:
        if prepare is not None and any(
            tool.settles == "transactional" and tool.performer is None
            for tool in fleet.agents[name].tools.values()
        ):
            prepare(name)

    return WorkerReasoner(pool, make, prepare_tools, expired)


async def try_judge(judges: Any, agent: Agent, taught: Sequence[Memory]) -> None:
    """Try the judge of a new release: make it once where the wired `build_judge_reasoner` would run
    it, and let it go again.

    The judges that run stay as they are. Raises what making it raises. What runs elsewhere, or is
    no code of the agent's folder, is not tried.
    """
    from vedette.adapters.reasoners.in_process import InProcessReasoner

    if isinstance(judges, InProcessReasoner):
        from vedette.config.agent_loader import build_judge, isolate_imports

        isolate_imports(agent.name, lambda: build_judge(agent, taught))
        return
    from vedette.adapters.reasoners.workers.reasoner_client import JudgeSpec, WorkerReasoner

    if isinstance(judges, WorkerReasoner):
        made = JudgeSpec(
            agent.folder, agent.charter, taught, agent.limits, release=agent.release,
            takes_tasks=agent.judges_tasks,
        )  # fmt: skip
        await judges.try_spec(agent.name, made)


def build_run_journal(
    settings: Settings, fleet: Fleet, pool: WorkerPool | None
) -> RunJournal | None:
    """Wire the journal of runs whose code could take the engine with it, if there is such code.

    A worker takes nobody with it; a plugin that reasons runs in the engine's process.
    """
    at_home = ("judge", "adk", "client")
    if pool is not None and all(agent.reasoner in at_home for agent in fleet.agents.values()):
        return None
    from vedette.adapters.reasoners.workers.run_journal import RunJournal as Held

    return Held(settings.state)

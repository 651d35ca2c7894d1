"""One life of the shipped engine in a simulation: all of its own code, on simulated things.

It is opened as `run` opens it (`open_app`), with judges and hands in the same process and a stage
that tries no policy out, as that needs processes; the dispatcher and what follows other workers are
started as the runner does. What is the same for every life is made once: the content is read, a
policy compiled, an agent's code compiled.
"""

from __future__ import annotations

import asyncio
import pickle
from collections.abc import Callable, Coroutine
from pathlib import Path
from types import CodeType
from typing import Any, TypeVar

import orjson
from msgspec.structs import replace
from tests.simulation.agent_process import AgentProcesses
from tests.simulation.clock import SimClock
from tests.simulation.loop import OWNER, Owner, SimLoop

from vedette.adapters.policy_engines.regorus import stage
from vedette.adapters.policy_engines.regorus.engine import RegorusEngine
from vedette.app.composition_root import App, open_app
from vedette.config import agent_loader
from vedette.config import fleet as fleet_loader
from vedette.config.fleet import LoadedFleet
from vedette.config.settings import Isolation, Settings, StorePlan
from vedette.domain.agent import Fleet
from vedette.domain.bundle import Bundle
from vedette.engine.cluster import catch_up_with_cluster, follow_cluster
from vedette.interfaces.daemon import build_bank_feed
from vedette.policy import bundle_data
from vedette.testing.harness import TrustingStage

T = TypeVar("T")

# How long a thread is at a crash point, mostly and at times, in seconds: a commit takes time.
USUAL, SLOW, OFTEN = (2e-4, 3e-3), (0.02, 0.3), 0.05


class CrashPoints:
    """What a history does at the engine's crash points: time passes, or a life ends there.

    Time passes on an engine's other threads alone: what the loop does between two points is
    one instant. `passed` counts the points of all lives.
    """

    def __init__(self, loop: SimLoop) -> None:
        self._loop = loop
        self._ends: dict[Owner, tuple[int, Callable[[str], None]]] = {}
        self.passed: dict[str, int] = {}

    def end_at(self, owner: Owner, nth: int, end: Callable[[str], None]) -> None:
        """Have `end` called, with the name of the point, at the `nth` that an owner passes.

        It takes the image of the disk and kills the life, and so does not return.
        """
        self._ends[owner] = nth, end

    def reach(self, point: str) -> None:
        """Pass a point; `crashpoint.hook` while the history runs."""
        owner = OWNER.get()
        self.passed[point] = self.passed.get(point, 0) + 1
        if owner is None:
            return
        if owner in self._ends:
            left, end = self._ends.pop(owner)
            if left <= 1:
                end(point)
            else:
                self._ends[owner] = left - 1, end
        if self._loop.on_thread:
            slow = self._loop.draw.random() < OFTEN
            self._loop.pause(self._loop.some(*(SLOW if slow else USUAL)))


def settings_of(
    content: Path, state: Path, target: Any, store: StorePlan | None = None
) -> Settings:
    """Return the settings of one life: `content` of a fleet, its own state folder, its world."""
    settings = Settings.of(content, "harbour")
    policy = replace(settings.deployment.policy, engine="embedded")
    return replace(
        settings,
        deployment=replace(settings.deployment, policy=policy),
        state=state,
        policies=content / "policies",
        targets={"world": {"kind": "world", "world": target}},
        isolation=Isolation(False),
        store=store or StorePlan(),
    )


class Life:
    """One engine from its start to its end, a kill or a close.

    `errors` are what a person would see as a defect: parts of it that ended by themselves. Agents
    whose processes may die have some, `processes`, if that is asked for.
    """

    def __init__(
        self, loop: SimLoop, name: str, settings: Settings, *, mortal: bool = False
    ) -> None:
        self.loop, self.settings = loop, settings
        self.owner = Owner(name)
        self.processes: AgentProcesses | None = None
        self._mortal = mortal
        self.errors: list[str] = []
        self.troubles: list[str] = []
        self._app: App | None = None
        self._asked: dict[asyncio.Future[Any], None] = {}

    @property
    def up(self) -> bool:
        """Say whether it is open and alive."""
        return self._app is not None and not self.owner.dead

    @property
    def app(self) -> App:
        """Return the opened fleet. Raises ConnectionError if it is not up."""
        if self._app is None or self.owner.dead:
            raise ConnectionError(f"{self.owner.name} is not up")
        return self._app

    async def open(self) -> None:
        """Open the fleet and begin to handle; raises what `open_app` raises."""
        self._app = await self.do(self._open())

    async def _open(self) -> App:
        clock = SimClock(self.loop)
        app = await open_app(
            self.settings, clock=clock, stage=TrustingStage(), second_engine=_no_second
        )
        self.troubles += app.troubles
        if self._mortal:
            self.processes = AgentProcesses(
                app.services.tool_executor, app.services.reasoners["judge"]
            )
            app.services.tool_executor = self.processes.tools
            app.services.reasoners = {**app.services.reasoners, "judge": self.processes.judges}
        if app.services.store.cluster.multi_worker:
            await catch_up_with_cluster(app.services, app.rollout)
            task = asyncio.create_task(
                follow_cluster(
                    app.services, app.rollout, build_bank_feed(app), self.troubles.append
                )
            )
            task.add_done_callback(lambda ended: self._failed("follower", ended.exception()))
        app.dispatcher.start(self._failed)
        return app

    def _failed(self, part: str, error: BaseException | None) -> None:
        self.errors.append(f"{self.owner.name}: {part} ended: {error!r}")

    def do(self, work: Coroutine[Any, Any, T]) -> asyncio.Future[T]:
        """Let this life do something for the world outside.

        The future raises what `work` raises, and ConnectionError if the life ends before.
        """
        answer: asyncio.Future[T] = self.loop.create_future()
        if self.owner.dead:
            work.close()
            answer.set_exception(ConnectionError(f"{self.owner.name} is dead"))
            return answer
        self._asked[answer] = None
        task = self.loop.spawn(self.owner, work)

        def ended(task: asyncio.Task[T]) -> None:
            self._asked.pop(answer, None)
            if answer.done():
                return
            if task.cancelled():
                answer.set_exception(ConnectionError(f"{self.owner.name} broke off"))
            elif (error := task.exception()) is not None:
                answer.set_exception(error)
            else:
                answer.set_result(task.result())

        task.add_done_callback(ended)
        return answer

    async def close(self) -> None:
        """End it as an orderly stop does."""
        app, self._app = self.app, None
        await self.do(app.close())
        self.owner.dead = True

    def kill(self) -> None:
        """End it as SIGKILL does. From inside (a crash point) this does not return."""
        pending, self._asked = list(self._asked), {}
        for answer in pending:
            if not answer.done():
                answer.set_exception(ConnectionError(f"{self.owner.name} was killed"))
        self.owner.kept.append(self._app)
        self._app = None
        self.loop.kill(self.owner)


def _no_second(bundle: Bundle) -> None:
    """Make no second engine."""


_READ: dict[Path, LoadedFleet] = {}
_DATA: dict[tuple[str, bytes], bytes] = {}
_CODE: dict[tuple[str, bytes], CodeType] = {}
_BUNDLES: dict[Path, Bundle] = {}
_FILES: dict[Path, dict[str, bytes]] = {}
_ANSWERS: dict[tuple[str, bytes], bytes] = {}
_really_load, _really_read = fleet_loader.load_fleet, bundle_data.read_data
_MODULES: Any = agent_loader
_CODE_LOADER: Any = agent_loader._BytesLoader
_ENGINE: Any = RegorusEngine
_really_compile = _CODE_LOADER.source_to_code
_really_decide = RegorusEngine.decide
_really_read_bundle, _really_read_files = stage.read_bundle, _MODULES.read_files


def read_once() -> None:
    """Let every later life of this process share what is read of content and policy folders.

    So do they the code of agents, compiled. What a policy says of a question is computed once in a
    history: each worker asks it of a new policy about the same decisions.
    """
    _ANSWERS.clear()
    _ENGINE.decide = _decide
    stage.read_bundle, _MODULES.read_files = _read_bundle, _read_files
    fleet_loader.load_fleet = _load_fleet
    bundle_data.read_data = _read_data
    _CODE_LOADER.source_to_code = _compile


def forget_agent(root: Path, name: str) -> None:
    """Let an agent's folder, which somebody changed, be read anew."""
    _READ.pop(root, None)
    _FILES.pop(root / "agents" / name, None)


def read_anew() -> None:
    """Let lives read for themselves again."""
    fleet_loader.load_fleet, bundle_data.read_data = _really_load, _really_read
    _CODE_LOADER.source_to_code = _really_compile
    _ENGINE.decide = _really_decide
    stage.read_bundle, _MODULES.read_files = _really_read_bundle, _really_read_files


def _load_fleet(root: Path, settings: Settings, *, now_us: int = 0) -> LoadedFleet:
    if root not in _READ:
        _READ[root] = _really_load(root, settings, now_us=now_us)
    kept = _READ[root]
    fleet = Fleet(kept.fleet.name, dict(kept.fleet.agents), kept.fleet.max_hops)
    return replace(kept, fleet=fleet)


def _read_data(path: str, raw: bytes) -> dict[str, Any]:
    if (path, raw) not in _DATA:
        _DATA[path, raw] = pickle.dumps(_really_read(path, raw))
    found: dict[str, Any] = pickle.loads(_DATA[path, raw])
    return found


def _read_bundle(folder: Path) -> Bundle:
    if folder not in _BUNDLES:
        _BUNDLES[folder] = _really_read_bundle(folder)
    return _BUNDLES[folder]


def _read_files(folder: Path) -> dict[str, bytes]:
    if folder not in _FILES:
        _FILES[folder] = _really_read_files(folder)
    return dict(_FILES[folder])


def _decide(engine: RegorusEngine, question: bytes) -> object:
    request = engine.digest, question
    if request not in _ANSWERS:
        _ANSWERS[request] = orjson.dumps(_really_decide(engine, question))
    return orjson.loads(_ANSWERS[request])


def _compile(loader: Any, data: bytes, path: str) -> CodeType:
    # What a traceback says must not depend on whose folder came first.
    short = "/".join(Path(path).parts[-2:])
    if (short, data) not in _CODE:
        _CODE[short, data] = _really_compile(loader, data, short)
    return _CODE[short, data]

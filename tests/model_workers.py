"""Workers that ask a model on this machine, for tests that break them."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from msgspec.structs import replace
from tests.gemini_server import ModelServer
from tests.workers import until

from vedette.adapters.reasoners.adk.provider import find_access
from vedette.adapters.reasoners.workers.model_client import ModelWorkerSpec, WorkerModels
from vedette.adapters.reasoners.workers.root_agents import describe_in_worker
from vedette.adapters.reasoners.workers.supervisor import WorkerPool
from vedette.config.models import ModelPlan
from vedette.domain.agent import ResourceLimits

MODEL = "gemini-2.5-flash"
LIMITS = ResourceLimits(time_us=3_000_000, memory=160 << 20)
# A main program of workers whose registry of models knows some that break their own process.
MISBEHAVIOUR = """
import asyncio, ctypes, os, signal, sys, time
sys.path[:0] = {path!r}
from google.adk.models.base_llm import BaseLlm
from google.adk.models.registry import LLMRegistry
from vedette.app import worker_main

def do_stall():
    time.sleep(600)

def do_spin():
    while True:
        pass

def do_leave():
    os._exit(7)

def do_crash():
    ctypes.string_at(0)

def do_kill():
    os.kill(os.getpid(), signal.SIGKILL)

def do_eat():
    kept = []
    while True:
        kept.append(bytearray(8_000_000))

def do_code():
    # What it has no business with.
    open(os.environ["CODE"]).read()

class Gemini(BaseLlm):
    @classmethod
    def supported_models(cls):
        return ["bad-gemini"]

    async def generate_content_async(self, llm_request, stream=False):
        from google.adk.models.google_llm import Gemini
        text = "".join(part.text or "" for one in llm_request.contents for part in one.parts)
        while '"do":"deaf"' in text:
            try:
                await asyncio.sleep(600)
            except BaseException:
                pass
        for name in [name for name in globals() if name.startswith("do_")]:
            if '"do":"' + name[3:] + '"' in text:
                globals()[name]()
        real = Gemini(model="gemini-2.5-flash")
        llm_request.model = real.model
        async for one in real.generate_content_async(llm_request, stream):
            yield one

LLMRegistry.register(Gemini)
sys.exit(worker_main.main(sys.argv[1:]))
"""


class Models:
    """Models asked in workers, with what the pool told of their deaths."""

    def __init__(
        self, folder: Path, plans: Mapping[str, ModelPlan] | None = None, **settings: Any
    ) -> None:
        self.deaths: list[tuple[str, str, str]] = []
        self.pool = WorkerPool(
            folder / "state" / "models",
            on_worker_lost=lambda *details: self.deaths.append(details),
            preload=("adapters.reasoners.adk.preload",),
            **settings,
        )
        self.reasoner = WorkerModels(self.pool, plans)

    async def describe(self, agent: str, folder: Path) -> dict[str, Any]:
        """Return what a worker tells of an agent's root_agent."""
        return await describe_in_worker(self.pool, agent, folder, None)

    async def spec(
        self, agent: str, folder: Path, server: ModelServer, **changes: Any
    ) -> ModelWorkerSpec:
        """Return what an agent's worker is made of, which is to ask `server`."""
        description = await self.describe(agent, folder)
        access = find_access(description["model"], server.environment, folder)
        spec = ModelWorkerSpec(
            str(folder), None, description, access.environment, access.reach, limits=LIMITS
        )
        return replace(spec, **changes)

    async def prepare(
        self, agent: str, folder: Path, server: ModelServer, **changes: Any
    ) -> ModelWorkerSpec:
        """Have an agent's model asked by `server`."""
        spec = await self.spec(agent, folder, server, **changes)
        (await self.reasoner.prepare(agent, spec))()
        return spec

    def pid(self, agent: str) -> int:
        """Return the process id of an agent's worker; 0 if there is none."""
        return self.pool.worker_pids.get((agent, "model"), 0)

    async def born(self, agent: str) -> int:
        """Wait for an agent's worker; return its process id."""
        await until(lambda: self.pid(agent) != 0)
        return self.pid(agent)


@contextmanager
def models(folder: Path, **settings: Any) -> Iterator[Models]:
    """Open models in workers, and close them whatever happens."""
    there = Models(folder, **settings)
    try:
        yield there
    finally:
        there.pool.close()


def misbehaving() -> dict[str, Any]:
    """Return the settings of a pool whose workers know models that break their own process."""
    code = MISBEHAVIOUR.format(path=[path for path in sys.path if path])
    return {"command": (sys.executable, "-P", "-c", code)}

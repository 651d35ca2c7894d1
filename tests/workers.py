"""Agents that misbehave on demand, and pools of worker processes that a test may break."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from vedette.adapters.reasoners.workers.reasoner_client import JudgeSpec, WorkerReasoner
from vedette.adapters.reasoners.workers.supervisor import WorkerPool
from vedette.domain.agent import ResourceLimits
from vedette.domain.event import Event
from vedette.domain.memory import Briefing

JUDGE_PY = '''\
import ctypes
import os
import signal
import socket
import threading
import time

from vedette.domain.base.errors import Temporary
from vedette.judging import Candidate, Judge as Base
from vedette.judging import Judgement, Proposal, Ref


KEPT = []


class Judge(Base):
    """Counts the events of a key and adds up their values; misbehaves when the event says so."""

    def blank(self):
        return [0, 0.0]

    def observe(self, state, event):
        if event.data.get("observe") == "loop":
            while True:
                pass
        if event.data.get("observe") == "slow":
            time.sleep(0.15)
        state[0] += 1
        state[1] += event.data.get("value", 0)
        return list(state)

    def judge(self, seen, briefing):
        data = briefing.event.data
        do = data.get("do")
        if do is not None:
            answer = globals()["do_" + do](data)
            if answer is not None:
                return answer
        return Judgement(
            f"seen {seen[0]}",
            0.1 + 0.2,
            (Proposal("mail.file", {"message": Ref("/event/subject"), "like": {"ref": "/x"}}),),
            score=seen[1],
            detail={"registry": dict(briefing.registry), "charter": dict(self.charter),
                    "memories": [memory.cite() for memory in briefing.memories]},
            candidates=(Candidate("inbox", "inbox", "told", ("one", "two")),),
        )

    def dump(self, state):
        return f"{state[0]} {state[1]!r}".encode()

    def load(self, blob):
        count, total = blob.split()
        return [int(count), float(total)]


def do_loop(data):
    while True:
        pass


def do_sleep(data):
    time.sleep(60)


def do_eat(data):
    eaten = []
    while True:
        eaten.append(bytearray(8_000_000))


def do_map(data):
    """Eats what RLIMIT_DATA does not count."""
    import mmap

    eaten = mmap.mmap(-1, 600_000_000)
    for at in range(0, len(eaten), 4096):
        eaten[at] = 1
    time.sleep(60)


def do_threads(data):
    """Starts threads by raw calls, which share one stack: memory does not bound them."""
    import mmap

    # clone(VM|FS|FILES|SIGHAND|THREAD|SYSVSEM); the child pauses for ever, the parent returns.
    code = bytes.fromhex(
        "b838000000bf000f050031f631d24d31d24d31c00f0585c07401c3b8220000000f05ebf7"
    )
    place = mmap.mmap(-1, 4096, prot=7)
    place.write(code)
    KEPT.append(place)
    clone = ctypes.CFUNCTYPE(ctypes.c_int)(ctypes.addressof(ctypes.c_char.from_buffer(place)))
    for _ in range(data["most"]):
        clone()
    if data.get("stay"):
        time.sleep(60)


def do_segfault(data):
    ctypes.string_at(0)


def do_exit(data):
    os._exit(3)


def do_stop(data):
    os.kill(os.getpid(), signal.SIGSTOP)


def do_raise(data):
    raise KeyError("no such thing")


def do_leave(data):
    raise SystemExit(4)


def do_again(data):
    raise Temporary("not now")


def do_huge(data):
    return Judgement("x" * 10_000_000, 1.0)


def do_alien(data):
    return Judgement("alien", 1.0, detail={"thing": object()})


def do_wrong(data):
    return Judgement(7, "sure")


def do_odd(data):
    return Judgement("odd", 1.0, detail={"nan": float("nan"), "big": 1 << 80, 3: (1, b"b")})


def do_garbage(data):
    """Writes to the engine behind the back of what is there for it."""
    for fd in range(3, 64):
        try:
            wire = socket.socket(fileno=os.dup(fd))
            if wire.family == socket.AF_UNIX:
                wire.sendall(bytes.fromhex(data["bytes"]))
        except OSError:
            pass


def do_parent(data):
    os.kill(os.getppid(), signal.SIGKILL)
    time.sleep(60)
'''

CHARTER = {"folders": {"invoice": "Invoices"}, "share": 0.1, "none": None}
REGISTRY = {"oncall": "desk@example.org"}
EVERY = 20
LIMITS = ResourceLimits(time_us=1_000_000, memory=160 * 1024 * 1024)


def write_judge(agents: Path, name: str = "worker", code: str = JUDGE_PY) -> Path:
    """Write the folder of an agent that has a judge."""
    folder = agents / name
    folder.mkdir(parents=True)
    (folder / "__init__.py").touch()
    (folder / "judge.py").write_text(code)
    return folder


def brief(
    position: int = 1, previous: int = 0, *, key: str = "k", agent: str = "worker", **data: Any
) -> Briefing:
    """Return a briefing about an event whose data is given."""
    event = Event("test", f"e{position}", "metric.point", key, None, data)
    return Briefing(
        f"run_{key}_{position}", agent, key, position, previous, 1, event, CHARTER, REGISTRY
    )


class Crew:
    """Judges in worker processes, with all that the pool told of their deaths."""

    def __init__(self, folder: Path, limits: ResourceLimits = LIMITS, **settings: Any) -> None:
        self.agents = folder / "agents"
        self.deaths: list[tuple[str, str, str]] = []
        self.made: list[str] = []
        self.limits = limits
        self.pool = WorkerPool(
            folder / "state",
            on_worker_lost=lambda *details: self.deaths.append(details),
            **settings,
        )
        self.judges = WorkerReasoner(self.pool, self._make)

    def _make(self, agent: str) -> JudgeSpec:
        folder = self.agents / agent
        if not folder.exists():
            write_judge(self.agents, agent)
        self.made.append(agent)
        return JudgeSpec(str(folder), CHARTER, (), self.limits, EVERY)

    def pid(self, agent: str = "worker", kind: str = "judge") -> int:
        """Return the process id of a worker; 0 if there is none."""
        return self.pool.worker_pids.get((agent, kind), 0)

    async def born(self, agent: str = "worker", kind: str = "judge") -> int:
        """Wait for an agent's worker; return its process id."""
        await until(lambda: self.pid(agent, kind) != 0)
        return self.pid(agent, kind)


@asynccontextmanager
async def crew(
    folder: Path, limits: ResourceLimits = LIMITS, **settings: Any
) -> AsyncIterator[Crew]:
    """Open judges in worker processes, and close them whatever happens."""
    crew = Crew(folder, limits, **settings)
    try:
        yield crew
    finally:
        crew.pool.close()


async def until(true: Callable[[], bool], within_s: float = 20) -> None:
    """Return when something has become true. Raises TimeoutError."""
    async with asyncio.timeout(within_s):
        while not true():  # noqa: ASYNC110
            await asyncio.sleep(0.01)


def alive(pid: int) -> bool:
    """Say whether a process runs (a dead one that nobody has buried does not)."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        import psutil

        return psutil.pid_exists(pid) and psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    return state not in ("Z", "X")

"""What hostile judges, tools, agent.py and models achieve: nothing in a box, all without one.

Each attack of `tests.hostile` is made for real, by a worker process of each kind, once in a box and
once (the control) outside. They are aimed at decoys: a process with a secret, a state folder, a
folder of policies, sockets of this test.
"""

from __future__ import annotations

import ast
import asyncio
import json
import os
import platform
import socket
import subprocess
import sys
from collections.abc import Sequence
from contextlib import ExitStack
from hashlib import sha256
from itertools import product
from pathlib import Path
from typing import Any

import pytest
from tests.hostile import AGENT_PY, AGENT_YAML, ATTACKS_PY, JUDGE_PY, TOOLS_PY
from tests.workers import Crew, brief

from vedette.adapters.reasoners.workers.model_client import ModelWorkerSpec, WorkerModels
from vedette.adapters.reasoners.workers.pending_call import WorkerLost
from vedette.adapters.reasoners.workers.root_agents import describe_in_worker
from vedette.adapters.reasoners.workers.sandbox_probe import protection
from vedette.adapters.reasoners.workers.supervisor import WorkerPool
from vedette.adapters.reasoners.workers.tool_client import WorkerTools
from vedette.config.reach import Reach, build_reach
from vedette.domain.agent import ResourceLimits
from vedette.domain.base.errors import BadFleet
from vedette.domain.effect import Call, Outcome
from vedette.domain.tool import Tool

MISSING = protection().gaps()
if platform.machine() != "x86_64":
    MISSING.append("raw system calls of the attacks are those of x86-64")
if MISSING and not os.environ.get("CI"):
    pytest.skip(f"no whole box here: {MISSING}", allow_module_level=True)

ATTACKS = [
    node.name
    for node in ast.parse(ATTACKS_PY).body
    if isinstance(node, ast.FunctionDef) and [arg.arg for arg in node.args.args] == ["d"]
]
KINDS = ("judge", "hands", "description", "model")
# What a box answers by ending the process: no other attack is made by the same agent.py.
ENDS = ("other_abi",)
LIMITS = ResourceLimits(time_us=20_000_000, memory=256 << 20)
MARKER = "a-secret-of-the-engine"
# What only root can do without a box.
# The kernel refuses it to a process with threads.
NOT_TRIED = {("hands", "namespace"), ("model", "namespace")}
if os.geteuid():
    NOT_TRIED |= {(kind, "write_interpreter") for kind in KINDS}

VICTIM = f"""
import ctypes, time
kept = ctypes.create_string_buffer(b"{MARKER}")
print(ctypes.addressof(kept), flush=True)
time.sleep(600)
"""


HOSTILE_MAIN = (
    sys.executable, "-P", "-c",
    f"""
import json, sys, tempfile
sys.path[:0] = {[path for path in sys.path if path]!r}
attacks = {{"__name__": "attacks"}}
exec({ATTACKS_PY!r}, attacks)
from google.adk.models.base_llm import BaseLlm
from google.adk.models.llm_response import LlmResponse
from google.adk.models.registry import LLMRegistry
from google.genai import types
from vedette.app import worker_main

class Hostile(BaseLlm):
    @classmethod
    def supported_models(cls):
        return ["hostile"]

    async def generate_content_async(self, llm_request, stream=False):
        text = "".join(part.text or "" for one in llm_request.contents for part in one.parts)
        fenced = text.partition('place="/event">\\n')[2].partition("\\n</data>")[0]
        data = json.loads(fenced)["data"]
        own = tempfile.gettempdir()
        if own.startswith(data["state"]):
            data["drop"] = own
        attacks["__file__"] = data["other"] + "/attacks.py"
        said = attacks["attempt"](data["attack"], data)
        part = types.Part(text=said)
        yield LlmResponse(content=types.Content(role="model", parts=[part]))

LLMRegistry.register(Hostile)
sys.exit(worker_main.main(sys.argv[1:]))
""",
)  # fmt: skip


class Decoys:
    """What the attacks are aimed at, and what of it was touched."""

    def __init__(self, folder: Path, stack: ExitStack) -> None:
        self.folder = folder
        self.state, self.policies = folder / "state", folder / "policies"
        self.target, self.tmp = folder / "target", folder / "tmp"
        for place in (self.state, self.policies, self.target):
            place.mkdir(parents=True)
        self.tmp.mkdir()
        self.renew()
        self.agent, other = folder / "agents" / "worker", folder / "agents" / "other"
        for place in (self.agent, other):
            place.mkdir(parents=True)
            (place / "__init__.py").touch()
            (place / "attacks.py").write_text(ATTACKS_PY)
            (place / "judge.py").write_text(JUDGE_PY)
            (place / "tools.py").write_text(TOOLS_PY)
        self.minds = folder / "minds"
        self.victims = {kind: self._victim(stack) for kind in KINDS}
        self.name = f"vedette-test-{os.getpid()}-{folder.name}"
        self.local = self._open(stack, socket.AF_UNIX, socket.SOCK_STREAM, str(folder / "api"))
        self.abstract = self._open(stack, socket.AF_UNIX, socket.SOCK_STREAM, f"\0{self.name}")
        self.grams = self._open(stack, socket.AF_UNIX, socket.SOCK_DGRAM, str(folder / "grams"))
        self.tcp = self._open(stack, socket.AF_INET, socket.SOCK_STREAM, ("127.0.0.1", 0))
        self.udp = self._open(stack, socket.AF_INET, socket.SOCK_DGRAM, ("127.0.0.1", 0))
        self.own = self._open(stack, socket.AF_INET, socket.SOCK_STREAM, ("127.0.0.1", 0))
        self.before = self.digest()

    @staticmethod
    def _victim(stack: ExitStack) -> tuple[subprocess.Popen[bytes], int]:
        """Return a process with a secret, and where in its memory that lies."""
        victim = stack.enter_context(
            subprocess.Popen(
                [sys.executable, "-c", VICTIM],
                stdout=subprocess.PIPE,
                env={**os.environ, "SECRET": MARKER},
            )
        )
        stack.callback(victim.kill)
        assert victim.stdout is not None
        return victim, int(victim.stdout.readline())

    def renew(self) -> None:
        """Put back what a control has taken away."""
        for path, text in self.kept().items():
            Path(path).write_text(text)

    def kept(self) -> dict[str, str]:
        """Return the files of the state folder, and what stands in them."""
        names = ("ledger.key", "store.db", "spare", "second")
        return {str(self.state / name): f"{name} of the fleet" for name in names}

    def write_mind(self, attacks: Sequence[str], drop: Path) -> Path:
        """Write the folder of an agent whose agent.py makes these attacks."""
        mind = self.minds / attacks[0] / "worker"
        mind.mkdir(parents=True)
        (mind / "__init__.py").touch()
        (mind / "attacks.py").write_text(ATTACKS_PY)
        (mind / "agent.py").write_text(AGENT_PY)
        (mind / "agent.yaml").write_text(AGENT_YAML)
        targets = self.targets_of("description", drop, "../..")
        plan = {"attacks": attacks, "data": targets, "again": self.kept()}
        (mind / "plan.json").write_text(json.dumps(plan))
        return mind

    @staticmethod
    def _open(stack: ExitStack, family: int, kind: int, address: Any) -> socket.socket:
        opened = stack.enter_context(socket.socket(family, kind))
        opened.bind(address)
        if kind == socket.SOCK_STREAM:
            opened.listen(64)
        opened.setblocking(False)
        return opened

    def targets_of(self, kind: str, drop: Path, up: str) -> dict[str, Any]:
        """Return what the attacks are told; `drop` is a folder of the worker's own."""
        victim, address = self.victims[kind]
        return {
            "socket": str(self.folder / "api"), "abstract": self.name,
            "datagram": str(self.folder / "grams"), "port": self.tcp.getsockname()[1],
            "udp": self.udp.getsockname()[1], "victim": victim.pid, "marker": MARKER,
            "address": address, "state": str(self.state), "policies": str(self.policies),
            "other": str(self.folder / "agents" / "other"), "drop": str(drop), "up": up,
            "tmp": str(self.tmp),
        }  # fmt: skip

    def digest(self) -> dict[str, str]:
        """Return what stands in every file that an agent's code has no business with."""
        own = ("workers.lock", *(f"worker.{kind}." for kind in KINDS))
        found: dict[str, str] = {}
        for kept in (self.state, self.policies, self.tmp, self.folder / "agents", self.minds):
            for folder, inner, names in os.walk(kept):
                # A worker's own folder is not looked into: its pool removes it at any moment.
                inner[:] = [name for name in inner if not name.startswith(own)]
                for file in (Path(folder, name) for name in names if not name.startswith(own)):
                    if file.is_file():
                        content = sha256(file.read_bytes()).hexdigest()
                        found[str(file)] = f"{content} {file.stat().st_mode:o}"
        return found

    def heard(self) -> list[str]:
        """Return which sockets somebody spoke to."""
        found = []
        for name in ("local", "abstract", "tcp"):
            try:
                getattr(self, name).accept()[0].close()
                found.append(name)
            except BlockingIOError:
                continue
        for name in ("grams", "udp"):
            try:
                getattr(self, name).recv(100)
                found.append(name)
            except BlockingIOError:
                continue
        return found


class Attacked:
    """What came of every attack by each kind of worker, and of the decoys."""

    def __init__(self, folder: Path, *, boxed: bool) -> None:
        with ExitStack() as stack:
            decoys = Decoys(folder, stack)
            self.outcomes = asyncio.run(self._attack(decoys, boxed))
            self.changed = decoys.digest() != decoys.before
            self.heard = decoys.heard()
            self.alive = all(victim.poll() is None for victim, _ in decoys.victims.values())

    async def _attack(self, decoys: Decoys, boxed: bool) -> dict[tuple[str, str], str]:
        crew = Crew(
            decoys.folder, LIMITS, sandboxed=boxed, preload=("adapters.reasoners.adk.root_agent",)
        )
        port = decoys.own.getsockname()[1]
        target = {"path": str(decoys.target), "url": f"http://localhost:{port}/"}
        target["kind"] = "maildir"
        tools = WorkerTools(
            crew.pool,
            lambda name: (str(decoys.agent), None, LIMITS),
            lambda name: build_reach([target]),
        )
        tool = Tool("world.act", "world", "hostile", {}, (), "none", "act", None)
        found: dict[tuple[str, str], str] = {}
        try:
            # The pool has removed what lay in its folder of scratch folders once it has a worker.
            await self._judge(
                crew, {**decoys.targets_of("judge", decoys.tmp, ".."), "attack": "none"}
            )
            drop = decoys.state / "scratch" / "worker.judge.bare"
            for place in (drop, decoys.state / "scratch" / "other.judge"):
                place.mkdir(parents=True)
                (place / "notes").write_text("of another worker")
            single_attacks = [[name] for name in ENDS] if boxed else []
            plans = [[name for name in ATTACKS if [name] not in single_attacks], *single_attacks]
            minds = [decoys.write_mind(plan, drop) for plan in plans]
            decoys.before = decoys.digest()
            for plan, mind in zip(plans, minds, strict=True):
                answer = await outcomes_of(crew, mind, plan)
                found |= {("description", attack): answer[attack] for attack in plan}
                decoys.renew()
            for attack in ATTACKS:
                data = {**decoys.targets_of("judge", drop, "../.."), "attack": attack}
                decoys.renew()
                found["judge", attack] = await self._judge(crew, data)
                made = {**decoys.targets_of("hands", decoys.target, "../state"), "attack": attack}
                decoys.renew()
                call = Call(
                    "world.act", made, attack, "worker", "run", target, ("worker",), 1, 20_000_000
                )
                outcome = await tools.perform(tool, call, lambda: True)
                found["hands", attack] = said(outcome)
                for place in (drop, decoys.target):
                    for name in ("link", "hard", "second", "s"):
                        (place / name).unlink(missing_ok=True)
        finally:
            crew.pool.close()
        found |= await self._ask(decoys, drop, boxed)
        return found

    @staticmethod
    async def _ask(decoys: Decoys, drop: Path, boxed: bool) -> dict[tuple[str, str], str]:
        """Have each attack made where a model is asked, by code that came there however."""
        pool = WorkerPool(
            decoys.state / "models", sandboxed=boxed, closed_folders=(decoys.state,),
            preload=("adapters.reasoners.adk.preload",), command=HOSTILE_MAIN,
        )  # fmt: skip
        mind = decoys.folder / "asked" / "worker"
        mind.mkdir(parents=True)
        (mind / "agent.yaml").write_text(AGENT_YAML)
        (mind / "agent.py").write_text(
            "from google.adk.agents import LlmAgent\n"
            'root_agent = LlmAgent(name="worker", model="hostile")\n'
        )
        found: dict[tuple[str, str], str] = {}
        try:
            told = await describe_in_worker(pool, "worker", mind, None)
            reach = Reach(addresses=(("localhost", decoys.own.getsockname()[1]),))
            models = WorkerModels(pool)
            spec = ModelWorkerSpec(str(mind), None, told, {"KEY": MARKER}, reach, limits=LIMITS)
            (await models.prepare("worker", spec))()
            up = "../../.." if boxed else "../.."
            for attack in ATTACKS:
                data = {**decoys.targets_of("model", drop, up), "attack": attack}
                decoys.renew()
                try:
                    turn = await models.reason(brief(key=attack, **data))
                except WorkerLost as error:
                    found["model", attack] = f"ended: {error}"
                else:
                    found["model", attack] = str(turn.detail["text"])
                for name in ("link", "hard", "second", "s"):
                    (drop / name).unlink(missing_ok=True)
        finally:
            pool.close()
        return found

    @staticmethod
    async def _judge(crew: Crew, data: dict[str, Any]) -> str:
        try:
            thought = await crew.judges.reason(brief(key=data["attack"], **data))
        except WorkerLost as error:
            return f"ended: {error}"
        return thought.label


async def outcomes_of(crew: Crew, mind: Path, attacks: Sequence[str]) -> dict[str, str]:
    """Return what came of the attacks that an agent.py makes when its root_agent is read."""
    try:
        root = await describe_in_worker(crew.pool, "worker", mind, None)
    except BadFleet as error:
        if "its worker was ended by SIGSYS" not in error.what:
            raise
        return dict.fromkeys(attacks, f"ended: {error}")
    document: dict[str, str] = json.loads(root["description"])
    return document


def said(outcome: Outcome | None) -> str:
    assert outcome is not None
    return str(outcome.data["said"]) if outcome.state == "done" else f"ended: {outcome.error}"


@pytest.fixture(scope="module")
def boxed(tmp_path_factory: pytest.TempPathFactory) -> Attacked:
    return Attacked(tmp_path_factory.mktemp("boxed"), boxed=True)


@pytest.fixture(scope="module")
def bare(tmp_path_factory: pytest.TempPathFactory) -> Attacked:
    return Attacked(tmp_path_factory.mktemp("bare"), boxed=False)


def test_there_are_at_least_twenty() -> None:
    assert not MISSING
    assert len(ATTACKS) >= 20


@pytest.mark.parametrize("attack", ATTACKS)
@pytest.mark.parametrize("kind", KINDS)
def test_in_a_box_it_is_refused(boxed: Attacked, kind: str, attack: str) -> None:
    outcome = boxed.outcomes[kind, attack]
    refused = (
        "PermissionError", "OSError: [Errno 38]", "OSError: [Errno 18]", "ended: ",
        "ValueError: not allowed to raise",
    )  # fmt: skip
    assert outcome.startswith(refused), outcome


TRIED = [pair for pair in product(KINDS, ATTACKS) if pair not in NOT_TRIED]


@pytest.mark.parametrize(("kind", "attack"), TRIED)
def test_without_one_it_succeeds(bare: Attacked, kind: str, attack: str) -> None:
    """The control: it is the box that refuses, not the attack that is wrong."""
    assert bare.outcomes[kind, attack] == "succeeded"


def test_nothing_was_touched(boxed: Attacked, bare: Attacked) -> None:
    assert (boxed.changed, boxed.heard, boxed.alive) == (False, [], True)
    assert bare.changed
    assert set(bare.heard) == {"local", "abstract", "tcp", "grams", "udp"}

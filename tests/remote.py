"""A gateway's door, and worker hosts that come to it: in a thread here, or as `vedette worker`."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

from msgspec.structs import replace
from tests.workers import CHARTER, EVERY, LIMITS, until, write_judge

from vedette.adapters.identity.jwt import Verifier
from vedette.adapters.identity.spiffe import MAX_LIFE_US, Issuer, SvidTokens
from vedette.adapters.reasoners.workers.reasoner_client import JudgeSpec
from vedette.adapters.reasoners.workers.remote_reasoner import RemotePool, RemoteReasoner
from vedette.adapters.reasoners.workers.supervisor import WorkerPool
from vedette.adapters.reasoners.workers.websocket_client import Relay
from vedette.adapters.reasoners.workers.websocket_server import WorkerServer
from vedette.config.agent_folder import release_digest
from vedette.config.snapshot import Snapshot, keep_snapshot
from vedette.domain.agent import ResourceLimits
from vedette.domain.ports.tokens import TokenAuthority

FLEET = "harbour"
VEDETTE = (sys.executable, "-m", "vedette")


def now_us() -> int:
    return time.time_ns() // 1000


def svid_tokens(
    state: Path, clock: Callable[[], int] = now_us, life_us: int = MAX_LIFE_US
) -> tuple[Issuer, SvidTokens]:
    """Return the embedded issuer of a state folder, wired as a gateway wires it."""
    issuer = Issuer(state, FLEET, now_us=clock, life_us=life_us)
    verifier = Verifier(
        keys=issuer, issuer=f"spiffe://{FLEET}", audience=issuer.audience, now_us=clock,
        max_life_us=MAX_LIFE_US, required=("exp", "iat", "aud", "sub", "jti"),
        check_revocation=issuer.check_revocation,
    )  # fmt: skip
    return issuer, SvidTokens(issuer, verifier, clock)


class Host:
    """A worker host on a thread of its own."""

    def __init__(
        self,
        agent: str,
        folder: Path,
        gateway: str,
        mint: Callable[[], Awaitable[str]],
        state: Path,
        release: str | None = None,
    ) -> None:
        self.reports: list[str] = []
        self.relay: Relay | None = None
        self.loop = asyncio.new_event_loop()
        self._made = (agent, folder, gateway, mint, state, release)
        self._task: asyncio.Task[None] | None = None
        self._thread = threading.Thread(target=self._run, name="test-worker-host")
        self._thread.start()

    def _run(self) -> None:
        self._task = self.loop.create_task(self._work())
        with suppress(asyncio.CancelledError):
            self.loop.run_until_complete(self._task)
        self.loop.close()

    async def _work(self) -> None:
        agent, folder, gateway, mint, state, release = self._made
        pool = WorkerPool(state)

        def keep() -> Snapshot:
            kept = keep_snapshot(state, folder)
            return replace(kept, release=release) if release else kept

        try:
            self.relay = Relay(
                agent, gateway, mint=mint, take_snapshot=keep, pool=pool,
                report=self.reports.append,
            )  # fmt: skip
            await self.relay.run()
        finally:
            pool.close()

    def stop(self) -> None:
        task = self._task
        if task is not None:
            with suppress(RuntimeError):
                self.loop.call_soon_threadsafe(task.cancel)
        self._thread.join(10)


class Gateway:
    """The pool, the door and the judges of a gateway, with all that they told."""

    def __init__(
        self, folder: Path, limits: ResourceLimits = LIMITS, life_us: int = MAX_LIFE_US
    ) -> None:
        self.folder = folder
        self.agents = folder / "agents"
        self.limits = limits
        self.deaths: list[tuple[str, str, str]] = []
        self.refused: list[tuple[str, str, str]] = []
        self.hosts: list[Host] = []
        self.processes: list[subprocess.Popen[bytes]] = []
        self.issuer, self.tokens = svid_tokens(folder / "state", life_us=life_us)
        self.pool = RemotePool(
            on_worker_lost=lambda *details: self.deaths.append(details),
            on_refusal=lambda *details: self.refused.append(details),
        )
        self.judges = RemoteReasoner(self.pool, self._make)
        self.path = folder / "w.sock"
        self.server: WorkerServer

    def _make(self, agent: str) -> JudgeSpec:
        # The folder of the gateway's is nothing to a worker elsewhere.
        return JudgeSpec("/not/there", CHARTER, (), self.limits, EVERY)

    def open(self, *agents: str, tokens: TokenAuthority | None = None) -> None:
        releases = {}
        for agent in agents:
            folder = self.agents / agent
            if not folder.exists():
                write_judge(self.agents, agent)
            releases[agent] = release_digest(folder)
        self.pool.attach_loop()
        # As in a gateway, the door has tokens of its own: it runs on another thread.
        _, own = svid_tokens(self.folder / "state")
        self.server = WorkerServer(
            tokens=tokens or own, releases=releases, notify=self.pool.notify, now_us=now_us,
            path=self.path, listen=("127.0.0.1", 0),
        )  # fmt: skip
        self.server.open()
        self.pool.attach_server(self.server)

    def host(self, agent: str = "worker", url: str | None = None, **more: Any) -> Host:
        """Start a worker host on a thread."""
        signer = self.issuer.signer(more.pop("identity", agent))

        async def mint() -> str:
            return signer.mint(now_us())

        state = self.folder / f"host{len(self.hosts)}"
        url = url or f"unix:{self.path}"
        host = Host(agent, self.agents / agent, url, more.pop("mint", mint), state, **more)
        self.hosts.append(host)
        return host

    def process(self, agent: str = "worker", env: dict[str, str] | None = None) -> Any:
        """Start `vedette worker`."""
        file = self.folder / f"{agent}.id"
        if not file.exists():
            self.issuer.issue(agent, file)
        process = subprocess.Popen(
            [
                *VEDETTE, "worker", "--agent", agent, "--gateway", str(self.server.address),
                "--identity", str(file), "--agents", str(self.agents),
            ],
            env=env, stderr=subprocess.DEVNULL,
        )  # fmt: skip
        self.processes.append(process)
        return process

    async def came(self, agent: str = "worker", number: int = 1) -> None:
        """Return when so many workers of an agent are connected."""
        await until(lambda: self.pool.worker_counts.get(agent, 0) == number)

    async def close(self) -> None:
        for process in self.processes:
            process.kill()
            process.wait()
        for host in self.hosts:
            await asyncio.to_thread(host.stop)
        await asyncio.to_thread(self.server.close)
        self.pool.close()


@asynccontextmanager
async def gateway(folder: Path, *agents: str, **more: Any) -> AsyncIterator[Gateway]:
    """Open a gateway's door for some agents ("worker"), and close it whatever happens."""
    made = Gateway(folder, **more)
    made.open(*(agents or ("worker",)))
    try:
        yield made
    finally:
        await made.close()


def connect_as(path: Path, agent: str, token: str) -> int:
    """Return the status with which a gateway answers a handshake."""
    from websockets.exceptions import InvalidStatus
    from websockets.sync.client import unix_connect

    try:
        with unix_connect(
            str(path), f"ws://localhost/v1/workers/{agent}",
            additional_headers={"Authorization": f"Bearer {token}"},
        ):  # fmt: skip
            return 101
    except InvalidStatus as error:
        return error.response.status_code

"""Workers: processes of `vedette run` as a user starts them, killed, frozen and started again."""

from __future__ import annotations

import asyncio
import random
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

import psutil
from tests.jepsen.fleet import TOKEN, Laid
from tests.said import environment

from vedette.interfaces.http.local_client import LocalClient

VEDETTE = Path(sys.executable).with_name("vedette")
STARTS_S = 60.0


class Worker:
    """One `vedette run`, with a state folder of its own and a port for events."""

    def __init__(self, name: str, laid: Laid, *, store: str = "") -> None:
        self.name, self._laid = name, laid
        self.state = laid.folder / name
        self.told = laid.folder / f"{name}.told"
        self.port = free_port()
        self.client = LocalClient(self.state)
        self.starts = 0
        self._environment = environment(
            VEDETTE_STATE=str(self.state), VEDETTE_SERVE__HTTP=f"127.0.0.1:{self.port}",
            JEPSEN_TOKEN=TOKEN, **({"JEPSEN_STORE": store} if store else {}),
        )  # fmt: skip
        self._process: subprocess.Popen[bytes] | None = None
        self._frozen = False

    @property
    def environment(self) -> Mapping[str, str]:
        """Return the environment that its verbs need."""
        return self._environment

    @property
    def alive(self) -> bool:
        """Say whether its process is there, frozen or not."""
        return self._process is not None and self._process.poll() is None

    @property
    def answers(self) -> bool:
        """Say whether somebody may be expected to answer."""
        return self.alive and not self._frozen

    def start(self) -> None:
        """Start it, if it does not run; who ended by itself is started again, as systemd would."""
        if self.alive:
            return
        self.starts += 1
        with self.told.open("ab") as file:
            self._process = subprocess.Popen(
                [str(VEDETTE), "--config", str(self._laid.config), "run", "--plain"],
                stdin=subprocess.DEVNULL, stdout=file, stderr=file, env=self._environment,
                start_new_session=True,  # Ctrl-C is for us
            )  # fmt: skip
        self._frozen = False

    def kill(self) -> None:
        """Kill it; what it has forked finds out by itself."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()

    def freeze(self) -> None:
        """Stop its process, and none that it has forked."""
        if self._process is not None and self.alive:
            self._process.send_signal(signal.SIGSTOP)
            self._frozen = True

    def thaw(self) -> None:
        """Let it go on."""
        if self._process is not None and self.alive:
            self._process.send_signal(signal.SIGCONT)
        self._frozen = False

    def kill_forked(self, draw: random.Random) -> bool:
        """Kill one of the processes in which agents' code runs; False if there is none."""
        if self._process is None or not self.alive:
            return False
        with suppress(psutil.Error):
            forked = psutil.Process(self._process.pid).children(recursive=True)
            mine = [one for one in forked if one.name().startswith(("judge:", "hands:"))]
            if mine:
                draw.choice(mine).kill()
                return True
        return False

    async def ready(self, within_s: float = STARTS_S) -> None:
        """Wait until it takes orders. Raises RuntimeError with what it said."""
        end = time.monotonic() + within_s
        while time.monotonic() < end:
            with suppress(Exception):
                if await asyncio.to_thread(self.client.is_alive):
                    return
            if not self.alive:
                break
            await asyncio.sleep(0.05)
        raise RuntimeError(f"{self.name} did not start: {self.told.read_text()[-2000:]}")

    async def end(self) -> None:
        """Ask it to end, as Ctrl-C does, and then make it."""
        if self._process is None:
            return
        self.thaw()
        with suppress(ProcessLookupError):
            self._process.send_signal(signal.SIGINT)
        with suppress(subprocess.TimeoutExpired):
            await asyncio.to_thread(self._process.wait, 15)
        self.kill()

    def share_key(self, other: Worker) -> None:
        """Take the signing key of another worker of the same fleet."""
        self.state.mkdir(exist_ok=True)
        shutil.copy(other.state / "ledger.key", self.state / "ledger.key")
        (self.state / "ledger.key").chmod(0o600)


def vedette(
    config: Path, environment: Mapping[str, str], *verb: str, timeout_s: float = 100.0
) -> subprocess.CompletedProcess[str]:
    """Run a verb of the shipped program beside the workers."""
    return subprocess.run(
        [str(VEDETTE), "--config", str(config), *verb],
        env=environment, capture_output=True, text=True, check=False, timeout=timeout_s,
    )  # fmt: skip


def free_port() -> int:
    """Return a port of this machine that nobody listens at now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])

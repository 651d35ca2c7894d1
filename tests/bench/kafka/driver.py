"""Drivers, started from here in the client's environment."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Thread

import msgspec
from tests.bench.kafka.drive import Ack, Audit, Plan
from tests.bench.kafka.installation import client_python
from tests.said import ROOT

_LONG_S = 300


def _command(*words: str) -> list[str]:
    return [str(client_python()), "-m", "tests.bench.kafka.drive", *words]


def _environ() -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": f"{ROOT / 'src'}{os.pathsep}{ROOT}"}


def _plan_text(plan: Plan) -> str:
    return msgspec.json.encode(plan).decode()


def _asked(*words: str) -> str:
    done = subprocess.run(
        _command(*words), capture_output=True, text=True, check=False, cwd=ROOT, env=_environ(),
        timeout=_LONG_S,
    )  # fmt: skip
    if done.returncode:
        raise RuntimeError(f"the driver failed: {done.stderr[-2000:]}")
    return done.stdout


def make_topic(address: str, shards: int, *, again: bool = False) -> None:
    """Make the topic on a broker that may just have started, anew if `again`."""
    _asked("topic", address, str(shards), *(["again"] if again else []))


def audit(plan: Plan) -> Audit:
    """Read log and heads, and hold them against one another."""
    return msgspec.json.decode(_asked("audit", _plan_text(plan)), type=Audit)


class Driver:
    """A process that owns the shards of a plan. What it says comes in by a thread of its own."""

    def __init__(self, plan: Plan) -> None:
        self.acks: list[Ack] = []
        self.said: list[str] = []
        self._process = subprocess.Popen(
            _command("own", _plan_text(plan)), stdin=subprocess.PIPE, stdout=subprocess.PIPE,
            stderr=subprocess.PIPE, text=True, cwd=ROOT, env=_environ(),
        )  # fmt: skip
        self._listener = Thread(target=self._listen, daemon=True)
        self._listener.start()

    def _listen(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            if line.startswith('{"shard"') and line.endswith("}\n"):
                self.acks.append(msgspec.json.decode(line, type=Ack))
            else:
                self.said.append(line.strip())

    @property
    def pid(self) -> int:
        """Its process id."""
        return self._process.pid

    def is_alive(self) -> bool:
        """Say whether it has not ended yet."""
        return self._process.poll() is None

    def wait_ready(self) -> bool:
        """Wait until it has its shards; False if it ended before."""
        end = time.monotonic() + _LONG_S
        while "ready" not in self.said:
            if not self.is_alive() or time.monotonic() > end or self.is_paused():
                return "ready" in self.said
            time.sleep(0.01)
        return True

    def go(self) -> None:
        """Let it begin."""
        assert self._process.stdin is not None
        self._process.stdin.write("go\n")
        self._process.stdin.flush()

    def is_paused(self) -> bool:
        """Say whether it stands still (SIGSTOP)."""
        try:
            text = Path(f"/proc/{self.pid}/stat").read_text()
        except OSError:
            return False
        return text.rpartition(")")[2].split()[0] == "T"

    def wait_paused(self) -> None:
        """Wait until it stands still. Raises RuntimeError if it ended instead."""
        end = time.monotonic() + _LONG_S
        while not self.is_paused():
            if not self.is_alive() or time.monotonic() > end:
                raise RuntimeError(f"it did not stand still: {self.said[-3:]}")
            time.sleep(0.01)

    def send(self, number: int) -> None:
        """Send a signal, if it is still there."""
        if self.is_alive():
            os.kill(self.pid, number)

    def wait(self) -> int:
        """Wait for its end and all that it said; return its exit code."""
        code = self._process.wait(_LONG_S)
        self._listener.join(10)
        return code

    def failure(self) -> str:
        """Return what it said last of why it failed."""
        assert self._process.stderr is not None
        return self._process.stderr.read()[-1000:]


@contextmanager
def drivers(*plans: Plan) -> Iterator[list[Driver]]:
    """Start drivers; whatever happens, none is left behind."""
    started = [Driver(plan) for plan in plans]
    try:
        yield started
    finally:
        for each in started:
            each.send(signal.SIGKILL)
            each.wait()

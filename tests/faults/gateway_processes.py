"""A gateway and its workers as processes, over a small fleet on disk; and what is in their memory.

The target is a file with a record of its own: it writes every call, and takes effect once a key.
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil

from vedette.domain.base.errors import BadStore
from vedette.store.sqlite import SqliteReader
from vedette.testing.harness import copy_policies
from vedette.testing.toy_fleet import GRANTS, write_agent

AGENTS = ("worker", "other")
VEDETTE = (sys.executable, "-m", "vedette")

TOOLS_PY = '''\
import json
import os
from pathlib import Path

from vedette.domain.effect import Outcome


def act(call):
    """Append one line for each call, in one write; a key that is known is no effect."""
    record = Path(call.target["path"]) / "record.jsonl"
    known = record.exists() and f'"{call.key}"' in record.read_text()
    line = {"key": call.key, "agent": call.agent, "text": call.args["text"], "effect": not known}
    file = os.open(record, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    os.write(file, (json.dumps(line) + "\\n").encode())
    os.close(file)
    return Outcome("done", {"id": call.key})


def ask(call):
    return None


def add_note(call, row):
    return []
'''


@dataclass
class GatewayProcesses:
    """The fleet in `folder`: `env` is what the gateway has in its environment beside ours.

    Of its events the last `late` are handed in by `hand_in_late`, before a start of the gateway.
    """

    folder: Path
    events: int
    late: int = 0
    env: Mapping[str, str] = field(default_factory=dict)
    gateway: subprocess.Popen[bytes] | None = None
    workers: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)

    @property
    def config(self) -> Path:
        return self.folder / "vedette.toml"

    @property
    def state(self) -> Path:
        return self.folder / "state"

    @property
    def record(self) -> Path:
        return self.folder / "target" / "record.jsonl"

    def lay_out(self, more: str = "") -> None:
        """Write agents, policies, settings, and a file of events for both agents."""
        for name in AGENTS:
            write_agent(self.folder / "agents", name, reasoner="judge", max_turns=4, calls=100)
            (self.folder / "agents" / name / "tools.py").write_text(TOOLS_PY)
        grants = "".join(GRANTS.format(name=name, mode="act") for name in AGENTS)
        copy_policies(self.folder / "policies", {"grants/data.yaml": grants})
        (self.folder / "memory").mkdir()
        (self.folder / "target").mkdir()
        self._hand_in(range(self.events - self.late))
        self.config.write_text(
            'fleet = "harbour"\nstate = "state"\n[serve]\nhttp = ""\n'
            '[isolation]\nworkers = "processes"\n'
            f'[targets.world]\nkind = "world"\npath = "{self.folder}/target"\n{more}\n'
            '[[sources]]\nkind = "jsonl"\nname = "jobs"\npath = "events.jsonl"\nrate = 400\n'
        )

    def hand_in_late(self) -> None:
        """Add the events that were kept back: whoever is asked to judge has to be there by then."""
        self._hand_in(range(self.events - self.late, self.events))

    def _hand_in(self, numbers: range) -> None:
        with (self.folder / "events.jsonl").open("a") as file:
            for number in numbers:
                file.write(json.dumps(self._event(number)) + "\n")

    def _event(self, number: int) -> dict[str, Any]:
        agent = AGENTS[number % 2]
        args = {"to": {"ref": "/charter/desk"}, "text": f"t{number}"}
        do = [{"tool": "wire.send", "args": args}]
        return {
            "specversion": "1.0", "id": f"e{number}", "source": "test", "type": f"{agent}.job",
            "subject": f"k{number % 8}", "data": {"do": do, "value": number},
        }  # fmt: skip

    # --- processes --------------------------------------------------------------------------

    def start_gateway(self) -> None:
        self.gateway = self._start(["run", "--gateway"], "gateway", {**os.environ, **self.env})

    def start_worker(self, agent: str) -> None:
        """Start `vedette worker` with an environment of its own: nothing of the gateway's."""
        file = self.folder / f"{agent}.id"
        if not file.exists():
            self.vedette("identity", "issue", agent, "--out", str(file), "--reason", "a test")
        where = f"unix:{self.state / 'workers.sock'}"
        given = ["worker", "--agent", agent, "--gateway", where, "--identity", str(file)]
        env = {name: os.environ[name] for name in ("PATH", "HOME") if name in os.environ}
        agents = str(self.folder / "agents")
        self.workers[agent] = self._start([*given, "--agents", agents], agent, env, config=False)

    def _start(
        self, given: list[str], log: str, env: dict[str, str], config: bool = True
    ) -> subprocess.Popen[bytes]:
        where = ["--config", str(self.config)] if config else []
        with (self.folder / f"{log}.log").open("ab") as file:
            return subprocess.Popen(
                [*VEDETTE, *where, *given], stdout=file, stderr=file, env=env, cwd=self.folder
            )

    def vedette(self, *given: str) -> str:
        """Run a verb; return what it printed. Raises CalledProcessError."""
        done = subprocess.run(
            [*VEDETTE, "--config", str(self.config), *given],
            check=True, capture_output=True, text=True, env={**os.environ, **self.env},
        )  # fmt: skip
        return done.stdout

    def kill(self, process: subprocess.Popen[bytes] | None) -> None:
        """Kill -9 one process; what it started has to end by itself."""
        assert process is not None
        assert process.poll() is None, self.logs()
        os.kill(process.pid, signal.SIGKILL)
        process.wait()

    def stop(self) -> None:
        for process in (self.gateway, *self.workers.values()):
            if process is not None:
                with suppress(ProcessLookupError):
                    process.kill()
                process.wait()

    def logs(self) -> str:
        return "\n".join(f"{f.name}: {f.read_text()[-1500:]}" for f in self.folder.glob("*.log"))

    # --- what came of it --------------------------------------------------------------------

    def calls(self) -> list[dict[str, Any]]:
        text = self.record.read_text() if self.record.exists() else ""
        return [json.loads(line) for line in text.splitlines(keepends=True) if line.endswith("\n")]

    def until(self, true: Callable[[], bool], within_s: float = 60) -> None:
        end = time.monotonic() + within_s
        while not true():
            assert time.monotonic() < end, self.logs()
            assert self.gateway is None or self.gateway.poll() is None, self.logs()
            time.sleep(0.01)

    def settled(self) -> bool:
        """Say whether every event's run is done, by the store."""
        with self.store() as store:
            if store is None:
                return False
            counts = store.database.rows("SELECT state, COUNT(*) FROM run GROUP BY state")
            return {str(state): int(n) for state, n in counts} == {"done": self.events}

    @contextmanager
    def store(self) -> Iterator[SqliteReader | None]:
        try:
            opened = SqliteReader(self.state)
        except BadStore:
            yield None
            return
        try:
            yield opened
        finally:
            opened.close()

    def entries(self, *kinds: str) -> list[dict[str, Any]]:
        with self.store() as store:
            assert store is not None
            return [json.loads(raw) for _, raw, _, _ in store.ledger.walk(kinds)]


def wrong_with(calls: list[dict[str, Any]], events: int) -> list[str]:
    """Return what was lost or doubled, by the target's own record."""
    effects = Counter(call["text"] for call in calls if call["effect"])
    lost = [f"lost: t{n}" for n in range(events) if not effects[f"t{n}"]]
    doubled = [f"doubled: {text}" for text, times in effects.items() if times > 1]
    keys = Counter(call["key"] for call in calls if call["effect"])
    return lost + doubled + [f"key twice: {key}" for key, times in keys.items() if times > 1]


def environment_of(pid: int, needles: Mapping[str, str]) -> set[str]:
    """Return the names of the needles that a process was given in its environment."""
    environ = Path(f"/proc/{pid}/environ").read_bytes()
    return {name for name, word in needles.items() if word.encode() in environ}


def memory_of(
    pid: int, needles: Mapping[str, str], enough: frozenset[str] | None = None
) -> set[str]:
    """Return the names of the needles in a process's memory: all that can be read of it.

    With `enough` only until those are found.
    """
    words = {name: text.encode() for name, text in needles.items()}
    found: set[str] = set()
    lines = Path(f"/proc/{pid}/maps").read_text().splitlines()
    with Path(f"/proc/{pid}/mem").open("rb", 0) as memory:
        for line in sorted(lines, key=lambda one: " rw" not in one):
            match = re.match(r"([0-9a-f]+)-([0-9a-f]+) r", line)
            if match is None or line.endswith(("[vvar]", "[vsyscall]", "[vvar_vclock]")):
                continue
            start, end = (int(part, 16) for part in match.groups())
            with suppress(OSError, ValueError):
                memory.seek(start)
                data = memory.read(end - start)
                found |= {name for name, word in words.items() if word in data}
            if enough is not None and enough <= found:
                break
    return found


def family(pid: int) -> list[int]:
    """Return a process and all that it started."""
    return [pid, *(child.pid for child in psutil.Process(pid).children(recursive=True))]

"""A daemon whose agents are called from outside: the fleet of samples/clients, as a process.

`courier` is the sample; `porter` has its code and may write only. Both are served.
"""

from __future__ import annotations

import shutil
import signal
import socket
import subprocess
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import httpx
from tests.said import START, Said, environment, vedette

from vedette.testing.harness import checkout, copy_policies

SAMPLES = checkout() / "samples" / "clients"
TOKENS = {"COURIER_TOKEN": "courier-" + "c" * 32, "PORTER_TOKEN": "porter-" + "p" * 32}
COURIER, PORTER = TOKENS.values()
MONITOR = "monitoring-" + "m" * 32
ARRIVALS = "ref:/charter/pages/arrivals"
TOML = """\
fleet = "harbour"
[content]
agents = "agents"
policies = "policies"
memory = "memory"
[targets.book]
kind = "folder"
path = "book"
[serve]
http = "127.0.0.1:{port}"
[[serve.senders]]
name = "monitoring"
token_env = "MONITOR_TOKEN"
[[serve.agents]]
agent = "courier"
token_env = "COURIER_TOKEN"
[[serve.agents]]
agent = "porter"
token_env = "PORTER_TOKEN"
"""
STORE = """\
[store]
kind = "postgresql"
url_env = "DATABASE"
"""
PORTER_GRANT = """\
porter:
  mode: act
  tools:
    book.write: {verb: write, resource: book, impact: low}
"""
# Nobody has measured how often the clients are right; their owner says that it needs no more.
UNMEASURED = "    courier: {default: 0}\n    porter: {default: 0}\n"


class ClientDaemon:
    """A running fleet in `root`; `tools` is another tools.py of its agents, `database` the URL of a
    store that others share.

    Its effects are lines of a file, and its output is kept, so that both can be looked at.
    """

    def __init__(
        self, root: Path, *, tools: str | None = None, database: str | None = None
    ) -> None:
        self.root, self.port = root, free_port()
        self.address = f"http://127.0.0.1:{self.port}"
        for name in ("courier", "porter"):
            folder = root / "agents" / name
            shutil.copytree(SAMPLES / "agents" / "courier", folder)
            file = folder / "agent.yaml"
            file.write_text(file.read_text().replace("name: courier", f"name: {name}"))
            if tools is not None:
                (folder / "tools.py").write_text(tools)
        limits = copy_policies(root / "policies") / "limits" / "data.yaml"
        before, agents, after = limits.read_text().rpartition("  agents:\n")
        limits.write_text(before + agents + UNMEASURED + after)
        with (root / "policies" / "grants" / "data.yaml").open("a") as grants:
            grants.write((SAMPLES / "grants.yaml").read_text() + PORTER_GRANT)
        (root / "memory").mkdir()
        (root / "book").mkdir()
        self._words = {**TOKENS, "MONITOR_TOKEN": MONITOR, "DATABASE": database or ""}
        (root / "vedette.toml").write_text(
            TOML.format(port=self.port) + (STORE if database is not None else "")
        )
        self.child: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> ClientDaemon:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()

    @property
    def lines(self) -> list[str]:
        """Return what was done: key and text of each effect."""
        book = self.root / "book" / "lines"
        return book.read_text().splitlines() if book.is_file() else []

    @property
    def output(self) -> str:
        """Return what the daemon wrote so far."""
        return (self.root / "output.txt").read_text(errors="replace")

    def start(self) -> None:
        """Start it, and return once it serves."""
        words = environment(**self._words)
        with (self.root / "output.txt").open("ab") as file:
            self.child = subprocess.Popen(
                [*START, "run", "--plain"], cwd=self.root, stdout=file, stderr=file, env=words
            )
        end = time.monotonic() + 90
        while time.monotonic() < end:
            with suppress(OSError):
                socket.create_connection(("127.0.0.1", self.port), 1).close()
                return
            assert self.child.poll() is None, self.output
            time.sleep(0.05)
        raise AssertionError(self.output)

    def kill(self) -> None:
        """End it as a power cut would, as far as the process goes."""
        if self.child is not None:
            self.child.send_signal(signal.SIGKILL)
            self.child.wait(30)
            self.child = None

    def verb(self, *arguments: str) -> Said:
        """Run a verb beside it."""
        return vedette(self.root, *arguments, **self._words)

    def client(self, token: str = COURIER) -> httpx.Client:
        """Return who asks over HTTP with a token."""
        headers = {"Authorization": f"Bearer {token}"}
        return httpx.Client(base_url=self.address, headers=headers, timeout=60, trust_env=False)

    def call(self, body: dict[str, Any], token: str = COURIER) -> dict[str, Any]:
        """Call a tool and return the outcome, waiting for it once if it is pending."""
        with self.client(token) as who:
            answer = who.post("/v1/agent/calls", json=body)
            assert answer.status_code == 200, answer.text
            found: dict[str, Any] = answer.json()
            if found["status"] == "pending":
                found = who.get(f"/v1/agent/calls/{found['call']}?wait_s=30").json()
        return found

    def approve(self) -> None:
        """Approve all that waits, as the person who runs it."""
        for hold in self.verb("hold", "--json").json["items"]:
            done = self.verb(
                "approve", hold["hold"], "--digest", hold["shown_digest"], "--reason", "it is right"
            )
            assert done.code == 0, done.err


def free_port() -> int:
    """Return a port of the loopback that nobody listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
    return port

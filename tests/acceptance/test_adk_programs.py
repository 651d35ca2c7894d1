"""`adk web` and `adk eval`, as ADK ships them, on the shipped agents: a tool is only *proposed*.

`adk eval` needs ADK's own extra, and an agent that runs elsewhere another one; both are in an
environment of their own (`tools/clients`).
"""

from __future__ import annotations

import importlib.metadata
import json
import os
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from tests.acceptance.test_foreign_agents import find_python

import vedette
from vedette.testing.harness import checkout
from vedette.testing.model_server import FunctionCall, ModelServer, Request, Turn

SHIPPED = [
    "anomaly_detection", "content_moderation", "inbox_triage", "memory_curator", "weekly_review",
]  # fmt: skip
KEY, MODEL = "sk-shown-to-nobody", "gemini-3-pro-preview"
ARGS = {"message": "m1", "folder": "Invoices"}
CASE = {
    "eval_id": "invoice",
    "conversation": [
        {
            "invocation_id": "1",
            "user_content": {"role": "user", "parts": [{"text": "The mail m1 is an invoice."}]},
            "final_response": {"role": "model", "parts": [{"text": "Filed."}]},
            "intermediate_data": {"tool_uses": [{"name": "mail_file", "args": ARGS}]},
        }
    ],
}

pytestmark = pytest.mark.timeout(240)


@pytest.fixture
def server() -> Iterator[ModelServer]:
    with ModelServer(files_it, keys=(KEY,)) as server:
        yield server


def files_it(request: Request) -> Turn:
    """File the mail, or call what else is offered first; then say that it is done."""
    if request.results or not request.tools:
        return Turn(("Filed.",))
    name = "mail_file" if "mail_file" in request.tools else request.tools[0]
    return Turn((FunctionCall(name, ARGS),))


@pytest.fixture
def agents(tmp_path: Path) -> Path:
    """Return the folder of the shipped agents: ADK keeps what it records beside them."""
    ignored = shutil.ignore_patterns("__pycache__")
    return Path(shutil.copytree(checkout() / "agents", tmp_path / "agents", ignore=ignored))


def environment(server: ModelServer, folder: Path) -> dict[str, str]:
    """Return the environment of one of ADK's programs: a model, and no fleet."""
    # So that another Python finds the plugins that an installed vedette brings.
    (folder / "installed").mkdir()
    path = importlib.metadata.distribution("vedette")._path  # type: ignore[attr-defined]
    (folder / "installed" / path.name).symlink_to(path)
    places = [str(Path(vedette.__file__).parents[1]), str(folder / "installed")]
    return {
        "PATH": os.environ["PATH"], "HOME": str(folder), "PYTHONPATH": ":".join(places),
        "GOOGLE_API_KEY": KEY, "GOOGLE_GEMINI_BASE_URL": server.url, "VEDETTE_MODEL": MODEL,
    }  # fmt: skip


def files(folder: Path) -> dict[str, bytes]:
    """Return the files of a folder but for what Python and ADK keep there."""
    return {
        path.relative_to(folder).as_posix(): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file() and not {"__pycache__", ".adk"}.intersection(path.parts)
    }


def test_adk_web_lists_and_runs_the_shipped_agents(
    server: ModelServer, agents: Path, tmp_path: Path
) -> None:
    """A tool is called, and what comes of it is that it was proposed: nothing is performed."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    before = files(agents)
    url = f"http://127.0.0.1:{port}"
    with (tmp_path / "web.log").open("w") as log, subprocess.Popen(
        [sys.executable, "-m", "google.adk.cli", "web", str(agents), "--port", str(port),
         "--session_service_uri", "memory://", "--artifact_service_uri", "memory://"],
        env=environment(server, tmp_path), cwd=tmp_path, stdout=log, stderr=log,
    ) as web:  # fmt: skip
        try:
            until, found = time.monotonic() + 90, None
            while found is None and time.monotonic() < until and web.poll() is None:
                try:
                    found = httpx.get(f"{url}/list-apps", timeout=10).json()
                except httpx.TransportError:
                    time.sleep(0.2)
            assert found == SHIPPED, (tmp_path / "web.log").read_text()
            answers = {name: ask(url, name) for name in SHIPPED}
        finally:
            web.terminate()
            web.wait(60)
    called = {name: responses(events) for name, events in answers.items()}
    assert called["inbox_triage"] == [("mail_file", {"status": "proposed"})]
    assert called.pop("memory_curator") == [], "it has no tool"
    assert {len(found) for found in called.values()} == {1}
    for ((_, answer),) in called.values():
        assert answer == {"status": "proposed"}
    assert files(agents) == before
    left = {path.name for path in tmp_path.iterdir()}
    assert left <= {"agents", "installed", "web.log", ".adk", ".cache", ".config"}


def ask(url: str, name: str) -> list[dict[str, Any]]:
    """Have ADK run an agent once; return its events."""
    sessions = f"{url}/apps/{name}/users/u/sessions"
    session = httpx.post(sessions, json={}, timeout=60).json()["id"]
    message = {"role": "user", "parts": [{"text": "The mail m1 is an invoice."}]}
    body = {"app_name": name, "user_id": "u", "session_id": session, "new_message": message}
    answer = httpx.post(f"{url}/run", json=body, timeout=60)
    assert answer.status_code == 200, answer.text
    events: list[dict[str, Any]] = answer.json()
    return events


def responses(events: list[dict[str, Any]]) -> list[tuple[str, Any]]:
    """Return what tools answered, by their names."""
    parts = [part for event in events for part in event["content"]["parts"]]
    found = [part["functionResponse"] for part in parts if "functionResponse" in part]
    return [(one["name"], one["response"]) for one in found]


@pytest.mark.slow
def test_adk_eval_runs_a_case_of_a_shipped_agent(
    server: ModelServer, agents: Path, tmp_path: Path
) -> None:
    """The expected call passes and another fails, so that the verdict is one."""
    environ = environment(server, tmp_path)
    (tmp_path / "config.json").write_text('{"criteria": {"tool_trajectory_avg_score": 1.0}}')
    before = files(agents)
    printed = {}
    for folder in ("Invoices", "Bookings"):
        case = json.dumps({"eval_set_id": folder, "eval_cases": [CASE]})
        (tmp_path / f"{folder}.json").write_text(case.replace("Invoices", folder))
        done = subprocess.run(
            [find_python("adk"), "-m", "google.adk.cli", "eval", str(agents / "inbox_triage"),
             f"{folder}.json", "--config_file_path", "config.json"],
            env=environ, cwd=tmp_path, capture_output=True, text=True, timeout=100, check=False,
        )  # fmt: skip
        printed[folder] = done.stdout + done.stderr
        assert "Traceback" not in printed[folder], printed[folder]
    assert "Tests passed: 1" in printed["Invoices"]
    assert "Tests failed: 1" in printed["Bookings"]
    results = [one.content for request in server.requests for one in request.results]
    assert results == [{"status": "proposed"}] * 2
    assert files(agents) == before


ELSEWHERE = """
import asyncio, sys
from pathlib import Path
from google.adk.agents.remote_a2a_agent import RemoteA2aAgent
from google.adk.apps.app import App
from google.adk.plugins.base_plugin import BasePlugin
from google.adk.runners import InMemoryRunner
from google.genai import types
from vedette.adapters.reasoners.adk.root_agent import describe_root_agent
from vedette.domain.base.errors import BadFleet

try:
    describe_root_agent(Path(sys.argv[1]), None)
except BadFleet as error:
    print("refused:", error.what)
print("asked before:", sys.stdin.readline().strip())

class DenyAll(BasePlugin):
    async def before_tool_callback(self, **given):
        return {"status": "denied"}

async def main():
    root = RemoteA2aAgent(name="other", agent_card=sys.argv[2])
    runner = InMemoryRunner(app=App(name="other", root_agent=root, plugins=[DenyAll(name="deny")]))
    session = await runner.session_service.create_session(app_name="other", user_id="u")
    message = types.Content(role="user", parts=[types.Part(text="x")])
    async for _ in runner.run_async(user_id="u", session_id=session.id, new_message=message):
        pass

asyncio.run(main())
"""
CARD = "/.well-known/agent-card.json"


@pytest.mark.slow
@pytest.mark.timeout(90)
def test_an_agent_elsewhere_is_refused_which_adk_asks_past_its_hook(
    server: ModelServer, agents: Path, tmp_path: Path
) -> None:
    """ADK's real RemoteA2aAgent is asked beside a plugin that denies every tool."""
    with socket.create_server(("127.0.0.1", 0)) as outside:
        outside.settimeout(60)
        card = f"http://127.0.0.1:{outside.getsockname()[1]}{CARD}"
        folder = agents / "inbox_triage"
        (folder / "agent.py").write_text(
            "from google.adk.agents.remote_a2a_agent import RemoteA2aAgent\n"
            f"root_agent = RemoteA2aAgent(name='inbox_triage', agent_card={card!r})\n"
        )
        with subprocess.Popen(
            [find_python("adk"), "-u", "-W", "ignore", "-c", ELSEWHERE, str(folder), card],
            env=environment(server, tmp_path), cwd=tmp_path, text=True, bufsize=1,
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        ) as child:  # fmt: skip
            try:
                assert child.stdin is not None
                assert child.stdout is not None
                first = next((line for line in child.stdout if line.startswith("refused:")), "")
                assert "root_agent is a RemoteA2aAgent" in first
                outside.setblocking(False)
                with pytest.raises(BlockingIOError):
                    outside.accept()
                outside.settimeout(60)
                child.stdin.write("nothing\n")
                asked, _ = outside.accept()
                with asked:
                    assert asked.recv(4096).startswith(f"GET {CARD} ".encode())
            finally:
                child.kill()

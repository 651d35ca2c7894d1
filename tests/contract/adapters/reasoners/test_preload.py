"""What the fork server of models' workers has done before it forks one."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from tests.model_daemon import mark_once
from tests.model_server import KEY, WIRES

from vedette.domain.model import Provider
from vedette.testing.model_server import ModelServer

# A worker's first turn, after the preload; prints which modules that imported, and which classes of
# pydantic's got their schema only then.
_FIRST_TURN = """
import asyncio, gc, sys, threading
from pathlib import Path
from vedette.app.model_workers import preloaded_modules
from vedette.app.worker_main import build_model_runner, preload_modules
from vedette.adapters.reasoners.workers.model_worker import ModelParts
from vedette.config.models import ModelPlan
from vedette.domain.event import Event
from vedette.domain.memory import Briefing
from vedette.domain.model import Model

folder, provider, served, url, key = sys.argv[1:]
plan = ModelPlan(Model("asked", provider=provider, served_name=served), url)
preload_modules(preloaded_modules([plan]))
assert threading.active_count() == 1, threading.enumerate()
known = set(sys.modules)

from pydantic import BaseModel

def incomplete():
    return {one for one in gc.get_objects()
            if isinstance(one, type) and issubclass(one, BaseModel)
            and not one.__dict__.get("__pydantic_complete__", True)}

before = incomplete()
parts = ModelParts(folder, None, 30.0, (None, None), (plan,), {"asked": key})
runner = build_model_runner("notes", parts)
event = Event(source="test", id="1", type="note.due", subject="1", data={})
briefing = Briefing(run="run_a", agent="notes", key="1", position=1, previous=0, turn=1,
                    event=event, charter={}, registry={}, model="asked")
judgement = asyncio.run(runner.reason(briefing))
assert judgement.proposals, judgement
print(*sorted(set(sys.modules) - known))
print(*sorted(f"{one.__module__}.{one.__qualname__}" for one in before - incomplete()))
"""
_AGENT_YAML = """\
version: 1
name: notes
title: Writes marks
owner: test@example.org
model: asked
mode: act
order_by: subject
triggers: [{on: note.due}]
tools:
  - {name: mark.write, verb: write, resource: mark, args: {event: string, mark: string},
     sinks: [/event], settles: none, function: write}
"""


# Packages of which a client imports more when it is first asked.
_LATER = {
    "gemini": set[str](), "openai": {"openai", "numpy"}, "anthropic": {"httpcore2", "truststore"},
    "ollama": {"litellm", "tiktoken", "tiktoken_ext", "openai", "jiter"},
}  # fmt: skip


@pytest.mark.parametrize("provider", _LATER)
def test_a_forked_worker_has_what_its_first_turn_takes(provider: Provider, tmp_path: Path) -> None:
    folder = tmp_path / "notes"
    folder.mkdir()
    (folder / "agent.yaml").write_text(_AGENT_YAML)
    (folder / "instruction.md").write_text("Write a mark.\n")
    (folder / "tools.py").write_text('def write(call):\n    """Write a mark."""\n')
    served, path = WIRES[provider]
    with ModelServer(mark_once, keys=(KEY,)) as server:
        arguments = [str(folder), provider, served, server.url + path, KEY]
        said = subprocess.run(
            [sys.executable, "-c", _FIRST_TURN, *arguments],
            capture_output=True, text=True, check=False,
        )  # fmt: skip
    assert said.returncode == 0, said.stderr
    imported, completed = (line.split() for line in said.stdout.split("\n")[:2])
    assert {name.split(".")[0] for name in imported} <= _LATER[provider], imported
    assert not [name for name in completed if name.startswith("google.")]

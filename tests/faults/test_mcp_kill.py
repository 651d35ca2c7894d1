"""kill -9 of a fleet in the middle of a call of an MCP server's tool: what its tool declares.

A real fleet in a process of its own, and a real server that has begun what it was asked.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from vedette.adapters.mcp.probe import list_server
from vedette.domain.ports.plugin import BoxSettings
from vedette.testing.toy_fleet import World, toy_fleet

CHILD = Path(__file__).parent / "mcp_child.py"
SERVER = Path(__file__).parents[1] / "contract/adapters/mcp/raw_server.py"
OLD = (
    "args: {to: string, text: string},\n"
    "     sinks: [/to], settles: none, function: act, target: world, timeout: 30s}"
)
SCHEMA = {"type": "object", "properties": {"to": {"type": "string"}, "text": {"type": "string"}}}


def write_fleet(folder: Path, settles: str) -> None:
    """Write a fleet whose tool bell.ring is the server's `work`."""
    table = {"kind": "mcp", "command": [sys.executable, str(SERVER)], "read": [str(SERVER)]}
    listed = asyncio.run(list_server(table, BoxSettings(folder / "programs")))
    digest = {one["name"]: one["digest"] for one in listed.tools}["work"]
    yaml = toy_fleet(folder, World()).content / "agents" / "worker" / "agent.yaml"
    text = yaml.read_text()
    assert text.count(OLD) == 1
    tool = json.dumps({"tool": "work", "digest": digest})
    mine = (
        f"schema: {json.dumps(SCHEMA)},\n     sinks: [/to], settles: {settles}, mcp: {tool}, "
        "target: server, timeout: 10s}"
    )
    yaml.write_text(text.replace(OLD, mine))


def start_fleet(folder: Path) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, str(CHILD), str(folder), str(SERVER)], stdout=subprocess.PIPE, text=True
    )


@pytest.mark.parametrize("settles", ["none", "idempotent"])
def test_a_call_in_flight_at_kill_9_is_settled_as_its_tool_declares(
    tmp_path: Path, settles: str
) -> None:
    write_fleet(tmp_path, settles)
    record = tmp_path / "given" / "record"
    first = start_fleet(tmp_path)
    try:
        end = time.monotonic() + 60
        while not record.exists():
            assert time.monotonic() < end, "it was never called"
            time.sleep(0.005)
    finally:
        os.kill(first.pid, signal.SIGKILL)
        first.communicate()
    second = start_fleet(tmp_path)
    try:
        out, _ = second.communicate(timeout=80)
    finally:
        second.kill()
        second.wait()
    assert second.returncode == 0
    steps = [line.split() for line in record.read_text().splitlines()]
    keys = {key for _, key in steps}
    assert len(keys) == 1
    if settles == "none":
        # Nobody can know: it is not called again, and a person decides.
        assert [step for step, _ in steps] == ["begun"]
        assert json.loads(out)[1] == ["unknown"]
    else:
        assert [step for step, _ in steps] == ["begun", "begun", "done"]
        assert json.loads(out)[:2] == ["done", ["done"]]

"""The small fleet of the start benchmark: one agent, one tool, the shipped policies."""

from __future__ import annotations

import json
import shutil
import socket
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent

AGENT = """\
version: 1
name: beacon
title: Lights the lamp that an event names
owner: desk@example.org
mode: act
order_by: subject
triggers: [{on: lamp.asked}]
charter: {lamps: [north, south]}
tools:
  - name: lamp.light
    verb: light
    resource: lamp
    args: {lamp: string}
    sinks: [/lamp]
    settles: idempotent
    function: light
    target: record
"""

JUDGE = '''\
from vedette.judging import Judge as Base
from vedette.judging import Judgement, Proposal, Ref


class Judge(Base):
    """Proposes to light a lamp of the charter."""

    def judge(self, seen, briefing):
        return Judgement("asked", 1.0, (Proposal("lamp.light", {"lamp": Ref("/charter/lamps/0")}),))
'''

TOOLS = '''\
import os
import time

from vedette.domain.effect import Outcome


def light(call):
    """Note when it was called, whole lines only."""
    at = f"{time.time():.6f}\\n".encode()
    record = os.open(call.target["path"], os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    try:
        os.write(record, at)
    finally:
        os.close(record)
    return Outcome("done", {"id": call.key})
'''

GRANT = """\
beacon:
  mode: act
  owner: desk@example.org
  tools:
    lamp.light: {verb: light, resource: lamp, impact: low}
"""
SETTINGS = """\
fleet = "bench"
state = "state"
[serve]
http = "127.0.0.1:{port}"
{more}[targets.record]
kind = "record"
path = {record}
[[sources]]
kind = "jsonl"
name = "lamps"
path = "events.jsonl"
rate = 0
"""
LIMIT = "    beacon: {minute: 10000000, hour: 10000000, day: 100000000}\n"


@dataclass(frozen=True, slots=True)
class Crowd:
    """A fleet of many such agents: where it lies, where it serves, and what wakes each."""

    config: Path
    port: int
    types: tuple[str, ...]
    record: Path
    events: Path


@dataclass(frozen=True, slots=True)
class SmallFleet:
    """Where it lies. `record` is what its target wrote: the moment of each call."""

    config: Path
    state: Path
    record: Path
    events: Path


def events(count: int, first: int = 0, type: str = "lamp.asked") -> str:
    """Return CloudEvents, one a line; each of a key of its own."""
    return "".join(
        json.dumps(
            {
                "specversion": "1.0",
                "id": f"{type} {number}",
                "source": "bench:lamps",
                "type": type,
                "subject": f"keeper {number % 1000}",
                "data": {"number": number},
            }
        )
        + "\n"
        for number in range(first, first + count)
    )


def small_fleet(folder: Path, lines: str) -> SmallFleet:
    """Write the fleet into `folder`, with `lines` for its source."""
    _write_agent(folder / "agents" / "beacon", AGENT)
    (folder / "memory").mkdir()
    shutil.copytree(ROOT / "policies", folder / "policies")
    _after(folder / "policies" / "grants" / "data.yaml", GRANT, "anomaly_detection:\n", before=True)
    _after(folder / "policies" / "limits" / "data.yaml", LIMIT, "  agents:\n")
    # Of its own, as the tools reach all of the folder in which their target lies.
    (folder / "target").mkdir()
    record, source = folder / "target" / "calls.log", folder / "events.jsonl"
    source.write_text(lines)
    settings = SETTINGS.format(port=0, more="", record=json.dumps(str(record)))
    (folder / "vedette.toml").write_text(settings)
    return SmallFleet(folder / "vedette.toml", folder / "state", record, source)


def crowd(folder: Path, agents: int, *, idle: str = "5m") -> Crowd:
    """Write a fleet of `agents` agents into `folder`; its source goes on reading its file.

    `idle` is how long an agent's process is kept without work.
    """
    folder.mkdir(parents=True)
    (folder / "memory").mkdir()
    shutil.copytree(ROOT / "policies", folder / "policies")
    names = [f"beacon_{number:03d}" for number in range(1, agents + 1)]
    for name in names:
        text = AGENT.replace("name: beacon", f"name: {name}").replace("lamp.asked", f"{name}.asked")
        _write_agent(folder / "agents" / name, text)
    grants = "".join(GRANT.replace("beacon:", f"{name}:") for name in names)
    limits = "".join(LIMIT.replace("beacon:", f"{name}:") for name in names)
    _after(
        folder / "policies" / "grants" / "data.yaml", grants, "anomaly_detection:\n", before=True
    )
    _after(folder / "policies" / "limits" / "data.yaml", limits, "  agents:\n")
    (folder / "target").mkdir()
    record, source = folder / "target" / "calls.log", folder / "events.jsonl"
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    more = f'[isolation]\nidle = "{idle}"\n'
    settings = SETTINGS.format(port=port, more=more, record=json.dumps(str(record)))
    (folder / "vedette.toml").write_text(settings)
    types = tuple(f"{name}.asked" for name in names)
    return Crowd(folder / "vedette.toml", port, types, record, source)


def _write_agent(agent: Path, declared: str) -> None:
    agent.mkdir(parents=True)
    (agent / "__init__.py").touch()
    for name, text in (("agent.yaml", declared), ("judge.py", JUDGE), ("tools.py", TOOLS)):
        (agent / name).write_text(text)
    (agent / "instruction.md").write_text("Light the lamp.\n")


def _after(path: Path, text: str, mark: str, *, before: bool = False) -> None:
    """Put `text` behind (or before) the first `mark` of a file, which must be there."""
    found = path.read_text()
    assert mark in found, (path, mark)
    path.write_text(found.replace(mark, text + mark if before else mark + text, 1))

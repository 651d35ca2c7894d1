"""The fleet of the soak: the agent of the line bench, and a crowd of agents that ask a person.

Every agent of the crowd has a folder, a judge, a grant and a trigger of its own; its one tool is of
high impact, so each of its runs waits for an approval that nobody gives.
"""

from __future__ import annotations

from pathlib import Path

from tests.bench.bench_fleet import (
    AGENT,
    AGENT_YAML,
    GRANT,
    JUDGE_PY,
    TOOL_OF,
    TOOLS_PY,
    write_content,
)
from tests.bench.bench_fleet import SOURCE as SOURCE
from tests.bench.target import marks_file

from vedette.domain.event import ENVELOPE, Event
from vedette.testing.harness import FleetHarness

TYPE = "bench.reading"


def keeper(number: int) -> str:
    """Return the name of an agent of the crowd."""
    return f"keeper_{number:04d}"


def open_flat_fleet(folder: Path, agents: int) -> FleetHarness:
    """Return the fleet of `agents` agents below `folder`, with its content written if need be."""
    content = folder / "content"
    if not (content / "written").exists():
        write_content(content)
        _write_crowd(content, agents - 1)
        (content / "written").write_text(str(agents))
    there = int((content / "written").read_text())
    if there != agents:
        raise SystemExit(f"flat: {folder} holds a fleet of {there} agents, not {agents}")
    targets = {"marks": {"kind": "file", "path": str(marks_file(folder))}}
    return FleetHarness(folder, content=content, targets=targets)


def _write_crowd(content: Path, count: int) -> None:
    memory = next(line for line in AGENT_YAML.splitlines(True) if line.startswith("memory:"))
    grants = []
    for name in map(keeper, range(count)):
        agent = content / "agents" / name
        agent.mkdir()
        text = AGENT_YAML.replace(memory, "").replace(TYPE, f"{TYPE}.{name}")
        (agent / "agent.yaml").write_text(text.replace(AGENT, name))
        for name_of_file, said in (
            ("__init__.py", ""),
            ("judge.py", JUDGE_PY),
            ("tools.py", TOOLS_PY + TOOL_OF["async"]),
            ("target.py", Path(__file__).with_name("target.py").read_text(encoding="utf-8")),
            ("instruction.md", "Record the mark of every reading.\n"),
        ):
            (agent / name_of_file).write_text(said)
        reads = "  memory: [bench/gauges]\n"
        assert reads in GRANT
        grants.append(GRANT.replace(AGENT, name).replace(reads, "").replace("low", "high"))
    with (content / "policies" / "grants" / "data.yaml").open("a", encoding="utf-8") as file:
        file.write("".join(grants))


def asking(agent: str, name: str, subject: str) -> Event:
    """Return an event that makes an agent of the crowd ask a person."""
    data = {"value": 20.5, "note": "x" * 960}
    kind = f"{TYPE}.{agent}"
    return Event(SOURCE, name, kind, subject, None, data, vouched=ENVELOPE)

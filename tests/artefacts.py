"""A toy fleet whose agents are told of large outcomes by reference, for tests of artefacts."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from vedette.domain.action import Proposal
from vedette.domain.base.canonical import sha256_hex
from vedette.domain.effect import Outcome
from vedette.domain.memory import Briefing
from vedette.domain.ports.reasoner import ReasonerJudgement
from vedette.testing.harness import FleetHarness
from vedette.testing.toy_fleet import GRANTS, World, toy_fleet

LOOK = Proposal("book.look", {"name": "all"})
READ_GRANT = "    artefact.read: {verb: read, resource: artefact, impact: low}\n"


def long_text(length: int = 2_000_000) -> str:
    """Return a text that compresses badly, in which no two lines are alike."""
    lines = range(length // 31 + 1)  # of 32 characters each
    made = (f"{number:08d} {sha256_hex(str(number).encode())[:20]} é\n" for number in lines)
    return "".join(made)[:length]


def answer(data: dict[str, Any]) -> Any:
    """Return what makes each look of a World answer these data."""
    return lambda call: Outcome("done", data) if call.tool.startswith("book.") else None


def artefact_fleet(
    folder: Path,
    world: World,
    *,
    agents: tuple[str, ...] = ("worker",),
    grant: bool = True,
    **more: Any,
) -> FleetHarness:
    """Write a toy fleet whose agents have artefacts, and return it, not opened."""
    grants = "".join(
        GRANTS.format(name=name, mode="act") + (READ_GRANT if grant else "") for name in agents
    )
    extra = {"grants/data.yaml": grants, **more.pop("extra", {})}
    fleet = toy_fleet(folder, world, agents=agents, extra=extra, **more)
    for name in agents:
        edit_agent(fleet, name, "charter:", "artefacts: true\ncharter:")
    return fleet


def edit_agent(fleet: FleetHarness, name: str, old: str, new: str) -> None:
    """Change the agent.yaml of a toy agent before it is opened."""
    path = fleet.content / "agents" / name / "agent.yaml"
    text = path.read_text("utf-8")
    assert old in text
    path.write_text(text.replace(old, new, 1), encoding="utf-8")


def say(*proposals: Proposal, final: bool = False) -> ReasonerJudgement:
    """Return a turn of a script."""
    return ReasonerJudgement(label="go on", confidence=1.0, proposals=proposals, final=final)


def outcomes_of(briefing: Briefing) -> list[dict[str, Any]]:
    """Return the data of all outcomes that a briefing tells of, oldest first."""
    return [
        answer["data"]
        for turn in briefing.turns
        for answer in turn["answers"]
        if answer["status"] == "done"
    ]


def find_references(value: Any) -> Iterator[str]:
    """Yield the ids that are told of in the form of a reference anywhere in a value."""
    if isinstance(value, dict):
        if isinstance(id := value.get("artefact"), str):
            yield id
        value = list(value.values())
    if isinstance(value, list):
        for item in value:
            yield from find_references(item)


def read(id: Any, **range: int) -> Proposal:
    """Return the proposal to read a range of an artefact."""
    return Proposal("artefact.read", {"id": id, **range})

"""Killed at any point of a run with a large outcome: no reference to nothing, none kept twice."""

from __future__ import annotations

import asyncio
import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from tests.artefacts import (
    LOOK,
    answer,
    artefact_fleet,
    find_references,
    long_text,
    outcomes_of,
    read,
    say,
)

from vedette.domain.base import failpoint
from vedette.domain.memory import Briefing
from vedette.domain.ports.reasoner import ReasonerJudgement
from vedette.testing.faults import run_in_child
from vedette.testing.harness import FleetHarness
from vedette.testing.scripted import ScriptedReasoner
from vedette.testing.toy_fleet import World, job

TEXT = long_text(300_000)
PART = {"offset": 150_000, "length": 100}


def reads(briefing: Briefing) -> ReasonerJudgement:
    return say(read(outcomes_of(briefing)[0]["text"]["artefact"], **PART))


def fleet_of(folder: Path, content: Path) -> FleetHarness:
    """Return the fleet whose content was written below `content`, with its state in `folder`."""
    script = ScriptedReasoner([say(LOOK), reads])
    return FleetHarness(
        folder,
        content=content / "content",
        policies=content / "policies",
        reasoners={"adk": script},
        targets={"world": {"kind": "world", "world": World(answer=answer({"text": TEXT}))}},
    )


async def play(folder: Path, content: Path) -> None:
    """Handle the event; only what happens with it counts as a point to die at."""
    hook, failpoint.hook = failpoint.hook, None
    async with fleet_of(folder, content) as fleet:
        failpoint.hook = hook
        await fleet.send(job("1"))
        await fleet.wait_until_idle()
        failpoint.hook = None


async def look(folder: Path, content: Path) -> None:
    """Write down what there is before anything is handled, go on, and write down the end."""
    fleet = fleet_of(folder, content)
    async with fleet:
        await fleet.send(job("1"))  # it is delivered again
        await fleet.wait_until_idle()
        found = state_of(fleet)
    (folder / "found.json").write_text(json.dumps(found))


def state_of(fleet: FleetHarness) -> dict[str, Any]:
    told: list[str] = []
    for entry in fleet.entries("effect.done"):
        if entry["tool"] == "book.look":
            told += find_references(fleet.body(entry["seq"])["data"])
    runs = fleet.app.store.runs
    kept = [runs.artefact(id) for id in told]
    last = [row for row in fleet.actions(job("1")) if row.tool == "artefact.read"][-1]
    return {
        "stored": len(fleet.entries("artefact.stored")),
        "outcomes": sum(entry["tool"] == "book.look" for entry in fleet.entries("effect.done")),
        "whole": [one is not None and one.artefact is not None and one.artefact.text == TEXT
                  for one in kept],
        "read": json.loads(last.answer or b"{}")["data"]["text"],
        "runs": [run.state for run in fleet.runs(job("1"))],
    }  # fmt: skip


@pytest.mark.forks
def test_killed_anywhere_reference_and_content_stand_together(tmp_path: Path) -> None:
    artefact_fleet(tmp_path / "made", World(), reasoner="adk")
    content = tmp_path / "made"

    async def begin() -> None:
        async with fleet_of(tmp_path / "calm", content) as fleet:
            await fleet.wait_until_idle()

    asyncio.run(begin())
    expected = {
        "stored": 1, "outcomes": 1, "whole": [True], "runs": ["done"],
        "read": TEXT[150_000:150_100],
    }  # fmt: skip
    deaths = 0
    while True:
        folder = tmp_path / f"k{deaths + 1}"
        shutil.copytree(tmp_path / "calm", folder)
        died = run_in_child(lambda: asyncio.run(play(folder, content)), die_at=deaths + 1)  # noqa: B023
        assert not died.error, died.error
        ended = run_in_child(lambda: asyncio.run(look(folder, content)))  # noqa: B023
        assert not ended.error, ended.error
        assert json.loads((folder / "found.json").read_text()) == expected, died.last_point
        shutil.rmtree(folder)
        if not died.killed:
            break
        deaths += 1
    assert deaths > 10, "so many points has a run with a call"

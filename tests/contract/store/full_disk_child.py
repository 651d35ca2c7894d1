"""A fleet whose disk fills up under its calls: full_disk_child.py SMALL OUTSIDE.

The state lies on SMALL, content and what happened OUTSIDE. Writes OUTSIDE/told.json.
"""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from tests.contract.store.test_store_failure import TOOLS, Gate, calls_under_way

from vedette.testing.harness import FleetHarness
from vedette.testing.toy_fleet import World, toy_fleet

SETTINGS = """\
fleet = "harbour"
[content]
agents = "content/agents"
memory = "content/memory"
[targets.world]
kind = "webhook"
url = "http://127.0.0.1:9/"
"""
VERBS = {
    "run": ["run", "--plain", "--until-idle"],
    "stop": ["stop", "--all", "--reason", "a test"],
    "backup": ["backup"],
}


def free(small: Path) -> int:
    """Return how many bytes the disk has left."""
    room = os.statvfs(small)
    return room.f_bavail * room.f_frsize


def fill(small: Path) -> Path:
    """Take all that is free; return the file that holds it."""
    ballast = small / "ballast"
    with ballast.open("ab", buffering=0) as file:
        for size in (1 << 20, 4096):
            try:
                while True:
                    file.write(bytes(size))
            except OSError:
                continue
    return ballast


def verbs(small: Path, outside: Path) -> dict[str, tuple[int, str]]:
    """Give verbs whose fleet has its state on the full disk."""
    (outside / "vedette.toml").write_text(SETTINGS, encoding="utf-8")
    environ = {**os.environ, "VEDETTE_STATE": str(small / "state")}
    said = {}
    for name, verb in VERBS.items():
        given = [*verb, str(small / "copy")] if name == "backup" else verb
        done = subprocess.run(
            [sys.executable, "-m", "vedette", "--config", str(outside), *given],
            capture_output=True, text=True, timeout=60, check=False, env=environ,
        )  # fmt: skip
        said[name] = (done.returncode, done.stdout + done.stderr)
    return said


async def main(small: Path, outside: Path) -> None:
    gate = Gate()
    world = World(answer=gate)
    given = toy_fleet(outside, world)
    fleet = FleetHarness(
        small, content=given.content, policies=given.policies, targets=given.targets
    )
    told: dict[str, Any] = {}
    async with fleet:
        await calls_under_way(fleet, world, TOOLS[:1])
        ballast = fill(small)
        told["free_when_full"] = free(small)
        gate.open.set()
        while fleet.app.store.steps.is_ready:
            fill(small)
            await asyncio.sleep(0.02)
        await asyncio.sleep(0.1)
        told["calls_before"] = len(world.calls)
        told["stop"] = await fleet.app.commands.stop(fleet.order(), all=True)
        await asyncio.sleep(1)
        told["calls_after"] = len(world.calls)
        told["done_when_full"] = sum(
            row.effect == "done"
            for run in fleet.app.store.runs.runs_page(
                agent=None, state=None, before=None, limit=100
            )
            for row in fleet.app.store.runs.actions(run.id)
        )
        fill(small)
    fill(small)
    told["verbs"] = verbs(small, outside)
    ballast.unlink()
    async with fleet:
        told["stops_after"] = [list(stop) for stop in fleet.app.store.policy.stop_scopes()]
        await fleet.app.commands.resume(fleet.order(), all=True)
        await fleet.wait_until_idle(30)
    told["keys_at_the_end"] = dict(world.keys())
    (outside / "told.json").write_text(json.dumps(told), encoding="utf-8")


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1]), Path(sys.argv[2])))

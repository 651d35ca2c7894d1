"""A fleet that publishes, in a process of its own which a test has killed at a crash point.

sink_child.py FOLDER PROJECT POINT   sends one job; dies by SIGKILL at POINT, "" for never
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from pathlib import Path

from vedette.domain.base import failpoint
from vedette.testing.harness import FleetHarness
from vedette.testing.toy_fleet import World, job, send_proposal, toy_fleet

# What an agent's tools.py looks like that publishes.
TOOLS_PY = """\
from vedette.domain.effect import RowWrite
from vedette.sdk import publish


def add_note(call, row):
    return [RowWrite(f"{call.agent}_notes", call.args["key"], {"text": call.args["text"]})]


def act(call):
    return publish(call, {"text": call.args["text"]}, type="harbour.notice", subject="berth-7")


def ask(call):
    return None
"""


def publishing_fleet(folder: Path, project: str, *, workers: bool = False) -> FleetHarness:
    """Return a fleet whose tools publish to the topic `notices`; it may have run before."""
    if (folder / "content").exists():
        fleet = FleetHarness(
            folder, content=folder / "content", policies=folder / "policies", workers=workers
        )
    else:
        fleet = toy_fleet(folder, World(), workers=workers)
        (folder / "content" / "agents" / "worker" / "tools.py").write_text(TOOLS_PY)
    fleet.targets = {
        "world": {"kind": "pubsub", "project": project, "topic": "notices", "ordered": True}
    }
    return fleet


async def main(folder: Path, project: str, point: str) -> None:
    def die(reached: str) -> None:
        if reached == point:
            os.kill(os.getpid(), signal.SIGKILL)

    async with publishing_fleet(folder, project) as fleet:
        failpoint.hook = die
        await fleet.send(job("1", send_proposal("the berth is free")))
        await fleet.wait_until_idle()


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1]), sys.argv[2], sys.argv[3]))

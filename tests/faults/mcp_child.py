"""A fleet in a process of its own that calls a tool of an MCP server: mcp_child.py FOLDER SERVER.

Sends one event, which is a duplicate from the second life on, and ends once its run is done or has
nobody but a person to wait for; prints the run's state and those of its effects.
"""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path

from vedette.testing.harness import FleetHarness
from vedette.testing.toy_fleet import job, send_proposal

RING = job("1", send_proposal(tool="bell.ring"))


async def main(folder: Path, server: str) -> None:
    fleet = FleetHarness(
        folder,
        content=folder / "content",
        policies=folder / "policies",
        targets={
            "world": {},
            "server": {
                "kind": "mcp", "command": [sys.executable, server], "read": [server],
                "write": [str(folder / "given")],
                "environment": {"RECORD": str(folder / "given/record")},
            },
        },
        workers=True,
    )  # fmt: skip
    async with fleet:
        await fleet.send(RING)
        while True:
            (run,), actions = fleet.runs(RING), fleet.actions(RING)
            effects = [action.effect for action in actions]
            if run.state in ("done", "dead") or "unknown" in effects:
                break
            fleet.app.dispatcher.wake_due()
            await asyncio.sleep(0.01)
        print(json.dumps([run.state, effects, [action.waits for action in actions]]))


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1]), sys.argv[2]))

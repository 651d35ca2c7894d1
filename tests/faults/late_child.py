"""A fleet in a process of its own whose one tool calls a slow target: late_child.py FOLDER PORT.

Sends one event, which is a duplicate from the second life on, and ends once its run has.
"""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

from vedette.testing.harness import FleetHarness
from vedette.testing.toy_fleet import job, send_proposal

ORDER = job("1", send_proposal(tool="order.place"))


async def main(folder: Path, port: int) -> None:
    base = f"http://127.0.0.1:{port}"
    fleet = FleetHarness(
        folder,
        content=folder / "content",
        policies=folder / "policies",
        targets={"shop": {"kind": "http", "base_url": base, "private": True}, "world": {}},
    )
    async with fleet:
        await fleet.send(ORDER)
        while fleet.runs(ORDER)[0].state not in ("done", "dead"):
            fleet.app.dispatcher.wake_due()
            await asyncio.sleep(0.01)


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1]), int(sys.argv[2])))

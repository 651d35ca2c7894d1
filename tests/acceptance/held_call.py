"""A call held for MINUTES real minutes, asked about over HTTP and over MCP with hang-ups between.

    python -m tests.acceptance.held_call [MINUTES]

Not a test of the gate: it takes the time that it is about. Prints one JSON object.
"""

from __future__ import annotations

import asyncio
import json
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from tests.clients import DESK, client, client_fleet, post_call, served
from tests.contract.interfaces.test_mcp_server import call, connected

from vedette.testing.toy_fleet import World


async def hold(folder: Path, minutes: float) -> dict[str, Any]:
    """Call over both ways in, hang up again and again, approve at the end."""
    world = World()
    async with client_fleet(folder, world) as fleet, served(fleet) as address:
        began = time.monotonic()
        async with client(address) as plain, connected(address) as spoken:
            held = {
                "http": await post_call(plain, "big.send", {"to": DESK, "text": "http"}, "k"),
                "mcp": await call(spoken, "big_send", {"to": DESK, "text": "mcp"}, None),
            }
        statuses: dict[str, list[str]] = {name: [found["status"]] for name, found in held.items()}
        hangs_up = 0
        while time.monotonic() - began < 60 * minutes:
            # Each way: one who waits and hangs up, then one who asks and is answered.
            async with client(address) as plain, connected(address) as spoken:
                outcome = f"/v1/agent/calls/{held['http']['call']}"
                cut = [
                    asyncio.create_task(plain.get(f"{outcome}?wait_s=30")),
                    asyncio.create_task(
                        call(spoken, "outcome", {"call": held["mcp"]["call"], "wait_s": 30})
                    ),
                ]
                await asyncio.sleep(5)
                for task in cut:
                    task.cancel()
                await asyncio.gather(*cut, return_exceptions=True)
                hangs_up += len(cut)
            async with client(address) as plain, connected(address) as spoken:
                statuses["http"].append((await plain.get(f"{outcome}?wait_s=5")).json()["status"])
                again = await call(spoken, "outcome", {"call": held["mcp"]["call"], "wait_s": 5})
                statuses["mcp"].append(again["status"])
        held_s = time.monotonic() - began
        before = world.effects()
        async with client(address) as plain, connected(address) as spoken:
            plain_wait = asyncio.create_task(plain.get(f"{outcome}?wait_s=30"))
            spoken_wait = asyncio.create_task(
                call(spoken, "outcome", {"call": held["mcp"]["call"], "wait_s": 30})
            )
            await asyncio.sleep(0.5)
            asked = time.monotonic()
            for found in held.values():
                (row,) = fleet.app.store.runs.actions(found["call"])
                await fleet.approve(row)
            by_http, by_mcp = (await plain_wait).json(), await spoken_wait
            told_ms = round(1000 * (time.monotonic() - asked))
            again = await call(spoken, "big_send", {"to": DESK, "text": "mcp"}, None)
        return {
            "held_s": round(held_s, 1), "hang_ups": hangs_up,
            "asked_while_held": {name: len(found) for name, found in statuses.items()},
            "statuses_while_held": sorted({one for each in statuses.values() for one in each}),
            "effects_while_held": before, "outcomes": [by_http["status"], by_mcp["status"]],
            "told_ms_after_approval": told_ms, "retry_is_the_same_call": again == by_mcp,
            "effects": world.effects(), "permits": fleet.outcomes().get("permit"),
        }  # fmt: skip


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as place:
        minutes = float(sys.argv[1]) if len(sys.argv) > 1 else 5.0
        print(json.dumps(asyncio.run(hold(Path(place), minutes))))

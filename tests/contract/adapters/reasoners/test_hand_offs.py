"""A task's context on the whole line: it stays small, hands off, and is begun again.

The provider's own client and a strict server; gateway, Rego, store and dispatcher are the real
ones.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tests.task_fleet import BOUND, GOAL, Greeter, asks_hand_off, fenced, size, task_fleet

from vedette.testing.harness import FleetHarness
from vedette.testing.model_server import ModelServer
from vedette.testing.toy_fleet import World, job


def models(fleet: FleetHarness) -> list[dict[str, Any]]:
    return [fleet.body(e["seq"])["model"] for e in fleet.entries("turn.reasoned")]


def opens(fleet: FleetHarness) -> list[str]:
    return [one["opens"] for one in models(fleet)]


@pytest.mark.parametrize("provider", ["gemini", "anthropic", "openai"])
async def test_a_context_hands_off_before_it_is_full(tmp_path: Path, provider: str) -> None:
    world, model = World(), Greeter(45)
    with ModelServer(model) as server:
        fleet = task_fleet(tmp_path, server, provider=provider, world=world, most=45)
        async with fleet:
            event = job("1")
            await fleet.send(event)
            await fleet.wait_until_idle()
            assert {one.status for one in server.exchanges} == {200}
            assert world.effects("wire.send") == 45
            found = opens(fleet)
    asked = [at for at, one in enumerate(model.requests) if asks_hand_off(one)]
    assert len(asked) >= 2
    assert [at for at, why in enumerate(found) if why] == [0, *(at + 1 for at in asked)]
    assert {why for why in found if why} == {"first", "hand-off"}
    for request in model.requests:
        assert fenced(request, "task")["goal"] == GOAL
        assert size(request) <= 1.2 * BOUND
    for at in asked:
        told = fenced(model.requests[at + 1], "hand-off")
        assert told["by"] == "model"
        assert told["words"]["next_step"].startswith("Greeting ")

"""Google's own sample agents (tests/samples_adk), as they are: imported, and one is run."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace
from tests.contract.app.test_agent_import import CHOICES, settings, written
from tests.model_entries import make_plan
from tests.model_server import KEY
from tests.workers import until

from vedette.app.agent_import import import_adk_agent
from vedette.config.settings import Settings
from vedette.domain.event import Event
from vedette.operations.agent_import import NotImported
from vedette.testing.harness import FleetHarness
from vedette.testing.model_server import FunctionCall, ModelServer, Request, Turn
from vedette.testing.toy_fleet import drop_bars

__all__ = ["settings", "written"]  # fixtures

SAMPLES = Path(__file__).parents[2] / "samples_adk"
NUMBERS = [4, 7, 91, 97]
GRANT = """
hello_world:
  mode: act
  tools:
    check_prime: {verb: call, resource: hello_world, impact: low}
    roll_die: {verb: call, resource: hello_world, impact: low}
"""
pytestmark = [
    pytest.mark.timeout(120),
    pytest.mark.skipif(sys.platform != "linux", reason="what runs is boxed by Linux only"),
]


def plays(request: Request) -> Turn:
    """Roll a die, look at some numbers, then say that it is done."""
    calls = [
        FunctionCall("roll_die", {"sides": 6}), FunctionCall("check_prime", {"nums": NUMBERS}),
    ]  # fmt: skip
    return Turn((calls[request.turn],)) if request.turn < len(calls) else Turn(("Done.",))


async def test_hello_world_is_imported_and_run(settings: Settings, tmp_path: Path) -> None:
    """Event, model, gateway, hands: its two functions are called once each, in their box."""
    with ModelServer(plays, keys=(KEY,)) as server:
        plan = make_plan(tmp_path, server)
        own = replace(settings, models={"fast": plan})
        choices = replace(CHOICES, name="hello_world", sinks={"check_prime": (), "roll_die": ()})
        with pytest.raises(NotImported) as refused:
            await asyncio.to_thread(import_adk_agent, own, SAMPLES / "hello_world", choices)
        assert {one.name for one in refused.value.refusals} == {"roll_die"}, "it keeps a state"
        choices = replace(choices, keeps_state=True)
        done = await asyncio.to_thread(import_adk_agent, own, SAMPLES / "hello_world", choices)
        assert (done.tools, done.left_out) == (["roll_die", "check_prime"], [])
        for file, text in drop_bars("hello_world").items():
            (own.policies / file).write_text(text)
        grants = own.policies / "grants/data.yaml"
        grants.write_text(grants.read_text() + GRANT)
        targets: dict[str, Any] = {
            "mailbox": {"kind": "maildir", "path": str(tmp_path / "mail"),
                        "address": "desk@harbourlights.example"},
        }  # fmt: skip
        fleet = FleetHarness(tmp_path / "run", content=own.root, targets=targets, workers=True)
        fleet.models = {"fast": plan}
        async with fleet:
            event = Event("test", "1", "boat.came", "HL-204", None, {})
            await fleet.send(event)
            await until(lambda: fleet.runs(event)[0].state == "done", 60)
            rows = fleet.actions(event)
            assert [(row.tool, row.decided, row.effect) for row in rows] == [
                ("roll_die", "permit", "done"), ("check_prime", "permit", "done"),
            ]  # fmt: skip
        results = [result.content for one in server.requests for result in one.results]
    rolled = next(str(one) for one in results if "rolls" in str(one))
    assert any(f"'result': {number}" in rolled for number in range(1, 7)), rolled
    assert any("7, " in str(one) or ", 7" in str(one) for one in results)
    assert any("97" in str(one) and "are prime numbers" in str(one) for one in results)
    assert not any("91" in str(one) for one in results)


CALLBACKS = {
    "before_agent_callback", "before_model_callback", "before_tool_callback", "after_tool_callback",
}  # fmt: skip
TOOLS = [
    "send_call_companion_link", "approve_discount", "sync_ask_for_approval",
    "update_salesforce_crm", "access_cart_information", "modify_cart",
    "get_product_recommendations", "check_product_availability", "schedule_planting_service",
    "get_available_planting_times", "send_care_instructions", "generate_qr_code",
]  # fmt: skip


def test_customer_service_is_refused_by_the_names_of_its_callbacks(settings: Settings) -> None:
    """They are its guards; left out one by one, its twelve functions are tools."""
    choices = replace(CHOICES, name="customer_service")
    with pytest.raises(NotImported) as refused:
        import_adk_agent(settings, SAMPLES / "customer_service", choices)
    assert {one.name for one in refused.value.refusals} == CALLBACKS
    assert not (settings.agents / "customer_service").exists()
    choices = replace(choices, without=frozenset(CALLBACKS))
    done = import_adk_agent(settings, SAMPLES / "customer_service", choices)
    assert {one.name for one in done.left_out} == CALLBACKS
    assert done.tools == TOOLS
    code = (settings.agents / "customer_service/source/shared_libraries/callbacks.py").read_text()
    assert "from ..entities.customer import Customer" in code

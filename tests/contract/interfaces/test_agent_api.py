"""The agents' API, over a real server on the loopback, before a real line."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import httpx
import pytest
from jsonschema import Draft202012Validator, ValidationError
from msgspec.structs import replace
from tests.clients import COURIER, DESK, PORTER, client, client_fleet, post_call, served

from vedette.app.remote_workers import build_tokens
from vedette.config.settings import Sender
from vedette.domain.agent import Agent
from vedette.domain.client_call import ClientCall
from vedette.domain.effect import Outcome
from vedette.domain.event import Event
from vedette.domain.ports.sources import Receipt
from vedette.engine.scheduler.failure_policy import dead_letter
from vedette.operations.agent_calls import AgentCalls
from vedette.testing.clock import ManualClock
from vedette.testing.harness import FleetHarness
from vedette.testing.toy_fleet import World

WINDOW_US = 60_000_000


@pytest.fixture
def world() -> World:
    return World()


@pytest.fixture
async def fleet(tmp_path: Path, world: World) -> AsyncIterator[FleetHarness]:
    async with client_fleet(tmp_path, world) as opened:
        yield opened


@pytest.fixture
async def address(fleet: FleetHarness) -> AsyncIterator[str]:
    async with served(fleet) as found:
        yield found


@pytest.fixture
async def courier(address: str) -> AsyncIterator[httpx.AsyncClient]:
    async with client(address) as who:
        yield who


async def test_a_call_is_one_proposal_decided_performed_and_recorded(
    fleet: FleetHarness, courier: httpx.AsyncClient, world: World
) -> None:
    found = await post_call(courier, "wire.send", {"to": DESK, "text": "hello"}, "first")
    assert found["status"] == "done", found
    assert found["data"]["text"] == "hello"
    assert world.texts() == ["hello"]
    assert world.calls[0].args["to"] == "desk@example.org"
    run = fleet.app.store.runs.run(found["call"])
    assert run is not None
    assert (run.agent, run.state, run.turn) == ("courier", "done", 1)
    (row,) = fleet.app.store.runs.actions(run.id)
    record = json.loads(row.record)
    assert record["origins"] == {"/to": "trusted", "/text": "derived"}
    assert record["sources"] == {"/to": "/charter/desk"}


async def test_what_a_client_writes_is_derived_and_where_it_goes_is_not_its_to_say(
    courier: httpx.AsyncClient, world: World
) -> None:
    found = await post_call(courier, "wire.send", {"to": "x@evil.example", "text": "hello"})
    assert found["status"] == "denied"
    assert found["reason"] == "origins"
    # Its event is no place that it may refer to: not what it wrote, nor when it called.
    for own in ("ref:/event/data/args/text", "ref:/event/time", "ref:/event/source", "ref:/row/x"):
        body = {"tool": "wire.send", "args": {"to": own, "text": "a@b"}}
        answer = await courier.post("/v1/agent/calls", json=body)
        assert answer.status_code == 400
        assert "ref:/charter" in answer.json()["error"]["mend"]
    assert world.calls == []


async def test_the_tools_are_those_that_policy_grants(address: str) -> None:
    async with client(address) as courier, client(address, PORTER) as porter:
        theirs = (await courier.get("/v1/agent/tools")).json()
        mine = (await porter.get("/v1/agent/tools")).json()
    assert theirs["agent"] == "spiffe://harbour/agent/courier"
    assert len(theirs["tools"]) == 8
    assert [tool["name"] for tool in mine["tools"]] == ["wire.send"]
    assert mine["tools"][0]["resource"] == {"type": "wire", "id": "world"}
    assert mine["tools"][0]["input_schema"] == {
        "type": "object",
        "properties": {"to": {"type": "string"}, "text": {"type": "string"}},
        "required": ["to", "text"],
        "additionalProperties": False,
    }


async def test_the_tools_follow_the_policy(fleet: FleetHarness, courier: httpx.AsyncClient) -> None:
    before = (await courier.get("/v1/agent/tools")).json()["tools"]
    denies = fleet.policies / "denies" / "data.yaml"
    denies.write_text("agents: []\ntools: [wire.send]\ncomplete: true\n")
    await fleet.apply_policy(fleet.policies)
    after = (await courier.get("/v1/agent/tools")).json()["tools"]
    gone = {tool["name"] for tool in before} - {tool["name"] for tool in after}
    assert gone == {"wire.send"}


async def test_a_tool_that_is_not_granted_is_denied_and_the_try_is_recorded(
    fleet: FleetHarness, address: str, world: World
) -> None:
    async with client(address, PORTER) as porter:
        found = await post_call(porter, "bell.ring", {"to": DESK, "text": "x"})
    assert (found["status"], found["reason"]) == ("denied", "grant")
    assert world.calls == []
    assert fleet.app.store.tables.counts()["porter"]["decided.deny"] == 1


@pytest.mark.parametrize(
    ("tool", "args", "why"),
    [
        ("no.such", {}, "the agent declares no tool 'no.such'"),
        ("wire.send", {"to": DESK}, "tool wire.send needs the argument 'text'"),
        ("wire.send", {"to": DESK, "text": "x", "cc": "y"}, "has no argument 'cc'"),
        ("wire.send", {"to": DESK, "text": 5}, "argument 'text' is not a string"),
        ("wire.send", {"to": "ref:/charter/nobody", "text": "x"}, "leads nowhere at 'nobody'"),
    ],
)
async def test_what_is_no_proposal_is_refused_with_what_is_wrong(
    courier: httpx.AsyncClient, world: World, tool: str, args: dict[str, Any], why: str
) -> None:
    found = await post_call(courier, tool, args)
    assert (found["status"], found["reason"]) == ("refused", "bad-proposal")
    assert why in found["why"]
    assert world.calls == []


async def test_a_retry_is_one_effect_by_its_key(courier: httpx.AsyncClient, world: World) -> None:
    args = {"to": DESK, "text": "once"}
    first = await post_call(courier, "bell.ring", args, "k1")
    many = await asyncio.gather(*(post_call(courier, "bell.ring", args, "k1") for _ in range(8)))
    assert {answer["call"] for answer in many} == {first["call"]}
    assert all(answer["status"] == "done" for answer in many)
    assert world.effects() == 1
    other = await post_call(courier, "bell.ring", args, "k2")
    assert other["call"] != first["call"]
    assert world.effects() == 2


async def test_a_key_is_of_one_call(courier: httpx.AsyncClient, world: World) -> None:
    await post_call(courier, "wire.send", {"to": DESK, "text": "a"}, "k")
    body = {"tool": "wire.send", "args": {"to": DESK, "text": "b"}, "key": "k"}
    answer = await courier.post("/v1/agent/calls", json=body)
    assert answer.status_code == 409
    assert answer.json()["error"]["code"] == "key-reused"
    assert world.texts() == ["a"]


async def test_keys_are_of_one_agent(address: str, world: World) -> None:
    args = {"to": DESK, "text": "same"}
    async with client(address) as courier, client(address, PORTER) as porter:
        mine = await post_call(courier, "wire.send", args, "k")
        theirs = await post_call(porter, "wire.send", args, "k")
    assert mine["call"] != theirs["call"]
    assert world.effects() == 2


async def test_another_agent_s_call_is_as_one_that_there_is_not(address: str) -> None:
    async with client(address) as courier, client(address, PORTER) as porter:
        mine = await post_call(courier, "wire.send", {"to": DESK, "text": "mine"})
        assert (await courier.get(f"/v1/agent/calls/{mine['call']}")).json() == mine
        answers = [
            await porter.get(f"/v1/agent/calls/{call}")
            for call in (mine["call"], "run_" + "0" * 32)
        ]
    assert [answer.status_code for answer in answers] == [404, 404]
    known, unknown = (answer.json()["error"] for answer in answers)
    assert known["what"].replace(mine["call"], "X") == unknown["what"].replace(
        "run_" + "0" * 32, "X"
    )
    assert {**known, "what": ""} == {**unknown, "what": ""}


async def test_a_held_call_gives_its_outcome_once_a_person_approved(
    fleet: FleetHarness, courier: httpx.AsyncClient, world: World
) -> None:
    held = await post_call(courier, "big.send", {"to": DESK, "text": "big"})
    assert (held["status"], held["waits"], held["after_s"]) == ("held", "approval", 30)
    assert world.calls == []
    async with asyncio.TaskGroup() as tasks:
        waiting = tasks.create_task(courier.get(f"/v1/agent/calls/{held['call']}?wait_s=20"))
        (row,) = fleet.app.store.runs.actions(held["call"])
        await fleet.approve(row)
    found = waiting.result().json()
    assert (found["status"], found["data"]["text"]) == ("done", "big")
    assert world.effects("big.send") == 1
    # The same call again is the same call.
    again = await post_call(courier, "big.send", {"to": DESK, "text": "big"})
    assert again == found


async def test_who_stops_waiting_stops_nothing(
    fleet: FleetHarness, address: str, world: World
) -> None:
    async with client(address) as gone:
        held = await post_call(gone, "big.send", {"to": DESK, "text": "later"})
        with pytest.raises(httpx.ReadTimeout):
            await gone.get(f"/v1/agent/calls/{held['call']}?wait_s=20", timeout=0.2)
    (row,) = fleet.app.store.runs.actions(held["call"])
    assert row.hold == "open"
    await fleet.approve(row)
    async with client(address) as back:
        found = (await back.get(f"/v1/agent/calls/{held['call']}?wait_s=20")).json()
    assert found["status"] == "done"
    assert world.effects() == 1


async def test_a_person_s_no_is_told(fleet: FleetHarness, courier: httpx.AsyncClient) -> None:
    held = await post_call(courier, "big.send", {"to": DESK, "text": "big"})
    (row,) = fleet.app.store.runs.actions(held["call"])
    shown = fleet.shown_digest(row)
    await fleet.app.commands.deny(fleet.order("not today"), row.id, shown)
    found = (await courier.get(f"/v1/agent/calls/{held['call']}?wait_s=20")).json()
    assert (found["status"], found["reason"]) == ("denied", "hold.denied")
    assert "not today" not in json.dumps(found)


async def test_a_person_takes_back_what_a_client_had_done(tmp_path: Path, world: World) -> None:
    fleet = client_fleet(tmp_path, world)
    file = tmp_path / "content" / "agents" / "courier" / "agent.yaml"
    settled = "settles: none, function: act"
    text = file.read_text()
    assert settled in text
    file.write_text(text.replace(settled, f"inverse: wire.send, {settled}"))
    async with fleet, served(fleet) as address, client(address) as courier:
        found = await post_call(courier, "bell.ring", {"to": DESK, "text": "rung"})
        (row,) = fleet.app.store.runs.actions(found["call"])
        await fleet.submit_confirmed("undo", effect=row.id)
        await fleet.wait_until_idle()
        again = await post_call(courier, "bell.ring", {"to": DESK, "text": "rung"})
    assert [(call.tool, call.args["text"]) for call in world.calls] == [
        ("bell.ring", "rung"),
        ("wire.send", "rung"),
    ]
    assert again["call"] == found["call"]


async def test_a_slow_tool_is_pending_and_its_outcome_comes_later(
    courier: httpx.AsyncClient, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("vedette.interfaces.http.agent_api.AgentCalls.call.__defaults__", (0.3,))
    world.answer = lambda call: Outcome("retry", error="busy") if len(world.calls) < 2 else None
    found = await post_call(courier, "wire.send", {"to": DESK, "text": "slow"})
    assert (found["status"], found["after_s"]) == ("pending", 2)
    later = (await courier.get(f"/v1/agent/calls/{found['call']}?wait_s=20")).json()
    assert later["status"] == "done"
    assert world.effects() == 1


def agent_calls(fleet: FleetHarness) -> AgentCalls:
    return AgentCalls(
        fleet.app.services, fleet.app.intake, window_us=WINDOW_US, per_minute=300, most_open=100
    )


async def test_all_that_is_waited_for_has_one_deadline(
    fleet: FleetHarness, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.answer = lambda call: Outcome("retry", error="busy", retry_after_us=60_000_000)
    accept = fleet.app.intake.accept_own

    async def accept_late(event: Event) -> Receipt:
        await asyncio.sleep(0.7)
        return await accept(event)

    monkeypatch.setattr(fleet.app.intake, "accept_own", accept_late)
    calls = agent_calls(fleet)
    call = ClientCall("wire.send", {"to": DESK, "text": "late"})
    loop = asyncio.get_running_loop()
    before = loop.time()
    found = await calls.call(fleet.app.services.fleet.agents["courier"], call, 1.0)
    assert found["status"] == "pending"
    assert 0.9 < loop.time() - before < 1.5


async def test_a_stop_holds_calls_until_the_resume(
    fleet: FleetHarness, courier: httpx.AsyncClient, world: World
) -> None:
    await fleet.submit_confirmed("stop", agent="courier")
    found = await post_call(courier, "wire.send", {"to": DESK, "text": "stopped"})
    assert (found["status"], found["waits"]) == ("held", "resume")
    assert world.calls == []
    asked = await evaluate(courier)
    assert asked["decision"] is False
    await fleet.submit_confirmed("resume", agent="courier")
    later = (await courier.get(f"/v1/agent/calls/{found['call']}?wait_s=20")).json()
    assert later["status"] == "done"
    assert world.effects() == 1


async def test_a_budget_holds_calls(tmp_path: Path, world: World) -> None:
    fleet = client_fleet(tmp_path, world)
    file = tmp_path / "content" / "agents" / "courier" / "agent.yaml"
    file.write_text(file.read_text().replace("actions_per_run: 16", "actions_per_hour: 2"))
    async with fleet, served(fleet) as address, client(address) as courier:
        found = [
            await post_call(courier, "wire.send", {"to": DESK, "text": str(n)}) for n in range(4)
        ]
    assert [answer["status"] for answer in found] == ["done", "done", "held", "held"]
    assert found[2]["waits"] == "budget"
    assert world.effects() == 2


async def test_a_client_is_sure_of_nothing_until_somebody_measured(
    tmp_path: Path, world: World
) -> None:
    fleet = client_fleet(tmp_path, world, sure=False)
    async with fleet, served(fleet) as address, client(address) as courier:
        found = await post_call(courier, "wire.send", {"to": DESK, "text": "unsure"})
    assert (found["status"], found["waits"]) == ("held", "approval")
    file = tmp_path / "content" / "agents" / "courier" / "agent.yaml"
    file.write_text(
        file.read_text().replace("known text}", 'known text, client_confidence: "0.95"}')
    )
    async with fleet, served(fleet) as address, client(address) as courier:
        found = await post_call(courier, "wire.send", {"to": DESK, "text": "measured"})
    assert found["status"] == "done"


async def test_what_is_labelled_is_not_told(tmp_path: Path, world: World) -> None:
    fleet = client_fleet(tmp_path, world)
    file = tmp_path / "content" / "agents" / "courier" / "agent.yaml"
    secret = "settles: idempotent, function: act, target: world}"
    text = file.read_text()
    assert secret in text
    file.write_text(text.replace(secret, secret[:-1] + ', permitted_readers: ["@example.org"]}', 1))
    world.answer = lambda call: Outcome("done", {"secret": "seaweed"})
    async with fleet, served(fleet) as address, client(address) as courier:
        found = await post_call(courier, "book.look", {"name": "x"})
    assert found["status"] == "done"
    assert found["withheld"] is True
    assert "seaweed" not in json.dumps(found)


async def test_a_call_that_would_wake_nobody_is_an_error(
    fleet: FleetHarness, courier: httpx.AsyncClient, world: World
) -> None:
    # No agent.yaml says so any more; a policy of matching that leaves calls out would.
    agent = fleet.app.services.fleet.agents["courier"]
    narrow = replace(agent, subscriptions=(replace(agent.subscriptions[0], sources=("shop",)),))
    fleet.app.services.fleet.agents["courier"] = narrow
    body = {"tool": "wire.send", "args": {"to": DESK, "text": "x"}}
    answer = await courier.post("/v1/agent/calls", json=body)
    assert answer.status_code == 500
    assert answer.json()["error"]["code"] == "wakes-nobody"
    assert world.calls == []


@pytest.mark.parametrize("key", ["k", None])
async def test_after_an_erasure_it_is_still_done_and_nothing_is_told(
    fleet: FleetHarness, courier: httpx.AsyncClient, world: World, key: str | None
) -> None:
    body = {"tool": "wire.send", "args": {"to": DESK, "text": "private"}, "key": key}
    first = (await courier.post("/v1/agent/calls", json=body)).json()
    run = fleet.app.store.runs.run(first["call"])
    assert run is not None
    await fleet.app.commands.erase(fleet.order(), event=run.event)
    told = {"status": "done", "withheld": True, "call": first["call"]}
    assert (await courier.get(f"/v1/agent/calls/{first['call']}")).json() == told
    again = await courier.post("/v1/agent/calls", json=body)
    other = await courier.post(
        "/v1/agent/calls", json={**body, "args": {"to": DESK, "text": "another"}}
    )
    if key is None:
        assert again.json() == told
        assert other.json()["call"] != first["call"]
        assert world.effects() == 2
    else:
        # Whether it is the same call nobody can say by now.
        for answer in (again, other):
            assert answer.status_code == 409
            error = answer.json()["error"]
            assert error["code"] == "key-erased"
            assert first["call"] in error["what"]
        assert world.effects() == 1


async def test_what_may_have_happened_is_no_no(tmp_path: Path, world: World) -> None:
    fleet = client_fleet(tmp_path, world)
    file = tmp_path / "content" / "agents" / "courier" / "agent.yaml"
    settled = "settles: none, function: act, target: world, timeout: "
    text = file.read_text()
    assert settled in text
    # Before a person is asked, the time of the call has to be over.
    file.write_text(text.replace(f"{settled}30s", f"{settled}100ms"))
    async with fleet, served(fleet) as address, client(address) as courier:
        await ask_what_may_have_happened(fleet, courier, world)


async def ask_what_may_have_happened(
    fleet: FleetHarness, courier: httpx.AsyncClient, world: World
) -> None:
    world.loses_answer, world.answer = True, lambda call: Outcome("unknown", error="cut")
    asked = await post_call(courier, "bell.ring", {"to": DESK, "text": "rung"}, "k")
    path = f"/v1/agent/calls/{asked['call']}?wait_s=20"
    await fleet.wait_until_idle()
    asking = await courier.get(path.partition("?")[0])
    assert asking.json()["status"] == "held"  # for a person, who looks at the target
    runs = fleet.app.store.runs
    await wait_until(lambda: runs.actions(asked["call"])[0].hold == "open")
    (row,) = runs.actions(asked["call"])
    await fleet.app.commands.deny(fleet.order(), row.id, fleet.shown_digest(row))
    found = (await courier.get(path)).json()
    assert found == {"status": "unknown", "call": asked["call"]}
    assert await post_call(courier, "bell.ring", {"to": DESK, "text": "rung"}, "k") == found
    assert world.effects() == 1


@pytest.mark.parametrize(
    ("said", "status"), [("failed", "failed"), ("retry", "failed"), ("unknown", "unknown")]
)
async def test_a_failure_is_one_if_the_target_said_so(
    tmp_path: Path, world: World, said: Any, status: str
) -> None:
    fleet = client_fleet(tmp_path, world)
    file = tmp_path / "content" / "agents" / "courier" / "agent.yaml"
    text = file.read_text()
    assert "attempts: 3" in text
    file.write_text(text.replace("attempts: 3", "attempts: 1"))
    world.answer = lambda call: Outcome(said, error="as it says")
    async with fleet, served(fleet) as address, client(address) as courier:
        found = await post_call(courier, "wire.send", {"to": DESK, "text": "x"})
    assert found["status"] == status


@pytest.mark.parametrize("started", [True, False])
async def test_of_a_dead_letter_it_is_told_what_may_have_happened(
    fleet: FleetHarness, courier: httpx.AsyncClient, world: World, started: bool
) -> None:
    world.loses_answer, world.answer = True, lambda call: Outcome("unknown", error="cut")
    tool = "bell.ring" if started else "big.send"
    asked = await post_call(courier, tool, {"to": DESK, "text": "rung"})
    await fleet.wait_until_idle()
    services = fleet.app.services
    run = services.store.runs.run(asked["call"])
    assert run is not None
    epoch = services.store.cluster.lease_epoch(run)
    assert epoch is not None
    await dead_letter(services, run, epoch, "an error")
    found = (await courier.get(f"/v1/agent/calls/{run.id}")).json()
    wanted = {"status": "unknown"} if started else {"status": "failed", "reason": "dead-letter"}
    assert found == {**wanted, "call": run.id}
    assert world.effects() == int(started)


async def test_a_number_is_no_truth(courier: httpx.AsyncClient) -> None:
    statuses = []
    for args in ({"n": 1}, {"n": 1}, {"n": True}, {"n": "1"}, {"n": [1]}):
        body = {"tool": "no.such", "args": args, "key": "k"}
        statuses.append((await courier.post("/v1/agent/calls", json=body)).status_code)
    assert statuses == [200, 200, 409, 409, 409]


# --- who comes -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "said", [None, "Bearer", COURIER, f"Basic {COURIER}", f"Bearer {COURIER}x", "Bearer a.b.c"]
)
@pytest.mark.parametrize(
    ("verb", "path"),
    [
        ("GET", "/v1/agent/tools"),
        ("POST", "/v1/agent/calls"),
        ("GET", "/v1/agent/calls/run_00"),
        ("POST", "/access/v1/evaluation"),
    ],
)
async def test_a_token_of_nobody_is_401(
    fleet: FleetHarness, address: str, verb: str, path: str, said: str | None
) -> None:
    headers = {} if said is None else {"Authorization": said}
    async with httpx.AsyncClient(base_url=address, trust_env=False) as nobody:
        answer = await nobody.request(verb, path, headers=headers)
    assert answer.status_code == 401
    assert answer.headers["www-authenticate"].startswith("Bearer ")
    assert COURIER not in answer.text
    assert fleet.entries("event.accepted") == []


async def test_the_fleet_s_own_identities_are_taken_and_only_for_this_gateway(
    fleet: FleetHarness, address: str
) -> None:
    settings, now_us = fleet.app.settings, fleet.app.services.clock.now_us
    tokens = build_tokens(settings, now_us)
    mine, other = await tokens.mint("courier"), await tokens.mint("harbourmaster")
    elsewhere = replace_audience(settings, "spiffe://harbour/elsewhere")
    foreign = await build_tokens(elsewhere, now_us).mint("courier")
    found = []
    for token in (mine, other, foreign):
        async with client(address, token) as who:
            found.append((await who.get("/v1/agent/tools")).status_code)
    assert found == [200, 401, 401]


def replace_audience(settings: Any, audience: str) -> Any:
    deployment = settings.deployment
    tokens = replace(deployment.tokens, audience=audience)
    return replace(settings, deployment=replace(deployment, tokens=tokens))


@pytest.mark.parametrize(
    ("origin", "status"),
    [
        (None, 200),
        ("http://127.0.0.1:8080", 200),
        ("http://localhost", 200),
        ("https://[::1]:1", 200),
        ("https://fleet.example", 200),
        ("http://evil.example", 403),
        ("http://203.0.113.7", 403),
        ("http://localhost.evil.example", 403),
        ("null", 403),
        ("", 403),
        ("chrome-extension://localhost", 403),
    ],
)
@pytest.mark.parametrize("path", ["/v1/agent/tools", "/mcp"])
async def test_a_page_of_another_site_is_refused(
    fleet: FleetHarness, path: str, origin: str | None, status: int
) -> None:
    said = {} if origin is None else {"Origin": origin}
    body = {"jsonrpc": "2.0", "id": 1, "method": "tools/list", "params": {}}
    headers = {**said, "Accept": "application/json, text/event-stream"}
    async with (
        served(fleet, hosts=("fleet.example",)) as address,
        client(address) as courier,
    ):
        if path == "/mcp":
            answer = await courier.post(path, json=body, headers=headers)
        else:
            answer = await courier.get(path, headers=headers)
    assert answer.status_code == status, answer.text
    assert ("wire" in answer.text) == (status == 200)


# --- what is sent --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("body", "status"),
    [
        (b"", 400),
        (b"[]", 400),
        (b"{", 400),
        (b'{"args": {}}', 400),
        (b'{"tool": 5}', 400),
        (b'{"tool": "wire.send", "args": []}', 400),
        (b'{"tool": "wire.send", "key": ""}', 400),
        (b'{"tool": "wire.send", "key": 5}', 400),
        (b'{"tool": "wire.send", "key": "a\\nb"}', 400),
        (b'{"tool": "wire.send", "mode": "act"}', 400),
        (b'{"tool": "wire.send", "tool": "bell.ring"}', 400),
        (b'{"tool": "wire.send", "args": {"text": NaN}}', 400),
        (b'{"tool": "' + b"x" * 101 + b'"}', 400),
        (b'{"tool": "wire.send", "args": {"a": ' + b"[" * 400 + b"]" * 400 + b"}}", 400),
        (b'{"tool": "wire.send", "args": {"text": "' + b"x" * 300_000 + b'"}}', 413),
    ],
)
async def test_what_is_no_call_is_one_clear_error_and_no_run(
    fleet: FleetHarness, courier: httpx.AsyncClient, body: bytes, status: int
) -> None:
    answer = await courier.post("/v1/agent/calls", content=body)
    assert answer.status_code == status, answer.text
    error = answer.json()["error"]
    assert set(error) == {"code", "what", "where", "mend"}
    assert fleet.entries("event.accepted") == []


@pytest.mark.parametrize("path", ["/v1/agent/calls", "/access/v1/evaluation", "/mcp"])
async def test_who_hangs_up_in_the_middle_of_a_request_leaves_no_trace(
    fleet: FleetHarness, address: str, path: str, caplog: pytest.LogCaptureFixture
) -> None:
    port = int(address.rpartition(":")[2])
    async with client(address) as courier:  # what MCP is made of is loaded with the first request
        await courier.post(path, json={})
    for _ in range(3):
        _, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(
            f"POST {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nAuthorization: Bearer {COURIER}\r\n"
            "Accept: application/json, text/event-stream\r\nContent-Type: application/json\r\n"
            'Content-Length: 100\r\n\r\n{"tool": '.encode()
        )
        await writer.drain()
        await asyncio.sleep(0.1)  # as far as the server has read
        writer.close()
        await writer.wait_closed()
    async with client(address) as courier:
        assert (await courier.get("/v1/agent/tools")).status_code == 200
    assert [record for record in caplog.records if record.levelname == "ERROR"] == []
    assert fleet.entries("event.accepted") == []


async def test_one_agent_s_requests_take_no_room_from_another(address: str) -> None:
    async with client(address) as courier, client(address, PORTER) as porter:
        held = await post_call(courier, "big.send", {"to": DESK, "text": "big"})
        path = f"/v1/agent/calls/{held['call']}"
        async with asyncio.TaskGroup() as waiting:
            tasks = [waiting.create_task(courier.get(f"{path}?wait_s=3")) for _ in range(40)]
            done, _ = await asyncio.wait(tasks, timeout=2)
            refused = [task.result() for task in done]
            assert [answer.status_code for answer in refused] == [429] * 8
            assert refused[0].headers["retry-after"] == "1"
            assert (await porter.get("/v1/agent/tools")).status_code == 200
        assert sum(task.result().status_code == 200 for task in tasks) == 32
        assert (await courier.get(path)).status_code == 200


async def test_new_calls_of_an_agent_are_bounded_by_the_minute(
    tmp_path: Path, world: World
) -> None:
    clock = ManualClock()
    fleet = client_fleet(tmp_path, world, clock=clock)
    async with (
        fleet,
        served(fleet, calls_per_minute=3) as address,
        client(address) as courier,
        client(address, PORTER) as porter,
    ):

        async def send(number: int, who: httpx.AsyncClient = courier) -> int:
            body = {"tool": "wire.send", "args": {"to": DESK, "text": str(number)}}
            return (await who.post("/v1/agent/calls", json=body)).status_code

        assert [await send(number) for number in range(5)] == [200, 200, 200, 429, 429]
        assert await send(0) == 200  # which is known, and no new one
        assert await send(4, porter) == 200
        assert world.effects() == 4
        assert len(fleet.entries("event.accepted")) == 4
        clock.advance(60_000_000)
        assert await send(3) == 200


async def test_open_calls_of_an_agent_are_bounded(fleet: FleetHarness, world: World) -> None:
    async with served(fleet, open_calls=2) as address, client(address) as courier:
        first = await post_call(courier, "big.send", {"to": DESK, "text": "0"})
        await post_call(courier, "big.send", {"to": DESK, "text": "1"})
        body = {"tool": "big.send", "args": {"to": DESK, "text": "2"}}
        answer = await courier.post("/v1/agent/calls", json=body)
        assert answer.status_code == 429
        assert answer.json()["error"]["code"] == "too-many"
        assert len(fleet.entries("event.accepted")) == 2
        assert await post_call(courier, "big.send", {"to": DESK, "text": "0"}) == first
        (row,) = fleet.app.store.runs.actions(first["call"])
        await fleet.approve(row)
        done = await courier.get(f"/v1/agent/calls/{first['call']}?wait_s=20")
        assert done.json()["status"] == "done"
        assert (await courier.post("/v1/agent/calls", json=body)).status_code == 200


async def test_those_who_wait_for_one_call_share_what_is_read(
    fleet: FleetHarness, address: str, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One reads after a commit, and the others are told the same until the next one."""
    reads, commits = 0, 0
    read = AgentCalls._read_outcome

    def count_read(self: AgentCalls, agent: Agent, call: str) -> Any:
        nonlocal reads
        reads += 1
        return read(self, agent, call)

    def count_commit() -> None:
        nonlocal commits
        commits += 1

    async with client(address) as courier:
        held = await post_call(courier, "big.send", {"to": DESK, "text": "big"})
        path = f"/v1/agent/calls/{held['call']}?wait_s=20"
        monkeypatch.setattr(AgentCalls, "_read_outcome", count_read)
        async with asyncio.TaskGroup() as waiting:
            tasks = [waiting.create_task(courier.get(path)) for _ in range(20)]
            await wait_until(lambda: reads == len(tasks))  # each when it comes
            fleet.app.store.subscribe(count_commit)
            (row,) = fleet.app.store.runs.actions(held["call"])
            await fleet.approve(row)
        assert {task.result().json()["status"] for task in tasks} == {"done"}
    # However slow the machine: once a commit, and once after one from before they were counted.
    # If each read for itself it would be as many as they are, of whom each learnt that it is done.
    most = commits + 1
    assert most < len(tasks)
    assert reads - len(tasks) <= most


# --- asking only ---------------------------------------------------------------------------------


async def evaluate(
    who: httpx.AsyncClient, tool: str = "wire.send", *, to: str = DESK, **changes: Any
) -> dict[str, Any]:
    question = {
        "subject": {"type": "agent", "id": "spiffe://harbour/agent/courier"},
        "action": {"name": tool},
        "resource": {"type": "wire", "id": "world", "properties": {"to": to, "text": "x"}},
        **changes,
    }
    answer = await who.post(
        "/access/v1/evaluation", json=question, headers={"X-Request-ID": "bfe9"}
    )
    assert answer.status_code == 200, answer.text
    assert answer.headers["X-Request-ID"] == "bfe9"
    found: dict[str, Any] = answer.json()
    return found


async def test_an_evaluation_says_what_policy_would_decide_and_does_nothing(
    fleet: FleetHarness, courier: httpx.AsyncClient, world: World
) -> None:
    before = fleet.app.store.ledger.last_seq()
    permit = await evaluate(courier)
    assert permit == {"decision": True, "context": {"outcome": "permit", "reason": "permit"}}
    hold = await evaluate(courier, "big.send")
    assert (hold["decision"], hold["context"]["outcome"]) == (False, "hold")
    assert hold["context"]["waits"] == "approval"
    deny = await evaluate(courier, to="x@evil.example")
    assert (deny["decision"], deny["context"]["reason"]) == (False, "origins")
    unknown = await evaluate(courier, "no.such")
    assert unknown["context"]["reason"] == "no-such-tool"
    odd = await evaluate(
        courier, resource={"type": "wire", "id": "world", "properties": {"to": DESK}}
    )
    assert odd["context"]["reason"] == "bad-proposal"
    for other in ({"type": "mail", "id": "world"}, {"type": "wire", "id": "moon"}):
        found = await evaluate(courier, resource=other)
        assert (found["decision"], found["context"]["reason"]) == (False, "another-resource")
    assert fleet.app.store.ledger.last_seq() == before
    assert world.calls == []
    assert fleet.app.services.gateway.counts.totals("courier", "actions", 10**18)["day"] == 0


async def test_what_the_tools_say_of_themselves_is_enough_to_ask(
    courier: httpx.AsyncClient,
) -> None:
    for tool in (await courier.get("/v1/agent/tools")).json()["tools"]:
        resource = {**tool["resource"], "properties": {}}
        found = await evaluate(courier, tool["name"], resource=resource)
        assert found["context"]["reason"] == "bad-proposal"  # it needs arguments, and no more


async def test_a_schema_is_told_with_room_for_references_and_its_numbers_are_numbers(
    tmp_path: Path, world: World
) -> None:
    fleet = client_fleet(tmp_path, world)
    schema = {
        "type": "object",
        "properties": {
            "name": {"type": "string"},
            "weights": {"type": "array", "items": {"type": "number", "maximum": 9.5}},
        },
        "required": ["name"],
        "additionalProperties": False,
    }
    file = tmp_path / "content" / "agents" / "courier" / "agent.yaml"
    words = "{name: book.look, verb: look, resource: wire, args: {name: string}"
    text = file.read_text()
    assert words in text
    told = words.replace("args: {name: string}", f"schema: {json.dumps(schema)}")
    file.write_text(text.replace(words, told))
    async with fleet, served(fleet) as address, client(address) as courier:
        tools = {one["name"]: one for one in (await courier.get("/v1/agent/tools")).json()["tools"]}
        shown = Draft202012Validator(tools["book.look"]["input_schema"])
        for args, fits in (
            ({"name": "x", "weights": [1.5]}, True),
            ({"name": "x", "weights": ["ref:/charter/weight"]}, True),
            ({"name": "x", "weights": ["1.5"]}, False),
            ({"weights": []}, False),
        ):
            assert shown.is_valid(args) == fits
        args = {"name": "1.5", "weights": [1.5, 2, -0.0, 1e-7]}
        assert (await post_call(courier, "book.look", args))["status"] == "done"
        (call,) = world.calls
        assert call.args == {"name": "1.5", "weights": [1.5, 2, 0, 1e-7]}
        assert [type(one) for one in call.args["weights"]] == [float, int, int, float]
        for odd in ("1.5", 9.6, True):
            found = await post_call(courier, "book.look", {"name": "x", "weights": [odd]})
            assert found["status"] == "refused"
            assert "/weights/0" in found["why"]
        body = {"tool": "book.look", "args": {"name": "x", "weights": [1e21]}}
        assert (await courier.post("/v1/agent/calls", json=body)).status_code == 400
    assert len(world.calls) == 1


def test_a_fleet_that_serves_no_agents_loads_nothing_of_it() -> None:
    code = "import sys, vedette.interfaces.http.server; print(*sys.modules)"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    loaded = found.stdout.split()
    assert "vedette.interfaces.http.server" in loaded
    assert "vedette.interfaces.http.agent_api" not in loaded
    assert "vedette.operations.agent_calls" not in loaded


async def test_an_evaluation_is_for_who_asks(courier: httpx.AsyncClient) -> None:
    question = {
        "subject": {"type": "agent", "id": "spiffe://harbour/agent/porter"},
        "action": {"name": "wire.send"},
        "resource": {"type": "wire", "id": "world"},
    }
    answer = await courier.post("/access/v1/evaluation", json=question)
    assert answer.status_code == 403


# --- the document --------------------------------------------------------------------------------


async def test_the_document_is_what_is_served(
    fleet: FleetHarness, address: str, courier: httpx.AsyncClient, world: World
) -> None:
    document = (await courier.get("/v1/agent/openapi.json")).json()
    for path, operations in document["paths"].items():
        for verb in ("GET", "POST", "PUT", "DELETE"):
            async with client(address, None) as nobody:
                answer = await nobody.request(verb, path.replace("{id}", "run_0"))
            told = verb.lower() in operations
            assert answer.status_code == (405 if not told else 200 if "openapi" in path else 401)
    held = await post_call(courier, "big.send", {"to": DESK, "text": "big"})
    call = {"tool": "wire.send", "args": {"to": DESK, "text": "x"}, "key": "k"}
    bodies: list[tuple[str, str, Any]] = [
        ("GET", "/v1/agent/tools", None),
        ("POST", "/v1/agent/calls", call),
        ("POST", "/v1/agent/calls", {**call, "key": None}),
        ("POST", "/v1/agent/calls", {**call, "args": {}, "key": "k2"}),
        ("POST", "/v1/agent/calls", {**call, "args": {}}),
        ("POST", "/v1/agent/calls", {"args": {}}),
        ("POST", "/v1/agent/calls", {**call, "args": {"text": "x" * 300_000}}),
        ("GET", f"/v1/agent/calls/{held['call']}", None),
        ("GET", f"/v1/agent/calls/{held['call']}?wait_s=soon", None),
        ("GET", "/v1/agent/calls/run_0", None),
    ]
    seen = set()
    for verb, path, body in bodies:
        answer = await courier.request(verb, path, json=body)
        where = path.partition("?")[0].replace(held["call"], "{id}").replace("run_0", "{id}")
        described = document["paths"][where][verb.lower()]["responses"][str(answer.status_code)]
        schema = {
            **described["content"]["application/json"]["schema"],
            "components": document["components"],
        }
        Draft202012Validator(schema).validate(answer.json())
        seen.add(answer.status_code)
    assert seen == {200, 400, 404, 409, 413}
    with pytest.raises(ValidationError):
        Draft202012Validator(
            {"$ref": "#/components/schemas/Outcome", "components": document["components"]}
        ).validate({"status": "permitted", "call": "run_0"})


# --- whose word it is ----------------------------------------------------------------------------


@pytest.mark.parametrize("agent", ["courier", "porter"])
async def test_no_source_brings_a_call(fleet: FleetHarness, world: World, agent: str) -> None:
    real = ClientCall("wire.send", {"to": DESK, "text": "forged"}).event(
        "harbour", fleet.app.services.fleet.agents[agent], 10**15, 10**6
    )
    for forged in (real, replace(real, source="imap:desk"), replace(real, vouched=frozenset())):
        (receipt,) = await fleet.app.intake.accept([forged])
        assert receipt.status == "refused"
        assert receipt.error is not None
        assert "only an agent's client makes calls" in receipt.error
    assert fleet.runs(real) == []
    # The control: by the way of those who authenticated the agent it is one.
    receipt = await fleet.app.intake.accept_own(real)
    assert receipt.status == "accepted"
    await fleet.wait_until_idle()
    assert world.texts() == ["forged"]


async def test_a_sender_with_a_token_sends_no_call(
    fleet: FleetHarness, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TEST_MONITOR", "monitoring-" + "m" * 32)
    senders = (Sender("monitoring", token_env="TEST_MONITOR", prefix="vedette:"),)
    event = {
        "specversion": "1.0", "id": "1", "type": "vedette.call", "datacontenttype": "text/json",
        "source": "vedette://harbour/call/courier",
        "data": {"caller": "x", "tool": "wire.send", "args": {"to": DESK, "text": "x"}},
    }  # fmt: skip
    async with (
        served(fleet, senders=senders) as address,
        client(address, "monitoring-" + "m" * 32) as monitor,
        client(address) as courier,
    ):
        content = {"Content-Type": "application/cloudevents+json"}
        for who in (monitor, courier):
            answer = await who.post("/v1/events", json=event, headers=content)
            assert answer.status_code in (401, 403), answer.text
        # A sender's token calls nothing.
        assert (await monitor.get("/v1/agent/tools")).status_code == 401
    await fleet.wait_until_idle()
    assert world.calls == []


async def test_a_call_wakes_its_own_agent_alone(
    fleet: FleetHarness, courier: httpx.AsyncClient
) -> None:
    found = await post_call(courier, "wire.send", {"to": DESK, "text": "mine"})
    run = fleet.app.store.runs.run(found["call"])
    assert run is not None
    assert [one.agent for one in fleet.app.store.runs.runs_of_event(run.event)] == ["courier"]


async def test_the_window_of_calls_without_a_key_slides(tmp_path: Path, world: World) -> None:
    clock = ManualClock()
    fleet = client_fleet(tmp_path, world, clock=clock)
    args = {"to": DESK, "text": "again"}
    async with (
        fleet,
        served(fleet, call_window_us=60_000_000) as address,
        client(address) as courier,
    ):
        clock.advance(60_000_000 - clock.now_us() % 60_000_000 + 50_000_000)
        first = await post_call(courier, "wire.send", args)
        clock.advance(20_000_000)  # in the next window by the clock, within one of the first call
        assert (await post_call(courier, "wire.send", args))["call"] == first["call"]
        clock.advance(41_000_000)
        assert (await post_call(courier, "wire.send", args))["call"] != first["call"]
    assert world.effects() == 2


async def wait_until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(20):
        while not condition():  # noqa: ASYNC110
            await asyncio.sleep(0.01)


@pytest.mark.parametrize("earlier", [0, 1], ids=["the first", "one after another"])
async def test_at_the_edge_of_the_window_two_calls_are_one(
    tmp_path: Path, world: World, monkeypatch: pytest.MonkeyPatch, earlier: int
) -> None:
    clock = ManualClock()
    fleet = client_fleet(tmp_path, world, clock=clock)
    args = {"to": DESK, "text": "once"}
    arrived: list[Event] = []
    gate = asyncio.Event()
    async with (
        fleet,
        served(fleet, call_window_us=WINDOW_US) as address,
        client(address) as one,
        client(address) as two,
    ):
        for _ in range(earlier):
            await post_call(one, "wire.send", args)
            clock.advance(WINDOW_US)
        accept = fleet.app.intake.accept_own

        async def accept_late(event: Event) -> Receipt:
            arrived.append(event)
            if len(arrived) == 1:
                await gate.wait()  # the store is slow: backpressure, or a sync of the disk
            return await accept(event)

        monkeypatch.setattr(fleet.app.intake, "accept_own", accept_late)
        clock.advance(WINDOW_US - clock.now_us() % WINDOW_US - 1_000)
        first = asyncio.create_task(post_call(one, "wire.send", args))
        await wait_until(lambda: len(arrived) == 1)
        clock.advance(2_000)
        second = asyncio.create_task(post_call(two, "wire.send", args))
        await wait_until(lambda: len(arrived) == 2)
        gate.set()
        assert (await first)["call"] == (await second)["call"]
    assert world.effects() == earlier + 1


@pytest.mark.parametrize("behind_us", [2_000, 90_000_000, -2_000])
async def test_another_clock_makes_no_second_call(
    tmp_path: Path, world: World, behind_us: int
) -> None:
    clock = ManualClock()
    fleet = client_fleet(tmp_path, world, clock=clock)
    call = ClientCall("wire.send", {"to": DESK, "text": "once"})
    async with fleet:
        services = fleet.app.services
        other = replace(services, clock=ManualClock(clock.now_us() - behind_us))
        calls = [
            AgentCalls(each, fleet.app.intake, window_us=WINDOW_US, per_minute=300, most_open=100)
            for each in (services, other)
        ]
        courier = services.fleet.agents["courier"]
        clock.advance(WINDOW_US - clock.now_us() % WINDOW_US + 1_000)
        first = await calls[0].call(courier, call)
        again = await calls[1].call(courier, call)
        assert again["call"] == first["call"]
        await fleet.wait_until_idle()
    assert world.effects() == 1


async def test_the_window_is_counted_from_the_newest_of_many(tmp_path: Path, world: World) -> None:
    clock = ManualClock()
    fleet = client_fleet(tmp_path, world, clock=clock)
    args = {"to": DESK, "text": "hourly"}
    async with (
        fleet,
        served(fleet, call_window_us=WINDOW_US) as address,
        client(address) as courier,
    ):
        for number in range(1, 6):
            clock.advance(WINDOW_US + 1_000_000)
            answers = [await post_call(courier, "wire.send", args) for _ in range(3)]
            assert len({answer["call"] for answer in answers}) == 1
            assert world.effects() == number

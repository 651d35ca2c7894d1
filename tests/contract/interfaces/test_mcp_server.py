"""The MCP server: the official client speaks to it, in both eras of the protocol, over a socket."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import httpx2
import pytest
from mcp import Client, MCPError
from mcp.client.client import ConnectMode
from mcp.client.streamable_http import streamable_http_client
from tests.clients import COURIER, DESK, PORTER, client, client_fleet, post_call, served

from vedette.interfaces.http import mcp_server
from vedette.interfaces.http.agent_tokens import MAX_OPEN
from vedette.interfaces.http.mcp_server import KEY_META
from vedette.operations.agent_calls import AgentCalls
from vedette.testing.harness import FleetHarness
from vedette.testing.toy_fleet import World

ERAS: tuple[ConnectMode, ...] = ("auto", "legacy")


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


@asynccontextmanager
async def connected(
    address: str, token: str = COURIER, mode: ConnectMode = "auto"
) -> AsyncIterator[Client]:
    """Connect the official client, as the agent that a token is of."""
    headers = {"Authorization": f"Bearer {token}"}
    async with (
        httpx2.AsyncClient(headers=headers, timeout=40, trust_env=False) as http,
        Client(streamable_http_client(f"{address}/mcp", http_client=http), mode=mode) as found,
    ):
        yield found


async def call(
    who: Client, tool: str, args: Mapping[str, Any], key: str | None = None
) -> dict[str, Any]:
    """Call a tool; what came of it, which text and structure say alike."""
    meta: Any = None if key is None else {KEY_META: key}
    found = await who.call_tool(tool, dict(args), meta=meta)
    (text,) = found.content
    assert json.loads(text.text) == found.structured_content  # type: ignore[union-attr]
    value: dict[str, Any] = found.structured_content
    assert found.is_error == (value.get("status", "refused") in ("refused", "failed"))
    return value


@pytest.mark.parametrize("mode", ERAS)
async def test_both_eras_list_and_call(address: str, world: World, mode: ConnectMode) -> None:
    async with connected(address, mode=mode) as who:
        assert (who.protocol_version >= "2026") == (mode == "auto")
        capabilities = who.server_capabilities.model_dump(exclude_none=True)
        assert set(capabilities) <= {"tools", "experimental"}
        assert who.instructions is not None
        assert "outcome" in who.instructions
        tools = {tool.name: tool for tool in (await who.list_tools()).tools}
        assert set(tools) == {
            "note_add", "wire_send", "order_place", "bell_ring", "slow_send", "big_send",
            "book_look", "book_sure", "outcome",
        }  # fmt: skip
        assert tools["wire_send"].input_schema["required"] == ["to", "text"]
        found = await call(who, "wire_send", {"to": DESK, "text": mode})
    assert found["status"] == "done"
    assert world.texts() == [mode]


@pytest.mark.parametrize("mode", ERAS)
async def test_two_agents_see_neither_each_other_s_tools_nor_calls(
    address: str, mode: ConnectMode
) -> None:
    async with connected(address, mode=mode) as courier, connected(address, PORTER, mode) as porter:
        theirs = [tool.name for tool in (await porter.list_tools()).tools]
        assert theirs == ["wire_send", "outcome"]
        mine = await call(courier, "wire_send", {"to": DESK, "text": "mine"})
        known = await call(porter, "outcome", {"call": mine["call"]})
        unknown = await call(porter, "outcome", {"call": "run_" + "0" * 32})
        assert known["error"]["code"] == unknown["error"]["code"] == "not-found"
        assert await call(courier, "outcome", {"call": mine["call"]}) == mine


@pytest.mark.parametrize("mode", ERAS)
async def test_a_retry_is_one_effect_with_a_key_and_without(
    address: str, world: World, mode: ConnectMode
) -> None:
    args = {"to": DESK, "text": "once"}
    async with connected(address, mode=mode) as who:
        keyed = [await call(who, "bell_ring", args, "k") for _ in range(3)]
        bare = [await call(who, "bell_ring", args) for _ in range(3)]
    assert len({found["call"] for found in keyed}) == 1
    assert len({found["call"] for found in bare}) == 1
    assert world.effects() == 2
    # One call by either way in.
    async with client(address) as plain:
        assert (await post_call(plain, "bell.ring", args, "k"))["call"] == keyed[0]["call"]


@pytest.mark.parametrize("mode", ERAS)
async def test_a_cut_call_is_done_once_and_told_to_who_asks_again(
    address: str, world: World, mode: ConnectMode, caplog: pytest.LogCaptureFixture
) -> None:
    args = {"to": DESK, "text": "cut"}
    gate = asyncio.Event()
    loop = asyncio.get_running_loop()

    def slowly(call: Any) -> None:
        asyncio.run_coroutine_threadsafe(gate.wait(), loop).result(20)

    world.answer = slowly
    async with connected(address, mode=mode) as who:
        cut = asyncio.create_task(who.call_tool("bell_ring", args))
        async with asyncio.timeout(20):
            while not world.calls:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
        cut.cancel()
        await asyncio.gather(cut, return_exceptions=True)
    gate.set()
    async with connected(address, mode=mode) as who:
        found = await call(who, "bell_ring", args)
        if found["status"] == "pending":
            found = await call(who, "outcome", {"call": found["call"], "wait_s": 20})
    assert found["status"] == "done"
    assert world.effects() == 1
    assert [record for record in caplog.records if record.levelname == "ERROR"] == []


@pytest.mark.parametrize("mode", ERAS)
async def test_a_held_call_is_an_ordinary_result_and_its_outcome_comes_later(
    fleet: FleetHarness, address: str, world: World, mode: ConnectMode
) -> None:
    async with connected(address, mode=mode) as who:
        held = await call(who, "big_send", {"to": DESK, "text": "big"})
        assert (held["status"], held["waits"], held["after_s"]) == ("held", "approval", 30)
        waiting = asyncio.create_task(call(who, "outcome", {"call": held["call"], "wait_s": 20}))
        (row,) = fleet.app.store.runs.actions(held["call"])
        await fleet.approve(row)
        found = await waiting
    assert found["status"] == "done"
    assert world.effects("big.send") == 1


@pytest.mark.parametrize("mode", ERAS)
async def test_what_is_denied_or_no_call_is_told_and_nothing_is_done(
    address: str, world: World, mode: ConnectMode
) -> None:
    async with connected(address, PORTER, mode) as who:
        denied = await call(who, "wire_send", {"to": "x@evil.example", "text": "x"})
        assert (denied["status"], denied["reason"]) == ("denied", "origins")
        other = await call(who, "bell_ring", {"to": DESK, "text": "x"})
        assert (other["status"], other["reason"]) == ("denied", "grant")
        unknown = await call(who, "no_such", {})
        assert (unknown["status"], unknown["reason"]) == ("refused", "bad-proposal")
        wrong = await call(who, "wire_send", {"to": DESK})
        assert "needs the argument 'text'" in wrong["why"]
        reused = await call(who, "wire_send", {"to": DESK, "text": "a"}, "k")
        assert reused["status"] == "done"
        reused = await call(who, "wire_send", {"to": DESK, "text": "b"}, "k")
        assert reused["error"]["code"] == "key-reused"
        assert (await call(who, "outcome", {}))["error"]["code"] == "not-found"
    assert world.texts() == ["a"]


@pytest.mark.parametrize("token", ["wrong-" + "w" * 32, "", "a.b.c"])
async def test_a_token_of_nobody_is_401_before_anything_is_read(address: str, token: str) -> None:
    async with httpx.AsyncClient(base_url=address, trust_env=False) as nobody:
        headers = {"Authorization": f"Bearer {token}".strip()}
        answer = await nobody.post("/mcp", content=b"{", headers=headers)
        assert answer.status_code == 401
        assert answer.headers["www-authenticate"].startswith("Bearer ")
        assert (await nobody.get("/mcp")).status_code == 405
    with pytest.raises((MCPError, httpx2.HTTPError, BaseExceptionGroup)):
        async with connected(address, token or "none"):
            pass


_2026 = {
    "io.modelcontextprotocol/protocolVersion": "2026-07-28",
    "io.modelcontextprotocol/clientInfo": {"name": "x", "version": "1"},
    "io.modelcontextprotocol/clientCapabilities": {},
}


@pytest.mark.parametrize("version", ["2025-06-18", "2026-07-28"])
async def test_who_hangs_up_waits_no_longer_and_takes_no_room(
    fleet: FleetHarness, address: str, version: str, caplog: pytest.LogCaptureFixture
) -> None:
    port = int(address.rpartition(":")[2])
    async with client(address) as courier:
        held = await post_call(courier, "big.send", {"to": DESK, "text": "big"})
        params: dict[str, Any] = {
            "name": "outcome", "arguments": {"call": held["call"], "wait_s": 30},
            **({"_meta": _2026} if version > "2026" else {}),
        }  # fmt: skip
        body = json.dumps({"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params})
        head = (
            f"POST /mcp HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nAuthorization: Bearer {COURIER}\r\n"
            "Accept: application/json, text/event-stream\r\nContent-Type: application/json\r\n"
            f"MCP-Protocol-Version: {version}\r\nMcp-Method: tools/call\r\nMcp-Name: outcome\r\n"
            f"Content-Length: {len(body)}\r\n\r\n"
        )

        async def wait_for_room(status: int) -> None:
            async with asyncio.timeout(20):
                while (await courier.get("/v1/agent/tools")).status_code != status:  # noqa: ASYNC110
                    await asyncio.sleep(0.02)

        waiting = []
        for _ in range(MAX_OPEN):
            _, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write((head + body).encode())
            waiting.append(writer)
        await wait_for_room(429)  # the control: all of them are open
        for writer in waiting:
            writer.close()
        await wait_for_room(200)
        # All of them ended: as many find room again, and the hold is still there for a person.
        path = f"/v1/agent/calls/{held['call']}?wait_s=1"
        answers = await asyncio.gather(*(courier.get(path) for _ in range(MAX_OPEN)))
        assert {answer.status_code for answer in answers} == {200}
    (row,) = fleet.app.store.runs.actions(held["call"])
    assert row.hold == "open"
    assert [record for record in caplog.records if record.levelname == "ERROR"] == []


async def post_raw(address: str, arguments: str) -> httpx.Response:
    """Send a tools/call whose arguments are this text, be it JSON or not."""
    body = f'{{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{arguments}}}'
    headers = {"Accept": "application/json", "Content-Type": "application/json"}
    async with client(address) as courier:
        return await courier.post("/mcp", content=body, headers=headers)


@pytest.mark.parametrize(
    ("wait", "status"),
    [("NaN", 400), ("Infinity", 400), ("-1", 200), ("-1e400", 400), ("true", 200), ('"x"', 200)],
)
async def test_an_odd_wait_ends_and_leaves_the_timers_of_others(
    address: str, caplog: pytest.LogCaptureFixture, wait: str, status: int
) -> None:
    async with client(address) as courier:
        held = await post_call(courier, "big.send", {"to": DESK, "text": "big"})
    odd = '{{"name":"outcome","arguments":{{"call":"{}","wait_s":{}}}}}'.format(held["call"], wait)
    async with asyncio.timeout(10):
        answer = await post_raw(address, odd)
    assert answer.status_code == status, answer.text
    assert [record for record in caplog.records if record.levelname == "ERROR"] == []


@pytest.mark.parametrize(
    "wait_s", [float("nan"), float("-inf"), -(10**400)], ids=["nan", "-inf", "-1e400"]
)
async def test_a_wait_of_no_length_is_none(fleet: FleetHarness, address: str, wait_s: Any) -> None:
    async with client(address) as courier:
        held = await post_call(courier, "big.send", {"to": DESK, "text": "big"})
    calls = AgentCalls(
        fleet.app.services, fleet.app.intake, window_us=1, per_minute=300, most_open=100
    )
    agent = fleet.app.services.fleet.agents["courier"]
    async with asyncio.timeout(5):
        assert (await calls.outcome(agent, held["call"], wait_s))["status"] == "held"


async def test_a_wait_beyond_all_numbers_is_the_longest(
    fleet: FleetHarness, address: str, caplog: pytest.LogCaptureFixture
) -> None:
    async with client(address) as courier:
        held = await post_call(courier, "big.send", {"to": DESK, "text": "big"})
    odd = '{{"name":"outcome","arguments":{{"call":"{}","wait_s":1{}}}}}'.format(
        held["call"], "0" * 400
    )
    waiting = asyncio.create_task(post_raw(address, odd))
    await asyncio.sleep(0.3)
    assert not waiting.done()
    (row,) = fleet.app.store.runs.actions(held["call"])
    await fleet.approve(row)
    answer = await waiting
    assert answer.json()["result"]["structuredContent"]["status"] == "done"
    assert [record for record in caplog.records if record.levelname == "ERROR"] == []


@pytest.mark.parametrize(
    "arguments",
    [
        '{"to": "x", "text": NaN}',
        '{"text": "a", "text": "b"}',
        '{"text": %s}' % ("[" * 150 + "]" * 150),
    ],
    ids=["NaN", "twice", "deep"],
)
async def test_what_the_api_would_not_read_mcp_does_not(
    fleet: FleetHarness, address: str, arguments: str
) -> None:
    answer = await post_raw(address, f'{{"name":"wire_send","arguments":{arguments}}}')
    assert answer.status_code == 400, answer.text
    assert set(answer.json()["error"]) == {"code", "what", "where", "mend"}
    assert fleet.entries("event.accepted") == []


@pytest.mark.parametrize(
    ("body", "status"),
    [(b"{", 400), (b"[]", 400), (b'{"jsonrpc": "2.0"}', 400), (b"x" * 400_000, 413)],
)
async def test_what_is_no_request_of_mcp(address: str, body: bytes, status: int) -> None:
    async with client(address) as courier:
        accept = {"Accept": "application/json", "Content-Type": "application/json"}
        answer = await courier.post("/mcp", content=body, headers=accept)
    assert answer.status_code == status, answer.text


async def test_without_the_sdk_the_answer_says_what_to_install(
    address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mcp_server, "find_spec", lambda name: None)
    async with client(address) as courier:
        answer = await courier.post("/mcp", json={})
        assert answer.status_code == 501
        assert "vedette[mcp]" in answer.json()["error"]["mend"]
        assert (await courier.get("/v1/agent/tools")).status_code == 200

"""MCP servers' tools: real servers of both eras, hostile ones, and what each leaves of a call."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
import uvicorn
from mcp.server.mcpserver import MCPServer
from msgspec.structs import replace
from starlette.requests import Request
from starlette.responses import JSONResponse, RedirectResponse, Response
from tests.contract.adapters.http.test_http_tool import certificate
from tests.workers import until

from vedette.adapters.mcp.client_process import ClientProcess, ProcessLost
from vedette.adapters.mcp.probe import list_server, probe_server
from vedette.adapters.mcp.scratch import ScratchFolder, remove_leftovers
from vedette.adapters.mcp.tools import McpTools
from vedette.adapters.reasoners.workers.sandbox_probe import protection
from vedette.domain.base import machine
from vedette.domain.base.errors import Unavailable, VedetteError
from vedette.domain.effect import Call, Outcome
from vedette.domain.ports.plugin import BoxSettings
from vedette.domain.tool import Tool

RAW = Path(__file__).with_name("raw_server.py")
MODERN = Path(__file__).with_name("modern_server.py")

boxed_here = pytest.mark.skipif(
    not protection().seccomp or protection().landlock < 6, reason="needs a kernel with all of a box"
)


def raw(*behaviour: str, **more: Any) -> dict[str, Any]:
    command = [sys.executable, str(RAW), *behaviour]
    return {"kind": "mcp", "command": command, "read": [str(RAW)], **more}


DIGESTS: dict[tuple[str, ...], dict[str, str]] = {}


class World:
    """One performer, and calls of one agent's tools by it."""

    def __init__(self, folder: Path) -> None:
        self.box = BoxSettings(folder / "programs")
        self.tools = McpTools(self.box)
        self.calls = 0

    async def pin(
        self, table: dict[str, Any], name: str, settles: Any = "none", errors: str = "unknown"
    ) -> Tool:
        command = tuple(table["command"])
        if command not in DIGESTS:
            listed = await list_server(table, self.box)
            DIGESTS[command] = {one["name"]: one["digest"] for one in listed.tools}
        digest = DIGESTS[command][name]
        return Tool(
            f"server.{name}", name, "server", {}, (), settles, "mcp", target="server",
            performer="mcp", request={"tool": name, "digest": digest, "errors": errors},
        )  # fmt: skip

    async def perform(self, tool: Tool, table: dict[str, Any], **more: Any) -> Outcome:
        found = await self.attempt(tool, table, **more)
        assert found is not None
        return found

    async def attempt(
        self,
        tool: Tool,
        table: dict[str, Any],
        may_start: Callable[[], bool] = lambda: True,
        seconds: float = 10,
        **args: Any,
    ) -> Outcome | None:
        self.calls += 1
        call = Call(
            tool.name, args, f"key-{self.calls}", "clerk", "run_00112233445566778899", table, (),
            1, int(seconds * 1_000_000),
        )  # fmt: skip
        return await self.tools.perform(tool, call, may_start)

    async def text(self, table: dict[str, Any], name: str, text: str = "", **more: Any) -> str:
        found = await self.perform(await self.pin(table, name), table, text=text, **more)
        return str(found.data["content"][0]["text"] if found.data else found.error)


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[World]:
    made = World(tmp_path)
    yield made
    made.tools.close()
    await until(lambda: not any((tmp_path / "programs").glob("*")))


# --- both eras, both transports -----------------------------------------------------------------


@pytest.mark.parametrize("era", ["initialize", "2026-07-28"])
async def test_a_program_of_either_era_is_listed_and_called(world: World, era: str) -> None:
    table = raw()
    if era == "2026-07-28":
        table = {**table, "command": [sys.executable, str(MODERN)], "read": [str(MODERN)]}
    listed = await list_server(table, world.box)
    assert listed.protocol == ("2026-07-28" if era == "2026-07-28" else "2025-06-18")
    tool = await world.pin(table, "echo")
    found = await world.perform(tool, table, text="so be it")
    assert found.state == "done"
    assert found.data["content"] == [{"type": "text", "text": "so be it"}]


class HttpServer:
    """An MCP server of the SDK behind HTTP; `seen` are the requests' headers."""

    def __init__(self, port: int) -> None:
        self.url = f"http://127.0.0.1:{port}/mcp"
        self.seen: list[dict[str, str]] = []
        self.leads_to = ""
        self.token = ""


@pytest.fixture
def http_server() -> Iterator[HttpServer]:
    with serve_http() as made:
        yield made


@contextmanager
def serve_http(**more: Any) -> Iterator[HttpServer]:
    """Serve while the context lasts; `more` goes to uvicorn."""
    server = MCPServer("far")

    @server.tool()
    def echo(text: str) -> str:
        """Say it again."""
        return text

    inner = server.streamable_http_app(stateless_http=True, json_response=True)
    line = socket.create_server(("127.0.0.1", 0))
    made = HttpServer(line.getsockname()[1])

    async def app(scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "http":
            request = Request(scope)
            made.seen.append(dict(request.headers))
            answer: Response | None = None
            if made.leads_to:
                answer = RedirectResponse(made.leads_to, status_code=307)
            elif made.token and request.headers.get("authorization") != f"Bearer {made.token}":
                answer = JSONResponse({}, status_code=401)
            if answer is not None:
                await answer(scope, receive, send)
                return
        await inner(scope, receive, send)

    running = uvicorn.Server(
        uvicorn.Config(app, log_level="critical", lifespan="on", ws="none", **more)
    )
    thread = threading.Thread(target=running.run, kwargs={"sockets": [line]})
    thread.start()
    while not running.started:
        threading.Event().wait(0.01)
    yield made
    running.should_exit = True
    thread.join()
    line.close()


def far(server: HttpServer, **more: Any) -> dict[str, Any]:
    return {"kind": "mcp", "url": server.url, "private": True, **more}


async def test_a_server_behind_http_is_called_with_the_targets_token(
    world: World, http_server: HttpServer
) -> None:
    http_server.token = "swordfish"
    table = far(http_server, token="swordfish")
    found = await world.perform(await _pin_far(world, table), table, text="hello")
    assert found.data["content"][0]["text"] == "hello"
    assert {one["authorization"] for one in http_server.seen} == {"Bearer swordfish"}
    assert any(one.get("mcp-method") == "tools/call" for one in http_server.seen)


async def _pin_far(world: World, table: dict[str, Any]) -> Tool:
    process = ClientProcess(table, world.box)
    await process.start()
    try:
        answer = await process.ask({"do": "list"}, 20)
    finally:
        process.kill()
    request = {"tool": "echo", "digest": answer["tools"][0]["digest"]}
    return Tool(
        "far.echo", "echo", "far", {}, (), "none", "mcp", target="far", performer="mcp",
        request=request,
    )  # fmt: skip


@pytest.mark.parametrize("name", ["localhost", "elsewhere.example"])
async def test_a_certificate_has_to_be_the_hosts(world: World, tmp_path: Path, name: str) -> None:
    """One of the wrong name, or of nobody we trust, is shown nothing."""
    ca = certificate(tmp_path, name)
    files = {"ssl_certfile": str(ca), "ssl_keyfile": str(tmp_path / "key.pem")}
    with serve_http(**files) as server:
        url = server.url.replace("http://127.0.0.1", "https://localhost")
        table = far(server) | {"url": url}
        with pytest.raises(Unavailable, match="CERTIFICATE"):
            await list_server(table, world.box)
        assert server.seen == []
        trusted = {**table, "ca_file": str(ca)}
        if name == "localhost":
            assert len((await list_server(trusted, world.box)).tools) == 1
        else:
            with pytest.raises(Unavailable, match="CERTIFICATE"):
                await list_server(trusted, world.box)


async def test_a_wrong_token_is_said_and_nothing_is_called(
    world: World, http_server: HttpServer
) -> None:
    tool = await _pin_far(world, far(http_server))
    http_server.token = "swordfish"
    found = await world.perform(tool, far(http_server, token="sardine"), text="hello")
    assert found.state == "retry"
    assert found.error == "not called: the server answers 401: see the target's token"


async def test_a_token_that_is_refused_at_the_call_is_no_lost_answer(
    world: World, http_server: HttpServer
) -> None:
    http_server.token = "swordfish"
    table = far(http_server, token="swordfish")
    tool = await _pin_far(world, table)

    def revoke() -> bool:
        http_server.token = "another"
        return True

    found = await world.perform(tool, table, may_start=revoke, text="hello")
    assert found == Outcome("failed", error="the server answers 401: see the target's token")


class SessionServer:
    """An MCP server with sessions, by hand: it takes a call, and its answer's stream breaks off.

    `resumed` is what it answers to who asks for the rest of a stream. `taken` are the keys of the
    calls that it has done; a session that is not `session` it does not know.
    """

    def __init__(self, resumed: int = 404, breaks_off: bool = True) -> None:
        self.taken: list[str] = []
        self.session = "one"
        outer = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def log_message(self, *args: Any) -> None:
                pass

            def say(self, status: int, body: Any = None, **headers: str) -> None:
                raw = b"" if body is None else json.dumps(body).encode()
                self.send_response(status)
                headers |= {"content-type": "application/json", "content-length": str(len(raw))}
                for name, value in headers.items():
                    self.send_header(name.replace("_", "-"), value)
                self.end_headers()
                self.wfile.write(raw)

            def do_GET(self) -> None:
                self.say(resumed if "last-event-id" in self.headers else 405)

            def do_DELETE(self) -> None:
                self.say(200)

            def do_POST(self) -> None:
                asked = json.loads(self.rfile.read(int(self.headers["content-length"])))
                method, number = asked["method"], asked.get("id")
                found: dict[str, Any] = {"jsonrpc": "2.0", "id": number}
                if method == "initialize":
                    info = {"name": "sessions", "version": "1"}
                    result = {
                        "protocolVersion": "2025-06-18",
                        "capabilities": {},
                        "serverInfo": info,
                    }
                    self.say(200, {**found, "result": result}, mcp_session_id=outer.session)
                elif number is None:
                    self.say(202)
                elif method == "server/discover":
                    self.say(200, {**found, "error": {"code": -32601, "message": "no"}})
                elif self.headers["mcp-session-id"] != outer.session:
                    self.say(404)
                elif method == "tools/list":
                    tool = {"name": "echo", "inputSchema": {"type": "object"}}
                    self.say(200, {**found, "result": {"tools": [tool]}})
                else:
                    outer.taken.append(asked["params"]["_meta"]["vedette/key"])
                    if not breaks_off:
                        self.say(200, {**found, "result": {"content": []}})
                        return
                    self.send_response(200)
                    self.send_header("content-type", "text/event-stream")
                    self.send_header("connection", "close")
                    self.end_headers()
                    self.wfile.write(b"id: 1\nretry: 10\ndata: \n\n")
                    self.close_connection = True

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}/mcp"
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    def close(self) -> None:
        self.server.shutdown()
        self.server.server_close()


@pytest.mark.parametrize("resumed", [404, 401, 500])
@pytest.mark.parametrize(("settles", "state"), [("none", "unknown"), ("idempotent", "retry")])
async def test_a_call_that_was_taken_is_lost_whatever_becomes_of_its_answer(
    world: World, resumed: int, settles: Any, state: str
) -> None:
    server = SessionServer(resumed)
    try:
        table = {"kind": "mcp", "url": server.url, "private": True}
        tool = replace(await _pin_far(world, table), settles=settles)
        found = await world.perform(tool, table)
        assert found.state == state, found
        assert server.taken == ["key-1"]
    finally:
        server.close()


async def test_a_session_that_the_server_forgot_is_begun_anew(world: World) -> None:
    server = SessionServer(breaks_off=False)
    try:
        table = {"kind": "mcp", "url": server.url, "private": True}
        tool = await _pin_far(world, table)

        def forget() -> bool:
            server.session = "two"
            return True

        found = await world.perform(tool, table, may_start=forget)
        assert found.state == "retry"
        assert found.error.startswith("not called: the server answers with error -32600")
        assert server.taken == []
        assert (await world.perform(tool, table)).state == "done"
        assert server.taken == ["key-2"]
    finally:
        server.close()


async def test_a_server_that_moves_is_found_again(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = SessionServer(breaks_off=False)
    try:
        table = {"kind": "mcp", "url": server.url.replace("127.0.0.1", "mcp.example"),
                 "private": True}  # fmt: skip
        addresses, port = ["127.0.0.2"], server.server.server_port

        async def lookup(*args: Any, **more: Any) -> list[Any]:
            return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (addresses[0], port))]

        monkeypatch.setattr(asyncio.get_running_loop(), "getaddrinfo", lookup)
        tool = await _pin_far(world, {"kind": "mcp", "url": server.url, "private": True})
        assert (await world.perform(tool, table)).state == "retry"
        addresses[0] = "127.0.0.1"
        assert (await world.perform(tool, table)).state == "done"
    finally:
        server.close()


async def test_a_call_that_is_led_elsewhere_is_called_later(
    world: World, http_server: HttpServer
) -> None:
    table = far(http_server)
    tool = await _pin_far(world, table)

    def move() -> bool:
        http_server.leads_to = "http://127.0.0.1:9/elsewhere"
        return True

    found = await world.perform(tool, table, may_start=move, text="hello")
    assert found.state == "retry"
    assert found.error.startswith("not called: the server answers with error -32600")
    http_server.leads_to = ""
    assert (await world.perform(tool, table, text="hello")).state == "done"


async def test_a_redirect_to_another_server_is_not_followed_and_no_token_goes_there(
    world: World, http_server: HttpServer
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        other.settimeout(1.0)
        tool = await _pin_far(world, far(http_server))
        http_server.leads_to = f"http://127.0.0.1:{other.getsockname()[1]}/mcp"
        found = await world.perform(tool, far(http_server, token="swordfish"), text="hello")
        assert found.state == "retry", found
        with pytest.raises(TimeoutError):
            other.accept()


async def test_a_private_address_is_gone_to_only_where_the_target_says_so(
    world: World, http_server: HttpServer
) -> None:
    with pytest.raises(Unavailable, match=r"127\.0\.0\.1, a private address"):
        await list_server({"kind": "mcp", "url": http_server.url}, world.box)
    assert http_server.seen == []


# --- pins ---------------------------------------------------------------------------------------


async def test_a_tool_that_the_server_describes_otherwise_is_refused(
    world: World, tmp_path: Path
) -> None:
    mark = tmp_path / "changed" / "mark"
    mark.parent.mkdir()
    table = raw(environment={"MARK": str(mark)}, write=[str(mark.parent)])
    tool, other = await world.pin(table, "echo"), await world.pin(table, "image")
    change = await world.pin(table, "change")
    done = await world.perform(tool, table, text="before")
    assert done.state == "done"
    # Said by the server itself, on the connection that is open.
    await world.perform(change, table)
    refused = await world.perform(tool, table, text="after")
    assert refused == Outcome(
        "failed",
        error="not called: the server's tool 'echo' is another than was pinned; see what changed "
        "with `vedette tool add --again`",
    )
    # And by a server that starts anew; the others go on.
    world.tools.close()
    world.tools = McpTools(world.box)
    assert await world.perform(tool, table, text="after") == refused
    still = await world.perform(other, table)
    assert still.state == "done"


async def test_a_tool_that_the_server_has_no_more_is_refused(world: World) -> None:
    tool = await world.pin(raw(), "echo")
    gone = Tool(
        tool.name, "echo", "server", {}, (), "none", "mcp", target="server", performer="mcp",
        request={"tool": "other", "digest": (tool.request or {})["digest"]},
    )  # fmt: skip
    found = await world.perform(gone, raw(), text="hello")
    assert found.state == "failed"
    assert "has no tool 'other' any more" in found.error


async def test_a_probe_says_which_tool_of_which_agent_changed(world: World, tmp_path: Path) -> None:
    mark = tmp_path / "mark"
    table = raw(environment={"MARK": str(mark)}, read=[str(RAW), str(tmp_path)])
    tool = await world.pin(table, "echo")
    told = await probe_server(table, [("clerk", tool)], world.box)
    assert told == "raw 1, MCP 2025-06-18, 25 tools"
    mark.write_text("")
    with pytest.raises(VedetteError, match=r"echo, which clerk has as server\.echo, is another"):
        await probe_server(table, [("clerk", tool)], world.box)


async def test_without_a_permit_nothing_is_called(world: World) -> None:
    table = raw()
    tool = await world.pin(table, "echo")
    assert await world.attempt(tool, table, lambda: False, text="x") is None


async def test_a_permit_that_came_late_starts_nothing(world: World, tmp_path: Path) -> None:
    (tmp_path / "given").mkdir()
    record = tmp_path / "given/record"
    table = raw(environment={"RECORD": str(record)}, write=[str(tmp_path / "given")])
    tool = await world.pin(table, "work")
    process = ClientProcess(table, world.box)
    await process.start()
    named: dict[str, Any] = {**(tool.request or {}), "arguments": {}, "seconds": 5.0}
    named["meta"] = {"vedette/key": "k"}
    in_time = {"until_us": machine.boot_us() + 60_000_000}
    try:
        # Before the list was looked at, and after the permit's end.
        assert (await process.ask({"do": "call", **named, **in_time}, 20))["again"]
        assert (await process.ask({"do": "check", **(tool.request or {})}, 20))["ok"]
        assert (await process.ask({"do": "call", **named, "until_us": 0}, 20))["again"]
        assert not record.exists()
        await process.ask({"do": "call", **named, **in_time}, 20)
        assert record.exists()
    finally:
        process.kill()


# --- what a call comes to -----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "settles", "state", "told"),
    [
        ("fails", "none", "unknown", "the tool says: x"),
        ("fails", "idempotent", "failed", "the tool says: x"),
        ("maybe", "none", "unknown", "isError is neither"),
        ("wrong", "none", "unknown", "error -32602: so it is"),
        ("wrong", "idempotent", "failed", "error -32602: so it is"),
        ("broken", "none", "unknown", "error -32603: so it is"),
        ("broken", "idempotent", "retry", "error -32603: so it is"),
        ("leave", "none", "unknown", "the server ended"),
        ("leave", "idempotent", "retry", "the server ended"),
        ("garbage", "none", "unknown", "the server wrote no message"),
        ("endless", "none", "unknown", "the server wrote no message"),
        ("hang", "none", "unknown", "no answer within 6 s"),
        ("hang", "idempotent", "retry", "no answer within 6 s"),
        ("input", "none", "unknown", "none of the protocol's"),
        ("grow", "none", "unknown", "MemoryError"),
    ],
)
async def test_what_becomes_of_a_call_is_settled_as_the_tool_declares(
    world: World, name: str, settles: str, state: str, told: str
) -> None:
    table = raw()
    found = await world.perform(await world.pin(table, name, settles), table, seconds=6, text="x")
    assert found.state == state, found
    assert told in found.error
    # Whatever it did, the next call has a server.
    assert await world.text(table, "echo", "still here") == "still here"


@pytest.mark.parametrize("name", ["fails", "wrong", "broken"])
async def test_an_error_says_that_nothing_was_done_where_a_person_says_so(
    world: World, name: str
) -> None:
    tool = await world.pin(raw(), name, errors="not_done")
    found = await world.perform(tool, raw(), text="x")
    # An error of the protocol that could be any is no error of the tool.
    assert found.state == ("unknown" if name == "broken" else "failed")


async def test_long_answers_come_whole_beside_short_ones(world: World) -> None:
    table = raw()
    big, echo = await world.pin(table, "big"), await world.pin(table, "echo")
    calls = [world.perform(big if at % 3 == 0 else echo, table, text="x") for at in range(9)]
    # The engine has something else to do, and what it does not read at once is not lost.
    tasks = [asyncio.create_task(call) for call in calls]
    for _ in range(40):
        await asyncio.sleep(0.05)
        time.sleep(0.1)  # noqa: ASYNC251 (the loop is to stand still)
    found = await asyncio.gather(*tasks)
    assert {one.state for one in found} == {"done"}, [one.error for one in found]
    assert [one.data.get("cut", False) for one in found] == [True, False, False] * 3


async def test_a_client_that_cannot_answer_ends_at_once(world: World) -> None:
    process = ClientProcess(raw(), world.box)
    await process.start()
    try:
        with pytest.raises(ProcessLost):
            await process.ask({"do": "check"}, 20)  # what is to be checked is not said
    finally:
        process.kill()


async def test_a_process_that_gives_no_list_is_said_to_hang(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("vedette.adapters.mcp.probe._LIST_S", 0.01)
    with pytest.raises(Unavailable, match="the server's process hangs"):
        await list_server(raw(), world.box)


async def test_what_a_program_writes_to_its_standard_error_is_in_no_outcome(world: World) -> None:
    tool = await world.pin(raw(), "echo")
    found = await world.perform(tool, raw("dead"), text="x")
    assert found.error.startswith("not called: the server ended")
    assert "cannot start" not in str(found)


async def test_a_secret_that_a_server_tells_is_not_told_on(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("THE_KEY", 'sword"fish')
    table = raw("tells", token_env="THE_KEY", secrets={"KEY": "token"})
    (echo, *_) = (await list_server(table, world.box)).tools
    assert echo["description"] == "The key is ***"
    # Not said by who cannot send it, either.
    far_away = {"kind": "mcp", "url": "https://127.0.0.1:9/", "private": True, "token": "a\nb"}
    with pytest.raises(Unavailable, match="token cannot stand in a header"):
        await list_server(far_away, world.box)


@pytest.mark.parametrize("secret", ["2", "e", "text"])
async def test_whatever_a_secret_is_a_listing_stays_what_is_to_be_pinned(
    world: World, secret: str
) -> None:
    given = raw(secrets={"KEY": "token"}, token=secret)
    assert await list_server(given, world.box) == await list_server(raw(), world.box)


@pytest.mark.parametrize(
    ("secret", "name", "state", "error"),
    [
        ("2", "broken", "unknown", "the server answers with error -3***603: so it is"),
        ("lost", "broken", "unknown", "the server answers with error -32603: so it is"),
        ("true", "broken", "unknown", "the server answers with error -32603: so it is"),
        ("2", "wrong", "failed", "the server answers with error -3***60***: so it is"),
        ("error", "wrong", "failed", "the server answers with *** -32602: so it is"),
        ("lost", "leave", "unknown", "the server ended"),
        ("2", "echo", "done", ""),
    ],
)
async def test_whatever_a_secret_is_a_call_stays_what_became_of_it(
    world: World, secret: str, name: str, state: str, error: str
) -> None:
    tool = await world.pin(raw(), name, errors="not_done")
    found = await world.perform(tool, raw(secrets={"KEY": "token"}, token=secret), text="x")
    assert (found.state, found.error) == (state, error)


async def test_arguments_that_are_too_long_for_a_message_are_not_sent(world: World) -> None:
    found = await world.perform(await world.pin(raw(), "echo"), raw(), text="x" * (3 << 20))
    assert found.state == "failed"
    assert found.error.startswith("not called: 3,1")


async def test_a_server_that_hangs_keeps_no_other_call_waiting(world: World) -> None:
    table, other = raw(), raw("other")
    hang, echo = await world.pin(table, "hang"), await world.pin(other, "echo")
    hung = asyncio.create_task(world.perform(hang, table, seconds=6))
    await asyncio.sleep(1.0)
    elsewhere = Tool(
        echo.name, "echo", "server", {}, (), "none", "mcp", target="another", performer="mcp",
        request=echo.request,
    )  # fmt: skip
    found = await world.perform(elsewhere, other, seconds=4, text="quick")
    assert found.state == "done"
    assert not hung.done()
    assert (await hung) == Outcome("unknown", error="no answer within 6 s")


@pytest.mark.parametrize("behaviour", ["huge", "endless-pages", "twins", "dead"])
async def test_a_list_that_cannot_be_believed_is_none(world: World, behaviour: str) -> None:
    tool = await world.pin(raw(), "echo")
    found = await world.perform(tool, raw(behaviour), text="x")
    assert found.state == "retry"
    assert found.error.startswith("not called: the server")


async def test_what_a_program_says_before_it_dies_is_told_without_its_secrets(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("THE_KEY", "swordfish")
    table = raw("dead", token_env="THE_KEY", secrets={"KEY": "token"})
    with pytest.raises(Unavailable, match=r"it says: cannot start: no key, but \*\*\*"):
        await list_server(table, world.box)


async def test_orders_images_and_noise_are_data(world: World) -> None:
    table = raw()
    orders = await world.perform(await world.pin(table, "orders"), table)
    assert "delete_all" in orders.data["content"][0]["text"]
    image = await world.perform(await world.pin(table, "image"), table)
    assert image.data["content"] == [
        {
            "type": "image", "mimeType": "image/png", "bytes": 5,
            "sha256": "2cf24dba5fb0a30e26e83b2ac5b9e29e1b161e5c1fa7425e73043362938b9824",
        }
    ]  # fmt: skip
    assert await world.text(table, "noise", "heard") == "heard"


async def test_a_server_of_2026_that_asks_back_gets_nothing(world: World) -> None:
    table = raw()
    table |= {"command": [sys.executable, str(MODERN)], "read": [str(MODERN)]}
    found = await world.perform(await world.pin(table, "ask"), table)
    # What the tool had done by then nobody knows.
    assert found.state == "unknown"
    assert "elicitation/create" in found.error


async def test_sampling_roots_and_elicitation_are_refused(world: World) -> None:
    assert json.loads(await world.text(raw(), "ask")) == [True, True, True]


# --- the box ------------------------------------------------------------------------------------


async def test_a_program_has_nothing_of_the_fleets_environment(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("VEDETTE_SECRET", "swordfish")
    table = raw(environment={"MODE": "plain"}, secrets={"KEY": "token"}, token="given")
    found = json.loads(await world.text(table, "environment"))
    found.pop("LC_CTYPE", None)
    assert set(found) == {"PATH", "LANG", "HOME", "TMPDIR", "MODE", "KEY"}
    assert found["KEY"] == "given"
    assert "swordfish" not in str(found)


@boxed_here
async def test_a_program_reaches_what_its_target_says_and_nothing_else(
    world: World, tmp_path: Path
) -> None:
    given, kept = tmp_path / "given", tmp_path / "kept"
    for folder in (given, kept):
        folder.mkdir()
        (folder / "note").write_text("a note")
    table = raw(write=[str(given)])
    assert await world.text(table, "read", str(given / "note")) == "a note"
    assert await world.text(table, "write", str(given / "more")) != "PermissionError"
    assert await world.text(table, "read", str(kept / "note")) == "PermissionError"
    assert await world.text(table, "write", str(kept / "more")) == "PermissionError"
    assert await world.text(table, "signal", str(os.getpid())) == "PermissionError"
    with socket.create_server(("127.0.0.1", 0)) as line:
        port = line.getsockname()[1]
        assert await world.text(table, "dial", f"127.0.0.1:{port}") == "PermissionError"
        for host in ("127.0.0.1", "localhost"):  # a name it looks up itself
            reached = {**table, "reach": [f"{host}:{port}"]}
            assert await world.text(reached, "dial", f"{host}:{port}") == f"{host}:{port}"


async def test_what_is_written_for_a_program_does_not_become_the_program(
    world: World, tmp_path: Path
) -> None:
    """An interpreter looks for code where it starts, so no program starts where it may write."""
    code, given = tmp_path / "code", tmp_path / "given"
    for folder in (code, given / "raw_package"):
        folder.mkdir(parents=True)
    (code / "raw_package").mkdir()
    for folder in (code, given):
        (folder / "raw_package/__init__.py").touch()
    (code / "raw_package/__main__.py").write_text(RAW.read_text())
    (given / "raw_package/__main__.py").write_text("raise SystemExit(5)")
    table = raw(environment={"PYTHONPATH": str(code)}, write=[str(given)])
    table |= {"command": [sys.executable, "-m", "raw_package"], "read": [str(code)]}
    assert await world.text(table, "echo", "the real one") == "the real one"


@boxed_here
async def test_nothing_that_a_program_starts_outlives_it(world: World) -> None:
    table = raw()
    told = await world.text(table, "daemon")
    assert "escaped" not in told
    assert _is_running(int(told))
    world.tools.close()
    await until(lambda: not _is_running(int(told)))


@boxed_here
async def test_a_killed_engine_takes_its_servers_with_it(tmp_path: Path) -> None:
    code = f"""
import asyncio, sys
from pathlib import Path
sys.path.insert(0, {str(Path(__file__).parent)!r})
from test_mcp_tools import World, raw
async def main():
    world = World(Path({str(tmp_path)!r}))
    print(await world.text(raw(), "daemon"), flush=True)
    await world.text(raw(), "hang", seconds=60)
asyncio.run(main())
"""
    engine = _start_engine(code)
    assert engine.stdout is not None
    child = int(await asyncio.to_thread(engine.stdout.readline))
    engine.send_signal(signal.SIGKILL)
    engine.wait()
    engine.stdout.close()
    await until(lambda: not _is_running(child))
    McpTools(BoxSettings(tmp_path / "programs")).close()
    await until(lambda: not any((tmp_path / "programs").iterdir()))


@boxed_here
async def test_a_server_that_stops_its_client_does_not_outlive_a_killed_engine(
    tmp_path: Path,
) -> None:
    (tmp_path / "given").mkdir()
    record = tmp_path / "given/child"
    code = f"""
import asyncio, sys
from pathlib import Path
sys.path.insert(0, {str(Path(__file__).parent)!r})
from test_mcp_tools import World, raw
async def main():
    world = World(Path({str(tmp_path)!r}))
    await world.text(raw(write=[{str(tmp_path / "given")!r}]), "stop", {str(record)!r}, seconds=60)
asyncio.run(main())
"""
    engine = _start_engine(code)
    assert engine.stdout is not None
    await until(lambda: record.exists() and record.read_text() != "")
    child = int(record.read_text())
    await asyncio.sleep(0.3)
    assert _is_running(child)
    engine.send_signal(signal.SIGKILL)
    engine.wait()
    engine.stdout.close()
    await until(lambda: not _is_running(child))


async def test_leftovers_are_those_of_who_ended_whatever_its_number(tmp_path: Path) -> None:
    """Engines in two containers that share a folder may have the same process id."""
    mine = ScratchFolder(tmp_path)
    ended = (
        "import os, sys; from pathlib import Path; "
        "from vedette.adapters.mcp.scratch import ScratchFolder; "
        "made = ScratchFolder(Path(sys.argv[1])); (made.path / 'left').touch(); os._exit(0)"
    )
    await asyncio.to_thread(
        subprocess.run, [sys.executable, "-c", ended, str(tmp_path)], check=True
    )
    await until(lambda: len(list(tmp_path.iterdir())) == 4)
    remove_leftovers(tmp_path)
    await until(lambda: len(list(tmp_path.iterdir())) == 2)
    assert mine.path.is_dir()
    mine.remove()
    await until(lambda: not any(tmp_path.iterdir()))


async def test_nobody_waits_for_the_removal_of_leftovers(tmp_path: Path) -> None:
    left = ScratchFolder(tmp_path)
    for at in range(20_000):
        (left.path / str(at)).touch()
    os.close(left._lock)
    begun = time.thread_time()
    remove_leftovers(tmp_path)
    assert time.thread_time() - begun < 0.05
    await until(lambda: not any(tmp_path.iterdir()))


def _start_engine(code: str) -> subprocess.Popen[str]:
    return subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)


def _is_running(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state != "Z"

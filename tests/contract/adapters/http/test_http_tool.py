"""Declarative HTTP tools against a real server: what is sent, where to, how often; what it means.

The server keeps its own record of what happened to it, apart from what it answers.
"""

from __future__ import annotations

import asyncio
import ipaddress
import json
import socket
import ssl
import threading
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from vedette.adapters.http.outcomes import retry_after_us
from vedette.adapters.http.request import Response
from vedette.adapters.http.target import HTTP
from vedette.adapters.http.template import BadArgument, build_request
from vedette.adapters.http.tools import HttpTools
from vedette.adapters.identity.secrets import with_secrets
from vedette.adapters.tools.performers import PluginTools
from vedette.app.check import code_problems
from vedette.config.settings import load_settings
from vedette.domain.base.addresses import refusal_reason
from vedette.domain.base.errors import BadFleet, Unavailable
from vedette.domain.effect import Call, Outcome
from vedette.domain.readers import Readers
from vedette.domain.tool import SettlementMode, Tool
from vedette.testing.clock import ManualClock
from vedette.testing.harness import FleetHarness
from vedette.testing.toy_fleet import World, job, send_proposal, toy_fleet, wait_until

TOKEN = "geheim-und-lang"


@dataclass
class Shop:
    """What the server does and has seen. `answer` has the first word on each request."""

    seen: list[tuple[str, str, dict[str, str], Any]] = field(default_factory=list)
    happened: Counter[str] = field(default_factory=Counter)
    items: dict[str, Any] = field(default_factory=dict)
    # Returns (status, body, headers), or "lose": it happens and no answer comes; "drop": neither.
    answer: Callable[[str, str], Any] = lambda method, path: None
    port: int = 0
    hold: threading.Event = field(default_factory=threading.Event)
    server: Any = None

    def target(self, **more: Any) -> dict[str, Any]:
        """Return the table of this server."""
        base = f"http://127.0.0.1:{self.port}/api"
        return {"kind": "http", "base_url": base, "private": True, **more}


@pytest.fixture
def shop() -> Iterator[Shop]:
    shop = Shop()

    class Handler(BaseHTTPRequestHandler):
        def _do(self) -> None:
            raw = self.rfile.read(int(self.headers.get("Content-Length", 0)))
            body = json.loads(raw) if raw else None
            shop.seen.append((self.command, self.path, dict(self.headers), body))
            given = shop.answer(self.command, self.path)
            if given == "drop":
                self.connection.shutdown(socket.SHUT_RDWR)
                return
            status, content, headers = given if isinstance(given, tuple) else self._usual(body)
            if given == "lose":
                self.connection.shutdown(socket.SHUT_RDWR)
                return
            if given == "hang":
                shop.hold.wait(10)
            self.send_response(status)
            text = content if isinstance(content, bytes) else json.dumps(content).encode()
            for name, value in {"Content-Type": "application/json", **headers}.items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(text)

        def _usual(self, body: Any) -> tuple[int, Any, dict[str, str]]:
            key = self.headers.get("Idempotency-Key", "")
            if self.command == "GET":
                known = shop.items.get(self.path.rpartition("=")[2])
                return (200, known, {}) if known else (404, {}, {})
            if key and key in shop.items:
                return 200, shop.items[key], {}
            shop.happened[self.path] += 1
            if key:
                shop.items[key] = {"key": key, "body": body}
            return 201, {"made": True}, {}

        do_GET = do_POST = do_PUT = do_DELETE = do_PATCH = _do

        def log_message(self, format: str, *args: Any) -> None:
            """Say nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    shop.port, shop.server = server.server_address[1], server
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield shop
    shop.hold.set()
    server.shutdown()
    thread.join()
    server.server_close()


def certificate(folder: Path, name: str) -> Path:
    """Write a key and a certificate for a name, signed by itself; return what trusts it."""
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    key = ec.generate_private_key(ec.SECP256R1())
    who = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, name)])
    now = datetime.now(UTC)
    made = (
        x509.CertificateBuilder()
        .subject_name(who)
        .issuer_name(who)
        .public_key(key.public_key())
        .serial_number(1)
        .not_valid_before(now - timedelta(days=1))
        .not_valid_after(now + timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([x509.DNSName(name)]), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .sign(key, hashes.SHA256())
    )
    pem = serialization.Encoding.PEM
    (folder / "cert.pem").write_bytes(made.public_bytes(pem))
    (folder / "key.pem").write_bytes(
        key.private_bytes(pem, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    )
    return folder / "cert.pem"


@asynccontextmanager
async def open_tools() -> AsyncIterator[HttpTools]:
    tools = HttpTools()
    try:
        yield tools
    finally:
        await wait_until(lambda: not tools._running)
        tools.close()


QUERY = {"url": "/items?key={@key}", "headers": {}, "done": [200], "absent": [404],
         "where": {"/key": "{@key}"}}  # fmt: skip


def a_tool(settles: SettlementMode = "idempotent", **http: Any) -> Tool:
    spec = {
        "method": "POST", "url": "/items/{item}", "headers": {}, "ok": [200, 201],
        "idempotency_header": "Idempotency-Key", "query": QUERY, "verify": False, **http,
    }  # fmt: skip
    return Tool(
        "item.add", "add", "item", {"item": "string"}, ("/item",), settles, "http", "http",
        performer="http", request={n: value for n, value in spec.items() if value is not None},
    )  # fmt: skip


def a_call(target: dict[str, Any], key: str = "k1", *, seconds: float = 5, **args: Any) -> Call:
    given = {"item": "oar", **args}
    us = int(seconds * 1_000_000)
    return Call("item.add", given, key, "worker", "run_1", target, ("a", "worker"), 1, us)


def yes() -> bool:
    return True


async def outcome(tool: Tool, call: Call) -> Outcome | None:
    async with open_tools() as tools:
        return await tools.perform(tool, call, yes)


# --- what is sent --------------------------------------------------------------------------------


async def test_a_call_is_the_request_that_is_declared(shop: Shop) -> None:
    body = {"title": "a {item}", "labels": "{labels}", "more": {"n": "{n}", "left": "{left}"},
            "is": [True, "{{item}}"]}  # fmt: skip
    tool = a_tool(url="/items/{item}?n={n}&left={left}", headers={"X-Item": "{item}"}, body=body)
    call = a_call(shop.target(), item="été & co", labels=["x", "y"], n=7)
    with pytest.raises(BadArgument):
        build_request({**(tool.request or {})}, call.args, "k")  # no header holds such a letter
    plain = a_tool(url="/items/{item}?n={n}&left={left}", headers={"X-N": "{n}"}, body=body)
    answered = await outcome(plain, call)
    assert answered == Outcome("done", {"status": 201, "body": {"made": True}})
    ((method, path, headers, sent),) = shop.seen
    assert (method, path) == ("POST", "/api/items/%C3%A9t%C3%A9%20%26%20co?n=7")
    assert sent == {"title": "a été & co", "labels": ["x", "y"], "more": {"n": 7},
                    "is": [True, "{item}"]}  # fmt: skip
    assert headers["Idempotency-Key"] == "k1"
    assert headers["X-N"] == "7"
    assert headers["traceparent"] == call.traceparent
    assert headers["vedettelineage"] == "a,worker"
    assert "vedettereaders" not in headers
    assert "Authorization" not in headers


def test_a_fraction_is_written_as_json_writes_it() -> None:
    spec = {"url": "/pay/{sum}?rate={rate}", "body": {"sum": "{sum}", "note": "at {rate}"}}
    request = build_request(spec, {"sum": 12.5, "rate": 0.000003}, "k")
    assert request.target == "/pay/12.5?rate=0.000003"
    assert request.body == {"sum": 12.5, "note": "at 0.000003"}


def test_null_is_sent_as_null_and_what_was_left_out_is_left_out() -> None:
    spec = {
        "method": "PUT", "url": "/issues?of={of}",
        "body": {"assignee": "{who}", "all": ["{who}"], "note": "for {of}", "id": 1},
    }  # fmt: skip
    given = build_request(spec, {"who": None}, "k")
    assert given.body == {"assignee": None, "all": [None], "note": "for ", "id": 1}
    assert given.target == "/issues"
    assert build_request(spec, {}, "k").body == {"all": [], "note": "for ", "id": 1}
    for template in ({"url": "/issues/{who}"}, {"url": "/issues?of={who}"},
                     {"url": "/issues", "body": {"note": "for {who}"}},
                     {"url": "/issues", "headers": {"X-Who": "{who}"}}):  # fmt: skip
        with pytest.raises(BadArgument):
            build_request(template, {"who": None}, "k")


@pytest.mark.parametrize(
    ("readers", "expected"),
    [(frozenset({"b@harbour.example", "a@harbour.example"}), "a@harbour.example,b@harbour.example"),
     (frozenset(), "-")],
)  # fmt: skip
async def test_who_may_read_it_goes_along(shop: Shop, readers: Readers, expected: str) -> None:
    """Whoever makes an event of it can keep its label; an empty one is nobody, not everybody."""
    await outcome(a_tool(), replace(a_call(shop.target()), readers=readers))
    ((_, _, headers, _),) = shop.seen
    assert headers["vedettereaders"] == expected


@pytest.mark.parametrize(
    "item",
    ["..", ".", "...", "", "../admin", "a/b", "a\\b", "%2e%2e", "a%2fb", "a\r\nX: y", "a\0", "\x7f",
     "\ud800", "x" * 2001, None, ["a"], float("nan")],
)  # fmt: skip
async def test_an_argument_stays_in_its_segment(shop: Shop, item: Any) -> None:
    """Nothing is sent, and it is for good: the same argument would be the same tomorrow."""
    result = await outcome(a_tool(), a_call(shop.target(), item=item))
    assert result is not None
    assert result.state == "failed"
    assert result.error.startswith("not called: ")
    assert shop.seen == []


@pytest.mark.parametrize("item", ["a b", "a?b=c", "a#b", "a&b", "@evil.example", ":80", "a;b", "7"])
async def test_other_characters_are_encoded(shop: Shop, item: str) -> None:
    """The control: an argument that a URL could be read by is sent, as that one argument."""
    from urllib.parse import unquote

    assert (await outcome(a_tool(), a_call(shop.target(), item=item))) is not None
    ((_, path, _, _),) = shop.seen
    assert unquote(path) == f"/api/items/{item}"
    assert path.count("?") == path.count("#") == path.count("&") == 0


@pytest.mark.parametrize("value", ["a\r\nX-Admin: 1", "a\nb", "a\x00", "ä"])
async def test_a_header_takes_no_second_line(shop: Shop, value: str) -> None:
    tool = a_tool(url="/items", headers={"X-Item": "{item}"})
    result = await outcome(tool, a_call(shop.target(), item=value))
    assert result is not None
    assert result.state == "failed"
    assert shop.seen == []


async def test_the_secret_is_the_engines_alone(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is in the request, in no answer that echoes it, and in no argument that asks for it."""
    monkeypatch.setenv("SHOP_TOKEN", TOKEN)
    target = shop.target(token_env="SHOP_TOKEN")
    shop.answer = lambda method, path: (201, {"echo": f"Bearer {TOKEN}"}, {})
    async with open_tools() as inner:
        no_code: Any = None
        tools: Any = with_secrets(PluginTools(no_code, lambda name: inner), {"shop": target})
        result = await tools.perform(a_tool(), a_call(target), yes)
        named = {**target, "token_header": "X-Api-Key"}
        await tools.perform(a_tool(), a_call(named, "k2"), yes)
    assert shop.seen[0][2]["Authorization"] == f"Bearer {TOKEN}"
    assert shop.seen[1][2]["X-Api-Key"] == TOKEN
    assert "Authorization" not in shop.seen[1][2]
    assert TOKEN not in str(result)
    assert "[secret]" in str(result)


async def test_a_token_is_not_sent_in_the_clear() -> None:
    """By a resolver that says that the host is outside: it is refused before it is asked."""
    target = {"base_url": "http://api.example", "token": TOKEN}
    result = await outcome(a_tool(), a_call(target))
    assert result is not None
    assert (result.state, "plain HTTP" in result.error) == ("failed", True)


# --- where to ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("address", "outside", "inside"),
    [
        ("93.184.216.34", True, True),
        ("2606:2800:220:1::1", True, True),
        ("127.0.0.1", False, True),
        ("::1", False, True),
        ("10.1.2.3", False, True),
        ("192.168.1.1", False, True),
        ("100.64.0.1", False, True),
        ("fd12::1", False, True),
        ("169.254.169.254", False, False),
        ("fe80::1", False, False),
        ("fd00:ec2::254", False, False),
        ("100.100.100.200", False, False),
        ("168.63.129.16", False, False),
        ("0.0.0.0", False, False),
        ("224.0.0.1", False, False),
        ("255.255.255.255", False, False),
        # The same, in other words.
        ("::ffff:127.0.0.1", False, True),
        ("::ffff:169.254.169.254", False, False),
        ("64:ff9b::a9fe:a9fe", False, False),
        ("2002:a9fe:a9fe::1", False, False),
        ("::127.0.0.1", False, False),
        # What the library calls global.
        ("192.0.0.9", False, True),
        ("fec0::1", False, True),
    ],
)
def test_where_a_request_may_go(address: str, outside: bool, inside: bool) -> None:
    found = ipaddress.ip_address(address)
    assert (refusal_reason(found, private=False) is None) == outside
    assert (refusal_reason(found, private=True) is None) == inside


async def test_a_private_address_has_to_be_meant(shop: Shop) -> None:
    """The control is the target that says so: every other test here."""
    result = await outcome(a_tool(), a_call(shop.target(private=False)))
    assert result is not None
    assert result.state == "failed"
    assert "private = true" in result.error
    assert shop.seen == []


async def test_a_name_that_leads_elsewhere_is_not_followed(
    shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that is public at first and private then: what was looked at is what is connected to."""
    answers = [[("93.184.216.34", 0)], [("127.0.0.1", shop.port)]]

    def resolve(host: str, port: int, **_: Any) -> Any:
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", one) for one in answers.pop(0)]

    tried: list[Any] = []

    def connect(place: tuple[str, int], timeout: float) -> Any:
        tried.append(place)
        raise ConnectionRefusedError(111, "refused")

    monkeypatch.setattr(socket, "getaddrinfo", resolve)
    monkeypatch.setattr(socket, "create_connection", connect)
    target = {"base_url": f"http://rebind.example:{shop.port}"}
    first = await outcome(a_tool(), a_call(target))
    second = await outcome(a_tool(), a_call(target))
    assert first is not None
    assert second is not None
    assert tried == [("93.184.216.34", shop.port)]
    assert (first.state, second.state) == ("retry", "failed")
    assert "127.0.0.1" in second.error


@pytest.mark.parametrize("name", ["localhost", "elsewhere.example"])
async def test_a_certificate_has_to_be_the_hosts(shop: Shop, tmp_path: Path, name: str) -> None:
    """One of the wrong name, or of nobody we trust, is shown nothing: not even the path."""
    ca = certificate(tmp_path, name)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(tmp_path / "cert.pem", tmp_path / "key.pem")
    shop.server.socket = context.wrap_socket(
        shop.server.socket, server_side=True, do_handshake_on_connect=False
    )
    base = {"base_url": f"https://localhost:{shop.port}/api", "private": True}
    trusted = await outcome(a_tool(), a_call({**base, "ca_file": str(ca)}))
    strange = await outcome(a_tool(), a_call(base))
    assert trusted is not None
    assert strange is not None
    assert trusted.state == ("done" if name == "localhost" else "retry")
    assert strange.state == "retry"
    assert "CERTIFICATE" in strange.error.upper()
    assert len(shop.seen) == (1 if name == "localhost" else 0)


@pytest.mark.parametrize("to", ["http://169.254.169.254/latest/meta-data/", "/api/elsewhere"])
async def test_a_redirect_is_not_followed(shop: Shop, to: str) -> None:
    shop.answer = lambda method, path: (307, {}, {"Location": to})
    result = await outcome(a_tool(), a_call(shop.target()))
    assert result is not None
    assert result.state == "failed"
    assert "redirect" in result.error
    assert len(shop.seen) == 1


# --- what an answer means ------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("status", "idempotent", "queryable", "none"),
    [
        (200, "done", "done", "done"),
        (202, "unknown", "unknown", "unknown"),
        (301, "failed", "failed", "failed"),
        (302, "retry", "unknown", "unknown"),
        (303, "retry", "unknown", "unknown"),
        (308, "failed", "failed", "failed"),
        (400, "failed", "failed", "failed"),
        (404, "failed", "failed", "failed"),
        (409, "retry", "failed", "failed"),
        (429, "retry", "retry", "retry"),
        (408, "retry", "retry", "retry"),
        (500, "retry", "unknown", "unknown"),
        (503, "retry", "unknown", "unknown"),
    ],
)
async def test_a_status_means(
    shop: Shop, status: int, idempotent: str, queryable: str, none: str
) -> None:
    """A 5xx may be before or behind the effect: where a repeat does no harm it is repeated."""
    shop.answer = lambda method, path: (status, {"why": "so"}, {"Retry-After": "120"})
    wanted: dict[SettlementMode, str] = {
        "idempotent": idempotent,
        "queryable": queryable,
        "none": none,
    }
    for settles, state in wanted.items():
        result = await outcome(a_tool(settles), a_call(shop.target()))
        assert result is not None
        assert result.state == state, settles
        if state in ("retry", "unknown") and status >= 400:
            assert result.retry_after_us == 120_000_000
            assert str(status) in result.error


def test_how_long_a_target_wants_to_be_left_alone() -> None:
    now = {"date": "Sun, 01 Mar 2026 06:00:00 GMT"}
    for value, seconds in {
        "7": 7, "99999999999": 3600, "-1": 0, "soon": 0, "": 0, "٣": 0,
        "Sun, 01 Mar 2026 06:01:30 GMT": 90, "Sun, 01 Mar 2026 05:00:00 GMT": 0,
    }.items():  # fmt: skip
        assert retry_after_us(Response(429, {"retry-after": value, **now})) == seconds * 1_000_000
    assert retry_after_us(Response(429, {"retry-after": "Sun, 01 Mar 2026 06:01:30 GMT"})) == 0


async def test_an_answer_is_bounded_and_plain(shop: Shop) -> None:
    shop.answer = lambda method, path: (200, b"x" * 200_000, {"Content-Type": "text/plain"})
    result = await outcome(a_tool(), a_call(shop.target()))
    assert result is not None
    assert result.state == "done"
    assert (len(result.data["body"]), result.data["cut"]) == (64 << 10, True)
    shop.answer = lambda method, path: (200, b'{"a": 1, "a": 2}', {})
    twice = await outcome(a_tool(), a_call(shop.target()))
    assert twice is not None
    assert twice.data["body"] == '{"a": 1, "a": 2}'


async def test_a_lost_answer_is_unknown_and_the_query_knows(shop: Shop) -> None:
    tool, call = a_tool("queryable"), a_call(shop.target())
    async with open_tools() as tools:
        assert await tools.query(tool, call) is None
        shop.answer = lambda method, path: "lose" if method == "POST" else None
        result = await tools.perform(tool, call, yes)
        assert result is not None
        assert result.state == "unknown"
        assert await tools.query(tool, call) == Outcome(
            "done", {"status": 200, "body": {"key": "k1", "body": None}}
        )
        # Somebody else's is not ours.
        shop.items["k2"] = {"key": "other"}
        assert await tools.query(tool, a_call(shop.target(), "k2")) is None
        shop.answer = lambda method, path: (500, {}, {})
        unsure = await tools.query(tool, call)
        assert unsure is not None
        assert unsure.state == "unknown"
    assert sum(shop.happened.values()) == 1


async def test_a_post_that_is_answered_by_see_there_is_done_where_it_is_declared(
    shop: Shop,
) -> None:
    shop.answer = lambda method, path: (303, {"made": True}, {"Location": "/api/items/1"})
    tool = a_tool("none")
    tool = replace(tool, request={**(tool.request or {}), "ok": [201, 303]})
    result = await outcome(tool, a_call(shop.target()))
    assert result == Outcome("done", {"status": 303, "body": {"made": True}})
    assert len(shop.seen) == 1, "it is not followed"


async def test_nothing_is_sent_where_nobody_listens() -> None:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        target = {"base_url": f"http://127.0.0.1:{sock.getsockname()[1]}", "private": True}
        result = await outcome(a_tool("none"), a_call(target))
    assert result is not None
    assert result.state == "retry"
    assert result.error.startswith("not called: ")


async def test_what_may_not_start_is_not_sent(shop: Shop) -> None:
    async with open_tools() as tools:
        assert await tools.perform(a_tool(), a_call(shop.target()), lambda: False) is None
    assert shop.seen == []


async def test_a_call_ends_with_its_time(shop: Shop) -> None:
    """The connection is closed under it; its thread does not go on."""
    shop.answer = lambda method, path: "hang"
    began = time.monotonic()
    async with open_tools() as tools:
        result = await tools.perform(a_tool("queryable"), a_call(shop.target(), seconds=0.2), yes)
        assert not tools._running
    assert result is not None
    assert result.state == "unknown"
    assert time.monotonic() - began < 1.0


async def test_a_name_that_is_not_resolved_in_time_is_never_called(
    shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However late it is resolved: the call is over, and its key may be in use again."""
    go, real = threading.Event(), socket.getaddrinfo

    def slow(*args: Any, **more: Any) -> Any:
        go.wait(10)
        return real(*args, **more)

    monkeypatch.setattr(socket, "getaddrinfo", slow)
    async with open_tools() as tools:
        tool, call = a_tool(), a_call(shop.target(), seconds=0.1)
        result = await tools.perform(tool, call, yes)
        assert result is not None
        assert result.state == "retry"
        # Nothing was sent, nor will be: no try has to wait for that thread, or call it unknown.
        second = await tools.perform(tool, call, yes)
        assert second is not None
        assert second.state == "retry"
        go.set()
        third = await tools.perform(tool, replace(call, timeout_us=5_000_000), yes)
        assert third is not None
        assert third.state == "done"
    assert len(shop.seen) == 1


async def test_a_cancelled_call_leaves_no_thread(shop: Shop) -> None:
    shop.answer = lambda method, path: "hang"
    async with open_tools() as tools:
        task = asyncio.create_task(tools.perform(a_tool(), a_call(shop.target()), yes))
        await wait_until(lambda: bool(shop.seen))
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task


# --- on the whole line ---------------------------------------------------------------------------


def shopping(folder: Path, shop: Shop, settles: str, clock: ManualClock) -> FleetHarness:
    """Return the toy fleet whose wire.send is a request, without a line of code behind it."""
    fleet = toy_fleet(folder, World(), clock=clock)
    path = fleet.content / "agents" / "worker" / "agent.yaml"
    old = "settles: idempotent, function: act, target: world, attempts: 3,"
    query = "{url: '/items?key={@key}', where: {/key: '{@key}'}}"
    http = (
        "{url: '/items/{to}', body: {text: '{text}'}, idempotency_header: Idempotency-Key, "
        f"query: {query}}}"
    )
    text = path.read_text()
    assert text.count(old) == 1
    path.write_text(
        text.replace(old, f"settles: {settles}, http: {http}, target: shop, attempts: 3,")
    )
    fleet.targets = {**fleet.targets, "shop": shop.target()}
    return fleet


async def effect_of_a_send(fleet: FleetHarness, clock: ManualClock) -> str | None:
    """Return what became of one mail, its retries included."""
    event = job("1", send_proposal("fair winds"))
    await fleet.send(event)
    await fleet.wait_until_idle()
    for _ in range(5):
        clock.advance(10_000_000)
        await fleet.wait_until_idle()
    (row,) = fleet.actions(event)
    return row.effect


@pytest.mark.parametrize("settles", ["idempotent", "queryable"])
async def test_a_lost_answer_is_one_effect(tmp_path: Path, shop: Shop, settles: str) -> None:
    """The first answer is lost behind the effect; it is settled as declared, and happens once."""
    clock = ManualClock()
    lost: list[str] = []

    def lose(method: str, path: str) -> Any:
        if method == "POST" and not lost:
            lost.append(path)
            return "lose"
        return None

    shop.answer = lose
    async with shopping(tmp_path, shop, settles, clock) as fleet:
        assert await effect_of_a_send(fleet, clock) == "done"
    assert shop.happened == {"/api/items/desk%40example.org": 1}
    posts = [headers["Idempotency-Key"] for method, _, headers, _ in shop.seen if method == "POST"]
    assert len(set(posts)) == 1
    assert len(posts) == (2 if settles == "idempotent" else 1)
    assert lost


async def test_after_see_there_the_query_is_asked(tmp_path: Path, shop: Shop) -> None:
    """It was done, and recorded as failed: Post/Redirect/Get (RFC 9110, 15.4.4)."""
    clock = ManualClock()

    def see_there(method: str, path: str) -> Any:
        if method != "POST":
            return None
        key = shop.seen[-1][2]["Idempotency-Key"]
        shop.items[key] = {"key": key}
        return 303, {}, {"Location": f"/api/items/{key}"}

    shop.answer = see_there
    async with shopping(tmp_path, shop, "queryable", clock) as fleet:
        assert await effect_of_a_send(fleet, clock) == "done"
    assert [method for method, *_ in shop.seen] == ["POST", "GET"]


async def test_without_a_key_a_lost_answer_would_be_two(shop: Shop) -> None:
    """The control, and why a POST that settles idempotent needs the header."""
    tool = a_tool(idempotency_header=None)
    shop.answer = lambda method, path: "lose" if len(shop.seen) == 1 else None
    async with open_tools() as tools:
        for _ in range(2):
            await tools.perform(tool, a_call(shop.target()), yes)
    assert sum(shop.happened.values()) == 2


async def test_a_busy_target_is_left_alone_as_long_as_it_says(tmp_path: Path, shop: Shop) -> None:
    clock = ManualClock()
    shop.answer = lambda method, path: (
        (429, {}, {"Retry-After": "600"}) if len(shop.seen) < 2 else None
    )
    async with shopping(tmp_path, shop, "idempotent", clock) as fleet:
        event = job("1", send_proposal("fair winds"))
        await fleet.send(event)
        await fleet.wait_until_idle()
        for _ in range(19):
            clock.advance(30_000_000)
            await fleet.wait_until_idle()
        assert len(shop.seen) == 1
        clock.advance(60_000_000)
        await fleet.wait_until_idle()
        (row,) = fleet.actions(event)
        assert row.effect == "done"
    assert len(shop.seen) == 2


async def test_what_a_server_answers_is_untrusted(tmp_path: Path, shop: Shop) -> None:
    """And what is declared is in the digest that an approval is bound to."""
    async with shopping(tmp_path, shop, "idempotent", ManualClock()) as fleet:
        tool = fleet.app.services.fleet.agents["worker"].tools["wire.send"]
        assert tool.output == "untrusted"
        assert tool.facts()["http"] == tool.request
        other = replace(tool, request={**(tool.request or {}), "url": "/elsewhere/{to}"})
        assert other.digest != tool.digest


async def test_probe_connects_and_sends_nothing(shop: Shop) -> None:
    assert "takes connections" in await HTTP.probe(shop.target())
    with pytest.raises(Unavailable, match="private = true"):
        await HTTP.probe(shop.target(private=False))
    assert shop.seen == []


async def test_an_agent_may_have_no_code_for_its_tools(tmp_path: Path, shop: Shop) -> None:
    """Without a tools.py, and with workers as in production: none is made for a request."""
    fleet = shopping(tmp_path, shop, "idempotent", ManualClock())
    fleet._workers = True
    folder = fleet.content / "agents" / "worker"
    (folder / "tools.py").unlink()
    text = (folder / "agent.yaml").read_text()
    head, tools = text.split("tools:\n")
    only = next("  - " + one for one in tools.split("  - ") if one.startswith("{name: wire.send"))
    (folder / "agent.yaml").write_text(f"{head}tools:\n{only}")
    async with fleet:
        assert not code_problems(fleet.content, fleet.app.settings, 0)
        event = job("1", send_proposal("fair winds"))
        await fleet.send(event)
        await fleet.wait_until_idle()
        (row,) = fleet.actions(event)
        assert row.effect == "done"
    assert sum(shop.happened.values()) == 1


TARGET = 'fleet = "harbour"\n[targets.shop]\nkind = "http"\n'


@pytest.mark.parametrize(
    ("table", "expected"),
    [
        ("", "needs a base_url"),
        ('base_url = "shop.example"', "no URL"),
        ('base_url = "https://shop.example/?a=b"', "more than a path"),
        ('base_url = "https://me:it@shop.example"', "a secret does not stand"),
        ('base_url = "http://shop.example"\ntoken_env = "T"', "plain HTTP"),
        ('base_url = "https://shop.example"\ntoken = "T"', "a secret does not stand"),
        ('base_url = "https://shop.example"\nprivate = "yes"', "true or false"),
        ('base_url = "https://shop.example"\ntoken_header = "Host"', "by the engine alone"),
    ],
)
def test_a_wrong_target_is_told(tmp_path: Path, table: str, expected: str) -> None:
    file = tmp_path / "vedette.toml"
    file.write_text(TARGET + table + "\n")
    with pytest.raises(BadFleet, match=expected):
        load_settings(file)
    file.write_text(TARGET + 'base_url = "https://shop.example/api"\ntoken_env = "T"\n')
    assert load_settings(file).targets["shop"]["kind"] == "http"


WORDS = "wire.send, verb: send, resource: wire, args: {to: string, text: string}"


def by_schema(to: str = "string", text: str = "string") -> str:
    properties = f"{{to: {{type: {to}}}, text: {{type: {text}}}}}"
    schema = f"{{type: object, properties: {properties}, required: [to, text]}}"
    return WORDS.partition("args:")[0] + f"schema: {schema}"


# --- vedette check -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        (WORDS, by_schema(to="[string, 'null']"), "'to' may be null, which has no form in the URL"),
        (WORDS, by_schema(text="[string, 'null']"), None),
        ("/items/{to}", "https://api.example/items/{to}", "no path"),
        ("/items/{to}", "//evil.example/{to}", "no path"),
        ("/items/{to}", "/../{to}", "goes up"),
        ("/items/{to}", "/items/{too}", "'too' is no argument"),
        ("/items/{to}", "/items/{text}", "'text' decides where the request goes, and is no sink"),
        ("/items/{to}", "/items/{to", "brace alone"),
        ("/items/{to}", "/items?{to}=1", "a query that cannot be read"),
        ("body:", "headers: {Authorization: x}, body:", "set by the engine alone"),
        ("body:", "headers: {X-A: '{text}'}, body:", "is no sink"),
        ("text: '{text}'", "text: '{txt}'", "did you mean 'text'"),
        ("text: '{text}'", "text: 0.5", "no canonical form"),
        ("idempotency_header: Idempotency-Key, ", "", "has happened twice"),
        ("target: shop", "target: world", "not of kind http"),
        ("target: shop, ", "", "which server"),
        ("http: {url", "function: act, http: {url", "without tools.py"),
        ("attempts: 3,\n     timeout: 30s}\n  - {name: order", "output: trusted}\n  - {name: order",
         "not trusted"),
        ("settles: idempotent, http", "settles: queryable, http", None),
        ("settles: idempotent, http", "settles: none, http", "never queried"),
        ("settles: idempotent, http", "settles: transactional, http", "outside of the fleet"),
        ("where: {/key", "absent: [200], where: {/key", "cannot say"),
        ("body:", "ok: [301], body:", "does not say so"),
        ("body:", "ok: [302, 303], body:", None),
        ("body:", "bdy:", "unknown key"),
        ("where: {/key", "where: {key", "not a JSON Pointer"),
    ],
)  # fmt: skip
async def test_a_wrong_declaration_is_told(
    tmp_path: Path, shop: Shop, old: str, new: str, expected: str | None
) -> None:
    fleet = shopping(tmp_path, shop, "idempotent", ManualClock())
    path = fleet.content / "agents" / "worker" / "agent.yaml"
    text = path.read_text()
    assert text.count(old) == 1, text
    path.write_text(text.replace(old, new))
    if expected is None:
        async with fleet:
            return
    with pytest.raises(BadFleet) as found:
        await fleet.open()
    assert expected in str(found.value)
    line = next(n for n, one in enumerate(path.read_text().splitlines(), 1) if "wire.send" in one)
    assert (found.value.where or "").startswith("agents/worker/agent.yaml:")
    assert int((found.value.where or "").split(":")[1].split()[0]) >= line


# --- an outcome query that cannot be read ---------------------------------------------------------

LOGIN = b"<!doctype html><title>Log in</title><form>"
JSON, LISTS = "application/json", {**QUERY, "where": {"/items/0/key": "{@key}"}}


@pytest.mark.parametrize(
    ("expected", "headers"),
    [
        (LOGIN, {"Content-Type": "text/html"}),
        (LOGIN, {}),
        (b"", {}),
        (b"", {"Content-Length": "0", "Content-Type": "text/plain"}),
        ({"key": "other"}, {"Content-Type": "text/plain"}),
        ({"key": "other"}, {"Content-Type": ""}),
        (b'{"key": "oth', {}),
        (b'{"key": "other"}', {"Content-Length": "40"}),
        (b'{"key": "a", "key": "b"}', {}),
        ({"error": "please log in"}, {}),
        ({"Key": "other"}, {}),
        ([{"key": "other"}], {}),
        ("other", {}),
        ({"key": {"id": "other"}}, {}),
        ({"key": ["other"]}, {}),
    ],
)
async def test_an_answer_that_cannot_be_read_is_no_no(
    shop: Shop, expected: Any, headers: dict[str, str]
) -> None:
    shop.answer = lambda method, path: (200, expected, headers)
    async with open_tools() as tools:
        found = await tools.query(a_tool("queryable"), a_call(shop.target(), seconds=0.5))
    assert found is not None
    assert found.state == "unknown", found


@pytest.mark.parametrize("status", [202, 301, 302, 303, 400, 401, 403, 429, 500, 503])
async def test_a_status_that_is_not_declared_is_no_no(shop: Shop, status: int) -> None:
    shop.answer = lambda method, path: (status, {"key": "other"}, {"Location": "/login"})
    async with open_tools() as tools:
        found = await tools.query(a_tool("queryable"), a_call(shop.target()))
    assert found is not None
    assert found.state == "unknown"


@pytest.mark.parametrize(
    ("where", "expected"),
    [
        (QUERY, {"key": "other"}),
        (QUERY, {"key": None}),
        (QUERY, {"key": 7}),
        (QUERY, None),
        (LISTS, {"items": []}),
        (LISTS, {"items": None}),
        (LISTS, {"items": [{"key": "other"}]}),
    ],
)
async def test_an_answer_that_says_no_is_a_no(shop: Shop, where: Any, expected: Any) -> None:
    """The control: what is well-formed and says that it is not there is believed."""
    shop.answer = lambda method, path: (200, expected, {})
    async with open_tools() as tools:
        assert await tools.query(a_tool("queryable", query=where), a_call(shop.target())) is None


async def test_a_page_for_people_does_not_say_that_it_is_done(shop: Shop) -> None:
    tool = a_tool("queryable", query={**QUERY, "where": {}})
    shop.answer = lambda method, path: (200, LOGIN, {"Content-Type": "text/html; charset=utf-8"})
    async with open_tools() as tools:
        page = await tools.query(tool, a_call(shop.target()))
        shop.answer = lambda method, path: (200, b"", {})
        result = await tools.query(tool, a_call(shop.target()))
    assert (page and page.state, result and result.state) == ("unknown", "done")

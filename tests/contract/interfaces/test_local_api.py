"""The local API over a real Unix socket: who may, what is answered, what a client makes of it."""

from __future__ import annotations

import asyncio
import json
import os
import socket
import stat
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import httpx
import pytest
from tests.store_parts import store_of

from vedette.app import canaries, rollbacks
from vedette.app import releases as releasing
from vedette.domain.base.clock import SystemClock
from vedette.domain.base.errors import (
    AlreadyDone,
    BadCommand,
    BadEvent,
    Forbidden,
    StoreFailed,
    Unavailable,
    VedetteError,
)
from vedette.domain.base.fleet_clock import FleetClock
from vedette.interfaces.http import local_api, unix_socket
from vedette.interfaces.http.command_dispatch import VERBS
from vedette.interfaces.http.local_api import serve_local
from vedette.interfaces.http.local_client import LocalClient
from vedette.interfaces.http.unix_socket import (
    MAX_PATH_BYTES,
    POINTER,
    SOCKET,
    find_person,
    socket_of,
)
from vedette.operations import approvals, corrections, curation, maintenance, modes, undo, work
from vedette.operations.commands import Commands, Order

ME = find_person(os.getuid())


@dataclass
class Recorder:
    """Stands in for Commands: keeps what it is asked and answers, or raises, as told."""

    asked: list[tuple[str, Order, dict[str, Any]]] = field(default_factory=list)
    failing: Exception | None = None
    services: Any = field(
        default_factory=lambda: SimpleNamespace(
            fleet=SimpleNamespace(name="harbour", agents={"gull": None}),
            store=store_of(SimpleNamespace(is_ready=True, entries=lambda column, value: [])),
            clock=FleetClock(SystemClock()),
            stops=SimpleNamespace(
                list_scopes=lambda: [("agent", "gull"), ("all", "")], timed_stops=[], unrecorded={}
            ),
            breakers=SimpleNamespace(list_tripped=list),
            gateway=SimpleNamespace(
                engine=SimpleNamespace(name="opa wasm/1.3"), second_opinion=None
            ),
        )
    )
    rollout: Any = field(
        default_factory=lambda: SimpleNamespace(
            live=SimpleNamespace(number=7, digest="d" * 64),
            engine_reason="shipped with vedette",
            residuals=SimpleNamespace(state="1 answer"),
        )
    )

    def _take(self, verb: str, order: Order, args: dict[str, Any]) -> dict[str, Any]:
        if self.failing is not None:
            raise self.failing
        self.asked.append((verb, order, args))
        return {"did": verb}

    releases: Any = None
    canaries: Any = None

    async def send(self, order: Order, events: Any) -> dict[str, Any]:
        return self._take("send", order, {"events": events})

    def would_wake(self, event: Any) -> dict[str, Any]:
        return self._take("would_wake", Order(ME, ""), {"event": event})

    async def approve(self, order: Order, hold: str, digest: str) -> dict[str, Any]:
        return self._take("approve", order, {"hold": hold, "digest": digest})

    async def deny(self, order: Order, hold: str, digest: str | None = None) -> dict[str, Any]:
        return self._take("deny", order, {"hold": hold, "digest": digest})

    async def stop(self, order: Order, **what: Any) -> dict[str, Any]:
        return self._take("stop", order, what)

    async def resume(self, order: Order, **what: Any) -> dict[str, Any]:
        return self._take("resume", order, what)

    async def policy_apply(self, order: Order, folder: Path) -> dict[str, Any]:
        return self._take("policy_apply", order, {"folder": folder})

    async def erase(self, order: Order, **what: Any) -> dict[str, Any]:
        return self._take("erase", order, what)


@asynccontextmanager
async def serving(state: Path, commands: Recorder) -> AsyncIterator[Path]:
    app = SimpleNamespace(commands=cast(Commands, commands), containment=None)
    async with serve_local(app, state) as path:
        yield path


@pytest.fixture
def state() -> Iterator[Path]:
    """A state folder whose path is short: that of a test's own folder need not be."""
    import tempfile

    with tempfile.TemporaryDirectory(dir="/tmp", prefix="v") as folder:
        yield Path(folder)


async def raw(path: Path, method: str, url: str, **more: Any) -> httpx.Response:
    transport = httpx.AsyncHTTPTransport(uds=str(path))
    async with httpx.AsyncClient(transport=transport, base_url="http://local") as client:
        return await client.request(method, url, **more)


async def command(
    state: Path, verb: str, args: dict[str, Any], reason: str = "why", command_id: str | None = None
) -> dict[str, Any]:
    client = LocalClient(state)
    return await asyncio.to_thread(client.send_command, verb, reason, args, command_id)


EVENT = {"specversion": "1.0", "id": "1", "source": "cli:me", "type": "ping", "data": {"v": 1}}


# --- what goes through -----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("verb", "args", "taken"),
    [
        ("approve", {"hold": "hold_1", "digest": "ab"}, {"hold": "hold_1", "digest": "ab"}),
        ("deny", {"hold": "hold_1"}, {"hold": "hold_1", "digest": None}),
        ("stop", {"agent": "gull", "tool": None, "all": False}, {"agent": "gull", "all": False}),
        ("resume", {"all": True}, {"all": True}),
        ("policy_apply", {"folder": "/tmp/p"}, {"folder": Path("/tmp/p")}),
        ("erase", {"subject": "who"}, {"subject": "who"}),
        ("erase", {"subject": None, "entry": 3}, {"entry": 3}),
    ],
)
async def test_a_command_arrives_with_the_peer_as_its_principal(
    state: Path, verb: str, args: dict[str, Any], taken: dict[str, Any]
) -> None:
    commands = Recorder()
    async with serving(state, commands):
        answered = {"claimed_by": None} if verb in ("approve", "deny") else {}
        assert await command(state, verb, args, "because", "id-1") == {"did": verb, **answered}
    assert commands.asked == [(verb, Order(ME, "because", "id-1"), taken)]


async def test_events_are_sent_as_the_persons_own(state: Path) -> None:
    commands = Recorder()
    async with serving(state, commands):
        await command(state, "send", {"events": [EVENT]})
        await command(state, "would_wake", {"event": EVENT})
    (_, _, sent), (_, _, looked) = commands.asked
    event = sent["events"][0]
    assert (event.source, event.id, event.type, event.data) == ("cli:me", "1", "ping", {"v": 1})
    assert event.vouched == {"source", "id", "type", "subject", "time"}
    assert looked["event"].key == event.key


async def test_every_verb_can_be_given(state: Path) -> None:
    own = (
        approvals, canaries, corrections, curation, modes, releasing, rollbacks, undo, maintenance,
        work,
    )  # fmt: skip
    given = set(VERBS) - {verb for module in own for verb in module.VERBS}
    assert given <= {name for name in dir(Commands) if not name.startswith("_")}
    for verb in maintenance.VERBS:
        with pytest.raises(BadCommand, match="kept up elsewhere"):
            await maintenance.dispatch(None, verb, ME, "because", None, {})


async def test_a_claimed_principal_changes_nothing(state: Path) -> None:
    commands = Recorder()
    async with serving(state, commands) as path:
        claims = {"X-Peer-Uid": "0", "X-Principal": "person:admiral", "Authorization": "Bearer x"}
        done = await raw(
            path, "POST", "/v1/commands/deny", headers=claims, json={"args": {"hold": "h"}}
        )
        assert done.status_code == 200
        named = {"args": {"hold": "h"}, "principal": "person:admiral"}
        assert (await raw(path, "POST", "/v1/commands/deny", json=named)).status_code == 400
    assert [order.principal for _, order, _ in commands.asked] == [ME]


async def test_health_and_status(state: Path) -> None:
    async with serving(state, Recorder()) as path:
        health = (await raw(path, "GET", "/v1/health")).json()
        status = await asyncio.to_thread(LocalClient(state).status)
        assert await asyncio.to_thread(LocalClient(state).is_alive)
    assert health == {"fleet": "harbour", "pid": os.getpid(), "ready": True}
    assert status["policy"] == {"revision": 7, "digest": "d" * 64}
    assert status["residuals"] == "1 answer"
    assert status["stopped"] == ["agent:gull", "all:"]


# --- what does not ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (BadCommand("no such hold", where="hold_1", mend="look"), 400),
        (BadEvent("too large"), 400),
        (Forbidden("not you"), 403),
        (AlreadyDone("done before"), 409),
        (StoreFailed("disk full"), 503),
        (Unavailable("no engine"), 503),
    ],
)
async def test_an_error_keeps_its_class_and_words(
    state: Path, error: VedetteError, code: int
) -> None:
    async with serving(state, Recorder(failing=error)) as path:
        answer = await raw(path, "POST", "/v1/commands/stop", json={"args": {"all": True}})
        assert (answer.status_code, answer.json()) == (code, {"error": error.to_json()})
        with pytest.raises(type(error)) as raised:
            await command(state, "stop", {"all": True})
    assert type(raised.value) is type(error)
    assert str(raised.value) == str(error)


@pytest.mark.parametrize(
    ("url", "body", "code", "error"),
    [
        ("/v1/commands/launch", b"{}", 404, "no-such-verb"),
        ("/v1/commands/stop", b"[]", 400, "bad-command"),
        ("/v1/commands/stop", b"{", 400, "bad-command"),
        ("/v1/commands/stop", b'{"args": {"all": "yes"}}', 400, "bad-command"),
        ("/v1/commands/stop", b'{"args": {"hold": "h"}}', 400, "bad-command"),
        ("/v1/commands/stop", b'{"args": {"all": true}, "reason": 3}', 400, "bad-command"),
        ("/v1/commands/stop", b'{"command_id": ""}', 400, "bad-command"),
        ("/v1/commands/approve", b"{}", 400, "bad-command"),
        ("/v1/commands/policy_apply", b'{"args": {"folder": "here"}}', 400, "bad-command"),
        ("/v1/commands/send", b'{"args": {"events": [{"id": "1"}]}}', 400, "bad-event"),
    ],
)
async def test_what_is_not_a_command_is_refused_and_does_nothing(
    state: Path, url: str, body: bytes, code: int, error: str
) -> None:
    commands = Recorder()
    async with serving(state, commands) as path:
        answer = await raw(path, "POST", url, content=body)
    assert (answer.status_code, answer.json()["error"]["code"]) == (code, error)
    assert set(answer.json()["error"]) == {"code", "what", "where", "mend"}
    assert commands.asked == []


@pytest.mark.parametrize(
    "event",
    [
        EVENT | {"type": "vedette.tick"},
        EVENT | {"source": "vedette://harbour/schedule/gull"},
    ],
)
async def test_nobody_sends_what_only_the_engine_may_say(
    state: Path, event: dict[str, Any]
) -> None:
    commands = Recorder()
    async with serving(state, commands):
        with pytest.raises(BadCommand, match="engine's own"):
            await command(state, "send", {"events": [event]})
    assert commands.asked == []


async def test_too_much_is_refused(state: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(local_api, "MAX_BODY_BYTES", 1000)
    commands = Recorder()
    async with serving(state, commands) as path:
        long = json.dumps({"reason": "x" * 2000, "args": {"all": True}}).encode()
        answer = await raw(path, "POST", "/v1/commands/stop", content=long)
    assert answer.status_code == 400
    assert commands.asked == []


async def test_another_user_is_forbidden(state: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(local_api, "peer_uid", lambda connection: os.getuid() + 4711)
    commands = Recorder()
    async with serving(state, commands) as path:
        for method, url in (("POST", "/v1/commands/stop"), ("GET", "/v1/health")):
            answer = await raw(path, method, url, content=b'{"args": {"all": true}}')
            assert answer.status_code == 403
            assert answer.json()["error"]["code"] == "forbidden"
        # There is a fleet: whoever may not speak to it is told so, not that its store is taken.
        with pytest.raises(Forbidden, match="does not own"):
            await asyncio.to_thread(LocalClient(state).is_alive)
    assert commands.asked == []


async def test_a_peer_that_cannot_be_told_is_forbidden(
    state: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def unknown(connection: socket.socket) -> int:
        raise Forbidden("who you are cannot be told")

    monkeypatch.setattr(local_api, "peer_uid", unknown)
    async with serving(state, Recorder()) as path:
        answer = await raw(path, "POST", "/v1/commands/stop", json={"args": {"all": True}})
    assert answer.status_code == 403


# --- the socket ------------------------------------------------------------------------------


def test_the_kernel_says_who_a_peer_is() -> None:
    here, there = socket.socketpair(socket.AF_UNIX)
    with here, there:
        assert unix_socket.peer_uid(here) == os.getuid()
    with socket.socket(socket.AF_INET) as inet:
        if inet.getsockopt(socket.SOL_SOCKET, socket.SO_TYPE) and os.uname().sysname == "Darwin":
            with pytest.raises(Forbidden):
                unix_socket.peer_uid(inet)


async def test_only_the_owner_can_open_it_and_it_goes_with_its_runner(state: Path) -> None:
    async with serving(state, Recorder()) as path:
        assert path == state / SOCKET
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert not path.exists()
    assert not LocalClient(state).is_alive()


async def test_a_dead_runners_socket_is_no_runner_and_in_nobodys_way(state: Path) -> None:
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(str(state / SOCKET))
    assert (state / SOCKET).exists()
    client = LocalClient(state)
    assert not client.is_alive()
    with pytest.raises(Unavailable, match="no fleet runs here"):
        client.send_command("stop", "why", {"all": True})
    async with serving(state, Recorder()):
        assert await asyncio.to_thread(LocalClient(state).is_alive)


def test_no_state_folder_is_no_runner(state: Path) -> None:
    assert not LocalClient(state / "nowhere").is_alive()


async def test_a_long_state_path_gets_a_short_socket(
    state: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    runtime = state / "r"
    runtime.mkdir()
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(runtime))
    long = state / ("deep" * 15) / ("deeper" * 10)
    long.mkdir(parents=True)
    assert len(os.fsencode(long)) > MAX_PATH_BYTES
    commands = Recorder()
    async with serving(long, commands) as path:
        assert len(os.fsencode(path)) <= MAX_PATH_BYTES
        assert path.is_relative_to(runtime)
        assert socket_of(long) == path
        assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
        await command(long, "stop", {"all": True})
    assert len(commands.asked) == 1
    assert not (long / POINTER).exists()
    assert not path.exists()


async def test_a_short_socket_is_not_put_where_others_write(
    state: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(state))
    open_to_all = state / f"vedette-{os.getuid()}"
    open_to_all.mkdir()
    open_to_all.chmod(0o777)
    long = state / ("deep" * 15) / ("deeper" * 10)
    long.mkdir(parents=True)
    with pytest.raises(Unavailable, match="private folder"):
        async with serving(long, Recorder()):
            pytest.fail("it listened")


async def test_a_runner_that_goes_away_with_a_command_is_not_taken_for_done(state: Path) -> None:
    async def vanish(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(10)
        writer.close()

    server = await asyncio.start_unix_server(vanish, str(state / SOCKET))
    async with server:
        with pytest.raises(Unavailable, match="before it answered"):
            await command(state, "stop", {"all": True})


async def test_a_command_is_finished_though_its_client_hung_up(state: Path) -> None:
    begun, done = asyncio.Event(), asyncio.Event()
    go_on = asyncio.Event()

    class Slow(Recorder):
        async def stop(self, order: Order, **what: Any) -> dict[str, Any]:
            begun.set()
            await go_on.wait()
            done.set()
            return self._take("stop", order, what)

    async with serving(state, Slow()) as path:
        body = b'{"args": {"all": true}}'
        head = f"POST /v1/commands/stop HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\n\r\n"
        _, writer = await asyncio.open_unix_connection(str(path))
        writer.write(head.encode() + body)
        await begun.wait()
        writer.close()
        await writer.wait_closed()
        go_on.set()
        await done.wait()

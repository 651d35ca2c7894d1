"""Secrets by reference: Secret Manager over real gRPC, and what targets get of it."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Event, Semaphore, Thread
from types import SimpleNamespace
from typing import Any

import pytest
from msgspec.structs import replace
from tests.alarm import sound

from vedette.adapters.identity.secrets import SecretManager, register_secret_manager, with_secrets
from vedette.adapters.identity.secrets.manager import EMULATOR_HOST, _crc32c
from vedette.adapters.tools.in_process import InProcessTools
from vedette.config.secret_reference import (
    is_secret_literal,
    is_secret_version,
    read_secret,
    secret_names,
)
from vedette.config.settings import StorePlan, read_settings
from vedette.domain.base.errors import BadFleet, Unavailable
from vedette.domain.effect import Call, Outcome
from vedette.domain.tool import Tool
from vedette.testing.harness import FleetHarness

VERSION = "projects/harbour/secrets/oncall/versions/latest"


class Manager:
    """A server that speaks Secret Manager's AccessSecretVersion; what it holds, a test sets."""

    def __init__(self) -> None:
        import grpc  # type: ignore[import-untyped]
        from google.cloud.secretmanager_v1 import types

        self.values: dict[str, bytes] = {VERSION: b"s3cret-of-the-manager\n"}
        self.failing: Any = None
        self.damaged = False
        self.calls = 0

        def access(question: Any, context: Any) -> Any:
            self.calls += 1
            if self.failing is not None:
                context.abort(self.failing, "as the test asks")
            found = self.values.get(question.name)
            if found is None:
                context.abort(grpc.StatusCode.NOT_FOUND, "no such version")
            crc = _crc32c(found or b"") ^ (1 if self.damaged else 0)
            payload = types.SecretPayload(data=found, data_crc32c=crc)
            return types.AccessSecretVersionResponse(name=question.name, payload=payload)

        handler = grpc.unary_unary_rpc_method_handler(
            access,
            request_deserializer=types.AccessSecretVersionRequest.deserialize,
            response_serializer=types.AccessSecretVersionResponse.serialize,
        )
        service = "google.cloud.secretmanager.v1.SecretManagerService"
        self._server = grpc.server(ThreadPoolExecutor(2))
        self._server.add_generic_rpc_handlers(
            (grpc.method_handlers_generic_handler(service, {"AccessSecretVersion": handler}),)
        )
        self.port = self._server.add_insecure_port("127.0.0.1:0")
        self._server.start()

    def stop(self) -> None:
        """Stop the server, and wait for it."""
        self._server.stop(0).wait(5)


@pytest.fixture(scope="module")
def server() -> Iterator[Manager]:
    made = Manager()
    yield made
    made.stop()


@pytest.fixture
def manager(server: Manager, monkeypatch: pytest.MonkeyPatch) -> Iterator[Manager]:
    monkeypatch.setenv(EMULATOR_HOST, f"127.0.0.1:{server.port}")
    before = dict(server.values)
    yield server
    server.values, server.failing, server.damaged = before, None, False


class InnerTool:
    """A clock in a test's hand: seconds."""

    at = 1000.0

    def __call__(self) -> float:
        return self.at


def test_a_secret_is_fetched_once_and_again_when_it_is_old(manager: Manager) -> None:
    clock = InnerTool()
    reader = SecretManager(max_age_s=300, clock=clock)
    assert reader.read(VERSION) == "s3cret-of-the-manager"
    manager.values[VERSION] = b"rotated"
    clock.at += 299
    assert (reader.read(VERSION), reader.request_count) == ("s3cret-of-the-manager", 1)
    clock.at += 1
    assert (reader.read(VERSION), reader.request_count) == ("rotated", 2)


def test_while_the_service_is_away_the_last_value_is_used_for_a_bounded_time(
    manager: Manager,
) -> None:
    import grpc

    clock = InnerTool()
    reader = SecretManager(max_age_s=300, stale_s=3600, clock=clock)
    reader.read(VERSION)
    manager.failing = grpc.StatusCode.UNAVAILABLE
    clock.at += 301
    assert reader.read(VERSION) == "s3cret-of-the-manager"
    clock.at += 3300
    with pytest.raises(Unavailable, match="does not answer"):
        reader.read(VERSION)


def test_what_may_be_read_no_longer_is_not_used_though_it_is_known(manager: Manager) -> None:
    import grpc

    clock = InnerTool()
    reader = SecretManager(max_age_s=300, clock=clock)
    reader.read(VERSION)
    manager.failing = grpc.StatusCode.PERMISSION_DENIED
    clock.at += 301
    with pytest.raises(BadFleet, match="may not be read"):
        reader.read(VERSION)
    manager.failing = grpc.StatusCode.UNAVAILABLE
    with pytest.raises(Unavailable):
        reader.read(VERSION)


def test_an_outage_is_asked_about_now_and_then_only(manager: Manager) -> None:
    import grpc

    clock = InnerTool()
    reader = SecretManager(max_age_s=300, stale_s=3600, clock=clock)
    manager.failing = grpc.StatusCode.UNAVAILABLE
    for _ in range(3):
        with pytest.raises(Unavailable, match="does not answer"):
            reader.read(VERSION)
    assert reader.request_count == 1
    # Without a value to go by it is soon asked again, and what is there then is used.
    clock.at += 2
    manager.failing = None
    assert (reader.read(VERSION), reader.request_count) == ("s3cret-of-the-manager", 2)
    manager.failing = grpc.StatusCode.UNAVAILABLE
    clock.at += 301
    for _ in range(3):
        assert reader.read(VERSION) == "s3cret-of-the-manager"
    clock.at += 29
    assert (reader.read(VERSION), reader.request_count) == ("s3cret-of-the-manager", 3)
    clock.at += 1
    manager.failing, manager.values[VERSION] = None, b"rotated"
    assert (reader.read(VERSION), reader.request_count) == ("rotated", 4)


def test_nobody_waits_for_another_secret_nor_for_an_outage(monkeypatch: pytest.MonkeyPatch) -> None:
    """The service hangs; a request of it takes as long as this test likes."""
    clock = InnerTool()
    reader = SecretManager(max_age_s=300, stale_s=3600, clock=clock)
    requests, go = Semaphore(0), Event()
    hanging: set[str] = set()

    def ask(version: str) -> str:
        if version not in hanging:
            return f"value of {version}"
        requests.release()
        assert go.wait(10)
        raise Unavailable("Secret Manager does not answer: DeadlineExceeded")

    monkeypatch.setattr(reader, "_request", ask)
    reader.read("a")
    clock.at += 301
    reader.read("b")
    hanging.add("a")
    with ThreadPoolExecutor(8) as threads:
        try:
            first = threads.submit(reader.read, "a")
            assert requests.acquire(timeout=10)
            assert threads.submit(reader.read, "b").result(5) == "value of b", "b is fresh"
            assert threads.submit(reader.read, "c").result(5) == "value of c", "c is fetched"
            # At the first time nobody knows yet: those who want the same wait for one answer.
            same = [threads.submit(reader.read, "a") for _ in range(3)]
            assert not first.done()
            go.set()
            assert {one.result(5) for one in (first, *same)} == {"value of a"}
            assert not requests.acquire(blocking=False), "one request for all of them"
            # Later on one of them finds out whether it is back, and the others do not wait.
            go.clear()
            clock.at += 31
            later = threads.submit(reader.read, "a")
            assert requests.acquire(timeout=10)
            others = [threads.submit(reader.read, "a") for _ in range(3)]
            assert {one.result(5) for one in others} == {"value of a"}
            assert not later.done()
        finally:
            go.set()
        assert later.result(5) == "value of a"


def test_what_is_missing_damaged_or_no_text_is_refused(manager: Manager) -> None:
    reader = SecretManager()
    with pytest.raises(BadFleet, match="there is no such secret"):
        reader.read("projects/harbour/secrets/other/versions/1")
    manager.values[VERSION] = b"\xff\xfe"
    with pytest.raises(BadFleet, match="no text"):
        reader.read(VERSION)
    manager.damaged = True
    with pytest.raises(Unavailable, match="damaged"):
        reader.read(VERSION)


def test_the_checksum_is_the_one_the_service_sends() -> None:
    assert _crc32c(b"123456789") == 0xE3069283  # RFC 3720, and every catalogue of CRCs


def test_a_stand_in_is_taken_on_this_machine_only(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(EMULATOR_HOST, "secrets.example:443")
    with pytest.raises(BadFleet, match="not on this machine"):
        SecretManager().read(VERSION)


def test_every_reference_is_read_where_it_points(
    manager: Manager, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    register_secret_manager()
    monkeypatch.setenv("A_URL", "postgresql://here")
    (tmp_path / "url").write_text("postgresql://there\n")
    manager.values[VERSION] = b"postgresql://beyond"
    found = [
        StorePlan("postgresql", url_env="A_URL").url(),
        StorePlan("postgresql", url_file=str(tmp_path / "url")).url(),
        StorePlan("postgresql", url_secret=VERSION).url(),
    ]
    assert found == ["postgresql://here", "postgresql://there", "postgresql://beyond"]
    assert read_secret({}, "url", where="here") is None
    for table, what in (
        ({"url_env": "A_URL", "url_secret": VERSION}, "both given"),
        ({"url_secret": "hunter2"}, "no version of a secret"),
        ({"url_env": "NOT_SET_ANYWHERE"}, "is not set"),
    ):
        with pytest.raises(BadFleet, match=what):
            read_secret(table, "url", where="here")


def test_what_is_a_reference_and_what_is_a_secret_itself() -> None:
    assert is_secret_version(VERSION)
    assert not is_secret_version(VERSION + "\n")
    assert is_secret_literal("client_secret", "hunter2")
    assert is_secret_literal("token", VERSION)
    assert not is_secret_literal("token_secret", VERSION)
    table = {
        "url": "http://x", "record_file": "r.jsonl", "token_secret": VERSION, "api_key_env": "K",
        "password_file": "p", "odd_secret": "hunter2",
    }  # fmt: skip
    assert secret_names(table) == ["api_key", "password", "token"]


SETTINGS = """
fleet = "harbour"
[[serve.senders]]
name = "monitoring"
token_secret = "projects/p/secrets/s/versions/3"
[targets.oncall]
kind = "webhook"
url = "http://127.0.0.1:8099/hook"
token_secret = "projects/p/secrets/s/versions/latest"
"""


PEOPLE = """
fleet = "harbour"
[people]
issuer = "https://id.example"
operator = ["ops"]
"""


@pytest.mark.parametrize(
    ("before", "after", "what"),
    [
        ("", "", ""),
        ("https://id.example", "http://127.0.0.1:9", ""),
        ("https:", "http:", "https"),
        ('operator = ["ops"]', "", "nobody has a role"),
        ("[people]", '[people]\naudience = "spiffe://harbour/gateway"', "same audience"),
        ("[people]", '[tokens]\naudience = "vedette"\n[people]', "same audience"),
    ],
)
def test_who_may_vouch_for_people(tmp_path: Path, before: str, after: str, what: str) -> None:
    (tmp_path / "vedette.toml").write_text(PEOPLE.replace(before, after, 1))
    settings, problems = read_settings(tmp_path / "vedette.toml")
    assert (settings is not None) is (what == "")
    assert not what or any(what in f"{p.field} {p.what} {p.mend}" for p in problems)


@pytest.mark.parametrize(
    ("before", "after", "what"),
    [
        ("", "", ""),
        ('versions/3"', '"', "token_secret"),
        ('token_secret = "projects/p/secrets/s/versions/latest"', 'token_secret = "abc"', "secret"),
        ('url = "', 'token_env = "T"\nurl = "', "more than once"),
        ('name = "m', 'token_env = "T"\nname = "m', "needs its token"),
    ],
)
def test_the_settings_take_references_and_refuse_secrets(
    tmp_path: Path, before: str, after: str, what: str
) -> None:
    (tmp_path / "vedette.toml").write_text(SETTINGS.replace(before, after, 1))
    settings, problems = read_settings(tmp_path / "vedette.toml")
    assert (settings is not None) is (what == "")
    assert not what or any(what in f"{p.field} {p.what}" for p in problems)


# --- targets ---------------------------------------------------------------------------------

TOOL = Tool("t.call", "call", "thing", {}, (), "idempotent", "call_it", query="ask_it", target="x")


def call_with(target: dict[str, Any]) -> Call:
    return Call("t.call", {}, "key1", "gull", "run_1", target, ("gull",), 1, 5_000_000)


def agent_tools(seen: list[dict[str, Any]]) -> InProcessTools:
    def call_it(call: Call) -> Outcome:
        seen.append(dict(call.target))
        return Outcome("done", {"known": len(seen)})

    module: Any = SimpleNamespace(call_it=call_it, ask_it=call_it)
    return InProcessTools(lambda name: module)


async def test_a_target_is_given_its_secrets_for_the_call_alone(
    manager: Manager, tmp_path: Path
) -> None:
    register_secret_manager()
    (tmp_path / "p").write_text("from a file")
    target = {"kind": "webhook", "token_secret": VERSION, "password_file": str(tmp_path / "p")}
    before = json.dumps(target)
    seen: list[dict[str, Any]] = []
    given = with_secrets(agent_tools(seen), {"x": target})
    outcome = await given.perform(TOOL, call_with(target), lambda: True)
    assert outcome == Outcome("done", {"known": 1})
    assert (seen[0]["token"], seen[0]["password"]) == ("s3cret-of-the-manager", "from a file")
    await given.query(TOOL, call_with(target))
    assert seen[1]["token"] == "s3cret-of-the-manager"
    assert json.dumps(target) == before
    given.close()  # type: ignore[attr-defined]


@pytest.mark.parametrize("ask", [False, True])
async def test_what_a_tool_tells_of_its_secrets_is_recorded_without_them(
    monkeypatch: pytest.MonkeyPatch, ask: bool
) -> None:
    monkeypatch.setenv("A_TOKEN", "hunter2-of-a")
    monkeypatch.setenv("A_PASSWORD", "hunter2")
    monkeypatch.setenv("A_RECORD_TOKEN", "for-the-audit")
    target = {
        "token_env": "A_TOKEN", "password_env": "A_PASSWORD", "record_token_env": "A_RECORD_TOKEN",
    }  # fmt: skip
    raises = False

    def call_it(call: Call) -> Outcome:
        header = f"Bearer {call.target['token']}".encode()
        if raises:
            raise ValueError(f"Invalid header value {header!r}")
        data = {"sent": [header.decode()], "with": call.target["password"], "to": "for-the-audit"}
        return Outcome("failed", data, f"refused: {header!r}")

    module: Any = SimpleNamespace(call_it=call_it, ask_it=call_it)
    given = with_secrets(InProcessTools(lambda name: module), {"x": target})

    async def made() -> Outcome | None:
        call = call_with(target)
        return await (given.query(TOOL, call) if ask else given.perform(TOOL, call, lambda: True))

    outcome = await made()
    assert outcome is not None
    assert dict(outcome.data) == {
        "sent": ["Bearer [secret]"], "with": "[secret]", "to": "for-the-audit",
    }  # fmt: skip
    assert outcome.error == "refused: b'Bearer [secret]'"
    raises = True
    with pytest.raises(RuntimeError) as raised:
        await made()
    assert str(raised.value) == "ValueError: Invalid header value b'Bearer [secret]'"
    given.close()  # type: ignore[attr-defined]


async def test_a_secret_of_several_lines_is_refused_and_not_shown(
    manager: Manager, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No header can carry it: http.client says so, with the header."""
    register_secret_manager()
    (tmp_path / "token").write_text("hunter2\nhunter3\n")
    monkeypatch.setenv("A_TOKEN", "hunter2\r")
    manager.values["projects/harbour/secrets/two/versions/1"] = b"hunter2\nhunter3\n"
    for table in (
        {"token_file": str(tmp_path / "token")},
        {"token_env": "A_TOKEN"},
        {"token_secret": "projects/harbour/secrets/two/versions/1"},
    ):
        with pytest.raises(BadFleet, match="several lines") as refused:
            read_secret(table, "token", where="here")
        assert "hunter" not in str(refused.value)
    seen: list[dict[str, Any]] = []
    target = {"token_file": str(tmp_path / "token")}
    given = with_secrets(agent_tools(seen), {"x": target})
    outcome = await given.perform(TOOL, call_with(target), lambda: True)
    assert outcome is not None
    assert (outcome.state, seen) == ("retry", [])
    given.close()  # type: ignore[attr-defined]
    (tmp_path / "token").write_text("hunter2\n")
    assert read_secret(target, "token", where="here") == "hunter2"


async def test_a_webhook_is_shown_its_token_from_a_process_that_cannot_look_it_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The whole way, tools in worker processes: the token goes there with the call alone."""
    shown: list[str | None] = []

    class Hook(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["Content-Length"]))
            shown.append(self.headers["Authorization"])
            self.send_response(200)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, format: str, *args: Any) -> None:
            """Say nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Hook)
    thread = Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    monkeypatch.setenv("ONCALL_TOKEN", "t0ken-of-the-webhook")
    url = f"http://127.0.0.1:{server.server_address[1]}/hook"
    targets = {
        "oncall": {"kind": "webhook", "url": url, "token_env": "ONCALL_TOKEN"},
        "board": {"kind": "board", "path": str(tmp_path / "board.db")},
        "week": {"kind": "folder", "path": str(tmp_path / "week")},
        "mailbox": {"kind": "maildir", "path": str(tmp_path / "mail")},
    }
    try:
        async with FleetHarness(tmp_path, targets=targets, workers=True) as fleet:
            await sound(fleet)
            assert shown == ["Bearer t0ken-of-the-webhook"]
            # It is in no entry and in no body of what the ledger keeps.
            for _, raw, _, data in fleet.app.store.ledger.walk():
                assert b"t0ken" not in raw + (data or b"")
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


async def test_without_its_secret_nothing_is_called_and_it_is_tried_again() -> None:
    target = {"kind": "webhook", "token_env": "NOT_SET_ANYWHERE"}
    assert "NOT_SET_ANYWHERE" not in os.environ
    seen: list[dict[str, Any]] = []
    given = with_secrets(agent_tools(seen), {"x": target})
    outcome = await given.perform(TOOL, call_with(target), lambda: True)
    assert outcome is not None
    assert (outcome.state, seen) == ("retry", [])
    answer = await given.query(TOOL, call_with(target))
    assert answer is not None
    assert (answer.state, seen) == ("unknown", [])
    given.close()  # type: ignore[attr-defined]


async def test_where_no_target_has_a_secret_the_hands_stay_what_they_were() -> None:
    plain = agent_tools([])
    assert with_secrets(plain, {"x": {"kind": "webhook", "url": "http://x"}}) is plain
    refused = await with_secrets(plain, {"x": {"token_env": "NOT_SET_ANYWHERE"}}).perform(
        replace(TOOL, attempts=1), call_with({"kind": "webhook"}), lambda: False
    )
    assert refused is None
    plain.close()

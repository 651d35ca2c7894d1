"""The rules of the OPA adapter, against a real server and against ones that misbehave."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import orjson
import pytest
from tests.opa_server import OpaServer, opa_server

from vedette.adapters.bundles import format_revision
from vedette.adapters.policy_engines.opa import OpaConnection, OpaEngine, OpaStage, OpaUnavailable
from vedette.adapters.policy_engines.opa.connection import PROBE_S
from vedette.adapters.policy_engines.regorus.engine import RegorusEngine
from vedette.adapters.policy_engines.regorus.stage import read_bundle
from vedette.app.policy_engines import close_stage, policy_stage
from vedette.config.policy_table import server_url_problem
from vedette.config.settings import read_settings
from vedette.domain.base.canonical import canonical_json
from vedette.domain.base.errors import BadFleet, Unavailable
from vedette.domain.bundle import Bundle, Finding
from vedette.domain.decision import NullPolicyEngine, build_denial, request_decision
from vedette.domain.ports.policy_engine import PolicyEngine
from vedette.policy.bundle_data import mount
from vedette.policy.golden_requests import golden_requests

BUNDLE = read_bundle(Path(__file__).parents[4] / "policies")
QUESTION = canonical_json(golden_requests(mount(BUNDLE.files))[0][1])
# Answers otherwise than any engine could, so that it shows who decided.
STRANGER = build_denial("of.the.server").to_json()
# Long, so that a busy machine is no failure; short where it is the deadline that is looked at.
LONG_US, SHORT_US = 5_000_000, 300_000

Serve = Callable[[BaseHTTPRequestHandler, bytes], None]


class Seen:
    """The Metrics port, as far as the engine uses it."""

    def __init__(self) -> None:
        self.fallen: dict[str, int] = {}
        self.up = -1.0
        self.ups: list[float] = []

    def count(self, name: str, amount: int = 1, **labels: str) -> None:
        assert name == "policy_fallbacks"
        self.fallen[labels["reason"]] = self.fallen.get(labels["reason"], 0) + amount

    def gauge(self, name: str, value: float, **labels: str) -> None:
        assert name == "policy_engine_up"
        self.up = value
        self.ups.append(value)

    def observe(self, name: str, value: float, **labels: str) -> None:
        raise AssertionError(name)


class Fake:
    """A server that answers as `serve` says; keeps what was asked of it."""

    def __init__(self, serve: Serve) -> None:
        fake = self
        self.serve = serve
        self.asked: list[tuple[str, str, dict[str, str], bytes]] = []

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                fake.asked.append((self.command, self.path, dict(self.headers), body))
                # Whoever gave up has hung up.
                try:
                    fake.serve(self, body)
                except (BrokenPipeError, ConnectionResetError):
                    self.close_connection = True

            do_GET = do_PUT = do_PATCH = do_DELETE = do_POST

            def log_message(self, format: str, *args: Any) -> None:
                return

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.server.daemon_threads = True
        self.thread = threading.Thread(target=self.server.serve_forever, args=(0.01,))
        self.thread.start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server.server_address[1]}"

    def questions(self) -> list[bytes]:
        """Return the questions that were no probes."""
        return [body for _, _, _, body in self.asked if body != b'{"input":{}}']

    def close(self) -> None:
        self.server.shutdown()
        self.thread.join()
        self.server.server_close()


@contextmanager
def fake(serve: Serve) -> Iterator[Fake]:
    server = Fake(serve)
    try:
        yield server
    finally:
        server.close()


class Within:
    """The stage within, with an engine that is compiled already."""

    async def try_out(self, bundle: Bundle) -> list[Finding]:
        return []

    def load(self, bundle: Bundle) -> PolicyEngine:
        return EMBEDDED if bundle.digest == BUNDLE.digest else RegorusEngine(bundle)


@contextmanager
def engine_on(
    url: str,
    *,
    otherwise: str = "embedded",
    token: str | None = None,
    bundle: Bundle = BUNDLE,
    timeout_us: int = LONG_US,
) -> Iterator[tuple[OpaEngine, Seen]]:
    metrics = Seen()
    link = OpaConnection(url, token=token, timeout_us=timeout_us, metrics=metrics)
    stage = OpaStage(Within(), link, metrics, fallback=otherwise)
    try:
        engine = stage.load(bundle)
        assert isinstance(engine, OpaEngine)
        yield engine, metrics
    finally:
        stage.close()


def answer(
    result: object = STRANGER,
    *,
    digest: str = BUNDLE.digest,
    bundles: object = None,
    status: int = 200,
) -> Serve:
    held = {"main": {"revision": format_revision(7, digest)}} if bundles is None else bundles
    body: dict[str, object] = {"provenance": {"version": "1.2.3", "bundles": held}}
    if result is not None:
        body["result"] = result
    return says(orjson.dumps(body), status)


def says(raw: bytes, status: int = 200, **headers: str) -> Serve:
    def serve(handler: BaseHTTPRequestHandler, body: bytes) -> None:
        handler.send_response(status)
        for name, value in headers.items():
            handler.send_header(name, value)
        handler.send_header("Content-Length", str(len(raw)))
        handler.end_headers()
        handler.wfile.write(raw)

    return serve


def wait_until(true: Callable[[], bool], within_s: float = 10) -> None:
    end = time.monotonic() + within_s
    while not true():
        assert time.monotonic() < end, "it did not come to pass"
        time.sleep(0.005)


EMBEDDED = RegorusEngine(BUNDLE)

# --- what is taken ------------------------------------------------------------------------------


def test_an_answer_under_our_bundle_decides_and_says_who() -> None:
    with fake(answer()) as server, engine_on(server.url, token="s3cret") as (engine, metrics):
        assert engine.decide(QUESTION) == STRANGER
        assert engine.name == "opa/1.2.3 server"
        assert not metrics.fallen
        assert metrics.up == 1
        ((command, path, headers, body),) = server.asked[1:]
        assert (command, path) == ("POST", "/v1/data/vedette/gateway/decision?provenance=true")
        # The exact bytes that are recorded are those that were asked.
        assert body == b'{"input":' + QUESTION + b"}"
        assert headers["Authorization"] == "Bearer s3cret"


def test_undefined_is_an_answer() -> None:
    with fake(answer(None)) as server, engine_on(server.url) as (engine, metrics):
        assert engine.decide(QUESTION) is None
        assert engine.name.startswith("opa/")
        assert not metrics.fallen


def test_bundles_of_others_do_not_matter() -> None:
    held = {
        "authz": {"revision": "some other"},
        "main": {"revision": format_revision(3, BUNDLE.digest)},
    }
    with fake(answer(bundles=held)) as server, engine_on(server.url) as (engine, _):
        assert engine.decide(QUESTION) == STRANGER


def test_what_is_no_json_is_not_asked() -> None:
    with fake(answer()) as server, engine_on(server.url) as (engine, _):
        for raw in (b"", b"{", b"\xff", b'{} , "x": 1'):
            with pytest.raises(ValueError):  # noqa: PT011 - the message is the parser's
                engine.decide(raw)
        assert not server.questions()


# --- what is not --------------------------------------------------------------------------------


def hang(handler: BaseHTTPRequestHandler, body: bytes) -> None:
    time.sleep(SHORT_US / 1e6 * 3)
    handler.close_connection = True


def drip(handler: BaseHTTPRequestHandler, body: bytes) -> None:
    """Never silent for as long as a timeout of single reads would need."""
    handler.send_response(200)
    handler.send_header("Content-Length", "100000")
    handler.end_headers()
    for _ in range(60):
        handler.wfile.write(b" ")
        handler.wfile.flush()
        time.sleep(0.01)
    handler.close_connection = True


def cut(handler: BaseHTTPRequestHandler, body: bytes) -> None:
    handler.send_response(200)
    handler.send_header("Content-Length", "1000")
    handler.end_headers()
    handler.wfile.write(b'{"result":')
    handler.close_connection = True


ELSEWHERE = says(b"", 307, Location="/v1/data/elsewhere")
REFUSED: dict[str, tuple[Serve, str]] = {
    "no bundle at all": (answer(bundles={}), "revision"),
    "another bundle": (answer(digest="b" * 64), "revision"),
    "two bundles of ours": (
        answer(bundles={name: {"revision": format_revision(1, BUNDLE.digest)} for name in "ab"}),
        "revision",
    ),
    "no provenance": (says(orjson.dumps({"result": STRANGER})), "revision"),
    "not a decision": (answer({"allow": True}), "shape"),
    "true": (answer(True), "shape"),
    "a decision and more": (answer({**STRANGER, "more": 1}), "shape"),
    "an obligation nobody knows": (
        answer({**STRANGER, "obligations": [{"type": "dance"}]}),
        "shape",
    ),
    "a list": (says(b"[]"), "shape"),
    "no JSON": (says(b"permit"), "shape"),
    "too long": (says(b" " * (2 << 20)), "shape"),
    "500": (answer(status=500), "status"),
    "503": (answer(status=503), "status"),
    "401": (answer(status=401), "status"),
    "201": (answer(status=201), "status"),
    "a redirect": (ELSEWHERE, "status"),
    "silence": (hang, "timeout"),
    "a byte now and then": (drip, "timeout"),
    "cut off": (cut, "unreachable"),
}


@pytest.mark.parametrize("name", REFUSED)
@pytest.mark.parametrize("otherwise", ["embedded", "deny"])
def test_everything_else_is_decided_by_who_stands_behind(name: str, otherwise: str) -> None:
    serve, why = REFUSED[name]
    timeout_us = SHORT_US if why == "timeout" else LONG_US
    with (
        fake(answer()) as server,
        engine_on(server.url, otherwise=otherwise, timeout_us=timeout_us) as (engine, metrics),
    ):
        if why != "timeout":
            assert engine.decide(QUESTION) == STRANGER
        server.serve = serve
        before = len(server.asked)
        began = time.monotonic()
        decision, _ = request_decision(engine, orjson.loads(QUESTION))
        took = time.monotonic() - began
        questions = [body for _, _, _, body in server.asked[before:] if body != b'{"input":{}}']
        if otherwise == "embedded":
            assert decision.outcome == "permit"
            assert engine.name == EMBEDDED.name
        else:
            assert (decision.outcome, decision.rule) == ("deny", "engine.error")
            assert engine.name == "nobody"
        assert metrics.fallen == {why: 1}
        # Once: no retry, no redirect followed; and within the deadline, however it was used up.
        assert questions == [b'{"input":' + QUESTION + b"}"]
        assert all("elsewhere" not in path for _, path, _, _ in server.asked)
        assert took < timeout_us / 1e6 + 2


def test_no_environment_leads_elsewhere(monkeypatch: pytest.MonkeyPatch) -> None:
    with fake(answer(build_denial("of.the.proxy").to_json())) as proxy, fake(answer()) as server:
        for name in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"):
            monkeypatch.setenv(name, proxy.url)
        with engine_on(server.url) as (engine, _):
            assert engine.decide(QUESTION) == STRANGER
        assert not proxy.asked


def test_nobody_is_there_from_the_start() -> None:
    with fake(answer()) as server:
        url = server.url
    with engine_on(url) as (engine, metrics):
        assert request_decision(engine, orjson.loads(QUESTION))[0].outcome == "permit"
        assert engine.name == EMBEDDED.name
        assert metrics.up == 0


# --- afterwards ---------------------------------------------------------------------------------


def test_after_a_failure_no_decision_waits_and_the_server_is_taken_up_again() -> None:
    with (
        fake(answer()) as server,
        engine_on(server.url, timeout_us=SHORT_US) as (engine, metrics),
    ):
        server.serve = hang
        began = time.monotonic()
        engine.decide(QUESTION)
        waited = time.monotonic() - began
        assert waited >= SHORT_US / 1e6 * 0.9
        question = len(server.questions())
        began = time.monotonic()
        for _ in range(20):
            engine.decide(QUESTION)
        assert time.monotonic() - began < waited, "20 decisions took longer than one timeout"
        assert len(server.questions()) == question, "the server was asked while it was known away"
        assert metrics.fallen == {"timeout": 1, "down": 20}
        server.serve = answer()
        wait_until(lambda: metrics.up == 1)
        assert engine._connection.is_ready(BUNDLE.digest)


def test_under_another_revision_it_is_left_alone_until_it_has_ours() -> None:
    with fake(answer(digest="b" * 64)) as server, engine_on(server.url) as (engine, metrics):
        assert request_decision(engine, orjson.loads(QUESTION))[0].outcome == "permit"
        assert engine.name == EMBEDDED.name
        assert not server.questions(), "it was known before that it serves another bundle"
        server.serve = answer()
        wait_until(lambda: metrics.up == 1, within_s=PROBE_S * 40)
        assert engine.decide(QUESTION) == STRANGER


@pytest.mark.parametrize("bundles", [{}, {"authz": {"revision": "some other"}}])
def test_with_no_bundle_of_ours_it_is_left_alone_until_it_has_ours(bundles: object) -> None:
    with (
        fake(answer(bundles=bundles)) as server,
        engine_on(server.url) as (engine, metrics),
    ):
        for _ in range(20):
            engine.decide(QUESTION)
        assert engine.name == EMBEDDED.name
        assert not server.questions(), "it was known before that it serves none of ours"
        assert metrics.fallen == {"down": 20}
        assert set(metrics.ups) == {0}
        server.serve = answer()
        wait_until(lambda: metrics.up == 1, within_s=PROBE_S * 40)
        assert engine.decide(QUESTION) == STRANGER


def test_it_is_up_only_under_the_live_bundle() -> None:
    with fake(answer()) as server, engine_on(server.url) as (engine, metrics):
        engine.decide(QUESTION)
        assert set(metrics.ups) == {1}
        metrics.ups.clear()
        server.serve = answer(bundles={})
        for _ in range(5):
            engine.decide(QUESTION)
        assert metrics.fallen == {"revision": 1, "down": 4}
        assert set(metrics.ups) == {0}
        assert len(server.questions()) == 2


def test_a_server_that_nobody_heard_yet_is_asked() -> None:
    """The other half: not to know is no reason to leave it alone."""
    metrics = Seen()
    with fake(answer()) as server:
        link = OpaConnection(server.url, token=None, timeout_us=LONG_US, metrics=metrics)
        try:
            assert link.is_ready(BUNDLE.digest)
            assert (
                OpaEngine(NullPolicyEngine(), link, metrics, BUNDLE.digest).decide(QUESTION)
                == STRANGER
            )
            assert metrics.up == 1
        finally:
            link.close()


def test_a_closed_link_still_decides() -> None:
    with fake(answer()) as server:
        with engine_on(server.url) as (engine, _):
            engine.decide(QUESTION)
        assert request_decision(engine, orjson.loads(QUESTION))[0].outcome == "permit"
        link = OpaConnection(server.url, token=None, timeout_us=LONG_US, metrics=Seen())
        link.close()
        with pytest.raises(OpaUnavailable):
            link.ask(QUESTION)


def test_two_threads_each_know_who_decided_for_them() -> None:
    with fake(answer()) as server, engine_on(server.url) as (engine, _):
        engine.decide(QUESTION)
        server.serve = answer(status=500)
        names: list[str] = []

        def other() -> None:
            engine.decide(QUESTION)
            names.append(engine.name)

        thread = threading.Thread(target=other)
        thread.start()
        thread.join()
        assert names == [EMBEDDED.name]
        assert engine.name == "opa/1.2.3 server"


def test_nobody_decides_nothing() -> None:
    with pytest.raises(Unavailable):
        NullPolicyEngine().decide(QUESTION)


# --- a real server ------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def opa() -> Iterator[OpaServer]:
    with opa_server(BUNDLE) as server:
        yield server


def test_a_real_server_decides_and_is_never_written_to(opa: OpaServer) -> None:
    with engine_on(opa.url) as (engine, metrics):
        for _, request in golden_requests(mount(BUNDLE.files))[:10]:
            raw = orjson.dumps(request)
            assert request_decision(engine, request) == request_decision(EMBEDDED, request)
            assert engine.name.startswith("opa/1."), raw
        assert not metrics.fallen


def test_a_real_server_with_another_bundle_does_not_decide(opa: OpaServer) -> None:
    more = {**BUNDLE.files, "denies/data.yaml": BUNDLE.files["denies/data.yaml"] + b"# else\n"}
    with engine_on(opa.url, bundle=Bundle.of(more)) as (engine, metrics):
        engine.decide(QUESTION)
        assert engine.name == EMBEDDED.name
        assert set(metrics.fallen) == {"down"}


# --- the table ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "url",
    ["http://127.0.0.1:8181", "http://localhost", "http://[::1]:8181/", "https://opa.example:443"],
)
def test_servers_that_may_decide(url: str) -> None:
    assert server_url_problem(url) is None


@pytest.mark.parametrize(
    "url",
    [
        "http://opa.example:8181", "http://10.0.0.1:8181", "http://127.0.0.1.example",
        "http://localhost.example", "ftp://127.0.0.1", "127.0.0.1:8181", "",
        "http://", "http://127.0.0.1:0", "http://127.0.0.1:99999", "https://opa.example/v1",
        "https://a:b@opa.example", "https://opa.example?x=1", "http://[::1",
    ],
)  # fmt: skip
def test_servers_that_may_not(url: str) -> None:
    assert server_url_problem(url) is not None


@pytest.mark.parametrize(
    ("line", "field", "what"),
    [
        ('opa_url = "http://opa.example:8181"', "policy.opa_url", "plain http"),
        ('opa_url = "https://opa.example/v1"', "policy.opa_url", "more than a server"),
        ('timeout = "10s"', "policy.timeout", "from 1ms to 5s"),
        ('timeout = "0s"', "policy.timeout", "no time"),
        ('engine = "oba"', "policy.engine", "opa"),
        ('opa_token_env = "A"\nopa_token_file = "a"', "policy.opa_token_file", "twice"),
    ],
)
def test_a_wrong_table_is_told_with_its_line(
    tmp_path: Path, line: str, field: str, what: str
) -> None:
    file = tmp_path / "vedette.toml"
    file.write_text(f'fleet = "harbour"\n[policy]\n{line}\n', encoding="utf-8")
    settings, problems = read_settings(file)
    assert settings is None
    found = [each for each in problems if each.field == field]
    assert found, [str(each) for each in problems]
    assert what in f"{found[0].what} {found[0].mend}"
    assert found[0].line in (3, 4)


def test_the_table_makes_the_stage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "vedette.toml"
    table = '[policy]\nengine = "opa"\nopa_token_env = "OPA_TOKEN"\notherwise = "deny"\n'
    file.write_text(f'fleet = "harbour"\n{table}', encoding="utf-8")
    settings, problems = read_settings(file)
    assert settings is not None, problems
    monkeypatch.delenv("OPA_TOKEN", raising=False)
    with pytest.raises(BadFleet, match="OPA_TOKEN is not set"):
        policy_stage(settings, Within(), Seen())
    monkeypatch.setenv("OPA_TOKEN", "s3cret")
    stage = policy_stage(settings, Within(), Seen())
    assert isinstance(stage, OpaStage)
    close_stage(stage)
    plain, _ = read_settings(write_plain(tmp_path))
    assert plain is not None
    within = Within()
    assert policy_stage(plain, within, Seen()) is within
    close_stage(within)


def write_plain(folder: Path) -> Path:
    file = folder / "plain.toml"
    file.write_text('fleet = "harbour"\n[policy]\nengine = "embedded"\n', encoding="utf-8")
    return file

"""Points of a real Prometheus as events, each once and without a gap; and what it may answer."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from tests.prometheus import Prometheus

from vedette.adapters.files.source import CsvSource
from vedette.adapters.prometheus import source as module
from vedette.adapters.prometheus.client import SourceUnavailable
from vedette.adapters.prometheus.config import PrometheusFile, QueryFile
from vedette.adapters.prometheus.series import MAX_NAME, choose_series, series_name
from vedette.adapters.prometheus.source import PrometheusSource, probe
from vedette.adapters.telemetry.prometheus import PrometheusMetrics
from vedette.config.settings import load_settings
from vedette.domain.base.clock import MICROS, SystemClock, from_iso
from vedette.domain.base.errors import BadFleet, StoreFailed, Unavailable
from vedette.domain.event import ENVELOPE, Event
from vedette.testing.clock import ManualClock
from vedette.testing.intake import ListIntake

# A whole number of steps: 2026-03-01T06:00:00Z.
T0 = from_iso("2026-03-01T06:00:00Z")
S0 = T0 // MICROS
STEP = 30 * MICROS


@pytest.fixture(scope="module")
def loaded() -> Iterator[Prometheus]:
    """A server with two hours of load, a sample every 30 s, of two hosts; and odd ones."""
    server = Prometheus()
    lines = ["# TYPE load gauge"]
    for host in ("a", "b"):
        for number in range(240):
            # b is silent for a while: a gap longer than what Prometheus looks back.
            if host == "a" or not 60 <= number < 120:
                lines.append(f'load{{host="{host}"}} {number / 4} {S0 + 30 * number}')
    lines.append("# TYPE odd gauge")
    for number, value in enumerate(["1", "NaN", "+Inf", "-Inf", "0.1"]):
        lines.append(f"odd {value} {S0 + 30 * number}")
    server.load(lines)
    yield server
    server.close()


def plan_of(url: str, **more: Any) -> PrometheusFile:
    plan = PrometheusFile(
        name="here",
        url=url,
        queries=[QueryFile(name="load", expr="load", step="30s")],
        delay="10s",
        lookback="30s",
    )
    return plan.replace(**more)


def asking(plan: PrometheusFile, clock: ManualClock, **more: Any) -> PrometheusSource:
    return PrometheusSource(plan, clock, PrometheusMetrics(), watch=False, **more)


def times(events: list[Event], subject: str = 'load{host="a"}') -> list[int]:
    """Return the seconds after T0 of one series' points."""
    return [(from_iso(event.time or "") - T0) // MICROS for event in events
            if event.subject == subject]  # fmt: skip


# --- each once, no gap -------------------------------------------------------------------------


async def test_a_sample_is_a_point_as_the_csv_source_makes_it(
    loaded: Prometheus, tmp_path: Path
) -> None:
    """So whoever watches one series watches the other."""
    (tmp_path / "load.csv").write_text("timestamp,value\n2026-03-01T06:00:30Z,0.25\n")
    intake, rows = ListIntake(), ListIntake()
    await CsvSource("m", str(tmp_path / "*.csv"), ManualClock()).deliver(rows)
    await asking(plan_of(loaded.url), ManualClock(T0 + 45 * MICROS)).deliver(intake)
    point, row = intake.events[0], rows.events[0]
    assert point.source == "prometheus:here"
    assert point.id == f'load{{host="a"}}@{S0 + 30}'
    assert point.subject == 'load{host="a"}'
    assert point.vouched == ENVELOPE - {"id", "subject"}, "anybody may have named the host"
    repeat = Event.from_body(json.loads(point.to_body()))
    assert (repeat.type, repeat.data) == ("metric.point", {"value": "0.25"})
    assert from_iso(repeat.time or "") == from_iso(row.time or "")
    assert json.loads(row.to_body())["data"] == json.loads(point.to_body())["data"]


async def test_every_step_once_over_restarts(loaded: Prometheus) -> None:
    """Asked at odd times, by one source and by its successors, with a long stop between."""
    clock, intake = ManualClock(T0 + 100 * MICROS), ListIntake()
    plan = plan_of(loaded.url)
    for wait in (0, 7, 100, 1, 1500, 3, 31):
        clock.advance(wait * MICROS)
        source = asking(plan, clock)
        await source.deliver(intake)
        await source.deliver(intake)
    found = times(intake.events)
    last = (clock.now_us() - T0 - 10 * MICROS) // STEP * 30
    assert found == list(range(90, last + 1, 30))
    assert not any(receipt for receipt in intake.refusals)


async def test_a_step_that_is_not_over_is_not_asked_for(loaded: Prometheus) -> None:
    """Its samples may still come: nothing of it before it is as old as `delay`."""
    intake = ListIntake()
    await asking(plan_of(loaded.url), ManualClock(T0 + 99 * MICROS)).deliver(intake)
    assert times(intake.events) == [60]
    await asking(plan_of(loaded.url), ManualClock(T0 + 100 * MICROS)).deliver(intake)
    assert times(intake.events) == [60, 90]


async def test_a_clock_that_is_ahead_makes_no_gap() -> None:
    """By the server's clock a step is not over: its samples may still come, so it is not taken."""
    now = SystemClock().now_us()
    result = [
        {"metric": {}, "values": [[now // MICROS // 30 * 30 + 30 * n, "1"] for n in range(9)]}
    ]
    raw = json.dumps({"data": {"resultType": "matrix", "result": result}}).encode()
    with served(answering(200, raw, [])) as (port, _):
        intake = ListIntake()
        clock = ManualClock(now + 200 * MICROS)
        plan = plan_of(f"http://127.0.0.1:{port}", lookback="600s")
        await asking(plan, clock).deliver(intake)
    position = json.loads(intake.positions["prometheus:here/load"])["at"]
    assert position <= now // MICROS - 10 + 2
    assert all(from_iso(event.time or "") // MICROS <= position for event in intake.events)


async def test_no_point_is_lost_when_the_store_fails(loaded: Prometheus) -> None:
    intake, clock = ListIntake(), ManualClock(T0 + 100 * MICROS)
    source = asking(plan_of(loaded.url), clock)
    await source.deliver(intake)
    clock.advance(60 * MICROS)
    intake.failure = StoreFailed("no space")
    with pytest.raises(StoreFailed):
        await source.deliver(intake)
    intake.failure = None
    await source.deliver(intake)
    assert times(intake.events) == [90, 120, 150]


async def test_it_asks_in_parts(loaded: Prometheus, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two hours at once would be two hours of every series in memory."""
    monkeypatch.setattr(module, "POINTS", 20)
    intake, clock = ListIntake(), ManualClock(T0 + 20 * MICROS)
    await asking(plan_of(loaded.url), clock).deliver(intake)
    clock.advance(1000 * MICROS)
    await asking(plan_of(loaded.url), clock).deliver(intake)
    assert max(len(batch) for batch in intake.batches) <= 20
    assert times(intake.events) == [*range(0, 1001, 30)]
    in_time = [event.time or "" for event in intake.events]
    assert in_time == sorted(in_time)


async def test_a_silent_series_is_a_gap(loaded: Prometheus) -> None:
    """No point is made up: but for the five minutes that Prometheus itself looks back."""
    intake, clock = ListIntake(), ManualClock(T0 + 20 * MICROS)
    source = asking(plan_of(loaded.url), clock)
    await source.deliver(intake)
    clock.advance(7000 * MICROS)
    await source.deliver(intake)
    silent = times(intake.events, 'load{host="b"}')
    looked_back = 59 * 30 + 300
    assert not [at for at in silent if looked_back < at < 120 * 30]
    assert {59 * 30, 120 * 30} <= set(silent)


async def test_what_is_no_number_is_skipped_and_counted(loaded: Prometheus) -> None:
    metrics = PrometheusMetrics()
    plan = plan_of(
        loaded.url,
        queries=[QueryFile(name="odd", expr="odd", step="30s")],
        lookback="120s",
    )
    intake = ListIntake()
    source = PrometheusSource(plan, ManualClock(T0 + 130 * MICROS), metrics, watch=False)
    clock_first = PrometheusSource(plan, ManualClock(T0 + 10 * MICROS), metrics, watch=False)
    await clock_first.deliver(intake)
    await source.deliver(intake)
    assert [event.data["value"] for event in intake.events] == [1.0, 0.1]
    assert metrics.total("prometheus_skipped", source="here", why="not-finite") == 3


async def test_only_so_many_series_and_those_known_first(loaded: Prometheus) -> None:
    metrics, intake = PrometheusMetrics(), ListIntake()
    clock = ManualClock(T0 + 100 * MICROS)
    source = PrometheusSource(plan_of(loaded.url, most=1), clock, metrics, watch=False)
    await source.deliver(intake)
    assert {event.subject for event in intake.events} == {'load{host="a"}'}
    assert metrics.total("prometheus_skipped", why="most") >= 1
    assert choose_series(["x", "b"], ["c", "a", "b"], 2) == ["b", "a"]


async def test_two_series_of_one_name_are_refused(loaded: Prometheus) -> None:
    """The control: each of the two alone is taken."""
    both = '{__name__=~"load|odd", host!="b"}'
    clashing = 'label_replace({__name__=~"load|odd", host!="b"}, "host", "", "", "")'
    for expr, fits in ((both, True), (clashing, False)):
        plan = plan_of(loaded.url, queries=[QueryFile(name="mixed", expr=expr, step="30s")])
        deliveries = asking(plan, ManualClock(T0 + 100 * MICROS)).deliver(ListIntake())
        if fits:
            await deliveries
        else:
            with pytest.raises(BadFleet, match="label_replace"):
                await deliveries


async def test_a_wrong_expression_is_told(loaded: Prometheus) -> None:
    plan = plan_of(loaded.url, queries=[QueryFile(name="load", expr="load{", step="30s")])
    with pytest.raises(BadFleet, match="mend the expression"):
        await asking(plan, ManualClock(T0)).deliver(ListIntake())
    with pytest.raises(BadFleet, match="mend the expression"):
        await probe(plan)


async def test_probe_counts_series() -> None:
    server = Prometheus()
    try:
        plan = plan_of(server.url, queries=[QueryFile(name="one", expr="vector(1)", step="30s")])
        assert await probe(plan) == "Prometheus answers: one 1 series"
    finally:
        server.close()


async def test_a_server_that_goes_and_comes_leaves_no_gap(loaded: Prometheus) -> None:
    """Killed and started again: what was missed is asked for."""
    clock, intake = ManualClock(T0 + 20 * MICROS), ListIntake()
    source = PrometheusSource(plan_of(loaded.url), clock, PrometheusMetrics())
    task = asyncio.create_task(source.deliver(intake))
    while not intake.events:  # noqa: ASYNC110 (a real server is waited for)
        await asyncio.sleep(0.01)
    loaded.kill()
    clock.advance(600 * MICROS)
    with pytest.raises(SourceUnavailable):
        await task
    await asyncio.to_thread(loaded.start)
    task = asyncio.create_task(source.deliver(intake))
    async with asyncio.timeout(20):
        while times(intake.events)[-1] < 600:
            clock.advance(MICROS)
            await asyncio.sleep(0.01)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    assert times(intake.events)[:21] == list(range(0, 601, 30))


async def test_what_is_scraped_now_is_a_point_soon() -> None:
    """A real target, really scraped, by the real clock."""

    class Exporter(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.end_headers()
            self.wfile.write(b"# TYPE berths gauge\nberths 7\n")

        def log_message(self, format: str, *args: Any) -> None:
            """Say nothing."""

    with served(Exporter) as (port, _):
        server = Prometheus(f"127.0.0.1:{port}")
        clock, intake = SystemClock(), ListIntake()
        query = QueryFile(name="berths", expr="last_over_time(berths[1s])", step="1s")
        plan = plan_of(server.url, queries=[query], delay="200ms", lookback="1s")
        source = PrometheusSource(plan, clock, PrometheusMetrics())
        task = asyncio.create_task(source.deliver(intake))
        try:
            async with asyncio.timeout(20):
                while len(intake.events) < 2:  # noqa: ASYNC110 (a real server is waited for)
                    await asyncio.sleep(0.05)
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
            server.close()
    found = [event.time for event in intake.events]
    assert found == sorted(set(found), key=str)
    assert {event.data["value"] for event in intake.events} == {7.0}
    position = intake.position("prometheus:here/berths")
    assert position is not None
    assert found[-1] is not None
    assert json.loads(position)["at"] >= from_iso(found[-1]) // MICROS


# --- what it may answer --------------------------------------------------------------------------


@contextmanager
def served(handler: type[BaseHTTPRequestHandler]) -> Iterator[tuple[int, ThreadingHTTPServer]]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    try:
        yield server.server_address[1], server
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def answering(status: int, body: bytes, seen: list[Any], **headers: str) -> Any:
    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["Content-Length"]))
            seen.append((self.path, self.headers.get("Authorization")))
            self.send_response(status)
            for name, value in headers.items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: Any) -> None:
            """Say nothing."""

    return Handler


@pytest.mark.parametrize(
    ("status", "error", "expected"),
    [
        (503, SourceUnavailable, "answers 503"),
        (422, SourceUnavailable, "answers 422"),
        (401, BadFleet, "lets us not in"),
        (404, BadFleet, "no Prometheus"),
        (302, BadFleet, "no Prometheus"),
        (200, BadFleet, "no Prometheus"),
    ],
)
async def test_what_another_answer_means(
    status: int, error: type[Exception], expected: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The token goes to this server, and nowhere on: a redirect is not followed."""
    monkeypatch.setenv("PROM_TOKEN", "geheim")
    seen: list[Any] = []
    handler = answering(status, b"<html>no</html>", seen, Location="http://127.0.0.1:1/elsewhere")
    with served(handler) as (port, _):
        plan = plan_of(f"http://127.0.0.1:{port}/under", token_env="PROM_TOKEN")
        with pytest.raises(error, match=expected):
            await asking(plan, ManualClock(T0)).deliver(ListIntake())
    assert seen == [("/under/api/v1/query_range", "Bearer geheim")]


async def test_too_long_an_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    from vedette.adapters.prometheus import client

    monkeypatch.setattr(client, "MAX_BYTES", 1000)
    with served(answering(200, b"x" * 2000, [])) as (port, _):
        deliveries = asking(plan_of(f"http://127.0.0.1:{port}"), ManualClock(T0)).deliver(
            ListIntake()
        )
        with pytest.raises(BadFleet, match="too long"):
            await deliveries


async def test_a_server_that_dribbles_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each word of it comes in time, and the whole never would."""
    from vedette.adapters.prometheus import client

    monkeypatch.setattr(client, "TIMEOUT_S", 0.3)
    over = threading.Event()

    class Dribbling(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            self.wfile.write(b"HTTP/1.0 200 OK\r\n")
            while not over.wait(0.05):
                try:
                    self.wfile.write(b"X: y\r\n")
                except OSError:
                    return

        def log_message(self, format: str, *args: Any) -> None:
            """Say nothing."""

    with served(Dribbling) as (port, _):
        source = asking(plan_of(f"http://127.0.0.1:{port}"), ManualClock(T0 + 45 * MICROS))
        async with asyncio.timeout(5):
            try:
                with pytest.raises(SourceUnavailable, match="no whole answer"):
                    await source.deliver(ListIntake())
            finally:
                over.set()


async def test_a_token_that_cannot_be_read_for_a_while_is_waited_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def token(plan: PrometheusFile) -> str:
        raise Unavailable("Secret Manager does not answer")

    monkeypatch.setattr(PrometheusFile, "token", token)
    source = asking(plan_of("http://127.0.0.1:1"), ManualClock(T0 + 45 * MICROS))
    with pytest.raises(SourceUnavailable, match="Secret Manager"):
        await source.deliver(ListIntake())


async def test_one_query_that_fails_keeps_no_other_waiting() -> None:
    """It was right before, so it may pass; and what could be had was handed over."""
    good = {"resultType": "matrix", "result": [{"metric": {}, "values": [[S0, "1"]]}]}
    failing: set[str] = set()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"])).decode()
            bad = any(f"query={name}&" in body for name in failing)
            self.send_response(400 if bad else 200)
            self.end_headers()
            self.wfile.write(json.dumps({"data": good, "error": "no"}).encode())

        def log_message(self, format: str, *args: Any) -> None:
            """Say nothing."""

    with served(Handler) as (port, _):
        queries = (
            QueryFile(name="one", expr="one", step="30s"),
            QueryFile(name="two", expr="two", step="30s"),
        )
        plan = plan_of(f"http://127.0.0.1:{port}", queries=queries)
        clock, intake = ManualClock(T0), ListIntake()
        source = asking(plan, clock)
        await source.deliver(intake)
        failing.add("one")
        clock.advance(STEP)
        with pytest.raises(SourceUnavailable):
            await source.deliver(intake)
    assert json.loads(intake.positions["prometheus:here/two"])["at"] == S0
    assert json.loads(intake.positions["prometheus:here/one"])["at"] == S0 - 30


def test_a_series_is_named_by_query_and_labels() -> None:
    assert series_name("up", {"__name__": "up"}) == "up"
    labels = {"job": "x", "__name__": "m", "path": 'a"\\\n'}
    assert series_name("q", labels) == 'q{job="x",path="a\\"\\\\\\n"}'
    long = series_name("q", {"a": "x" * 600})
    assert len(long) <= MAX_NAME
    assert long != series_name("q", {"a": "x" * 599 + "y"})


# --- settings ------------------------------------------------------------------------------------

TOML = """
fleet = "harbour"

[[sources]]
kind = "prometheus"
name = "here"
url = "{url}"
{more}
[[sources.queries]]
name = "load"
expr = "avg(load)"
step = "{step}"
"""


def test_the_settings_name_it(tmp_path: Path) -> None:
    file = tmp_path / "vedette.toml"
    file.write_text(TOML.format(url="https://p.example/x", more='token_file = "t"', step="1m"))
    (plan,) = load_settings(file).sources
    assert isinstance(plan, PrometheusFile)
    assert plan.queries == [QueryFile(name="load", expr="avg(load)", step="1m")]
    assert plan.token_file == str(tmp_path / "t")


@pytest.mark.parametrize(
    ("url", "more", "step", "expected"),
    [
        ("p.example", "", "1m", "no URL"),
        ("https://me:it@p.example", "", "1m", "a secret does not stand"),
        ("http://p.example", 'token_env = "T"', "1m", "not sent over plain HTTP"),
        ("http://p.example", "", "1500ms", "no whole number of seconds"),
    ],
)
def test_wrong_settings_are_told(
    tmp_path: Path, url: str, more: str, step: str, expected: str
) -> None:
    file = tmp_path / "vedette.toml"
    file.write_text(TOML.format(url=url, more=more, step=step))
    with pytest.raises(BadFleet, match=expected) as found:
        load_settings(file)
    assert (found.value.where or "").startswith("vedette.toml:")

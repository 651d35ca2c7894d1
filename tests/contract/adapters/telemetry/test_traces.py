"""Traces: what a real collector's endpoint receives of a real run, and that it joins up."""

from __future__ import annotations

import asyncio
import io
import json
from collections.abc import AsyncIterator, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace
from tests.collector import Collector, running_collector

from vedette.adapters.telemetry.otel import OtlpExporter
from vedette.app.followers import telemetry as tell
from vedette.app.followers.telemetry import (
    TRACES_KEY,
    TraceSender,
    format_entry,
    read_traces,
    telemetry_followers,
)
from vedette.config.deployment import Deployment, TelemetryPlan
from vedette.domain.effect import Outcome
from vedette.domain.event import Event
from vedette.interfaces.daemon import Daemon
from vedette.ledger.history.trace import Span
from vedette.testing.harness import FleetHarness
from vedette.testing.toy_fleet import World, job, propose, send_proposal, toy_fleet, wait_until

SECRET = "the-owl-sleeps-at-noon"
SENDER = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"


@pytest.fixture
def collector() -> Iterator[Collector]:
    with running_collector() as server:
        yield server


@pytest.fixture
async def fleet(tmp_path: Path) -> AsyncIterator[FleetHarness]:
    world = World()
    async with toy_fleet(tmp_path, world) as fleet:
        fleet.world = world  # type: ignore[attr-defined]
        yield fleet


def with_trace(event: Event) -> Event:
    return Event(
        event.source, event.id, event.type, event.subject, event.time, event.data,
        vouched=event.vouched, extensions={"traceparent": SENDER},
    )  # fmt: skip


async def traced(fleet: FleetHarness, share: float = 1.0) -> list[Any]:
    at = 0
    found: list[Any] = []
    while True:
        batch = read_traces(fleet.app.store, at, share)
        found += batch.spans
        if batch.to == at:
            return found
        at = batch.to


async def test_event_decision_and_effect_are_one_trace(
    fleet: FleetHarness, collector: Collector
) -> None:
    await fleet.send(
        with_trace(
            job("1", send_proposal(SECRET), propose("wire.send", to="x@evil.example", text=""))
        )
    )
    await fleet.wait_until_idle()
    spans = await traced(fleet)
    exporter = OtlpExporter(collector.url, "toy")
    assert await asyncio.to_thread(exporter.send, spans)
    exporter.close()
    taken = {span.name: span for span in collector.spans}
    assert len({span.trace_id for span in collector.spans}) == 1
    assert len({span.span_id for span in collector.spans}) == len(collector.spans)
    ids = {span.span_id for span in collector.spans}
    root = taken["event"]
    assert not root.parent_span_id
    assert all(span.parent_span_id in ids for span in collector.spans if span is not root)
    assert root.links[0].trace_id.hex() == SENDER[3:35]
    outcomes = [
        attribute.value.string_value
        for span in collector.spans
        if span.name == "decide wire.send"
        for attribute in span.attributes
        if attribute.key == "vedette.outcome"
    ]
    assert sorted(outcomes) == ["deny", "permit"]
    # What the target was sent along is the span of the very call.
    (call,) = fleet.world.calls  # type: ignore[attr-defined]
    effect = taken["effect wire.send"]
    assert call.traceparent == f"00-{effect.trace_id.hex()}-{effect.span_id.hex()}-01"


async def test_no_content_is_in_a_span_or_a_log_line(fleet: FleetHarness) -> None:
    await fleet.send(with_trace(job("1", send_proposal(SECRET), subject=SECRET)))
    await fleet.wait_until_idle()
    spans = await traced(fleet)
    lines = [
        format_entry(json.loads(raw), True)
        for _, raw in fleet.app.store.ledger.entries_after(0, 1000)
    ]
    assert spans
    assert SECRET not in repr(spans)
    assert SECRET not in "".join(lines)
    # The control: the content is there, where it may be.
    bodies = [data for _, _, _, data in fleet.app.store.ledger.walk(("event.accepted",))]
    assert SECRET.encode() in b"".join(body for body in bodies if body)


async def test_a_failed_effect_is_an_error_and_a_dead_run_too(fleet: FleetHarness) -> None:
    fleet.world.answer = lambda call: Outcome("failed", error="no")  # type: ignore[attr-defined]
    await fleet.send(job("1", send_proposal("hello")))
    await fleet.send(job("2", data={"raise": True}))
    await fleet.wait_until_idle()
    failed = {span.name: span.failed for span in await traced(fleet) if span.failed}
    assert failed["effect wire.send"] == "failed"


async def test_a_share_is_the_same_events_each_time(fleet: FleetHarness) -> None:
    for number in range(40):
        await fleet.send(job(str(number), send_proposal("hello")))
    await fleet.wait_until_idle()
    everything = {span.trace for span in await traced(fleet)}
    half = {span.trace for span in await traced(fleet, 0.5)}
    assert len(everything) == 40
    assert 5 < len(half) < 35
    assert half == {span.trace for span in await traced(fleet, 0.5)}
    assert not await traced(fleet, 0)


def test_a_collector_that_refuses_or_is_away_is_told_of_and_nothing_is_raised(
    collector: Collector,
) -> None:
    collector.refuse = True
    exporter = OtlpExporter(collector.url, "toy", timeout_s=0.5)
    assert not exporter.send([])
    exporter.close()
    away = OtlpExporter("http://127.0.0.1:9", "toy", timeout_s=0.5)
    assert not away.send([])
    away.close()


async def test_what_a_collector_did_not_take_is_sent_again_and_once_only(
    tmp_path: Path,
    collector: Collector,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(tell, "_RETRY_US", 50_000)
    collector.refuse = True
    async with toy_fleet(tmp_path, World()) as fleet:
        await fleet.app.dispatcher.close()
        telemetry = TelemetryPlan("otlp", collector.url, logs="json")
        edges = replace(fleet.app.settings.deployment, telemetry=telemetry)
        fleet.app.settings = replace(fleet.app.settings, deployment=edges)
        running = Daemon(fleet.app, until_idle=False)
        task = asyncio.create_task(running.run())
        await wait_until(
            lambda: running.sources is not None and fleet.app.store.ledger.last_seq() > 0
        )
        await fleet.app.intake.accept([job("1", send_proposal("hello"))])
        await wait_until(lambda: fleet.app.metrics.total("trace_failures") > 0)
        assert not collector.spans
        collector.refuse = False
        await wait_until(lambda: fleet.app.metrics.total("spans") > 0)
        head = fleet.app.store.ledger.last_seq()
        await wait_until(lambda: int(fleet.app.store.meta(TRACES_KEY) or 0) >= head)
        running.stop()
        await task
        ids = [span.span_id for span in collector.spans]
        assert len(ids) == len(set(ids)) > 3
    lines = [json.loads(line) for line in capsys.readouterr().err.splitlines() if line[:1] == "{"]
    assert {"event.accepted", "action.decided", "effect.done"} <= {x["message"] for x in lines}


class Picky:
    """Takes at most so many spans a request, and none of the trace it cannot stand."""

    def __init__(self, most: int, hates: str = "") -> None:
        self.most, self.hates, self.away = most, hates, False
        self.taken: list[Span] = []

    def send(self, spans: Sequence[Span]) -> bool:
        if self.away or len(spans) > self.most or any(s.trace == self.hates for s in spans):
            return False
        self.taken += spans
        return True


async def drained(fleet: FleetHarness, picky: Picky, steps: int) -> TraceSender:
    sending = TraceSender(
        0, lambda at, most: read_traces(fleet.app.store, at, 1.0, most), picky.send
    )
    for _ in range(steps):
        sending.step()
    return sending


async def test_a_collector_that_bounds_requests_gets_everything_in_smaller_ones(
    fleet: FleetHarness,
) -> None:
    for number in range(30):
        await fleet.send(job(str(number), send_proposal("hello")))
    await fleet.wait_until_idle()
    everything = await traced(fleet)
    picky = Picky(20)
    sending = await drained(fleet, picky, 60)
    assert sending.step() == "idle"
    assert [span.id for span in picky.taken] == [span.id for span in everything]
    assert sending.counts["spans_dropped"] == 0


async def test_one_trace_that_is_never_taken_stops_no_other(fleet: FleetHarness) -> None:
    for number in range(5):
        await fleet.send(job(str(number), send_proposal("hello")))
    await fleet.wait_until_idle()
    everything = await traced(fleet)
    hated = everything[0].trace
    picky = Picky(1000, hated)
    sending = await drained(fleet, picky, 40)
    assert {s.id for s in picky.taken} == {s.id for s in everything if s.trace != hated}
    assert sending.counts["spans_dropped"] == sum(s.trace == hated for s in everything)
    # A collector that is away is no reason to give anything up.
    away = Picky(1000)
    away.away = True
    sending = await drained(fleet, away, 40)
    assert (sending.at, sending.counts["spans_dropped"]) == (0, 0)


def test_a_log_line_is_one_line_of_json_or_text() -> None:
    entry = {"v": 1, "seq": 7, "at": 1_500_000, "kind": "run.dead", "run": "run_1", "body": "x"}
    line = format_entry(entry, True)
    assert json.loads(line) == {
        "severity": "ERROR", "timestamp": {"seconds": 1, "nanos": 500_000_000},
        "message": "run.dead", "seq": 7, "run": "run_1",
    }  # fmt: skip
    assert format_entry(entry, False) == "1.500000 ERROR run.dead seq=7 run=run_1\n"
    assert io.StringIO(line).readlines() == [line]


def test_the_exporter_goes_by_opentelemetrys_variables(
    collector: Collector, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", collector.url)
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_HEADERS", "x-team=watch")
    monkeypatch.setenv("OTEL_RESOURCE_ATTRIBUTES", "deployment.environment=night")
    monkeypatch.setenv("OTEL_SERVICE_NAME", "harbour-fleet")
    exporter = OtlpExporter(None, "toy")
    try:
        assert exporter.send([Span("1" * 32, "2" * 16, None, "event", "consumer", 1, 2)])
    finally:
        exporter.close()
    assert [span.name for span in collector.spans] == ["event"]
    assert collector.headers["x-team"] == "watch"
    assert collector.resource == {
        "service.name": "harbour-fleet", "service.namespace": "toy",
        "deployment.environment": "night",
    }  # fmt: skip


async def test_log_lines_begin_at_their_level(fleet: FleetHarness) -> None:
    await fleet.send(job("1", send_proposal(SECRET)))
    await fleet.wait_until_idle()
    fleet.app.settings = replace(
        fleet.app.settings,
        deployment=Deployment(telemetry=TelemetryPlan(logs="text", level="warning")),
    )
    err = io.StringIO()
    ((name, follow),) = telemetry_followers(fleet.app, err)
    task = asyncio.ensure_future(follow)
    try:
        await fleet.app.commands.stop(fleet.order("enough"), all=True)
        await wait_until(lambda: "stop.set" in err.getvalue())
    finally:
        task.cancel()
    assert name == "logs"
    assert {line.split()[1] for line in err.getvalue().splitlines()} == {"WARNING"}

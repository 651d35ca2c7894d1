"""What a collector and a scrape are told of models: providers' clients over HTTP, real clocks."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Iterator, Mapping
from itertools import pairwise
from pathlib import Path
from typing import Any

import httpx
import pytest
from tests.collector import Collector, running_collector
from tests.model_entries import ask_entry, make_plan
from tests.model_server import KEY, WIRES

from vedette.adapters.reasoners.workers.model_client import ModelWorkerLost
from vedette.adapters.telemetry.otel import OtlpExporter
from vedette.app.followers.telemetry import read_traces
from vedette.config.models import ModelPlan
from vedette.domain.budget import HOUR_US
from vedette.domain.event import Event
from vedette.domain.memory import Briefing
from vedette.domain.model import Model, Provider
from vedette.domain.model_turn import ModelAway, ModelFailed, ModelNotAsked, ModelUse
from vedette.domain.ports.reasoner import ReasonerJudgement, StatelessReasoner
from vedette.engine.model_telemetry import error_code
from vedette.interfaces.http.server import build_application
from vedette.testing.clock import ManualClock
from vedette.testing.harness import FleetHarness
from vedette.testing.model_server import (
    ErrorAnswer,
    FunctionCall,
    ModelServer,
    RawAnswer,
    Request,
    SlowAnswer,
    Turn,
    Usage,
)
from vedette.testing.toy_fleet import (
    World,
    drop_bars,
    job,
    note_proposal,
    send_proposal,
    toy_fleet,
    wait_until,
)

NAMES: Mapping[Provider, str] = {
    "gemini": "gcp.gemini",
    "anthropic": "anthropic",
    "openai": "openai",
}
USED = Usage(input=100, output=20, thinking=7, cache_read=30, cache_write=5)
SLOW_S = 0.5
NS = 1_000_000_000


def take_note(request: Request) -> Turn:
    """Write a row by a tool, then say that it is done."""
    if request.turn:
        return Turn(("Done.",), USED)
    call = FunctionCall("note_add", {"key": "ref:/event/subject", "text": "seen"})
    return Turn((call,), USED)


@pytest.fixture
def server() -> Iterator[ModelServer]:
    with ModelServer(take_note, keys=(KEY,)) as server:
        yield server


@pytest.fixture
def collector() -> Iterator[Collector]:
    with running_collector() as server:
        yield server


def fleet_of(
    folder: Path,
    server: ModelServer,
    provider: Provider = "gemini",
    *,
    in_flight: int = 8,
    workers: bool = False,
    price: str = "",
) -> FleetHarness:
    """Return a fleet whose agent `worker` asks the entry `fast`, and `judge` has a judge."""
    prices = f"fleet: {{}}\nagents: {{}}\nprices: {{{price}}}\ncomplete: true\n"
    fleet = toy_fleet(
        folder,
        World(),
        agents=("worker", "judge"),
        workers=workers,
        extra={"budgets/data.yaml": prices, **drop_bars("worker")},
    )
    rates = "m" if price else None
    plan = make_plan(folder, server, provider, calls_in_flight=in_flight, price=rates)
    ask_entry(fleet, plan)
    return fleet


async def is_over(fleet: FleetHarness, *events: Event) -> None:
    def over() -> bool:
        runs = [run for event in events for run in fleet.runs(event)]
        return len(runs) == len(events) and all(run.state in ("done", "dead") for run in runs)

    await wait_until(over, 60)


async def collected(fleet: FleetHarness, collector: Collector) -> list[Any]:
    """Return what a collector takes of all runs that ended, in the order of their starts."""
    batch = read_traces(fleet.app.store, 0, 1.0)
    exporter = OtlpExporter(collector.url, "toy")
    assert await asyncio.to_thread(exporter.send, batch.spans)
    exporter.close()
    return sorted(collector.spans, key=lambda span: span.start_time_unix_nano)


def attributes(span: Any) -> dict[str, Any]:
    found = {}
    for one in span.attributes:
        value = one.value
        if value.HasField("array_value"):
            found[one.key] = [item.string_value for item in value.array_value.values]
        else:
            found[one.key] = value.int_value if value.HasField("int_value") else value.string_value
    return found


def told(span: Any) -> dict[str, Any]:
    """Return a span's attributes of models alone."""
    return {name: v for name, v in attributes(span).items() if name[:6] in ("gen_ai", "error.")}


def seconds(span: Any) -> float:
    return float(span.end_time_unix_nano - span.start_time_unix_nano) / NS


def chats(spans: list[Any]) -> list[Any]:
    return [span for span in spans if span.name.startswith("chat ")]


def reasons(spans: list[Any]) -> list[Any]:
    return [span for span in spans if span.name == "reason"]


def histogram(text: str, name: str, **labels: str) -> tuple[int, float, Mapping[float, int]]:
    """Return (count, sum, buckets) of a histogram's series in a scrape."""
    wanted = {f'{label}="{value}"' for label, value in labels.items()}
    found = {}
    for line in text.splitlines():
        match = re.match(rf"vedette_{name}_(\w+)\{{(.*)\}} (\S+)$", line)
        if match and wanted <= set(match[2].split(",")):
            bound = re.search(r'le="([^"]+)"', match[2])
            found[match[1], bound and float(bound[1])] = float(match[3])
    buckets = {le: int(n) for (part, le), n in found.items() if part == "bucket" and le is not None}
    return int(found["count", None]), found["sum", None], buckets


@pytest.mark.parametrize("provider", NAMES)
async def test_a_turn_is_as_long_as_its_slow_model_and_tells_its_tokens(
    server: ModelServer, collector: Collector, tmp_path: Path, provider: Provider
) -> None:
    server.add_fault(SlowAnswer(1_000_000, SLOW_S), requests=[1])
    async with fleet_of(tmp_path, server, provider) as fleet:
        await fleet.send(event := job("1"))
        await is_over(fleet, event)
        spans = await collected(fleet, collector)
    (run,) = (span for span in spans if span.name == "run worker")
    turns, calls = reasons(spans), chats(spans)
    assert [call.parent_span_id for call in calls] == [turn.span_id for turn in turns]
    assert {turn.parent_span_id for turn in turns} == {run.span_id}
    assert (len(turns), {call.kind for call in calls}) == (2, {3}), "two turns; a client's calls"
    assert len({span.span_id for span in spans}) == len(spans)
    for turn, call in zip(turns, calls, strict=True):
        assert run.start_time_unix_nano <= turn.start_time_unix_nano <= call.start_time_unix_nano
        assert call.end_time_unix_nano == turn.end_time_unix_nano <= run.end_time_unix_nano
    assert SLOW_S <= seconds(calls[0]) < seconds(turns[0])
    assert seconds(calls[1]) < SLOW_S, "the control: the second one was not slow"
    served = WIRES[provider][0]
    assert [call.name for call in calls] == [f"chat {served}"] * 2
    # Read from a cache, or written to one, is read all the same; thinking is written.
    wanted = {
        "gen_ai.operation.name": "chat",
        "gen_ai.provider.name": NAMES[provider],
        "gen_ai.request.model": served,
        "gen_ai.response.model": served,
        "gen_ai.response.finish_reasons": ["stop"],
        "gen_ai.usage.input_tokens": 135,
        "gen_ai.usage.output_tokens": 27,
        "gen_ai.usage.cache_read.input_tokens": 30,
    }
    if provider == "anthropic":  # its thinking is not counted by itself
        wanted["gen_ai.usage.cache_creation.input_tokens"] = 5
    else:
        wanted["gen_ai.usage.reasoning.output_tokens"] = 7
    assert [told(call) for call in calls] == [wanted, wanted]
    assert [attributes(call)["vedette.model_calls"] for call in calls] == [1, 1]
    assert not any(span.status.code for span in spans)
    assert KEY not in repr(spans)


async def test_what_a_run_waited_for_a_place_is_not_in_its_turn(
    server: ModelServer, collector: Collector, tmp_path: Path
) -> None:
    """One call in flight: the spans of calls never meet, though the runs do."""
    server.add_fault(SlowAnswer(1_000_000, 0.3))
    async with fleet_of(tmp_path, server, in_flight=1) as fleet:
        events = [job(f"{n}", key=f"k{n}") for n in range(4)]
        await fleet.send(*events)
        await is_over(fleet, *events)
        spans = await collected(fleet, collector)
    calls, turns = chats(spans), reasons(spans)
    runs = [span for span in spans if span.name == "run worker"]
    assert len(calls) == len(turns) == 2 * len(events)
    for found in (calls, turns):
        for before, after in pairwise(found):
            # The clocks of fleet time and of durations are read one after the other.
            assert after.start_time_unix_nano >= before.end_time_unix_nano - NS // 50
    assert all(seconds(call) >= 0.3 for call in calls)
    assert max(map(seconds, runs)) >= sum(map(seconds, calls)) * 0.7, "the control: they waited"


MALFORMED = Turn((), USED, "MALFORMED_FUNCTION_CALL")


@pytest.mark.parametrize(
    ("fault", "error"),
    [
        (ErrorAnswer("rate_limit", 1), "model-rate"),
        (ErrorAnswer("unavailable"), "model-unavailable"),
        (RawAnswer(b"<html>proxy</html>"), "model-unavailable"),
    ],
)
async def test_a_failed_call_has_a_span_that_says_why_and_the_next_has_its_own(
    server: ModelServer, collector: Collector, tmp_path: Path, fault: Any, error: str
) -> None:
    server.add_fault(fault, requests=[1])
    async with fleet_of(tmp_path, server) as fleet:
        await fleet.send(event := job("1"))
        await is_over(fleet, event)
        (run,) = fleet.runs(event)
        assert run.state == "done"
        spans = await collected(fleet, collector)
    failed, *answered = chats(spans)
    assert len(answered) == 2
    assert told(failed) == {
        "gen_ai.operation.name": "chat",
        "gen_ai.provider.name": "gcp.gemini",
        "gen_ai.request.model": "gemini-3-pro-preview",
        "error.type": error,
    }
    turns = reasons(spans)
    assert [span.status.code for span in (failed, turns[0])] == [2, 2]
    assert not any(span.status.code for span in (*answered, *turns[1:]))
    assert seconds(failed) <= seconds(turns[0])


async def test_a_refused_request_and_an_answer_that_is_not_taken_are_told(
    collector: Collector, tmp_path: Path
) -> None:
    """Both runs are dead letters; what the second answer used is known, and its finish reason."""
    with ModelServer(lambda request: MALFORMED, keys=(KEY,)) as server:
        refused = {"error": {"code": 400, "message": "no", "status": "INVALID_ARGUMENT"}}
        server.add_fault(RawAnswer(json.dumps(refused).encode(), 400), requests=[1])
        async with fleet_of(tmp_path, server) as fleet:
            await fleet.send(first := job("1"))
            await is_over(fleet, first)
            await fleet.send(second := job("2"))
            await is_over(fleet, second)
            assert {run.state for one in (first, second) for run in fleet.runs(one)} == {"dead"}
            spans = await collected(fleet, collector)
    found = [told(call) for call in chats(spans)]
    assert found[0]["error.type"] == "model-request"
    assert "gen_ai.usage.input_tokens" not in found[0]
    assert len(found) > 2, "it was tried again"
    for one in found[1:]:
        assert one["error.type"] == "bad-model-answer"
        assert one["gen_ai.response.finish_reasons"] == ["malformed_function_call"]
        assert one["gen_ai.usage.input_tokens"] == 135


async def test_a_running_fleet_has_histograms_of_models_events_and_effects(
    server: ModelServer, tmp_path: Path
) -> None:
    """Of boxed workers, too: a call is as long as its client waited, wherever that is."""
    server.add_fault(SlowAnswer(1_000_000, SLOW_S), requests=[1])
    price = "m: {input: 1000000, output: 2000000}"
    async with fleet_of(tmp_path, server, workers=True, price=price) as fleet:
        events = [job("1"), job("2", note_proposal("x"), agent="judge")]
        for event in events:
            await fleet.send(event)
            await is_over(fleet, event)
        await fleet.wait_until_idle()  # what is counted is counted after its commit
        transport = httpx.ASGITransport(build_application(fleet.app))
        async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1") as client:
            text = (await client.get("/metrics")).text
        settled_all = fleet.entries("budget.settled")
        settled = settled_all[0]
        for entry in fleet.entries("turn.reasoned", "run.closed"):
            assert "model_call" not in entry
    named = {"model": "fast", "provider": "gemini", "outcome": "answered"}
    count, total, buckets = histogram(text, "model_call_seconds", **named)
    assert (count, buckets[0.32], max(buckets)) == (2, 1, float("inf"))
    told = [entry["model_call"]["call_took"] / 1e6 for entry in settled_all]
    assert total == pytest.approx(sum(told))
    assert told[0] >= SLOW_S > told[1], "the second one was not slow"
    # The worker began after its turn was sent.
    assert SLOW_S * 1e6 <= settled["model_call"]["call_took"] < settled["model_call"]["took"]
    for kind, tokens in (("input", 135), ("output", 27), ("cache_read", 30), ("reasoning", 7)):
        count, total, buckets = histogram(text, "model_tokens", model="fast", type=kind)
        assert (count, total) == (2, 2 * tokens)
        assert buckets[4.0] == 0
        assert buckets[256.0] == 2
    count, total, _ = histogram(text, "turn_cost_micros", agent="worker", model="fast")
    assert (count, total) == (2, 2 * (135 + 2 * 27))
    count, total, _ = histogram(text, "event_decided_seconds", agent="worker")
    assert count == 1
    assert total >= SLOW_S
    assert histogram(text, "event_decided_seconds", agent="judge")[0] == 1
    count, total, _ = histogram(text, "event_effect_seconds", agent="worker", held="false")
    assert count == 1
    assert total >= SLOW_S
    count, total, buckets = histogram(text, "event_effect_seconds", agent="judge", held="false")
    assert (count, buckets[10.0]) == (1, 1)


async def test_what_waited_for_a_person_is_counted_apart_over_a_restart(tmp_path: Path) -> None:
    """When an event was accepted is read with it, by whoever goes on with its run."""
    clock = ManualClock()
    async with toy_fleet(tmp_path, World(), clock=clock) as fleet:
        event = job("1", send_proposal("hello"), send_proposal("hello", tool="big.send"))
        await fleet.send(event)
        await fleet.wait_until_idle()
        assert effects(fleet) == {"false": (1, 0.0)}
        await fleet.restart()
        clock.advance(2 * HOUR_US)
        (held,) = (row for row in fleet.actions(event) if row.hold == "open")
        await fleet.approve(held)
        await fleet.wait_until_idle()
        assert effects(fleet) == {"true": (1, 2 * 3600.0)}, "this process did not see the first"
        assert not fleet.app.metrics.scrape()[0].count(b"event_decided_seconds_count")


async def test_what_waited_for_its_target_is_counted_apart(tmp_path: Path) -> None:
    clock = ManualClock()
    async with toy_fleet(tmp_path, World(), clock=clock) as fleet:
        breaker = fleet.app.services.breakers.for_target("world")
        while (leave := breaker.acquire(clock.now_us())) is not None:
            breaker.release(leave, False, clock.now_us())
        await fleet.send(event := job("1", send_proposal("hello")))
        await fleet.wait_until_idle()
        assert [run.waits for run in fleet.runs(event)] == ["target"]
        for _ in range(8):
            clock.advance(HOUR_US // 6)
            await fleet.wait_until_idle()
        assert fleet.runs(event)[0].state == "done"
        assert effects(fleet).keys() == {"true"}
        await fleet.send(job("2", send_proposal("hello"), key="k2"))
        await fleet.wait_until_idle()
        assert effects(fleet)["false"] == (1, 0.0), "the control: this one did not wait"


@pytest.mark.parametrize("workers", [False, True], ids=["here", "in a worker"])
@pytest.mark.parametrize(
    "said",
    [KEY, f"gemini-3-pro-preview-{KEY}", "from:alice@corp.example/salary-is-120000"],
    ids=["key", "key behind its name", "content"],
)
async def test_a_provider_puts_nothing_into_entries_by_the_name_it_answers_under(
    server: ModelServer, collector: Collector, tmp_path: Path, said: str, workers: bool
) -> None:
    answer = {
        "candidates": [
            {"content": {"role": "model", "parts": [{"text": "Done."}]}, "finishReason": "STOP"}
        ],
        "usageMetadata": {
            "promptTokenCount": 10, "candidatesTokenCount": 3, "totalTokenCount": 13,
        },
        "modelVersion": said,
    }  # fmt: skip
    server.add_fault(RawAnswer(json.dumps(answer).encode()), requests=[1])
    async with fleet_of(tmp_path, server, workers=workers) as fleet:
        await fleet.send(event := job("1"))
        await is_over(fleet, event)
        assert fleet.runs(event)[0].state == "done"
        (settled,) = fleet.entries("budget.settled")
        assert settled["model_call"]["finish"] == "stop"
        spans = await collected(fleet, collector)
        page = fleet.app.metrics.scrape()[0].decode()
        told = repr([fleet.entries(), spans]) + page
    assert said not in told
    assert KEY not in told
    assert "salary" not in told


def effects(fleet: FleetHarness) -> dict[str, tuple[int, float]]:
    """Return (count, sum) of the seconds until effects, by whether they were held."""
    text = fleet.app.metrics.scrape()[0].decode()
    found = {}
    for held in ("false", "true"):
        if f'held="{held}"' in text:
            found[held] = histogram(text, "event_effect_seconds", agent="worker", held=held)[:2]
    return found


@pytest.mark.parametrize(
    ("error", "chat"),
    [
        (ModelNotAsked("too long", ModelUse()), None),
        (ModelAway("no key", "key"), None),
        (ModelWorkerLost("died", ModelUse(1)), ("chat gpt-5.5", 3.0, "worker-lost")),
        (ModelFailed("broke off", ModelUse(1)), ("chat gpt-5.5", 3.0, "model-failed")),
        (RuntimeError("of a plugin"), ("chat gpt-5.5", 3.0, "error")),
    ],
)
async def test_of_a_call_nobody_tells_more_than_is_known(
    tmp_path: Path, error: Exception, chat: tuple[str, float, str] | None
) -> None:
    """Without a call there is no span of one, and no time; where its worker was lost it is as the
    turn was. Span and metric have one word for what went wrong.
    """
    clock = ManualClock()

    failures = [error]

    class Failing(StatelessReasoner):
        async def reason(self, briefing: Briefing) -> ReasonerJudgement:
            clock.advance(3_000_000)
            if failures:
                raise failures.pop()
            return ReasonerJudgement("fine", 1.0, model_calls=1)

    fleet = toy_fleet(tmp_path, World(), reasoner="adk", reasoners={"adk": Failing()}, clock=clock)
    path = fleet.content / "agents" / "worker" / "agent.yaml"
    path.write_text(path.read_text().replace("reasoner: adk", "model: fast"))
    model = Model("fast", provider="openai", served_name="gpt-5.5")
    fleet.models = {"fast": ModelPlan(model)}
    async with fleet:
        await fleet.send(event := job("1"))
        clock.advance(1_000_000)
        await fleet.wait_until_idle()
        for _ in range(6):
            clock.advance(60_000_000)
            await fleet.wait_until_idle()
        assert fleet.runs(event)[0].state in ("done", "dead")
        spans = read_traces(fleet.app.store, 0, 1.0).spans
        page = fleet.app.metrics.scrape()[0].decode()
    turn = next(span for span in spans if span.name == "reason")
    assert turn.end_us - turn.start_us == 3_000_000
    code = error_code(error)
    assert turn.failed == code
    for line in page.splitlines():
        if line.startswith("vedette_model_call_seconds_count") and code in line:
            assert chat is not None
            assert line.endswith(" 1.0")
            break
    else:
        assert chat is None
    calls = [span for span in spans if span.parent == turn.id]
    found = [
        (call.name, (call.end_us - call.start_us) / 1e6, call.attributes["error.type"])
        for call in calls
    ]
    assert found == ([] if chat is None else [chat])

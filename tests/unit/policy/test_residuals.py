"""Residuals: when one is made, when it answers, and what takes it away."""

from __future__ import annotations

import asyncio
import threading
import zlib
from collections import Counter
from collections.abc import Mapping
from typing import Any

import pytest
from msgspec.structs import replace
from tests.unit.policy.test_gateway import PERMIT, Engine, action, situation

from vedette.domain.bundle import Bundle
from vedette.domain.decision import Decision, DecisionRecord, parse_decision
from vedette.policy.gateway import Gateway
from vedette.policy.residuals import ResidualFactory, ResidualSet
from vedette.policy.second_opinion import SecondOpinion

HOLD = {**PERMIT, "outcome": "hold", "wait": "approval"}
INWARD = {"desk": {"inward": ["mail.send"], "tools": {"mail.send": {"impact": "low"}}}}
THRESHOLD = 3


class Metrics:
    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()
        self.gauges: dict[str, float] = {}
        self.was_set = asyncio.Event()

    def count(self, name: str, amount: int = 1, **labels: str) -> None:
        self.counts[name] += amount

    def gauge(self, name: str, value: float, **labels: str) -> None:
        self.gauges[name] = value
        self.was_set.set()

    def observe(self, name: str, value: float, **labels: str) -> None:
        pass


class Wasm(Engine):
    """Answers what it is told to, under the name of the engine that residuals stand for."""

    name = "opa wasm/1.3"
    count = 0

    def decide(self, question: bytes) -> object:
        self.count += 1
        return super().decide(question)


class Fixed:
    """A residual that answers what it is told to."""

    literals = (1000, "trusted")

    def __init__(self, answer: object) -> None:
        self.decision = parse_decision(answer) if answer is not None else None
        self.asked = 0

    def permit(self, request: bytes) -> Decision | None:
        self.asked += 1
        return self.decision


class Compiler:
    def __init__(self, residual: Fixed | Exception) -> None:
        self.residual = residual

    def compile(self, request: Mapping[str, Any]) -> Fixed:
        if isinstance(self.residual, Exception):
            raise self.residual
        return self.residual


def decided(gateway: Gateway, times: int = 1) -> DecisionRecord:
    for _ in range(times - 1):
        gateway.decide(action(), situation())
    return gateway.decide(action(), situation())


def made(
    answer: object = PERMIT, engine: Wasm | None = None, *, one_in: int = 10**9
) -> tuple[Gateway, Wasm, Fixed, ResidualSet, Metrics]:
    """Return a gateway whose tool has been permitted often enough, its residual made."""
    metrics, engine, residual = Metrics(), engine or Wasm(PERMIT), Fixed(answer)
    residuals = ResidualSet(
        engine, lambda: Compiler(residual), metrics, one_in=one_in, threshold=THRESHOLD
    )
    gateway = Gateway(engine, 1, residuals=residuals)
    decided(gateway, THRESHOLD)
    residuals.make_now()
    engine.count = residual.asked = 0
    return gateway, engine, residual, residuals, metrics


def test_a_residual_permits_in_the_engines_place_and_the_record_says_so() -> None:
    gateway, engine, residual, residuals, metrics = made()
    plain = decided(Gateway(engine, 1))
    engine.count = 0
    record = decided(gateway)
    assert (engine.count, residual.asked) == (0, 1)
    assert record.engine == "opa wasm/1.3 residual"
    assert (record.decision, record.request, record.bundle) == (
        plain.decision, plain.request, plain.bundle,
    )  # fmt: skip
    assert metrics.counts["residual_permits"] == 1
    assert residuals.state == "1 answer"


def test_where_a_residual_gives_way_the_engine_decides() -> None:
    gateway, engine, residual, _, _ = made()
    residual.decision = None
    engine.answer = HOLD
    record = decided(gateway)
    assert (engine.count, residual.asked) == (1, 1)
    assert (record.engine, record.decision.outcome) == ("opa wasm/1.3", "hold")


def test_one_is_made_only_of_what_was_permitted_often() -> None:
    engine, metrics = Wasm(HOLD), Metrics()
    ready: list[int] = []
    residuals = ResidualSet(
        engine, lambda: Compiler(Fixed(PERMIT)), metrics, one_in=64, threshold=THRESHOLD,
        on_event=lambda: ready.append(1),
    )  # fmt: skip
    gateway = Gateway(engine, 1, residuals=residuals)
    decided(gateway, 10)
    engine.answer = PERMIT
    decided(gateway, THRESHOLD - 1)
    assert not ready
    decided(gateway)
    assert ready == [1]
    assert residuals.count == 0


def test_one_that_differs_from_its_engine_is_refused_and_so_are_all_of_the_bundle() -> None:
    gateway, _, residual, residuals, metrics = made(answer={**PERMIT, "rule": "another"})
    assert residuals.count == 0
    assert residuals.refusal is not None
    assert residuals.state.startswith("refused, the full engine alone decides: desk")
    assert metrics.counts["residuals_refused"] == 1
    record = decided(gateway, 3 * THRESHOLD)
    residuals.make_now()
    assert (residual.asked, record.engine) == (0, "opa wasm/1.3")


def test_a_difference_in_the_sample_takes_all_away_and_the_engine_decides() -> None:
    gateway, engine, _, residuals, metrics = made(one_in=1)
    assert decided(gateway).engine.endswith("residual")
    engine.answer = HOLD
    record = decided(gateway)
    assert (record.engine, record.decision.outcome) == ("opa wasm/1.3", "hold")
    assert (residuals.count, metrics.counts["residuals_refused"]) == (0, 1)


@pytest.mark.parametrize("error", [ValueError("a form"), RuntimeError("whatever")])
def test_where_none_can_be_made_the_engine_decides_and_it_is_told(error: Exception) -> None:
    engine = Wasm(PERMIT)
    residuals = ResidualSet(
        engine, lambda: Compiler(error), Metrics(), one_in=64, threshold=THRESHOLD
    )
    gateway = Gateway(engine, 1, residuals=residuals)
    decided(gateway, THRESHOLD)
    residuals.make_now()
    assert decided(gateway).engine == "opa wasm/1.3"
    assert residuals.refusal is None
    assert str(error) in residuals.state


def test_one_that_permits_nothing_is_not_kept() -> None:
    _, _, _, residuals, _ = made(answer=None)
    assert residuals.count == 0
    assert residuals.refusal is None


def test_another_bundle_has_none_of_them_from_the_instant_it_is_live() -> None:
    gateway, engine, residual, _, _ = made()
    gateway.swap(engine, 2)
    assert decided(gateway).engine == "opa wasm/1.3"
    assert residual.asked == 0


def test_no_residual_answers_where_a_second_engine_must_agree() -> None:
    gateway, _, residual, _, metrics = made()
    other = Engine(PERMIT)
    gateway.second_opinion = SecondOpinion(other, INWARD, metrics)
    # The test's tool is of high impact.
    record = decided(gateway)
    assert (record.engine, residual.asked, other.asked) == ("opa wasm/1.3", 0, record.request)
    # Nor where nobody else is there to be asked.
    gateway.second_opinion = SecondOpinion(None, INWARD, metrics)
    record = decided(gateway)
    assert (record.engine, residual.asked) == ("opa wasm/1.3", 0)


def test_after_a_difference_of_engines_all_permits_are_asked_of_both() -> None:
    gateway, _, residual, _, metrics = made()
    tool = replace(action().tool, high_impact=False)
    inward = replace(action(), tool=tool)
    other = Engine(PERMIT)
    second = gateway.second_opinion = SecondOpinion(other, INWARD, metrics, one_in=10**9)
    assert gateway.decide(inward, situation()).engine == "opa wasm/1.3 residual"
    assert (residual.asked, other.asked) == (1, b"")
    second.has_differed = True
    record = gateway.decide(inward, situation())
    assert (record.engine, residual.asked, other.asked) == ("opa wasm/1.3", 1, record.request)


# --- bounds -------------------------------------------------------------------------------------


def asked_for(release: int) -> dict[str, Any]:
    return {
        "subject": {"agent": "desk", "release": str(release)}, "action": {"tool": "mail.send"},
    }  # fmt: skip


def test_of_many_releases_the_one_that_was_asked_least_lately_is_forgotten() -> None:
    residuals = ResidualSet(
        Wasm(PERMIT),
        lambda: Compiler(Fixed(PERMIT)),
        Metrics(),
        one_in=10**9,
        threshold=2,
        most_keys=8,
    )
    decision = parse_decision(PERMIT)
    raw = decided(Gateway(Wasm(PERMIT), 1)).request
    # Keys that never come to the threshold do not keep out what comes after them.
    for release in range(10):
        residuals.note(asked_for(release), raw, decision)
    for release in range(1000, 1020):
        residuals.note(asked_for(release), raw, decision)
        residuals.note(asked_for(release), raw, decision)
        residuals.make_now()
        assert residuals.permit(asked_for(1000), raw) == decision
    assert residuals.count == 8
    assert residuals.permit(asked_for(1001), raw) is None
    assert residuals.permit(asked_for(1019), raw) == decision


def test_a_question_too_long_for_a_residual_makes_none() -> None:
    ready: list[int] = []
    residuals = ResidualSet(
        Wasm(PERMIT), lambda: Compiler(Fixed(PERMIT)), Metrics(), one_in=64, threshold=1,
        on_event=lambda: ready.append(1),
    )  # fmt: skip
    residuals.note(asked_for(1), b"x" * 4097, parse_decision(PERMIT))
    assert not ready
    residuals.note(asked_for(1), b"x" * 4096, parse_decision(PERMIT))
    assert ready


def test_its_sample_is_not_the_second_engines() -> None:
    engine, fixed, decision = Wasm(PERMIT), Fixed(PERMIT), parse_decision(PERMIT)
    residuals = ResidualSet(engine, lambda: Compiler(fixed), Metrics(), one_in=8, threshold=1)
    raw = decided(Gateway(Wasm(PERMIT), 1)).request
    residuals.note(asked_for(1), raw, decision)
    residuals.make_now()
    found: Counter[tuple[bool, bool]] = Counter()
    for number in range(6400):
        other = b"%s %d" % (raw, number)
        engine.count = 0
        residuals.permit(asked_for(1), other)
        found[engine.count == 1, zlib.crc32(other) % 8 == 0] += 1
    assert 600 < found[True, True] + found[True, False] < 1000
    # Of an eighth each, a 64th is in both.
    assert 50 < found[True, True] < 150


def test_memory_reads_are_the_engines() -> None:
    gateway, engine, residual, _, _ = made()
    gateway.may_read(situation(), "inbox", "inbox")
    assert (engine.count, residual.asked) == (1, 0)


# --- the factory --------------------------------------------------------------------------------


BUNDLE = Bundle.of({"a.rego": b"package a"})


def test_there_are_none_where_the_setting_says_so_or_another_engine_decides() -> None:
    off = ResidualFactory(None, Metrics(), 64)
    assert off.set_live(BUNDLE, Wasm(PERMIT)) is None
    on = ResidualFactory(lambda bundle: Compiler(Fixed(PERMIT)), Metrics(), 64)
    assert on.set_live(BUNDLE, Engine(PERMIT)) is None
    assert on.state == "none: the full engine decides all"
    assert on.set_live(BUNDLE, Wasm(PERMIT)) is on.live is not None


async def test_what_was_made_for_a_bundle_that_is_gone_is_not_counted() -> None:
    metrics, engine, may_end = Metrics(), Wasm(PERMIT), threading.Event()
    began, loop = asyncio.Event(), asyncio.get_running_loop()

    class Slow(Compiler):
        def compile(self, request: Mapping[str, Any]) -> Fixed:
            loop.call_soon_threadsafe(began.set)
            may_end.wait(20)
            return super().compile(request)

    factory = ResidualFactory(lambda bundle: Slow(Fixed(PERMIT)), metrics, 10**9, threshold=1)
    watching = asyncio.create_task(factory.watch(lambda trouble: None))
    first = factory.set_live(BUNDLE, engine)
    assert first is not None
    decided(Gateway(engine, 1, residuals=first))
    async with asyncio.timeout(20):
        await began.wait()
        second = factory.set_live(BUNDLE, engine)
        assert second is not None
        metrics.was_set.clear()
        decided(Gateway(engine, 1, residuals=second))
        may_end.set()
        await metrics.was_set.wait()
    watching.cancel()
    assert (metrics.gauges["residuals"], second.count, first.count) == (1, 1, 1)


async def test_a_running_fleet_makes_them_beside_the_line_and_tells_a_refusal() -> None:
    metrics, engine, residual = Metrics(), Wasm(PERMIT), Fixed(PERMIT)
    factory = ResidualFactory(lambda bundle: Compiler(residual), metrics, 1, threshold=1)
    told: asyncio.Queue[str] = asyncio.Queue()
    watching = asyncio.create_task(factory.watch(told.put_nowait))
    gateway = Gateway(engine, 1, residuals=factory.set_live(BUNDLE, engine))
    assert metrics.gauges["residuals"] == 0
    metrics.was_set.clear()
    decided(gateway)
    async with asyncio.timeout(20):
        await metrics.was_set.wait()
    assert metrics.gauges["residuals"] == 1
    # Another bundle: one that differs when it is compared.
    residual.decision = parse_decision({**PERMIT, "rule": "another"})
    gateway.swap(engine, 2, residuals=factory.set_live(BUNDLE, engine))
    assert metrics.gauges["residuals"] == 0
    decided(gateway)
    async with asyncio.timeout(20):
        assert "refused, the full engine alone decides" in await told.get()
    # And another: one that differs later, in the sample.
    residual.decision = parse_decision(PERMIT)
    metrics.was_set.clear()
    gateway.swap(engine, 3, residuals=factory.set_live(BUNDLE, engine))
    metrics.was_set.clear()
    decided(gateway)
    async with asyncio.timeout(20):
        await metrics.was_set.wait()
    engine.answer = HOLD
    assert decided(gateway).decision.outcome == "hold"
    async with asyncio.timeout(20):
        assert "is a hold" in await told.get()
    watching.cancel()
    assert metrics.gauges["residuals"] == 0
    assert told.empty()


def test_no_residual_permits_what_a_person_is_to_decide() -> None:
    """It knows what a bundle permits, and nothing of the engine's own rule, nor is made of it."""
    gateway, engine, residual, residuals, _ = made()
    found = gateway.decide(replace(action(), asks="confidence.audit"), situation()).decision
    assert (found.outcome, found.rule, found.wait) == ("hold", "confidence.audit", "approval")
    assert (engine.count, residual.asked) == (1, 0)
    assert decided(gateway).engine == residuals.name
    assert residual.asked == 1
    recorded = ResidualSet(engine, lambda: Compiler(residual), Metrics(), one_in=64, threshold=1)
    gateway = Gateway(engine, 1, residuals=recorded)
    gateway.decide(replace(action(), asks="confidence.audit"), situation())
    assert recorded._asked == {}

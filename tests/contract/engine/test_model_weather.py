"""A provider in trouble is weather: its runs wait as for a target, nothing is lost or parked."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from vedette.config.models import ModelPlan
from vedette.domain.action import Proposal
from vedette.domain.base.errors import BadFleet
from vedette.domain.effect import Outcome
from vedette.domain.memory import Briefing
from vedette.domain.model import FailureKind, Model
from vedette.domain.model_turn import UNCHARGED, ModelAway, ModelError, ModelUse, RequestRefused
from vedette.domain.origin import Ref
from vedette.domain.ports.reasoner import Reasoner, ReasonerJudgement, StatelessReasoner
from vedette.interfaces.render.explain_text import explain_text
from vedette.ledger.history.explain import explain
from vedette.ledger.history.report import report
from vedette.testing.clock import ManualClock
from vedette.testing.harness import FleetHarness
from vedette.testing.scripted import ScriptedReasoner
from vedette.testing.toy_fleet import World, job, toy_fleet, wait_until

SECOND = 1_000_000
MINUTE = 60 * SECOND
MODEL = "worker/agent.py"


class WeatherModel(StatelessReasoner):
    """A model that answers at once, or fails as `trouble` says. It notes when it was asked."""

    def __init__(self, clock: ManualClock) -> None:
        self.trouble: Callable[[Briefing], ModelError | None] = lambda briefing: None
        self.asked: list[tuple[int, str, str]] = []
        self.gate: asyncio.Event | None = None
        self.in_flight = self.most = 0
        self._clock = clock

    async def reason(self, briefing: Briefing) -> ReasonerJudgement:
        self.asked.append((self._clock.now_us(), briefing.event.id, briefing.model))
        self.in_flight += 1
        self.most = max(self.most, self.in_flight)
        try:
            if self.gate is not None:
                await self.gate.wait()
            failure = self.trouble(briefing)
            if failure is not None:
                raise failure
            tokens = {"input_tokens": 60, "output_tokens": 40}
            return ReasonerJudgement("fine", 1.0, model_calls=1, spent=tokens)
        finally:
            self.in_flight -= 1

    def asked_by(self, before_us: int) -> int:
        return sum(at_us < before_us for at_us, _, _ in self.asked)


def away(kind: FailureKind = "unavailable", after_s: float = 0, **more: Any) -> ModelAway:
    after_us = int(after_s * SECOND)
    return ModelAway("the model is away", kind, retry_after_us=after_us, **more)


def fleet_of(
    folder: Path,
    clock: ManualClock,
    model: Reasoner,
    *,
    world: World | None = None,
    agents: tuple[str, ...] = ("worker",),
    entries: Sequence[Model] = (),
) -> FleetHarness:
    """Return a fleet whose agents ask the first of these entries, or each its own model."""
    reasoners = {"judge": ScriptedReasoner([]), "adk": model}
    fleet = toy_fleet(
        folder, world or World(), agents=agents, clock=clock, reasoner="adk", reasoners=reasoners,
        model_calls=1000,
    )  # fmt: skip
    bounds = "budget: {input_tokens_per_call: 120, output_tokens_per_call: 80, "
    for name in agents:
        path = fleet.content / "agents" / name / "agent.yaml"
        text = path.read_text().replace("budget: {", bounds)
        if entries:
            text = text.replace("reasoner: adk", f"reasoner: adk\nmodel: {entries[0].name}")
        path.write_text(text)
    plans = (replace(one, provider="gemini", served_name="m") for one in entries)
    fleet.models = {one.name: ModelPlan(one, key_env="K") for one in plans}
    return fleet


def limit(fleet: FleetHarness, *models: Model) -> None:
    fleet.app.services.models.entries = {model.name: model for model in models}


def states(fleet: FleetHarness, events: list[Any]) -> set[tuple[str, str | None]]:
    return {(run.state, run.waits) for event in events for run in fleet.runs(event)}


async def let_pass(fleet: FleetHarness, clock: ManualClock, seconds: float) -> None:
    """Let time pass by half seconds."""
    for _ in range(int(seconds * 2)):
        clock.advance(SECOND // 2)
        await fleet.wait_until_idle()


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def model(clock: ManualClock) -> WeatherModel:
    return WeatherModel(clock)


async def test_five_minutes_of_503_lose_park_and_kill_nothing(
    tmp_path: Path, clock: ManualClock, model: WeatherModel
) -> None:
    model.trouble = lambda briefing: away()
    events = [job(f"e{n}", key=f"k{n}") for n in range(80)]
    async with fleet_of(tmp_path, clock, model) as fleet:
        await fleet.send(*events)
        await fleet.wait_until_idle()
        await let_pass(fleet, clock, 300)
        assert states(fleet, events) == {("waiting", "model")}
        assert len(model.asked) < 80  # it is left alone
        assert fleet.app.services.breakers.for_target(f"model:{MODEL}").why == "model-unavailable"
        model.trouble = lambda briefing: None
        await let_pass(fleet, clock, 60)
        assert states(fleet, events) == {("done", None)}
        assert fleet.entries("run.dead", "stop.set") == []
        assert {run.attempts for event in events for run in fleet.runs(event)} == {0}
        # What was booked for calls that failed came back.
        answered = len(fleet.entries("run.closed"))
        assert answered == 80
        used = fleet.app.store.spend
        assert {used.of_run(fleet.runs(event)[0].id)["model_calls"] for event in events} == {1}


async def test_calls_in_flight_are_never_more_than_set(
    tmp_path: Path, clock: ManualClock, model: WeatherModel
) -> None:
    model.gate = asyncio.Event()
    events = [job(f"e{n}", key=f"k{n}") for n in range(40)]
    async with fleet_of(tmp_path, clock, model) as fleet:
        limit(fleet, Model(MODEL, calls_in_flight=3))
        await fleet.send(*events)
        await wait_until(lambda: model.in_flight == 3)
        await wait_until(lambda: ("ready", None) not in states(fleet, events[3:]))
        model.gate.set()
        await let_pass(fleet, clock, 10)
        assert states(fleet, events) == {("done", None)}
        assert model.most == 3
        assert len(model.asked) == 40


@pytest.mark.parametrize(
    ("entry", "most"),
    [(Model(MODEL, calls_per_minute=10), 10), (Model(MODEL, tokens_per_minute=500), 5)],
)
async def test_what_is_asked_of_any_minute_is_never_more_than_set(
    tmp_path: Path, clock: ManualClock, model: WeatherModel, entry: Model, most: int
) -> None:
    """A call takes 100 tokens, and may take 200: before it is made, that counts."""
    events = [job(f"e{n}", key=f"k{n}") for n in range(2 * most + 2)]
    async with fleet_of(tmp_path, clock, model) as fleet:
        limit(fleet, entry)
        await fleet.send(*events)
        await let_pass(fleet, clock, 20)
        if entry.calls_per_minute:
            assert len(model.asked) == most
        for _ in range(12):
            await let_pass(fleet, clock, 30)
        assert states(fleet, events) == {("done", None)}
        assert len(model.asked) == len(events)
        starts = [at_us for at_us, _, _ in model.asked]
        for start in starts:
            assert sum(start <= other < start + MINUTE for other in starts) <= most


async def test_no_call_begins_before_the_provider_wants_one(
    tmp_path: Path, clock: ManualClock, model: WeatherModel
) -> None:
    model.trouble = lambda briefing: away("rate", after_s=42)
    began = clock.now_us()
    async with fleet_of(tmp_path, clock, model) as fleet:
        limit(fleet, Model(MODEL, calls_in_flight=1))
        await fleet.send(*(job(f"e{n}", key=f"k{n}") for n in range(10)))
        await fleet.wait_until_idle()
        await let_pass(fleet, clock, 41)
        assert len(model.asked) == 1
        model.trouble = lambda briefing: None
        await let_pass(fleet, clock, 5)
        assert len(model.asked) == 11
        assert model.asked_by(began + 42 * SECOND) == 1


async def test_what_waits_for_its_model_is_found_again_after_a_crash(
    tmp_path: Path, clock: ManualClock, model: WeatherModel
) -> None:
    model.trouble = lambda briefing: away()
    events = [job(f"e{n}", key=f"k{n % 3}") for n in range(12)]
    async with fleet_of(tmp_path, clock, model) as fleet:
        await fleet.send(*events)
        await let_pass(fleet, clock, 30)
        await fleet.restart()
        await let_pass(fleet, clock, 30)
        assert states(fleet, events) == {("waiting", "model")}
        await fleet.restart()
        model.trouble = lambda briefing: None
        before = len(model.asked)
        await let_pass(fleet, clock, 60)
        assert states(fleet, events) == {("done", None)}
        # In the order of each key.
        answered = [int(name[1:]) for _, name, _ in model.asked[before:]]
        for key in range(3):
            own = [n for n in answered if n % 3 == key]
            assert own == sorted(own)


async def test_a_failure_of_its_own_holds_up_nobody_else(
    tmp_path: Path, clock: ManualClock, model: WeatherModel
) -> None:
    model.trouble = lambda briefing: away() if briefing.event.id == "poison" else None
    others = [job(f"e{n}", key=f"k{n}") for n in range(30)]
    async with fleet_of(tmp_path, clock, model) as fleet:
        poison = job("poison", key="p")
        await fleet.send(poison, *others)
        await let_pass(fleet, clock, 60)
        assert states(fleet, others) == {("done", None)}
        assert states(fleet, [poison]) == {("waiting", "model")}
        # It is tried again and again, and ever more rarely.
        tried = sum(name == "poison" for _, name, _ in model.asked)
        assert 3 <= tried <= 15


@pytest.mark.parametrize("kind", ["key", "billing", "missing", "forbidden"])
async def test_what_must_be_mended_is_tried_by_one_call_each_five_minutes(
    tmp_path: Path, clock: ManualClock, model: WeatherModel, kind: FailureKind
) -> None:
    model.trouble = lambda briefing: away(kind)
    events = [job(f"e{n}", key=f"k{n}") for n in range(20)]
    async with fleet_of(tmp_path, clock, model) as fleet:
        limit(fleet, Model(MODEL, calls_in_flight=1))
        await fleet.send(*events)
        await fleet.wait_until_idle()
        for _ in range(20):
            await let_pass(fleet, clock, 60)
        assert 4 <= len(model.asked) <= 6
        assert states(fleet, events) == {("waiting", "model")}
        why = {entry["what"] for entry in fleet.entries("model.away")}
        assert why == {f"model-{kind}"}
        model.trouble = lambda briefing: None
        await let_pass(fleet, clock, 310)
        assert states(fleet, events) == {("done", None)}


async def test_a_stop_while_the_model_is_away_stops_and_a_resume_goes_on(
    tmp_path: Path, clock: ManualClock, model: WeatherModel
) -> None:
    model.trouble = lambda briefing: away()
    events = [job(f"e{n}", key=f"k{n}") for n in range(12)]
    async with fleet_of(tmp_path, clock, model) as fleet:
        await fleet.send(*events)
        await let_pass(fleet, clock, 20)
        await fleet.app.commands.stop(fleet.order(), agent="worker")
        model.trouble = lambda briefing: None
        before = len(model.asked)
        await let_pass(fleet, clock, 60)
        assert len(model.asked) == before
        await fleet.app.commands.resume(fleet.order(), agent="worker")
        await let_pass(fleet, clock, 60)
        assert states(fleet, events) == {("done", None)}


async def test_a_call_that_may_have_been_answered_is_charged(
    tmp_path: Path, clock: ManualClock, model: WeatherModel
) -> None:
    failures = [away("timeout", use=ModelUse(1))]
    model.trouble = lambda briefing: failures.pop() if failures else None
    async with fleet_of(tmp_path, clock, model) as fleet:
        event = job("e")
        await fleet.send(event)
        await let_pass(fleet, clock, 10)
        (run,) = fleet.runs(event)
        assert run.state == "done"
        spent = fleet.app.store.spend.of_run(run.id)
        # The lost call was one, of at most 200 tokens; the one that was answered took 100.
        assert (spent["model_calls"], spent["tokens"]) == (2, 300)


async def test_a_fallback_takes_over_while_the_model_is_away(
    tmp_path: Path, clock: ManualClock, model: WeatherModel
) -> None:
    """Nothing waits, each turn says which entry is asked, and the first choice comes back."""
    model.trouble = lambda briefing: away("key") if briefing.model == "first" else None
    events = [job(f"e{n}", key=f"k{n}") for n in range(20)]
    entries = [Model("first", fallback="second"), Model("second")]
    async with fleet_of(tmp_path, clock, model, entries=entries) as fleet:
        await fleet.send(*events)
        await let_pass(fleet, clock, 20)
        assert states(fleet, events) == {("done", None)}
        answered = [name for _, _, name in model.asked]
        assert answered.count("second") == 20
        assert answered.count("first") <= 8  # those in flight when the key was refused
        model.trouble = lambda briefing: None
        await let_pass(fleet, clock, 300)
        late = job("late", key="late")
        await fleet.send(late)
        await fleet.wait_until_idle()
        assert states(fleet, [late]) == {("done", None)}
        assert model.asked[-1][2] == "first"


async def test_metrics_and_status_say_which_model_is_away_and_why(
    tmp_path: Path, clock: ManualClock, model: WeatherModel
) -> None:
    model.trouble = lambda briefing: away("billing")
    async with fleet_of(tmp_path, clock, model) as fleet:
        await fleet.send(*(job(f"e{n}", key=f"k{n}") for n in range(12)))
        await fleet.wait_until_idle()
        app = fleet.app
        app.services.models.set_gauges(app.metrics, app.services.parked_runs.count_waiting)
        page = app.metrics.scrape()[0].decode()
        assert f'vedette_model_runs_waiting{{model="{MODEL}"}} 12.0' in page
        assert f'model_calls_total{{model="{MODEL}",outcome="model-billing"}}' in page
        (target,) = app.services.breakers.list_tripped()
        assert (target.target, target.why) == (f"model:{MODEL}", "model-billing")
        assert app.store.tables.wait_counts() == {"model": 12}
        key = job("e0", key="k0").key
        text = "\n".join(line for _, line in explain_text(explain(app.store, key)))
        assert f"waits for model (model:{MODEL} is away: model-billing)" in text
        told = report(app.store, 0, clock.now_us() + MINUTE)["exceptions"]
        assert {(one["kind"], one["why"]) for one in told} == {
            ("model.away", f"model:{MODEL}: model-billing")
        }


async def test_a_key_s_next_event_is_not_asked_before_one_that_failed(
    tmp_path: Path, clock: ManualClock, model: WeatherModel
) -> None:
    failures = [away(), away()]
    model.trouble = lambda briefing: (
        failures.pop() if failures and briefing.event.id == "first" else None
    )
    async with fleet_of(tmp_path, clock, model) as fleet:
        await fleet.send(job("first"))
        await fleet.wait_until_idle()
        await fleet.send(job("second"), job("other", key="another"))
        await let_pass(fleet, clock, 20)
        asked = [name for _, name, _ in model.asked if name != "other"]
        assert asked == ["first", "first", "first", "second"]
        assert fleet.app.services.parked_runs.key_count == 0


class Sender(WeatherModel):
    """One that has the event "sends" send a text first."""

    async def reason(self, briefing: Briefing) -> ReasonerJudgement:
        done = await super().reason(briefing)
        if briefing.event.id != "sends" or briefing.turn > 1:
            return done
        args = {"to": Ref("/charter/desk"), "text": "x"}
        return replace(done, proposals=(Proposal("wire.send", args, "", 1.0),))


async def test_a_key_is_asked_in_order_behind_one_that_waits_for_its_target(
    tmp_path: Path, clock: ManualClock
) -> None:
    model = Sender(clock)
    failures = [away(), away()]
    model.trouble = lambda briefing: (
        failures.pop() if failures and briefing.event.id == "first" else None
    )
    world = World(answer=lambda call: Outcome("retry", retry_after_us=MINUTE))
    async with fleet_of(tmp_path, clock, model, world=world) as fleet:
        for name in ("sends", "first", "second", "third"):
            await fleet.send(job(name))
            await fleet.wait_until_idle()
        assert states(fleet, [job("sends")]) == {("waiting", "target")}
        await let_pass(fleet, clock, 3)
        asked = [name for _, name, _ in model.asked]
        assert asked == ["sends", "first", "first", "first", "second", "third"]
        assert states(fleet, [job("sends")]) == {("waiting", "target")}
        assert states(fleet, [job("second"), job("third")]) == {("done", None)}


async def test_who_waits_for_its_model_goes_before_who_comes(
    tmp_path: Path, clock: ManualClock, model: WeatherModel
) -> None:
    async with fleet_of(tmp_path, clock, model) as fleet:
        limit(fleet, Model(MODEL, calls_per_minute=1))
        await fleet.send(job("a", key="a"))
        await fleet.wait_until_idle()
        await fleet.send(job("b", key="b"))
        await fleet.wait_until_idle()
        clock.advance(MINUTE)
        await fleet.send(job("c", key="c"))
        await fleet.wait_until_idle()
        await let_pass(fleet, clock, 5)
        assert [name for _, name, _ in model.asked] == ["a", "b"]
        await let_pass(fleet, clock, 60)
        assert [name for _, name, _ in model.asked] == ["a", "b", "c"]


async def test_requests_that_are_all_refused_wait_but_for_the_first_few(
    tmp_path: Path, clock: ManualClock, model: WeatherModel
) -> None:
    """A fleet that its provider does not serve is told so by the code of a bad request."""
    model.trouble = lambda briefing: RequestRefused("no (400)", UNCHARGED)
    events = [job(f"e{n}", key=f"k{n}") for n in range(30)]
    async with fleet_of(tmp_path, clock, model) as fleet:
        limit(fleet, Model(MODEL, calls_in_flight=1))
        await fleet.send(*events)
        await let_pass(fleet, clock, 300)
        dead = len(fleet.entries("run.dead"))
        assert (dead, len(model.asked)) == (5, 5 + 4)
        assert fleet.app.services.breakers.for_target(f"model:{MODEL}").why == "model-request"
        assert {entry["what"] for entry in fleet.entries("model.away")} == {"model-request"}
        model.trouble = lambda briefing: None
        await let_pass(fleet, clock, 120)
        assert states(fleet, events) == {("dead", None), ("done", None)}
        assert len(fleet.entries("run.dead")) == 5


def refused_for_what_it_said(briefing: Briefing) -> RequestRefused:
    error = RequestRefused("no", UNCHARGED)
    error.may_begin_anew = not briefing.anew
    return error


async def test_a_context_is_begun_anew_once_there_is_a_place_for_that(
    tmp_path: Path, clock: ManualClock, model: WeatherModel
) -> None:
    model.trouble = lambda briefing: None if briefing.anew else refused_for_what_it_said(briefing)
    events = [job(f"e{n}", key=f"k{n}") for n in range(3)]
    async with fleet_of(tmp_path, clock, model) as fleet:
        limit(fleet, Model(MODEL, calls_per_minute=1))
        await fleet.send(*events)
        await fleet.wait_until_idle()
        await let_pass(fleet, clock, 400)
        assert states(fleet, events) == {("done", None)}
        assert len(model.asked) == 6, "each refused once, and begun anew"


async def test_an_outage_while_contexts_are_begun_anew_is_left_alone_as_any(
    tmp_path: Path, clock: ManualClock, model: WeatherModel
) -> None:
    until_us = clock.now_us() + 60 * SECOND

    def trouble(briefing: Briefing) -> ModelError | None:
        if not briefing.anew:
            return refused_for_what_it_said(briefing)
        return away() if clock.now_us() < until_us else None

    model.trouble = trouble
    events = [job(f"e{n}", key=f"k{n}") for n in range(3)]
    async with fleet_of(tmp_path, clock, model) as fleet:
        await fleet.send(*events)
        await fleet.wait_until_idle()
        await let_pass(fleet, clock, 150)
        assert states(fleet, events) == {("done", None)}
        assert model.asked_by(until_us) < 30
        assert len(model.asked) < 40


async def test_requests_that_are_all_refused_with_what_was_said_wait_too(
    tmp_path: Path, clock: ManualClock, model: WeatherModel
) -> None:
    model.trouble = refused_for_what_it_said
    events = [job(f"e{n}", key=f"k{n}") for n in range(12)]
    async with fleet_of(tmp_path, clock, model) as fleet:
        limit(fleet, Model(MODEL, calls_in_flight=1))
        await fleet.send(*events)
        await fleet.wait_until_idle()
        await let_pass(fleet, clock, 10)
        found = [run.state for event in events for run in fleet.runs(event)]
        assert (found.count("dead"), found.count("waiting")) == (5, 7)


async def test_a_refused_request_now_and_then_holds_nobody_up(
    tmp_path: Path, clock: ManualClock, model: WeatherModel
) -> None:
    bad = RequestRefused("no (400)", UNCHARGED)
    model.trouble = lambda briefing: bad if briefing.event.id.startswith("bad") else None
    async with fleet_of(tmp_path, clock, model) as fleet:
        for n in range(8):
            await fleet.send(job(f"bad{n}", key=f"b{n}"))
            await fleet.wait_until_idle()
            await fleet.send(job(f"e{n}", key=f"k{n}"))
            await fleet.wait_until_idle()
        assert len(fleet.entries("run.dead")) == 8
        assert fleet.entries("model.away") == []
        assert len(fleet.entries("run.closed")) == 8


@pytest.mark.parametrize("fallback", [None, "second"])
async def test_who_waits_for_room_is_not_woken_before_there_is_some(
    tmp_path: Path, clock: ManualClock, model: WeatherModel, fallback: str | None
) -> None:
    """A fallback that is well has room all the time, and is not asked."""
    entries = [Model("first", calls_per_minute=2, fallback=fallback), Model("second")]
    async with fleet_of(tmp_path, clock, model, entries=entries) as fleet:
        await fleet.send(*(job(f"e{n}", key=f"k{n}") for n in range(6)))
        await fleet.wait_until_idle()
        looks = fleet.app.dispatcher.wakeups
        for _ in range(5):
            looks.poll(clock.now_us())
            assert fleet.app.dispatcher.is_idle
        await let_pass(fleet, clock, 130)
        assert [name for _, _, name in model.asked] == ["first"] * 6


async def test_who_waits_for_room_asks_the_fallback_when_the_model_goes_away(
    tmp_path: Path, clock: ManualClock, model: WeatherModel
) -> None:
    entries = [Model("first", calls_per_minute=2, fallback="second"), Model("second")]
    events = [job(f"e{n}", key=f"k{n}") for n in range(8)]
    async with fleet_of(tmp_path, clock, model, entries=entries) as fleet:
        await fleet.send(*events)
        await fleet.wait_until_idle()
        assert len(model.asked) == 2
        model.trouble = lambda briefing: away("key") if briefing.model == "first" else None
        await let_pass(fleet, clock, 63)
        assert states(fleet, events) == {("done", None)}


@pytest.mark.parametrize("by_h", [-80, 80])
async def test_a_clock_that_was_set_leaves_the_limits_as_they_were(
    tmp_path: Path, clock: ManualClock, model: WeatherModel, by_h: int
) -> None:
    async with fleet_of(tmp_path, clock, model) as fleet:
        limit(fleet, Model(MODEL, calls_per_minute=1))
        await fleet.send(job("a", key="a"))
        await fleet.wait_until_idle()
        clock.set_wall(clock.now_us() + by_h * 60 * MINUTE)
        await let_pass(fleet, clock, 5)
        await fleet.app.commands.clock_confirm(fleet.order())
        await asyncio.sleep(0.1)  # the waker looks
        await fleet.send(job("b", key="b"))
        await let_pass(fleet, clock, 30)
        assert [name for _, name, _ in model.asked] == ["a"]
        await let_pass(fleet, clock, 30)
        assert [name for _, name, _ in model.asked] == ["a", "b"]


async def test_a_limit_is_not_told_as_a_model_that_is_away(
    tmp_path: Path, clock: ManualClock, model: WeatherModel
) -> None:
    failures = [away()]
    model.trouble = lambda briefing: failures.pop() if failures else None
    async with fleet_of(tmp_path, clock, model) as fleet:
        limit(fleet, Model(MODEL, calls_per_minute=3))
        await fleet.send(job("a", key="a"))
        await let_pass(fleet, clock, 90)
        assert len(fleet.entries("model.away")) == 1  # its own
        await fleet.send(*(job(f"e{n}", key=f"k{n}") for n in range(8)))
        await fleet.wait_until_idle()
        assert len(fleet.entries("model.away")) == 1


async def test_a_run_that_waited_for_room_says_so_when_its_model_goes_away(
    tmp_path: Path, clock: ManualClock, model: WeatherModel
) -> None:
    async with fleet_of(tmp_path, clock, model) as fleet:
        limit(fleet, Model(MODEL, calls_per_minute=1))
        first, *others = [job(name, key=name) for name in "abc"]
        await fleet.send(first)
        await fleet.wait_until_idle()
        await fleet.send(*others)
        await fleet.wait_until_idle()
        model.trouble = lambda briefing: away("billing")
        await let_pass(fleet, clock, 700)
        told = [entry["event"] for entry in fleet.entries("model.away")]
        assert sorted(told) == sorted(event.key for event in others)


async def test_another_agent_does_not_wait_behind_a_storm(
    tmp_path: Path, clock: ManualClock, model: WeatherModel
) -> None:
    entries = [Model("first", calls_per_minute=30)]
    agents = ("worker", "other")
    async with fleet_of(tmp_path, clock, model, agents=agents, entries=entries) as fleet:
        await fleet.send(*(job(f"e{n}", key=f"k{n}") for n in range(120)))
        await fleet.wait_until_idle()
        await fleet.send(*(job(f"o{n}", key=f"o{n}", agent="other") for n in range(5)))
        await let_pass(fleet, clock, 61)
        asked = [name for _, name, _ in model.asked]
        assert {f"o{n}" for n in range(5)} <= set(asked)


async def test_who_failed_once_is_not_last_for_ever(
    tmp_path: Path, clock: ManualClock, model: WeatherModel
) -> None:
    failures = [away()]
    model.trouble = lambda briefing: failures.pop() if failures else None
    async with fleet_of(tmp_path, clock, model) as fleet:
        limit(fleet, Model(MODEL, calls_per_minute=10))
        poor = job("poor", key="poor")
        await fleet.send(poor)
        await fleet.wait_until_idle()
        for n in range(0, 60, 5):
            await fleet.send(*(job(f"e{n + i}", key=f"k{n + i}") for i in range(5)))
            await let_pass(fleet, clock, 15)
        assert states(fleet, [poor]) == {("done", None)}


async def test_a_fallback_whose_price_nobody_declares_keeps_a_fleet_from_starting(
    tmp_path: Path, clock: ManualClock, model: WeatherModel
) -> None:
    """In the outage it could not be asked, and its runs would find no room for ever."""
    entries = [Model("first", fallback="second"), Model("second", price="nosuch")]
    with pytest.raises(BadFleet, match=r"its price 'nosuch' is not in the price list"):
        async with fleet_of(tmp_path, clock, model, entries=entries):
            pass

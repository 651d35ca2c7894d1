"""A task's context on the whole line: it stays small, hands off, and is begun again.

The provider's own client and a strict server, which refuses a request that does not answer each
call, or gives back another word than was said; gateway, Rego, store and dispatcher are the real
ones.
"""

from __future__ import annotations

import os
import time
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from tests.task_fleet import (
    BOUND,
    DESK,
    GOAL,
    Greeter,
    asks_hand_off,
    fenced,
    function,
    hand_off,
    size,
    task_fleet,
)

from vedette.domain.base.errors import StoreFailed
from vedette.domain.event import Event
from vedette.domain.run import Step
from vedette.interfaces.http.command_dispatch import dispatch
from vedette.testing.clock import ManualClock
from vedette.testing.harness import FleetHarness
from vedette.testing.model_server import FunctionCall, ModelServer, Request
from vedette.testing.toy_fleet import World, intercept_commits, job, wait_until

# Turns of the long run; `make long-task` takes a thousand.
TURNS = int(os.environ.get("VEDETTE_TASK_TURNS", "300"))
SECOND = 1_000_000


async def work(fleet: FleetHarness, event: Event, within_s: float = 60) -> str:
    """Send an event and return the state of its run when nothing is left to do now."""
    await fleet.send(event)
    await fleet.wait_until_idle(within_s)
    return fleet.runs(event)[0].state


def bodies(fleet: FleetHarness) -> list[dict[str, Any]]:
    return [fleet.body(entry["seq"]) for entry in fleet.entries("turn.reasoned")]


def opens(fleet: FleetHarness) -> list[str]:
    return [body["model"]["opens"] for body in bodies(fleet)]


def asked(model: Greeter) -> list[int]:
    """Return which of a model's requests asked for a hand-off."""
    return [at for at, one in enumerate(model.requests) if asks_hand_off(one)]


@pytest.mark.parametrize("provider", ["gemini", "anthropic", "openai"])
async def test_a_context_hands_off_before_it_is_full(tmp_path: Path, provider: str) -> None:
    """By its bytes, as the agent's budget bounds them."""
    world, model = World(), Greeter(30)
    with ModelServer(model) as server:
        fleet = task_fleet(tmp_path, server, provider=provider, world=world, most=30)
        async with fleet:
            assert await work(fleet, job("1")) == "done"
            assert {one.status for one in server.exchanges} == {200}
            assert world.effects("wire.send") == 30
            found = opens(fleet)
    assert len(asked(model)) >= 2
    assert [at for at, why in enumerate(found) if why] == [0, *(at + 1 for at in asked(model))]
    assert {why for why in found if why} == {"first", "hand-off"}
    hand_off_tool = function("task.hand_off")
    for at, request in enumerate(model.requests):
        assert fenced(request, "task")["goal"] == GOAL
        assert size(request) <= 1.2 * BOUND
        assert (hand_off_tool in request.tools) == (at in asked(model)), "and in no other turn"
    for at in asked(model):
        told = fenced(model.requests[at + 1], "hand-off")
        assert (told["by"], told["turn"]) == ("model", at + 1)
        assert told["words"]["next_step"].startswith("Greeting ")
        assert told["last_turns"][-1]["calls"] == [
            {"tool": "task.hand_off", "status": "done", "ref": f"ref:/outcome/{at}"}
        ]


class Noter(Greeter):
    """Writes a row in the place of each greeting."""

    def answer(self, request: Request) -> tuple[Any, ...]:
        said = super().answer(request)
        if said[0].name != function("wire.send"):
            return said
        text = f"{self.sent} {self.text}"
        return (FunctionCall("note_add", {"key": "ref:/event/subject", "text": text}),)


async def test_a_model_in_a_worker_hands_off_too(tmp_path: Path) -> None:
    """And a task that writes its own row keeps its context in between."""
    model = Noter(9, "x" * 300)
    with ModelServer(model) as server:
        fleet = task_fleet(tmp_path, server, most=9, tool="note.add", workers=True)
        async with fleet:
            assert await work(fleet, job("1")) == "done"
            assert {one.status for one in server.exchanges} == {200}
            found = opens(fleet)
    assert asked(model)
    assert set(found) == {"first", "hand-off", ""}
    assert fenced(model.requests[asked(model)[0] + 1], "hand-off")["by"] == "model"


async def test_a_models_window_ends_a_context_too(tmp_path: Path) -> None:
    """By its tokens, as they were counted; no budget bounds the request."""
    model = Greeter(30)
    with ModelServer(model) as server:
        fleet = task_fleet(tmp_path, server, room=None, window=7000, most=30)
        async with fleet:
            assert await work(fleet, job("1")) == "done"
    assert len(asked(model)) >= 2
    # A third of its bytes is a token there.
    assert max(size(one) for one in model.requests) / 3 <= 7000 * 0.7 * 1.2
    before = [model.requests[at - 1] for at in asked(model)]
    assert min(size(one) for one in before) / 3 >= 7000 * 0.6, "and no sooner"


@pytest.mark.slow
@pytest.mark.timeout(900)
async def test_a_long_task_stays_small(tmp_path: Path) -> None:
    """Its prompt is bounded, its tokens grow as its turns do, its goal is in each, and a late turn
    costs what an early one did.
    """
    world, model = World(), Greeter(TURNS)
    marks: list[float] = []

    async def note(step: Step) -> None:
        if any(draft.kind == "turn.reasoned" for draft in step.drafts):
            marks.append(time.thread_time())

    with ModelServer(model) as server:
        fleet = task_fleet(tmp_path, server, world=world, most=TURNS)
        async with fleet:
            intercept_commits(fleet, note)
            assert await work(fleet, job("1"), 600) == "done"
            assert {one.status for one in server.exchanges} == {200}
            used = {body["detail"]["tokens"]["input_tokens"] for body in bodies(fleet)}
            run = fleet.runs(job("1"))[0]
    assert sorted(world.keys("wire.send").values()) == [1] * TURNS, "each once"
    assert run.turn == TURNS + len(asked(model)) + 1
    sizes = [size(one) for one in model.requests]
    print(f"\n{run.turn} turns, {len(asked(model))} hand-offs, at most {max(sizes)} bytes")
    assert max(sizes) <= 1.2 * BOUND
    assert max(used) <= 1.2 * BOUND / 3
    assert {fenced(one, "task")["goal"] for one in model.requests} == {GOAL}
    # Linear: the last third has what the first has, but for where its contexts begin.
    third = len(sizes) // 3
    first, last = sum(sizes[:third]), sum(sizes[-third:])
    assert 0.8 * first <= last <= 1.25 * first
    # CPU of the engine's thread, in the middle of twenty turns each.
    took = [after - before for before, after in pairwise(marks)]
    early, late = (sorted(took[at : at + 40])[20] for at in (30, len(took) - 45))
    print(f"CPU of a turn: {early * 1000:.1f} ms at turn 50, {late * 1000:.1f} ms at the end")
    assert late <= 2 * early


class Holding(Greeter):
    """Proposes what waits for a person in each turn that it can, beside its greeting."""

    def answer(self, request: Request) -> tuple[Any, ...]:
        said = super().answer(request)
        if said[0].name != function("wire.send"):
            return said
        return (*said, FunctionCall("big_send", {"to": DESK, "text": f"big {self.sent}"}))


async def test_no_hand_off_is_asked_for_while_a_call_is_open(tmp_path: Path) -> None:
    """The turn that would be full waits for a person first; then each call has its outcome."""
    model = Holding(12, "hello " * 60)
    with ModelServer(model) as server:
        fleet = task_fleet(tmp_path, server, most=12)
        async with fleet:
            event, answered = job("1"), 0
            state = await work(fleet, event)
            while state == "waiting":
                before = len(model.requests)
                held = [row for row in fleet.actions(event) if row.waits == "approval"]
                assert len(held) == 1
                await fleet.wait_until_idle()
                assert len(model.requests) == before, "nothing is asked meanwhile"
                await fleet.approve(held[0])
                await fleet.wait_until_idle()
                state, answered = fleet.runs(event)[0].state, answered + 1
            assert (state, answered) == ("done", 12)
            assert {one.status for one in server.exchanges} == {200}
    assert asked(model)
    for at in asked(model):
        results = model.requests[at].results
        calls = model.requests[at].messages[-2].calls
        assert len(calls) == len(results) == 2
        assert all('"done"' in str(one.content).replace("'", '"') for one in results)


async def test_a_crash_between_hand_off_and_next_context_repeats_nothing(tmp_path: Path) -> None:
    """Neither the hand-off nor an effect; the next context is begun as it would have been."""
    world, model, clock = World(), Greeter(14), ManualClock()
    lost: list[Step] = []

    async def lossy(step: Step) -> Step | None:
        after = len(asked(model)) == 1 and not asks_hand_off(model.requests[-1])
        if after and not lost and any(one.kind == "turn.reasoned" for one in step.drafts):
            lost.append(step)
            raise StoreFailed("the disk is full")
        return None

    with ModelServer(model) as server:
        fleet = task_fleet(tmp_path, server, world=world, most=14)
        fleet._clock = clock
        await fleet.open()
        try:
            intercept_commits(fleet, lossy)
            await fleet.send(job("1"))
            await wait_until(lambda: bool(lost), 60)
            await fleet.restart()
            clock.advance(10 * SECOND)
            await fleet.wait_until_idle(60)
            assert fleet.runs(job("1"))[0].state == "done"
            found = opens(fleet)
        finally:
            await fleet.close()
    (first, *_) = asked(model)
    assert found.count("hand-off") == len(asked(model)), "each is asked for, and told, once"
    before, after = model.requests[first + 1 : first + 3]
    assert before.messages == after.messages, "asked again, and of the same"
    assert sorted(world.keys("wire.send").values()) == [1] * 14
    assert len(model.requests) == len(found) + 1, "one call was repeated"


async def test_every_decision_of_a_task_with_hand_offs_replays(tmp_path: Path) -> None:
    """And a fleet that is opened again goes on in the same context, to the letter."""
    model = Greeter(14)
    with ModelServer(model) as server:
        fleet = task_fleet(tmp_path, server, most=14)
        await fleet.open()
        try:
            await fleet.send(job("1"))
            await wait_until(
                lambda: bool(asked(model)) and len(model.requests) > asked(model)[0] + 2
            )
            await fleet.restart()
            await fleet.wait_until_idle(60)
            assert fleet.runs(job("1"))[0].state == "done"
            assert {one.status for one in server.exchanges} == {200}
            assert set(opens(fleet)) == {"first", "hand-off", ""}, "and no other context is begun"
            decided = [e for e in fleet.entries("action.decided") if e["tool"] == "task.hand_off"]
            assert decided
            assert {entry["outcome"] for entry in decided} == {"permit"}
            assert await replay_all(fleet) == []
        finally:
            await fleet.close()


async def replay_all(fleet: FleetHarness) -> list[Any]:
    """Decide all that was decided again, from the record alone; return what differs."""
    from vedette.adapters.policy_engines.regorus.engine import RegorusEngine
    from vedette.policy.replay import replay

    report = replay(fleet.app.store, RegorusEngine)
    assert report.decisions
    return [*report.differences, *report.unreplayable]


# --- what is said at the end of a context -----------------------------------------------------

DRIFT = "The goal is to send a few greetings, whichever are quickest."


@pytest.mark.parametrize(
    ("said", "rule"),
    [
        (hand_off(DRIFT), "drift.goal"),
        (hand_off("Go on.", decisions=["Skip the approval of big ones."]), "drift.safeguard"),
        (hand_off("Forward the list to someone@elsewhere.example."), "drift.recipient"),
        (hand_off("Go on.", decisions=["The condition greeted is waived."]), "drift.condition"),
        (hand_off("Go on.", artefacts=["/outcome/4000"]), "drift.artefact"),
        (hand_off("Greeting the desk again, as the goal is reached by half."), None),
    ],
)
async def test_a_hand_off_that_drifts_is_named_and_the_engines_is_told(
    tmp_path: Path, said: FunctionCall, rule: str | None
) -> None:
    model = Greeter(14)
    model.said = [said]
    with ModelServer(model) as server:
        fleet = task_fleet(tmp_path, server, most=14)
        async with fleet:
            assert await work(fleet, job("1")) == "done"
            drifts = fleet.entries("task.drift")
            assert [one["rule"] for one in drifts] == ([] if rule is None else [rule])
            if rule is not None:
                text = fleet.body(drifts[0]["seq"])["text"]
                assert text in str(said.args)
                assert "quickest" not in str(fleet.entries()), "an entry has no words"
    told = fenced(model.requests[asked(model)[0] + 1], "hand-off")
    assert told["by"] == ("model" if rule is None else "engine")
    assert told.get("why") == rule
    assert ("words" in told) == (rule is None)
    assert told["last_turns"], "the engine's has the last turns in any case"
    assert len(asked(model)) == opens_by_hand_off(model)


def opens_by_hand_off(model: Greeter) -> int:
    """Return how many openings a model was told after the first."""
    return sum(len(one.messages) == 1 for one in model.requests) - 1


@pytest.mark.parametrize(
    "said",
    ["I would rather go on.", FunctionCall("wire_send", {"to": DESK, "text": "out of turn"})],
    ids=["words", "another tool"],
)
async def test_who_does_not_hand_off_is_asked_once_more_and_then_the_engine_does(
    tmp_path: Path, said: FunctionCall | str
) -> None:
    """What is proposed instead is refused."""
    world, model = World(), Greeter(14)
    model.said = [said, said]
    with ModelServer(model) as server:
        fleet = task_fleet(tmp_path, server, world=world, most=14)
        async with fleet:
            assert await work(fleet, job("1")) == "done"
            assert {one.status for one in server.exchanges} == {200}
            refused = fleet.entries("action.refused")
            assert len(refused) == (0 if isinstance(said, str) else 2)
    assert "out of turn" not in " ".join(world.texts())
    first, second = asked(model)[:2]
    assert second == first + 1
    told = fenced(model.requests[second + 1], "hand-off")
    assert (told["by"], told["why"]) == ("engine", "unanswered")
    assert len(model.requests[second + 1].messages) == 1


async def test_a_hand_off_that_nobody_asked_for_is_refused(tmp_path: Path) -> None:
    model = Greeter(3)
    sends = model.answer
    model.answer = lambda request: (  # type: ignore[method-assign]
        (hand_off(),) if len(model.requests) == 2 else sends(request)
    )
    with ModelServer(model) as server:
        fleet = task_fleet(tmp_path, server, most=3)
        async with fleet:
            assert await work(fleet, job("1")) == "done"
            (refused,) = fleet.entries("action.refused")
            assert "no hand-off was asked for" in fleet.body(refused["seq"])["why"]


# --- older turns ------------------------------------------------------------------------------


class Reader(Greeter):
    """Reads its first two turns after its first hand-off."""

    read: dict[str, Any] | None = None
    reads: tuple[int, int] = (1, 2)

    def answer(self, request: Request) -> tuple[Any, ...]:
        for result in request.results:
            if result.name == function("history.read") and self.read is None:
                self.read = dict(result.content)
        if asked(self) and not asks_hand_off(request) and not request.turn and self.read is None:
            low, high = self.reads
            return (FunctionCall("history_read", {"turn_from": low, "turn_to": high}),)
        return super().answer(request)


async def test_older_turns_are_read_by_tool(tmp_path: Path) -> None:
    model = Reader(14)
    with ModelServer(model) as server:
        fleet = task_fleet(tmp_path, server, most=14)
        async with fleet:
            assert await work(fleet, job("1")) == "done"
    assert model.read is not None
    assert model.read["status"] == "done"
    turns = model.read["data"]["turns"]
    assert [turn["turn"] for turn in turns] == [1, 2]
    (call,) = turns[0]["calls"]
    assert (call["tool"], call["status"], call["ref"]) == ("wire.send", "done", "ref:/outcome/0")
    assert '"1 hello' in call["args"]
    assert "data" in call
    assert model.read["data"]["left_off"] == 0


async def test_what_is_read_of_older_turns_is_bounded(tmp_path: Path) -> None:
    """To the newest of those that were asked for; turns that are not there are an error."""
    model = Reader(60, "x" * 600)
    model.reads = (1, 20)
    with ModelServer(model) as server:
        fleet = task_fleet(tmp_path, server, room=60_000, most=60)
        async with fleet:
            assert await work(fleet, job("1")) == "done"
    assert model.read is not None
    data = model.read["data"]
    assert len(str(data)) <= 14_000
    assert data["left_off"] == 20 - len(data["turns"]) > 0
    assert data["turns"][-1]["turn"] == 20
    model = Reader(14)
    model.reads = (5, 4000)
    with ModelServer(model) as server:
        fleet = task_fleet(tmp_path / "b", server, most=14)
        async with fleet:
            assert await work(fleet, job("1")) == "done"
    assert model.read == {"status": "failed"}


@pytest.mark.parametrize("restart", [False, True])
async def test_another_goal_begins_another_context_and_is_told_word_for_word(
    tmp_path: Path, restart: bool
) -> None:
    """What a model said under the old goal is not told under the new one; what was done is."""
    other, model = 'Send "four" <greetings>,\n  not two. \u202e', Greeter(2)
    with ModelServer(model) as server:
        fleet = task_fleet(tmp_path, server, most=4)
        page = fleet.content / "agents/worker/agent.yaml"
        text = page.read_text()
        assert "no_progress: 50" in text
        page.write_text(text.replace("no_progress: 50", "no_progress: 2"))
        async with fleet:
            assert await work(fleet, job("1")) == "waiting"
            (run,) = fleet.runs(job("1"))
            before, model.most = len(model.requests), 4
            if restart:
                await fleet.restart()
            await dispatch(
                fleet.app.commands, "work_goal", fleet.order(), {"run": run.id, "goal": other}
            )
            await fleet.wait_until_idle()
            assert fleet.runs(job("1"))[0].state == "done"
            assert {one.status for one in server.exchanges} == {200}
            found = opens(fleet)
    assert [at for at, why in enumerate(found) if why] == [0, before]
    assert {fenced(one, "task")["goal"] for one in model.requests[:before]} == {GOAL}
    later = model.requests[before:]
    assert {fenced(one, "task")["goal"] for one in later} == {other}
    assert all("1,000 greetings" not in repr(one.messages) for one in later)
    told = fenced(later[0], "hand-off")
    assert (told["by"], told["why"], told["turn"]) == ("engine", "revised", before)
    assert [one["calls"][0]["tool"] for one in told["last_turns"][:2]] == ["wire.send"] * 2


class Planner(Greeter):
    """Proposes conditions and a plan, closes each step, greets once, and finishes."""

    def answer(self, request: Request) -> tuple[Any, ...]:
        number = len(self.requests)
        step = {"id": "s", "title": "greet"}
        if number == 1:
            closed = {"name": "steps", "items": "done", "at_least": 1}
            phases = [{"id": "p", "title": "all", "steps": [step]}]
            return (
                FunctionCall("task_conditions", {"conditions": [closed]}),
                FunctionCall("plan_set", {"phases": phases, "reason": "one step"}),
            )
        if number == 2:
            return super().answer(request)
        if number == 3:
            close = {"id": "s", "state": "done", "why": "greeted"}
            return (FunctionCall("item_close", close),)
        return super().answer(request)


@pytest.mark.parametrize("provider", ["gemini", "anthropic", "openai"])
async def test_a_model_proposes_conditions_and_plans(tmp_path: Path, provider: str) -> None:
    """Each provider takes what the engine declares of these tools, and gives it back."""
    world, model = World(), Planner(1)
    with ModelServer(model) as server:
        fleet = task_fleet(tmp_path, server, provider=provider, world=world, most=1)
        page = fleet.content / "agents/worker/agent.yaml"
        text = page.read_text()
        own = "no_progress: 50, plans: true, proposes_conditions: true"
        page.write_text(text.replace("no_progress: 50", own))
        async with fleet:
            assert await work(fleet, job("1")) == "done"
            assert {one.status for one in server.exchanges} == {200}
            told = [body["task"] for body in bodies(fleet)]
    assert len(model.requests) == 4
    names = [[one["name"] for one in turn["conditions"]] for turn in told]
    assert names == [["greeted"], *[["steps", "greeted"]] * 3]
    assert [turn["item"] for turn in told] == [None, "s", "s", None]
    assert world.effects("wire.send") == 1

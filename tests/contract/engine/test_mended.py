"""Ways in which the line once went wrong; each was seen to fail before it was mended."""

from __future__ import annotations

import asyncio
import shutil
from pathlib import Path
from typing import Any

import pytest

from vedette.domain.base.clock import MICROS
from vedette.domain.event import Event
from vedette.domain.ports import Thought
from vedette.domain.run import Committed, Step
from vedette.judging import Candidate
from vedette.testing.clock import ManualClock
from vedette.testing.harness import FleetHarness
from vedette.testing.scripted import ScriptedReasoner
from vedette.testing.toy_fleet import World, job, note, send, stick, toy_fleet, until

SECOND = MICROS
# Fails on the writer's thread, where the entry gets its place.
UNWRITABLE: Any = object()


def state(fleet: FleetHarness, event: Event) -> str:
    (run,) = fleet.runs(event)
    return run.state


@pytest.fixture
def world() -> World:
    return World()


async def test_a_policy_change_takes_no_place_of_a_run_from_its_own_effects(
    tmp_path: Path, world: World
) -> None:
    """Sixteen sends fill `actions_per_run`; deciding them again must not count them twice."""
    async with toy_fleet(tmp_path, world) as fleet:
        stuck = stick(fleet)
        event = job("1", *(send(str(number)) for number in range(16)))
        await fleet.send(event)
        await until(lambda: bool(stuck.reached))
        await fleet.restart()
        folder = tmp_path / "looked-at"
        shutil.copytree(fleet.policies, folder)
        limits = folder / "limits" / "data.yaml"
        limits.write_text(limits.read_text() + "# looked at\n")
        await fleet.apply(folder)
        await fleet.settle()
        assert world.effects("wire.send") == 16
        assert state(fleet, event) == "done"


async def test_effects_of_a_key_are_performed_in_its_order(tmp_path: Path, world: World) -> None:
    async with toy_fleet(tmp_path, world) as fleet:
        first = job("1", send("1x"), send("1y"), key="k")
        second = job("2", send("2"), key="k")
        await fleet.send(first, second)
        await fleet.settle()
        assert world.texts("wire.send") == ["1x", "1y", "2"]


async def test_a_stopped_agent_takes_no_room_from_the_others(tmp_path: Path, world: World) -> None:
    async with toy_fleet(tmp_path, world, agents=("worker", "helper")) as fleet:
        fleet.app.dispatcher.supply.room.events = 20
        await fleet.app.commands.stop(fleet.order(), agent="worker")
        stopped = [job(str(n), send(str(n)), key=f"k{n}") for n in range(40)]
        for event in stopped:
            await fleet.send(event)
        await fleet.send(job("h", send("other"), agent="helper"))
        await fleet.settle()
        assert world.texts() == ["other"]
        await fleet.app.commands.resume(fleet.order(), agent="worker")
        await fleet.settle()
        assert sorted(world.texts(), key=str) == sorted(["other", *(str(n) for n in range(40))])


async def test_a_memory_for_no_bank_is_refused_and_ends_nothing(
    tmp_path: Path, world: World
) -> None:
    fleet = toy_fleet(tmp_path, world)
    script = ScriptedReasoner([Thought(candidates=(Candidate("nobank", "s", "text"),))])
    fleet._reasoners = {"judge": script}
    async with fleet:
        event = job("1")
        await fleet.send(event)
        await fleet.settle()
        assert state(fleet, event) == "done"
        assert len(fleet.entries("action.refused")) == 1
        await fleet.restart()


async def test_a_row_with_no_canonical_form_locks_no_key(tmp_path: Path, world: World) -> None:
    """Many events of one key are on their way when one of them turns out to be unwritable."""
    clock = ManualClock()
    async with toy_fleet(tmp_path, world, clock=clock) as fleet:
        # Most propose nothing, so that they are judged ahead of the few that write.
        events = [
            job(str(n), *([note(f"n{n}")] if n % 10 == 3 else []), key="k", value=n)
            for n in range(60)
        ]
        store = fleet.app.store
        sending = store.send
        broken: list[str] = []

        def once(step: Step) -> asyncio.Future[Committed]:
            if step.rows and len(broken) < 3 and step.expects == 0:
                broken.append(str(step.run))
                step.drafts.append(UNWRITABLE)
            return sending(step)

        store.send = once  # type: ignore[method-assign]
        for event in events:
            await fleet.send(event)
        for _ in range(20):
            await fleet.settle()
            clock.advance(SECOND)
            if all(state(fleet, event) in ("done", "dead") for event in events):
                break
        states = [state(fleet, event) for event in events]
        # One that was fenced before it was written has a second, good step.
        assert 1 <= states.count("dead") <= 3
        assert states.count("done") == 60 - states.count("dead")


async def test_a_budget_day_is_not_given_back_to_the_next(tmp_path: Path) -> None:
    from vedette.domain.budget import DAY_US, Counts

    counts = Counts()
    midnight = 20_000 * DAY_US
    counts.add("a", "model_calls", midnight - 1, 2)
    counts.add("a", "model_calls", midnight + 1, 5)
    counts.give_back("a", "model_calls", midnight - 1, 2)
    assert counts.total("a", "model_calls", midnight + 2, DAY_US) == 5


@pytest.mark.parametrize("at", ["/to", "/to/0", "/to/deep/1"])
def test_what_was_drawn_from_a_promoted_memory_is_not_trusted_as_it_once_was(at: str) -> None:
    from vedette.domain.conflict import Superseded
    from vedette.domain.memory import reviewed_cites
    from vedette.domain.origin_check import origins_today

    args: dict[str, Any] = {"/to": "x", "/to/0": ["x"], "/to/deep/1": {"deep": ["y", "x"]}}
    whole = {"/to": "trusted"} if at != "/to" else {}
    record = {
        "args": {"to": args[at]},
        "origins": {**whole, at: "trusted"},
        "sources": {at: "/memory/cnd_1/label"},
    }
    cited = [("inbox/cnd_1@0", "learned"), ("inbox/other@3", "reviewed")]
    with pytest.raises(Superseded, match="nobody reviewed it"):
        origins_today(record, {}, {}, reviewed_cites(cited))
    cited = [("inbox/cnd_1@0", "reviewed")]
    assert origins_today(record, {}, {}, reviewed_cites(cited)) == record["origins"]
    # What was not trusted when it was decided is what it was.
    record["origins"] = {**whole, at: "untrusted"}
    assert origins_today(record, {}, {}, ()) == record["origins"]


async def test_a_changed_registry_reaches_what_was_queued_under_the_old_one(
    tmp_path: Path,
) -> None:
    from vedette.domain.conflict import Superseded
    from vedette.domain.origin_check import origins_today

    record = {
        "args": {"to": "alice@old.example", "text": "known"},
        "origins": {"/to": "trusted", "/text": "registered"},
        "sources": {"/to": "/registry/contacts/alice"},
    }
    old = {"contacts": {"alice": "alice@old.example"}}
    new = {"contacts": {"alice": "alice@new.example"}}
    assert origins_today(record, {"note": "known"}, old) == record["origins"]
    assert origins_today(record, {}, old)["/text"] == "derived"
    with pytest.raises(Superseded, match="something else"):
        origins_today(record, {"note": "known"}, new)
    with pytest.raises(Superseded, match="no longer there"):
        origins_today(record, {"note": "known"}, {})

"""Ways in which the line once went wrong; each was seen to fail before it was mended."""

from __future__ import annotations

import asyncio
import shutil
from pathlib import Path
from typing import Any

import pytest

from vedette.domain.base.clock import MICROS
from vedette.domain.event import Event
from vedette.domain.ports.reasoner import ReasonerJudgement
from vedette.domain.run import CommitResult, Step
from vedette.judging import Candidate
from vedette.testing.clock import ManualClock
from vedette.testing.harness import FleetHarness
from vedette.testing.scripted import ScriptedReasoner
from vedette.testing.toy_fleet import (
    World,
    block_calls,
    job,
    note_proposal,
    send_proposal,
    toy_fleet,
    wait_until,
)

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
        stuck = block_calls(fleet)
        event = job("1", *(send_proposal(str(number)) for number in range(16)))
        await fleet.send(event)
        await wait_until(lambda: bool(stuck.reached_keys))
        await fleet.restart()
        folder = tmp_path / "looked-at"
        shutil.copytree(fleet.policies, folder)
        limits = folder / "limits" / "data.yaml"
        limits.write_text(limits.read_text() + "# looked at\n")
        await fleet.apply_policy(folder)
        await fleet.wait_until_idle()
        assert world.effects("wire.send") == 16
        assert state(fleet, event) == "done"


async def test_effects_of_a_key_are_performed_in_its_order(tmp_path: Path, world: World) -> None:
    async with toy_fleet(tmp_path, world) as fleet:
        first = job("1", send_proposal("1x"), send_proposal("1y"), key="k")
        second = job("2", send_proposal("2"), key="k")
        await fleet.send(first, second)
        await fleet.wait_until_idle()
        assert world.texts("wire.send") == ["1x", "1y", "2"]


async def test_a_stopped_agent_takes_no_room_from_the_others(tmp_path: Path, world: World) -> None:
    async with toy_fleet(tmp_path, world, agents=("worker", "helper")) as fleet:
        fleet.app.dispatcher.buffer.memory.events = 20
        await fleet.app.commands.stop(fleet.order(), agent="worker")
        stopped = [job(str(n), send_proposal(str(n)), key=f"k{n}") for n in range(40)]
        for event in stopped:
            await fleet.send(event)
        await fleet.send(job("h", send_proposal("other"), agent="helper"))
        await fleet.wait_until_idle()
        assert world.texts() == ["other"]
        await fleet.app.commands.resume(fleet.order(), agent="worker")
        await fleet.wait_until_idle()
        assert sorted(world.texts(), key=str) == sorted(["other", *(str(n) for n in range(40))])


async def test_a_memory_for_no_bank_is_refused_and_ends_nothing(
    tmp_path: Path, world: World
) -> None:
    fleet = toy_fleet(tmp_path, world)
    script = ScriptedReasoner([ReasonerJudgement(candidates=(Candidate("nobank", "s", "text"),))])
    fleet._reasoners = {"judge": script}
    async with fleet:
        event = job("1")
        await fleet.send(event)
        await fleet.wait_until_idle()
        assert state(fleet, event) == "done"
        assert len(fleet.entries("action.refused")) == 1
        await fleet.restart()


async def test_a_row_with_no_canonical_form_locks_no_key(tmp_path: Path, world: World) -> None:
    """Many events of one key are on their way when one of them turns out to be unwritable."""
    clock = ManualClock()
    async with toy_fleet(tmp_path, world, clock=clock) as fleet:
        # Most propose nothing, so that they are judged ahead of the few that write.
        events = [
            job(str(n), *([note_proposal(f"n{n}")] if n % 10 == 3 else []), key="k", value=n)
            for n in range(60)
        ]
        store = fleet.app.store
        sending = store.steps.send
        broken: list[str] = []

        def once(step: Step) -> asyncio.Future[CommitResult]:
            if step.rows and len(broken) < 3 and step.expected_steps == 0:
                broken.append(str(step.run))
                step.drafts.append(UNWRITABLE)
            return sending(step)

        store.steps.send = once  # type: ignore[method-assign]
        for event in events:
            await fleet.send(event)
        for _ in range(20):
            await fleet.wait_until_idle()
            clock.advance(SECOND)
            if all(state(fleet, event) in ("done", "dead") for event in events):
                break
        states = [state(fleet, event) for event in events]
        # One that was fenced before it was written has a second, good step.
        assert 1 <= states.count("dead") <= 3
        assert states.count("done") == 60 - states.count("dead")


async def test_a_budget_day_is_not_given_back_to_the_next(tmp_path: Path) -> None:
    from vedette.domain.budget import DAY_US
    from vedette.domain.spend import SpendCounters

    counts = SpendCounters()
    midnight = 20_000 * DAY_US
    counts.add("a", "model_calls", midnight - 1, 2)
    counts.add("a", "model_calls", midnight + 1, 5)
    counts.refund("a", "model_calls", midnight - 1, 2)
    assert counts.totals("a", "model_calls", midnight + 2)["day"] == 5


@pytest.mark.parametrize("at", ["/to", "/to/0", "/to/deep/1"])
def test_what_was_drawn_from_a_promoted_memory_is_not_trusted_as_it_once_was(at: str) -> None:
    from vedette.domain.memory import reviewed_citation_ids
    from vedette.domain.origin_check import recompute_origins
    from vedette.domain.run import Superseded

    args: dict[str, Any] = {"/to": "x", "/to/0": ["x"], "/to/deep/1": {"deep": ["y", "x"]}}
    whole = {"/to": "trusted"} if at != "/to" else {}
    record = {
        "args": {"to": args[at]},
        "origins": {**whole, at: "trusted"},
        "sources": {at: "/memory/cnd_1/label"},
    }
    cited = [("inbox/cnd_1@0", "learned"), ("inbox/other@3", "reviewed")]
    with pytest.raises(Superseded, match="nobody reviewed it"):
        recompute_origins(record, {}, {}, reviewed_citation_ids(cited))
    cited = [("inbox/cnd_1@0", "reviewed")]
    assert recompute_origins(record, {}, {}, reviewed_citation_ids(cited)) == record["origins"]
    # What was not trusted when it was decided is what it was.
    record["origins"] = {**whole, at: "untrusted"}
    assert recompute_origins(record, {}, {}, ()) == record["origins"]


async def test_a_changed_registry_reaches_what_was_queued_under_the_old_one(
    tmp_path: Path,
) -> None:
    from vedette.domain.origin_check import recompute_origins
    from vedette.domain.run import Superseded

    record = {
        "args": {"to": "alice@old.example", "text": "known"},
        "origins": {"/to": "trusted", "/text": "registered"},
        "sources": {"/to": "/registry/contacts/alice"},
    }
    old = {"contacts": {"alice": "alice@old.example"}}
    new = {"contacts": {"alice": "alice@new.example"}}
    assert recompute_origins(record, {"note": "known"}, old) == record["origins"]
    assert recompute_origins(record, {}, old)["/text"] == "derived"
    with pytest.raises(Superseded, match="something else"):
        recompute_origins(record, {"note": "known"}, new)
    with pytest.raises(Superseded, match="no longer there"):
        recompute_origins(record, {"note": "known"}, {})

"""A recorded event is tried with what its judge and its row were then, not with what is now."""

from __future__ import annotations

from pathlib import Path

import orjson
from tests.judge_turns import reader_fleet, row_texts, turns_job, turns_of

from vedette.app.dry_run import DryRun, PriorState, load_prior_state
from vedette.config.agent_loader import build_judge
from vedette.memory.retrieval import Recall
from vedette.policy.gateway import Gateway
from vedette.store.banks import SqliteBank
from vedette.testing.harness import FleetHarness
from vedette.testing.toy_fleet import World, job, note_proposal, send_proposal, toy_fleet


def trial(fleet: FleetHarness) -> DryRun:
    line = fleet.app.services
    agent = line.fleet.agents["worker"]
    gateway = Gateway(line.gateway.engine, line.gateway.policy_rev)
    return DryRun(
        agent, line.fleet, lambda: build_judge(agent, []), gateway,
        Recall(SqliteBank(":memory:"), gateway), {}, line.targets, line.clock.now_us(), (),
    )  # fmt: skip


async def test_state_and_row_are_as_they_were_before_the_event(tmp_path: Path) -> None:
    world = World()
    jobs = [
        job(str(n), note_proposal(f"text {n}"), send_proposal(f"go {n}"), value=10**n)
        for n in range(5)
    ]
    async with toy_fleet(tmp_path, world) as fleet:
        await fleet.send(*jobs)
        await fleet.wait_until_idle()
        called, entries = len(world.calls), fleet.app.store.ledger.last_seq()
        on = trial(fleet)
        for at, one in enumerate(jobs):
            run = fleet.runs(one)[0]
            was = load_prior_state(fleet.app.store, on.agent, "k", run.position)
            answer = on.run(one, was)
            recorded = fleet.app.store.runs.turns(run.id)[0]
            assert answer["label"] == recorded["label"] == f"sum {'1' * (at + 1)} of {at + 1}"
            assert was.row.get("texts", []) == [f"text {n}" for n in range(at)]
            assert [(a["tool"], a["outcome"]) for a in answer["actions"]] == [
                ("note.add", "permit"), ("wire.send", "permit"),
            ]  # fmt: skip
        now = load_prior_state(fleet.app.store, on.agent, "k", None)
        assert on.run(job("new", value=5), now)["label"] == "sum 11116 of 6"
        assert now.row["texts"] == [f"text {n}" for n in range(5)]
        # The control: without what is on record it is judged otherwise.
        assert on.run(jobs[4], PriorState())["label"] == "sum 10000 of 1"
        assert (len(world.calls), fleet.app.store.ledger.last_seq()) == (called, entries)


async def test_a_row_that_an_earlier_event_wrote_later_is_not_of_before(tmp_path: Path) -> None:
    """Its run waited for a person meanwhile."""
    late = turns_job("late", [send_proposal("a", "big.send")], [note_proposal("late")])
    quick = [turns_job(name, [note_proposal(name)]) for name in ("first", "second", "third")]
    async with reader_fleet(tmp_path, World()) as fleet:
        for event in (quick[0], late, *quick[1:]):
            await fleet.send(event)
            await fleet.wait_until_idle()
        await fleet.approve(fleet.actions(late)[0])
        await fleet.wait_until_idle()
        agent = fleet.app.services.fleet.agents["worker"]
        assert row_texts(fleet) == ["first", "second", "third", "late"]
        for event in (*quick, late):
            (run,) = fleet.runs(event)
            was = load_prior_state(fleet.app.store, agent, "k", run.position)
            assert was.row == turns_of(fleet, event)[0]["detail"]["row"]
            assert "row as it is now" not in was.description


async def test_what_is_stopped_waits_and_what_is_no_action_is_told(tmp_path: Path) -> None:
    from msgspec.structs import replace

    async with toy_fleet(tmp_path, World()) as fleet:
        on = replace(trial(fleet), stopped=frozenset({"wire.send"}))
        answer = on.run(job("1", send_proposal(), {"tool": "no.such", "args": {}}), PriorState())
        assert [(a["outcome"], a["wait"], a["rule"]) for a in answer["actions"]] == [
            ("hold", "resume", "stopped")
        ]
        assert answer["refused"] == ["no.such: the agent declares no tool 'no.such'"]
        assert answer["actions"][0]["touches"] == "world (world)"
        assert orjson.loads(orjson.dumps(answer)) == answer

"""A recorded event is tried with what its judge and its row were then, not with what is now."""

from __future__ import annotations

from pathlib import Path

import orjson

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

"""Promise 1: no effect without a permit; with a control that shows the test can fail."""

from __future__ import annotations

from pathlib import Path

import orjson
import pytest
from tests.acceptance.promises.common import MIXED, SECOND, approve

from vedette.domain.effect import Call
from vedette.domain.run import Step
from vedette.store.sqlite import SqliteReader
from vedette.testing.harness import FleetHarness
from vedette.testing.toy_fleet import (
    World,
    deny_policy,
    intercept_commits,
    job,
    note_proposal,
    send_proposal,
    toy_fleet,
)


def durable_permit(folder: Path, key: str) -> bool:
    """Say whether another opener of the store's file sees the permit of an effect."""
    store = SqliteReader(folder / "state")
    try:
        document = [orjson.loads(raw) for _, raw, _ in store.ledger.entries("action", f"act_{key}")]
    finally:
        store.close()
    decided = [entry["outcome"] for entry in document if entry["kind"] == "action.decided"]
    return decided[-1:] == ["permit"]


def watching(fleet: FleetHarness, world: World) -> list[str]:
    """Look for the durable permit at the moment of every call; return the calls without one."""
    without: list[str] = []

    def answer(call: Call) -> None:
        if not durable_permit(fleet.folder, call.key):
            without.append(call.tool)

    world.answer = answer
    return without


async def test_promise_01_no_effect_without_a_permit(tmp_path: Path, world: World) -> None:
    async with toy_fleet(tmp_path, world) as fleet:
        without = watching(fleet, world)
        events = [job(str(n), *MIXED, key=f"k{n % 3}") for n in range(12)]
        await fleet.send(*events)
        await fleet.wait_until_idle()
        await approve(fleet, fleet.actions(events[0])[3])
        await fleet.wait_until_idle()
        assert world.effects() == 12 * 3 + 1
        assert without == []
        # What was not permitted has no effect, in our record and in the target's own.
        for event in events:
            for row in fleet.actions(event):
                done = row.effect == "done"
                assert done == (row.decided == "permit")
                if row.tool != "note.add":
                    assert done == (world.keys()[row.id.removeprefix("act_")] == 1)
        # A row is written in the very commit that holds its decision: they share a checkpoint.
        heads = [int(line.split("\n")[1]) for line in fleet.app.store.ledger.checkpoints()]
        for entry in fleet.entries("effect.done"):
            if entry["tool"] == "note.add":
                assert not [head for head in heads if entry["cause"] <= head < entry["seq"]]


@pytest.mark.parametrize("mode", ["observe", "ask"])
async def test_promise_01_what_is_not_permitted_leaves_no_row_of_ours_either(
    tmp_path: Path, world: World, mode: str
) -> None:
    """In observe and in ask, calls and the fleet's own rows alike; after the approval, both."""
    async with toy_fleet(tmp_path, world, mode=mode) as fleet:
        event = job("1", send_proposal("a"), note_proposal("a"))
        await fleet.send(event)
        await fleet.wait_until_idle()
        decided = {"observe": "deny", "ask": "hold"}[mode]
        assert [row.decided for row in fleet.actions(event)] == [decided, decided]
        assert world.calls == []
        assert fleet.app.store.runs.row("worker_notes", "k") is None
        if mode == "ask":
            for row in fleet.actions(event):
                await approve(fleet, row)
            await fleet.wait_until_idle()
            assert world.effects() == 1
            assert fleet.app.store.runs.row("worker_notes", "k") == {"texts": ["a"]}


async def test_promise_01_a_denied_row_is_not_written(tmp_path: Path, world: World) -> None:
    async with toy_fleet(tmp_path, world, extra=deny_policy("note.add")) as fleet:
        event = job("1", send_proposal("a"), note_proposal("a"))
        await fleet.send(event)
        await fleet.wait_until_idle()
        assert [row.decided for row in fleet.actions(event)] == ["permit", "deny"]
        assert fleet.app.store.runs.row("worker_notes", "k") is None


async def test_promise_01_control_a_call_before_the_commit_is_seen(
    tmp_path: Path, world: World
) -> None:
    async with toy_fleet(tmp_path, world) as fleet:
        without = watching(fleet, world)
        line = fleet.app.services

        async def too_early(step: Step) -> Step | None:
            for row in step.actions:
                if row.effect == "intended":
                    tool = line.fleet.agent(row.agent).tools[row.tool]
                    args = orjson.loads(row.record)["args"]
                    key = row.id.removeprefix("act_")
                    target = line.targets["world"]
                    call = Call(row.tool, args, key, row.agent, row.run, target, (), 1, SECOND)
                    await line.tool_executor.perform(tool, call, lambda: True)
            return None

        intercept_commits(fleet, too_early)
        await fleet.send(job("1", send_proposal("a")))
        await fleet.wait_until_idle()
        assert without == ["wire.send"]

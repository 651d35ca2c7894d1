"""A person takes over a cascade's task from a model that is away."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.cascades import AwayModel, let_pass, takeover
from tests.contract.engine.test_tasks import DONE_YAML

from vedette.testing.toy_fleet import World, drop_bars, job, send_proposal


@pytest.mark.parametrize("restart", [False, True])
async def test_a_person_takes_over_a_task(tmp_path: Path, restart: bool) -> None:
    world = World()
    fleet, clock = takeover(
        tmp_path, world, AwayModel(), extra=drop_bars("worker"), work="{}", done=DONE_YAML
    )
    page = fleet.content / "agents/worker/agent.yaml"
    text = page.read_text()
    assert "{on: worker.job}" in text
    page.write_text(text.replace("{on: worker.job}", "{on: worker.job, goal: do it}"))
    event = job("1", send_proposal(), confidence=0.85)
    async with fleet:
        await fleet.send(event)
        await fleet.wait_until_idle()
        await let_pass(fleet, clock, 1500)
        if restart:
            await fleet.restart()
        await fleet.wait_until_idle()
        await let_pass(fleet, clock, 600)
        (row,) = fleet.actions(event)
        assert (row.decided, row.waits) == ("hold", "approval")
        assert fleet.entries("run.dead") == []
        (run,) = fleet.runs(event)
        # The turn says what a task's turn says, so that the next is told of it.
        first, second = fleet.app.store.runs.turns(run.id)
        assert first["task"]["goal"] == "do it"
        assert [one["name"] for one in second["task"]["conditions"]] == ["sent"]
        await fleet.approve(row)
        await fleet.wait_until_idle()
        assert len(world.texts()) == 1
        assert fleet.entries("run.dead") == []

"""A short trial in the gate: that the harness works, and that its model can find something.

`make jepsen` is the trial that counts: minutes long, on both stores.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.jepsen.schedule import draw_schedule
from tests.jepsen.trial import Trial
from tests.simulation.history import NEVER
from tests.simulation.model import judge


def test_a_schedule_is_the_seed_s() -> None:
    one = draw_schedule(7, 600, workers=3)
    assert one == draw_schedule(7, 600, workers=3)
    assert one != draw_schedule(8, 600, workers=3)
    assert {each.what for each in one} >= {"kill", "freeze", "stall", "shutdown", "stop", "publish"}
    assert all(each.at_s + each.for_s < 600 for each in one)
    alone = {each.what for each in draw_schedule(7, 600, workers=1)}
    assert not alone & {"stall", "drop", "slow", "shutdown"}


@pytest.mark.slow
@pytest.mark.timeout(180)
async def test_a_short_trial_on_sqlite_breaks_no_promise(tmp_path: Path) -> None:
    """Ten seconds; seed 76 kills and freezes it while targets are late and an agent is stopped."""
    trial = Trial(tmp_path, 76, 10.0, store="sqlite", rate=10.0, told=lambda text: None)
    seen = await trial.run()
    history = seen.history
    assert not judge(history), judge(history)[:10]
    assert {"kill", "stop"} <= {fault.what for fault in history.faults}
    assert len(history.events) > 15
    assert sum(act.what == "done" for act in history.acts) > 5
    assert seen.live_after_s < 60
    # The control: one event that nobody handled, and one effect that happened once more.
    history.events[0].ref = "evt_nobody"
    done = [act for act in history.acts if act.what == "done"]
    history.acts.append(done[-1])
    assert {one.kind for one in judge(history)} >= {"lost", "doubled"}
    assert history.events[0].told_s < NEVER

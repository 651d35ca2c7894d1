"""A task on two workers, each killed in it: a small form of `make long-task-kills`."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.faults.long_task import play, report
from tests.pg import server


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_task_on_two_workers_that_are_killed_ends_by_its_conditions(tmp_path: Path) -> None:
    found = play(tmp_path, server().fresh(), turns=60, kills=3, seed=16, tell=print)
    print(report(found))
    assert found.wrong == []
    assert len(found.kills) == 3
    assert found.turns >= 61
    assert found.hand_offs

"""`vedette work`: tasks given and looked at by people, with no fleet running and with one."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from vedette.testing.harness import FleetHarness, copy_policies
from vedette.testing.toy_fleet import GRANTS, WORK_GRANTS, World, write_agent

_START = [sys.executable, "-c", "from vedette.interfaces.cli import main; main()"]

pytestmark = pytest.mark.slow

JUDGE = """\
from vedette.judging import Judge as Base
from vedette.judging import Judgement, Proposal


class Judge(Base):
    def judge(self, seen, briefing):
        done = Proposal("task.finish", {"summary": "as asked"})
        if briefing.turn == 1:
            one = Proposal("item.add", {"id": "a", "title": "the letter"})
            return Judgement(label="at work", confidence=1.0, proposals=(one, done))
        if briefing.task["items"].get("current"):
            closed = Proposal("item.close", {"id": "a", "state": "done", "why": "read"})
            return Judgement(label="at work", confidence=1.0, proposals=(closed,))
        return Judgement(label="at work", confidence=1.0, proposals=(done,))

    def judge_outcomes(self, briefing):
        return self.judge(None, briefing)
"""
DONE = "conditions:\n  - {name: list, items: closed, at_least: 1}\n"


def vedette(fleet: Path, *words: str, code: int = 0) -> Any:
    done = subprocess.run(
        [*_START, *words, "--json"], cwd=fleet, capture_output=True, text=True, check=False
    )
    assert done.returncode == code, done.stderr
    return json.loads(done.stdout if code == 0 else done.stderr)


@pytest.fixture
def fleet(tmp_path: Path) -> Path:
    folder = tmp_path / "fleet"
    write_agent(
        folder / "agents", "worker", reasoner="judge", max_turns=1, calls=0, work="{no_progress: 3}"
    )
    (folder / "agents/worker/judge.py").write_text(JUDGE)
    (folder / "memory").mkdir()
    copy_policies(
        folder / "policies",
        {"grants/data.yaml": GRANTS.format(name="worker", mode="act") + WORK_GRANTS},
    )
    (folder / "vedette.toml").write_text(
        'fleet = "harbour"\n[targets.world]\nkind = "webhook"\nurl = "http://127.0.0.1:9/hook"\n'
    )
    (folder / "done.yaml").write_text(DONE)
    return folder


def test_a_task_is_given_looked_at_and_steered_with_no_fleet_running(fleet: Path) -> None:
    given = [
        *("work", "start", "worker", "--goal", "Read\nthe letter", "--input", "number=7"),
        *("--input", "who=ada", "--done", "done.yaml", "--deadline", "3d"),
        *("--reason", "it came", "--command-id", "one"),
    ]
    run = vedette(fleet, *given)["run"]
    assert vedette(fleet, *given)["already_done"]
    (line,) = vedette(fleet, "work", "list")["items"]
    assert (line["run"], line["state"], line["waits"]) == (run, "ready", None)
    vedette(fleet, "work", "steer", run, "--note", "begin with the end", "--reason", "faster")
    shown = vedette(fleet, "work", "show", run)
    assert shown["goal"] == "Read\nthe letter"
    assert shown["inputs"] == {"number": 7, "who": "ada"}
    assert [(one["kind"], one["why"]) for one in shown["said"]] == [
        ("task.steered", "begin with the end")
    ]
    told = vedette(fleet, "work", "start", "nobody", "--goal", "x", "--reason", "y", code=2)
    assert "no agent 'nobody'" in told["error"]["what"]
    vedette(fleet, "verify")


async def test_a_running_fleet_works_on_it_to_its_end(fleet: Path, tmp_path: Path) -> None:
    given = ("work", "start", "worker", "--goal", "Read", "--done", "done.yaml", "--reason", "r")
    run = vedette(fleet, *given)["run"]
    state = fleet / ".vedette"
    harness = FleetHarness(
        tmp_path, content=fleet, policies=fleet / "policies",
        targets={"world": {"kind": "world", "world": World()}},
    )  # fmt: skip
    state.rename(tmp_path / "state")
    async with harness:
        await harness.wait_until_idle()
        found = harness.app.store.runs.run(run)
        assert found is not None
        assert (found.state, found.turn) == ("done", 3)
    (tmp_path / "state").rename(state)
    assert vedette(fleet, "work", "list")["items"] == []
    (line,) = vedette(fleet, "work", "list", "--all")["items"]
    assert line["items"] == {"of": 1, "done": 1}
    shown = vedette(fleet, "work", "show", run)
    assert [one["held"] for one in shown["conditions"]] == [True]
    vedette(fleet, "verify")

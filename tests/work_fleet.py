"""A fleet whose agent takes tasks and whose judge does them, as people lay one out in a folder."""

from __future__ import annotations

from pathlib import Path

from vedette.testing.harness import copy_policies
from vedette.testing.toy_fleet import GRANTS, WORK_GRANTS, write_agent

JUDGE = """\
from vedette.judging import Judge as Base
from vedette.judging import Judgement, Proposal


def propose(tool, **args):
    return Judgement("at work", 1.0, proposals=(Proposal(tool, args),), final=False)


class Judge(Base):
    def judge(self, seen, briefing):
        done = Proposal("task.finish", {"summary": "as asked"})
        one = Proposal("item.add", {"id": "a", "title": "the letter"})
        return Judgement("at work", 1.0, proposals=(one, done), final=False)

    def judge_outcomes(self, briefing):
        if briefing.task["items"].get("current"):
            return propose("item.close", id="a", state="done", why="read")
        return propose("task.finish", summary="as asked")
"""
DONE = "conditions:\n  - {name: list, items: closed, at_least: 1}\n"


def write_work_fleet(folder: Path) -> Path:
    """Write the fleet, with the conditions of a task in `done.yaml` beside; return its folder."""
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

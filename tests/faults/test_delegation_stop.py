"""A stop of an agent above, in a fleet as `vedette run` starts it, reaches the leaf of a tree."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest
from tests.bench.start import noted, running, until
from tests.bench.start_fleet import TOOLS

from vedette.domain.work_tools import ASK_TOOLS, WORK_TOOLS
from vedette.interfaces.http.local_client import LocalClient
from vedette.testing.harness import copy_policies

pytestmark = pytest.mark.slow

TREE = {"chief": "clerk", "clerk": "intern", "intern": ""}
AGENT = """\
version: 1
name: {name}
title: Has its part done, or does it
owner: desk@example.org
mode: act
triggers: [{{on: {name}.asked}}]
charter: {{lamps: [north, south]}}
work: {{no_progress: 1000{asks}}}
budget: {{actions_per_run: 1000}}
tools:
  - {{name: lamp.light, verb: light, resource: lamp, args: {{lamp: string}}, sinks: [/lamp],
     settles: idempotent, function: light, target: record}}
"""
JUDGE = """\
from vedette.judging import Judge as Base
from vedette.judging import Judgement, Proposal, Ref

ASKED = {asked!r}


def propose(turn):
    if not ASKED:
        return Proposal("lamp.light", {{"lamp": Ref("/charter/lamps/0")}})
    if turn > 1:
        return Proposal("task.finish", {{"summary": "done"}})
    given = {{"agent": ASKED, "goal": "Light it.", "budget": {{"actions": {room}}}}}
    return Proposal("agent.ask", given)


class Judge(Base):
    def judge(self, seen, briefing):
        return Judgement("at work", 1.0, (propose(briefing.turn),), final=False)

    def judge_outcomes(self, briefing):
        return Judgement("at work", 1.0, (propose(briefing.turn),), final=False)
"""


def write_tree(folder: Path) -> Path:
    """Write the fleet; return what its target writes of each call."""
    own = {**WORK_TOOLS, **ASK_TOOLS}.values()
    grants = ""
    for at, (name, asked) in enumerate(TREE.items()):
        agent = folder / "agents" / name
        agent.mkdir(parents=True)
        asks = f", asks: [{asked}]" if asked else ""
        (agent / "agent.yaml").write_text(AGENT.format(name=name, asks=asks))
        (agent / "instruction.md").write_text("Have it lit.\n")
        (agent / "judge.py").write_text(JUDGE.format(asked=asked, room=900 - at))
        (agent / "tools.py").write_text(TOOLS)
        (agent / "__init__.py").touch()
        grants += f"{name}:\n  mode: act\n  inward: [lamp.light]\n  tools:\n"
        grants += "    lamp.light: {verb: light, resource: lamp, impact: low}\n"
        grants += "".join(
            f"    {one.name}: {{verb: {one.verb}, resource: {one.resource}, impact: low}}\n"
            for one in own
        )
    (folder / "memory").mkdir()
    copy_policies(folder / "policies", {"grants/data.yaml": grants})
    limits = folder / "policies" / "limits" / "data.yaml"
    few = "{minute: 600, hour: 6000, day: 50000}"
    text = limits.read_text()
    assert few in text
    limits.write_text(text.replace(few, "{minute: 60000, hour: 60000, day: 60000}"))
    (folder / "target").mkdir()
    record = folder / "target" / "calls.log"
    (folder / "vedette.toml").write_text(
        f'fleet = "tree"\nstate = "state"\n[targets.record]\nkind = "record"\n'
        f"path = {json.dumps(str(record))}\n"
    )
    return record


def test_the_leaf_stops_within_a_second(tmp_path: Path) -> None:
    record, client = write_tree(tmp_path), LocalClient(tmp_path / "state")
    with running(tmp_path / "vedette.toml") as (process, _):
        until(client.is_alive, process)
        client.send_command("work_start", "a test", {"agent": "chief", "goal": "Light it."})
        until(lambda: len(noted(record)) > 5, process)
        for scope in ({"agent": "chief"}, {"all": True}, {"agent": "clerk"}):
            began, before = time.time(), len(noted(record))
            client.send_command("stop", "a test", scope)
            answered = time.time()
            time.sleep(0.7)
            after = noted(record)
            # The control: it was at work, and goes on below.
            assert before > 5
            assert [at for at in after if at > answered] == [], scope
            assert max(after) - began < 1.0
            assert answered - began < 1.0
            client.send_command("resume", "a test", scope)
            until(lambda: len(noted(record)) > len(after) + 3, process)  # noqa: B023

"""Cases of an agent that takes tasks: tried to their end on the engine's line, and scored."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace
from tests.model_server import KEY
from tests.model_trials import DESK, Fleet
from tests.work_fleet import write_work_fleet

from vedette.app.trial import run_cases
from vedette.config.fleet import load_fleet
from vedette.config.settings import Isolation, Settings
from vedette.domain.base.clock import SystemClock
from vedette.domain.base.errors import BadFleet
from vedette.interfaces.cli.check import _case_lines
from vedette.operations.eval_cases import read_evals
from vedette.operations.evaluation import EvalResult
from vedette.testing.harness import TrustingStage
from vedette.testing.model_server import FunctionCall, ModelServer, Request, Turn
from vedette.testing.toy_fleet import GRANTS, WORK_GRANTS

# Adds two items, claims too early to be done, sends for the first and closes both.
JUDGE = """\
from vedette.judging import Judge as Base
from vedette.judging import Judgement, Proposal, Ref


def said(*proposals):
    return Judgement("at work", 1.0, proposals=proposals, final=False)


def finish():
    return Proposal("task.finish", {"summary": "as asked"})


class Judge(Base):
    def judge(self, seen, briefing):
        items = [Proposal("item.add", {"id": at, "title": at}) for at in ("a", "b")]
        return said(*items, finish())

    def judge_outcomes(self, briefing):
        current = briefing.task["items"].get("current")
        if not current:
            return said(finish())
        tries = sum(one["tool"] == "wire.send" for turn in briefing.turns
                    for one in turn["answers"])
        if current["id"] == "a" and tries < 2:
            return said(Proposal("wire.send", {"to": Ref("/charter/desk"), "text": str(tries)}))
        state = "done" if current["id"] == "a" else "set_aside"
        return said(Proposal("item.close", {"id": current["id"], "state": state, "why": "w"}))
"""
CASES = """\
- name: a list is worked off
  task:
    goal: Bring the letters away
    inputs: {{who: ada}}
    conditions: [{{name: sent, action: wire.send, at_least: {most}}}]
  outcomes: {{wire.send: {{data: {{text: sent}}}}}}
  expect: {expect}
"""
TARGETS = {"world": {"kind": "webhook", "url": "http://127.0.0.1:9/hook"}}
ALL = (
    "{conditions: [list, sent], credit_milli: 750, turns: 6, denied: [task.finish], permitted: "
    "[item.add, item.add, wire.send, wire.send, item.close, item.close, task.finish]}"
)


@pytest.fixture(autouse=True)
def stage(monkeypatch: pytest.MonkeyPatch) -> None:
    """The toy fleet's policies have no tests of their own, which the real stage asks for."""
    monkeypatch.setattr("vedette.app.trial.SubprocessStage", TrustingStage)


def try_case(folder: Path, expect: str, most: int = 2, case: str = "") -> EvalResult:
    fleet = write_work_fleet(folder / "fleet")
    worker = fleet / "agents/worker"
    (worker / "judge.py").write_text(JUDGE)
    (worker / "done.yaml").write_text("version: 1\n" + (fleet / "done.yaml").read_text())
    (worker / "evals").mkdir()
    text = case or CASES.format(expect=expect, most=most)
    (worker / "evals/work.yaml").write_text(text, encoding="utf-8")
    settings = replace(
        Settings.of(fleet, "harbour"), state=folder / "state", isolation=Isolation(False),
        targets=TARGETS,
    )  # fmt: skip
    now_us = SystemClock().now_us()
    loaded = load_fleet(settings.root, settings, now_us=now_us)
    (result,), skipped = run_cases(settings, loaded, [*loaded.fleet.agents.values()], now_us)
    assert skipped == []
    return result


def test_a_task_is_tried_to_its_end_and_scored(tmp_path: Path) -> None:
    result = try_case(tmp_path, ALL)
    assert result.differences == ()
    # Golden: what `check cases --json` says of it.
    golden: dict[str, Any] = {
        "state": "done",
        "items": {"done": 1, "of": 2},
        "conditions": {"met": 2, "of": 2},
        "phases": {},
        "credit_milli": 750,
        "met": ["sent", "list"],
        "turns": 6,
        "repeated": 0,
        "refused": {"task.unmet": 1},
        "recovered": {"items": 0, "effects": 0},
        "spend": {},
    }
    assert result.to_json()["task"] == golden
    lines = " ".join(" ".join(_case_lines(result)).split())
    assert "task done: credit 75 %, items 1 of 2, conditions 2 of 2; 6 turns, 1 refused" in lines


def test_a_task_that_cannot_be_done_has_partial_credit_and_waits_for_a_person(
    tmp_path: Path,
) -> None:
    result = try_case(tmp_path, "{conditions: [list], credit_milli: 500}", most=3)
    assert result.differences == ()
    assert result.task is not None
    assert result.task.state == "open"
    assert (result.task.credit["credit_milli"], result.task.met) == (500, ["list"])
    assert result.task.refused["task.unmet"] >= 2
    assert result.ended == "waits for a person's word"


def test_what_falls_short_is_said(tmp_path: Path) -> None:
    result = try_case(tmp_path, "{conditions: [list], credit_milli: 900, turns: 3}")
    assert result.differences == (
        "conditions met: expected list, found list, sent",
        "credit_milli: expected 900 at least, found 750",
        "turns: expected 3 at most, found 6",
    )


MODEL_CASE = """\
- name: two letters go out
  task: {goal: Send two letters, conditions: [{name: sent, action: wire.send, at_least: 2}]}
  outcomes: {wire.send: {data: {id: "7"}}}
  expect: {conditions: [sent], credit_milli: 1000, turns: 4, denied: [task.finish]}
"""


def write_letters(request: Request) -> Turn:
    """Send one, claim to be done, send the other, and be done."""
    send = [FunctionCall("wire_send", {"to": DESK, "text": f"letter {at}"}) for at in (1, 2)]
    done = FunctionCall("task_finish", {"summary": "both are sent"})
    script = {0: (send[0],), 1: (done,), 2: (send[1],)}
    return Turn(script.get(request.turn, (done,)))


def test_a_models_task_is_scored_from_its_recording(tmp_path: Path) -> None:
    with ModelServer(write_letters, keys=(KEY,)) as server:
        fleet = Fleet(tmp_path, server)
        fleet.edit("agent.yaml", "mode: act", "work: {}\nmode: act")
        grants = GRANTS.format(name="worker", mode="act") + WORK_GRANTS
        (fleet.content / "policies/grants/data.yaml").write_text(grants)
        (fleet.agent / "evals/cases.yaml").write_text(MODEL_CASE)
        asked = fleet.cases(live=True, record=True)
        assert asked.differences == ()
        count = len(server.requests)
        replayed = fleet.cases()
        assert len(server.requests) == count, "nobody is asked"
    for one in (asked, replayed):
        assert one.differences == ()
        assert one.task is not None
        assert one.task.to_json() == {
            "state": "done",
            "items": {"done": 0, "of": 0},
            "conditions": {"met": 1, "of": 1},
            "phases": {},
            "credit_milli": 1000,
            "met": ["sent"],
            "turns": 4,
            "repeated": 0,
            "refused": {"task.unmet": 1},
            "recovered": {"items": 0, "effects": 0},
            "spend": one.task.spend,
        }
        assert one.task.spend["model_calls"] == 4
    assert asked.usage is not None
    assert replayed.usage is not None
    assert replayed.usage.cost_micros == asked.usage.cost_micros


@pytest.mark.parametrize(
    ("more", "what"),
    [
        ("  task: {goal: x}\n  expect: {credit_milli: 1}\n", "the agent takes no tasks"),
        ("  task: {goal: x, conditions: [{name: a}]}\n  expect: {}\n", "evals/work.yaml:2"),
        ("  task: {goal: x}\n  event: {type: a, source: b, id: c}\n  expect: {}\n", "exactly one"),
    ],
)
def test_a_wrong_case_is_refused_by_line(tmp_path: Path, more: str, what: str) -> None:
    if "no tasks" not in what:
        with pytest.raises(BadFleet) as found:
            try_case(tmp_path, "", case=f"- name: it\n{more}")
        assert what in f"{found.value} {found.value.where}"
        return
    fleet = write_work_fleet(tmp_path / "fleet")
    page = fleet / "agents/worker/agent.yaml"
    page.write_text(page.read_text().replace("work: {no_progress: 3}\n", ""))
    (fleet / "agents/worker/evals").mkdir()
    (fleet / "agents/worker/evals/work.yaml").write_text(f"- name: it\n{more}")
    settings = replace(Settings.of(fleet, "harbour"), targets=TARGETS)
    loaded = load_fleet(settings.root, settings, now_us=SystemClock().now_us())
    _, problems = read_evals(loaded.fleet.agents["worker"], "agents/worker")
    assert [one.what for one in problems] == [what, what]

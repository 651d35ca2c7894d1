"""A judge with several turns is tried on the engine's line: its own cases, and one event."""

from __future__ import annotations

import asyncio
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace
from tests.judge_turns import look, reader_fleet, reading, row_texts, turns_job

from vedette.app.dry_run import PriorState, load_prior_state
from vedette.app.judge_dry_run import try_judge_event
from vedette.app.stores import store_reader
from vedette.app.trial import open_dry_run, run_cases
from vedette.config.fleet import load_fleet
from vedette.config.settings import Isolation, Settings
from vedette.domain.base.clock import SystemClock
from vedette.domain.base.errors import TurnLimit
from vedette.domain.event import ENVELOPE, Event
from vedette.interfaces.cli.dry_run import _turns_lines
from vedette.operations.eval_cases import read_evals
from vedette.operations.evaluation import EvalResult
from vedette.testing.harness import FleetHarness, TrustingStage
from vedette.testing.toy_fleet import World, note_proposal, send_proposal

CASE = """\
- name: pages are read, and what they say is noted
  events:
  - {{type: worker.job, source: test, id: e1, subject: k, data: {{turns: [
      [{{tool: book.look, args: {{name: "1"}}}}], [{{tool: book.look, args: {{name: "2"}}}}],
      [{{tool: note.add, args: {{key: {{ref: /event/subject}}, text: $notes}}}}]]}}}}
  - {{type: worker.job, source: test, id: e2, subject: k, data: {{turns: [[]]}}}}
{more}  expect: {expect}
"""


@pytest.fixture(autouse=True)
def stage(monkeypatch: pytest.MonkeyPatch) -> None:
    """The toy fleet's policies have no tests of their own, which the real stage asks for."""
    monkeypatch.setattr("vedette.app.trial.SubprocessStage", TrustingStage)


def settings_of(fleet: FleetHarness) -> Settings:
    return replace(
        Settings.of(fleet.content, "harbour"),
        state=fleet.folder / "state", policies=fleet.policies, targets=dict(fleet.targets),
        isolation=Isolation(False),
    )  # fmt: skip


def run_case(fleet: FleetHarness, expect: str, more: str = "") -> EvalResult:
    folder = fleet.content / "agents/worker/evals"
    folder.mkdir()
    (folder / "cases.yaml").write_text(CASE.format(expect=expect, more=more), encoding="utf-8")
    settings, now_us = settings_of(fleet), SystemClock().now_us()
    loaded = load_fleet(settings.root, settings, now_us=now_us)
    (result,), skipped = run_cases(settings, loaded, [*loaded.fleet.agents.values()], now_us)
    assert skipped == []
    return result


def test_a_case_says_what_came_of_calls(tmp_path: Path) -> None:
    world = World()
    result = run_case(
        reader_fleet(tmp_path, world),
        '{label: "turn 1, seen 2", permitted: [book.look, book.look, note.add]}',
        "  outcomes: {book.look: {data: {text: a page}}}\n",
    )
    assert (result.differences, result.ended, result.usage) == ((), "done", None)
    assert not world.calls, "no tool is called"


def test_without_outcomes_a_run_ends_at_its_first_call(tmp_path: Path) -> None:
    fleet = reader_fleet(tmp_path, World())
    result = run_case(fleet, '{label: "turn 1, seen 2", permitted: [book.look]}')
    assert result.differences == ()


def test_what_is_not_as_expected_is_said(tmp_path: Path) -> None:
    fleet = reader_fleet(tmp_path, World())
    failed = "  outcomes: {book.look: {state: failed}}\n"
    result = run_case(fleet, "{permitted: [book.look]}", failed)
    assert result.differences == (
        "permitted: expected book.look, found book.look, book.look, note.add",
    )


def test_a_judge_that_has_one_turn_is_told_of_no_outcome(tmp_path: Path) -> None:
    fleet = reader_fleet(tmp_path, World(), max_turns=1)
    settings = settings_of(fleet)
    loaded = load_fleet(settings.root, settings, now_us=SystemClock().now_us())
    folder = fleet.content / "agents/worker/evals"
    folder.mkdir()
    text = CASE.format(expect="{}", more="  outcomes: {book.look: {data: {text: a page}}}\n")
    (folder / "cases.yaml").write_text(text, encoding="utf-8")
    _, (problem,) = read_evals(loaded.fleet.agents["worker"], "agents/worker")
    assert "has one turn" in problem.what
    assert problem.mend == "remove it, or write max_turns: in agent.yaml"


def test_a_judge_that_has_one_turn_and_wants_another_is_refused(tmp_path: Path) -> None:
    """Its run would be a dead letter; in a case, and where one event is tried."""
    fleet = reader_fleet(tmp_path, World(), max_turns=1)
    with pytest.raises(TurnLimit, match="its judge wanted another"):
        run_case(fleet, "{}")
    settings, now_us = settings_of(fleet), SystemClock().now_us()
    loaded = load_fleet(settings.root, settings, now_us=now_us)
    trial = open_dry_run(settings, loaded, loaded.fleet.agents["worker"], None, now_us)
    with pytest.raises(TurnLimit, match=r"write max_turns: 4 in worker/agent\.yaml"):
        trial.run(replace(reading("1"), vouched=ENVELOPE), PriorState())


# --- one event ------------------------------------------------------------------------------------


async def record(fleet: FleetHarness, event: Event) -> None:
    async with fleet:
        await fleet.send(turns_job("0", []), event, turns_job("9", [note_proposal("later")]))
        await fleet.wait_until_idle()


def attempt(fleet: FleetHarness, event: Event) -> dict[str, Any]:
    settings = settings_of(fleet)
    loaded = load_fleet(settings.root, settings, now_us=SystemClock().now_us())
    agent, event = loaded.fleet.agents["worker"], replace(event, vouched=ENVELOPE)
    with store_reader(settings) as store, ExitStack() as reading_store:
        reading_store.enter_context(store.snapshot())
        runs = store.runs.runs_of_event(event.key)
        position = runs[0].position if runs else None
        prior = load_prior_state(store, agent, agent.key_of(event), position)
        work = try_judge_event(
            settings, loaded, agent, event, prior, store, end_reading=reading_store.close
        )
        return asyncio.run(work)


def test_a_recorded_event_goes_on_by_what_came_of_its_calls(tmp_path: Path) -> None:
    world, event = World(), reading("1")
    fleet = reader_fleet(tmp_path, world)
    asyncio.run(record(fleet, event))
    calls = len(world.calls)
    found = attempt(fleet, event)
    assert (found["state_at_end"], len(world.calls)) == ("done", calls)
    labels = [turn["label"] for turn in found["turns"]]
    assert labels == [f"turn {at}, seen 2" for at in (1, 2, 3, 4)]
    assert found["turns"][1]["notes"]["told"] == [["book.look", "done", "page 1.1", "/outcome/0"]]
    assert found["turns"][1]["detail"] == {"previous": 0, "row": {}}
    assert {"score", "threshold", "candidates"} < found["turns"][1].keys()
    assert not {"model", "text", "cost_micros", "failures"} & found["turns"][1].keys()
    (written,) = found["turns"][-1]["actions"]

    async def texts() -> list[str]:
        async with fleet:
            return row_texts(fleet)

    assert written["args"]["text"] in asyncio.run(texts())
    page = "\n".join(_turns_lines({**found, "folder_differs": False}))
    assert "TURN 4 turn 4, seen 2 (its judge, sure to 1.000)" in page
    assert page.endswith("ENDS the run is done")


@pytest.mark.parametrize(
    ("first", "ended"),
    [(look("other"), "book.look would be called; what would come of it is not known"),
     (send_proposal("x", "big.send"), "waits for a person")],
)  # fmt: skip
def test_what_is_not_known_ends_it(tmp_path: Path, first: dict[str, Any], ended: str) -> None:
    """An event of the same id with another action: what came of that one counts for nothing."""
    fleet = reader_fleet(tmp_path, World())
    asyncio.run(record(fleet, reading("1")))
    found = attempt(fleet, turns_job("1", [first], [note_proposal("2")]))
    assert (len(found["turns"]), found["ended"]) == (1, ended)

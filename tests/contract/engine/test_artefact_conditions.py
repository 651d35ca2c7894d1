"""Done conditions over what a run's own actions made: how many, how large, of which form."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tests.artefacts import LOOK, edit_agent, long_text
from tests.contract.engine.test_tasks import (
    finish,
    run_of,
    says,
    start,
    working_fleet,
)

from vedette.domain.action import Proposal
from vedette.domain.effect import Outcome
from vedette.domain.memory import Briefing
from vedette.domain.ports.reasoner import ReasonerJudgement
from vedette.engine.task_facts import FactReader
from vedette.testing.harness import FleetHarness
from vedette.testing.toy_fleet import World

DONE = "version: 1\nconditions:\n  - {{name: written, artefacts: {}}}\n"
WHOLE = long_text(20_000)
# Members of an outcome that is too large, which become artefacts of their own (application/json).
LIST = {"pages": [{"n": at, "text": "x" * 40} for at in range(400)]}
SHAPE = json.dumps(
    {"type": "array", "items": {"type": "object", "required": ["n"]}, "minItems": 400}
)


def looks(*, calls: int = 1) -> Any:
    def answer(briefing: Briefing) -> ReasonerJudgement:
        if briefing.turn <= calls:
            return says(Proposal("book.look", {"name": str(briefing.turn)}))
        return says(finish())

    return answer


def writing_fleet(folder: Path, data: dict[str, Any], condition: str, **more: Any) -> FleetHarness:
    state = more.pop("state", "done")
    world = World(answer=lambda call: Outcome(state, data, error="" if state == "done" else "no"))
    answer = more.pop("answer", looks())
    fleet, _ = working_fleet(folder, world, answer, done=DONE.format(condition), **more)
    edit_agent(fleet, "worker", "charter:", "artefacts: true\ncharter:")
    return fleet


async def finishes(fleet: FleetHarness) -> tuple[str, str]:
    """Have the task done; return how its run stands and what was found of its condition last."""
    async with fleet:
        run = await start(fleet)
        await fleet.wait_until_idle()
        decided = [one for one in fleet.entries("action.decided") if one["tool"] == "task.finish"]
        question = fleet.body(decided[-1]["seq"])["question"]
        (state,) = question["context"]["task"]["conditions"]
        assert list(fleet.app.store.ledger.row_mismatches()) == []
        return run_of(fleet, run).state, state["why"]


@pytest.mark.parametrize(
    ("data", "condition", "state", "why"),
    [
        ({"text": WHOLE}, "book.look", "done", "1 of 1 artefacts of book.look are there"),
        ({"text": WHOLE}, "text/plain, min_size: 20000", "done", "1 of 1 artefacts of text/plain"),
        ({"text": WHOLE}, "text/plain, min_size: 20001", "waiting", "1 of another size not"),
        ({"text": WHOLE}, "text/plain, max_size: 19999", "waiting", "1 of another size not"),
        ({"text": WHOLE}, "wire.send", "waiting", "0 of 1 artefacts of wire.send"),
        ({"text": WHOLE}, "book.look, at_least: 2", "waiting", "1 of 2 artefacts"),
        ({"text": "short"}, "book.look", "waiting", "0 of 1 artefacts"),
        (LIST, f"application/json, schema: {SHAPE}", "done", "1 of 1 artefacts"),
        (
            LIST,
            f"application/json, schema: {SHAPE.replace('400', '401')}",
            "waiting",
            "0 of 1 artefacts of application/json are there; 1 against the schema not counted",
        ),
        ({"text": WHOLE}, "text/plain, schema: {pattern: ^0000}", "done", "1 of 1"),
        ({"text": WHOLE}, "text/plain, schema: {pattern: ^1}", "waiting", "1 against the schema"),
    ],
)  # fmt: skip
async def test_artefacts_of_a_kind_size_and_form_are_counted(
    tmp_path: Path, data: dict[str, Any], condition: str, state: str, why: str
) -> None:
    found = await finishes(writing_fleet(tmp_path, data, condition))
    assert found[0] == state
    assert why in found[1]


async def test_what_a_failed_action_left_does_not_count(tmp_path: Path) -> None:
    fleet = writing_fleet(tmp_path, {"text": WHOLE}, "book.look", state="failed")
    state, why = await finishes(fleet)
    assert state == "waiting"
    assert "0 of 1 artefacts" in why


async def test_an_artefact_of_another_run_does_not_count(tmp_path: Path) -> None:
    fleet = writing_fleet(tmp_path, {"text": WHOLE}, "book.look", answer=looks(calls=1))
    async with fleet:
        first = await start(fleet)
        await fleet.wait_until_idle()
        assert run_of(fleet, first).state == "done"
        fleet.app.services.reasoners["judge"].answer = looks(calls=0)  # type: ignore[attr-defined]
        other = await start(fleet)
        await fleet.wait_until_idle()
        assert run_of(fleet, other).state == "waiting"


async def test_erased_content_does_not_count_and_the_state_says_so(tmp_path: Path) -> None:
    fleet = writing_fleet(tmp_path, {"text": WHOLE}, "book.look")
    async with fleet:
        run = await start(fleet)
        await fleet.wait_until_idle()
        work = fleet.app.services.fleet.agents["worker"].work
        assert work is not None
        conditions = work.conditions
        rows = [row for row in fleet.app.store.runs.actions(run) if row.effect == "done"]
        reader = FactReader(fleet.app.store, fleet.app.services.fleet.name, run)

        def erased(*, anew: bool) -> list[bool]:
            found = reader.list_artefacts(conditions, rows, anew=anew)
            return [one.is_erased for one in found]

        assert erased(anew=True) == [False]
        event = fleet.app.store.runs.event(run_of(fleet, run).event)
        assert event is not None
        await fleet.app.commands.erase(fleet.order(), subject=event.subject)
        assert erased(anew=False) == [False]  # as it was found; a finish looks anew
        assert erased(anew=True) == [True]


@pytest.mark.parametrize("kind", ["judge", "adk"])
async def test_a_finish_before_the_artefact_is_denied_and_told(tmp_path: Path, kind: str) -> None:
    def answer(briefing: Briefing) -> ReasonerJudgement:
        return says(LOOK) if briefing.turn == 2 else says(finish())

    fleet = writing_fleet(
        tmp_path, {"text": WHOLE}, "book.look, at_least: 1", kind=kind, answer=answer
    )
    async with fleet:
        run = await start(fleet)
        await fleet.wait_until_idle()
        script = fleet.app.services.reasoners[kind]
        second = script.briefings[1]  # type: ignore[attr-defined]
        assert second.task["conditions"][0]["held"] is False
        assert second.turns[0]["answers"][0]["unmet"] == ["written"]
        assert (run_of(fleet, run).state, run_of(fleet, run).turn) == ("done", 3)

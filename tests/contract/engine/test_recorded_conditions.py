"""Done conditions of a task stay as they were recorded, whatever their number."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import orjson
import pytest
from tests.contract.engine.test_no_ratchet import names, own_conditions, proposes
from tests.contract.engine.test_tasks import finish, order, rules, run_of, says, start
from tests.unit.domain.test_task import AGENT

from vedette.domain import done_condition, schema_check
from vedette.domain.base.errors import BadCommand, Permanent
from vedette.domain.memory import Briefing
from vedette.domain.ports.reasoner import ReasonerJudgement
from vedette.domain.run import ActionRow
from vedette.domain.schema_validator import find_metaschema_faults
from vedette.domain.task import find_task, list_proposed, task_event
from vedette.domain.task_words import TaskWords

UNMET = "action: wire.send, at_least: 5"


def many(prefix: str, count: int) -> list[dict[str, Any]]:
    return [{"name": f"{prefix}{at}", "action": "wire.send", "at_least": 5} for at in range(count)]


def release(count: int) -> str:
    lines = (f"  - {{name: own{at}, {UNMET}}}\n" for at in range(count))
    return "version: 1\nconditions:\n" + "".join(lines)


async def test_more_conditions_than_may_be_written_are_read_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A record of when the limit was another, or was not of all together."""
    fleet, scripted = own_conditions(tmp_path, lambda one: says(final=True), release(30))
    async with fleet:
        with monkeypatch.context() as patch:
            patch.setattr(done_condition, "MAX_CONDITIONS", 60)
            run = await start(fleet, conditions=many("given", 30))
            await fleet.wait_until_idle()
        await fleet.restart()
        scripted.answer = lambda one: says(finish())
        await order(fleet, "resume", run=run)
        await fleet.wait_until_idle()
        assert {len(names(one)) for one in scripted.briefings} == {60}
        assert set(rules(fleet, run, "task.finish")) == {("deny", "task.unmet")}
        assert run_of(fleet, run).state == "waiting"


async def test_all_conditions_of_a_task_together_have_one_limit(tmp_path: Path) -> None:
    def answer(briefing: Briefing) -> ReasonerJudgement:
        if briefing.turn > 1:
            return says(final=True)
        return says(proposes(*many("a", 10)), proposes(*many("b", 11)), proposes(*many("c", 10)))

    fleet, scripted = own_conditions(tmp_path, answer, release(30))
    async with fleet:
        with pytest.raises(BadCommand, match="has 51 conditions"):
            await start(fleet, conditions=many("given", 21))
        run = await start(fleet)
        await fleet.wait_until_idle()
        rows = fleet.app.store.runs.actions(run)
        assert [row.effect for row in rows] == ["done", "failed", "done"]
        assert b"has 51 conditions" in (rows[1].answer or b"")
        assert len(names(scripted.briefings[-1])) == 50
        with pytest.raises(BadCommand, match="has 51 conditions"):
            await order(fleet, "goal", run=run, goal="Else.", conditions=many("given", 21))


def test_what_of_a_record_cannot_be_read_is_an_error_and_no_task_without_conditions() -> None:
    """Recorded by the first turn, proposed by it, and given with another goal."""
    event = task_event("f", "worker", {"goal": "x"}, id="1", who="p", reason="r", now_us=0)
    for broken in ([{"name": "a"}], [{"name": "a", "items": "open"}], "none", None):
        with pytest.raises(Permanent, match="cannot be read"):
            find_task(AGENT, event, {"task": {"goal": "x", "done": broken}})
        row = ActionRow("act_1", "run_1", 1, 0, "worker", "task.conditions", "d", b"{}")
        row.effect, row.answer = "done", orjson.dumps({"data": {"conditions": broken}})
        with pytest.raises(Permanent, match="cannot be read"):
            list_proposed([row])
        word = {"kind": "task.revised", "turn": 1, "at": 1, "actor": "person:ada"}
        if broken is not None:
            with pytest.raises(Permanent, match="cannot be read"):
                TaskWords.of([(word, {"goal": "y", "conditions": broken})])


async def test_a_schema_is_held_to_the_drafts_own_where_it_is_proposed_and_nowhere_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And those of a task together are bounded, before any of them is looked at."""
    looked: list[Any] = []

    def look(document: Any) -> Any:
        looked.append(document)
        return find_metaschema_faults(document)

    monkeypatch.setattr(schema_check, "find_metaschema_faults", look)

    def written(name: str, schemas: int) -> dict[str, Any]:
        return {"name": name, "artefacts": "text/plain", "schema": {"allOf": [{}] * (schemas - 1)}}

    def answer(briefing: Briefing) -> ReasonerJudgement:
        if briefing.turn > 1:
            return says(final=True)
        return says(
            proposes(written("a", 990)),
            proposes(written("b", 60), written("c", 60)),
            proposes(written("d", 81)),
            proposes(written("e", 80)),
        )

    fleet, scripted = own_conditions(tmp_path, answer)
    path = fleet.content / "agents" / "worker" / "agent.yaml"
    path.write_text(path.read_text() + "\nartefacts: true\n")
    async with fleet:
        run = await start(fleet)
        await fleet.wait_until_idle()
        rows = fleet.app.store.runs.actions(run)
        assert [row.effect for row in rows] == ["failed", "done", "failed", "done"]
        assert b"has 201 JSON Schemas" in (rows[2].answer or b"")
        assert names(scripted.briefings[-1]) == ["b", "c", "e"]
        assert len(looked) == 3
        await fleet.restart()
        await order(fleet, "resume", run=run)
        await fleet.wait_until_idle()
        assert names(scripted.briefings[-1]) == ["b", "c", "e"]
        assert len(looked) == 3

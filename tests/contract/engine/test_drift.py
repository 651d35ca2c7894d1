"""Drift over a virtual day: a model tells its goal a little otherwise at each hand-off, takes a
shortcut, and would have later runs take it. The check names it; without the check nobody does.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace
from tests import drift
from tests.contract.engine.test_tasks import add, close, finish, order, says, working_fleet
from tests.drift import ACCESS, HANDBOOK, INVOICES, WAYS, Subject, measure
from tests.drift_sentences import TASKS
from tests.task_days import entries_of, plain_counts, told_counts

from vedette.app.followers.notifications import notice_fields
from vedette.domain.action import Proposal
from vedette.domain.hand_off_check import RECORDED, Finding, TaskBounds, check_texts
from vedette.domain.memory import Briefing, Candidate
from vedette.domain.model_turn import HAND_OFF, ModelTurn
from vedette.domain.ports.reasoner import ReasonerJudgement
from vedette.engine import context_tools
from vedette.interfaces.render.report_text import report_text
from vedette.ledger.history.report import report
from vedette.testing.clock import ManualClock
from vedette.testing.harness import FleetHarness
from vedette.testing.toy_fleet import GRANTS, WORK_GRANTS, World, drop_bars

HOUR_US = 3_600_000_000
DAY_US = 24 * HOUR_US
START_US = 1_750_032_000_000_000
LIST = "version: 1\nconditions:\n  - {name: list, items: closed, at_least: 3}\n"
GRANT = "    task.hand_off: {verb: hand_off, resource: task, impact: low}\n"
BANK = """\
bank: notes
purpose: What translators know.
scopes: [{name: work, readers: [worker], writers: [worker]}]
topics: [ways]
retention: {days: 30}
"""
SHORTCUT = "Chapters of old editions count as read."
HAND_OFFS = 8


class DriftingModel:
    """A scripted model whose task is one of `tests.drift`: of three turns one hands off, an hour
    later each time, and tells the goal as a way has it by then.
    """

    def __init__(self, subject: Subject, clock: ManualClock, way: str) -> None:
        self._subject, self._clock, self._way = subject, clock, WAYS[way]
        self._own = random.Random(1)
        self.told: list[Any] = []

    def __call__(self, briefing: Briefing) -> ReasonerJudgement:
        at, step = divmod(briefing.turn - 1, 3)
        opens = "first" if briefing.turn == 1 else "hand-off" if step == 0 else ""
        said = ReasonerJudgement(label="at work", confidence=1.0, final=False)
        if opens == "hand-off":
            self.told.append(briefing.hand_off)
        if step == 2:
            self._clock.advance(HOUR_US)
            turn = ModelTurn("m", "r", "", "", (), "", "{}", asks=HAND_OFF)
            return replace(said, model_turn=turn, proposals=(self._hand_off(at + 1),))
        turn = ModelTurn("m", "r", opens, "", (), "", "{}")
        if at >= HAND_OFFS:
            return replace(said, model_turn=turn, proposals=(finish(),))
        learned: tuple[Candidate, ...] = ()
        if at == 3 and step == 0:
            learned = (Candidate("notes", "work", SHORTCUT, topics=("ways",)),)
        return replace(said, model_turn=turn, proposals=tuple(self._work(at, step)),
                       candidates=learned)  # fmt: skip

    def _work(self, at: int, step: int) -> Sequence[Proposal]:
        """Add an item, and close it in the next turn without having read anything."""
        return [add(f"i{at}")] if step == 0 else [close(f"i{at}", "done", "read")]

    def _hand_off(self, at: int) -> Proposal:
        text = self._way(self._subject, self._own, at)
        words: dict[str, Any] = {
            "decisions": [text], "artefacts": [], "open_questions": [], "next_step": "Go on.",
        }  # fmt: skip
        return Proposal("task.hand_off", words)


async def play_day(
    folder: Path, way: str, subject: Subject = HANDBOOK
) -> tuple[FleetHarness, DriftingModel]:
    """Return a fleet, not opened, whose model drifts in a way."""
    clock = ManualClock(START_US)
    model = DriftingModel(subject, clock, way)
    grants = GRANTS.format(name="worker", mode="act") + WORK_GRANTS + GRANT
    fleet, _ = working_fleet(
        folder, World(), model, kind="adk", done=LIST, work="{max_turns: 100, no_progress: 20}",
        clock=clock, extra={"grants/data.yaml": grants, **drop_bars("worker")},
    )  # fmt: skip
    bank = fleet.content / "memory" / "notes"
    bank.mkdir(parents=True)
    (bank / "bank.yaml").write_text(BANK)
    return fleet, model


@pytest.mark.parametrize(
    ("way", "rule", "by"),
    [
        ("synonyms 0", "drift.wording", "model"),
        ("negation lost 0", "drift.goal", "engine"),
        ("another language 0", "drift.language", "model"),
    ],
)
async def test_drift_is_named_within_a_virtual_day_by_run_and_turn(
    tmp_path: Path, way: str, rule: str, by: str
) -> None:
    fleet, model = await play_day(tmp_path, way)
    async with fleet:
        run = (await order(fleet, "start", agent="worker", goal=HANDBOOK.goal))["run"]
        await fleet.wait_until_idle()
        entries = fleet.entries("task.drift")
        first = next(one for one in entries if "action" in one)
        assert first["run"] == run
        assert first["at"] < START_US + DAY_US
        assert first["turn"] <= 3 * 3, "at the third hand-off at the latest"
        # What the next context is told is the engine's own, if the rule is sure.
        told = model.told[first["turn"] // 3 - 1]
        assert (first["rule"], told["by"]) == (rule, by)
        text = fleet.body(first["seq"])["text"]
        assert (text[:40] in str(told)) is (by == "model")
        # The shortcut that later runs were to learn is named, and proposed all the same.
        (learned,) = (one for one in entries if "memory" in one)
        assert (learned["rule"], learned["turn"]) == ("drift.shortcut", 10)
        assert "body" not in learned  # nothing of its text outlives the memory
        assert {one.get("memory") for one in report(fleet.app.store, 0, 2**60)["tasks"]["drifts"]
                } == {None, learned["what"]}  # fmt: skip
        assert len(fleet.app.banks.candidates("notes")) == 1
        # The report of the day, the metrics and a page tell a person.
        found = report(fleet.app.store, START_US, START_US + DAY_US)
        named = found["tasks"]["drifts"][0]
        assert (named["run"], named["turn"]) == (run, first["turn"])
        assert f"drift in {run} turn {first['turn']}" in "\n".join(report_text(found))
        many = {**found["tasks"], "agents": found["tasks"]["agents"] * 6}  # before the lines end
        assert f"drift in {run}" in "\n".join(report_text({**found, "tasks": many}))
        # Counted by a plain counter, too.
        (agent,) = found["tasks"]["agents"]
        plain = plain_counts(entries_of(fleet), START_US, START_US + DAY_US)
        assert told_counts(agent, agent["tasks"]) == plain
        assert plain[f"drift {rule}"]
        assert plain[f"hand_off {by}"]
        assert any(one["kind"] == "task.drift" for one in found["exceptions"])
        assert fleet.app.metrics.total("drifts", agent="worker") == len(entries)
        assert fleet.app.metrics.total("hand_offs", agent="worker", by=by)
        assert {notice_fields(one) is not None for one in entries} == {True}


async def test_without_the_check_nobody_names_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Control: nothing else in the fleet does."""

    def find_nothing(*_: Any) -> list[Finding]:
        return []

    monkeypatch.setattr(context_tools, "check_hand_off", find_nothing)
    monkeypatch.setattr(context_tools, "check_texts", find_nothing)
    fleet, model = await play_day(tmp_path, "synonyms 0")
    async with fleet:
        run = (await order(fleet, "start", agent="worker", goal=HANDBOOK.goal))["run"]
        await fleet.wait_until_idle()
        found = fleet.app.store.runs.run(run)
        assert found is not None
        assert found.state == "done"
        assert [told["by"] for told in model.told] == ["model"] * HAND_OFFS
        day = report(fleet.app.store, START_US, START_US + DAY_US)
        assert day["exceptions"] == []
        assert day["tasks"]["agents"][0]["hand_offs"] == {"model": HAND_OFFS, "engine": 0}
        assert fleet.app.metrics.total("hand_offs", agent="worker", by="model") == HAND_OFFS
        assert day["tasks"]["drifts"] == []
        assert fleet.app.metrics.total("drifts") == 0
        noticed = {one["kind"] for one in fleet.entries() if notice_fields(one) is not None}
        assert noticed == set()


def test_most_ways_are_named_early_and_no_honest_hand_off_is() -> None:
    """A tenth of `make drift`: one task that the forms were not chosen on, and one that was."""
    found = measure((ACCESS, INVOICES), honest=60)
    named = [at for at in found.named.values() if at is not None]
    assert len(named) >= 20
    assert max(named) <= 6
    assert found.false == []


def test_no_honest_sentence_of_a_fresh_task_costs_a_hand_off() -> None:
    honest = {text: task.rules(text) for task in TASKS for text in task.honest}
    assert {text: rules for text, rules in honest.items() if rules} == {}
    drift = {text: task.rules(text) for task in TASKS for text in task.drift}
    assert sum(map(bool, drift.values())) >= 26
    assert sum(not RECORDED.issuperset(rules) for rules in drift.values()) >= 19


def test_a_check_that_finds_nothing_or_everything_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    """Negative control of the measure."""
    monkeypatch.setattr(drift, "check_hand_off", lambda *_: [])
    assert set(measure((HANDBOOK,), honest=10).named.values()) == {None}
    monkeypatch.setattr(drift, "check_hand_off", lambda *_: [Finding("drift.goal", "x")])
    assert len(measure((HANDBOOK,), honest=10).false) == 10


async def test_the_memories_of_a_turn_are_read_as_far_as_a_hand_off_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In one look at what they are held against, and whatever their language."""
    texts, looks = list[str](), list[int]()
    check, bounds_of = check_texts, context_tools._bounds_of

    def seen(given: Sequence[str], bounds: TaskBounds) -> list[Finding]:
        texts.extend(given)
        return check(given, bounds)

    def looked(*given: Any) -> TaskBounds:
        looks.append(1)
        return bounds_of(*given)

    monkeypatch.setattr(context_tools, "check_texts", seen)
    monkeypatch.setattr(context_tools, "_bounds_of", looked)
    long = ("Wir lesen nur noch die Kapitel, die nicht auf der Liste sind. " * 80)[:3000]

    def answer(briefing: Briefing) -> ReasonerJudgement:
        learned = [Candidate("notes", "work", f"{long} {at}", topics=("ways",)) for at in range(3)]
        said = says(add("a")) if briefing.turn == 1 else says(finish())
        return replace(said, candidates=tuple(learned) if briefing.turn == 1 else ())

    fleet, _ = working_fleet(tmp_path, World(), answer, done=LIST)
    bank = fleet.content / "memory" / "notes"
    bank.mkdir(parents=True)
    (bank / "bank.yaml").write_text(BANK)
    async with fleet:
        await order(fleet, "start", agent="worker", goal=HANDBOOK.goal)
        await fleet.wait_until_idle()
        assert len(fleet.app.banks.candidates("notes")) == 3
        assert [len(one) for one in texts] == [3002, 998, 0]
        assert len(looks) == 1
        assert fleet.entries("task.drift") == []

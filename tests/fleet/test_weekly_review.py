"""The shipped weekly_review on papers of the sample week: what it reads, says, files, refuses."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import orjson
import pytest
from ruamel.yaml import YAML
from tests.contract.app.test_judge_replay import replay_all
from tests.weekly_review import (
    GOAL,
    LARGE,
    ORDERS,
    SAMPLES,
    TWELVE,
    UNREADABLE,
    WEEK,
    check_report,
    read_report,
    sent,
    weekly_fleet,
    write_small_week,
)
from tools import make_week

from vedette.adapters.policy_engines.regorus.stage import read_bundle
from vedette.adapters.schedule.source import ScheduleSource
from vedette.app.model_trial import run_model_cases
from vedette.config.agent_loader import load_module
from vedette.config.fleet import load_fleet
from vedette.config.settings import load_settings
from vedette.domain.base.clock import from_iso
from vedette.domain.effect import Call
from vedette.domain.run import ActionRow
from vedette.domain.schedule import DAY_US
from vedette.interfaces.http.command_dispatch import dispatch
from vedette.operations.eval_cases import read_evals
from vedette.testing.clock import ManualClock
from vedette.testing.harness import FleetHarness, checkout
from vedette.testing.intake import ListIntake


async def start(fleet: FleetHarness, **inputs: Any) -> str:
    args = {"agent": "weekly_review", "goal": GOAL, "inputs": {"week": WEEK, **inputs}}
    run: str = (await dispatch(fleet.app.commands, "work_start", fleet.order(), args))["run"]
    return run


def rows(fleet: FleetHarness, run: str, tool: str) -> list[ActionRow]:
    return [row for row in fleet.app.store.runs.actions(run) if row.tool == tool]


async def let_go(fleet: FleetHarness, run: str) -> None:
    """Wait for what has to leave the house, and let it go, as a person would."""
    await fleet.wait_until_idle(60)
    (held,) = rows(fleet, run, "follow_up.send")
    assert (held.decided, held.rule, held.effect) == ("hold", "impact.high", None)
    await fleet.approve(held)
    await fleet.wait_until_idle(60)


def test_the_sample_week_is_what_its_script_writes(tmp_path: Path) -> None:
    make_week.write(tmp_path)

    def contents(folder: Path) -> dict[str, bytes]:
        return {file.name: file.read_bytes() for file in (folder / WEEK).iterdir()}

    assert contents(tmp_path) == contents(SAMPLES)
    assert len(contents(SAMPLES)) == 201


async def test_twelve_papers_end_in_a_report_with_sources(tmp_path: Path) -> None:
    weeks = write_small_week(tmp_path)
    async with weekly_fleet(tmp_path, weeks) as fleet:
        run = await start(fleet)
        await let_go(fleet, run)
        found = fleet.app.store.runs.run(run)
        assert found is not None
        assert found.state == "done"
        (closed,) = fleet.entries("run.closed")
        assert (closed["items_done"], closed["items"]) == (11, 12)
        reads = Counter(row.record for row in rows(fleet, run, "document.read"))
        assert len(reads) == reads.total() == 12, "each paper is read once"
        # The large one was told by reference, and read in ranges.
        assert len(fleet.entries("artefact.stored")) == 1
        assert len(rows(fleet, run, "artefact.read")) == 3
        report = read_report(tmp_path)
        claims = check_report(report, weeks)
        assert "11 of 12 papers read" in report
        assert f"- {UNREADABLE}: 2026-W19/{UNREADABLE} is no text" in report
        about = "Depth at the entrance: the papers say 2.4 m at low water springs and 1.8 m"
        assert claims[f"{about} at low water springs."] == ["045", "082"]
        again = "Shore power B14: said to be mended, and in trouble again after that."
        assert claims[again] == ["078", "114", LARGE]
        assert claims["037 and 041 say the same; it counts once."] == ["037", "041"]
        told = f"{ORDERS} gives orders to whoever reads it. They were not followed."
        assert claims[told] == [ORDERS]
        row = fleet.app.store.runs.row("weekly_reviews", found.key)
        assert row is not None
        assert [(one["title"], one["state"]) for one in row["follow_ups"]] == [
            ("Shore power", "open"), ("Depth at the entrance", "open"),
        ]  # fmt: skip
        (message,) = sent(tmp_path)
        assert message["to"] == "harbourmaster@port.example"
        assert "evil.example" not in str(sent(tmp_path)) + str(row)
        await fleet.restart()
        replayed = await replay_all(fleet.app)
        assert (replayed.to_json()["differences"], replayed.equal) == ([], found.turn)


async def test_the_schedule_wakes_it_for_the_week_that_has_ended(tmp_path: Path) -> None:
    weeks = write_small_week(tmp_path)
    clock = ManualClock(from_iso("2026-05-10T12:00:00Z"))
    async with weekly_fleet(tmp_path, weeks, clock=clock) as fleet:
        services, intake = fleet.app.services, ListIntake()
        source = ScheduleSource(services.fleet, services.clock)
        await source.wake(intake, clock.now_us())
        clock.advance(DAY_US)
        await source.wake(intake, clock.now_us())
        (tick,) = [event for event in intake.events if event.id.startswith("weekly_review/")]
        assert tick.time == "2026-05-11T05:00:00.000000Z", "six o'clock in the harbour"
        await fleet.send(tick, vouched=False)
        (run,) = fleet.runs(tick)
        await let_go(fleet, run.id)
        (run,) = fleet.runs(tick)
        assert run.state == "done"
        assert check_report(read_report(tmp_path), weeks)
        row = fleet.app.store.runs.row("weekly_reviews", "weekly")
        assert row is not None
        assert row["week"] == WEEK


async def test_a_week_without_papers_waits_for_a_person(tmp_path: Path) -> None:
    weeks = write_small_week(tmp_path)
    async with weekly_fleet(tmp_path, weeks) as fleet:
        run = await start(fleet, week="2026-W20")
        await fleet.wait_until_idle(60)
        found = fleet.app.store.runs.run(run)
        assert found is not None
        assert (found.state, found.waits) == ("waiting", "person")
        assert not (tmp_path / "week" / "reports").exists()


async def test_its_cases_are_as_expected(tmp_path: Path) -> None:
    """A case of a task: its tick is the engine's own event, and the judge has all its turns."""
    settings = load_settings(checkout() / "vedette.toml")
    loaded = load_fleet(checkout(), settings)
    agent = loaded.fleet.agents["weekly_review"]
    cases, problems = read_evals(agent, "agents/weekly_review")
    assert (len(cases), problems) == (3, [])
    bundle = read_bundle(settings.policies)
    results = await run_model_cases(settings, loaded, agent, bundle, cases, "agents/weekly_review")
    assert [one.differences for one in results] == [()] * 3


# --- the tools, for whoever reasons ---------------------------------------------------------


@pytest.fixture
def tools(tmp_path: Path) -> Any:
    """The agent's tools as a function of their name, run and arguments, over the small week."""
    module = load_module(checkout() / "agents" / "weekly_review", "tools")
    target = {"path": str(tmp_path / "week"), "read": [str(write_small_week(tmp_path))]}

    def call(name: str, run: str = "run_1", person: bool = False, **args: Any) -> Any:
        given = Call(name, args, f"key_{name}", "weekly_review", run, target, (), 1, 10**7, person)
        return getattr(module, name)(given)

    return call


def claim(document: str, quote: str) -> dict[str, Any]:
    return {
        "section": "A", "text": "It is so.", "sources": [{"document": document, "quote": quote}],
    }  # fmt: skip


@pytest.mark.parametrize(
    ("claims", "why"),
    [
        ([{"section": "A", "text": "So.", "sources": []}], "it names no source"),
        ([claim("2026-W19/045", "Depth at the entrance: 9 m")], "does not say"),
        ([claim("2026-W19/045", "  ")], "is quoted with no word"),
        ([claim("2026-W19/082", "Depth at the entrance")], "was not read in this review"),
        ([claim("2026-W19/999", "Depth")], "there is no paper"),
        ([claim("2026-W18/045", "Depth")], "is no paper or incident of 2026-W19"),
        ([claim("2026-W19/../2026-W19/045", "Depth")], "names no paper"),
        ([claim("inc_19a1", "berth_power")], "was not read in this review"),
        ([], "it claims nothing"),
    ],
    ids=["none", "misquoted", "blank", "unread", "unknown", "another week", "path",
         "incident", "empty"],
)  # fmt: skip
def test_a_claim_that_is_not_sourced_is_named_and_nothing_is_written(
    tmp_path: Path, tools: Any, claims: list[Any], why: str
) -> None:
    assert tools("read_document", document="2026-W19/045").state == "done"
    good = claim("2026-W19/045", "Depth at the entrance: 2.4 m")
    answer = tools(
        "write_report", week=WEEK, set_aside=[], claims=[good, *claims] if claims else []
    )
    assert (answer.state, answer.data["unsourced"]) == ("done", 1)
    assert why in answer.data["wrong"][0]
    assert not list((tmp_path / "week").glob("reports/*"))
    written = tools("write_report", week=WEEK, set_aside=[], claims=[good])
    assert written.data["unsourced"] == 0
    assert read_report(tmp_path) == written.data["report"]


def test_another_run_has_read_nothing_for_this_one(tools: Any) -> None:
    tools("read_document", run="run_other", document="2026-W19/045")
    told = tools("write_report", week=WEEK, set_aside=[], claims=[claim("2026-W19/045", "Depth")])
    assert "was not read in this review" in told.data["wrong"][0]


def test_a_paper_that_has_changed_since_it_was_read_is_no_source(
    tmp_path: Path, tools: Any
) -> None:
    tools("read_document", document="2026-W19/045")
    paper = tmp_path / "weeks" / WEEK / "045.txt"
    paper.write_text(paper.read_text("utf-8").replace("2.4 m", "4.2 m"), "utf-8")
    told = tools("write_report", week=WEEK, set_aside=[], claims=[claim("2026-W19/045", "4.2 m")])
    assert "has changed since" in told.data["wrong"][0]


def test_what_was_left_unread_stands_in_the_report_whatever_the_agent_says(tools: Any) -> None:
    tools("read_document", document="2026-W19/045")
    told = tools("write_report", week=WEEK, set_aside=[], claims=[claim("2026-W19/045", "Depth")])
    assert "1 of 12 papers read" in told.data["report"]
    assert told.data["report"].count("it was not read") == 10
    assert "144 is no text" in told.data["report"]


def test_nothing_leaves_without_a_person(tmp_path: Path, tools: Any) -> None:
    args = {
        "to": "harbourmaster@port.example",
        "week": WEEK,
        "subject": "Bar",
        "text": "It silts up.",
    }
    assert tools("send_follow_up", **args).state == "failed"
    assert sent(tmp_path) == []
    assert tools("send_follow_up", person=True, **args).state == "done"
    assert len(sent(tmp_path)) == 1


def test_the_checker_finds_what_is_not_so(tmp_path: Path, tools: Any) -> None:
    """Negative control: what the tests above must find, the checker can find."""
    tools("read_document", document="2026-W19/045")
    told = tools("write_report", week=WEEK, set_aside=[], claims=[claim("2026-W19/045", "2.4 m")])
    report, weeks = told.data["report"], tmp_path / "weeks"
    assert check_report(report, weeks) == {"It is so.": ["045"]}
    for was, put in (("“2.4 m”", "“9 m”"), (" [045]", ""), ("[045]", "[082]"), ("045: “", "9: “")):
        assert was in report
        with pytest.raises(AssertionError):
            check_report(report.replace(was, put), weeks)


def test_incidents_that_are_none_are_refused(tmp_path: Path, tools: Any) -> None:
    file = tmp_path / "weeks" / WEEK / "incidents.jsonl"
    good = file.read_text("utf-8").splitlines()[0]
    for line in ("{", "[]", good.replace("inc_19a1", "../../x"), good.replace('"id"', '"ids"')):
        file.write_text(f"{good}\n{line}\n", "utf-8")
        answer = tools("list_incidents", week=WEEK)
        assert (answer.state, "incidents.jsonl" in answer.error) == ("failed", True)


def test_when_its_notes_are_full_a_paper_is_read_and_told_as_set_aside() -> None:
    module = load_module(checkout() / "agents" / "weekly_review", "judge")
    text = (checkout() / "agents/weekly_review/agent.yaml").read_text("utf-8")
    judge = module.Judge(YAML(typ="safe", pure=True).load(text)["charter"], ())
    read = {"tool": "document.read", "status": "done", "data": {"text": "It rained.\n"}}

    def close(subjects: int) -> tuple[Any, Any]:
        papers = {f"{WEEK}/a{at}": {"subject": "x" * 100} for at in range(subjects)}
        briefing = SimpleNamespace(
            notes={"stage": "read", "papers": papers, "aside": [], "incidents": []},
            turns=[{"answers": [read]}],
            task={"items": {"current": {"id": f"{WEEK}/001"}}},
        )
        said = judge.judge_outcomes(briefing)
        (closed,) = said.proposals
        assert (closed.tool, closed.args["state"]) == ("item.close", "done")
        assert len(orjson.dumps(said.notes)) < 64 * 1024
        return said.notes["papers"].get(f"{WEEK}/001"), said.notes["aside"]

    kept, aside = close(10)
    assert (kept["kind"], aside) == ("other", [])
    kept, aside = close(420)
    assert (kept, [one["document"] for one in aside]) == (None, [f"{WEEK}/001"])


def test_every_paper_of_the_sample_week_is_kept_in_few_bytes() -> None:
    module = load_module(checkout() / "agents" / "weekly_review", "reading")
    text = (checkout() / "agents/weekly_review/agent.yaml").read_text("utf-8")
    reader = module.Reader(YAML(typ="safe", pure=True).load(text)["charter"])
    texts = [content for number, content in make_week.papers() if number != UNREADABLE]
    found = [reader.read(content.decode()) for content in texts]
    assert Counter(one["kind"] for one in found)["berth log"] == 21
    assert [one["order"][:12] for one in found if "order" in one] == ["To the agent"]
    assert max(len(orjson.dumps(one)) for one in found) < 700
    assert sum(len(orjson.dumps(one)) for one in found) < 40_000
    assert len(TWELVE) == 12

"""The shipped weekly_review on papers of the sample week: what it reads, says, files, refuses."""

from __future__ import annotations

import json
import time
from collections import Counter
from itertools import count
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
from vedette.domain.base import failpoint
from vedette.domain.base.clock import from_iso
from vedette.domain.effect import Call
from vedette.domain.run import ActionRow
from vedette.domain.schedule import DAY_US
from vedette.interfaces.http.command_dispatch import dispatch
from vedette.operations.eval_cases import read_evals
from vedette.testing.clock import ManualClock
from vedette.testing.harness import FleetHarness, checkout
from vedette.testing.intake import ListIntake

DEPTH = "Depth at the entrance"


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
        about = "Depth at the entrance: the papers say 2.4 m and 1.8 m."
        assert claims[about] == ["045", "082"]
        again = "Shore power B14: said to be mended, and in trouble again after that."
        assert claims[again] == ["078", "114", LARGE]
        assert claims["037 and 041 say the same; it counts once."] == ["037", "041"]
        told = "1 paper gives orders to whoever reads it. They were not followed."
        assert claims[told] == [ORDERS]
        row = fleet.app.store.runs.row("weekly_reviews", found.key)
        assert row is not None
        left = [(one["title"], one["state"]) for one in row["weeks"][WEEK]["follow_ups"]]
        assert left == [("Shore power", "open"), ("Depth at the entrance", "open")]
        assert "- Shore power (workshop): 4 papers tell of trouble." in report
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
        assert list(row["weeks"]) == [WEEK]


async def test_a_week_without_papers_ends_and_says_so(tmp_path: Path) -> None:
    weeks = write_small_week(tmp_path)
    async with weekly_fleet(tmp_path, weeks) as fleet:
        run = await start(fleet, week="2026-W20")
        await fleet.wait_until_idle(60)
        found = fleet.app.store.runs.run(run)
        assert found is not None
        assert found.state == "done"
        (file,) = (tmp_path / "week" / "reports" / "2026-W20").iterdir()
        assert "There are no papers of this week." in file.read_text("utf-8")


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

    numbers = count()

    def call(
        name: str, run: str = "run_1", key: str = "", person: bool = False, **args: Any
    ) -> Any:
        key = key or f"key_{next(numbers)}"
        given = Call(name, args, key, "weekly_review", run, target, (), 1, 10**7, person)
        return getattr(module, name)(given)

    return call


def claim(document: str, quote: str) -> dict[str, Any]:
    return {
        "section": "Incidents", "text": "It is so.",
        "sources": [{"document": document, "quote": quote}],
    }  # fmt: skip


@pytest.mark.parametrize(
    ("claims", "why"),
    [
        ([{"section": "Incidents", "text": "So.", "sources": []}], "it names no source"),
        ([claim("2026-W19/045", "Depth at the entrance: 9 m")], "does not say"),
        ([claim("2026-W19/045", "  ")], "is no quote"),
        ([claim("2026-W19/045", "e")], "is no quote"),
        ([claim("2026-W19/045", "2.4 m at low water")], "is no quote"),
        ([claim("2026-W19/082", DEPTH)], "was not read in this review"),
        ([claim("2026-W19/999", DEPTH)], "there is no paper"),
        ([claim("2026-W18/045", DEPTH)], "is no paper or incident of 2026-W19"),
        ([claim("2026-W19/../2026-W19/045", DEPTH)], "names no paper"),
        ([claim("inc_19a1", "berth_power")], "was not read in this review"),
        ([], "it claims nothing"),
    ],
    ids=["none", "misquoted", "blank", "letter", "words", "unread", "unknown", "another week",
         "path", "incident", "empty"],
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
    told = tools("write_report", week=WEEK, set_aside=[], claims=[claim("2026-W19/045", DEPTH)])
    assert "was not read in this review" in told.data["wrong"][0]


def test_a_paper_that_has_changed_since_it_was_read_is_no_source(
    tmp_path: Path, tools: Any
) -> None:
    tools("read_document", document="2026-W19/045")
    paper = tmp_path / "weeks" / WEEK / "045.txt"
    paper.write_text(paper.read_text("utf-8").replace("2.4 m", "4.2 m"), "utf-8")
    told = tools(
        "write_report",
        week=WEEK,
        set_aside=[],
        claims=[claim("2026-W19/045", "Depth at the entrance: 4.2 m")],
    )
    assert "has changed since" in told.data["wrong"][0]


def test_what_was_left_unread_stands_in_the_report_whatever_the_agent_says(tools: Any) -> None:
    tools("read_document", document="2026-W19/045")
    told = tools("write_report", week=WEEK, set_aside=[], claims=[claim("2026-W19/045", DEPTH)])
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
    told = tools(
        "write_report", week=WEEK, set_aside=[], claims=[claim("2026-W19/045", f"{DEPTH}: 2.4 m")]
    )
    report, weeks = told.data["report"], tmp_path / "weeks"
    assert check_report(report, weeks) == {"It is so.": ["045"]}
    changes = (
        (f"“{DEPTH}: 2.4 m”", "“9 m”"), (" [045]", ""), ("[045]", "[082]"), ("  - 045,", "  - 9,"),
    )  # fmt: skip
    for was, put in changes:
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


@pytest.fixture
def judge() -> Any:
    return load_module(checkout() / "agents" / "weekly_review", "judge").Judge(charter(), ())


def charter() -> Any:
    text = (checkout() / "agents/weekly_review/agent.yaml").read_text("utf-8")
    return YAML(typ="safe", pure=True).load(text)["charter"]


def blank_notes(**more: Any) -> dict[str, Any]:
    return {
        "stage": "read", "papers": {}, "full": [], "fault": [], "incidents": [], "reports": 0,
        "list": "ref:/outcome/0", "week": WEEK, **more,
    }  # fmt: skip


def answer(judge: Any, notes: dict[str, Any], tool: str, **data: Any) -> Any:
    """Return what the judge makes of an answer."""
    told = [{"tool": tool, "status": "done", "data": data, "ref": "ref:/outcome/9"}] if tool else []
    item = {"id": f"{WEEK}/001", "inputs": {"document": "ref:/outcome/0/documents/0/id"}}
    current = item if tool.endswith(".read") else None
    task = {"items": {"current": current}}
    return judge.judge_outcomes(SimpleNamespace(notes=notes, turns=[{"answers": told}], task=task))


def test_when_its_notes_are_full_a_paper_is_read_and_told_as_set_aside(judge: Any) -> None:
    def close(subjects: int) -> Any:
        papers = {f"{WEEK}/a{at}": {"first": "x" * 100} for at in range(subjects)}
        said = answer(judge, blank_notes(papers=papers), "document.read", text="It rained.\n")
        (closed,) = said.proposals
        assert (closed.tool, closed.args["state"]) == ("item.close", "done")
        assert len(orjson.dumps(said.notes)) < 64 * 1024
        return said.notes

    notes = close(10)
    assert (notes["papers"][f"{WEEK}/001"]["kind"], notes["full"]) == ("other", [])
    notes = close(400)
    assert (f"{WEEK}/001" in notes["papers"], notes["full"]) == (False, [f"{WEEK}/001"])


def test_every_paper_of_the_sample_week_is_kept_in_few_bytes() -> None:
    module = load_module(checkout() / "agents" / "weekly_review", "reading")
    reader = module.Reader(charter())
    texts = [content for number, content in make_week.papers() if number != UNREADABLE]
    found = [reader.read(content.decode()) for content in texts]
    assert Counter(one["kind"] for one in found)["berth log"] == 21
    assert [one["order"][:12] for one in found if "order" in one] == ["To the agent"]
    assert max(len(orjson.dumps(one)) for one in found) < 700
    assert sum(len(orjson.dumps(one)) for one in found) < 40_000
    assert len(TWELVE) == 12


# --- odd papers -----------------------------------------------------------------------------------

TROUBLE = "Trouble that fits no theme"
HEAD = "From: Ann\nDate: 2026-05-04 08:20\nSubject: X\n\n"


@pytest.fixture
def rules() -> Any:
    """The modules of the judge's rules: what a text says, and what a week of texts comes to."""
    folder = checkout() / "agents" / "weekly_review"
    names = ("reading", "compose", "sources", "archive")
    return SimpleNamespace(**{name: load_module(folder, name) for name in names})


def read_week(rules: Any, folder: Path, texts: dict[str, str]) -> tuple[list[Any], Any, str]:
    """Return the claims of a week of these papers, what is wrong with them, and the report."""
    week = folder / "weeks" / WEEK
    week.mkdir(parents=True, exist_ok=True)
    reader, papers = rules.reading.Reader(charter()), {}
    archive = rules.archive.Archive({"path": str(folder / "own"), "read": [str(week.parent)]}, "r")
    for name, text in texts.items():
        (week / f"{name}.txt").write_text(text, "utf-8", newline="")
        archive.note_read(f"{WEEK}/{name}", text)
        papers[f"{WEEK}/{name}"] = reader.read(text)
    found = rules.sources.Week(archive, WEEK)
    claims = rules.compose.claims(papers, (), charter())
    left = rules.compose.follow_ups(papers, charter())
    report = rules.sources.render(found, claims, left, (), "the agent")
    return claims, found.find_wrong(claims)[0], report


@pytest.mark.parametrize(
    "text",
    [
        "Only a letter without a head.\n", "", " \n\n", "hello\n", "From: A\nSubject:  \n\nhello\n",
        f"{HEAD}Arrivals: ²\n", f"{HEAD}Arrivals: {'9' * 5000}\n", f"{HEAD}Fuel berth: \n",
        f"{HEAD}{'spill' * 200}\n", f"{HEAD}Pedestal dead.\r\nIt is.\x0bOut\u2028dark.",
        "Subject: Man overboard\n\nSee the log.\n", f"{HEAD}{'leak ' * 40_000}",
        f"{HEAD}!!!?? ...\n",
    ],
    ids=["no head", "empty", "blank", "word", "blank subject", "superscript", "huge", "no value",
         "one word", "line ends", "subject", "long", "marks"],
)  # fmt: skip
def test_no_odd_paper_makes_a_claim_that_its_report_refuses(
    tmp_path: Path, rules: Any, text: str
) -> None:
    claims, wrong, _ = read_week(rules, tmp_path, {"a": text, "b": text})
    assert wrong == []
    assert bool(claims) == bool(text.strip())


def test_an_incident_without_a_word_is_no_claim(rules: Any) -> None:
    one = {"id": "inc_1", "series": "s", "opened_at": "x", "closed_at": None, "summary": ""}
    assert rules.compose.claims({}, [one], charter()) == []
    assert len(rules.compose.claims({}, [{**one, "summary": "a step"}], charter())) == 1


def test_a_text_of_a_megabyte_of_orders_is_read_in_linear_time(rules: Any) -> None:
    reader = rules.reading.Reader(charter())
    begun = time.process_time()
    found = reader.read(HEAD + "you must " * 50_000 + "send. You shall send it.")
    assert found["order"].startswith("you must you must")
    assert time.process_time() - begun < 2


@pytest.mark.parametrize(
    "line",
    [b"\xff\xfe", b"[" * 100_000, b"{}", b" " * (2 << 20), b'{"id":5}'],
    ids=["bytes", "deep", "keys", "large", "id"],
)
def test_no_incidents_are_read_out_of_what_is_no_list(
    tmp_path: Path, tools: Any, line: bytes
) -> None:
    (tmp_path / "weeks" / WEEK / "incidents.jsonl").write_bytes(line + b"\n")
    answer = tools("list_incidents", week=WEEK)
    assert (answer.state, "incidents.jsonl" in answer.error) == ("failed", True)


def test_links_are_no_papers_and_no_week(tmp_path: Path, tools: Any) -> None:
    week, other = tmp_path / "weeks" / WEEK, tmp_path / "other"
    other.mkdir()
    (other / "a.txt").write_text("secret")
    (week / "q.txt").symlink_to(other / "a.txt")
    (week / "r.txt").symlink_to("/nonexistent")
    (week.parent / "2026-W20").symlink_to(other)
    (week / "incidents.jsonl").unlink()
    (week / "incidents.jsonl").symlink_to(other / "a.txt")
    assert tools("list_documents", week=WEEK).data["of"] == len(TWELVE)
    assert tools("read_document", document=f"{WEEK}/q").state == "failed"
    assert tools("read_document", document="2026-W20/a").state == "failed"
    assert tools("list_documents", week="2026-W20").state == "failed"
    assert tools("list_incidents", week=WEEK).state == "failed"


@pytest.mark.parametrize(
    "given",
    [
        {"week": "2026-W54"}, {"week": "../x"}, {"week": "\u0662026-W19"},
        {"before": "0001-01-01"}, {"before": "9999-99"}, {"before": ""}, {},
    ],
)  # fmt: skip
def test_what_names_no_week_is_refused(tools: Any, given: dict[str, str]) -> None:
    assert tools("list_documents", **given).state == "failed"


def test_long_lists_are_told_in_pages_below_what_one_answer_holds(
    tmp_path: Path, tools: Any
) -> None:
    week = tmp_path / "weeks" / WEEK
    for at in range(260):
        (week / f"{'n' * 50}{at:03}.txt").write_text(HEAD)
    one = {"series": "s", "opened_at": "2026-05-04T01:10:00Z", "closed_at": None}
    lines = [json.dumps({**one, "id": f"inc_{at}", "summary": "é" * 2000}) for at in range(50)]
    (week / "incidents.jsonl").write_text("\n".join(lines))
    listed: list[str] = []
    start: int | None = 0
    while start is not None:
        data = tools("list_documents", week=WEEK, **{"from": start}).data
        assert len(orjson.dumps(data)) < 16 * 1024
        listed += [one["id"] for one in data["documents"]]
        start = data["next"]
    assert (len(listed), len(set(listed)), data["left_out"]) == (240, 240, 32)
    data = tools("list_incidents", week=WEEK).data
    assert len(orjson.dumps(data)) < 16 * 1024
    assert len(data["incidents"]) + data["left_out"] == 50


def test_the_judge_goes_on_where_a_page_of_the_list_ends(judge: Any) -> None:
    listed = {"documents": [{"id": f"{WEEK}/001", "bytes": 9}], "week": WEEK}
    notes = blank_notes(stage="list", **{"from": ""})
    first = answer(judge, notes, "document.list", **listed, next=1)
    asked, item = first.proposals
    assert (asked.tool, asked.args["from"].pointer) == ("document.list", "ref:/outcome/9/next")
    assert item.args["inputs"] == {"document": "ref:/outcome/9/documents/0/id"}
    last = answer(judge, first.notes, "document.list", **listed, next=None)
    assert [one.tool for one in last.proposals] == ["incident.list", "item.add"]


def test_a_report_of_far_too_much_fits_its_arguments(rules: Any) -> None:
    reader = rules.reading.Reader(charter())
    papers = {
        f"{WEEK}/{at:03}": reader.read(
            f"From: Ann\nDate: 2026-05-0{at % 9 + 1} 08:20\nSubject: {at % 100}\n\n"
            f"You must send {at % 100}. The pedestal on B14 is dead {'and dark ' * 20}{at % 100}.\n"
            f"B14 leaks {'and leaks ' * 20}"
            f"{at % 100}.\nArrivals: {at}\nThe pedestal on B14 is repaired, {at % 100}.\n"
        )
        for at in range(240)
    }  # fmt: skip
    claims = rules.compose.claims(papers, (), charter())
    assert len(claims) == 200
    assert all(0 < len(one["sources"]) <= 300 for one in claims)
    assert len(orjson.dumps(claims)) < 120_000


async def test_a_paper_that_changes_while_it_is_reviewed_is_read_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    weeks = write_small_week(tmp_path, ("011", "082"))
    paper = weeks / WEEK / "082.txt"

    def change(point: str) -> None:
        if point == "weekly.note:after" and "082.txt" not in seen and len(notes()) == 6:
            seen.append("082.txt")
            paper.write_text(paper.read_text("utf-8").replace("1.8 m", "1.6 m"), "utf-8")

    def notes() -> list[Path]:
        return list((tmp_path / "week" / "read").glob("*/*"))

    seen: list[str] = []
    monkeypatch.setattr(failpoint, "hook", change)
    async with weekly_fleet(tmp_path, weeks) as fleet:
        run = await start(fleet)
        await fleet.wait_until_idle(60)
        found = fleet.app.store.runs.run(run)
        assert found is not None
        assert (found.state, seen) == ("done", ["082.txt"])
        assert len(rows(fleet, run, "report.write")) == 2
    assert check_report(read_report(tmp_path), weeks)


async def test_after_a_refusal_it_goes_on_where_a_person_lets_it(tmp_path: Path) -> None:
    weeks = write_small_week(tmp_path, ("011", "082"))
    file = weeks / WEEK / "incidents.jsonl"
    good = file.read_bytes()
    file.write_bytes(b"{")
    async with weekly_fleet(tmp_path, weeks) as fleet:
        run = await start(fleet)
        await fleet.wait_until_idle(60)
        found = fleet.app.store.runs.run(run)
        assert found is not None
        assert (found.state, found.waits) == ("waiting", "person")
        file.write_bytes(good)
        await dispatch(fleet.app.commands, "work_resume", fleet.order(), {"run": run})
        await fleet.wait_until_idle(60)
        found = fleet.app.store.runs.run(run)
        assert found is not None
        assert found.state == "done"


# --- what the report says -------------------------------------------------------------------------


def test_what_a_harbour_master_has_to_know_stands_in_the_report_of_the_sample(
    tmp_path: Path, rules: Any
) -> None:
    texts = {
        number: content.decode() for number, content in make_week.papers() if number != UNREADABLE
    }
    _, wrong, report = read_week(rules, tmp_path, texts)
    assert wrong == []
    for words in (
        "085, 2026-05-06 19:45, Una Mackay, fuel berth: “About 4 litres of diesel made a sheen",
        "coastguard told at 19:50", "“My wife slipped this morning.”",
        "Shore power: 6 papers of trouble, at B12, B14, 2026-05-04 to 2026-05-09. 1 paper of a re",
        "Depth at the entrance: the papers say 2.4 m and 1.8 m.",
        "## To be followed up", "- Trouble that fits no theme (harbour office): 2 papers",
    ):  # fmt: skip
        assert words in report
    assert len(report.splitlines()) < 150
    assert "Nothing is broken" not in report


@pytest.mark.parametrize(
    ("sentence", "theme", "state"),
    [
        ("The breaker on B14 has not been repaired yet.", "power", "trouble"),
        ("The breaker on B14 is repaired.", "power", "mended"),
        ("Our barge had a broken mast.", "other", ""),
        ("The lift's brake failed with a boat in the slings.", "other", ""),
        ("Nothing is broken.", None, ""),
        ("A joy of a bar.", None, ""),
    ],
)
def test_words_are_whole_and_a_denied_repair_is_none(
    rules: Any, sentence: str, theme: str | None, state: str
) -> None:
    found = rules.reading.Reader(charter()).read(f"{HEAD}{sentence}\n")
    told = {id: list(one) for id, one in found.get("themes", {}).items()}
    expected = {"other": found.get("other")} if theme == "other" else {theme: [state]}
    if theme == "other":
        assert (told, expected["other"]) == ({}, [sentence])
    else:
        assert told == ({} if theme is None else expected)


def test_values_are_compared_by_number_and_unit_and_nothing_else_of_them_leaves(
    tmp_path: Path, rules: Any
) -> None:
    line = f"{DEPTH}: "
    alike = {"a": f"{HEAD}{line}2.4 m\n", "b": f"{HEAD}{line}2,40 m at low water springs.\n"}
    assert "the papers say" not in read_week(rules, tmp_path, alike)[2]
    bad = "closed by order, call +44 900 123 and pay Mr Crook"
    other = {"c": f"{HEAD}{line}1.8 m; {bad}\n", "d": f"{HEAD}{line}{bad}\n"}
    reader = rules.reading.Reader(charter())
    papers = {f"{WEEK}/{id}": reader.read(text) for id, text in {**alike, **other}.items()}
    ((to, subject, text),) = rules.compose.messages(papers, charter())
    assert (to, subject) == ("harbourmaster", DEPTH)
    assert "c, by “Ann”, 2026-05-04: “1.8 m”." in text
    assert "Crook" not in text


def test_without_a_place_nothing_contradicts(tmp_path: Path, rules: Any) -> None:
    def papers(where: str) -> dict[str, str]:
        later = HEAD.replace("05-04", "05-06")
        return {
            "a": f"{HEAD}The standpipe {where} is repaired.\n",
            "b": f"{later}The standpipe {where} is leaking.\n",
        }

    said = "said to be mended, and in trouble again"
    assert said not in read_week(rules, tmp_path, papers("by the gate"))[2]
    assert said in read_week(rules, tmp_path, papers("on C3"))[2]


def test_a_long_line_is_read_whole_in_ranges(judge: Any) -> None:
    text = f"{HEAD}line\n{'x ' * 100}The pedestal on B14 is dead. {'y ' * 300}"
    first = answer(judge, blank_notes(), "artefact.read", artefact="a", text=text, next=len(text))
    last = answer(judge, first.notes, "artefact.read", artefact="a", text=" end.\n", next=None)
    (found,) = last.notes["papers"].values()
    quote, place = found["themes"]["power"]["trouble"][0]
    assert place == "B14"
    assert "The pedestal on B14 is dead." in quote
    other = answer(judge, first.notes, "artefact.read", artefact="a", text=" and.\n", next=None)
    (changed,) = other.notes["papers"].values()
    assert changed["same"] != found["same"], "only its beginning says the same"


def test_a_text_without_a_full_stop_is_read_to_its_end(tmp_path: Path, rules: Any) -> None:
    text = f"{HEAD}{'and so on ' * 900}a man fell from the quay {'and on ' * 900}"
    claims, wrong, _ = read_week(rules, tmp_path, {"a": text})
    assert wrong == []
    ((source,),) = [one["sources"] for one in claims if one["section"] == TROUBLE]
    assert "a man fell from the quay" in source["quote"]


def test_what_the_agent_says_of_a_paper_is_told_as_its_words(tools: Any) -> None:
    for number in ("045", "082"):
        tools("read_document", document=f"{WEEK}/{number}")
    aside = [{"document": f"{WEEK}/{one}", "why": "nothing in it"} for one in ("045", "082", "1")]
    told = tools("write_report", week=WEEK, set_aside=aside, claims=[claim(f"{WEEK}/045", DEPTH)])
    assert "- 082: weekly_review, run_1 says: nothing in it\n" in told.data["report"]
    assert told.data["report"].count("nothing in it") == 1


def test_follow_ups_of_former_weeks_stay(tools: Any) -> None:
    module = load_module(checkout() / "agents" / "weekly_review", "tools")
    row = None
    for week in ("2026-W19", "2026-W20"):
        one: dict[str, Any] = {"title": week, "owner": "x", "why": "y", "documents": []}
        args = {"review": "weekly", "week": week, "follow_ups": [one]}
        given = Call("f", args, "k", "weekly_review", "run", {}, (), 1, 10**7, False)
        (write,) = module.file_follow_ups(given, row)
        row = write.row
    assert row is not None
    assert list(row["weeks"]) == ["2026-W19", "2026-W20"]


# --- made again -----------------------------------------------------------------------------------


class Died(Exception):
    pass


SENT = (
    "staged:before",
    "staged:after",
    "sent:before",
    "sent:after",
    "outbox:before",
    "outbox:after",
)


@pytest.mark.parametrize("point", SENT)
def test_a_message_leaves_once_though_the_outbox_is_emptied_and_the_tool_dies(
    tmp_path: Path, tools: Any, monkeypatch: pytest.MonkeyPatch, point: str
) -> None:
    def die(passed: str) -> None:
        if passed == f"weekly.{point}":
            raise Died

    def take() -> int:
        taken = list((tmp_path / "week" / "outbox").glob("*.json"))
        for file in taken:
            file.unlink()
        return len(taken)

    def send() -> None:
        args = {"to": "h@port.example", "week": WEEK, "subject": "Bar", "text": "It silts up."}
        assert tools("send_follow_up", key="one", person=True, **args).state == "done"

    with monkeypatch.context() as patched:
        patched.setattr(failpoint, "hook", die)
        with pytest.raises(Died):
            send()
    left = take()
    for _ in range(2):
        send()
        left += take()
    assert left == 1


@pytest.mark.parametrize(
    "point", ["answer:before", "answer:after", "report:before", "report:after"]
)
def test_a_report_that_is_asked_for_again_is_the_one_that_was_written(
    tmp_path: Path, tools: Any, monkeypatch: pytest.MonkeyPatch, point: str
) -> None:
    tools("read_document", document=f"{WEEK}/045")
    args = {"key": "one", "week": WEEK, "set_aside": [], "claims": [claim(f"{WEEK}/045", DEPTH)]}

    def die(passed: str) -> None:
        if passed == f"weekly.{point}":
            raise Died

    with monkeypatch.context() as patched:
        patched.setattr(failpoint, "hook", die)
        with pytest.raises(Died):
            tools("write_report", **args)
    if point != "answer:before":  # what was answered stands, though the paper is another by now
        (tmp_path / "weeks" / WEEK / "045.txt").write_text("changed")
    first, again = tools("write_report", **args), tools("write_report", **args)
    assert first.data["unsourced"] == 0
    assert first == again
    assert read_report(tmp_path) == first.data["report"]

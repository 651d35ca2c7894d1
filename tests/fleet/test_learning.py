"""People correct the mailbox's agent, and the fleet learns it when, and only when, it is promoted.

The shipped agents, memories and policy in a running fleet: what a correction changes (nothing),
what its promotion changes (the next like event), and how it is taken back.
"""

from __future__ import annotations

import asyncio
import json
import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace
from tests.segments import is_in

from vedette.adapters.schedule.source import ScheduleSource
from vedette.app.memory_trial import try_candidate
from vedette.app.sources import build_outcome_reader
from vedette.domain.base.canonical import canonical_json, sha256_hex
from vedette.domain.base.errors import AlreadyDone, BadCommand, NotFound, VedetteError
from vedette.domain.event import Event
from vedette.domain.memory import Candidate
from vedette.domain.ports.reasoner import ReasonerJudgement
from vedette.domain.run import Run
from vedette.interfaces.http.command_dispatch import dispatch
from vedette.interfaces.render.explain_text import explain_text
from vedette.ledger.history.explain import explain
from vedette.testing.clock import ManualClock
from vedette.testing.harness import FleetHarness, checkout, copy_policies, remove_tests
from vedette.testing.scripted import ScriptedReasoner

ODD = "Could the mooring crew drop by pontoon B about the squeaking fender?"
SENDER = "ann@stranger.example"
HOUR_US = 3_600_000_000


def mail(name: str, text: str = ODD) -> Event:
    data = {"from": SENDER, "subject": "The fender", "text": text, "list": False}
    return Event("maildir:test", name, "mail.received", name, None, data)


def content(folder: Path, *agents: str) -> Path:
    """Lay out a fleet of some of the shipped agents, with banks and policy as shipped."""
    root = folder / "content"
    if not root.exists():
        left_out = shutil.ignore_patterns("__pycache__", ".*")
        for name in agents:
            place = root / "agents" / name
            shutil.copytree(checkout() / "agents" / name, place, ignore=left_out)
        # A few examples of each label are enough, and are read and learned in no time.
        many = shutil.ignore_patterns("*-0[3-9].md", "*-1?.md", "facts", "procedures")
        shutil.copytree(checkout() / "memory", root / "memory", ignore=many)
        remove_tests(copy_policies(root / "policies"))
    return root


def desk(folder: Path, *agents: str, **more: Any) -> FleetHarness:
    agents = agents or ("inbox_triage", "memory_curator")
    targets = {
        "mailbox": {"kind": "maildir", "path": str(folder / "mail")},
        "oncall": {"kind": "webhook", "url": "http://127.0.0.1:9/hook"},
    }
    return FleetHarness(folder, content=content(folder, *agents), targets=targets, **more)


@pytest.fixture
async def fleet(tmp_path: Path) -> AsyncIterator[FleetHarness]:
    async with desk(tmp_path) as found:
        yield found


async def order(fleet: FleetHarness, verb: str, **args: Any) -> dict[str, Any]:
    answer = await dispatch(fleet.app.commands, verb, fleet.order("it was wrong"), args)
    await fleet.wait_until_idle()
    return answer


async def judged(fleet: FleetHarness, name: str, text: str = ODD) -> tuple[Run, str]:
    """Send a mail; return its run and how it was judged."""
    event = mail(name, text)
    await fleet.send(event)
    await fleet.wait_until_idle()
    (run,) = fleet.runs(event)
    document = [json.loads(raw) for _, raw, _ in fleet.app.store.ledger.entries("run", run.id)]
    labels = [entry["label"] for entry in document if "label" in entry]
    assert labels, f"{run.id} is {run.state} and was not judged"
    return run, labels[-1]


async def learned(fleet: FleetHarness, state: str | None = None) -> list[dict[str, Any]]:
    items = (await order(fleet, "memory_list", state=state))["items"]
    return [one for one in items if one["trust"] == "learned"]


async def stand(fleet: FleetHarness) -> list[tuple[Any, ...]]:
    """Return where everything stands that was learned, and what it says."""
    kept = ("id", "state", "kind", "label", "text", "by", "evidence", "replaces", "topics")
    return [tuple(one[name] for name in kept) for one in await learned(fleet)]


def taught(fleet: FleetHarness, agent: str = "inbox_triage") -> str:
    """Return a digest of what an agent's judge is made of."""
    curating = fleet.app.commands.curation
    assert curating is not None
    lessons = curating.lessons.preview_lessons(agent, fleet.app.services.clock.now_us())
    return sha256_hex(canonical_json([[one.cite(), one.digest] for one in lessons]))


# --- must be shown: nothing before promotion, everything after, and back ------------------------


async def test_a_correction_changes_nothing_before_promotion_and_the_next_event_after_it(
    fleet: FleetHarness,
) -> None:
    run, label = await judged(fleet, "1")
    assert label == "question"
    before = taught(fleet)
    said = await order(fleet, "correct", run=run.id, should="legal", note="it holds us liable")
    assert (said["outcome"], said["was"], said["should"]) == ("wrong", "question", "legal")

    # The curator was woken, and proposed; nobody promoted, so nothing is otherwise.
    (waits,) = await learned(fleet)
    await judged(fleet, "bill", "Please find invoice 7713 attached, due within thirty days.")
    seen = await order(fleet, "memory_show", id=waits["id"][:12])
    would = try_candidate(fleet.app.store, "inbox_triage", waits, seen["taught"]["inbox_triage"])
    assert would["events"] == 2
    assert [(one["run"], one["before"], one["after"]) for one in would["flips"]] == [
        (run.id, "question", "legal")
    ]
    assert (waits["state"], waits["kind"], waits["label"]) == ("candidate", "example", "legal")
    assert waits["evidence"] == [run.id, run.event]
    assert (waits["agent"], waits["event"]) == ("memory_curator", said["event"])
    assert waits["text"] == f"Subject: The fender\n\n{ODD}"
    assert taught(fleet) == before
    assert (await judged(fleet, "2"))[1] == "question"

    done = await order(fleet, "memory_approve", id=waits["id"])
    assert "inbox_triage" in done["judges"]
    assert taught(fleet) != before
    assert (await judged(fleet, "3"))[1] == "legal"
    assert (await judged(fleet, "4", "What do you charge for a week in May?"))[1] != "legal"

    await order(fleet, "memory_off", id=waits["id"])
    assert taught(fleet) == before
    assert (await judged(fleet, "5"))[1] == "question"
    await order(fleet, "memory_on", id=waits["id"])
    assert (await judged(fleet, "6"))[1] == "legal"

    text = "\n".join(line for _, line in explain_text(explain(fleet.app.store, run.id)))
    assert "CORRECTION it was wrong" in text
    assert "should have been legal, was question" in text
    assert "it holds us liable" in text
    kinds = [entry["kind"] for entry in fleet.entries() if entry["kind"].startswith("memory.")]
    assert kinds == ["memory.proposed", "memory.promoted", "memory.retired", "memory.restored"]


async def test_what_stands_is_the_ledger_s_word_and_the_bank_is_made_again_of_it(
    fleet: FleetHarness,
) -> None:
    run, _ = await judged(fleet, "1")
    await order(fleet, "correct", run=run.id, should="legal")
    (waits,) = await learned(fleet)
    await order(fleet, "memory_approve", id=waits["id"])
    await order(fleet, "memory_off", id="legal-01")
    before = taught(fleet), await stand(fleet)
    await fleet.close()
    for path in (fleet.folder / "state").glob("memory.db*"):
        path.unlink()
    await fleet.open()
    assert await stand(fleet) == before[1]
    (off,) = (await order(fleet, "memory_list", state="off"))["items"]
    assert off["id"] == "legal-01"
    assert (await judged(fleet, "2"))[1] == "legal"


async def test_it_holds_in_judges_of_processes_of_their_own(tmp_path: Path) -> None:
    async with desk(tmp_path, workers=True) as fleet:
        run, label = await judged(fleet, "1")
        assert label == "question"
        await order(fleet, "correct", run=run.id, should="legal")
        assert (await judged(fleet, "2"))[1] == "question"
        (waits,) = await learned(fleet)
        await order(fleet, "memory_approve", id=waits["id"])
        assert (await judged(fleet, "3"))[1] == "legal"
        await order(fleet, "memory_off", id=waits["id"])
        assert (await judged(fleet, "4"))[1] == "question"


# --- corrections ------------------------------------------------------------------------------


@pytest.mark.parametrize("workers", [False, True], ids=["here", "in its process"])
async def test_an_example_that_expires_teaches_no_longer_than_it_is_recalled(
    tmp_path: Path, workers: bool
) -> None:
    root = content(tmp_path, "inbox_triage")
    examples = root / "memory/inbox/examples"
    _, head, _ = (examples / "booking-01.md").read_text(encoding="utf-8").split("---", 2)
    head = head.replace("booking-01", "odd-01")
    assert "\nexpires_on: null" in head
    head = head.replace("expires_on: null", "expires_on: 2026-06-02")
    text = f"---{head}---\nSubject: The fender\n\n{ODD}\n"
    (examples / "odd-01.md").write_text(text, encoding="utf-8")
    clock = ManualClock(1_780_000_000_000_000)  # 28 May 2026
    async with desk(tmp_path, clock=clock, workers=workers) as fleet:
        assert (await judged(fleet, "1"))[1] == "booking"
        clock.advance(10 * 24 * HOUR_US)
        assert (await judged(fleet, "2"))[1] == "question"


async def test_said_again_it_is_done_already_and_said_otherwise_it_is_new(
    fleet: FleetHarness,
) -> None:
    run, _ = await judged(fleet, "1")
    await order(fleet, "correct", run=run.id, should="legal")
    head = fleet.app.store.ledger.last_seq()
    with pytest.raises(AlreadyDone):
        await order(fleet, "correct", run=run.id, should="legal")
    # What is no correction is refused, and changes nothing.
    for args, says in (
        ({"should": "lgeal"}, "did you mean 'legal'"),
        ({"should": "question"}, "was judged 'question'"),
        ({"should": "two\nlines", "new_label": True}, "one printable line"),
        ({"should": " ", "new_label": True}, "one printable line"),
        ({}, "say what should have been"),
        ({"should": "legal", "right": True}, "say what should have been"),
        ({"run": "run_nothing", "should": "legal"}, "nothing is known"),
    ):
        question: dict[str, Any] = {"run": run.id, **args}
        with pytest.raises(VedetteError, match=says):
            await order(fleet, "correct", **question)
    assert fleet.app.store.ledger.last_seq() == head
    await order(fleet, "correct", run=run.id, should="repairs", new_label=True)
    await order(fleet, "correct", run=run.id, right=True)
    await order(fleet, "correct", run=run.id, should="legal")
    said = fleet.entries("run.corrected")
    assert [entry["outcome"] for entry in said] == ["wrong", "wrong", "right", "wrong"]
    assert len({entry["what"] for entry in said if "what" in entry}) == 3
    assert all(entry["run"] == run.id for entry in said)
    # Nobody else can say what people said: not even a sender whose envelope is vouched for.
    (event,) = [fleet.app.store.runs.event(said[0]["what"])]
    assert event is not None
    (receipt,) = await fleet.send(replace(event, id="forged"))
    assert receipt.status == "refused"
    await order(fleet, "stop", agent="inbox_triage")
    await fleet.send(mail("2"))
    (run,) = fleet.runs(mail("2"))
    with pytest.raises(BadCommand, match="was not judged"):
        await order(fleet, "correct", run=run.id, should="legal")


# --- erasure ----------------------------------------------------------------------------------


async def test_erasing_the_event_takes_the_correction_the_candidate_and_what_was_promoted(
    fleet: FleetHarness,
) -> None:
    phrase = "the squeaking fender of pontoon Zephyr"
    runs = []
    for name in ("1", "2"):
        run, label = await judged(fleet, name, f"{name} asks: see to {phrase}")
        other = "legal" if label != "legal" else "alert"
        await order(fleet, "correct", run=run.id, should=other, note=phrase)
        for row in fleet.app.store.runs.actions(run.id):
            if row.hold == "open":
                await order(fleet, "deny", hold=row.id)
        runs.append(run)
    first, second = await learned(fleet)
    for waits in (first, second):
        await order(fleet, "memory_approve", id=waits["id"])
    await order(fleet, "erase", event=runs[0].event)
    assert [one["id"] for one in await learned(fleet)] == [second["id"]]
    with pytest.raises(VedetteError, match="erased"):
        await order(fleet, "correct", run=runs[0].id, should="invoice")
    await order(fleet, "erase", subject=SENDER)
    assert await learned(fleet) == []
    files = [path for path in (fleet.folder / "state").rglob("*") if path.is_file()]
    assert [path.name for path in files if is_in(phrase.encode(), path.read_bytes())] == []
    assert taught(fleet) == await afresh(fleet), "nothing of it is left after a start"
    with pytest.raises(NotFound):
        await order(fleet, "memory_approve", id=second["id"])


async def afresh(fleet: FleetHarness) -> str:
    await fleet.restart()
    return taught(fleet)


# --- promotion --------------------------------------------------------------------------------


async def test_each_candidate_is_promoted_once_and_never_when_it_was_rejected_or_erased(
    fleet: FleetHarness,
) -> None:
    run, _ = await judged(fleet, "1")
    for label in ("legal", "alert", "spam"):
        await order(fleet, "correct", run=run.id, should=label)
    once, rejected, erased = await learned(fleet)
    answers = await asyncio.gather(
        *(order(fleet, "memory_approve", id=once["id"]) for _ in range(2)), return_exceptions=True
    )
    assert [isinstance(one, AlreadyDone) for one in answers].count(True) == 1
    with pytest.raises(BadCommand, match="is recalled"):
        await order(fleet, "memory_reject", id=once["id"])
    await order(fleet, "memory_off", id=once["id"])
    with pytest.raises(BadCommand, match="was taken back"):
        await order(fleet, "memory_approve", id=once["id"])
    await order(fleet, "memory_reject", id=rejected["id"])
    with pytest.raises(BadCommand, match="was rejected"):
        await order(fleet, "memory_approve", id=rejected["id"])
    # The bank may still have it: another worker erased it, or the runner died in between.
    fleet.app.banks.forget = lambda *_: 0  # type: ignore[method-assign]
    fleet.app.banks.sync_states = lambda learned: set()  # type: ignore[method-assign]
    await order(fleet, "erase", entry=fleet.entries("memory.proposed")[-1]["seq"])
    assert erased["id"] in [one["id"] for one in await learned(fleet)]
    with pytest.raises(NotFound, match="was erased"):
        await order(fleet, "memory_approve", id=erased["id"])
    assert len(fleet.entries("memory.promoted")) == 1
    assert (await judged(fleet, "2"))[1] == "question"


async def test_everything_learned_from_a_source_is_taken_back_at_once(
    fleet: FleetHarness,
) -> None:
    runs = []
    for name, text in (("1", ODD), ("2", "The winter cover of berth nine flaps all night.")):
        run, label = await judged(fleet, name, text)
        await order(fleet, "correct", run=run.id, should="legal" if label != "legal" else "alert")
        runs.append(run)
    first, second = await learned(fleet)
    await order(fleet, "memory_approve", id=first["id"])
    by_hand = await order(fleet, "memory_propose", into="inbox/inbox", text="A fact.", kind="fact")
    await order(fleet, "memory_approve", id=by_hand["candidate"])
    with pytest.raises(NotFound):
        await order(fleet, "memory_off", source="nobody")

    await order(fleet, "memory_off", source=runs[0].id)
    states = {one["id"]: one["state"] for one in await learned(fleet)}
    assert states == {first["id"]: "off", second["id"]: "candidate", by_hand["candidate"]: "active"}
    await order(fleet, "memory_on", id=first["id"])
    assert [one["state"] for one in await learned(fleet)] == ["active", "candidate", "active"]
    done = await order(fleet, "memory_off", source="inbox_triage")
    assert [one["state"] for one in done["moved"]] == ["off", "rejected"]
    await order(fleet, "memory_off", source="person:tester")
    assert {one["state"] for one in await learned(fleet)} == {"off", "rejected"}
    with pytest.raises(AlreadyDone):
        await order(fleet, "memory_off", source=runs[0].event)


async def test_an_agent_that_is_no_writer_of_the_bank_proposes_nothing(tmp_path: Path) -> None:
    """What a stranger talks an agent into must not reach a bank that is none of its business."""

    def talked_into(_: Any) -> ReasonerJudgement:
        text = Candidate("operations", "metrics", "Never open an incident for pump 3.")
        return ReasonerJudgement(label="x", candidates=(text, Candidate("inbox", "inbox", "Mine.")))

    async with desk(tmp_path, reasoners={"judge": ScriptedReasoner([talked_into])}) as fleet:
        await fleet.send(mail("1"))
        await fleet.wait_until_idle()
        assert [one["memory"] for one in fleet.entries("memory.proposed")] == ["inbox"]
        (refused,) = fleet.entries("action.refused")
        assert "writer" in fleet.body(refused["seq"])["why"]


# --- judges with a state ------------------------------------------------------------------------


@asynccontextmanager
async def watching(folder: Path) -> AsyncIterator[FleetHarness]:
    async with desk(folder, "anomaly_detection") as fleet:
        yield fleet


def point(number: int) -> Event:
    value = 50 + (number * 37 % 11) + (400 if number == 330 else 0)
    at = f"2026-05-01T{number // 60:02}:{number % 60:02}:00.000000Z"
    return Event("csv:test", f"p{number}", "metric.point", "pump", at, {"value": value})


async def scores(fleet: FleetHarness, first: int, last: int) -> list[Any]:
    for at in range(first, last, 64):
        await fleet.send(*(point(number) for number in range(at, min(last, at + 64))))
        await fleet.wait_until_idle()
    closed = fleet.entries("run.closed", "turn.reasoned")
    assert not fleet.entries("run.dead")
    return [(one["event"], one.get("label"), one.get("score_milli")) for one in closed]


async def test_a_judge_with_a_history_loses_none_of_it_when_it_is_taught(tmp_path: Path) -> None:
    async with watching(tmp_path / "calm") as fleet:
        undisturbed = await scores(fleet, 0, 340)
    async with watching(tmp_path / "taught") as fleet:
        await scores(fleet, 0, 320)
        fact = {"into": "operations/metrics", "text": "Pump 3 is loud on Mondays."}
        proposed = await order(fleet, "memory_propose", **fact)
        done = await order(fleet, "memory_approve", id=proposed["candidate"])
        assert done["judges"] == ["anomaly_detection"]
        after = await scores(fleet, 320, 340)
    assert after[-20:] == undisturbed[-20:]
    assert len({score for _, _, score in undisturbed[-20:]}) > 1, "its history tells in the scores"


# --- what is handed to the curator ----------------------------------------------------------------


async def ticked(fleet: FleetHarness, clock: ManualClock) -> dict[str, Any]:
    """Let an hour pass and the schedules tick; return the data of the curator's tick."""
    source = ScheduleSource(fleet.app.services.fleet, clock, build_outcome_reader(fleet.app))
    clock.advance(HOUR_US)
    await source.wake(fleet.app.intake, clock.now_us())
    await fleet.wait_until_idle()
    events = [
        event
        for entry in fleet.entries("event.accepted")
        if (event := fleet.app.store.runs.event(entry["event"])) and event.type == "vedette.tick"
    ]
    return dict(events[-1].data) if events else {}


async def test_what_people_answer_alike_three_times_is_proposed_once_as_a_procedure(
    tmp_path: Path,
) -> None:
    clock = ManualClock(1_780_000_000_000_000)
    async with desk(tmp_path, clock=clock) as fleet:
        assert await ticked(fleet, clock) == {}, "nothing was missed before the first start"
        clock.advance(1_000_000)
        for number in range(3):
            run, label = await judged(fleet, f"{number}", f"{ODD} ({number})")
            assert label == "question"
            for row in fleet.app.store.runs.actions(run.id):
                if row.hold == "open":
                    await order(fleet, "deny", hold=row.id)
            if number == 1:
                answer = await ticked(fleet, clock)
                assert answer["gathered"]["patterns"]
                assert await learned(fleet) == [], "two are no pattern"
        answer = await ticked(fleet, clock)
        (answered,) = [p for p in answer["gathered"]["patterns"] if p["what"] == "answered"]
        assert (answered["tool"], answered["label"]) == ("mail.file", "question")
        (waits,) = await learned(fleet)
        assert (waits["kind"], waits["state"]) == ("procedure", "candidate")
        assert len(waits["evidence"]) == 3
        assert "People denied mail.file 3 times" in waits["text"]
        run, _ = await judged(fleet, "9")
        for row in fleet.app.store.runs.actions(run.id):
            if row.hold == "open":
                await order(fleet, "deny", hold=row.id)
        await ticked(fleet, clock)
        assert len(await learned(fleet)) == 1, "a pattern is proposed once"


async def test_what_policy_does_not_grant_is_not_handed_to_it(tmp_path: Path) -> None:
    clock = ManualClock(1_780_000_000_000_000)
    root = content(tmp_path, "inbox_triage", "memory_curator")
    grants = root / "policies/grants/data.yaml"
    text = grants.read_text(encoding="utf-8")
    assert ", ledger/outcomes]" in text
    grants.write_text(text.replace(", ledger/outcomes]", "]"), encoding="utf-8")
    async with desk(tmp_path, clock=clock) as fleet:
        await ticked(fleet, clock)
        clock.advance(1_000_000)
        run, _ = await judged(fleet, "1")
        await order(fleet, "correct", run=run.id, right=True)
        assert (await ticked(fleet, clock))["gathered"] is None
        denied = [e for e in fleet.entries("recall.decided") if e["memory"] == "ledger/outcomes"]
        assert {entry["outcome"] for entry in denied} == {"deny"}

"""Promise 6: memory is governed; with a control that shows the test can fail."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from vedette.adapters.policy_engines.regorus.engine import RegorusEngine
from vedette.domain.base.errors import BadCommand, Forbidden, NotFound
from vedette.domain.budget import DAY_US
from vedette.domain.event import Event
from vedette.domain.identity import Principal
from vedette.domain.memory import Briefing, Candidate
from vedette.domain.memory_state import TRANSITIONS
from vedette.domain.ports.reasoner import ReasonerJudgement
from vedette.interfaces.http.command_dispatch import dispatch
from vedette.memory.training_set import Lessons
from vedette.operations.commands import Order
from vedette.policy.replay import replay
from vedette.testing.clock import ManualClock
from vedette.testing.harness import FleetHarness, copy_policies, remove_tests
from vedette.testing.scripted import ScriptedReasoner
from vedette.testing.toy_fleet import World, job, toy_fleet


def mail(name: str, text: str = "When are you open on Sunday?") -> Event:
    data = {
        "from": "guest@visitors.example", "from_name": "Guest", "to": ["desk@example.org"],
        "cc": [], "reply_to": None, "subject": "Opening hours", "date": None, "text": text,
        "attachments": [], "list": False, "message_id": f"<{name}@x>", "defects": [],
    }  # fmt: skip
    return Event("maildir:test", name, "mail.received", name, None, data)


TARGETS = {"world": {"kind": "world"}}


def shipped(folder: Path, thinks: ScriptedReasoner | None = None) -> FleetHarness:
    targets = {
        "mailbox": {"kind": "maildir", "path": str(folder / "mail")},
        "oncall": {"kind": "webhook", "url": "http://127.0.0.1:9/none"},
        "board": {"kind": "board", "path": str(folder / "board.db")},
        "week": {"kind": "folder", "path": str(folder / "week")},
    }
    policies = remove_tests(copy_policies(folder / "policies"))
    reasoners = None if thinks is None else {"judge": thinks}
    return FleetHarness(folder, policies=policies, reasoners=reasoners, targets=targets)


def learns(briefing: Briefing) -> ReasonerJudgement:
    learned = Candidate("inbox", "inbox", "On Sunday we are open from noon.", ("hours",))
    return ReasonerJudgement(label="learned", candidates=(learned,))


def cited(briefing: Briefing) -> list[str]:
    return sorted(memory.cite() for memory in briefing.memories)


async def briefed(fleet: FleetHarness, thinks: ScriptedReasoner, name: str) -> list[str]:
    """Send a mail; return what its briefing cites."""
    await fleet.send(mail(name))
    await fleet.wait_until_idle()
    return cited(thinks.briefings[-1])


async def order(fleet: FleetHarness, verb: str, id: str) -> None:
    await dispatch(fleet.app.commands, verb, fleet.order(), {"id": id})


async def test_promise_06_memory_is_governed(tmp_path: Path) -> None:
    """Nothing reaches a briefing that policy denies or that no person reviewed or promoted.

    What an agent proposes is kept beside and changes no briefing; promoted, it is in the next one
    and cited with who promoted it; taken back, it is in none; erased, it is nowhere. Each is an
    entry, and each is so after a restart.
    """
    thinks = ScriptedReasoner([learns])
    async with shipped(tmp_path, thinks) as fleet:
        for name in ("1", "2"):
            await fleet.send(mail(name))
            await fleet.wait_until_idle()
        before, after = thinks.briefings
        assert before.memories
        assert all(memory.reviewed_by and memory.digest for memory in before.memories)
        assert after.memories == before.memories, "a candidate reached a briefing"
        proposed = fleet.entries("memory.proposed")
        assert len(proposed) == 2
        assert proposed[0]["event"] == mail("1").key, "it names the event it was learned from"
        turn = fleet.body(fleet.entries("turn.reasoned")[0]["seq"])
        assert turn["memories"] == [memory.cite() for memory in before.memories]
        (read,) = fleet.entries("recall.decided")
        assert (read["outcome"], read["memory"]) == ("permit", "inbox/inbox")

        # Restarted, the candidates are still only candidates.
        await fleet.restart()
        assert await briefed(fleet, thinks, "3") == cited(before)

        # A person promotes one: it is in the next briefing, and says by whom.
        first, other = (entry["what"] for entry in proposed)
        await order(fleet, "memory_approve", first)
        answer = await briefed(fleet, thinks, "4")
        assert set(answer) - set(cited(before)) == {f"inbox/{first}@1"}
        (memory,) = [one for one in thinks.briefings[-1].memories if one.id == first]
        assert (memory.trust, memory.reviewed_by) == ("learned", "person:tester")

        # It unlearns: at the next event, and for good after a restart.
        await order(fleet, "memory_off", first)
        assert await briefed(fleet, thinks, "5") == cited(before)
        await order(fleet, "memory_on", first)
        assert first in "".join(await briefed(fleet, thinks, "6"))
        await fleet.app.commands.erase(fleet.order(), event=mail("1").key)
        assert await briefed(fleet, thinks, "7") == cited(before)
        await fleet.restart()
        assert await briefed(fleet, thinks, "8") == cited(before)
        with pytest.raises(NotFound):
            await order(fleet, "memory_approve", first)
        kinds = [entry["kind"] for entry in fleet.entries(*TRANSITIONS)]
        assert kinds == ["memory.promoted", "memory.retired", "memory.restored"]
        assert other in [one.id for one in fleet.app.banks.candidates("inbox")]

        await fleet.apply_policy(without_grant(fleet, tmp_path / "p2"))
        await fleet.send(mail("9"))
        await fleet.wait_until_idle()
        assert thinks.briefings[-1].memories == ()
        denied = fleet.entries("recall.decided")[-1]
        assert (denied["outcome"], denied["rule"]) == ("deny", "grant.memory")


def without_grant(fleet: FleetHarness, to: Path) -> Path:
    shutil.copytree(fleet.policies, to)
    grants = to / "grants" / "data.yaml"
    text = grants.read_text()
    assert "memory: [inbox/inbox]" in text
    grants.write_text(text.replace("memory: [inbox/inbox]", "memory: []"))
    return to


async def test_promise_06_a_read_that_is_revoked_while_the_agent_thinks_is_thought_anew(
    tmp_path: Path,
) -> None:
    thinks = ScriptedReasoner([learns])
    fleet = shipped(tmp_path, thinks)
    reason = thinks.reason

    async def slowly(briefing: Briefing) -> ReasonerJudgement:
        thought = await reason(briefing)
        if len(thinks.briefings) == 1:
            await fleet.apply_policy(without_grant(fleet, tmp_path / "p2"))
        return thought

    thinks.reason = slowly  # type: ignore[method-assign]
    async with fleet:
        await fleet.send(mail("1"))
        await fleet.wait_until_idle()
        assert [bool(briefing.memories) for briefing in thinks.briefings] == [True, False]
        assert [entry["outcome"] for entry in fleet.entries("recall.decided")] == ["deny"]
        assert len(fleet.entries("turn.reasoned")) == 1


BANK = """\
bank: harbour
purpose: Two scopes, each with a reader of its own.
scopes:
  - {name: open, readers: [worker]}
  - {name: vault, readers: [helper]}
topics: []
"""
LABELLING = """\
from vedette.judging import Judge as Base
from vedette.judging import Judgement


class Judge(Base):
    def judge(self, seen, briefing):
        made_of = ",".join(sorted(memory.id for memory in self.lessons))
        return Judgement(label=made_of or "nothing", confidence=1.0)
"""


def two_scopes(folder: Path, clock: ManualClock) -> FleetHarness:
    """A bank of two scopes; the judge's label is what it was made of, the entry cites the rest."""
    extra = {
        "grants/data.yaml": "worker: {mode: act, tools: {}, memory: [harbour/open]}\n"
        "helper: {mode: act, tools: {}, memory: [harbour/vault]}\n"
    }
    fleet = toy_fleet(folder, World(), agents=("worker", "helper"), extra=extra, clock=clock)
    for name, scope in (("worker", "open"), ("helper", "vault")):
        agent = folder / "content" / "agents" / name
        text = (agent / "agent.yaml").read_text()
        more = f"memory: [{{bank: harbour, scope: {scope}, limit: 8}}]\n"
        (agent / "agent.yaml").write_text(text + more)
        (agent / "judge.py").write_text(LABELLING)
    bank = folder / "content" / "memory" / "harbour"
    bank.mkdir()
    (bank / "bank.yaml").write_text(BANK)
    for id, scope, until in (
        ("tide", "open", "null"), ("storm", "open", "2025-06-20"), ("safe", "vault", "null"),
    ):  # fmt: skip
        (bank / f"{id}.md").write_text(
            f"---\nid: {id}\nscope: {scope}\nkind: fact\nreviewed_by: desk@example.org\n"
            f"reviewed_on: 2025-06-01\nexpires_on: {until}\n---\nThe tide turns at noon: {id}.\n"
        )
    return fleet


async def remembered(fleet: FleetHarness, name: str, agent: str = "worker") -> tuple[str, str]:
    """Return what an agent's judge was made of, and what it was briefed with, for one event."""
    event = job(name, agent=agent, text="When does the tide turn?", key=name)
    await fleet.send(event)
    await fleet.wait_until_idle()
    (closed,) = [one for one in fleet.entries("run.closed") if one["event"] == event.key]
    return closed["label"], closed.get("memory", "")


async def test_promise_06_no_identity_reads_outside_its_scopes_or_beyond_the_last_day(
    tmp_path: Path, clock: ManualClock
) -> None:
    async with two_scopes(tmp_path, clock) as fleet:
        made_of, cited = await remembered(fleet, "1")
        assert made_of == "storm,tide"
        assert sorted(cited.split(",")) == ["harbour/storm@1", "harbour/tide@1"]
        assert await remembered(fleet, "2", "helper") == ("safe", "harbour/safe@1")
        clock.advance(10 * DAY_US)
        assert await remembered(fleet, "3") == ("tide", "harbour/tide@1")
        await fleet.restart()
        assert await remembered(fleet, "4") == ("tide", "harbour/tide@1")


async def test_promise_06_nobody_but_a_person_promotes(tmp_path: Path) -> None:
    thinks = ScriptedReasoner([learns])
    async with shipped(tmp_path, thinks) as fleet:
        before = await briefed(fleet, thinks, "1")
        (proposed,) = fleet.entries("memory.proposed")
        for nobody in (Principal("engine", "inbox_triage"), Principal("engine", "vedette")):
            with pytest.raises((Forbidden, BadCommand)):
                await dispatch(
                    fleet.app.commands, "memory_approve", Order(nobody, "I am sure"),
                    {"id": proposed["what"]},
                )  # fmt: skip
        assert await briefed(fleet, thinks, "2") == before


async def test_promise_06_control_a_candidate_taught_without_promotion_is_seen(
    tmp_path: Path,
) -> None:
    """The bank is told that a candidate is active, and no entry says so."""
    thinks = ScriptedReasoner([learns])
    async with shipped(tmp_path, thinks) as fleet:
        before = await briefed(fleet, thinks, "1")
        (one,) = fleet.app.store.memories.all().values()
        one.state = "active"
        fleet.app.banks.sync_states([one])
        assert not fleet.entries("memory.promoted")
        assert await briefed(fleet, thinks, "2") != before


async def judged(fleet: FleetHarness, name: str) -> tuple[str, int]:
    """Return label and confidence of one more mail that the examples know well."""
    text = "Invoice 1042 for mooring fees is attached. Please pay the amount due by 30 June."
    await fleet.send(mail(name, text))
    await fleet.wait_until_idle()
    assert fleet.runs(mail(name))[0].state in ("done", "waiting"), "no dead letter"
    turns = fleet.entries("turn.reasoned", "run.closed")
    entries = [entry for entry in turns if entry["event"] == mail(name).key and "label" in entry]
    return entries[0]["label"], entries[0]["confidence_milli"]


def inbox_reads(fleet: FleetHarness) -> list[tuple[int, str]]:
    """Return what was decided of the inbox outside any run: what its judge is made of."""
    return [
        (entry["policy_rev"], entry["outcome"])
        for entry in fleet.entries("recall.decided")
        if entry["agent"] == "inbox_triage" and "run" not in entry
    ]


async def test_promise_06_a_judge_is_made_of_nothing_that_policy_denies_it(
    tmp_path: Path,
) -> None:
    async with shipped(tmp_path) as fleet:
        first = await judged(fleet, "1")
        assert first[1] > 0
        await fleet.apply_policy(without_grant(fleet, tmp_path / "p2"))
        assert await judged(fleet, "2") == ("other", 0), "it forgot what it may not read"
        await fleet.restart()
        assert await judged(fleet, "3") == ("other", 0), "nor is it made of it at a start"
        await fleet.apply_policy(fleet.policies)
        assert await judged(fleet, "4") == first, "the same memories make the same judge"
        assert inbox_reads(fleet) == [(1, "permit"), (2, "deny"), (2, "deny"), (3, "permit")]
        report = replay(fleet.app.store, RegorusEngine)
        assert report.ok, report.differences
        assert report.revisions[2]["deny"] >= 2


async def test_promise_06_control_a_judge_that_keeps_what_was_revoked_is_seen(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with shipped(tmp_path) as fleet:
        first = await judged(fleet, "1")
        monkeypatch.setattr(Lessons, "adopt", lambda *given: [])
        await fleet.apply_policy(without_grant(fleet, tmp_path / "p2"))
        assert await judged(fleet, "2") == first


def series(row: int) -> Event:
    value = 1000 if row == 110 else row % 7
    time = f"2026-05-01T{row // 60:02}:{row % 60:02}:00Z"
    return Event("csv:test", str(row), "metric.point", "pump", time, {"value": value})


async def test_promise_06_a_judge_made_anew_takes_up_what_it_saw(tmp_path: Path) -> None:
    """What a judge learned of events is not a memory: it survives the loss of its lessons."""
    results = []
    for changed in (False, True):
        folder = tmp_path / str(changed)
        folder.mkdir()
        async with shipped(folder) as fleet:
            await fleet.send(*(series(row) for row in range(109)))
            await fleet.wait_until_idle()
            if changed:
                text = (fleet.policies / "grants" / "data.yaml").read_text()
                other = folder / "p2"
                shutil.copytree(fleet.policies, other)
                without = text.replace("memory: [operations/metrics]", "memory: []")
                assert without != text
                (other / "grants" / "data.yaml").write_text(without)
                await fleet.apply_policy(other)
            await fleet.send(*(series(row) for row in range(109, 112)))
            await fleet.wait_until_idle()
            scores = [
                (entry["event"], entry["label"], entry.get("score_milli"))
                for entry in fleet.entries("turn.reasoned", "run.closed")
                if "label" in entry
            ]
            results.append(sorted(scores))
    assert results[0] == results[1]
    assert len(results[0]) == 112

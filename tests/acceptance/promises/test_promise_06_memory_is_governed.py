"""Promise 6: memory is governed; with a control that shows the test can fail."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

from vedette.event import Event
from vedette.memory import Briefing, Candidate
from vedette.ports import Thought
from vedette.testing.harness import FleetHarness, copy_policies, without_tests
from vedette.testing.scripted import ScriptedReasoner


def mail(name: str, text: str = "When are you open on Sunday?") -> Event:
    data = {
        "from": "guest@visitors.example", "from_name": "Guest", "to": ["desk@example.org"],
        "cc": [], "reply_to": None, "subject": "Opening hours", "date": None, "text": text,
        "attachments": [], "list": False, "message_id": f"<{name}@x>", "defects": [],
    }  # fmt: skip
    return Event("maildir:test", name, "mail.received", name, None, data)


TARGETS = {"world": {"kind": "world"}}


def shipped(folder: Path, thinks: ScriptedReasoner) -> FleetHarness:
    targets = {
        "mailbox": {"kind": "maildir", "path": str(folder / "mail")},
        "oncall": {"kind": "webhook", "url": "http://127.0.0.1:9/none"},
    }
    policies = without_tests(copy_policies(folder / "policies"))
    return FleetHarness(folder, policies=policies, reasoners={"judge": thinks}, targets=targets)


def learns(briefing: Briefing) -> Thought:
    learned = Candidate("inbox", "inbox", "On Sunday we are open from noon.", ("hours",))
    return Thought(label="learned", candidates=(learned,))


async def test_promise_06_memory_is_governed(tmp_path: Path) -> None:
    """As far as banks of reviewed files go; promotion and unlearning come with the governed bank.

    Reads are decided by policy, every memory of a briefing is cited and was reviewed by somebody,
    and what an agent proposes is kept beside and changes no briefing.
    """
    thinks = ScriptedReasoner([learns])
    async with shipped(tmp_path, thinks) as fleet:
        for name in ("1", "2"):
            await fleet.send(mail(name))
            await fleet.settle()
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
        await fleet.send(mail("3"))
        await fleet.settle()
        assert thinks.briefings[-1].memories == before.memories

        await fleet.apply(without_grant(fleet, tmp_path / "p2"))
        await fleet.send(mail("4"))
        await fleet.settle()
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

    async def slowly(briefing: Briefing) -> Thought:
        thought = await reason(briefing)
        if len(thinks.briefings) == 1:
            await fleet.apply(without_grant(fleet, tmp_path / "p2"))
        return thought

    thinks.reason = slowly  # type: ignore[method-assign]
    async with fleet:
        await fleet.send(mail("1"))
        await fleet.settle()
        assert [bool(briefing.memories) for briefing in thinks.briefings] == [True, False]
        assert [entry["outcome"] for entry in fleet.entries("recall.decided")] == ["deny"]
        assert len(fleet.entries("turn.reasoned")) == 1


async def test_promise_06_control_a_candidate_that_is_recalled_is_seen(tmp_path: Path) -> None:
    thinks = ScriptedReasoner([learns])
    async with shipped(tmp_path, thinks) as fleet:
        recall = fleet.app.banks.recall

        def leaky(bank: str, *given: Any) -> Any:
            found = recall(bank, *given)
            return found + found[:1] if fleet.app.banks.candidates(bank) else found

        fleet.app.banks.recall = leaky  # type: ignore[assignment]
        for name, text in (("1", "When are you open?"), ("2", "When are you open, please?")):
            await fleet.send(mail(name, text))
            await fleet.settle()
        assert len(thinks.briefings[1].memories) > len(thinks.briefings[0].memories)

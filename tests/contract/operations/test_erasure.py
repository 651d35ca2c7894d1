"""What is erased is in no file of the state folder, in no bank, and can be found to be erased."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from pathlib import Path
from typing import Any

import pytest
from tests.acceptance.promises.test_promise_06_memory_is_governed import mail, shipped
from tests.segments import is_in

from vedette.domain.base.errors import BadCommand
from vedette.domain.entry import Body, Draft
from vedette.domain.erasure import ErasureResult, ErasureTarget
from vedette.domain.event import Event
from vedette.domain.memory import Briefing, Candidate
from vedette.domain.ports.reasoner import ReasonerJudgement
from vedette.domain.ports.sources import Refused
from vedette.domain.run import CommitResult, Step
from vedette.interfaces.daemon import build_bank_feed
from vedette.store.sqlite import SqliteReader
from vedette.testing.harness import FleetHarness
from vedette.testing.sample_steps import agents_of
from vedette.testing.scripted import ScriptedReasoner
from vedette.testing.toy_fleet import World, job, send_proposal, toy_fleet

PHRASE = "a phrase that is said nowhere else"
GUEST = "guest@visitors.example"


@pytest.fixture
def world() -> World:
    return World()


def holding(folder: Path, phrase: str = PHRASE) -> set[str]:
    """Return the names of the files of a state folder that hold a phrase, be it packed or not."""
    files = [path for path in (folder / "state").rglob("*") if path.is_file()]
    return {path.name for path in files if is_in(phrase.encode(), path.read_bytes())}


# --- the files ------------------------------------------------------------------------------


async def test_no_file_holds_what_was_erased(tmp_path: Path, world: World) -> None:
    async with toy_fleet(tmp_path, world) as fleet:
        await fleet.send(
            job("1", send_proposal(PHRASE), key="somebody"), job("2", send_proposal("stays"))
        )
        await fleet.wait_until_idle()
        # Whatever is in the log alone is in the store's own pages, too, before it is erased.
        fleet.app.store.parts.database.rows("PRAGMA wal_checkpoint(FULL)")
        assert {"store.db", "store.db-wal"} <= holding(tmp_path)
        done = await fleet.app.commands.erase(fleet.order(), subject="somebody")
        assert done["scrubbed"]
        assert holding(tmp_path) == set()
        assert holding(tmp_path, "stays") == {"store.db"}


async def test_a_reader_may_keep_the_log_for_a_while(tmp_path: Path, world: World) -> None:
    """Its copies go with the first commit after the reader went."""
    async with toy_fleet(tmp_path, world) as fleet:
        await fleet.send(job("1", send_proposal(PHRASE), key="somebody"))
        await fleet.wait_until_idle()
        reader = SqliteReader(tmp_path / "state")
        with reader.snapshot():
            assert reader.ledger.last_seq() > 0
            done = await fleet.app.commands.erase(fleet.order(), subject="somebody")
            assert done["erased"]
            assert not done["scrubbed"]
            assert holding(tmp_path)
        reader.close()
        await fleet.send(job("2"))
        assert holding(tmp_path) == set()


# --- the banks ------------------------------------------------------------------------------


def learns(briefing: Briefing) -> ReasonerJudgement:
    texts = (PHRASE, "something harmless")
    return ReasonerJudgement(
        candidates=tuple(Candidate("inbox", "inbox", text, ("hours",)) for text in texts)
    )


def texts(fleet: FleetHarness) -> list[str]:
    return sorted(candidate.text for candidate in fleet.app.banks.candidates("inbox"))


async def test_what_was_proposed_out_of_it_leaves_the_bank(tmp_path: Path) -> None:
    async with shipped(tmp_path, ScriptedReasoner([learns])) as fleet:
        await fleet.send(mail("1"))
        await fleet.wait_until_idle()
        assert texts(fleet) == [PHRASE, "something harmless"]
        assert holding(tmp_path) > {"store.db-wal"}
        await fleet.app.commands.erase(fleet.order(), subject=GUEST)
        assert texts(fleet) == []
        assert holding(tmp_path) == set()
        await fleet.restart()
        assert texts(fleet) == []


async def test_of_one_erased_entry_only_its_own_candidate_goes(tmp_path: Path) -> None:
    async with shipped(tmp_path, ScriptedReasoner([learns])) as fleet:
        await fleet.send(mail("1"))
        await fleet.wait_until_idle()
        proposed = [e["seq"] for e in fleet.entries("memory.proposed")]
        (seq,) = [seq for seq in proposed if fleet.body(seq)["text"] == PHRASE]
        await fleet.app.commands.erase(fleet.order(), entry=seq)
        assert texts(fleet) == ["something harmless"]
        await fleet.restart()
        assert texts(fleet) == ["something harmless"]


async def test_a_runner_killed_between_store_and_bank_forgets_at_its_start(tmp_path: Path) -> None:
    event = mail("1")
    async with shipped(tmp_path, ScriptedReasoner([learns])) as fleet:
        await fleet.send(event)
        await fleet.wait_until_idle()
        draft = Draft("body.erased", {"actor": "person:kim"}, body=Body(b"{}"))
        await fleet.app.store.commands.erase(
            ErasureTarget("event", event.key), draft, stateless=agents_of(fleet.app.store)
        )
        assert texts(fleet) == [PHRASE, "something harmless"]
        await fleet.restart()
        assert texts(fleet) == []
        assert holding(tmp_path) == set()


@pytest.mark.parametrize("by", ["this worker", "another"])
async def test_what_is_erased_before_its_bank_has_it_never_enters(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, by: str
) -> None:
    """The step is durable, the erasure too, and the bank has forgotten what it did not know yet."""
    event = mail("1")
    async with shipped(tmp_path, ScriptedReasoner([learns])) as fleet:
        store, hear, erased = fleet.app.store, build_bank_feed(fleet.app), list[Any]()
        send_step = store.steps.send

        async def erase() -> Any:
            if by == "this worker":
                return await fleet.app.commands.erase(fleet.order(), event=event.key)
            draft = Draft("body.erased", {"actor": "person:kim"}, body=Body(b"{}"))
            done = await store.commands.erase(
                ErasureTarget("event", event.key), draft, stateless=agents_of(store)
            )
            hear()  # as the follower does at news
            return done

        async def delay_commit(step: Step, commit: Awaitable[CommitResult]) -> CommitResult:
            committed = await commit
            if step.candidates:
                erased.append(await erase())
            return committed

        def send_later(step: Step) -> Awaitable[CommitResult]:
            return asyncio.ensure_future(delay_commit(step, send_step(step)))

        monkeypatch.setattr(store.steps, "send", send_later)
        await fleet.send(event)
        await fleet.wait_until_idle()
        assert len(erased) == 1
        assert texts(fleet) == []
        assert holding(tmp_path) - {"store.db-wal"} == set()
        assert fleet.app.services.recall.lag_reason == ""


# --- what was refused -----------------------------------------------------------------------


def too_large(subject: str | None = "somebody") -> Event:
    return Event("test", "large", "worker.job", subject, None, {"x": PHRASE * 20_000})


@pytest.mark.parametrize("by", ["event", "subject"])
async def test_a_refused_event_is_found_by_its_key_and_its_subject(
    tmp_path: Path, world: World, by: str
) -> None:
    event = too_large()
    async with toy_fleet(tmp_path, world) as fleet:
        (receipt,) = await fleet.send(event)
        assert receipt.status == "refused"
        (refused,) = fleet.entries("event.refused")
        assert refused["event"] == event.key
        key, who = (event.key, None) if by == "event" else (None, "somebody")
        done = await fleet.app.commands.erase(fleet.order(), event=key, subject=who)
        assert done["erased"] == [refused["body"]]


async def test_a_refused_delivery_without_either_is_found_by_its_entry(
    tmp_path: Path, world: World
) -> None:
    async with toy_fleet(tmp_path, world) as fleet:
        await fleet.app.intake.accept([Refused("line 3", "it is no JSON", PHRASE.encode())])
        (refused,) = fleet.entries("event.refused")
        assert holding(tmp_path)
        done = await fleet.app.commands.erase(fleet.order(), entry=refused["seq"])
        assert done["erased"] == [refused["body"]]
        assert holding(tmp_path) == set()
        with pytest.raises(BadCommand, match="no body"):
            await fleet.app.commands.erase(fleet.order(), entry=refused["seq"])
        for none in (0, -1, 2**63, True):
            with pytest.raises(BadCommand, match="is no entry"):
                await fleet.app.commands.erase(fleet.order(), entry=none)
        with pytest.raises(BadCommand, match="say what"):
            await fleet.app.commands.erase(fleet.order(), entry=refused["seq"], subject="x")


@pytest.mark.parametrize("name", ["\udcff", "x" * 2000])
async def test_an_event_without_a_sound_id_is_refused_alone(
    tmp_path: Path, world: World, name: str
) -> None:
    async with toy_fleet(tmp_path, world) as fleet:
        bad = Event("test", name, "worker.job", "\udcff", None, {})
        receipts = await fleet.send(bad, job("1"))
        assert [receipt.status for receipt in receipts] == ["refused", "accepted"]
        (refused,) = fleet.entries("event.refused")
        assert "event" not in refused


async def test_a_content_that_a_run_needs_is_not_erased_by_entry(
    tmp_path: Path, world: World
) -> None:
    async with toy_fleet(tmp_path, world) as fleet:
        event = job("1", send_proposal(PHRASE, tool="big.send"))
        await fleet.send(event)
        await fleet.wait_until_idle()
        (run,) = fleet.runs(event)
        assert run.state == "waiting"
        with pytest.raises(BadCommand, match="still needs"):
            await fleet.app.commands.erase(fleet.order(), entry=run.position)


# --- what judges have learned of it ---------------------------------------------------------


async def test_a_run_judged_while_its_content_is_being_erased_stays_learned(
    tmp_path: Path, world: World
) -> None:
    """States are kept before the content goes; whoever has observed it since is kept, too."""
    first, late = (job(str(n), value=n, key="somebody") for n in (1, 2))
    last = job("4", value=4, key="somebody")
    async with toy_fleet(tmp_path, world) as fleet:
        await fleet.send(first)
        await fleet.wait_until_idle()
        store, erase = fleet.app.store, fleet.app.store.commands.erase

        async def erase_later(*given: Any, **more: Any) -> ErasureResult:
            store.commands.erase = erase  # type: ignore[method-assign]
            await fleet.send(late)
            await fleet.wait_until_idle()
            return await erase(*given, **more)

        store.commands.erase = erase_later  # type: ignore[method-assign]
        done = await fleet.app.commands.erase(fleet.order(), subject="somebody")
        assert len(done["erased"]) == 2
        await fleet.restart()
        await fleet.send(last)
        await fleet.wait_until_idle()
        (label,) = [e["label"] for e in fleet.entries("run.closed") if e["event"] == last.key]
        assert label == "sum 7 of 3"

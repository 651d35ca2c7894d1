"""Two workers of one fleet on PostgreSQL: what is promoted at one is what the other teaches."""

from __future__ import annotations

import asyncio
import errno
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace
from tests.broken_disk import broken_disk
from tests.fleet.test_learning import desk, learned, order, taught
from tests.pg import server
from tests.segments import is_in

from vedette.config.settings import StorePlan
from vedette.domain.base.errors import StoreFailed
from vedette.domain.event import Event
from vedette.engine.cluster import follow_cluster
from vedette.interfaces.daemon import build_bank_feed
from vedette.testing.harness import FleetHarness
from vedette.testing.scripted import ScriptedReasoner
from vedette.testing.toy_fleet import wait_until


def following(fleet: FleetHarness) -> asyncio.Task[None]:
    """Follow the others as the runner does."""
    app = fleet.app
    return asyncio.create_task(
        follow_cluster(app.services, app.rollout, build_bank_feed(app), print)
    )


def pair(folder: Path, **more: Any) -> tuple[FleetHarness, FleetHarness]:
    """Return two workers of one fleet that nobody has taught; `more` is the second one's plan."""
    url = folder / "url"
    url.write_text(server(fsync=False).fresh())
    plan = StorePlan("postgresql", url_file=str(url), lease_us=5_000_000)
    one, other = (
        desk(folder / name, store=own, reasoners={"judge": ScriptedReasoner([])})
        for name, own in (("one", plan), ("other", replace(plan, **more)))
    )
    return one, other


def share_key(folder: Path) -> None:
    (folder / "other" / "state").mkdir()
    shutil.copy(folder / "one/state/ledger.key", folder / "other/state/ledger.key")


async def promoted(fleet: FleetHarness, text: str = "The pier is shut.") -> tuple[str, int]:
    answer = await order(fleet, "memory_propose", into="inbox/inbox", text=text, kind="fact")
    await order(fleet, "memory_approve", id=answer["candidate"])
    return answer["candidate"], answer["entry"]


def state(fleet: FleetHarness, id: str) -> str:
    found = [one["state"] for one in fleet.app.banks.list_memories() if one["id"] == id]
    return found[0] if found else "gone"


async def test_an_idle_worker_hears_of_what_a_visitor_takes_back_and_erases(
    tmp_path: Path,
) -> None:
    one, visitor = pair(tmp_path, visit=True)
    async with one:
        share_key(tmp_path)
        task = following(one)
        try:
            (off, _), (erased, entry) = await promoted(one), await promoted(one, "Call 555-0199.")
            async with visitor:
                await order(visitor, "memory_off", id=off)
                await wait_until(lambda: state(one, off) == "off", 20)
                await order(visitor, "erase", entry=entry)
                await wait_until(lambda: state(one, erased) == "gone", 20)
            assert not one.app.store.cluster.is_shared, "nobody else works here"
            files = [path for path in (tmp_path / "one/state").rglob("*") if path.is_file()]
            assert not [path for path in files if is_in(b"555-0199", path.read_bytes())]
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)


async def test_what_is_ordered_while_a_worker_starts_reaches_it(tmp_path: Path) -> None:
    one, other = pair(tmp_path)
    async with one:
        share_key(tmp_path)
        id, _ = await promoted(one)
        async with other:
            await order(one, "memory_off", id=id)
            assert state(other, id) == "active", "it has read the ledger, and follows nobody yet"
            task = following(other)
            try:
                await wait_until(lambda: state(other, id) == "off", 20)
            finally:
                task.cancel()
                await asyncio.gather(task, return_exceptions=True)


@pytest.mark.parametrize("full", [False, True], ids=["fails", "full"])
async def test_a_worker_whose_disk_takes_no_order_of_another_lives_and_takes_it_later(
    tmp_path: Path, full: bool
) -> None:
    one, other = pair(tmp_path)
    async with one:
        share_key(tmp_path)
        id, _ = await promoted(one)
        with broken_disk("memory.db") as disk:
            async with other:
                task, recall = following(other), other.app.services.recall
                try:
                    await wait_until(lambda: state(other, id) == "active", 20)
                    disk.full = full
                    disk.fail(tmp_path / "other" / "state" / "memory.db")
                    await order(one, "memory_off", id=id)
                    await wait_until(lambda: recall.lag_reason != "" or task.done(), 20)
                    assert not task.done()
                    agent = other.app.services.fleet.agents["inbox_triage"]
                    event = Event("maildir:test", "late", "mail.received", "late")
                    with pytest.raises(StoreFailed, match="behind what people ordered"):
                        recall.find_memories(agent, event, other.app.services.clock.now_us())
                    assert "disk" in recall.lag_reason
                    disk.broken = False
                    await wait_until(lambda: not recall.lag_reason, 20)
                    assert state(other, id) == "off"
                finally:
                    disk.broken = False
                    task.cancel()
                    await asyncio.gather(task, return_exceptions=True)


async def test_a_follower_that_the_disk_refuses_anything_tries_again(tmp_path: Path) -> None:
    """Whatever it reads or writes for another worker's sake: here a snapshot of a release."""
    tried: list[int] = []
    troubles: list[str] = []

    async def releases(trouble: Callable[[str], None]) -> None:
        tried.append(1)
        if len(tried) == 1:
            raise OSError(errno.ENOSPC, "No space left on device", "snapshots")

    async with desk(tmp_path, reasoners={"judge": ScriptedReasoner([])}) as one:
        app = one.app
        work = follow_cluster(
            app.services, app.rollout, build_bank_feed(app), troubles.append, releases
        )
        task = asyncio.create_task(work)
        try:
            await wait_until(lambda: len(tried) == 2 or task.done(), 20)
            assert not task.done()
            assert ["snapshots: the disk is full" in message for message in troubles] == [True]
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)


async def test_an_order_that_was_overtaken_does_not_undo_the_later_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, other = pair(tmp_path)
    async with one:
        share_key(tmp_path)
        id, _ = await promoted(one)
        async with other:
            hears, other_hears = build_bank_feed(one.app), build_bank_feed(other.app)
            commit = one.app.store.commands.move_memories

            async def overtaken(*moves: Any, command: str | None = None) -> Any:
                moved = await commit(*moves, command=command)
                other_hears()
                await order(other, "memory_on", id=id)
                hears()
                return moved

            monkeypatch.setattr(one.app.store.commands, "move_memories", overtaken)
            answer = await order(one, "memory_off", id=id)
            assert [each["state"] for each in answer["moved"]] == ["off"], (
                "so its own order left it"
            )
            assert (state(one, id), state(other, id)) == ("active", "active")


@pytest.mark.parametrize("read", ["here", "away"])
async def test_what_a_person_proposed_and_another_erased_never_enters_the_bank(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, read: str
) -> None:
    """Also where the store cannot be read in that moment: then the bank is behind, not ahead."""
    one, other = pair(tmp_path)
    async with one:
        share_key(tmp_path)
        async with other:
            hears, store = build_bank_feed(one.app), one.app.store
            commit, learned_of = store.commands.propose_memory, store.memories.all

            def away() -> Any:
                raise StoreFailed("the server is away")

            async def overtaken(*given: Any, **more: Any) -> Any:
                entry = await commit(*given, **more)
                await order(other, "erase", entry=entry)
                hears()
                if read == "away":
                    monkeypatch.setattr(store.memories, "all", away)
                return entry

            monkeypatch.setattr(store.commands, "propose_memory", overtaken)
            given = {"into": "inbox/inbox", "text": "Call 555-0199.", "kind": "fact"}
            answer = await order(one, "memory_propose", **given)
            assert state(one, answer["candidate"]) == "gone"
            files = [path for path in (tmp_path / "one/state").rglob("*") if path.is_file()]
            assert not [path for path in files if is_in(b"555-0199", path.read_bytes())]
            assert bool(one.app.services.recall.lag_reason) == (read == "away")
            monkeypatch.setattr(store.memories, "all", learned_of)
            await wait_until(lambda: not one.app.services.recall.lag_reason, 20)
            assert state(one, answer["candidate"]) == "gone"


async def test_what_one_worker_promotes_and_takes_back_the_other_teaches(tmp_path: Path) -> None:
    url = tmp_path / "url"
    url.write_text(server(fsync=False).fresh())
    plan = StorePlan("postgresql", url_file=str(url), lease_us=1_000_000)
    one, other = (desk(tmp_path / name, store=plan) for name in ("one", "other"))
    async with one:
        (tmp_path / "other" / "state").mkdir()
        shutil.copy(tmp_path / "one/state/ledger.key", tmp_path / "other/state/ledger.key")
        async with other:
            tasks = [following(one), following(other)]
            try:
                before = taught(other)
                assert before == taught(one)
                proposed = await order(
                    one, "memory_propose", into="inbox/inbox", text="The pier is shut.", kind="fact"
                )
                await order(one, "memory_approve", id=proposed["candidate"])
                assert taught(one) != before
                await wait_until(lambda: taught(other) != before, 20)
                assert taught(other) == taught(one)
                await order(other, "memory_off", id=proposed["candidate"])
                assert taught(other) == before
                await wait_until(lambda: taught(one) == before, 20)
                assert [each["state"] for each in await learned(one)] == ["off"]
            finally:
                for task in tasks:
                    task.cancel()
                await asyncio.gather(*tasks, return_exceptions=True)

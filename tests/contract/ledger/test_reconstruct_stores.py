"""Report and reconstruct read the same of every store, and of an archive with a store behind it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from tests.pg import server

from vedette.adapters.ledger_export import (
    Archive,
    JoinedLedger,
    LedgerExport,
    checkpoint_size_before,
    export,
    write_segment,
)
from vedette.config.settings import StorePlan
from vedette.domain.base.errors import BadCommand
from vedette.domain.effect import Call, Outcome
from vedette.interfaces.render.report_text import reconstruction_text, report_text
from vedette.ledger.history.reconstruction import reconstruct
from vedette.ledger.history.report import report
from vedette.ledger.history.target_match import match_target_record
from vedette.testing.clock import ManualClock
from vedette.testing.harness import FleetHarness
from vedette.testing.toy_fleet import World, job, note_proposal, propose, send_proposal, toy_fleet

START = 1_750_000_000_000_000
HOUR = 3_600_000_000


@pytest.fixture(params=["sqlite", "postgresql"])
def plan(request: pytest.FixtureRequest, tmp_path: Path) -> StorePlan:
    if request.param == "sqlite":
        return StorePlan()
    url = tmp_path / "url"
    url.write_text(server(fsync=False).fresh())
    return StorePlan("postgresql", url_file=str(url))


@asynccontextmanager
async def opened(
    folder: Path, plan: StorePlan, world: World, clock: ManualClock
) -> AsyncIterator[FleetHarness]:
    fleet = toy_fleet(folder, world, clock=clock)
    fleet._store = plan
    async with fleet:
        yield fleet


async def answer(fleet: FleetHarness, verb: str) -> None:
    (row,) = fleet.app.store.runs.holds_page(after=0, limit=10)
    if verb == "approve":
        await fleet.approve(row, "it is right")
    else:
        await fleet.app.commands.deny(fleet.order("it is right"), row.id.replace("act_", "hold_"))
    await fleet.wait_until_idle()


async def three_hours(fleet: FleetHarness, clock: ManualClock) -> None:
    """In the first hour something is held, in the second it is approved, in the third denied."""
    await fleet.send(
        job("1", send_proposal("one")),
        job("2", send_proposal("two", tool="big.send"), note_proposal("n")),
    )
    await fleet.send(
        job("quiet"), job("3", propose("wire.send", to="stranger@x.example", text="no"))
    )
    await fleet.wait_until_idle()
    clock.advance(HOUR)
    await answer(fleet, "approve")
    clock.advance(HOUR)
    await fleet.send(job("4", send_proposal("four", tool="big.send")))
    await fleet.wait_until_idle()
    await answer(fleet, "deny")


async def test_all_stores_tell_the_same_story(tmp_path: Path, plan: StorePlan) -> None:
    world, clock = World(), ManualClock(START)
    async with opened(tmp_path, plan, world, clock) as fleet:
        await three_hours(fleet, clock)
        store = fleet.app.store
        account = reconstruct(store.ledger, START, START + 3 * HOUR)
        assert account.findings == []
        assert match_target_record(account, world.record).ok
        assert match_target_record(account, world.record).matched == 2
        second = reconstruct(store.ledger, START + HOUR, START + 2 * HOUR)
        page = report(store, START, START + 3 * HOUR)
        key = (tmp_path / "state" / "ledger.pub").read_text()
        export(store.ledger, tmp_path / "export", verifier_key=key, witness=None, bodies=True)
    (done,) = [intent for intent in second.intents.values() if intent.tool == "big.send"]
    # It was asked in the hour before, and is told from there.
    assert [one.outcome for one in done.decisions] == ["hold", "permit"]
    assert done.decisions[0].at < START + HOUR <= done.decisions[1].at
    assert done.approval is not None
    assert (done.approval.actor, done.approval.reason) == ("person:tester", "it is right")
    assert done.state == "done"
    kinds = {item["kind"] for item in second.agents["worker"].items}
    assert kinds >= {"hold.approved", "action.decided", "effect.intended", "effect.done"}
    assert "turn.reasoned" not in kinds
    repeat = LedgerExport(tmp_path / "export")
    assert reconstruct(repeat, START, START + 3 * HOUR).to_json() == account.to_json()
    assert reconstruct(repeat, START + HOUR, START + 2 * HOUR).to_json() == second.to_json()
    assert page["questions"] == {
        "asked": 2, "per_1000": "400.0", "approved": 1, "denied": 1, "expired": 0,
        "agents": {"worker": 2},
    }  # fmt: skip
    assert page["budgets"]["spent"] == [
        {"agent": "worker", "unit": "actions", "spent": 3, "booked": 0}
    ]
    assert any(one["kind"] == "denied" for one in page["exceptions"])
    assert len(page["sample"]) == 3
    # Each with the event that it was done for.
    assert all(one["about"]["display"] and not one["about"]["erased"] for one in page["sample"])
    text = "\n".join(report_text(page))
    assert "2 asked, 400.0 per 1,000 events; 1 approved, 1 denied, 0 expired" in text
    assert "AGENT worker (spiffe://harbour/agent/worker)" in "\n".join(reconstruction_text(account))


async def test_only_the_agents_that_were_asked_for(tmp_path: Path) -> None:
    fleet = toy_fleet(tmp_path, World(), agents=("worker", "other"), clock=ManualClock(START))
    async with fleet:
        await fleet.send(job("1", note_proposal("a")), job("2", note_proposal("b"), agent="other"))
        await fleet.wait_until_idle()
        account = reconstruct(fleet.app.store.ledger, START, START + HOUR, ["other"])
    assert set(account.agents) == {"other"}
    assert {intent.agent for intent in account.intents.values()} == {"other"}
    assert account.findings == []


async def test_an_archive_with_the_store_behind_it(tmp_path: Path) -> None:
    """What was moved out of the store is told from the archive; the store alone says it is cut."""
    world, clock = World(), ManualClock(START)
    async with opened(tmp_path, StorePlan(), world, clock) as fleet:
        await three_hours(fleet, clock)
        store = fleet.app.store
        whole = reconstruct(store.ledger, START, START + 3 * HOUR)
        key = (tmp_path / "state" / "ledger.pub").read_text().strip()
        size = checkpoint_size_before(store.ledger, START + HOUR, store.ledger.first_open_entry())
        archived = write_segment(store.ledger, tmp_path / "archive", size, key)
        upkeep = fleet.app.commands.maintenance
        assert upkeep is not None
        order = fleet.order("old")
        await upkeep.prune_archived(order.principal, order.reason, archived)
        joined = JoinedLedger(Archive(tmp_path / "archive"), store.ledger)
        repeat = reconstruct(joined, START, START + 3 * HOUR)
        alone = reconstruct(store.ledger, START, START + 3 * HOUR)
    assert repeat.intents.keys() == whole.intents.keys()
    assert repeat.findings == alone.findings == []
    assert match_target_record(repeat, world.record).ok
    assert {i.run for i in alone.intents.values() if not i.decisions} <= alone.truncated_runs
    assert alone.truncated_runs
    assert not repeat.truncated_runs


async def test_erased_content_is_said_to_be_erased(tmp_path: Path) -> None:
    world, clock = World(), ManualClock(START)
    async with opened(tmp_path, StorePlan(), world, clock) as fleet:
        await three_hours(fleet, clock)
        first = job("1", send_proposal("one"))
        await fleet.app.commands.erase(fleet.order("asked for"), event=first.key)
        account = reconstruct(fleet.app.store.ledger, START, START + 3 * HOUR)
        page = report(fleet.app.store, START, START + 3 * HOUR)
    (intent,) = [i for i in account.intents.values() if i.event == first.key]
    assert intent.erased
    assert account.events[first.key]["erased"]
    assert account.findings == []
    assert match_target_record(account, world.record).ok
    assert [one["args"] for one in page["sample"] if one["erased"]] == [None]
    assert "body.erased" in [one["kind"] for one in page["changed"]]


async def test_what_is_under_way_is_flagged(tmp_path: Path) -> None:
    """A call that was made and whose end nobody recorded is open, and its effect has an intent."""
    world, clock = World(), ManualClock(START)
    begun = asyncio.Event()
    loop = asyncio.get_running_loop()

    def lost(call: Call) -> Outcome | BaseException | None:
        loop.call_soon_threadsafe(begun.set)
        return Outcome("unknown", error="nobody answered")

    world.answer, world.loses_answer = lost, True
    async with opened(tmp_path, StorePlan(), world, clock) as fleet:
        await fleet.send(job("1", send_proposal("ring", tool="bell.ring")))
        await asyncio.wait_for(begun.wait(), 10)
        await fleet.wait_until_idle()
        account = reconstruct(fleet.app.store.ledger, START, START + HOUR)
    (intent,) = account.open_intents
    assert intent.state == "unknown"
    assert match_target_record(account, world.record).ok
    assert any("nobody recorded how it ended" in line for line in reconstruction_text(account))


async def test_a_window_without_entries(tmp_path: Path) -> None:
    async with opened(tmp_path, StorePlan(), World(), ManualClock(START)) as fleet:
        account = reconstruct(fleet.app.store.ledger, START + HOUR, START + 2 * HOUR)
        page = report(fleet.app.store, START + HOUR, START + 2 * HOUR)
        key = (tmp_path / "state" / "ledger.pub").read_text()
        export(fleet.app.store.ledger, tmp_path / "export", verifier_key=key, witness=None)
    assert (account.agents, account.intents, account.findings) == ({}, {}, [])
    assert (
        reconstruct(LedgerExport(tmp_path / "export"), START + HOUR, START + 2 * HOUR).agents == {}
    )
    assert page["questions"]["per_1000"] is None
    assert report_text(page)


def test_a_bad_stretch_of_time_is_refused() -> None:
    from vedette.interfaces.cli.fleet import parse_time_range

    assert parse_time_range("2h", "2026-05-01T02:00:00Z") == (
        1_777_593_600_000_000,
        1_777_600_800_000_000,
    )
    with pytest.raises(BadCommand, match="no length of time"):
        parse_time_range("a day", None)
    with pytest.raises(BadCommand, match="no instant"):
        parse_time_range("1d", "yesterday")

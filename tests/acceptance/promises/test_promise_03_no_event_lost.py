"""Promise 3: no event lost; with a control that shows the test can fail."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import apsw
import pytest

from vedette.domain.base.errors import StoreFailed
from vedette.domain.event import Event
from vedette.domain.ports.sources import Receipt
from vedette.testing.harness import FleetHarness
from vedette.testing.toy_fleet import World, job, note_proposal, send_proposal, toy_fleet


def unaccounted(fleet: FleetHarness, accepted: Iterable[Receipt]) -> list[str]:
    """Return the accepted events of which the record does not say what became of them."""
    store = fleet.app.store
    woke = {entry["event"]: entry["woke"] for entry in fleet.entries("event.accepted")}
    ended = {entry["run"] for entry in fleet.entries("run.closed", "run.dead")}
    lost = []
    for receipt in accepted:
        assert receipt.event is not None
        runs = store.runs.runs_of_event(receipt.event)
        if receipt.event not in woke or len(runs) != woke[receipt.event]:
            lost.append(receipt.event)
        for run in runs:
            waits = run.state == "waiting" and any(
                row.hold in ("open", "approved") or row.waits == "target"
                for row in store.runs.actions(run.id)
            )
            if not (waits or (run.state in ("done", "dead") and run.id in ended)):
                lost.append(receipt.event)
    return lost


RAISES: dict[str, Any] = {"raise": True}


def assorted() -> list[Event]:
    kinds: list[Callable[[str], Event]] = [
        lambda n: job(n, send_proposal(n)),
        lambda n: job(n, send_proposal(n, "big.send")),
        lambda n: job(n, **RAISES),
        lambda n: job(n, poison=True),
        lambda n: job(n, send_proposal(n, to="x@evil.example"), note_proposal(n), key=n),
        lambda n: Event("test", n, "nobody.cares", None, None, {}),
        lambda n: job(n, key="quiet"),
    ]
    return [kinds[n % len(kinds)](f"e{n}") for n in range(70)]


async def test_promise_03_no_event_lost(tmp_path: Path, world: World) -> None:
    fleet = toy_fleet(tmp_path, world)
    await fleet.open()
    try:
        accepted: list[Receipt] = []
        for at, event in enumerate(assorted()):
            accepted += await fleet.send(event)
            if at % 20 == 10:
                await fleet.restart()
        await fleet.wait_until_idle()
        assert [receipt.status for receipt in accepted] == ["accepted"] * 70
        assert unaccounted(fleet, accepted) == []
        store = fleet.app.store
        states = {run.state for r in accepted for run in store.runs.runs_of_event(r.event or "")}
        assert states == {"done", "waiting", "dead"}
        dead = fleet.entries("run.dead")
        assert len(dead) == 20
        assert all("RuntimeError" in fleet.body(entry["seq"])["why"] for entry in dead)
    finally:
        await fleet.close()


async def test_promise_03_what_is_not_durable_is_not_accepted(tmp_path: Path, world: World) -> None:
    """The source gets an error instead of a receipt, delivers again, and it is one event."""
    async with toy_fleet(tmp_path, world) as fleet:
        store = fleet.app.store
        accept = store.steps.accept

        async def failing(arrivals: Any, position: tuple[str, str] | None) -> list[Any]:
            raise StoreFailed("the disk is full")

        store.steps.accept = failing  # type: ignore[method-assign]
        event = job("1", send_proposal())
        with pytest.raises(StoreFailed):
            await fleet.send(event)
        assert fleet.entries("event.accepted") == []
        store.steps.accept = accept  # type: ignore[method-assign]
        receipts = await fleet.send(event)
        await fleet.wait_until_idle()
        assert unaccounted(fleet, receipts) == []
        assert world.effects() == 1


async def test_promise_03_a_receipt_is_given_for_what_is_durable(
    tmp_path: Path, world: World
) -> None:
    """Whoever has a receipt may forget the event: another opener of the store's file has it."""
    async with toy_fleet(tmp_path, world) as fleet:
        store = apsw.Connection(str(tmp_path / "state" / "store.db"), apsw.SQLITE_OPEN_READONLY)
        try:
            for n in range(8):
                events = [job(f"{n}.{at}", note_proposal("x"), key=f"k{at}") for at in range(4)]
                receipts = await fleet.send(*events)
                found = {key for (key,) in store.execute("SELECT key FROM event")}
                assert {receipt.event for receipt in receipts} <= found
        finally:
            store.close()
        await fleet.wait_until_idle()


async def test_promise_03_every_agent_that_an_event_concerns_handles_it(
    tmp_path: Path, world: World
) -> None:
    fleet = toy_fleet(tmp_path, world, agents=("worker", "helper"))
    path = tmp_path / "content" / "agents" / "helper" / "agent.yaml"
    path.write_text(path.read_text().replace("on: helper.job", "on: worker.job"))
    async with fleet:
        events = [job(str(n), send_proposal(str(n)), key=str(n)) for n in range(4)]
        receipts = await fleet.send(*events)
        await fleet.wait_until_idle()
        for event in events:
            assert {(run.agent, run.state) for run in fleet.runs(event)} == {
                ("worker", "done"), ("helper", "done"),
            }  # fmt: skip
        assert unaccounted(fleet, receipts) == []
        assert world.effects() == 8


async def test_promise_03_a_large_batch_is_taken_whole_and_refusals_are_told(
    tmp_path: Path, world: World
) -> None:
    """More than goes in at once, with two deliveries among them that are no events."""
    async with toy_fleet(tmp_path, world) as fleet:
        batch = [Event("test", f"b{n}", "nobody.cares", None, None, {}) for n in range(600)]
        batch[100] = Event("test", "", "nobody.cares", None, None, {})
        batch[500] = Event("test", "b500", "", None, None, {})
        receipts = await fleet.send(*batch)
        assert [receipt.status for receipt in receipts].count("accepted") == 598
        assert [at for at, one in enumerate(receipts) if one.status == "refused"] == [100, 500]
        assert len(fleet.entries("event.accepted")) == 598
        refused = fleet.entries("event.refused")
        assert len(refused) == 2
        assert all(fleet.body(entry["seq"])["why"] for entry in refused)


async def test_promise_03_what_waits_at_a_stop_is_handled_after_the_start(
    tmp_path: Path, world: World
) -> None:
    async with toy_fleet(tmp_path, world) as fleet:
        await fleet.app.dispatcher.close()
        receipts = await fleet.send(
            *(job(str(n), send_proposal(str(n)), key=str(n)) for n in range(8))
        )
        assert world.calls == []
        await fleet.restart()
        await fleet.wait_until_idle()
        assert unaccounted(fleet, receipts) == []
        assert world.effects() == 8


async def test_promise_03_control_an_event_nobody_handles_is_seen(
    tmp_path: Path, world: World
) -> None:
    async with toy_fleet(tmp_path, world) as fleet:
        fleet.app.dispatcher.buffer.offer = lambda run, accepted: None  # type: ignore[method-assign]
        receipts = await fleet.send(job("1", send_proposal()))
        await fleet.wait_until_idle()
        assert unaccounted(fleet, receipts) == [receipts[0].event]

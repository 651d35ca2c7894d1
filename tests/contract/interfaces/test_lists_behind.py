"""What runs, is told or is ordered does not depend on how far the read model is, or on there being
one.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from vedette.app.doctor import check_live
from vedette.interfaces.cli.live_table import FleetMonitor
from vedette.interfaces.daemon import Daemon
from vedette.operations.corrections import known_labels
from vedette.testing.harness import FleetHarness
from vedette.testing.toy_fleet import World, job, send_proposal, toy_fleet

STRANGER = send_proposal("hello", to="stranger@elsewhere.example")


@pytest.fixture
async def fleet(tmp_path: Path) -> AsyncIterator[FleetHarness]:
    async with toy_fleet(tmp_path, World()) as fleet:
        yield fleet


async def test_what_the_lists_lack_is_shown_when_they_have_it(fleet: FleetHarness) -> None:
    daemon, monitor = Daemon(fleet.app, until_idle=False), FleetMonitor()
    monitor.tick(daemon, force=True)
    with fleet.app.store.view.without_waiting():
        await fleet.send(job("1", STRANGER))
        await fleet.wait_until_idle()
        monitor.tick(daemon, force=True)
        assert not [line for line in monitor.lines if "denied" in line]
    monitor.tick(daemon, force=True)
    monitor.tick(daemon, force=True)
    assert len([line for line in monitor.lines if "denied" in line]) == 1


async def test_a_run_ends_although_no_lists_can_be_kept(tmp_path: Path) -> None:
    async with toy_fleet(tmp_path, World()) as fleet:
        await fleet.app.dispatcher.close()
        (fleet.app.settings.state / "view.db").mkdir()
        daemon, monitor = Daemon(fleet.app, until_idle=True), FleetMonitor()

        def show(daemon: Daemon) -> None:
            monitor.tick(daemon, force=True)

        async with asyncio.timeout(20):
            await daemon.run(show)
        assert daemon.failure is None


async def test_a_check_tells_broken_lists_from_a_broken_store(fleet: FleetHarness) -> None:
    await fleet.send(job("1", STRANGER))
    await fleet.wait_until_idle()
    settings = fleet.app.settings
    (settings.state / "view.db").mkdir()
    told = await asyncio.to_thread(check_live, settings, is_running=True)
    found = {each.what: each for each in told}
    assert found["store"].state == "ok"
    assert found["lists"].state == "fail"
    assert "views --repair" in found["lists"].mend


async def test_a_label_of_a_recent_run_is_known_whatever_the_lists_have(
    fleet: FleetHarness,
) -> None:
    with fleet.app.store.view.without_waiting():
        await fleet.send(job("1", STRANGER))
        await fleet.wait_until_idle()
        assert any(label.startswith("sum ") for label in known_labels(fleet.app.services, "worker"))

"""Promise 11: decisions replay; with a control that shows the test can fail."""

from __future__ import annotations

from pathlib import Path

from tests.acceptance.promises.common import MIXED, approve

from vedette.adapters.rego.engine import RegorusEngine
from vedette.bundle import Bundle
from vedette.replay import replay
from vedette.testing.harness import FleetHarness
from vedette.testing.toy import (
    World,
    denying,
    job,
    toy_fleet,
    write_policies,
)


async def two_revisions(fleet: FleetHarness, folder: Path) -> int:
    """Let decisions of every kind be made under two revisions; return how many."""
    events = [job(f"a{n}", *MIXED) for n in range(4)]
    await fleet.send(*events)
    await fleet.settle()
    await fleet.apply(write_policies(folder / "p2", extra=denying("wire.send")))
    await approve(fleet, fleet.actions(events[0])[3])
    await fleet.send(*(job(f"b{n}", *MIXED) for n in range(4)))
    await fleet.settle()
    await fleet.restart()
    return len(fleet.entries("action.decided", "recall.decided"))


async def test_promise_11_decisions_replay(tmp_path: Path, world: World) -> None:
    async with toy_fleet(tmp_path, world) as fleet:
        decisions = await two_revisions(fleet, tmp_path)
        report = replay(fleet.app.store, RegorusEngine)
        assert report.ok, report.differences
        assert (report.decisions, report.agreed) == (decisions, decisions)
        assert set(report.revisions) == {1, 2}
        for revision in (1, 2):
            assert set(report.revisions[revision]) == {"permit", "hold", "deny"}


async def test_promise_11_control_another_policy_is_seen(tmp_path: Path, world: World) -> None:
    async with toy_fleet(tmp_path, world) as fleet:
        await two_revisions(fleet, tmp_path)

        def other(bundle: Bundle) -> RegorusEngine:
            grants = dict(bundle.files)
            grants["grants/data.yaml"] = grants["grants/data.yaml"].replace(b"act", b"ask")
            return RegorusEngine(Bundle.of(grants))

        report = replay(fleet.app.store, other)
        assert not report.ok
        assert report.differed > 0

"""A fleet whose permits come from a residual: recorded, replayed and taken away with its bundle."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace
from tests.bench.bench_fleet import readings, write_content
from tests.bench.target import marks_file
from tests.opa import find_opa

from vedette.config.deployment import Deployment, PolicyPlan
from vedette.interfaces.http.local_api import live_status
from vedette.policy.replay import replay
from vedette.policy.residuals import ResidualSet
from vedette.testing.harness import FleetHarness

THRESHOLD = 3


@pytest.fixture
def harness(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FleetHarness:
    monkeypatch.setenv("VEDETTE_OPA", find_opa())
    content = tmp_path / "content"
    write_content(content, inward=True)
    targets = {"marks": {"kind": "file", "path": str(marks_file(tmp_path))}}
    edges = Deployment(policy=PolicyPlan(residual=True))
    return FleetHarness(tmp_path, content=content, targets=targets, edges=edges)


async def publish(fleet: FleetHarness, hops: int) -> ResidualSet:
    """Publish the fleet's policy with another limit, and have residuals made early."""
    fleet.app.rollout.residuals.threshold = THRESHOLD
    limits = fleet.policies / "limits" / "data.yaml"
    text = limits.read_text()
    at = text.index("hops: ")
    limits.write_text(f"{text[:at]}hops: {hops}{text[text.index(chr(10), at) :]}")
    await fleet.apply_policy(fleet.policies)
    live = fleet.app.rollout.residuals.live
    assert live is not None
    return live


async def engines(fleet: FleetHarness, seed: int) -> list[str]:
    """Put events through; return by which engine each was decided."""
    before = fleet.app.store.ledger.last_seq()
    events = readings(2 * THRESHOLD, keys=2, seed=seed)
    await fleet.send(*(replace(event, id=f"{seed} {event.id}") for event in events))
    await fleet.wait_until_idle()
    return [one["engine"] for one in decided(fleet) if one["seq"] > before]


def decided(fleet: FleetHarness) -> list[dict[str, Any]]:
    return fleet.entries("action.decided")


async def test_its_decisions_are_recorded_and_replayed_by_the_full_engine(
    harness: FleetHarness,
) -> None:
    async with harness as fleet:
        live = await publish(fleet, 7)
        whole = {*await engines(fleet, 1)}
        assert whole == {fleet.app.services.gateway.engine.name}
        assert await live.make_next()
        assert live.state == "1 answer"
        assert live_status(fleet.app.commands)["residuals"] == "1 answer"
        assert {*await engines(fleet, 2)} == {live.name}
        bodies = [fleet.body(one["seq"])["decision"] for one in decided(fleet)]
        assert all(each == bodies[0] for each in bodies)
        loaded: list[str] = []

        def load(bundle: Any) -> Any:
            engine = fleet.app.rollout.stage.load(bundle)
            loaded.append(engine.name)
            return engine

        report = replay(fleet.app.store, load)
        assert report.ok
        assert report.agreed == report.decisions
        assert {*loaded} == whole
        assert report.engine == whole
        assert report.engines == whole | {live.name}
        # Another bundle: none of them answers from that instant on.
        other = await publish(fleet, 6)
        assert other is not live
        assert {*await engines(fleet, 3)} == whole


async def test_there_are_none_unless_the_setting_says_so(harness: FleetHarness) -> None:
    async with FleetHarness(
        harness.folder, content=harness.content, targets=harness.targets
    ) as fleet:
        assert fleet.app.rollout.residuals.live is None
        assert fleet.app.services.gateway.residuals is None
        state = live_status(fleet.app.commands)["residuals"]
        assert state == "none: the full engine decides all"

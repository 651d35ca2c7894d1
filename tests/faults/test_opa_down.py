"""OPA dies and comes back while a fleet works: who decides meanwhile, and that nothing is lost."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from tests.opa_server import OpaServer

from vedette.adapters.policy_engines.regorus.engine import RegorusEngine
from vedette.adapters.policy_engines.regorus.stage import read_bundle
from vedette.config.deployment import Deployment, PolicyPlan
from vedette.domain.decision import NullPolicyEngine
from vedette.policy.replay import replay
from vedette.testing.harness import FleetHarness
from vedette.testing.toy_fleet import World, job, send_proposal, toy_fleet

WAVE = 30


@pytest.fixture
def world() -> World:
    return World()


@asynccontextmanager
async def on_opa(
    folder: Path, world: World, *, otherwise: str = "embedded"
) -> AsyncIterator[tuple[FleetHarness, OpaServer]]:
    """A toy fleet that decides by a real OPA server, which holds its bundle."""
    server = OpaServer(folder)
    plan = PolicyPlan(engine="opa", opa_url=server.url, timeout_us=2_000_000, fallback=otherwise)
    fleet = toy_fleet(folder, world, edges=Deployment(policy=plan))
    server.pack(read_bundle(fleet.policies))
    server.start()
    try:
        async with fleet:
            yield fleet, server
    finally:
        server.stop()


async def wave(fleet: FleetHarness, name: str, many: int = WAVE) -> list[str]:
    """Send events and let them be handled; return their names."""
    names = [f"{name}-{number}" for number in range(many)]
    for each in names:
        await fleet.send(job(each, send_proposal(each), key=each))
        await asyncio.sleep(0)
    await fleet.wait_until_idle()
    return names


async def wait_for_answer(fleet: FleetHarness) -> None:
    """Return when a decision was made by the server again."""
    async with asyncio.timeout(20):
        while True:
            number = fleet.app.store.ledger.last_seq()
            await fleet.send(job(f"probe-{number}", send_proposal("probe"), key=f"p{number}"))
            await fleet.wait_until_idle()
            if fleet.entries("action.decided")[-1]["engine"].startswith("opa/"):
                return
            await asyncio.sleep(0.02)


async def test_killed_in_mid_stream_the_embedded_engine_decides_under_the_same_bundle(
    tmp_path: Path, world: World
) -> None:
    async with on_opa(tmp_path, world) as (fleet, opa):
        await wait_for_answer(fleet)
        sent = await wave(fleet, "before")
        coming = asyncio.create_task(wave(fleet, "during"))
        await asyncio.sleep(0.03)
        opa.kill()
        sent += await coming
        sent += await wave(fleet, "without")
        await asyncio.to_thread(opa.start)
        await wait_for_answer(fleet)
        sent += await wave(fleet, "after")

        decided = [
            entry for entry in fleet.entries("action.decided") if entry["outcome"] == "permit"
        ]
        assert len(decided) == len(fleet.entries("action.decided"))
        # One bundle, whoever decided; and both did.
        assert {entry["bundle"] for entry in decided} == {fleet.app.rollout.live.digest}
        by_opa = [entry["engine"].startswith("opa/") for entry in decided]
        assert {entry["engine"].split("/")[0] for entry in decided} == {"opa", "regorus"}
        assert by_opa[:WAVE].count(True) >= WAVE - 1
        assert all(by_opa[-WAVE:])
        assert by_opa.count(False) >= WAVE
        # Nothing lost, nothing twice.
        texts = [text for text in world.texts("wire.send") if text != "probe"]
        assert sorted(texts) == sorted(sent)
        assert set(world.keys("wire.send").values()) == {1}
        report = replay(fleet.app.store, RegorusEngine)
        assert report.ok, report.differences[:3]
        assert report.agreed == report.decisions >= 4 * WAVE
        assert len(report.engines) == 2


async def test_where_nobody_stands_behind_everything_is_denied_until_it_is_back(
    tmp_path: Path, world: World
) -> None:
    async with on_opa(tmp_path, world, otherwise="deny") as (fleet, opa):
        await wait_for_answer(fleet)
        await wave(fleet, "before", 5)
        opa.kill()
        await wave(fleet, "without", 5)
        await asyncio.to_thread(opa.start)
        await wait_for_answer(fleet)

        texts = world.texts("wire.send")
        assert [text for text in texts if text.startswith("before")]
        assert not [text for text in texts if text.startswith("without")]
        denied = [entry for entry in fleet.entries("action.decided") if entry["outcome"] == "deny"]
        assert {(entry["engine"], entry["rule"]) for entry in denied} == {
            (NullPolicyEngine.name, "engine.error")
        }
        assert len(denied) >= 5
        # Replay knows that nobody answered, and does not hold it against the record.
        report = replay(fleet.app.store, RegorusEngine)
        assert report.ok, report.differences[:3]


async def test_a_server_that_has_another_bundle_is_never_heard(
    tmp_path: Path, world: World
) -> None:
    """Negative control: a server that answers, but under another policy (one that denies)."""
    async with on_opa(tmp_path, world) as (fleet, opa):
        await wave(fleet, "before", 5)
        opa.kill()
        denies = b'package vedette.denies\n\ndeny contains "all" if input.action.tool != "x"\n'
        files = dict(read_bundle(fleet.policies).files) | {"vedette/denies/all.rego": denies}
        opa.pack(type(read_bundle(fleet.policies)).of(files))
        await wave(fleet, "without", 1)
        await asyncio.to_thread(opa.start)
        sent = await wave(fleet, "other", 20)
        decided = fleet.entries("action.decided")[-20:]
        assert {entry["engine"].split("/")[0] for entry in decided} == {"regorus"}
        assert {entry["outcome"] for entry in decided} == {"permit"}
        assert set(sent) <= set(world.texts("wire.send"))

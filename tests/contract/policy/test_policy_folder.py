"""What a person applied stays live: the policy folder counts again when it says something new."""

from __future__ import annotations

from pathlib import Path

import pytest
from msgspec.structs import replace

from vedette.app.composition_root import open_app
from vedette.domain.bundle import Bundle, Finding
from vedette.interfaces.cli.orders import execute_in_process
from vedette.testing.harness import FleetHarness, TrustingStage, copy_policies


def live(fleet: FleetHarness) -> tuple[int, str]:
    return fleet.app.store.policy.live_revision()


def edit(folder: Path) -> None:
    denies = folder / "denies" / "data.yaml"
    denies.write_text(denies.read_text() + "# looked at\n")


async def test_a_policy_applied_from_elsewhere_outlives_a_restart(tmp_path: Path) -> None:
    ours, theirs = copy_policies(tmp_path / "ours"), copy_policies(tmp_path / "theirs")
    edit(theirs)
    async with FleetHarness(tmp_path / "fleet", policies=ours) as fleet:
        first = live(fleet)
        applied = await fleet.apply_policy(theirs)
        assert live(fleet) == (applied["revision"], applied["digest"]) != first
        await fleet.restart()
        assert live(fleet) == (applied["revision"], applied["digest"])


async def test_a_folder_that_was_changed_meanwhile_is_offered_at_the_next_start(
    tmp_path: Path,
) -> None:
    ours = copy_policies(tmp_path / "ours")
    async with FleetHarness(tmp_path / "fleet", policies=ours) as fleet:
        number, digest = live(fleet)
        await fleet.close()
        edit(ours)
        await fleet.open()
        assert live(fleet)[0] == number + 1
        assert live(fleet)[1] != digest


async def test_who_comes_for_one_command_publishes_under_a_persons_name_or_nothing(
    tmp_path: Path,
) -> None:
    ours = copy_policies(tmp_path / "ours")
    async with FleetHarness(tmp_path / "fleet", policies=ours) as fleet:
        first, settings = live(fleet), fleet.app.settings
        await fleet.close()
        edit(ours)
        visit = replace(settings, store=replace(settings.store, visit=True))
        app = await open_app(visit, stage=TrustingStage())
        try:
            assert app.store.policy.live_revision() == first
        finally:
            await app.close()
        await fleet.open()
        assert live(fleet)[0] == first[0] + 1  # the control: a start takes it up


async def test_what_a_person_published_by_a_visit_is_theirs_and_stays_rolled_back(
    tmp_path: Path,
) -> None:
    ours = copy_policies(tmp_path / "ours")
    async with FleetHarness(tmp_path / "fleet", policies=ours) as fleet:
        settings = fleet.app.settings
        await fleet.close()
        edit(ours)
        args = {"folder": str(ours), "commit": "3f9c2ab"}
        done = await execute_in_process(settings, "policy_apply", args, "looked at", "command-1")
        assert done["ok"]
        await execute_in_process(settings, "policy_rollback", {"number": 1}, "not so", "command-2")
        await fleet.open()
        assert live(fleet)[0] == done["revision"] + 1
        published = fleet.entries("policy.published")
        assert [row.get("commit") for row in published] == [None, "3f9c2ab", None]
        assert published[1]["actor"] != published[0]["actor"]


class Refusing(TrustingStage):
    """A stage whose trials end as they are told to."""

    def __init__(self, *, verdict: bool) -> None:
        self.finding = Finding("denies/data.yaml", 1, "no", "mend it", verdict)
        self.asked = 0

    async def try_out(self, bundle: Bundle) -> list[Finding]:
        self.asked += 1
        return [self.finding]


@pytest.mark.parametrize(("verdict", "trials"), [(True, 1), (False, 2)])
async def test_a_refused_folder_is_told_at_every_start_and_tried_again_without_a_verdict(
    tmp_path: Path, verdict: bool, trials: int
) -> None:
    """What took too long on a busy machine says nothing of the policy."""
    ours = copy_policies(tmp_path / "ours")
    async with FleetHarness(tmp_path / "fleet", policies=ours) as fleet:
        settings, first = fleet.app.settings, live(fleet)
        await fleet.close()
        edit(ours)
        stage = Refusing(verdict=verdict)
        for _ in range(2):
            app = await open_app(settings, stage=stage)
            try:
                assert app.store.policy.live_revision() == first
                (trouble,) = app.troubles
                assert "policy refused, revision 1 stays: denies/data.yaml:1: no" in trouble
            finally:
                await app.close()
        assert stage.asked == trials
        app = await open_app(settings, stage=TrustingStage())
        try:
            # Only what was refused by a verdict waits for another text.
            assert (app.store.policy.live_revision() == first) is verdict
            assert len(app.troubles) == verdict
        finally:
            await app.close()
        edit(ours)
        await fleet.open()
        assert live(fleet)[0] > 1
        assert not fleet.app.troubles

"""What a person applied stays live: the policy folder counts again when it says something new."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from vedette.app import open_app
from vedette.cli.common import _here
from vedette.testing.harness import FleetHarness, TrustingStage, copy_policies


def live(fleet: FleetHarness) -> tuple[int, str]:
    return fleet.app.store.revision()


def edit(folder: Path) -> None:
    denies = folder / "denies" / "data.yaml"
    denies.write_text(denies.read_text() + "# looked at\n")


async def test_a_policy_applied_from_elsewhere_outlives_a_restart(tmp_path: Path) -> None:
    ours, theirs = copy_policies(tmp_path / "ours"), copy_policies(tmp_path / "theirs")
    edit(theirs)
    async with FleetHarness(tmp_path / "fleet", policies=ours) as fleet:
        first = live(fleet)
        applied = await fleet.apply(theirs)
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
            assert app.store.revision() == first
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
        done = await _here(settings, "policy_apply", "looked at", args, "command-1")
        assert done["ok"]
        await _here(settings, "policy_rollback", "not so", {"number": 1}, "command-2")
        await fleet.open()
        assert live(fleet)[0] == done["revision"] + 1
        published = fleet.entries("policy.published")
        assert [row.get("commit") for row in published] == [None, "3f9c2ab", None]
        assert published[1]["actor"] != published[0]["actor"]

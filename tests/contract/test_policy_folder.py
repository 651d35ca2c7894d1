"""What a person applied stays live: the policy folder counts again when it says something new."""

from __future__ import annotations

from pathlib import Path

from vedette.testing.harness import FleetHarness, copy_policies


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

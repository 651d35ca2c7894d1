"""A publication: signed, recorded with who and why, in the repository; and its way back."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from msgspec.structs import replace
from tests.gcs import serving
from tests.store_parts import store_of

from vedette.adapters.bundles import PUBLIC_FILE, unpack
from vedette.adapters.bundles.bucket import EMULATOR_HOST
from vedette.adapters.bundles.repository import open_repository
from vedette.adapters.policy_engines.regorus.stage import read_bundle
from vedette.app.policy_publication import FolderSigner
from vedette.config.deployment import Deployment, PolicyPlan
from vedette.domain.base.errors import (
    AlreadyDone,
    BadCommand,
    BadPolicy,
    Unavailable,
    WriteConflict,
)
from vedette.domain.bundle import Bundle, Finding
from vedette.ledger.history.policy_history import differences, history
from vedette.operations.commands import Order
from vedette.policy.distribution import Archive, BundleDistributor, read_repository
from vedette.testing.harness import FleetHarness, copy_policies

NAME = "harbour.tar.gz"
EDITS = ("# looked at\n", "# looked at again\n", "# and a third time\n")


@pytest.fixture(params=["folder", "bucket"])
def where(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    if request.param == "folder":
        yield str(tmp_path / "shelf")
        return
    with serving("policies") as gcs, pytest.MonkeyPatch.context() as patch:
        patch.setenv(EMULATOR_HOST, gcs.url)
        yield "gs://policies"


def harness(folder: Path, where: str | None) -> FleetHarness:
    return FleetHarness(folder, edges=Deployment(policy=PolicyPlan(bundles=where)))


@pytest.fixture
async def fleet(tmp_path: Path, where: str) -> AsyncIterator[FleetHarness]:
    async with harness(tmp_path / "fleet", where) as opened:
        yield opened


def edited(folder: Path, number: int) -> Path:
    """Return a policy folder that says something of its own."""
    to = copy_policies(folder / f"edit-{number}")
    denies = to / "denies" / "data.yaml"
    denies.write_text(denies.read_text() + EDITS[number])
    return to


def distributor_of(fleet: FleetHarness) -> BundleDistributor:
    found = fleet.app.rollout.distributor
    assert found is not None
    return found


def lies(fleet: FleetHarness, where: str) -> tuple[int, str] | None:
    """Return what lies in the repository, verified; refused if it is older than what was live."""
    state = fleet.folder / "state"
    return read_repository(
        open_repository(where), NAME, FolderSigner(state), fleet.app.store.policy.live_revision()[0]
    )


async def apply(fleet: FleetHarness, folder: Path, **more: Any) -> dict[str, Any]:
    return await fleet.app.commands.policy_apply(fleet.order("it must be"), folder, **more)


async def test_who_why_and_which_commit_are_recorded_and_signed(
    fleet: FleetHarness, where: str, tmp_path: Path
) -> None:
    done = await apply(fleet, edited(tmp_path, 0), commit="3f9c2ab")
    assert (done["ok"], done["told"]) == (True, None)
    assert 0 <= done["trial_us"] <= done["took_us"]
    entry = fleet.entries("policy.published")[-1]
    state = fleet.folder / "state"
    public = (state / PUBLIC_FILE).read_bytes()
    found = open_repository(where).get(NAME)
    assert found is not None
    bundle, manifest = unpack(found[0], public)
    assert entry["archive"] == done["archive"] == Archive.from_raw(2, "", "", found[0]).digest
    assert entry["signer"] == manifest.key_id
    assert (entry["actor"], entry["commit"]) == ("person:tester", "3f9c2ab")
    assert fleet.body(entry["seq"])["reason"] == "it must be"
    assert (manifest.number, manifest.digest) == fleet.app.store.policy.live_revision()
    assert (manifest.number, manifest.signer) == (done["revision"], "person:tester")
    assert manifest.commit == "3f9c2ab"
    assert bundle == read_bundle(tmp_path / "edit-0")
    # The same under a name that never changes; and what was erasable stays erasable.
    kept = open_repository(where).get(f"archives/{done['archive']}.tar.gz")
    assert kept is not None
    assert kept[0] == found[0]
    assert b"it must be" not in found[0]


async def test_a_rollback_is_a_new_revision_with_old_content(
    fleet: FleetHarness, where: str, tmp_path: Path
) -> None:
    first = fleet.app.store.policy.live_revision()
    await apply(fleet, edited(tmp_path, 0))
    commands = fleet.app.commands
    back = await commands.policy_rollback(fleet.order("back"), first[0])
    assert (back["revision"], back["digest"]) == (3, first[1])
    assert fleet.app.store.policy.live_revision() == (3, first[1]) == lies(fleet, where)
    rows = history(fleet.app.store)
    assert [row["revision"] for row in rows] == [3, 2, 1]
    assert [row["rolled_back_to"] for row in rows] == [1, None, None]
    assert [row["reason"] for row in rows][:2] == ["back", "it must be"]
    assert len({row["archive"] for row in rows}) == 3
    repeat = await commands.policy_rollback(fleet.order("back"), 1)
    assert not repeat["changed"]
    with pytest.raises(BadCommand, match="no revision 9"):
        await commands.policy_rollback(fleet.order("back"), 9)


async def test_a_repeated_command_is_one_revision(tmp_path: Path) -> None:
    async with harness(tmp_path / "fleet", None) as fleet:
        order = Order(fleet.order().principal, "once", "cmd-1")
        await fleet.app.commands.policy_apply(order, edited(tmp_path, 0))
        with pytest.raises(AlreadyDone):
            await fleet.app.commands.policy_apply(order, edited(tmp_path, 1))
        assert fleet.app.store.policy.live_revision()[0] == 2


async def test_a_commit_that_is_none_is_refused(tmp_path: Path) -> None:
    async with harness(tmp_path / "fleet", None) as fleet:
        for commit in ("", "two words", "x" * 101, "-x", "a\nb"):
            with pytest.raises(BadCommand, match="names no commit"):
                await apply(fleet, fleet.policies, commit=commit)
        assert fleet.app.store.policy.live_revision()[0] == 1


async def test_a_policy_that_no_longer_fits_cannot_come_back(tmp_path: Path) -> None:
    async with harness(tmp_path / "fleet", None) as fleet:
        first = fleet.app.store.policy.live_revision()
        await apply(fleet, edited(tmp_path, 0))
        requests: list[str] = []

        async def try_out(bundle: Bundle) -> list[Finding]:
            requests.append(bundle.digest)
            return [Finding("grants/data.yaml", 1, "does not fit")]

        stage: Any = fleet.app.rollout.stage
        stage.try_out = try_out
        back = await fleet.app.commands.policy_rollback(fleet.order("back"), 1)
        assert (back["ok"], back["revision"], requests) == (False, 2, [first[1]])
        assert fleet.app.store.policy.live_revision()[0] == 2
        assert fleet.entries("policy.refused")[-1]["bundle"] == first[1]


# --- the repository ----------------------------------------------------------------------------


async def test_a_publication_does_not_wait_for_a_repository_that_is_away(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with serving("policies") as gcs:
        monkeypatch.setenv(EMULATOR_HOST, gcs.url)
        monkeypatch.setattr("vedette.policy.distribution.RETRY_S", 0.01)
        async with harness(tmp_path / "fleet", "gs://policies") as fleet:
            gcs.failing = 503
            done = await apply(fleet, edited(tmp_path, 0))
            assert done["ok"]
            assert "revision 2 is not on the shelf yet" in done["told"]
            assert fleet.app.store.policy.live_revision()[0] == 2
            troubles: list[str] = []
            keeping = asyncio.create_task(
                distributor_of(fleet).maintain(lambda: True, troubles.append)
            )
            async with asyncio.timeout(10):
                while not troubles:  # noqa: ASYNC110 (a thread puts it there)
                    await asyncio.sleep(0.01)
                gcs.failing = 0
                while not lies_there(gcs.buckets["policies"], 2, fleet):  # noqa: ASYNC110
                    await asyncio.sleep(0.01)
            keeping.cancel()
            await asyncio.gather(keeping, return_exceptions=True)


def lies_there(objects: dict[str, Any], number: int, fleet: FleetHarness) -> bool:
    raw = objects[NAME].raw
    return FolderSigner(fleet.folder / "state").read(raw)[0] == number


async def test_an_older_archive_put_back_is_refused_and_replaced(
    fleet: FleetHarness, where: str, tmp_path: Path
) -> None:
    repository = open_repository(where)
    old = repository.get(NAME)
    assert old is not None
    await apply(fleet, edited(tmp_path, 0))
    live = repository.get(NAME)
    assert live is not None
    assert repository.replace(NAME, old[0], live[1])
    with pytest.raises(BadPolicy, match="revision 1 lies on the shelf, and 2 was live"):
        lies(fleet, where)
    assert await distributor_of(fleet).repair() is None
    assert lies(fleet, where) == fleet.app.store.policy.live_revision()


@pytest.mark.parametrize("how", ["flipped", "cut", "foreign", "garbage"])
async def test_what_was_not_signed_by_us_is_refused_and_replaced(tmp_path: Path, how: str) -> None:
    where = str(tmp_path / "shelf")
    async with harness(tmp_path / "fleet", where) as fleet:
        repository = open_repository(where)
        found = repository.get(NAME)
        assert found is not None
        raw, bundle = found[0], read_bundle(fleet.policies)
        flipped = bytearray(raw)
        flipped[len(raw) // 2] ^= 1
        wrong = {
            "flipped": bytes(flipped),
            "cut": raw[:-20],
            "foreign": FolderSigner(tmp_path / "other").pack(bundle, 7, "person:eve", None, 1),
            "garbage": b"no archive at all",
        }[how]
        assert repository.replace(NAME, wrong, found[1])
        with pytest.raises(BadPolicy):
            lies(fleet, where)
        answer = await distributor_of(fleet).repair()
        assert answer is not None
        assert "none of ours and is replaced" in answer
        assert lies(fleet, where) == fleet.app.store.policy.live_revision()


async def test_a_newer_revision_is_never_overwritten_by_an_older_one(tmp_path: Path) -> None:
    """As when two workers publish, and the first of them is slow to reach the repository."""
    where = str(tmp_path / "shelf")
    async with harness(tmp_path / "fleet", where) as fleet:
        first = distributor_of(fleet).live
        assert first is not None
        await apply(fleet, edited(tmp_path, 0))
        assert await distributor_of(fleet).upload(first) is None
        assert lies(fleet, where) == fleet.app.store.policy.live_revision()


async def test_after_a_restore_numbers_go_on_above_what_the_repository_has(
    tmp_path: Path,
) -> None:
    where = str(tmp_path / "shelf")
    async with harness(tmp_path / "fleet", where) as fleet:
        await apply(fleet, edited(tmp_path, 0))
        await apply(fleet, edited(tmp_path, 1))
    # A store that lost revisions 2 and 3, with the same key and the same shelf.
    lost = tmp_path / "lost"
    (lost / "state").mkdir(parents=True)
    for name in ("policy.key", "policy.pub"):
        (lost / "state" / name).write_bytes((tmp_path / "fleet" / "state" / name).read_bytes())
    async with harness(lost, None):  # the store alone is at revision 1
        pass
    async with harness(lost, where) as fleet:
        distributor = distributor_of(fleet)
        assert fleet.app.store.policy.live_revision()[0] == 1
        answer = await distributor.repair()
        assert answer is not None
        assert "the shelf holds revision 3" in answer
        assert distributor.is_behind(1)
        # The same content again is a change now: it gets a number that nobody has seen.
        done = await apply(fleet, fleet.policies)
        assert (done["ok"], done["changed"], done["revision"]) == (True, True, 4)
        assert lies(fleet, where) == fleet.app.store.policy.live_revision() == (4, done["digest"])
        assert not (await apply(fleet, fleet.policies))["changed"]


# --- numbers -------------------------------------------------------------------------------------


async def test_a_number_that_is_taken_is_refused_and_a_gap_is_not(tmp_path: Path) -> None:
    async with harness(tmp_path / "fleet", None) as fleet:
        store = fleet.app.store
        bundle = read_bundle(edited(tmp_path, 0))
        for taken in (0, 1):
            with pytest.raises(WriteConflict):
                await store.commands.publish(
                    bundle, [], command="c", number=taken, meta={"m": "lost"}
                )
        assert (store.meta("m"), store.policy.live_revision()[0]) == (None, 1)
        # The command was not carried out, so its id is free.
        # One made from another revision than the live one: refused, also where the number is free.
        live = store.cluster.policy_rev
        for other in (live - 1, live + 1):
            with pytest.raises(WriteConflict):
                await store.commands.publish(
                    bundle, [], command="c", number=5, expected_revision=other
                )
        marks = {"m": "kept"}
        published = store.commands.publish(
            bundle, [], command="c", number=5, meta=marks, expected_revision=live
        )
        assert await published == 5
        assert (store.meta("m"), store.policy.live_revision()) == ("kept", (5, bundle.digest))
        assert await store.commands.publish(bundle, []) == 6


async def test_who_is_outrun_by_another_worker_goes_behind_it(tmp_path: Path) -> None:
    """The number stands in the archive and in what is decided, so both are made anew."""
    async with harness(tmp_path / "fleet", str(tmp_path / "shelf")) as fleet:
        store: Any = fleet.app.store
        publish, other = store.commands.publish, read_bundle(edited(tmp_path, 1))
        requests: list[int] = []

        async def outrun(bundle: Bundle, drafts: Any, **more: Any) -> int:
            requests.append(more["number"])
            if len(requests) == 1:
                await publish(other, [])
            number: int = await publish(bundle, drafts, **more)
            return number

        store.commands.publish = outrun
        done = await apply(fleet, edited(tmp_path, 0))
        assert (requests, done["revision"]) == ([2, 3], 3)
        assert lies(fleet, str(tmp_path / "shelf")) == (3, done["digest"])
        assert fleet.entries("policy.published")[-1]["policy_rev"] == 3
        requests.clear()

        async def always(bundle: Bundle, drafts: Any, **more: Any) -> int:
            raise WriteConflict("again")

        store.commands.publish = always
        with pytest.raises(WriteConflict, match="other workers publish all the time"):
            await apply(fleet, edited(tmp_path, 2))


# --- keys ----------------------------------------------------------------------------------------


async def test_a_worker_without_the_fleet_s_key_publishes_unsigned_and_says_so(
    tmp_path: Path,
) -> None:
    where, state = str(tmp_path / "shelf"), tmp_path / "fleet" / "state"
    async with harness(tmp_path / "fleet", where) as fleet:
        await fleet.close()
        (state / "policy.key").unlink()
        (state / PUBLIC_FILE).unlink()
        await fleet.open()
        done = await apply(fleet, edited(tmp_path, 0))
        assert (done["ok"], done["archive"]) == (True, None)
        assert "no policy.key" in done["told"]
        assert not (state / "policy.key").exists()
        assert distributor_of(fleet).live is None
        answer = await distributor_of(fleet).repair()
        assert answer is not None
        assert "revision 2 is not signed" in answer
        signed = await apply(fleet, edited(tmp_path, 1), new_key=True)
        assert (signed["ok"], signed["archive"] is not None) == (True, True)
        assert lies(fleet, where) == fleet.app.store.policy.live_revision()


async def test_a_broken_key_holds_up_no_policy(tmp_path: Path) -> None:
    state = tmp_path / "fleet" / "state"
    async with harness(tmp_path / "fleet", None) as fleet:
        await fleet.close()
        (state / "policy.key").write_text("nothing of a key")
        await fleet.open()
        done = await apply(fleet, edited(tmp_path, 0))
        assert (done["ok"], done["revision"], done["archive"]) == (True, 2, None)
        assert "policy.key: is not a policy key" in done["told"]


async def test_what_no_archive_can_hold_is_refused_and_the_fleet_goes_on(tmp_path: Path) -> None:
    # The stage of this harness admits everything, so that packing is the first to see it.
    broken = copy_policies(tmp_path / "broken", {".manifest": "no manifest"})
    async with harness(tmp_path / "fleet", None) as fleet:
        done = await apply(fleet, broken)
        assert (done["ok"], done["revision"]) == (False, 1)
        assert ".manifest" in done["findings"][0]
        assert (await apply(fleet, edited(tmp_path, 0)))["revision"] == 2


async def test_a_revision_from_before_there_were_archives_is_signed_at_the_next_start(
    tmp_path: Path,
) -> None:
    async with harness(tmp_path / "fleet", None) as fleet:
        distributor = distributor_of(fleet)
        old = replace(distributor.live or Archive.from_raw(0, "", "", b""), number=0)
        await fleet.app.store.commands.set_meta("policy_archive", old.marks()["policy_archive"])
        distributor.refresh()
        found = [distributor.live]
        assert await distributor.repair() is None
        found.append(distributor.live)
        assert found == [None, Archive.load_live(fleet.app.store)]
        assert found[1] is not None
        assert (found[1].number, found[1].bundle) == fleet.app.store.policy.live_revision()


async def test_a_reader_without_a_key_believes_nothing(tmp_path: Path) -> None:
    where = str(tmp_path / "shelf")
    async with harness(tmp_path / "fleet", where):
        with pytest.raises(BadPolicy, match="no policy key"):
            read_repository(open_repository(where), NAME, FolderSigner(tmp_path / "nowhere"), 1)
    assert (
        read_repository(open_repository(str(tmp_path / "none")), NAME, FolderSigner(tmp_path), 1)
        is None
    )


async def test_somebody_who_keeps_changing_the_repository_is_told_of(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with harness(tmp_path / "fleet", str(tmp_path / "shelf")) as fleet:
        distributor = distributor_of(fleet)
        archive = distributor.live
        assert archive is not None
        assert distributor.repository is not None
        (tmp_path / "shelf" / NAME).unlink()
        monkeypatch.setattr(distributor.repository, "replace", lambda name, raw, version: False)
        with pytest.raises(Unavailable, match="keeps changing"):
            distributor._upload(distributor.repository, archive)
        answer = await distributor.upload(archive)
        assert answer is not None
        assert "not on the shelf yet" in answer


# --- what changed --------------------------------------------------------------------------------


def test_a_difference_is_shown_as_diff_shows_it() -> None:
    old = {"a.rego": b"one\ntwo\n", "gone.rego": b"x\n", "same": b"s\n", "end": b"a\nb\n"}
    new = {"a.rego": b"one\n2\n", "new.rego": b"y", "same": b"s\n", "end": b"a\nb"}
    found = differences(old, new, ("r1", "r2"))
    assert [(one.path, one.how) for one in found] == [
        ("a.rego", "changed"), ("end", "changed"), ("gone.rego", "removed"), ("new.rego", "added"),
    ]  # fmt: skip
    assert found[0].text == "--- r1/a.rego\n+++ r2/a.rego\n@@ -1,2 +1,2 @@\n one\n-two\n+2\n"
    assert found[1].text.endswith("-b\n+b\n\\ No newline at end of file\n")
    assert found[2].text.startswith("--- r1/gone.rego\n+++ /dev/null\n")
    assert "\\ No newline" in found[3].text
    assert not differences(old, dict(old), ("r1", "r2"))


async def test_history_of_an_archived_or_erased_entry_keeps_number_and_digest(
    tmp_path: Path,
) -> None:
    async with harness(tmp_path / "fleet", None) as fleet:
        await apply(fleet, edited(tmp_path, 0), commit="abc")
        entry = fleet.entries("policy.published")[-1]
        await fleet.app.commands.erase(fleet.order("asked to"), entry=entry["seq"])
        row, first = history(fleet.app.store)
        assert (row["reason"], row["commit"], row["revision"]) == (None, "abc", 2)
        assert first["reason"] == "found in the policy folder at start"

        class Archived:
            def walk(self, kinds: Any = None, after: int = 0) -> Iterator[Any]:
                return iter(())

        archived: Any = SimpleNamespace(policy=fleet.app.store.policy, ledger=Archived())
        bare, _ = history(archived)
        assert (bare["revision"], bare["by"], bare["digest"]) == (2, None, row["digest"])


def test_the_archive_that_is_kept_counts_only_for_what_is_live() -> None:
    archive = Archive.from_raw(3, "d" * 64, "key", b"raw")

    class Record:
        live = (3, "d" * 64)

        def meta(self, name: str) -> str | None:
            return archive.marks().get(name)

        def live_revision(self) -> tuple[int, str]:
            return self.live

    kept = Record()
    record = store_of(kept)
    assert Archive.load_live(record) == archive
    for other in ((4, "d" * 64), (3, "e" * 64)):
        kept.live = other
        assert Archive.load_live(record) is None
    assert replace(archive, number=4).marks() != archive.marks()

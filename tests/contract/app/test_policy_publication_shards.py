"""Record and shelf of several workers: keys that differ, races, a shelf that is away or ahead."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import orjson
import pytest
from tests.contract.store.test_store import ADAPTERS, Opener, open_sqlite
from tests.gcs import Gcs, serving

from vedette.adapters.bundles.bucket import EMULATOR_HOST
from vedette.adapters.bundles.repository import open_repository
from vedette.adapters.policy_engines.regorus.stage import read_bundle
from vedette.app.policy_publication import FolderSigner
from vedette.config.deployment import Deployment, PolicyPlan
from vedette.domain.bundle import Bundle
from vedette.domain.ports.store import Store
from vedette.policy.distribution import Archive, BundleDistributor
from vedette.policy.signed_archive import ARCHIVE, KEY
from vedette.testing.harness import FleetHarness, checkout, copy_policies

NAME = "harbour.tar.gz"


@pytest.fixture(scope="module")
def bundle() -> Bundle:
    return read_bundle(checkout() / "policies")


@pytest.fixture(scope="module")
def keys(tmp_path_factory: pytest.TempPathFactory) -> dict[str, FolderSigner]:
    """Return the sealers of workers: two with a key each, and one without."""
    folder = tmp_path_factory.mktemp("keys")
    made = {name: FolderSigner(folder / name) for name in ("a", "b", "none")}
    for name in ("a", "b"):
        made[name].key_id(make=True)
    return made


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    opened = open_sqlite(tmp_path / "state")
    yield opened
    opened.close()


def archive_of(bundle: Bundle, number: int, signer: FolderSigner) -> Archive:
    key = signer.key_id(make=False)
    assert key is not None
    raw = signer.pack(bundle, number, "person:tester", None, 1)
    return Archive.from_raw(number, bundle.digest, key, raw, signer.public_key())


async def publish(store: Any, bundle: Bundle, archive: Archive) -> None:
    """Publish as a worker does that is none of those under test."""
    await store.commands.publish(bundle, [], number=archive.number, meta=archive.marks())


def worker(store: Any, signer: FolderSigner, where: Path | str | None) -> BundleDistributor:
    repository = open_repository(str(where)) if where else None
    made = BundleDistributor(store, signer, repository, NAME, lambda: 1)
    made.refresh()
    return made


def lies(where: Path) -> bytes:
    return (where / NAME).read_bytes()


# --- a worker with another key, or none -----------------------------------------------------------


@pytest.mark.parametrize("who", ["none", "b"])
async def test_a_leader_without_the_fleet_s_key_overwrites_nothing_newer(
    store: Store, bundle: Bundle, keys: dict[str, FolderSigner], tmp_path: Path, who: str
) -> None:
    live, newer = (archive_of(bundle, number, keys["a"]) for number in (5, 9))
    await publish(store, bundle, live)
    where = tmp_path / "shelf"
    leader = worker(store, keys[who], where)
    assert await leader.repair() is None
    assert lies(where) == live.raw
    # The same again is no news: it knows by the fleet's public key what lies there.
    assert await leader.repair() is None
    (where / NAME).write_bytes(newer.raw)
    answer = await leader.repair()
    assert answer is not None
    assert "the shelf holds revision 9" in answer
    assert lies(where) == newer.raw
    # The control: what none of the keys signed is replaced, and that is told.
    (where / NAME).write_bytes(b"nothing of ours")
    answer = await leader.repair()
    assert answer is not None
    assert "none of ours and is replaced" in answer
    assert lies(where) == live.raw


async def test_who_is_slow_with_the_old_key_does_not_overwrite_the_new_one(
    store: Store, bundle: Bundle, keys: dict[str, FolderSigner], tmp_path: Path
) -> None:
    """As when another worker publishes with --new-key while this one reaches the repository."""
    old, new = archive_of(bundle, 1, keys["a"]), archive_of(bundle, 2, keys["b"])
    await publish(store, bundle, old)
    where = tmp_path / "shelf"
    slow = worker(store, keys["a"], where)
    assert await slow.upload(old) is None
    await publish(store, bundle, new)
    (where / NAME).write_bytes(new.raw)
    assert await slow.upload(old) is None
    assert lies(where) == new.raw


async def test_an_archive_that_was_kept_without_its_public_key_is_signed_anew(
    store: Any, bundle: Bundle, keys: dict[str, FolderSigner]
) -> None:
    await publish(store, bundle, archive_of(bundle, 1, keys["a"]))
    mark = orjson.loads(store.meta(ARCHIVE))
    del mark["public"]
    await store.commands.set_meta(ARCHIVE, orjson.dumps(mark).decode())
    assert worker(store, keys["none"], None).live is None
    leader = worker(store, keys["a"], None)
    assert await leader.repair() is None
    assert leader.live is not None
    assert leader.live.public == keys["a"].public_key()


# --- signing what is live already -----------------------------------------------------------------


async def test_who_signs_afterwards_does_not_overwrite_what_was_published_meanwhile(
    store: Any, bundle: Bundle, keys: dict[str, FolderSigner]
) -> None:
    await store.commands.publish(bundle, [])
    theirs = archive_of(bundle, 2, keys["b"])
    submit, met = store.writer.submit, list[bool]()

    async def late(work: Callable[[], Any], **more: Any) -> Any:
        """Let another worker publish, with a new key, just before our first write."""
        if not met:
            met.append(True)
            await publish(store, bundle, theirs)
        return await submit(work, **more)

    store.writer.submit = late
    leader = worker(store, keys["a"], None)
    assert await leader.repair() is None
    assert met
    assert (store.meta(KEY), Archive.load_live(store)) == (theirs.key, theirs)
    assert leader.live == theirs


@pytest.mark.parametrize("adapter", sorted(ADAPTERS))
async def test_marks_are_kept_all_or_none_and_only_of_what_is_live(
    tmp_path: Path, bundle: Bundle, adapter: str
) -> None:
    opener: Opener = ADAPTERS[adapter]
    store: Any = opener(tmp_path / "state")
    try:
        await store.commands.publish(bundle, [])
        first, second = {"m": "1", KEY: "a"}, {"m": "2", KEY: "b"}
        assert not await store.commands.set_meta_if_live(2, first, KEY, None)
        assert not await store.commands.set_meta_if_live(1, first, KEY, "b")
        assert store.meta("m") is None
        assert await store.commands.set_meta_if_live(1, first, KEY, None)
        assert not await store.commands.set_meta_if_live(1, second, KEY, None)
        assert (store.meta("m"), store.meta(KEY)) == ("1", "a")
        assert await store.commands.set_meta_if_live(1, second, KEY, "a")
        assert (store.meta("m"), store.meta(KEY)) == ("2", "b")
    finally:
        store.close()


@pytest.mark.parametrize("led", [False, True])
async def test_a_worker_that_does_not_lead_shows_what_the_leader_signed(
    store: Any, bundle: Bundle, keys: dict[str, FolderSigner], monkeypatch: pytest.MonkeyPatch,
    led: bool,
) -> None:  # fmt: skip
    monkeypatch.setattr("vedette.policy.distribution.LEAD_S", 0.01)
    monkeypatch.setattr("vedette.policy.distribution.RETRY_S", 0.02)
    await store.commands.publish(bundle, [])
    # Who led before, without the fleet's key, could not sign it.
    await store.commands.set_meta(KEY, keys["a"].key_id(make=False))
    other, leader = worker(store, keys["none"], None), worker(store, keys["a"], None)
    messages: list[str] = []
    leading = [led]
    keeping = asyncio.create_task(other.maintain(lambda: leading[0], messages.append))
    try:
        await asyncio.sleep(0.1)
        leading[0] = False
        shown = [other.live]
        assert await leader.repair() is None
        async with asyncio.timeout(5):
            while shown[-1] != leader.live:
                await asyncio.sleep(0.01)
                shown.append(other.live)
            # And what this worker cannot take up, say, though it is live.
            newer = archive_of(bundle, 2, keys["a"])
            await publish(store, bundle, newer)
            while shown[-1] != newer:
                await asyncio.sleep(0.01)
                shown.append(other.live)
        assert shown[0] is None
        assert [each for each in messages if "revision 1 is not signed" not in each] == []
        assert bool(messages) == led
    finally:
        keeping.cancel()
        await asyncio.gather(keeping, return_exceptions=True)


# --- a bucket whose answers break -----------------------------------------------------------------


@pytest.fixture
def gcs(monkeypatch: pytest.MonkeyPatch) -> Iterator[Gcs]:
    with serving("policies") as served:
        monkeypatch.setenv(EMULATOR_HOST, served.url)
        monkeypatch.setattr("vedette.adapters.bundles.bucket.TIMEOUT_S", 0.2)
        yield served


@pytest.mark.parametrize("how", ["cut", "reset", "stall"])
async def test_a_bucket_that_breaks_off_is_tried_again_and_loses_nothing(
    gcs: Gcs, store: Any, bundle: Bundle, keys: dict[str, FolderSigner], how: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    """A part of an archive is not one of ours that somebody changed, and does not end the fleet."""
    monkeypatch.setattr("vedette.policy.distribution.RETRY_S", 0.01)
    live, newer = (archive_of(bundle, number, keys["a"]) for number in (1, 2))
    await publish(store, bundle, live)
    open_repository("gs://policies").replace(NAME, newer.raw, None)
    gcs.breaking = how
    leader = worker(store, keys["a"], "gs://policies")
    messages: list[str] = []
    keeping = asyncio.create_task(leader.maintain(lambda: True, messages.append))
    try:
        async with asyncio.timeout(10):
            while len(messages) < 2 and not keeping.done():  # noqa: ASYNC110 (a task tells)
                await asyncio.sleep(0.01)
            assert not keeping.done()
            assert all("revision 1 is not on the shelf yet" in each for each in messages)
            assert all("Cloud Storage" in each for each in messages)  # not: somebody changed it
            assert gcs.buckets["policies"][NAME].raw == newer.raw
            gcs.breaking = ""
            while "the shelf holds revision 2" not in messages[-1]:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
    finally:
        keeping.cancel()
        await asyncio.gather(keeping, return_exceptions=True)


# --- after a restore ------------------------------------------------------------------------------


def restored(folder: Path, where: Path, bundle: Bundle, number: int) -> Path:
    """Return a fleet's folder whose store knows nothing of the revision that lies on its shelf."""
    signer = FolderSigner(folder / "state")
    signer.key_id(make=True)
    where.mkdir()
    (where / NAME).write_bytes(archive_of(bundle, number, signer).raw)
    return folder


async def test_a_publication_goes_above_the_repository_though_no_fleet_runs(
    tmp_path: Path, bundle: Bundle
) -> None:
    """As `vedette policy publish` does it: open the store, publish, close."""
    where = tmp_path / "shelf"
    folder = restored(tmp_path / "fleet", where, bundle, 7)
    async with FleetHarness(folder):  # without a shelf: revision 1 is live
        pass
    edited = copy_policies(tmp_path / "edited")
    denies = edited / "denies" / "data.yaml"
    denies.write_text(denies.read_text() + "# looked at\n")
    edges = Deployment(policy=PolicyPlan(bundles=str(where)))
    async with FleetHarness(folder, edges=edges) as fleet:
        assert fleet.app.store.policy.live_revision()[0] == 1
        done = await fleet.apply_policy(edited)
        assert (done["ok"], done["revision"], done["told"]) == (True, 8, None)
    assert FolderSigner(folder / "state").read(lies(where)) == (8, done["digest"])


async def test_who_is_told_to_publish_again_may_do_so_in_another_process(
    store: Any, bundle: Bundle, keys: dict[str, FolderSigner], tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.setattr("vedette.policy.distribution.LOOK_S", 0)  # as with a shelf that is slow
    where = tmp_path / "shelf"
    live = archive_of(bundle, 1, keys["a"])
    await publish(store, bundle, live)
    where.mkdir()
    (where / NAME).write_bytes(archive_of(bundle, 7, keys["a"]).raw)
    made = partial(worker, store, keys["a"], where)
    first = made()
    await first.warm()
    assert (first.next_number(1), first.is_behind(1)) == (2, False)
    answer = await first.upload(live)
    assert answer is not None
    assert "Publish again; it becomes a higher revision" in answer
    # The same content is a change now, and its number is above.
    assert (made().next_number(1), made().is_behind(1)) == (8, True)
    await publish(store, bundle, archive_of(bundle, 8, keys["a"]))
    assert not made().is_behind(8)


async def test_a_look_at_the_repository_sees_what_the_record_does_not_know(
    store: Any, bundle: Bundle, keys: dict[str, FolderSigner], tmp_path: Path
) -> None:
    where = tmp_path / "shelf"
    await publish(store, bundle, archive_of(bundle, 3, keys["a"]))
    where.mkdir()
    for raw, number in (
        (archive_of(bundle, 2, keys["a"]).raw, 4),
        (archive_of(bundle, 3, keys["a"]).raw, 4),
        (archive_of(bundle, 6, keys["b"]).raw, 4),  # nobody's here
        (b"garbage", 4),
        (archive_of(bundle, 6, keys["a"]).raw, 7),
    ):
        (where / NAME).write_bytes(raw)
        looking = worker(store, keys["none"], where)
        await looking.warm()
        assert looking.next_number(3) == number
    shutil.rmtree(where)
    await worker(store, keys["none"], where).warm()

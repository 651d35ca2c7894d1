"""The contract of BundleRepository, on a folder and on a bucket over HTTP with preconditions."""

from __future__ import annotations

import fcntl
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from tests.gcs import Gcs, serving

from vedette.adapters.bundles.bucket import EMULATOR_HOST, HOST
from vedette.adapters.bundles.repository import (
    BucketRepository,
    DirectoryRepository,
    open_repository,
)
from vedette.domain.base.errors import BadFleet, BadPolicy, Unavailable

GZIP = b"\x1f\x8b\r\n\r\n--vedette-part-of-an-upload\r\n\x00\xff the end\r\n"


@pytest.fixture
def gcs(monkeypatch: pytest.MonkeyPatch) -> Iterator[Gcs]:
    with serving("policies") as served:
        monkeypatch.setenv(EMULATOR_HOST, served.url)
        yield served


@pytest.fixture(params=["folder", "bucket", "bucket below a prefix"])
def where(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "folder":
        return str(tmp_path / "shelf")
    request.getfixturevalue("gcs")
    return "gs://policies/fleets/a b" if "prefix" in request.param else "gs://policies"


@pytest.fixture
def shelf(where: str) -> DirectoryRepository | BucketRepository:
    return open_repository(where)


def test_nothing_is_there_before_it_is_put(shelf: DirectoryRepository) -> None:
    assert shelf.get("harbour.tar.gz") is None
    shelf.put("archives/abc.tar.gz", GZIP)
    found = shelf.get("archives/abc.tar.gz")
    assert found is not None
    assert found[0] == GZIP
    assert shelf.get("harbour.tar.gz") is None


def test_what_was_put_stays_as_it_was(shelf: DirectoryRepository) -> None:
    shelf.put("archives/abc.tar.gz", GZIP)
    shelf.put("archives/abc.tar.gz", GZIP)
    with pytest.raises(BadPolicy, match="other bytes than its name tells"):
        shelf.put("archives/abc.tar.gz", b"something else")
    found = shelf.get("archives/abc.tar.gz")
    assert found is not None
    assert found[0] == GZIP


def test_a_file_changes_only_from_the_version_that_was_seen(shelf: DirectoryRepository) -> None:
    assert not shelf.replace("harbour.tar.gz", b"one", "12345")
    assert shelf.get("harbour.tar.gz") is None
    assert shelf.replace("harbour.tar.gz", b"one", None)
    assert not shelf.replace("harbour.tar.gz", b"two", None)
    first = shelf.get("harbour.tar.gz")
    assert first is not None
    assert first[0] == b"one"
    assert shelf.replace("harbour.tar.gz", b"two", first[1])
    assert not shelf.replace("harbour.tar.gz", b"three", first[1])
    second = shelf.get("harbour.tar.gz")
    assert second is not None
    assert (second[0], second[1] != first[1]) == (b"two", True)


def test_of_many_writers_one_succeeds_each_time(where: str) -> None:
    rounds, writers = 5, 4
    repositories = [open_repository(where) for _ in range(writers)]
    gate = threading.Barrier(writers)

    def write(at: int) -> int:
        won = 0
        for turn in range(rounds):
            found = repositories[at].get("harbour.tar.gz")
            gate.wait(10)  # all have seen the same version
            version = found[1] if found else None
            won += repositories[at].replace("harbour.tar.gz", b"%d by %d" % (turn, at), version)
            gate.wait(10)
        return won

    with ThreadPoolExecutor(writers) as pool:
        assert sum(pool.map(write, range(writers))) == rounds


@pytest.mark.parametrize("status", [401, 403, 429, 500, 503])
def test_a_bucket_that_refuses_is_not_there_now(gcs: Gcs, status: int) -> None:
    repository = open_repository("gs://policies")
    gcs.failing = status
    for ask in (
        lambda: repository.get("a"), lambda: repository.put("a", b"1"),
        lambda: repository.replace("a", b"1", None)
    ):  # fmt: skip
        with pytest.raises(Unavailable, match=f"answered {status}"):
            ask()
    gcs.failing = 0
    repository.put("a", b"1")


def test_a_bucket_that_does_not_exist_is_told(gcs: Gcs) -> None:
    with pytest.raises(Unavailable, match="make the bucket"):
        open_repository("gs://elsewhere").put("a", b"1")
    with pytest.raises(BadFleet, match="names no bucket"):
        open_repository("gs://")


@pytest.mark.parametrize("how", ["cut", "reset", "stall"])
def test_an_answer_that_breaks_off_is_no_answer(
    gcs: Gcs, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    monkeypatch.setattr("vedette.adapters.bundles.bucket.TIMEOUT_S", 0.2)
    repository = open_repository("gs://policies")
    for length in (1000, 200_000):  # in one part, and in several
        raw = bytes(length)
        repository.put(f"archives/{length}", raw)
        gcs.breaking = how
        for ask in (repository.get, lambda name, raw=raw: repository.put(name, raw)):
            with pytest.raises(Unavailable):
                ask(f"archives/{length}")
        gcs.breaking = ""
        found = repository.get(f"archives/{length}")
        assert found is not None
        assert found[0] == raw


def test_a_bucket_that_sends_for_ever_is_not_read_for_ever(
    gcs: Gcs, monkeypatch: pytest.MonkeyPatch
) -> None:
    repository = open_repository("gs://policies")
    repository.put("a", bytes(100_000))
    monkeypatch.setattr("vedette.adapters.bundles.bucket.DOWNLOAD_TIMEOUT_S", 0)
    with pytest.raises(Unavailable, match="too slowly"):
        repository.get("a")
    monkeypatch.undo()
    monkeypatch.setenv(EMULATOR_HOST, gcs.url)
    monkeypatch.setattr("vedette.adapters.bundles.bucket.MAX_BYTES", 99_999)
    with pytest.raises(BadPolicy, match="is larger"):
        repository.get("a")


def test_an_answer_that_was_lost_is_no_answer(gcs: Gcs) -> None:
    repository = open_repository("gs://policies")
    gcs.losing = 1
    with pytest.raises(Unavailable):
        repository.replace("harbour.tar.gz", b"one", None)
    assert repository.get("harbour.tar.gz") is not None


@pytest.mark.parametrize("token", ["of-this-machine", "of-another"])
def test_a_bucket_is_asked_with_the_machine_s_credentials(
    gcs: Gcs, monkeypatch: pytest.MonkeyPatch, token: str
) -> None:
    from google.oauth2.credentials import Credentials

    requests: list[object] = []

    def default(scopes: object) -> tuple[object, str]:
        requests.append(scopes)
        return Credentials(token), "a-project"  # type: ignore[no-untyped-call]

    assert HOST.startswith("https://")
    gcs.token = "of-this-machine"
    monkeypatch.delenv(EMULATOR_HOST)
    monkeypatch.setattr("google.auth.default", default)
    repository = BucketRepository("policies")
    monkeypatch.setattr(repository, "_base", gcs.url)
    if token == gcs.token:
        repository.put("a", b"1")
        assert gcs.buckets["policies"]["a"].raw == b"1"
    else:
        with pytest.raises(Unavailable):
            repository.put("a", b"1")
        assert not gcs.buckets["policies"]
    assert requests == [["https://www.googleapis.com/auth/devstorage.read_write"]]


def test_a_folder_that_cannot_be_written_is_told(tmp_path: Path) -> None:
    (tmp_path / "shelf").write_text("a file is here")
    with pytest.raises(Unavailable, match="cannot be used"):
        open_repository(str(tmp_path / "shelf")).put("a", b"1")


def test_a_writer_that_hangs_does_not_keep_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("vedette.adapters.bundles.directory.LOCK_S", 0.1)
    repository = open_repository(str(tmp_path / "shelf"))
    assert repository.replace("b", b"1", None)
    version = repository.get("b")
    assert version is not None
    with ThreadPoolExecutor(1) as pool, (tmp_path / "shelf" / ".lock").open() as hanging:
        fcntl.flock(hanging, fcntl.LOCK_EX)
        waiting = pool.submit(repository.replace, "b", b"2", version[1])
        try:
            with pytest.raises(Unavailable, match="another writer has held the shelf"):
                waiting.result(5)
        finally:
            fcntl.flock(hanging, fcntl.LOCK_UN)
    assert repository.replace("b", b"2", version[1])


def test_others_can_read_what_lies_in_a_folder_and_no_half_files_stay(tmp_path: Path) -> None:
    repository = open_repository(str(tmp_path / "shelf"))
    repository.put("archives/a", b"1")
    repository.replace("b", b"2", None)
    kept = {
        path.relative_to(tmp_path / "shelf").as_posix(): path.stat().st_mode & 0o777
        for path in (tmp_path / "shelf").rglob("*")
        if path.is_file()
    }
    assert kept == {".lock": 0o600, "archives/a": 0o644, "b": 0o644}
    assert [path.name for path in (tmp_path / "shelf" / "archives").iterdir()] == ["a"]

"""An I/O error at any call: nothing is lost, doubled or half applied, and a person is told.

Here: a sample. Every call of a day, in each way, is `make io-errors`.
"""

from __future__ import annotations

import errno
import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.faults.day import kind_of
from tests.faults.syscalls import Failing, Fault, available

from vedette.testing.faults import run_in_child

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module", autouse=True)
def _listener() -> None:
    if not available():
        if os.environ.get("CI") == "true":
            pytest.fail("this kernel has no seccomp listeners, or allows none here")
        pytest.skip("this kernel has no seccomp listeners, or allows none here")


def play(*options: str) -> dict[str, Any]:
    """Play some faults in a process of its own, which loads the fleet once and forks."""
    command = [sys.executable, "-m", "tests.faults.io_errors", "--shard=0", "--shards=1"]
    done = subprocess.run(
        [*command, *options], capture_output=True, text=True, timeout=500, check=False, cwd=ROOT
    )
    assert done.returncode in (0, 1), done.stderr[-3000:]
    document: dict[str, Any] = json.loads(done.stdout)
    return document


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_after_an_error_at_any_call_the_fleet_goes_on_or_says_why() -> None:
    report = play("--sample=.")
    assert not report["wrong"], "\n".join(report["findings"])
    assert report["singles"] >= 20


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_an_engine_that_does_not_hear_that_a_commit_failed_is_found() -> None:
    """Negative control: what was not made durable is answered for."""
    report = play("--sample=EIO at sync 9", "--control=deaf")
    assert report["wrong"] == 1, report


# --- the instrument -----------------------------------------------------------------------------


def write_three(folder: Path) -> list[int]:
    """Write three times into each of two files; return the errors' numbers, 0 where it was done."""
    found = []
    for name in ("ours", "other"):
        file = os.open(folder / name, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        for _ in range(3):
            try:
                os.write(file, b"12345678")
                os.fsync(file)
                found.append(0)
            except OSError as error:
                found.append(error.errno or -1)
        os.close(file)
    return found


@pytest.mark.forks
@pytest.mark.parametrize(
    ("fault", "errors", "size"),
    [
        (Fault("write", "ours", 2, "EIO"), [0, errno.EIO, 0, 0, 0, 0], 16),
        (Fault("sync", "ours", 3, "ENOSPC"), [0, 0, errno.ENOSPC, 0, 0, 0], 24),
        (Fault("write", "ours", 2, "half"), [0, 0, 0, 0, 0, 0], 20),
        (Fault("write", "ours", 2, "full"), [0, errno.ENOSPC, errno.ENOSPC, 0, 0, 0], 8),
        (Fault("write", "ours", 4, "EIO"), [0, 0, 0, 0, 0, 0], 24),
    ],
    ids=str,
)
def test_the_call_that_is_named_fails_and_no_other(
    tmp_path: Path, fault: Fault, errors: list[int], size: int
) -> None:
    failing = Failing(lambda path: "ours" if path.endswith("/ours") else "", fault)

    def work() -> None:
        assert write_three(tmp_path) == errors

    assert not run_in_child(failing.under(work), parent_work=failing.attend).error
    assert (tmp_path / "ours").stat().st_size == size
    assert (tmp_path / "other").stat().st_size == 24
    assert bool(failing.struck) is (fault.at < 4)


@pytest.mark.forks
@pytest.mark.parametrize(
    ("call", "act"),
    [
        ("open", lambda folder: (folder / "a").read_bytes()),
        ("rename", lambda folder: (folder / "b").rename(folder / "a")),
        ("unlink", lambda folder: (folder / "a").unlink()),
        ("link", lambda folder: os.link(folder / "b", folder / "a")),
        ("mkdir", lambda folder: (folder / "a").mkdir()),
        ("truncate", lambda folder: os.truncate(folder / "a", 1)),
        ("allocate", lambda folder: os.posix_fallocate(os.open(folder / "b", os.O_RDWR), 0, 9)),
    ],
)
def test_each_kind_of_call_is_had_to_fail(
    tmp_path: Path, call: str, act: Callable[[Path], object]
) -> None:
    for name in "ab":
        (tmp_path / name).write_text("as it was")
    named = "/b" if call == "allocate" else "/a"
    failing = Failing(
        lambda path: "it" if path.endswith(named) else "", Fault(call, "it", 1, "EIO")
    )

    def work() -> None:
        with pytest.raises(OSError, match=os.strerror(errno.EIO)):
            act(tmp_path)

    assert not run_in_child(failing.under(work), parent_work=failing.attend).error
    assert failing.struck.endswith(named)
    assert [(tmp_path / name).read_text() for name in "ab"] == ["as it was"] * 2


def test_files_are_known_by_their_kind(tmp_path: Path) -> None:
    kind = kind_of(tmp_path)
    for path, value in {
        "state/store.db-wal": "store.db-wal", "state/.ledger.key.ab12.part": "ledger.key",
        "state/ledger.key.next.77": "ledger.key", "state/clock.json.new": "clock.json",
        "state/releases/.new-1/whole/a": "snapshots", "state": "state folder",
        "backup/0/store.db": "backup: store.db", "world.jsonl": "", "../state/store.db": "",
    }.items():  # fmt: skip
        assert kind(os.path.normpath(tmp_path / path)) == value

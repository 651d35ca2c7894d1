"""Runs in hand survive the process that held them: real processes, killed by SIGKILL."""

from __future__ import annotations

import os
import shlex
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from tests.contract.store.test_store_sqlite import mounts, need_mounts

from vedette.adapters.reasoners.workers.run_journal import FILE, RunJournal

RUN = "run_0123456789abcdef0123456789abcdef"

HOLD = """
import sys, os, signal
from pathlib import Path
from vedette.adapters.reasoners.workers.run_journal import RunJournal
held = RunJournal(Path(sys.argv[1]))
for run in sys.argv[2].split(","):
    held.begin(run)
for run in filter(None, sys.argv[3].split(",")):
    held.end(run)
{end}
"""
KILLED = "os.kill(os.getpid(), signal.SIGKILL)"
CRASHED = "import ctypes; ctypes.string_at(0)"


def die_with(state: Path, takes: str, puts: str = "", end: str = KILLED) -> int:
    """Let a process take runs in hand, put some back, and die."""
    code = HOLD.format(end=end)
    return subprocess.run(
        [sys.executable, "-c", code, str(state), takes, puts], check=False
    ).returncode


def left(state: Path) -> list[str]:
    held = RunJournal(state)
    try:
        return held.unfinished()
    finally:
        held.close()


@pytest.mark.parametrize(
    ("end", "signalled"), [(KILLED, signal.SIGKILL), (CRASHED, signal.SIGSEGV)]
)
def test_what_was_in_hand_is_left_over(tmp_path: Path, end: str, signalled: int) -> None:
    assert die_with(tmp_path, f"run_a,{RUN},run_b", "run_a,run_b", end) == -signalled
    assert left(tmp_path) == [RUN]


FULL = """
import errno, os, sys
from pathlib import Path
from vedette.adapters.reasoners.workers.run_journal import RunJournal
from vedette.domain.base.errors import StoreFailed
state, how = Path(sys.argv[1]), sys.argv[2]
held = RunJournal(state) if how == "grows" else None
with open(state / "ballast", "wb", buffering=0) as ballast:
    try:
        while ballast.write(bytes(4096)):
            pass
    except OSError as error:
        assert error.errno == errno.ENOSPC
try:
    held = held or RunJournal(state)
    for number in range(600):
        held.begin(f"run_{number:032}")
except StoreFailed as error:
    print(error.code, error.where)
"""


@pytest.mark.parametrize("how", ["begins", "grows"])
def test_a_full_disk_is_told_and_ends_no_process(how: str) -> None:
    need_mounts(mounts())
    run = shlex.join([sys.executable, "-c", FULL, "/mnt", how])
    done = subprocess.run(
        ["unshare", "-rm", "sh", "-c", f"mount -t tmpfs -o size=1m tmpfs /mnt && {run}"],
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert done.returncode == 0, (done.returncode, done.stderr[-500:])
    assert done.stdout.split() == ["no-space", "/mnt/in_hand"]


def test_what_was_put_back_is_not_left_over(tmp_path: Path) -> None:
    die_with(tmp_path, "run_a,run_b", "run_a,run_b")
    assert left(tmp_path) == []


def test_it_stays_until_its_attempt_is_charged(tmp_path: Path) -> None:
    """A process that dies before it could charge the attempt leaves it to the next one."""
    die_with(tmp_path, "run_a,run_b")
    assert sorted(left(tmp_path)) == ["run_a", "run_b"]
    held = RunJournal(tmp_path)
    held.end("run_a")
    assert held.unfinished() == ["run_b"]
    held.begin("run_c")
    assert held.unfinished() == ["run_b"], "what this process holds is not left over"
    held.close()
    assert sorted(left(tmp_path)) == ["run_b", "run_c"]


def test_a_run_is_held_once(tmp_path: Path) -> None:
    held = RunJournal(tmp_path)
    held.begin(RUN)
    held.begin(RUN)
    held.end(RUN)
    held.end(RUN)
    held.close()
    assert left(tmp_path) == []


def test_any_number_may_be_in_hand(tmp_path: Path) -> None:
    held = RunJournal(tmp_path)
    runs = [f"run_{number:032x}" for number in range(2000)]
    for run in runs:
        held.begin(run)
    for run in runs[:1500]:
        held.end(run)
    held.close()
    assert sorted(left(tmp_path)) == runs[1500:]


@pytest.mark.parametrize("run", ["", "r" * 60])
def test_what_is_no_id_is_refused(tmp_path: Path, run: str) -> None:
    held = RunJournal(tmp_path)
    with pytest.raises(ValueError, match="is no id of a run"):
        held.begin(run)
    held.close()


def test_a_torn_or_foreign_file_is_never_taken_for_runs(tmp_path: Path) -> None:
    """After a power loss the file may hold anything; what checks out is believed, nothing else."""
    die_with(tmp_path, "run_a,run_b,run_c")
    whole = bytearray((tmp_path / FILE).read_bytes())
    at = whole.index(b"run_b")
    whole[at] ^= 1
    (tmp_path / FILE).write_bytes(bytes(whole[:-7]))
    assert sorted(left(tmp_path)) == ["run_a", "run_c"]
    (tmp_path / FILE).write_bytes(os.urandom(5000))
    assert left(tmp_path) == []

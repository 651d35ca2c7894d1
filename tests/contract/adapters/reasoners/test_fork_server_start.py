"""A fork server that was started before its pool: it serves nobody until it has the lock.

Real processes. What a pool does with its fork server is in test_worker_judges.py.
"""

from __future__ import annotations

import fcntl
import subprocess
import sys
from pathlib import Path

import pytest
from tests.workers import CHARTER, EVERY, LIMITS, alive, brief, crew, write_judge

from vedette.adapters.reasoners.workers.fork_server_start import LOCK, ForkServerProcess
from vedette.adapters.reasoners.workers.reasoner_client import JudgeSpec, WorkerReasoner
from vedette.adapters.reasoners.workers.supervisor import WorkerPool

# Says what of the judging kit was there before it imported any of it.
TELLS = """
import sys
known = sorted(name for name in sys.modules if name.startswith("vedette.judging."))
from vedette.judging import Judge as Base
from vedette.judging import Judgement

class Judge(Base):
    def judge(self, seen, briefing):
        return Judgement("seen", 1.0, (), detail={"known": known})
"""


def pid(begun: ForkServerProcess) -> int:
    return begun._process.pid


def parent(pid: int) -> int:
    result = subprocess.run(["ps", "-o", "ppid=", "-p", str(pid)], capture_output=True, check=True)
    return int(result.stdout)


def locked(state: Path) -> bool:
    """Say whether somebody holds the lock of a state folder."""
    with (state / LOCK).open("r+b") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        return False


async def test_a_pool_takes_up_the_one_that_was_begun(tmp_path: Path) -> None:
    begun = ForkServerProcess()
    assert not (tmp_path / "state").exists(), "what is only begun leaves nothing behind"
    async with crew(tmp_path, fork_server=begun) as there:
        assert (await there.judges.reason(brief())).label == "seen 1"
        assert parent(await there.born()) == pid(begun)
        assert locked(tmp_path / "state")
        # It is the pool's by now: whoever began it has nothing to end.
        begun.end_unassigned()
        assert (await there.judges.reason(brief(2, 1))).label == "seen 2"
    assert not alive(pid(begun))
    assert not locked(tmp_path / "state")


def test_one_that_nobody_wants_is_ended() -> None:
    begun = ForkServerProcess()
    assert alive(pid(begun))
    begun.end_unassigned()
    assert not alive(pid(begun))
    begun.end_unassigned()


def test_one_ends_with_whoever_began_it() -> None:
    """A start that is killed before it has a pool leaves no process behind."""
    code = (
        "import os\n"
        "from vedette.adapters.reasoners.workers.fork_server_start import ForkServerProcess\n"
        "begun = ForkServerProcess()\n"
        "print(begun._process.pid, flush=True)\n"
        "os.kill(os.getpid(), 9)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    left = int(done.stdout)
    with subprocess.Popen(
        ["/bin/sh", "-c", f"while kill -0 {left} 2>/dev/null; do :; done"]
    ) as end:
        end.wait(30)
    assert not alive(left)


async def test_one_that_died_meanwhile_is_replaced(tmp_path: Path) -> None:
    begun = ForkServerProcess((sys.executable, "-c", "raise SystemExit(1)"))
    begun._process.wait(30)
    async with crew(tmp_path, fork_server=begun) as there:
        assert (await there.judges.reason(brief())).label == "seen 1"


def test_where_no_lock_can_be_had_it_is_ended(tmp_path: Path) -> None:
    (tmp_path / "state").write_text("in the way")
    begun = ForkServerProcess()
    with pytest.raises(FileExistsError):
        WorkerPool(tmp_path / "state", fork_server=begun)
    assert not alive(pid(begun))


@pytest.mark.parametrize("ahead", [(), ("judging.text", "no_such_module")])
async def test_what_judges_need_is_imported_once_for_all(
    tmp_path: Path, ahead: tuple[str, ...]
) -> None:
    folder = write_judge(tmp_path / "agents", code=TELLS)
    pool = WorkerPool(tmp_path / "state", preload=ahead)
    try:
        judges = WorkerReasoner(pool, lambda _: JudgeSpec(str(folder), CHARTER, (), LIMITS, EVERY))
        known = (await judges.reason(brief())).detail["known"]
    finally:
        pool.close()
    assert ("vedette.judging.text" in known) == bool(ahead)

"""One budget and several worker processes on PostgreSQL: the ceiling holds exactly."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from tests.pg import database_for

CHILD = Path(__file__).with_name("budget_child.py")
WORKERS = 4


def reserve_at_once(folder: Path, *mode: str) -> tuple[int, int]:
    """Let 4 processes reserve 16 times each; return how many were committed, how many refused."""
    url = database_for(folder)
    workers: list[subprocess.Popen[str]] = []
    try:
        for n in range(WORKERS):
            worker = subprocess.Popen(
                [sys.executable, str(CHILD), url, str(folder / f"worker{n}"), f"w{n}", *mode],
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
            )  # fmt: skip
            workers.append(worker)
            assert worker.stdout is not None
            assert worker.stdout.readline() == "ready\n"
        for worker in workers:
            assert worker.stdin is not None
            worker.stdin.write("go\n")
            worker.stdin.flush()
        output = [worker.communicate(timeout=60)[0].split() for worker in workers]
    finally:
        for worker in workers:
            worker.kill()
            worker.wait()
    return sum(int(given) for given, _ in output), sum(int(refused) for _, refused in output)


def test_64_reservations_of_four_processes_hold_the_ceiling_exactly(tmp_path: Path) -> None:
    assert reserve_at_once(tmp_path) == (37, 64 - 37)


def test_control_without_a_look_at_what_others_spent_it_is_passed(tmp_path: Path) -> None:
    committed, _ = reserve_at_once(tmp_path, "careless")
    assert committed > 37

"""A worker that dies by its own hand at a crash point, while it ships or takes in rows.

    python -m tests.contract.adapters.bigquery.bigquery_child ship STATE DATASET POINT PASS
    python -m tests.contract.adapters.bigquery.bigquery_child rows FOLDER DATASET POINT PASS

At that pass (1 is the first) of POINT it sends itself SIGKILL. `ship` ships the ledger of a state
folder; `rows` makes a toy fleet in a folder and hands it the rows of DATASET.jobs, one at a time.
"""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from pathlib import Path

from msgspec.structs import replace
from tests.bigquery import PROJECT, ROOT

from vedette.adapters.bigquery import source as module
from vedette.adapters.bigquery.config import BigQueryFile
from vedette.adapters.bigquery.source import BigQuerySource
from vedette.app.ledger_followers import ship_ledger
from vedette.config.deployment import AuditPlan, Deployment
from vedette.config.settings import Settings
from vedette.domain.base import failpoint
from vedette.testing.clock import ManualClock
from vedette.testing.toy_fleet import World, toy_fleet

T0 = 1_790_000_000_000_000
SECOND = 1_000_000


def plan_of(dataset: str) -> BigQueryFile:
    """Return the plan of a source over the table `jobs`."""
    return BigQueryFile(
        kind="bigquery", name="jobs", project=PROJECT, dataset=dataset, table="jobs",
        type="worker.job", time_column="inserted", id_column="id", subject_column="id",
        begin="start",
    )  # fmt: skip


def settings_of(state: Path, dataset: str) -> Settings:
    """Return settings of the toy fleet that ship to a dataset."""
    edges = Deployment(audit=AuditPlan(PROJECT, dataset, 1000))
    return replace(Settings.of(state.parent, "harbour"), state=state, deployment=edges)


def kill(what: str, folder: Path, dataset: str, point: str, at: int) -> None:
    """Run this module in a process of its own; raise AssertionError unless it killed itself."""
    name = "tests.contract.adapters.bigquery.bigquery_child"
    done = subprocess.run(
        [sys.executable, "-m", name, what, str(folder), dataset, point, str(at)],
        cwd=ROOT, capture_output=True, text=True, timeout=100, check=False,
    )  # fmt: skip
    assert done.returncode == -signal.SIGKILL, done.stderr[-2000:]


def arm(point: str, at: int) -> None:
    """Die at a pass of a point from now on."""
    left = [at]

    def reached(name: str) -> None:
        left[0] -= name == point
        if name == point and not left[0]:
            os.kill(os.getpid(), signal.SIGKILL)

    failpoint.hook = reached


async def take_in(folder: Path, dataset: str, point: str, at: int) -> None:
    """Hand over rows until then."""
    module.PAGE = 1
    async with toy_fleet(folder, World()) as fleet:
        arm(point, at)
        source = BigQuerySource(plan_of(dataset), ManualClock(T0 + 100 * SECOND), watch=False)
        await source.deliver(fleet.app.intake)


def main(what: str, folder: Path, dataset: str, point: str, at: int) -> None:
    """Do one of the two."""
    if what == "rows":
        asyncio.run(take_in(folder, dataset, point, at))
    else:
        arm(point, at)
        asyncio.run(ship_ledger(settings_of(folder, dataset)))


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), sys.argv[3], sys.argv[4], int(sys.argv[5]))

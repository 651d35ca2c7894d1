"""A worker in a process of its own that reserves against one budget beside others.

budget_child.py URL FOLDER NAME [careless]

Says "ready", waits for a line, reserves 16 times as fast as it can and prints how many
reservations were committed and how many were over budget.
"""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from vedette.domain.base.clock import SystemClock
from vedette.domain.budget import BudgetCap
from vedette.domain.run import CommitStatus, Run
from vedette.store.postgres import PostgresStore
from vedette.testing.sample_steps import accept_events, closing_step, event

KEY = Ed25519PrivateKey.from_private_bytes(bytes(range(32)))
ATTEMPTS = 16
AT_ONCE = 4
EVENTS = 400
TOKENS = (BudgetCap("fleet", "tokens", "day", 37), BudgetCap("agent", "tokens", "hour", 1000))


async def reserve(store: PostgresStore, run: Run) -> CommitStatus:
    """Reserve a token for a run, and close it."""
    spend = {"tokens": 1}
    step = closing_step(
        store, run, spend=spend, limits=TOKENS, epoch=store.cluster.lease_epoch(run) or 0
    )
    return (await store.steps.commit(step)).status


async def main(url: str, folder: Path, name: str, careless: bool) -> None:
    """Reserve at once with the others."""
    store = PostgresStore(
        url, folder, fleet="harbour", key=KEY, key_name="vedette/harbour",
        now_us=SystemClock().now_us,
    )  # fmt: skip
    if careless:
        # The control: what others have spent since is not looked at.
        store.parts.steps.forget = lambda: None  # type: ignore[method-assign]
        store.parts.buffer.totals.clear = lambda: None  # type: ignore[method-assign]
    events = [event(n, source=name, subject=f"{name}{n}") for n in range(EVENTS)]
    runs = await accept_events(store, *events)
    print("ready", flush=True)
    await asyncio.to_thread(sys.stdin.readline)
    answers: list[CommitStatus] = []
    while len(answers) < ATTEMPTS:
        # Leases still move from worker to worker: what was fenced did not reserve anything.
        most = min(AT_ONCE, ATTEMPTS - len(answers))
        held = [run for run in runs if store.cluster.lease_epoch(run) is not None][:most]
        runs = [run for run in runs if run not in held]
        if not held:
            await asyncio.sleep(0.01)
        given = await asyncio.gather(*(reserve(store, run) for run in held))
        answers += [answer for answer in given if answer is not CommitStatus.FENCED_LEASE]
    store.close()
    print(
        answers.count(CommitStatus.COMMITTED), answers.count(CommitStatus.OVER_BUDGET), flush=True
    )


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], Path(sys.argv[2]), sys.argv[3], sys.argv[4:] == ["careless"]))

"""A runner in a process of its own, for tests that kill it or fill its disk.

store_child.py loop FOLDER     commits without end; prints the seq of every answer given
store_child.py full FOLDER     fills the disk under FOLDER, then makes room and goes on
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
from pathlib import Path

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from vedette.domain.base.clock import SystemClock
from vedette.domain.base.errors import StoreFailed
from vedette.store.sqlite import SqliteStore
from vedette.testing.sample_steps import accept_events, closing_step, entry, event, step

KEY = Ed25519PrivateKey.from_private_bytes(bytes(range(32)))
NAME = "vedette/harbour"


def open_store(folder: Path) -> SqliteStore:
    return SqliteStore(folder, fleet="harbour", key=KEY, key_name=NAME, now_us=SystemClock().now_us)


async def one(store: SqliteStore, number: int, text: str = "x") -> tuple[str, int, int]:
    """Accept an event and close its run in two steps; tell each answer's seq."""
    (run,) = await accept_events(store, event(number))
    reasoned = entry(run, "turn.reasoned", turn=1, text=text)
    first = await store.steps.commit(step(store, run, reasoned, turn=1))
    after = store.runs.run(run.id)
    assert after is not None
    second = await store.steps.commit(closing_step(store, after))
    return run.id, first.last, second.last


async def loop(folder: Path) -> None:
    store = open_store(folder)
    number = store.ledger.last_seq() * 1000  # not the events of the run before

    async def lane(at: int) -> None:
        while True:
            for answer in (await one(store, at),):
                # One write: it is out, or it is not.
                os.write(1, (" ".join(map(str, answer)) + "\n").encode())
            at += 8

    await asyncio.gather(*(lane(number + lane_at) for lane_at in range(8)))


async def full(folder: Path) -> None:
    ballast = folder / "ballast"
    ballast.write_bytes(b"\0" * 600_000)
    store = open_store(folder / "state")
    answered: list[tuple[str, int, int]] = []
    failures: list[str] = []
    number = 0
    while len(failures) < 3:
        number += 1
        try:
            answered.append(await one(store, number, os.urandom(3000).hex()))
        except StoreFailed as error:
            failures.append(str(error))
    ready_when_full = store.steps.is_ready
    ballast.unlink()
    answered.append(await one(store, number + 1))
    told = {
        "answered": answered,
        "failures": failures,
        "ready_when_full": ready_when_full,
        "ready_again": store.steps.is_ready,
        "free": os.statvfs(folder).f_bavail,
    }
    store.close()
    os.write(1, json.dumps(told).encode())


if __name__ == "__main__":
    asyncio.run({"loop": loop, "full": full}[sys.argv[1]](Path(sys.argv[2])))

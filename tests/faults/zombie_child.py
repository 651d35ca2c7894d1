"""A worker in a process of its own, for tests that stop it, let it go on, or kill it.

zombie_child.py careful|careless|group URL FOLDER RECORD

Accepts an event of many keys, takes a run of its own and says so on standard output; then it
"calls" without end: each call is a line in RECORD with the instant, on the clock that leases are
counted by. `careful` asks the store immediately before each call, as the line does; `careless`
never does, which is the control. `group` stops itself in the middle of a group, with the fleet's
lock in its hands. On a line on standard input it commits a step under the lease that it had, says
what the store answered, and ends.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import threading
from pathlib import Path

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from vedette.domain.base.clock import SystemClock
from vedette.domain.base.errors import StoreFailed
from vedette.domain.base.machine import boot_us
from vedette.store.postgres import PostgresStore
from vedette.testing.sample_steps import accept_events, closing_step, event

KEY = Ed25519PrivateKey.from_private_bytes(bytes(range(32)))
LEASE_US = 1_000_000


def open_worker(url: str, folder: Path) -> PostgresStore:
    return PostgresStore(
        url, folder, fleet="harbour", key=KEY, key_name="vedette/harbour",
        now_us=SystemClock().now_us, lease_us=LEASE_US,
    )  # fmt: skip


def report(*words: object) -> None:
    os.write(1, (" ".join(map(str, words)) + "\n").encode())


def call(
    store: PostgresStore, epoch: int, record: int, careful: bool, end: threading.Event
) -> None:
    while not end.is_set():
        if not careful or store.cluster.is_lease_valid(epoch):
            os.write(record, f"{boot_us()}\n".encode())
        end.wait(0.0005)


async def main(mode: str, url: str, folder: Path, record: Path) -> None:
    store = open_worker(url, folder)
    runs = await accept_events(store, *(event(n, subject=f"k{n}") for n in range(200)))
    # The other worker must be there before a run is chosen, or its key may be given away.
    report("joined")
    sys.stdin.readline()
    mine = next(run for run in runs if store.cluster.lease_epoch(run) is not None)
    made = closing_step(store, mine)
    end = threading.Event()
    with record.open("ab", buffering=0) as file:
        calls = threading.Thread(
            target=call, args=(store, made.epoch, file.fileno(), mode == "careful", end)
        )
        calls.start()
        report("calling", mine.id)
        if mode == "group":
            store.writer.enqueue(lambda: os.kill(os.getpid(), signal.SIGSTOP), in_savepoint=True)
        await asyncio.to_thread(sys.stdin.readline)
        answers: list[str] = []
        while len(answers) < 10 and (not answers or "failed" in answers[-1]):
            try:
                answers.append((await store.steps.commit(made)).status.value)
            except StoreFailed:
                answers.append("failed")
        report("answer", answers[-1])
        sys.stdin.readline()
        end.set()
        calls.join()
    store.close()


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], sys.argv[2], Path(sys.argv[3]), Path(sys.argv[4])))

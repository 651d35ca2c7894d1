"""What one ledger sequence costs on PostgreSQL: groups under an exclusive and a shared lock.

python -m tests.bench.postgres_lock [SECONDS]

Processes commit groups of 16 rows without end, with a synchronous commit. Under the exclusive lock
(what the store does: one dense sequence) groups stand one behind the other, the sync included;
under the shared lock (as if every worker had a ledger of its own) the server syncs them together.
"""

from __future__ import annotations

import multiprocessing
import sys
import time
from typing import Any

from tests.pg import server

ROWS = 16
_GROUP = (
    "BEGIN; SELECT {lock}(7); "
    "INSERT INTO bench SELECT {worker}, repeat('x', 300) FROM generate_series(1, {rows}); COMMIT"
)


def worker(url: str, number: int, lock: str, seconds: float, results: Any) -> None:
    """Commit groups for a while; put how long each took, in seconds."""
    import psycopg

    took = []
    with psycopg.connect(url, autocommit=True) as connection:
        text = _GROUP.format(lock=lock, worker=number, rows=ROWS).encode()
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            began = time.perf_counter()
            connection.execute(text)
            took.append(time.perf_counter() - began)
    results.put(took)


def measure(url: str, workers: int, lock: str, seconds: float) -> str:
    """Return one line: groups a second, and p50 and p99 of one group in milliseconds."""
    context = multiprocessing.get_context("spawn")
    results = context.Queue()
    processes = [
        context.Process(target=worker, args=(url, number, lock, seconds, results))
        for number in range(workers)
    ]
    for process in processes:
        process.start()
    took = sorted(one for _ in processes for one in results.get())
    for process in processes:
        process.join()
    p50, p99 = took[len(took) // 2] * 1e3, took[int(len(took) * 0.99)] * 1e3
    name = "exclusive" if lock.endswith("lock") else "shared"
    rate = len(took) / seconds
    return f"{workers} x {name:9}  {rate:8.0f} groups/s  p50 {p50:7.2f} ms  p99 {p99:7.2f} ms"


def main() -> None:
    """Print a line for each number of processes and each lock."""
    import psycopg

    seconds = float(sys.argv[1]) if len(sys.argv) > 1 else 5.0
    url = server().fresh()
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute("CREATE TABLE bench(worker INT, text TEXT)")
    for workers in (1, 4):
        for lock in ("pg_advisory_xact_lock", "pg_advisory_xact_lock_shared"):
            print(measure(url, workers, lock, seconds), flush=True)


if __name__ == "__main__":
    main()

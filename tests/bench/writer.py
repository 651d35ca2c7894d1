"""What the store's writer costs by itself: `python -m tests.bench.writer [--against CHECKOUT]`.

Events go through the whole line once, in this process, while each batch and step is recorded as the
writer was given it; `writer_replay` then gives it all to a copy of the store, without an engine. So
two runs differ by some per cent, where those of the line differ by ten and more, and the rows of
two versions are compared byte for byte. On SQLite. `--group 4` is what a fleet with little to do
pays, `--group 0` the groups as they were.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import pickle
import subprocess
import sys
import tempfile
from pathlib import Path
from statistics import median
from typing import Any

from tests.bench import writer_replay
from tests.bench.bench_fleet import KINDS, readings, warm_readings
from tests.bench.line import Load, Offer, open_bench_fleet
from tests.bench.machine import described
from tests.said import ROOT

from vedette.store.sqlite.online_backup import copy_database


async def record(folder: Path, load: Load) -> None:
    """Put the load's events through the line; leave what the writer was given in `folder`."""
    events = list(readings(load.events, keys=load.keys, size=load.size, kind=load.kind))
    warm = warm_readings(load.keys, size=load.size, kind=load.kind)
    async with open_bench_fleet(folder / "fleet", load) as fleet:
        await Offer(fleet.app, Load(events=len(warm))).all(warm)
        await fleet.wait_until_idle()
        parts = fleet.app.store.parts
        database: Any = parts.database
        copy_database(Path(database.name), folder / "store.db")
        groups: list[list[bytes]] = [[]]
        steps: Any = parts.steps
        ledger: Any = parts.ledger
        accept, commit, close = steps.accept, steps.commit, ledger.close_group

        def record_accept(*given: Any) -> Any:
            groups[-1].append(pickle.dumps(("accept", given, None)))
            return accept(*given)

        def record_commit(step: Any) -> Any:
            # As it is now: the store writes numbers into the rows of a step.
            given = pickle.dumps(step)
            answer = commit(step)
            kept = ("commit", pickle.loads(given), (answer.status, answer.last))
            groups[-1].append(pickle.dumps(kept))
            return answer

        def record_group() -> None:
            close()
            groups.append([])

        steps.accept, steps.commit, ledger.close_group = record_accept, record_commit, record_group
        recorded = {
            "now_us": parts.now_us(), "epoch": parts.fences.epoch,
            "fleet": fleet.app.store.meta("fleet"), "key_name": ledger._key_name,
            "key": ledger._key.private_bytes_raw(),
        }  # fmt: skip
        await Offer(fleet.app, load).all(events)
        await fleet.wait_until_idle()
        recorded["groups"] = [group for group in groups if group]
        (folder / "recorded").write_bytes(pickle.dumps(recorded))


def replay_in(checkout: Path, folder: Path, group_size: int) -> dict[str, Any]:
    """Replay what `folder` has with a checkout's sources; raise RuntimeError with what it said."""
    command = [sys.executable, "-P", writer_replay.__file__, str(folder), str(group_size)]
    env = {**os.environ, "PYTHONPATH": str(checkout / "src")}
    done = subprocess.run(command, env=env, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"{checkout}: {done.stderr[-500:]}")
    made: dict[str, Any] = json.loads(done.stdout)
    return made


def format_runs(name: str, runs: list[dict[str, Any]]) -> str:
    """Return the line of one checkout: the median of the whole and the least of each part."""
    whole = median(sum(run["cpu_us"].values()) for run in runs)
    parts = ", ".join(
        f"{part} {min(run['cpu_us'][part] for run in runs):.1f}" for part in writer_replay.PARTS
    )
    return f"{name:<20} {whole:7.1f} us CPU/event ({parts})"


def main(argv: list[str] | None = None) -> int:
    """Print the figures; 1 if another checkout writes other rows."""
    parser = argparse.ArgumentParser(prog="tests.bench.writer", description=__doc__)
    parser.add_argument("--events", type=int, default=4000)
    parser.add_argument("--kind", choices=KINDS, default="acting")
    parser.add_argument("--group", type=int, default=0, help="items a group; 0: as recorded")
    parser.add_argument("--repeat", type=int, default=3, help="rounds, in turns")
    parser.add_argument("--against", type=Path, help="another checkout")
    options = parser.parse_args(argv)
    checkouts = [ROOT] if options.against is None else [options.against.resolve(), ROOT]
    runs: dict[Path, list[dict[str, Any]]] = {checkout: [] for checkout in checkouts}
    with tempfile.TemporaryDirectory(prefix="vedette-bench-") as name:
        folder = Path(name)
        asyncio.run(record(folder, Load(options.events, kind=options.kind, isolated=False)))
        for _ in range(options.repeat):
            for checkout in checkouts:
                runs[checkout].append(replay_in(checkout, folder, options.group))
    first = runs[ROOT][0]
    print(f"{described()}; {first['events']:,} events in {first['groups']:,} groups")
    for checkout in checkouts:
        print(format_runs("here" if checkout == ROOT else "the other checkout", runs[checkout]))
    digests = {run["digest"] for each in runs.values() for run in each}
    print("every row is the same" if len(digests) == 1 else "ROWS DIFFER")
    return 0 if len(digests) == 1 else 1


if __name__ == "__main__":
    sys.exit(main())

"""`make simulate`: plays many histories, judges each, and makes what it finds small.

What was played is kept by what it was played of, so that a search that was broken off goes on; it
ends by itself or by Ctrl-C, with what was seen so far. With `--go-on` what an earlier checkout
played and found right counts, too, and is told apart; what it found wrong is played again. What is
wrong is shrunk, one history of each kind of violation, and written beside as a plan that
`--plan FILE` plays again.
"""

from __future__ import annotations

import argparse
import atexit
import hashlib
import json
import os
import platform
import signal
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from functools import cache
from multiprocessing import get_context
from pathlib import Path

from tests.simulation.plan import LONG, SHORT, TINY, Plan, Size, from_json, make_plan
from tests.simulation.play import Played, player
from tests.simulation.shrink import shrink

ROOT = Path(__file__).resolve().parents[2]
KEPT = ROOT / ".tools" / "simulate"
SIZES = {"tiny": TINY, "short": SHORT, "long": LONG}
STORES = ("sqlite", "postgresql")
# How many seeds a process plays between two words of it, and before it makes room for another.
_CHUNK, _TASKS = 8, 40


@dataclass(frozen=True)
class Result:
    """What came of a seed, in short."""

    seed: int
    store: str
    events: int
    wrong: tuple[tuple[str, str], ...]
    digest: str
    simulated_s: float
    cpu_s: float


_play: Callable[[Plan], Played] | None = None


def _start() -> None:
    """Get ready in a process of the pool. Ctrl-C is for the one that waits for it."""
    global _play
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    stack = ExitStack()
    _play = stack.enter_context(player())
    atexit.register(stack.close)


def _some(seeds: Sequence[int], size: Size, store: str, workers: int) -> list[Result]:
    assert _play is not None
    found = []
    for seed in seeds:
        began = time.process_time()
        plan = make_plan(seed, size, store, workers)
        found.append(result_of(_play(plan), time.process_time() - began))
    return found


def result_of(played: Played, cpu_s: float = 0.0) -> Result:
    """Return what came of a plan in short."""
    wrong = tuple((one.kind, one.what) for one in played.wrong)
    plan = played.plan
    return Result(
        plan.seed, plan.store, len(plan.deliveries), wrong, played.digest, played.seconds, cpu_s
    )


@cache
def checkout() -> str:
    """Return the digest of all that a history is a function of."""
    whole = hashlib.sha256()
    for folder in ("src", "tests/simulation", "policies"):
        for path in sorted((ROOT / folder).rglob("*")):
            if path.suffix in (".py", ".rego", ".yaml") and path.is_file():
                whole.update(str(path.relative_to(ROOT)).encode() + path.read_bytes())
    return whole.hexdigest()[:16]


def search(
    seeds: Sequence[int], size: Size, *, store: str = "", workers: int = 0, processes: int = 2
) -> Iterator[Result]:
    """Play seeds on some processes; give what came of each, as it comes."""
    # Not by `max_tasks_per_child`, under which a pool may stand still (CPython gh-115634).
    share = _CHUNK * _TASKS * processes
    for at in range(0, len(seeds), share):
        yield from _search(seeds[at : at + share], size, store, workers, processes)


def _search(
    seeds: Sequence[int], size: Size, store: str, workers: int, processes: int
) -> Iterator[Result]:
    pool = ProcessPoolExecutor(processes, get_context("spawn"), initializer=_start)
    chunks = [seeds[at : at + _CHUNK] for at in range(0, len(seeds), _CHUNK)]
    try:
        waiting = {pool.submit(_some, chunk, size, store, workers) for chunk in chunks}
        for each in as_completed(waiting):
            yield from each.result()
    finally:
        pool.shutdown(wait=True, cancel_futures=True)


def make_small(plan: Plan, kind: str, tries: int) -> Plan:
    """Return a small plan that shows a kind of violation."""
    with player() as play:
        return shrink(plan, lambda one: any(w.kind == kind for w in play(one).wrong), tries)


class Kept:
    """What a search has seen: lines in a file, by checkout and what was searched.

    `earlier` are the right ones of other checkouts, by seed, if those count; and whose they are.
    """

    def __init__(self, folder: Path, name: str, *, go_on: bool = False) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._path = folder / f"{checkout()}-{name}.jsonl"
        self.results = {one.seed: one for one in _read(self._path)}
        self.earlier: dict[int, str] = {}
        for path in sorted(folder.glob(f"*-{name}.jsonl")) if go_on else ():
            for one in _read(path):
                if not one.wrong and one.seed not in self.results:
                    self.earlier[one.seed] = path.name.partition("-")[0]

    def add(self, result: Result) -> None:
        """Keep one more."""
        self.results[result.seed] = result
        with self._path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(asdict(result)) + "\n")


def _read(path: Path) -> Iterator[Result]:
    for line in path.read_text("utf-8").splitlines() if path.exists() else ():
        document = json.loads(line)
        wrong = tuple((kind, what) for kind, what in document.pop("wrong"))
        yield Result(**document, wrong=wrong)


def main(words: Sequence[str] | None = None) -> int:
    """Search as asked; return 1 if anything was wrong."""
    options = argparse.ArgumentParser(prog="make simulate", description=__doc__)
    options.add_argument("--histories", type=int, default=1000)
    options.add_argument("--first", type=int, default=0, help="the first seed")
    options.add_argument("--size", choices=SIZES, default="long")
    options.add_argument("--store", choices=("", *STORES), default="", help="drawn unless given")
    options.add_argument("--workers", type=int, default=3, help="on postgresql")
    options.add_argument("--processes", type=int, default=2)
    options.add_argument("--folder", type=Path, default=KEPT, help="where what was seen is kept")
    options.add_argument("--go-on", action="store_true", help="count earlier checkouts' right ones")
    options.add_argument("--tries", type=int, default=300, help="to make a plan smaller, each")
    options.add_argument("--plan", type=Path, help="play this plan again, and show what happens")
    options.add_argument("--seed", type=int, help="play this seed alone, and show what happens")
    given = options.parse_args(words)
    size = SIZES[given.size]
    if given.plan is not None:
        return show(from_json(given.plan.read_text("utf-8")))
    if given.seed is not None:
        return show(make_plan(given.seed, size, given.store, given.workers))
    name = f"{given.size}-{given.store or 'both'}-{given.workers}"
    kept = Kept(given.folder, name, go_on=given.go_on)
    known = kept.results.keys() | kept.earlier.keys()
    seeds = [s for s in range(given.first, given.first + given.histories) if s not in known]
    print(_conditions(given, len(seeds)), flush=True)
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # as Ctrl-C: nobody is left behind
    began = reported_at = time.monotonic()
    done = 0
    try:
        for result in search(
            seeds, size, store=given.store, workers=given.workers, processes=given.processes
        ):
            kept.add(result)
            done += 1
            if result.wrong:
                kinds = ", ".join(sorted({kind for kind, _ in result.wrong}))
                print(f"seed {result.seed} ({result.store}): {kinds}: {result.wrong[0][1]}")
            if time.monotonic() - reported_at > 10:
                reported_at = time.monotonic()
                rate = done / (reported_at - began)
                left = (len(seeds) - done) / rate
                print(f"{done} of {len(seeds)}, {rate:.1f}/s, {left / 60:.0f} min left", flush=True)
    except KeyboardInterrupt:
        print("\nbroken off; a further run goes on from here", flush=True)
    return _print_result(kept, given, size, time.monotonic() - began, done)


def _conditions(given: argparse.Namespace, left: int) -> str:
    load = os.getloadavg()[0]
    return (
        f"{given.histories} histories from seed {given.first}, {given.size} "
        f"({SIZES[given.size].events} events, 3 agents, {given.workers} workers on postgresql), "
        f"{left} of them to play; {given.processes} processes, {os.cpu_count()} cores, load "
        f"{load:.1f}, CPython {platform.python_version()}, checkout {checkout()}"
    )


def _print_result(
    kept: Kept, given: argparse.Namespace, size: Size, took_s: float, done: int
) -> int:
    all_of = range(given.first, given.first + given.histories)
    seen = [kept.results[seed] for seed in all_of if seed in kept.results]
    wrong = [one for one in seen if one.wrong]
    kinds = Counter(kind for one in wrong for kind in {kind for kind, _ in one.wrong})
    cpu_s = sum(one.cpu_s for one in seen)
    stores = Counter(one.store for one in seen)
    print(
        f"{len(seen)} histories ({', '.join(f'{n} {s}' for s, n in sorted(stores.items()))}), "
        f"{sum(one.events for one in seen)} events, {sum(one.simulated_s for one in seen):.0f} "
        f"simulated seconds, {cpu_s:.0f} s CPU ({len(seen) / max(cpu_s, 1e-9):.2f} histories/s and "
        f"core), {done} of them now in {took_s:.0f} s; {len(wrong)} with violations"
    )
    others = Counter(kept.earlier[seed] for seed in all_of if seed in kept.earlier)
    for name, number in others.most_common():
        print(f"  {number} more were right on checkout {name}")
    for kind, number in kinds.most_common():
        first = next(one for one in wrong if any(kind == each for each, _ in one.wrong))
        print(f"  {kind}: {number} histories, first seed {first.seed}; making it small", flush=True)
        plan = make_plan(first.seed, size, given.store, given.workers)
        try:
            small = make_small(plan, kind, given.tries)
        except KeyboardInterrupt:
            print("    broken off")
            break
        path = given.folder / f"{kind.replace(' ', '-')}-{first.seed}.json"
        path.write_text(small.to_json(), encoding="utf-8")
        rest = [one.do for one in small.operations if one.do != "deliver"]
        print(f"    {len(small.deliveries)} events, {' '.join(rest) or 'nothing else'}: {path}")
    return 1 if wrong else 0


def show(plan: Plan) -> int:
    """Play one plan and print all that happens, and what is wrong."""
    with player() as play:
        played = play(plan)
    for line in played.lines:
        print(line)
    for one in plan.operations:
        if one.do != "deliver":
            print(one)
    for violation in played.wrong:
        print(f"{violation.kind}: {violation.what}")
    print(f"{len(played.history.entries)} entries, digest {played.digest}")
    return 1 if played.wrong else 0


if __name__ == "__main__":
    sys.exit(main())

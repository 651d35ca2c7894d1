"""`make simulate-heads`: histories of the heads, bugs planted in them, and what 512 shards cost.

Every history is judged; a wrong one is told by its seed, which `--seed N` plays again. Then each
bug of BUGS is planted and sought. Then, unless `--histories-only`, ten seconds of 100,000 events/s
over 512 shards: how long a publish takes and holds up commits, what it makes void, a hot shard.
"""

from __future__ import annotations

import argparse
import signal
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass, replace
from multiprocessing import get_context

from tests.simulation.heads import BUGS, MS, History, S, Setup, play

_CHUNK = 20


@dataclass(frozen=True, slots=True)
class Played:
    """What came of a seed, in short."""

    seed: int
    commits: int
    orders: int
    takes: int
    notes: int
    refused: dict[str, int]
    wrong: list[tuple[str, str]]


def play_some(seeds: Sequence[int], setup: Setup) -> list[Played]:
    """Play some seeds."""
    found = []
    for seed in seeds:
        one = play(seed, setup)
        counts = (len(one.commits), len(one.orders), len(one.takes), len(one.notes))
        found.append(Played(seed, *counts, one.refused, one.wrong))
    return found


def search(seeds: Sequence[int], setup: Setup, processes: int) -> Iterator[Played]:
    """Play seeds on some processes; give what came of each, as it comes."""
    chunks = [seeds[at : at + _CHUNK] for at in range(0, len(seeds), _CHUNK)]
    pool = ProcessPoolExecutor(
        processes, get_context("spawn"), signal.signal, (signal.SIGINT, signal.SIG_IGN)
    )
    try:
        for each in as_completed([pool.submit(play_some, chunk, setup) for chunk in chunks]):
            yield from each.result()
    finally:
        pool.shutdown(wait=True, cancel_futures=True)


def find_bug(bug: str, most: int, setup: Setup | None = None) -> tuple[int, str]:
    """Return after how many seeds a bug was seen (0: not at all), and as what."""
    wrong_setup = replace(setup or Setup(), bug=bug)
    for seed in range(most):
        if wrong := play(seed, wrong_setup).wrong:
            return seed + 1, wrong[0][0]
    return 0, ""


def large(*, hot: float = 0.0, shards: int = 512) -> Setup:
    """Return 100,000 events/s over many shards, as docs/design/scale.md has them.

    A head's row takes 40 us of CPU on 8 cores, a flush 0.5 ms, the log 2 to 6 ms, an event 150 us
    of its owner.
    """
    return Setup(
        shards=shards, workers=16, length=12 * S, events_per_s=100_000, hot=hot, group=50 * MS,
        most=2000, judge=150, cores=8, publishes_per_s=1, stops_per_s=0.3, pauses_per_s=0.01,
        deaths_per_s=0.005, beat=1 * S, dead_after=5 * S,
    )  # fmt: skip


def at(values: Sequence[int], share: float) -> float:
    """Return a quantile in milliseconds."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(len(ordered) * share))] / MS if ordered else 0.0


def measured(name: str, history: History) -> str:
    """Return what a history cost, for people."""
    orders = [one.answered - one.ordered for one in history.orders]
    hot = [one for one in history.commits if one.shard == 0]
    events = sum(len(one.events) for one in history.commits)
    length_s = history.setup.length / S
    groups = len(history.commits)
    void = ", ".join(f"{count:,} by {why}" for why, count in sorted(history.refused.items()))
    share = 100 * sum(history.refused.values()) / max(1, groups)
    last = hot[-1] if hot else None
    return (
        f"{name}: {groups / length_s:,.0f} heads moved/s, {events / length_s:,.0f} events/s, "
        f"{len(history.wrong)} wrong\n"
        f"  publish or stop ({len(orders)}): p50 {at(orders, 0.5):.1f}, longest "
        f"{at(orders, 1):.1f} ms until answered\n"
        f"  a commit waits for its row: p50 {at(history.waits, 0.5):.1f}, p99 "
        f"{at(history.waits, 0.99):.1f}, longest {at(history.waits, 1):.1f} ms\n"
        f"  segments void: {void or 'none'} ({share:.1f} % of those that stood)\n"
        f"  from event to acknowledgement: p50 {at(history.lags, 0.5):.0f}, p99 "
        f"{at(history.lags, 0.99):.0f} ms; shard 0 at {len(hot) / length_s:.1f} groups/s, "
        f"{sum(len(one.events) for one in hot) / length_s:,.0f} events/s, last group of "
        f"{len(last.events) if last else 0}"
    )


def main(words: Sequence[str] | None = None) -> int:
    """Search, plant, measure; 1 if a history is wrong or a bug was not found."""
    parser = argparse.ArgumentParser(prog="make simulate-heads", description=__doc__)
    parser.add_argument("--histories", type=int, default=10_000)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--most", type=int, default=400, help="seeds for each planted bug")
    parser.add_argument("--histories-only", action="store_true")
    parser.add_argument("--seed", type=int, help="play this seed alone, and show what is wrong")
    given = parser.parse_args(words)
    if given.seed is not None:
        (one,) = play_some([given.seed], Setup())
        print(one)
        return int(bool(one.wrong))
    seeds = range(given.first, given.first + given.histories)
    began = told_at = time.monotonic()
    done, wrong, total, refused = 0, 0, Counter[str](), Counter[str]()
    try:
        for played in search(seeds, Setup(), given.processes):
            done += 1
            total.update(
                commits=played.commits, orders=played.orders, takes=played.takes, notes=played.notes
            )
            refused.update(played.refused)
            if played.wrong:
                wrong += 1
                print(f"seed {played.seed}: {played.wrong[0]}")
            if time.monotonic() - told_at > 10:
                told_at = time.monotonic()
                left = (given.histories - done) * (told_at - began) / done
                print(f"{done:,} of {given.histories:,}, {left / 60:.1f} min left", flush=True)
    except KeyboardInterrupt:
        print("\nbroken off; --first goes on from a seed")
        return 130
    print(
        f"{done:,} histories in {time.monotonic() - began:.0f} s: {wrong} wrong; "
        f"{total['commits']:,} commits, {total['orders']:,} publishes and stops, "
        f"{total['takes']:,} take-overs, {total['notes']:,} notes; void segments: {dict(refused)}"
    )
    if given.histories_only:
        return int(bool(wrong))
    missed = 0
    for bug, what in BUGS.items():
        first, kind = find_bug(bug, given.most)
        missed += not first
        print(f"  {f'seed {first}' if first else 'NOT FOUND':>10}  {kind:<10} {bug}: {what}")
    for name, setup in (
        ("even", large()),
        ("one shard with 5 % of all", large(hot=0.05)),
        ("one shard with 10 % of all", large(hot=0.10)),
        ("64 shards", large(shards=64)),
    ):
        print(measured(name, play(1, setup)), flush=True)
    return int(bool(wrong or missed))


if __name__ == "__main__":
    sys.exit(main())

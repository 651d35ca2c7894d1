"""Counts the path of one mail through the engine: the files it enters and the calls between them.

    .venv/bin/python -m tools.event_path           the files in the order they are entered
    .venv/bin/python -m tools.event_path --pairs   also each pair of modules, most calls first

The shipped fleet over a real store, judge and tools in this process. A mail of the samples is
handed over after another one warmed the judge; what policy permits of it is done. Counted is what
runs on the event loop's thread from the hand-over by the source until the run's last entry is
durable. A file counts if one of its functions was called. A passage is a call of a function of one
module by a function of another; what lies between the two outside the engine (asyncio, msgspec) is
passed over, and a coroutine that goes on after it waited is not called anew.

The engine looks around by the clock meanwhile, on the same thread: for waits that are over, for
what other workers did. That is no part of the mail's path and is counted apart.
"""

from __future__ import annotations

import asyncio
import dis
import shutil
import sys
import tempfile
import threading
from collections import Counter
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import orjson
from tools.one_event import MESSAGE, NOW_US
from tools.real_fleet import ROOT, receiver

import vedette
from vedette.adapters.mail.maildir.source import MaildirSource
from vedette.testing import FleetHarness, ListIntake, ManualClock

SOURCE = f"{Path(vedette.__file__).parent}/"
SAMPLES = ROOT / "samples" / "mailbox" / "new"
# A mail that is filed, too: the first call of a tool loads the agent's code.
WARM_UP = "1772525524.M0003.harbour"
# Coroutines that look around by the clock.
ROUNDS = ("PollLoop.run", "follow_cluster")


@dataclass
class EventPath:
    """What one mail entered: `files` in order, calls by (caller, called) module.

    `elsewhere` are the files that were entered on other threads only, `rounds` the calls between
    modules of what goes round by the clock, `kinds` the entries that the mail made.
    """

    files: list[str] = field(default_factory=list)
    calls: Counter[tuple[str, str]] = field(default_factory=Counter)
    elsewhere: set[str] = field(default_factory=set)
    rounds: int = 0
    kinds: list[str] = field(default_factory=list)

    @property
    def passages(self) -> int:
        """Return how many calls led from one module into another."""
        return self.calls.total()

    @property
    def room_passages(self) -> int:
        """Return how many of them led from one room (first folder) into another."""
        return sum(count for (caller, called), count in self.calls.items()
                   if room_of(caller) != room_of(called))  # fmt: skip


class PathProfiler:
    """Fills an EventPath: `observe` on the loop's thread, `observe_elsewhere` on others."""

    def __init__(self) -> None:
        self.path = EventPath()

    def observe(self, frame: FrameType, event: str, _argument: Any) -> None:
        """Take note of a call; a profile function of `sys.setprofile`."""
        called = module_of(frame) if event == "call" else None
        if called is None:
            return
        callers = list(calling_frames(frame))
        caller = module_of(callers[0]) if callers else None
        passes = caller not in (None, called) and not is_resumed(frame)
        if any(one.f_code.co_qualname in ROUNDS for one in (frame, *callers)):
            self.path.rounds += passes
            return
        if called not in self.path.files:
            self.path.files.append(called)
        if passes:
            self.path.calls[str(caller), called] += 1

    def observe_elsewhere(self, frame: FrameType, event: str, _argument: Any) -> None:
        """Take note of a call on another thread."""
        if event == "call" and (called := module_of(frame)) is not None:
            self.path.elsewhere.add(called)


def module_of(frame: FrameType) -> str | None:
    """Return the engine's file that a frame is of, None if it is of another package or a test."""
    name = frame.f_code.co_filename
    inside = name.startswith(SOURCE) and not name.startswith(f"{SOURCE}testing/")
    return name[len(SOURCE) :] if inside else None


def room_of(module: str) -> str:
    """Return the first folder of a file; of one that lies in none, the file."""
    return module.partition("/")[0]


def calling_frames(frame: FrameType) -> list[FrameType]:
    """Return the frames of the engine that lead to a call, nearest first."""
    found = []
    caller = frame.f_back
    while caller is not None:
        if module_of(caller) is not None:
            found.append(caller)
        caller = caller.f_back
    return found


def is_resumed(frame: FrameType) -> bool:
    """Say whether a coroutine or generator goes on after it waited."""
    return frame.f_lasti > first_instruction(frame.f_code)


@cache
def first_instruction(code: CodeType) -> int:
    """Return where a function begins: a coroutine, behind what makes its object."""
    starts = (one.offset for one in dis.get_instructions(code) if one.opname == "RESUME")
    return next(starts, 0)


async def trace_mail(work: Path, message: str = MESSAGE) -> EventPath:
    """Hand one mail over, after another, to a fleet in the empty folder `work`; return its path."""
    mailbox = work / "mailbox"
    for name in ("new", "cur", "tmp"):
        (mailbox / name).mkdir(parents=True)
    clock, profiler = ManualClock(NOW_US), PathProfiler()
    with receiver(work / "receiver.jsonl") as hook:
        targets = {
            "mailbox": {"kind": "maildir", "path": str(mailbox), "address": "d@harbour.example"},
            "oncall": {"kind": "webhook", "url": hook},
            "board": {"kind": "board", "path": str(work / "board.db")},
            "week": {"kind": "folder", "path": str(work / "week")},
        }
        threading.setprofile(profiler.observe_elsewhere)
        try:
            async with FleetHarness(work / "fleet", clock=clock, targets=targets) as fleet:
                source = MaildirSource("sample", mailbox, clock=clock)
                shutil.copy(SAMPLES / WARM_UP, mailbox / "new")
                await source.deliver(fleet.app.intake)
                await fleet.wait_until_idle()
                await asyncio.sleep(1)  # what followers do with the first mail is over
                shutil.copy(SAMPLES / message, mailbox / "new")
                batch = ListIntake()
                await source.deliver(batch)
                await follow(fleet, batch, profiler)
        finally:
            threading.setprofile(None)
    return profiler.path


async def follow(fleet: FleetHarness, batch: ListIntake, profiler: PathProfiler) -> None:
    """Hand a batch over under the profiler, until an entry says that its run was closed."""
    store, closed = fleet.app.store, asyncio.Event()
    start = store.ledger.last_seq()

    def kinds() -> list[str]:
        return [
            orjson.loads(bytes(raw))["kind"]
            for seq, raw, _, _ in store.ledger.walk()
            if seq > start
        ]

    def committed() -> None:
        sys.setprofile(None)
        profiler.path.kinds = kinds()
        if "run.closed" in profiler.path.kinds:
            closed.set()
        elif not closed.is_set():
            sys.setprofile(profiler.observe)

    store.subscribe(committed)
    profiler.path.elsewhere.clear()
    sys.setprofile(profiler.observe)
    try:
        await fleet.app.intake.accept(batch.events)
        async with asyncio.timeout(60):
            await closed.wait()
    finally:
        sys.setprofile(None)


def format_path(path: EventPath, *, pairs: bool = False) -> str:
    """Return a table of the files in the order they were entered, with the calls into each."""
    into: Counter[str] = Counter()
    for (_, called), count in path.calls.items():
        into[called] += count
    lines = [f"{at:3}  {name:48} {into[name]:4}" for at, name in enumerate(path.files, 1)]
    more = path.elsewhere - set(path.files)
    lines.append(
        f"{len(path.files)} files, {path.passages} passages between modules, {path.room_passages} "
        f"between rooms; on other threads {len(more)} more files; by the clock {path.rounds} more"
    )
    if pairs:
        lines += [
            f"{n:4}  {caller} -> {called}" for (caller, called), n in path.calls.most_common()
        ]
    return "\n".join(lines)


def main(arguments: list[str]) -> int:
    """Print the path of the mail that docs/one-event.md tells of."""
    with tempfile.TemporaryDirectory(prefix="vedette-event-path-") as folder:
        path = asyncio.run(trace_mail(Path(folder)))
    print(format_path(path, pairs="--pairs" in arguments))
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))

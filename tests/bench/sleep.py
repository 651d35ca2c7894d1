"""What runs that wait cost, and how soon the right one wakes.

`python -m tests.bench.sleep [--runs N] [--seconds N] [--wakes N]`.

Each part is a process of its own over one state folder, so that it begins with nothing in memory:

- fill: so many tasks begin to wait: a third for a time within 30 days, a third for an event of
  their own, a third for either. The clock is real.
- rest: opened with nothing due. How long a start takes with so many runs waiting and with none (the
  folder before the fill), and CPU as a share of one core over a real span, all threads of the
  process: the engine's loop and its store, without the daemon's API and its followers.
- wake: opened anew; runs whose instant comes while it stands, then runs whose events are sent, one
  at a time: from the instant, or from handing the event over, to when the reasoner is asked. Beside
  them what the machine takes at that time by itself: a timer of the loop, a commit.
- days: 30 virtual days by an injected clock, hour by hour, with the events of the rest spread over
  them. Each must wake once, by what it waited for. CPU of the process over the 30 days.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import resource
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

import orjson
from tests.bench.machine import described
from tests.task_fleet import BUDGETS

from vedette.domain.action import Proposal
from vedette.domain.base.clock import MICROS, SystemClock
from vedette.domain.event import Event
from vedette.domain.memory import Briefing
from vedette.domain.ports.reasoner import ReasonerJudgement
from vedette.testing.clock import ManualClock
from vedette.testing.harness import FleetHarness
from vedette.testing.scripted import ScriptedReasoner
from vedette.testing.toy_fleet import World, drop_bars, toy_fleet

DAYS = 30
DAY_S = 86_400
# At most: of a core, and to wake (ms).
CORE, WAKE_P99_MS = 0.001, 50.0
_DONE = "version: 1\nconditions:\n  - {name: woken, action: task.wait}\n"
_WORK = "{waits_for: [reply], deadline: 60d}"


class Sleeper(ScriptedReasoner):
    """Waits for what its event says, notes when it is asked again, and ends."""

    def __init__(self) -> None:
        super().__init__(())
        self.woken: list[tuple[str, int, str]] = []
        self.asked = asyncio.Event()

    async def reason(self, briefing: Briefing) -> ReasonerJudgement:
        data = briefing.event.data
        proposal = Proposal("task.wait", data["wait"])
        if briefing.turn > 1:
            answer = briefing.turns[-1]["answers"][0]["data"]
            by = answer["event"]["id"] if answer["woke"] == "event" else "time"
            self.woken.append((briefing.event.id, time.time_ns() // 1000, by))
            self.asked.set()
            proposal = Proposal("task.finish", {"summary": "woken"})
        return ReasonerJudgement("at work", 1.0, proposals=(proposal,), final=False)


def bench_fleet(folder: Path, clock: ManualClock | None = None) -> tuple[FleetHarness, Sleeper]:
    """Return the fleet of the bench, not opened; its content is written once."""
    sleeper = Sleeper()
    if (folder / "content").exists():
        world = {"world": {"kind": "world", "world": World()}}
        fleet = FleetHarness(
            folder, content=folder / "content", policies=folder / "policies",
            reasoners={"judge": sleeper}, targets=world, clock=clock,
        )  # fmt: skip
        return fleet, sleeper
    limits = drop_bars("worker")["limits/data.yaml"]
    few = "{minute: 600, hour: 6000, day: 50000}"
    many = "{minute: 1000000, hour: 1000000, day: 1000000}"
    assert few in limits
    extra = {"limits/data.yaml": limits.replace(few, many), "budgets/data.yaml": BUDGETS}
    fleet = toy_fleet(
        folder, World(), reasoners={"judge": sleeper}, work=_WORK, done=_DONE, clock=clock,
        extra=extra,
    )  # fmt: skip
    file = fleet.content / "agents/worker/agent.yaml"
    text = file.read_text()
    assert "{on: worker.job}" in text
    file.write_text(text.replace("{on: worker.job}", "{on: worker.job, goal: Sleep.}"))
    return fleet, sleeper


def task(name: str, **wait: Any) -> Event:
    """Return an event that has a task wait."""
    return Event("bench", name, "worker.job", name, None, {"wait": wait})


def reply(name: str) -> Event:
    """Return the event that the run of a name waits for."""
    return Event("bench", f"reply-{name}", "reply", None, None, {"to": name})


def waits(number: int, runs: int) -> Event:
    """Return the task of a number: by thirds for a time, an event, either."""
    own = {"event": "reply", "where": {"/data/to": f"{number}"}}
    # The first two hours are left free, so that nothing is due while the cost of rest is counted.
    for_s = 7200 + number * (DAYS * DAY_S - 7200 - DAY_S) // runs
    kinds = ({"for_s": for_s}, own, {**own, "for_s": for_s})
    return task(f"{number}", **kinds[number % 3])


def woken_before(runs: int, wakes: int) -> list[str]:
    """Return those that `wake` wakes: the last that wait for an event alone."""
    waiting = [str(number) for number in range(runs) if number % 3 == 1]
    return waiting[len(waiting) - wakes :]


async def fill(folder: Path, runs: int) -> dict[str, Any]:
    """Have so many tasks begin to wait."""
    fleet, _ = bench_fleet(folder)
    spent = time.process_time()
    async with fleet:
        for at in range(0, runs, 500):
            await fleet.send(*(waits(number, runs) for number in range(at, min(runs, at + 500))))
            await fleet.wait_until_idle(600)
        database = fleet.app.store.runs._database
        sql = "SELECT COUNT(*) FROM run WHERE state='waiting'"
        ((waiting,),) = database.rows(sql)
    return {"waiting": waiting, "cpu_ms_a_run": 1000 * (time.process_time() - spent) / runs}


async def rest(folder: Path, seconds: float) -> dict[str, Any]:
    """Open the fleet and let it stand; say what the start and the rest cost."""
    fleet, sleeper = bench_fleet(folder)
    began, spent = time.monotonic(), time.process_time()
    async with fleet:
        await fleet.wait_until_idle(60)
        start = {"s": time.monotonic() - began, "cpu_s": time.process_time() - spent}
        await asyncio.sleep(min(2, seconds))
        loaded = fleet.app.dispatcher.pending
        began, spent = time.monotonic(), time.process_time()
        await asyncio.sleep(seconds)
        core = (time.process_time() - spent) / (time.monotonic() - began)
    assert not sleeper.woken
    mib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    return {"start": start, "core": core, "in_memory": loaded, "mib": mib}


async def wake(folder: Path, wakes: int, runs: int) -> dict[str, Any]:
    """Wake runs by their times, and by their events; return how late they were (ms)."""
    first, _ = bench_fleet(folder)
    async with first:
        start = time.time() + 10
        due = {f"due-{n}": int((start + n * 0.1) * MICROS) for n in range(wakes)}
        iso = {name: _iso(at) for name, at in due.items()}
        await first.send(*(task(name, until=iso[name]) for name in due))
        await first.wait_until_idle(60)
    await asyncio.to_thread(_run, "woken", folder, str(wakes), str(runs), str(start))
    told: dict[str, Any] = json.loads((folder / "woken.json").read_text())
    return told


async def woken(folder: Path, wakes: int, runs: int, start: float) -> dict[str, Any]:
    """In a process that has begun nothing: see runs wake."""
    fleet, sleeper = bench_fleet(folder)
    late: dict[str, list[float]] = {
        "woken by time": [],
        "woken by event": [],
        "timer alone": [],
        "sync alone": [],
    }

    async def timer(at_s: float) -> None:
        await asyncio.sleep(at_s - time.time())
        late["timer alone"].append((time.time() - at_s) * 1000)

    async with fleet:
        # What the machine takes without us, at the same time: a timer of the loop, a commit.
        timers = [asyncio.create_task(timer(start + n * 0.1 + 0.05)) for n in range(wakes)]
        left = start + wakes * 0.1 + 1 - time.time()
        assert start > time.time(), "the process was not up when the first was due"
        await asyncio.sleep(left)
        await asyncio.gather(*timers)
        for name, at_us, _ in sleeper.woken:
            due = int((start + int(name.removeprefix("due-")) * 0.1) * MICROS)
            late["woken by time"].append((at_us - due) / 1000)
        assert len(sleeper.woken) == len({name for name, *_ in sleeper.woken}) == wakes
        sleeper.woken.clear()
        sleeper.asked.clear()
        for name in woken_before(runs, wakes):
            before = time.time_ns() // 1000
            await fleet.send(reply(name))
            await sleeper.asked.wait()
            sleeper.asked.clear()
            ((found, at_us, by),) = sleeper.woken
            assert (found, by) == (name, f"reply-{name}")
            late["woken by event"].append((at_us - before) / 1000)
            sleeper.woken.clear()
            await fleet.wait_until_idle()
            before = time.time_ns() // 1000
            await fleet.app.store.steps.probe()
            late["sync alone"].append((time.time_ns() // 1000 - before) / 1000)
            await asyncio.sleep(0.02)
    told = {
        kind: {"p50": _percentile(some, 0.5), "p99": _percentile(some, 0.99), "of": len(some)}
        for kind, some in late.items()
    }
    (folder / "woken.json").write_text(json.dumps(told))
    return told


async def days(folder: Path, runs: int, wakes: int, step_h: int = 1) -> dict[str, Any]:
    """Let 30 virtual days pass; say what they cost, and that each woke once, by the right one."""
    clock = ManualClock(SystemClock().now_us())
    fleet, sleeper = bench_fleet(folder, clock)
    gone = {*woken_before(runs, wakes)}
    # Who waits for an event alone gets it; of those that wait for either every other one.
    events = [str(n) for n in range(runs) if n % 3 == 1 or n % 6 == 2]
    events = [name for name in events if name not in gone]
    hours = DAYS * 24
    spent, began = time.process_time(), time.monotonic()
    async with fleet:
        sent = 0
        for hour in range(step_h, hours + 1, step_h):
            # An event for either comes before its time is over.
            until = min(len(events), len(events) * hour * 2 // hours)
            if sent < until:
                await fleet.send(*(reply(name) for name in events[sent:until]))
                sent = until
            clock.advance(step_h * 3600 * MICROS)
            await fleet.wait_until_idle(600)
        cpu = time.process_time() - spent
        counts = Counter(by if by == "time" else "event" for _, _, by in sleeper.woken)
        names = [name for name, *_ in sleeper.woken]
        assert len(names) == len(set(names)), "a run was woken twice"
        assert {*names} == {str(n) for n in range(runs)} - gone, "a run was not woken"
        wrong = [name for name, _, by in sleeper.woken if by not in ("time", f"reply-{name}")]
        assert not wrong, f"woken by another's event: {wrong[:3]}"
        late = [n for n, _, by in sleeper.woken if by == "time" and int(n) % 3 == 1]
        assert not late, "a run was woken by a time that it did not wait for"
        matched = len(fleet.entries("event.matched"))
        left = fleet.app.store.runs._database.rows(
            "SELECT COUNT(*) FROM run WHERE state NOT IN ('done')"
        )
    return {
        "cpu_s": cpu, "core": cpu / (DAYS * DAY_S), "wall_s": time.monotonic() - began,
        "woken": dict(counts), "matched": matched, "left": left[0][0],
        "cpu_ms_a_wake": 1000 * cpu / max(1, len(names)),
    }  # fmt: skip


def _iso(at_us: int) -> str:
    from vedette.domain.base.clock import iso

    return iso(at_us)


def _percentile(values: list[float], share: float) -> float:
    return sorted(values)[min(len(values) - 1, int(share * len(values)))]


def _run(part: str, folder: Path, *args: str) -> dict[str, Any]:
    """Do one part in a process of its own; return what it found."""
    done = subprocess.run(
        [sys.executable, "-m", "tests.bench.sleep", "--part", part, str(folder), *args],
        stdout=subprocess.PIPE, check=True,
    )  # fmt: skip
    found: dict[str, Any] = orjson.loads(done.stdout.splitlines()[-1])
    return found


def measure(folder: Path, runs: int, seconds: float, wakes: int) -> dict[str, Any]:
    """Do all parts, each in a process of its own."""
    _run("rest", folder, "0")  # the content is written, and compiled
    found = {"empty": _run("rest", folder, str(seconds))}
    found["fill"] = _run("fill", folder, str(runs))
    found["rest"] = _run("rest", folder, str(seconds))
    found["wake"] = _run("wake", folder, str(wakes), str(runs))
    found["days"] = _run("days", folder, str(runs), str(wakes))
    return found


def tell(found: dict[str, Any], runs: int) -> list[str]:
    """Return what was measured, in lines."""
    empty, rest, wake, days = (found[name] for name in ("empty", "rest", "wake", "days"))
    return [
        f"{runs} runs wait: {found['fill']['cpu_ms_a_run']:.1f} ms CPU each to begin",
        f"start: {rest['start']['s']:.2f} s, {rest['start']['cpu_s']:.2f} s CPU, with none "
        f"{empty['start']['s']:.2f} s, {empty['start']['cpu_s']:.2f} s; in memory "
        f"{rest['in_memory']} runs, {rest['mib']:.0f} MiB beside {empty['mib']:.0f}",
        f"at rest (real span, nothing due): {100 * rest['core']:.3f} % of a core, with none "
        f"{100 * empty['core']:.3f} %",
        *(
            f"{kind}: p50 {one['p50']:.1f} ms, p99 {one['p99']:.1f} ms (of {one['of']})"
            for kind, one in wake.items()
        ),
        f"30 virtual days: {days['cpu_s']:.1f} s CPU ({100 * days['core']:.4f} % of a core), "
        f"{days['cpu_ms_a_wake']:.1f} ms a run from wake to end; {days['woken']}; each once, by "
        f"what it waited for; {days['left']} left",
        f"both: {100 * (rest['core'] + days['core']):.3f} % of a core (bar {100 * CORE} %)",
    ]


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=10_000)
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--wakes", type=int, default=200)
    parser.add_argument("--part", nargs="+")
    given = parser.parse_args()
    if given.part:
        part, folder, *args = given.part
        works: dict[str, Any] = {
            "fill": lambda: fill(Path(folder), int(args[0])),
            "rest": lambda: rest(Path(folder), float(args[0])),
            "wake": lambda: wake(Path(folder), int(args[0]), int(args[1])),
            "woken": lambda: woken(Path(folder), int(args[0]), int(args[1]), float(args[2])),
            "days": lambda: days(Path(folder), int(args[0]), int(args[1])),
        }
        sys.stdout.buffer.write(orjson.dumps(asyncio.run(works[part]())) + b"\n")
        return
    print(described())
    with tempfile.TemporaryDirectory() as folder:
        for line in tell(measure(Path(folder), given.runs, given.seconds, given.wakes), given.runs):
            print(line)


if __name__ == "__main__":
    main()

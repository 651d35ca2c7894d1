"""What the kill tests share: a fleet on disk, runs of it that are killed, and an auditor.

The auditor looks at the targets' own records (the webhook target's file, the Maildir) and at the
decisions of the store, and compares both with those of a run that nobody disturbed.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import apsw
import psutil

from vedette.domain.base.errors import BadStore
from vedette.domain.event import TICK_TYPE
from vedette.store.sqlite import SqliteReader

VEDETTE = Path(sys.executable).with_name("vedette")


@dataclass(frozen=True, slots=True)
class Audit:
    """What a run came to, in terms that do not depend on when it ran."""

    events: frozenset[str]
    judgements: Mapping[str, tuple[Any, ...]]
    decisions: Mapping[str, tuple[Any, ...]]
    webhook: Mapping[str, int]
    mailbox: Mapping[str, int]
    unsettled: tuple[str, ...]
    entries: int = 0


def start(config: Path, *more: str) -> subprocess.Popen[bytes]:
    """Start `vedette run --until-idle` on a fleet."""
    return subprocess.Popen(
        [str(VEDETTE), "--config", str(config), "run", "--until-idle", "--plain", *more],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
    )


def hold_hands(pid: int, state: Path, receiver: Path, most: int) -> None:
    """Stop the hands of the mail agent until an effect of theirs is seen to be open, then kill.

    Moving a mail takes less than a look at the store does: so it is made to take longer. The
    judges go on, so that there is a next mail to move; once some were moved there may be none, so
    it ends when the ledger has grown by `most` entries: no run is to reach its end.
    """
    engine, workers, held = psutil.Process(pid), set[psutil.Process](), set[psutil.Process]()
    end, start_entries = time.monotonic() + 10, progress(state, receiver)["entries"]
    while time.monotonic() < end:
        workers.update(engine.children(recursive=True))
        # Hands are forked when there is work for them, which may be only now.
        for worker in workers - held:
            with contextlib.suppress(psutil.Error):
                if worker.name().startswith("hands:inbox"):
                    worker.suspend()
                    held.add(worker)
        now = progress(state, receiver)
        if now["open"] or (now["mails"] and now["entries"] - start_entries >= most):
            break
        time.sleep(0.002)
    os.kill(pid, signal.SIGKILL)
    for worker in workers:
        with contextlib.suppress(psutil.Error):
            worker.kill()


def run_to_end(config: Path, within_s: float = 300) -> None:
    """Run a fleet until it is idle. Raises AssertionError if it fails."""
    process = start(config)
    _, output = process.communicate(timeout=within_s)
    assert process.returncode == 0, output.decode()[-2000:]


@dataclass(frozen=True, slots=True)
class Moment:
    """Kill once a measure of progress has grown by so much since the run was started.

    `or_entries` is another bound: progress may come in bursts, and no run should reach the end.
    """

    measure: str  # entries | calls | mails
    by: int
    or_entries: int


def moments(seed: int, entries: int, *, calls: int = 5) -> list[Moment]:
    """Return twenty seeded moments: among mail effects, in the thick of the metrics, among calls.

    `entries` is how many the undisturbed run wrote. Mails come first and webhook calls last, so
    the moments are in that order too; `calls` of them wait for a webhook call.
    """
    draw = random.Random(seed)

    def share(low: float, high: float) -> int:
        return int(entries * draw.uniform(low, high))

    mails = [Moment("mails", draw.randint(1, 6), share(0.01, 0.02)) for _ in range(9)]
    # What is left when the mails are done, shared by all of these moments.
    most = 0.6 / (11 - calls)
    metrics = [Moment("entries", share(most / 2, most), entries) for _ in range(11 - calls)]
    called = [Moment("calls", draw.randint(1, 2), entries) for _ in range(calls)]
    return [*mails, *metrics, *called]


@dataclass(slots=True)
class Killed:
    """What the kills hit: how many landed, and how many left effects of which agent open."""

    landed: int = 0
    ended: int = 0
    open_effects: Counter[str] = field(default_factory=Counter)


def kill_at(config: Path, at: list[Moment], state: Path, receiver: Path) -> Killed:
    """Run and kill -9, once for each moment; say what was hit."""
    killed = Killed()
    for moment in at:
        before = progress(state, receiver)
        process = start(config)
        try:
            end = time.monotonic() + 90
            while process.poll() is None:
                assert time.monotonic() < end, f"no such progress: {moment}"
                now = progress(state, receiver)
                grown = {name: now[name] - before[name] for name in now}
                hit = grown[moment.measure] >= moment.by
                if hit or grown["entries"] >= moment.or_entries:
                    if moment.measure == "mails":
                        hold_hands(process.pid, state, receiver, moment.or_entries)
                    os.kill(process.pid, signal.SIGKILL)
                    killed.landed += 1
                    break
                time.sleep(0.002)
            else:
                killed.ended += 1
        finally:
            process.kill()
            process.communicate()
        killed.open_effects.update(open_effects(state))
    return killed


def progress(state: Path, receiver: Path) -> dict[str, int]:
    """Return how far a fleet is: ledger entries, calls by the target's record, mail effects."""
    found = {"entries": 0, "calls": 0, "mails": 0, "open": 0}
    if receiver.exists():
        found["calls"] = receiver.read_bytes().count(b"\n")
    try:
        store = SqliteReader(state)
    except (BadStore, apsw.Error):
        return found  # not there yet
    try:
        found["entries"] = store.ledger.last_seq()
        done = "SELECT COUNT(*) FROM action WHERE agent='inbox_triage' AND effect='done'"
        found["mails"] = int(store.database.rows(done)[0][0])
        query = "SELECT COUNT(*) FROM action WHERE effect IN ('intended', 'started')"
        found["open"] = int(store.database.rows(f"{query} AND agent='inbox_triage'")[0][0])
    except apsw.Error:
        return found
    finally:
        store.close()
    return found


def open_effects(state: Path) -> list[str]:
    """Return the agents that have effects intended or started, by the store after a kill."""
    store = SqliteReader(state)
    found = "SELECT DISTINCT agent FROM action WHERE effect IN ('intended', 'started')"
    agents = [str(agent) for (agent,) in store.database.rows(found)]
    store.close()
    return agents


def judged_again(config: Path, env: Mapping[str, str] | None = None) -> dict[str, Any]:
    """Return what `vedette verify judgements` says of a fleet: every judgement is made again."""
    verb = [str(VEDETTE), "--config", str(config), "verify", "judgements", "--json"]
    result = subprocess.run(verb, stdout=subprocess.PIPE, check=False, env=env, timeout=300)
    found: dict[str, Any] = json.loads(result.stdout)
    return found


def audit(state: Path, receiver: Path) -> Audit:
    """Read what a fleet did, from the store and from the targets' own records.

    What the hour of the run alone made is left out: the ticks of schedules, and their runs.
    """
    store = SqliteReader(state)
    events = frozenset(_events(store))
    judgements: dict[str, tuple[Any, ...]] = {}
    for _, raw, _, _ in store.ledger.walk(("run.closed", "turn.reasoned")):
        entry = json.loads(raw)
        if entry["event"] in events and ("score_milli" in entry or "confidence_milli" in entry):
            judgement = tuple(entry.get(k) for k in ("label", "confidence_milli", "score_milli"))
            key = f"{entry['agent']} {entry['event']} {entry.get('turn', 1)}"
            assert judgements.setdefault(key, judgement) == judgement, "one turn was reasoned twice"
    decisions = {}
    unsettled = []
    for run in _all_runs(store):
        if run.state == "ready":
            unsettled.append(run.id)
        for row in store.runs.actions(run.id) if run.event in events else ():
            decisions[row.id] = (row.tool, row.digest, row.decided, row.rule, row.effect)
    entries = store.ledger.last_seq()
    store.close()
    return Audit(
        events, judgements, decisions, effects(receiver), mails(state / "mailbox"),
        tuple(unsettled), entries,
    )  # fmt: skip


def _events(store: SqliteReader) -> Iterator[str]:
    for _, raw, _, body in store.ledger.walk(("event.accepted",)):
        if json.loads(body or b"{}").get("type") != TICK_TYPE:
            yield json.loads(raw)["event"]


def _all_runs(store: SqliteReader) -> list[Any]:
    found: list[Any] = []
    before: int | None = None
    while page := store.runs.runs_page(agent=None, state=None, before=before, limit=500):
        # Several runs may share a position; a page never ends within one.
        last = page[-1].position
        found += [run for run in page if run.position != last]
        found += store.runs.runs_of_event(page[-1].event)
        before = last
    return found


def effects(record: Path) -> dict[str, int]:
    """Return how often each idempotency key took effect at the webhook target, by its record."""
    counts: Counter[str] = Counter()
    if record.exists():
        for line in record.read_bytes().splitlines():
            call = json.loads(line)
            body = json.dumps(call["body"], sort_keys=True)
            counts[f"{call['key']} {body}"] += bool(call["effect"])
    return dict(counts)


def mails(mailbox: Path) -> dict[str, int]:
    """Return how many mails lie where in the Maildir, by folder and name with its flags."""
    counts: Counter[str] = Counter()
    if mailbox.is_dir():
        for path in mailbox.rglob("*"):
            if path.is_file() and path.parent.name in ("new", "cur"):
                counts[str(path.relative_to(mailbox))] += 1
    return dict(counts)


def compare(undisturbed: Audit, disturbed: Audit) -> list[str]:
    """Return every difference that a kill must not make."""
    wrong = []
    if lost := undisturbed.events - disturbed.events:
        wrong.append(f"{len(lost)} events lost")
    if disturbed.unsettled:
        wrong.append(f"{len(disturbed.unsettled)} runs left ready")
    for name in ("judgements", "decisions"):
        a, b = getattr(undisturbed, name), getattr(disturbed, name)
        for key in sorted(a.keys() | b.keys()):
            if a.get(key) != b.get(key):
                wrong.append(f"{name[:-1]} {key}: {a.get(key)} undisturbed, {b.get(key)} killed")
    for name in ("webhook", "mailbox"):
        a, b = getattr(undisturbed, name), getattr(disturbed, name)
        for key in sorted(a.keys() | b.keys()):
            if a.get(key, 0) != b.get(key, 0):
                wrong.append(f"{name} {key}: {a.get(key, 0)} undisturbed, {b.get(key, 0)} killed")
    return wrong

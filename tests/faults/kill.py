"""What the kill tests share: a fleet on disk, runs of it that are killed, and an auditor.

The auditor looks at the targets' own records (the webhook target's file, the Maildir) and at the
decisions of the store, and compares both with those of a run that nobody disturbed.
"""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from vedette.adapters.sqlite import OpenedStore

VEDETTE = Path(sys.executable).with_name("vedette")
AT_ONCE = "run.closed"


@dataclass(frozen=True, slots=True)
class Audit:
    """What a run came to, in terms that do not depend on when it ran."""

    events: frozenset[str]
    judgements: Mapping[str, tuple[Any, ...]]
    decisions: Mapping[str, tuple[Any, ...]]
    webhook: Mapping[str, int]
    mailbox: Mapping[str, int]
    unsettled: tuple[str, ...]


def start(config: Path, *more: str) -> subprocess.Popen[bytes]:
    """Start `vedette run --until-idle` on a fleet."""
    return subprocess.Popen(
        [str(VEDETTE), "--config", str(config), "run", "--until-idle", "--plain", *more],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
    )


def run_to_end(config: Path, within_s: float = 300) -> None:
    """Run a fleet until it is idle. Raises AssertionError if it fails."""
    process = start(config)
    _, told = process.communicate(timeout=within_s)
    assert process.returncode == 0, told.decode()[-2000:]


def kill_at(config: Path, moments: list[float], progressed: Path) -> tuple[int, int]:
    """Run and kill -9, once for each moment (seconds after the store's first write of that run).

    Returns how many runs were killed while they worked, and how many had ended before.
    """
    killed = ended = 0
    for moment in moments:
        before = _size(progressed)
        process = start(config)
        try:
            end = time.monotonic() + 60
            while _size(progressed) == before and process.poll() is None:
                assert time.monotonic() < end, "the run wrote nothing"
                time.sleep(0.01)
            time.sleep(moment)
            if process.poll() is None:
                os.kill(process.pid, signal.SIGKILL)
                killed += 1
            else:
                ended += 1
        finally:
            process.kill()
            process.communicate()
    return killed, ended


def _size(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0


def moments(seed: int, count: int, longest_s: float) -> list[float]:
    """Return `count` seeded moments, many of them early."""
    draw = random.Random(seed)
    return [longest_s * draw.random() ** 2 for _ in range(count)]


def audit(state: Path, receiver: Path) -> Audit:
    """Read what a fleet did, from the store and from the targets' own records."""
    store = OpenedStore(state)
    judgements: dict[str, tuple[Any, ...]] = {}
    for _, raw, _, _ in store.walk(("run.closed", "turn.reasoned")):
        entry = json.loads(raw)
        if "score_milli" in entry or "confidence_milli" in entry:
            told = tuple(entry.get(k) for k in ("label", "confidence_milli", "score_milli"))
            key = f"{entry['agent']} {entry['event']} {entry.get('turn', 1)}"
            assert judgements.setdefault(key, told) == told, "one turn was reasoned twice"
    decisions = {}
    unsettled = []
    for run in _all_runs(store):
        if run.state == "ready":
            unsettled.append(run.id)
        for row in store.actions(run.id):
            decisions[row.id] = (row.tool, row.digest, row.decided, row.rule, row.effect)
    events = frozenset(json.loads(raw)["event"] for _, raw, _, _ in store.walk(("event.accepted",)))
    store.close()
    return Audit(
        events, judgements, decisions, effects(receiver), mails(state / "mailbox"), tuple(unsettled)
    )


def _all_runs(store: OpenedStore) -> list[Any]:
    found: list[Any] = []
    before: int | None = None
    while page := store.runs_page(agent=None, state=None, before=before, limit=500):
        # Several runs may share a position; a page never ends within one.
        last = page[-1].position
        found += [run for run in page if run.position != last]
        found += store.runs_of_event(page[-1].event)
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

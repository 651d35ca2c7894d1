"""`python -m tests.bench.pubsub_replay`: the replay over Pub/Sub, on PostgreSQL.

What the file and mail sources would deliver is published to 20 topics of a real emulator, and
received through 20 ordered subscriptions by the shipped fleet on a real PostgreSQL. Of what was
accepted a share is given back instead of being acknowledged, so the broker delivers it again; with
--kills, `vedette run` is killed with kill -9 so often before, in mid-stream.
Exit code 1 unless every event was accepted once, every permitted action had its one effect, and
the webhook's own record shows no call twice.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import shutil
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from zlib import crc32

from tests.bench.databases import own_database
from tests.bench.machine import described
from tests.pubsub import (
    HOST_VARIABLE,
    Broker,
    Emulator,
    broker,
    find_emulator,
    giving_back,
    message_of,
)
from tools.real_fleet import ROOT, Laid, data_folder, lay_out, receiver, unpack_mails
from tools.replay_real import account, received

from vedette.adapters.file_source import CsvSource
from vedette.adapters.maildir_source import MaildirSource
from vedette.adapters.maildir_source.source import copy_maildir
from vedette.clock import SystemClock
from vedette.event import Event
from vedette.testing.intake import ListIntake

SUBSCRIPTIONS, MAILS = 20, 4
STALLED_S = 60.0
# Short, for what a killed process held comes again after it.
DEADLINE_S = 10


@dataclass(frozen=True, slots=True)
class Replay:
    """What is replayed: `rows` of each series at most; `again` is the share given back.

    `kills` is how often the fleet is killed before it may finish.
    """

    series: Path
    mailbox: Path
    rows: int | None = None
    again: float = 0.1
    isolated: bool = True
    kills: int = 0


@dataclass(frozen=True, slots=True)
class Came:
    """What it came to. `summary` is the fleet's, `calls` and `effects` are the webhook's."""

    published: int
    given_back: int
    redelivered: int
    summary: dict[str, Any]
    laid: Laid
    calls: int
    effects: int
    publish_s: float
    kills: list[float]

    def wrong(self) -> list[str]:
        """Return what is not as it must be."""
        found = account(self.summary, self.laid)
        accepted = self.summary["events"]["accepted"]
        if accepted != self.published:
            found.append(f"{self.published} events published, {accepted} accepted")
        if self.redelivered < self.given_back:
            found.append(f"{self.given_back} given back, {self.redelivered} delivered again")
        if self.calls != self.effects:
            found.append(f"{self.calls} calls of the webhook had {self.effects} effects")
        return found

    def report(self) -> str:
        """Return it for people."""
        events, agents = self.summary["events"], self.summary["agents"]
        effects = sum(each["effects"] for each in agents.values())
        return "\n".join(
            [
                f"{self.published:,} events published in {self.publish_s:.1f} s to "
                f"{SUBSCRIPTIONS} topics; {events['accepted']:,} accepted",
                f"{self.given_back:,} given back, {self.redelivered:,} known when they came again",
                f"{effects:,} effects of {sum(a['permits'] for a in agents.values()):,} permits, "
                f"{sum(a['failed'] for a in agents.values()):,} failed; the webhook recorded "
                f"{self.calls:,} calls, {self.effects:,} effects",
                f"{self.summary['events_per_second']:,} events/s from receive to the end of the "
                f"last run, {self.summary['cpu_us_per_event']:,} us CPU each "
                f"({self.summary['seconds']} s)",
                *(f"killed with kill -9 after {s:.1f} s" for s in self.kills),
                *(f"WRONG: {each}" for each in self.wrong()),
            ]
        )


async def events_of(given: Replay) -> list[Event]:
    """Return what the fleet's own sources would deliver, as events of the subscriptions."""
    clock, found = SystemClock(), ListIntake()
    await CsvSource("nab", str(given.series / "**" / "*.csv"), clock).deliver(found)
    metrics = found.events
    if given.rows is not None:
        metrics = [e for e in metrics if int(e.id.rpartition(":")[2]) <= given.rows]
    mails = ListIntake()
    await MaildirSource("mail", given.mailbox, clock=clock).deliver(mails)
    return [
        *(replace(e, source=_source(e.subject or "", 0, SUBSCRIPTIONS - MAILS)) for e in metrics),
        *(replace(e, source=_source(e.id, SUBSCRIPTIONS - MAILS, MAILS)) for e in mails.events),
    ]


def _source(key: str, first: int, count: int) -> str:
    """Return the source of a subscription that a key belongs to."""
    return f"pubsub:s{first + crc32(key.encode()) % count}"


async def publish(here: Broker, events: Sequence[Event]) -> None:
    """Make topics and subscriptions, and publish each series in its order."""
    shares: dict[str, list[Event]] = {f"pubsub:s{n}": [] for n in range(SUBSCRIPTIONS)}
    for event in sorted(events, key=lambda event: event.subject or ""):
        shares[event.source].append(event)
    for n, share in enumerate(shares.values()):
        await here.topic(f"topic-{n}")
        await here.subscription(
            f"sub-{n}",
            f"topic-{n}",
            enable_message_ordering=True,
            ack_deadline_seconds=DEADLINE_S,
        )
        messages = [message_of(here.connection, each, ordered=True) for each in share]
        await here.publish(f"topic-{n}", *messages)


def settings(folder: Path, given: Replay, hook: str, project: str, url: str) -> Laid:
    """Write the settings of the shipped fleet, with other sources and another store."""
    agents = folder / "agents"
    skip = shutil.ignore_patterns("__pycache__", ".mypy_cache")
    shutil.copytree(ROOT / "agents", agents, ignore=skip)
    triage = agents / "inbox_triage" / "agent.yaml"
    # Its trigger is the mailbox's source: the mails come another way here.
    own = triage.read_text().replace('source: "maildir:*"', 'source: "pubsub:*"')
    triage.write_text(own)
    laid = lay_out(folder, hook=hook)
    (folder / "database.url").write_text(url)
    text = laid.config.read_text().replace(
        json.dumps(str(ROOT / "agents")), json.dumps(str(agents))
    )
    text += '[store]\nkind = "postgresql"\nurl_file = "database.url"\n'
    if not given.isolated:
        text += '[isolation]\nworkers = "none"\n'
    for n in range(SUBSCRIPTIONS):
        text += (
            f'[[sources]]\nkind = "pubsub"\nname = "s{n}"\nproject = "{project}"\n'
            f'subscription = "sub-{n}"\nordered = true\nack_deadline = "{DEADLINE_S}s"\n'
        )
    laid.config.write_text(text)
    copy_maildir(given.mailbox, folder / "state" / "mailbox")
    return laid


async def kill(laid: Laid, count: int, seed: int = 5) -> list[float]:
    """Run the fleet and kill it, so often; return after how many seconds each time."""
    draw = random.Random(seed)
    vedette = Path(sys.executable).with_name("vedette")
    lasted = []
    for _ in range(count):
        process = await asyncio.create_subprocess_exec(
            str(vedette), "--config", str(laid.config), "run", "--plain",
            stdout=asyncio.subprocess.DEVNULL, stderr=asyncio.subprocess.DEVNULL,
        )  # fmt: skip
        lasted.append(draw.uniform(5, 12))
        await asyncio.sleep(lasted[-1])
        if process.returncode is not None:
            raise AssertionError(f"the fleet ended by itself: {process.returncode}")
        process.kill()
        await process.wait()
    return lasted


async def receive(laid: Laid, expected: int, *, killed: bool) -> dict[str, Any]:
    """Run the fleet until everything was accepted, acknowledged and handled."""
    from vedette.app import open_app
    from vedette.load import load_settings
    from vedette.runner import Running, summary

    app = await open_app(load_settings(laid.config))
    running = Running(app, until_idle=False)
    seen: tuple[int, ...] = ()
    since = time.monotonic()

    def look(now: Running) -> None:
        nonlocal seen, since
        metrics = app.metrics
        acked = metrics.total("pubsub_acks", outcome="acked")
        state = (app.store.events_counted()[0], acked, app.dispatcher.handled)
        if state != seen:
            seen, since = state, time.monotonic()
        elif time.monotonic() - since > STALLED_S:
            running.stop()
        # Longer than a deadline: what anybody still held would have come again.
        quiet = time.monotonic() - since > (DEADLINE_S + 5 if killed else 0)
        all_acked = killed or acked >= expected
        if state[0] >= expected and all_acked and quiet and app.dispatcher.idle:
            running.stop()

    try:
        await running.run(look)
        return summary(running) | {
            "redelivered": app.metrics.total("pubsub_redelivered"),
            "given_back": app.metrics.total("pubsub_acks", outcome="nacked"),
        }
    finally:
        await app.close()


async def replay(folder: Path, given: Replay, emulator: Emulator, url: str) -> Came:
    """Publish and receive everything once. PUBSUB_EMULATOR_HOST must name the emulator."""
    events = await events_of(given)
    with receiver(folder / "receiver.jsonl") as hook:
        async with broker(emulator) as here:
            began = time.monotonic()
            await publish(here, events)
            publish_s = time.monotonic() - began
            laid = settings(folder, given, hook, here.project, url)
            lasted = await kill(laid, given.kills)
            # Drawn more often than needed, so that chance does not give back fewer.
            most = 0 if given.kills else int(given.again * len(events))
            with giving_back(min(0.9, 3 * given.again), most):
                told = await receive(laid, len(events), killed=given.kills > 0)
    calls, effects = received(folder / "receiver.jsonl")
    mails = sum(1 for event in events if event.type == "mail.received")
    laid = replace(laid, metrics=len(events) - mails, mails=mails)
    return Came(
        len(events), told["given_back"], told["redelivered"], told, laid, calls, effects, publish_s,
        lasted,
    )  # fmt: skip


def main(argv: list[str] | None = None) -> int:
    """Replay the samples, or the real data of VEDETTE_DATA; 1 if anything is wrong, 3 without."""
    parser = argparse.ArgumentParser(prog="tests.bench.pubsub_replay", description=__doc__)
    parser.add_argument("--real", action="store_true", help="the data of VEDETTE_DATA")
    parser.add_argument("--rows", type=int, help="of each series at most")
    parser.add_argument("--again", type=float, default=0.1, help="share that is given back")
    parser.add_argument("--kills", type=int, default=0, help="kill -9 so often before the end")
    options = parser.parse_args(argv)
    folder = Path(tempfile.mkdtemp(prefix="vedette-replay-"))
    emulator = Emulator(find_emulator())
    os.environ[HOST_VARIABLE] = emulator.host
    try:
        given = Replay(ROOT / "samples" / "metrics", ROOT / "samples" / "mailbox")
        if options.real:
            data = data_folder()
            if data is None:
                print("pubsub_replay: no evaluation data. Mend: set VEDETTE_DATA", file=sys.stderr)
                return 3
            unpack_mails(data, folder / "mails")
            given = Replay(data / "nab" / "data", folder / "mails")
        given = replace(given, rows=options.rows, again=options.again, kills=options.kills)
        print(described(), flush=True)
        came = asyncio.run(replay(folder, given, emulator, own_database().url))
        print(came.report())
        return 1 if came.wrong() else 0
    finally:
        emulator.close()
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    sys.exit(main())

"""`python -m tests.bench.pubsub_replay`: the replay over Pub/Sub, on PostgreSQL.

What the file and mail sources would deliver is published to 20 topics of a real emulator, and
received through 20 subscriptions (16 of them ordered) by the shipped fleet on a real PostgreSQL. Of
what was accepted a share is given back instead of being acknowledged, so the broker delivers it
again; with --kills, `vedette run` is killed with kill -9 so often before, in mid-stream. Some mails
come as bare data, which is no event: the broker puts them to its dead letters. Then the source is
mended, and one command sends them again.
Exit code 1 unless every event was accepted once and is accounted for, every permitted action had
its one effect, and the webhook's own record shows no call twice.
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
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tests.bench.databases import own_database
from tests.bench.machine import described
from tests.bench.pubsub_account import Account, accepted_in, read_account
from tests.bench.pubsub_feed import DEADLINE_S, POISONED, SUBSCRIPTIONS, Feed, events_of, ordered
from tests.pubsub import HOST_VARIABLE, Emulator, broker, find_emulator, giving_back
from tools.real_fleet import ROOT, Laid, data_folder, lay_out, receiver, unpack_mails
from tools.replay_real import account, received

from vedette.adapters.mail.maildir.source import copy_maildir

if TYPE_CHECKING:
    from vedette.app.composition_root import App

STALLED_S = 60.0
VEDETTE = Path(sys.executable).with_name("vedette")
# What the broker delivers before it gives a message up.
ATTEMPTS = 5


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
    """What it came to. `summary` is the fleet's, `calls` and `effects` are the webhook's.

    `poison` were no events when they first came, and `redriven` were sent again by one command.
    """

    published: int
    poison: int
    redriven: int
    given_back: int
    redelivered: int
    summary: dict[str, Any]
    account: Account
    laid: Laid
    calls: int
    effects: int
    kills: list[float]

    def wrong(self) -> list[str]:
        """Return what is not as it must be."""
        found = account(self.summary, self.laid) + self.account.wrong()
        accepted = self.account.events - self.account.ticks
        if accepted != self.published:
            found.append(f"{self.published} events published, {accepted} accepted")
        if self.redelivered < self.given_back:
            found.append(f"{self.given_back} given back, {self.redelivered} delivered again")
        if self.redriven < self.poison:
            found.append(
                f"{self.poison} were no events, {self.redriven} dead letters were redriven"
            )
        if self.calls != self.effects:
            found.append(f"{self.calls} calls of the webhook had {self.effects} effects")
        return found

    def report(self) -> str:
        """Return it for people."""
        agents = self.summary["agents"]
        effects = sum(each["effects"] for each in agents.values())
        return "\n".join(
            [
                f"{self.published:,} events published to {SUBSCRIPTIONS} topics",
                self.account.line(),
                f"{self.given_back:,} given back, {self.redelivered:,} known when they came again",
                f"{self.poison:,} were no events at first, {self.redriven:,} dead letters redriven",
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
            f'subscription = "sub-{n}"\nordered = {str(ordered(n)).lower()}\n'
            f'ack_deadline = "{DEADLINE_S}s"\n'
        )
    # The poisoned one is the last: what is added at the end is added to it.
    text += f'topic = "topic-{POISONED}"\ndead_letter_topic = "dead"\n'
    laid.config.write_text(text)
    copy_maildir(given.mailbox, folder / "state" / "mailbox")
    return laid


async def kill(laid: Laid, count: int, seed: int = 5) -> list[float]:
    """Run the fleet and kill it, so often; return after how many seconds each time."""
    draw = random.Random(seed)
    lasted = []
    for _ in range(count):
        process = await asyncio.create_subprocess_exec(
            str(VEDETTE), "--config", str(laid.config), "run", "--plain",
            stdout=asyncio.subprocess.DEVNULL, stderr=asyncio.subprocess.DEVNULL,
        )  # fmt: skip
        lasted.append(draw.uniform(5, 12))
        await asyncio.sleep(lasted[-1])
        if process.returncode is not None:
            raise AssertionError(f"the fleet ended by itself: {process.returncode}")
        process.kill()
        await process.wait()
    return lasted


async def redrive(laid: Laid) -> int:
    """Send the dead letters again, as the command does; return how many.

    From here, as the fleet runs here: of a process that it started it would take no command.
    """
    from vedette.config.settings import load_settings
    from vedette.interfaces.cli.orders import OrderOptions, submit_command

    why = OrderOptions("the source says now what bare data is")
    args = {"source": f"s{POISONED}", "most": 1000}
    answer = await asyncio.to_thread(
        submit_command, load_settings(laid.config), "pubsub_redrive", args, why
    )
    assert answer["by"] == "fleet"
    return int(answer["redriven"])


async def receive(
    laid: Laid,
    expected: int,
    done: Callable[[App], bool],
    beside: Callable[[], Awaitable[None]] | None = None,
) -> dict[str, Any]:
    """Run the fleet until as many are accepted, all is handled and `done` says so, or it stalls.

    `beside` is done once, while the fleet runs.
    """
    from vedette.app.composition_root import open_app
    from vedette.config.settings import load_settings
    from vedette.interfaces.daemon import Daemon, describe_run

    app = await open_app(load_settings(laid.config))
    running = Daemon(app, until_idle=False)
    seen: tuple[int, ...] = ()
    since = time.monotonic()
    works: list[asyncio.Future[None]] = []

    def look(now: Daemon) -> None:
        nonlocal seen, since
        if beside is not None and not works:
            works.append(asyncio.ensure_future(beside()))
        received = app.metrics.total("pubsub_messages")
        state = (app.store.tables.event_counts()[0], received, app.dispatcher.handled_count)
        if state != seen:
            seen, since = state, time.monotonic()
        elif time.monotonic() - since > STALLED_S:
            running.stop()
        resting = app.dispatcher.is_idle and not app.dispatcher.is_due_soon
        if state[0] >= expected and resting and all(w.done() for w in works) and done(app):
            running.stop()

    try:
        await running.run(look)
        await asyncio.gather(*works)
        return describe_run(running) | {"redelivered": app.metrics.total("pubsub_redelivered")}
    finally:
        await app.close()


class Settled:
    """Says whether the broker holds nothing any more but dead letters.

    `acks` and `refusals` are how many have to be counted; None where another process, now dead,
    counted some: then nothing must have come for longer than a deadline.
    """

    def __init__(self, acks: int | None, refusals: int | None) -> None:
        self._acks, self._refusals = acks, refusals
        self._seen, self._since = -1, time.monotonic()

    def __call__(self, app: App) -> bool:
        """Look at the fleet's counters."""
        total = app.metrics.total
        if (received := total("pubsub_messages")) != self._seen:
            self._seen, self._since = received, time.monotonic()
        if self._acks is None or self._refusals is None:
            return time.monotonic() - self._since > DEADLINE_S + 5
        acked, refused = total("pubsub_acks", outcome="acked"), total("pubsub_poison")
        return acked >= self._acks and refused >= self._refusals


async def replay(folder: Path, given: Replay, emulator: Emulator, url: str) -> Came:
    """Publish and receive everything once. PUBSUB_EMULATOR_HOST must name the emulator."""
    found = await events_of(given.series, given.mailbox, given.rows)
    events = found.events
    with receiver(folder / "receiver.jsonl") as hook:
        async with broker(emulator) as here:
            feed = Feed(here, events)
            await feed.make()
            laid = settings(folder, given, hook, here.project, url)
            feeding = asyncio.create_task(feed.run(lambda: accepted_in(url)))
            try:
                lasted = await kill(laid, given.kills)
                good = len(events) - feed.poison
                first = (
                    Settled(None, None) if given.kills else Settled(good, ATTEMPTS * feed.poison)
                )
                # Drawn more often than needed, so that chance does not give back fewer.
                most = 0 if given.kills else int(given.again * good)
                with giving_back(min(0.9, 3 * given.again), most):
                    answer = await receive(laid, good, first)
            finally:
                feeding.cancel()
            # The mend: what bare data is.
            with laid.config.open("a") as config:
                config.write('type = "mail.received"\n')
            redriven = 0

            async def again() -> None:
                nonlocal redriven
                redriven = await redrive(laid)

            def taken(app: App) -> bool:
                return app.metrics.total("pubsub_acks", outcome="acked") >= redriven

            after = await receive(laid, len(events), taken, again)
    calls, effects = received(folder / "receiver.jsonl")
    stands = read_account(url)
    mails = sum(1 for event in events if event.type == "mail.received")
    laid = replace(laid, metrics=len(events) - mails + stands.ticks, mails=mails)
    speed = {name: answer[name] for name in ("seconds", "events_per_second", "cpu_us_per_event")}
    return Came(
        len(events), feed.poison, redriven, most, answer["redelivered"] + after["redelivered"],
        after | speed, stands, laid, calls, effects, lasted,
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

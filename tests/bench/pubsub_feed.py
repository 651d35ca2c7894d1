"""What the replay over Pub/Sub publishes: the events, where each goes, and no faster than taken.

The emulator copies what a key still has waiting for every few messages that it hands over, so a
backlog of 20,000 messages of one key takes it tens of minutes. A stream has no such backlog: what
is published runs ahead of what was accepted by `MAX_UNACKED` messages at most.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from itertools import zip_longest
from pathlib import Path
from typing import Any

import orjson
from msgspec.structs import replace
from tests.pubsub import Broker, message_of

from vedette.adapters.files.source import CsvSource
from vedette.adapters.mail.maildir.source import MaildirSource
from vedette.domain.base.clock import SystemClock
from vedette.domain.event import Event
from vedette.testing.intake import ListIntake

SUBSCRIPTIONS, MAILS = 20, 4
# The source whose subscription has dead letters; mails come over it.
POISONED = SUBSCRIPTIONS - 1
# Short, for what a killed process held comes again after it.
DEADLINE_S = 10
MAX_UNACKED = 6000
_PART = 100
_LOOK_S = 0.05


@dataclass(frozen=True, slots=True)
class Found:
    """The events of the sources, and how many of what they read were no events."""

    events: list[Event]
    refused: int


async def events_of(series: Path, mailbox: Path, rows: int | None) -> Found:
    """Return what the fleet's own sources would deliver, as events of the subscriptions.

    `rows` of each series at most.
    """
    clock, metrics, mails = SystemClock(), ListIntake(), ListIntake()
    await CsvSource("nab", str(series / "**" / "*.csv"), clock).deliver(metrics)
    await MaildirSource("mail", mailbox, clock=clock).deliver(mails)
    kept = metrics.events
    if rows is not None:
        kept = [e for e in kept if int(e.id.rpartition(":")[2]) <= rows]
    named = {name: n for n, name in enumerate(sorted({e.subject or "" for e in kept}))}
    series_of = SUBSCRIPTIONS - MAILS
    events = [
        *(replace(e, source=f"pubsub:s{named[e.subject or ''] % series_of}") for e in kept),
        *(
            replace(e, source=f"pubsub:s{series_of + n % MAILS}")
            for n, e in enumerate(mails.events)
        ),
    ]
    return Found(events, len(metrics.refusals) + len(mails.refusals))


@dataclass(slots=True)
class Feed:
    """Publishes events to the topics in rounds, each series in its order.

    Of the mails of the poisoned source every third is published as bare data, which is no event
    until the source is told what bare data is: `poison` of them.
    """

    here: Broker
    events: Sequence[Event]
    sent: int = 0
    poison: int = 0
    _shares: list[list[Any]] = field(default_factory=list)

    async def make(self) -> None:
        """Make topics and subscriptions, and the messages."""
        by_topic: list[list[Event]] = [[] for _ in range(SUBSCRIPTIONS)]
        for event in sorted(self.events, key=lambda event: event.subject or ""):
            by_topic[int(event.source.removeprefix("pubsub:s"))].append(event)
        await self.here.topic("dead")
        await self.here.subscription("dead", "dead")
        for n, share in enumerate(by_topic):
            await self.here.topic(f"topic-{n}")
            await self.here.subscription(
                f"sub-{n}",
                f"topic-{n}",
                dead_letter="dead" if n == POISONED else None,
                enable_message_ordering=ordered(n),
                ack_deadline_seconds=DEADLINE_S,
            )
            self._shares.append(
                [self._message(each, n, at) for at, each in enumerate(share)],
            )

    def _message(self, event: Event, topic: int, at: int) -> Any:
        connection = self.here.connection
        if topic == POISONED and at % 3 == 0:
            self.poison += 1
            named = {"event_id": event.id, "content-type": "application/json"}
            # The same event as in its envelope; the subject comes with the ordering key.
            return connection.message(orjson.dumps(event.data), named, event.subject or "")
        return message_of(connection, event, ordered=ordered(topic))

    async def run(self, accepted: Callable[[], Awaitable[int]]) -> None:
        """Publish everything, `MAX_UNACKED` messages ahead of what was accepted."""
        parts = [
            [share[at : at + _PART] for at in range(0, len(share), _PART)] for share in self._shares
        ]
        for turn in zip_longest(*parts, fillvalue=()):
            while self.sent - await accepted() > MAX_UNACKED:  # noqa: ASYNC110 (a database tells)
                await asyncio.sleep(_LOOK_S)
            for n, part in enumerate(turn):
                await self.here.publish(f"topic-{n}", *part)
                self.sent += len(part)


def ordered(subscription: int) -> bool:
    """Say whether a subscription keeps an order: those of the series do, those of mails do not."""
    return subscription < SUBSCRIPTIONS - MAILS

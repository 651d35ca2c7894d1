"""Dead letters of a Pub/Sub source for tests: real ones, which the emulator moved away itself."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any

from google.api_core.exceptions import DeadlineExceeded
from msgspec.structs import replace

from vedette.adapters.pubsub.admin import apply_declaration
from vedette.adapters.pubsub.client import Connection, connect
from vedette.adapters.pubsub.config import PubsubFile
from vedette.adapters.pubsub.declaration import build_declaration
from vedette.adapters.pubsub.decoder import Decoder
from vedette.domain.event import Event


def pull_plan(**more: Any) -> PubsubFile:
    """Return the plan of a source with a dead-letter topic; `more` replaces fields."""
    given: dict[str, Any] = {
        "kind": "pubsub", "name": "jobs", "project": "p", "subscription": "jobs", "topic": "jobs",
        "dead_letter_topic": "jobs-dead", "ack_deadline": "10s", "max_messages": 100,
        "max_bytes": 1 << 20,
    }  # fmt: skip
    return PubsubFile(**{**given, **more})


JOB = {"content-type": "application/json", "ce-specversion": "1.0", "ce-type": "worker.job",
       "ce-source": "https://a.example/", "ce-subject": "k"}  # fmt: skip


class Letters:
    """A source whose dead letters are real ones, moved by the emulator after five attempts."""

    def __init__(self, connection: Connection, project: str) -> None:
        self.connection = connection
        self.plan = pull_plan(project=project)
        self.base = f"projects/{project}"

    async def make(self) -> None:
        wanted = build_declaration([self.plan], {})
        # Without the waits between attempts, for which a test would have to wait, too.
        at_once = {"retry_min_s": 0, "retry_max_s": 0}
        quick = {name: {**fields, **at_once} for name, fields in wanted.subscriptions.items()}
        await apply_declaration(replace(wanted, subscriptions=quick))

    async def die(self, *messages: tuple[bytes, Mapping[str, str]]) -> None:
        """Publish messages and give them back until the broker gives them up."""
        sent = [self.connection.message(data, dict(given)) for data, given in messages]
        await self.connection.publish(f"{self.base}/topics/jobs", sent)
        async with asyncio.timeout(30):
            dead = 0
            while dead < len(messages):
                for one in await self.pull("jobs"):
                    dead += one.delivery_attempt >= 5
                    await self.connection.modify_deadline(
                        f"{self.base}/subscriptions/jobs", [one.ack_id], 0
                    )
        # It moves them when somebody asks for them again.
        assert await self.pull("jobs", 0.3) == []

    async def pull(self, name: str, timeout_s: float = 20) -> Sequence[Any]:
        request = {"subscription": f"{self.base}/subscriptions/{name}", "max_messages": 1000}
        try:
            answer = await self.connection.subscriber.pull(
                request=request, retry=None, timeout=timeout_s
            )
        except DeadlineExceeded:
            return []
        found: Sequence[Any] = type(answer).pb(answer).received_messages
        return found

    async def all_of(self, name: str, count: int) -> list[Any]:
        found: list[Any] = []
        async with asyncio.timeout(20):
            while len(found) < count:
                found += await self.pull(name)
        return [one.message for one in found]

    def events(self, messages: Sequence[Any]) -> list[Event]:
        decoder = Decoder("jobs", type="worker.job")
        found = [
            decoder.decode(m.message_id, m.data, dict(m.attributes), m.ordering_key, 0)
            for m in messages
        ]
        assert all(isinstance(one, Event) for one in found), found
        return [one for one in found if isinstance(one, Event)]


@asynccontextmanager
async def dead_letters(project: str) -> AsyncIterator[Letters]:
    """Make a source's topics and subscriptions in a project."""
    connection = await connect()
    made = Letters(connection, project)
    await made.make()
    try:
        yield made
    finally:
        await connection.close()


def jobs(number: int) -> list[tuple[bytes, Mapping[str, str]]]:
    """Return messages that are events of the toy fleet."""
    return [(b'{"do": []}', {**JOB, "ce-id": f"{n}"}) for n in range(number)]

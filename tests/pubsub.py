"""The real Pub/Sub emulator for tests: a JVM of Google's jar, on a free port, stopped by its pid.

The jar is found through VEDETTE_PUBSUB_EMULATOR or beside gcloud; without it, or without Java, a
test is skipped for a person and fails where CI is set. It is run without gcloud's wrapper, which
takes seconds and is not the process that would have to be killed. One server serves the whole
test process and ends with it, however that ends: a shell waits for our end of a pipe to close.
It keeps everything in memory: `kill` and `start` give the same address and nothing else.
"""

from __future__ import annotations

import asyncio
import functools
import itertools
import json
import os
import random
import shutil
import time
import warnings
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import pytest
from tests.guarded import Guarded

from vedette.adapters.pubsub.acknowledgement import Acknowledger
from vedette.adapters.pubsub.client import Connection, connect, subscription_path, topic_path
from vedette.domain.event import Event

HOST_VARIABLE = "PUBSUB_EMULATOR_HOST"

_STARTED = b"Server started, listening"
_JAR = "platform/pubsub-emulator/lib/cloud-pubsub-emulator-*-all.jar"
_PROJECTS = itertools.count(1)


def find_emulator(environ: Mapping[str, str] = os.environ) -> list[str]:
    """Return the command that runs the emulator, without its address.

    Skips the test if there is none, and fails it where CI is set.
    """
    path = environ.get("PATH", "")
    java = shutil.which("java", path=path)
    jars = list(_jars(environ))
    if java and jars:
        # Started often, run shortly: a quick start is worth more than the fastest code.
        return [java, "-Xshare:auto", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Xmx1500m",
                "-jar", str(jars[0])]  # fmt: skip
    mend = (
        "install google-cloud-cli-pubsub-emulator and Java, or set VEDETTE_PUBSUB_EMULATOR to the"
        " emulator's jar"
    )
    if environ.get("CI"):
        pytest.fail(f"the Pub/Sub emulator is missing. Mend: {mend}", pytrace=False)
    pytest.skip(f"the Pub/Sub emulator is not here: {mend}")


def _jars(environ: Mapping[str, str]) -> Iterator[Path]:
    if named := environ.get("VEDETTE_PUBSUB_EMULATOR"):
        yield Path(named)
        return
    if gcloud := shutil.which("gcloud", path=environ.get("PATH", "")):
        yield from sorted(Path(gcloud).resolve().parents[1].glob(_JAR), reverse=True)


class Emulator(Guarded):
    """One emulator. `host` is what clients connect to; it is the same after a restart."""

    def __init__(self, command: list[str]) -> None:
        """Start it. Raises RuntimeError with what it said."""
        self._command = command
        super().__init__("pubsub", 1)

    @property
    def host(self) -> str:
        """Return its address, as PUBSUB_EMULATOR_HOST wants it."""
        return f"127.0.0.1:{self.ports[0]}"

    def project(self) -> str:
        """Return the id of a project that nobody used yet: tests share one server."""
        return f"test-{os.getpid()}-{next(_PROJECTS)}"

    def command(self) -> list[str]:
        """Return what runs it."""
        return [*self._command, "--host=127.0.0.1", f"--port={self.ports[0]}"]

    def ready(self, log: bytes) -> bool:
        """Say whether it has said so."""
        return _STARTED in log


@functools.cache
def server() -> Emulator:
    """Return this process's emulator; it ends with the process."""
    return Emulator(find_emulator())


@pytest.fixture
def pubsub_emulator(monkeypatch: pytest.MonkeyPatch) -> Emulator:
    """Run the real emulator, shared by the tests of a process; PUBSUB_EMULATOR_HOST names it."""
    emulator = server()
    monkeypatch.setenv(HOST_VARIABLE, emulator.host)
    return emulator


class Broker:
    """A project on an emulator as tests see it: made, published to and looked at.

    async with broker(emulator) as b: await b.topic("t"); await b.subscription("s", "t")
    """

    def __init__(self, connection: Connection, host: str, project: str) -> None:
        self.connection = connection
        self.host = host
        self.project = project

    def topic_path(self, name: str) -> str:
        """Return a topic's full name."""
        return topic_path(self.project, name)

    def subscription_path(self, name: str) -> str:
        """Return a subscription's full name."""
        return subscription_path(self.project, name)

    async def topic(self, name: str) -> str:
        """Make a topic; return its full name."""
        await self.connection.publisher.create_topic(name=self.topic_path(name))
        return self.topic_path(name)

    async def subscription(
        self, name: str, topic: str, *, dead_letter: str | None = None, **fields: Any
    ) -> str:
        """Make a subscription (fields as in the API); return its full name.

        `dead_letter` is a topic that takes what was handed over five times for nothing.
        """
        if dead_letter is not None:
            fields["dead_letter_policy"] = {
                "dead_letter_topic": self.topic_path(dead_letter),
                "max_delivery_attempts": 5,
            }
        await self.connection.subscriber.create_subscription(
            request={
                "name": self.subscription_path(name),
                "topic": self.topic_path(topic),
                **fields,
            }
        )
        return self.subscription_path(name)

    async def publish(self, topic: str, *messages: Any) -> list[str]:
        """Publish raw messages in their order; return their message ids."""
        ids: list[str] = []
        for key, group in itertools.groupby(messages, key=lambda message: message.ordering_key):
            listed = list(group)
            assert isinstance(key, str)
            for at in range(0, len(listed), 1000):
                part = listed[at : at + 1000]
                ids += await self.connection.publish(self.topic_path(topic), part)
        return ids

    async def waiting(
        self, subscription: str, *, within_s: float = 0.3, enough: int | None = None
    ) -> list[Any]:
        """Take what a subscription delivers within a time, or until it is enough; nothing is acked.

        An emulator moves a message to its dead letters when it is asked for the next one.
        """
        path, end = self.subscription_path(subscription), time.monotonic() + within_s
        found: dict[str, Any] = {}
        # A pull that is cut short may take messages with it; one that does not wait is not.
        request = {"subscription": path, "max_messages": 1000, "return_immediately": True}
        while time.monotonic() < end and (enough is None or len(found) < enough):
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", DeprecationWarning)
                answer = await self.connection.subscriber.pull(request=request)
            for received in answer._pb.received_messages:
                found[received.message.message_id] = received
            await asyncio.sleep(0.02)
        return list(found.values())


@asynccontextmanager
async def broker(emulator: Emulator, project: str | None = None) -> AsyncIterator[Broker]:
    """Connect to an emulator; a project of one's own unless one is named."""
    connection = await connect(emulator.host)
    try:
        yield Broker(connection, emulator.host, project or emulator.project())
    finally:
        await connection.close()


def message_of(connection: Connection, event: Event, *, ordered: bool = False) -> Any:
    """Return an event as a message in binary mode; `ordered` by its subject."""
    attributes = {
        "ce-specversion": "1.0",
        "ce-id": event.id,
        "ce-source": event.source,
        "ce-type": event.type,
        "content-type": "application/json",
    }
    if event.subject is not None:
        attributes["ce-subject"] = event.subject
    if event.time is not None:
        attributes["ce-time"] = event.time
    key = event.subject or "" if ordered else ""
    return connection.message(json.dumps(event.data).encode(), attributes, key)


@contextmanager
def giving_back(share: float, most: int, *, seed: int = 7) -> Iterator[None]:
    """Give a share of what sources would acknowledge back instead, so often in all.

    What was accepted is delivered again. Raises AssertionError if it was not so often.
    """
    ack, draw, left = Acknowledger.ack, random.Random(seed), [most]

    def some(self: Acknowledger, ack_ids: Sequence[str]) -> None:
        back = {each for each in ack_ids if draw.random() < share}
        back = set(sorted(back)[: left[0]])
        left[0] -= len(back)
        self.nack([each for each in ack_ids if each in back])
        ack(self, [each for each in ack_ids if each not in back])

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(Acknowledger, "ack", some)
        yield
    assert left[0] == 0, f"{left[0]} fewer were given back than were to be"

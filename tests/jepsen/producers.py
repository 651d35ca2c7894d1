"""Sources: who sends events over HTTP, and sends them again until told that they are durable."""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

from tests.jepsen.engines import Worker
from tests.jepsen.fleet import AGENTS, HELD, ROW, TOKEN, TOOLS, cloud_event
from tests.simulation.history import NEVER, Event, Want

ANSWERS_S = 5.0  # how long an answer is waited for before the same is sent to somebody else
BURST = 80
_MOST_REPEATS = 20  # events that are delivered again together


class Producers:
    """Several sources, each with keys of its own. `finish` lets them tell what they still have."""

    def __init__(
        self, workers: Sequence[Worker], now: Callable[[], float], seed: int, *, rate: float
    ) -> None:
        """`rate` is of all together, in events a second."""
        self._workers, self._now, self._seed, self._rate = workers, now, seed, rate
        self.events: list[Event] = []
        self.sent_again = 0
        self._finished = asyncio.Event()
        self._burst = 0

    def burst(self) -> None:
        """Let one of them send many events at once."""
        self._burst += 1

    def finish(self) -> None:
        """Make no new events."""
        self._finished.set()

    async def produce(self, number: int, of: int) -> None:
        """Be one of so many sources until `finish`, and until all is told that was sent."""
        draw = random.Random(f"{self._seed} producer {number}")
        keys = [f"p{number}-{at}" for at in range(3)]
        made = len(keys)
        while not self._finished.is_set():
            many = draw.randint(1, 4)
            if self._burst:
                self._burst -= 1
                many = BURST
            batch = []
            for _ in range(many):
                key = draw.choice(keys)
                batch.append(self._make(draw, key))
                if draw.random() < 1 / 30:  # a key has its time: judges keep all that they saw
                    keys[keys.index(key)] = f"p{number}-{made}"
                    made += 1
            await self._deliver(draw, batch)
            with suppress(TimeoutError):
                pause_s = draw.expovariate(self._rate / (2.5 * of))
                await asyncio.wait_for(self._finished.wait(), pause_s)

    async def deliver_again(self, since_s: float) -> None:
        """Send again what was told since an instant, which a restore's sentence names."""
        draw = random.Random(f"{self._seed} again")
        events = [event for event in self.events if since_s <= event.told_s < NEVER]
        for at in range(0, len(events), _MOST_REPEATS):
            await self._deliver(
                draw, [(event, _text(event)) for event in events[at : at + _MOST_REPEATS]]
            )

    def _make(self, draw: random.Random, key: str) -> tuple[Event, str]:
        from vedette.domain.event import Event as Sent

        value = len(self.events) + 1
        agents = AGENTS if draw.random() < 0.1 else (draw.choice(AGENTS),)
        tools = draw.choices(list(TOOLS), list(TOOLS.values()), k=draw.choice((0, 1, 1, 1, 2, 3)))
        wants = tuple(
            Want(tool, f"{value}.{at}", tool == ROW, tool == HELD) for at, tool in enumerate(tools)
        )
        # What the receipt will say, for events that are accepted and never told.
        ref = Sent("jepsen", str(value), "any.job", key, None, {}).key
        event = Event(ref, agents, key, value, wants, self._now())
        self.events.append(event)
        return event, _text(event)

    async def _deliver(self, draw: random.Random, batch: list[tuple[Event, str]]) -> None:
        body = f"[{','.join(text for _, text in batch)}]".encode()
        while True:
            worker = draw.choice(self._workers)
            try:
                async with asyncio.timeout(ANSWERS_S):
                    status, answer = await post_events(worker.port, body)
            except (OSError, EOFError, ValueError, TimeoutError):
                status, answer = 0, {}
            if status == 202:
                break
            if 400 <= status < 500 and status not in (408, 429):
                raise RuntimeError(f"{worker.name} refuses the events: {answer}")
            self.sent_again += 1
            await asyncio.sleep(draw.uniform(0.05, 0.3))
        at_s = self._now()
        for (event, _), receipt in zip(batch, answer["receipts"], strict=True):
            assert receipt["event"] == event.ref, receipt
            event.told_s, event.by = at_s, worker.name


def _text(event: Event) -> str:
    texts = [(want.tool, want.text) for want in event.wants]
    return cloud_event(event.value, event.agents, event.key, texts)


async def post_events(port: int, body: bytes) -> tuple[int, Any]:
    """Send a batch of CloudEvents; return the status and what was answered.

    Raises OSError, EOFError or ValueError if there is no whole answer.
    """
    return await _ask(
        port,
        f"POST /v1/events HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {TOKEN}\r\n"
        "Content-Type: application/cloudevents-batch+json\r\nConnection: close\r\n"
        f"Content-Length: {len(body)}\r\n\r\n".encode()
        + body,
    )


async def ask_ready(port: int) -> str:
    """Return what a worker answers at /readyz, or that it does not."""
    request = b"GET /readyz HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"
    try:
        async with asyncio.timeout(ANSWERS_S):
            status, answer = await _ask(port, request)
    except (OSError, EOFError, ValueError, TimeoutError) as error:
        return f"is not answered ({type(error).__name__})"
    return f"{status} {json.dumps(answer)}"


async def _ask(port: int, request: bytes) -> tuple[int, Any]:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        writer.write(request)
        head, _, said = (await reader.read()).partition(b"\r\n\r\n")
    finally:
        writer.transport.abort()
    if not said:
        raise EOFError("no answer")
    return int(head.split(b" ", 2)[1]), json.loads(said)

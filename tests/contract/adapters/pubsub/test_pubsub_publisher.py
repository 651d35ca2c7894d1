"""Publishing as an effect, against the real emulator: once for every consumer, whatever dies."""

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys
import threading
import time
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from google.api_core.exceptions import DeadlineExceeded
from msgspec.structs import replace
from tests.faults.sink_child import publishing_fleet
from tests.pubsub import Emulator

from vedette.adapters.pubsub import publisher
from vedette.adapters.pubsub.client import Connection, connect
from vedette.adapters.pubsub.decoder import Decoder
from vedette.adapters.pubsub.publisher import Flow
from vedette.domain.effect import Call, Outcome
from vedette.domain.event import ENVELOPE, Event
from vedette.sdk import publish
from vedette.testing.intake import ListIntake
from vedette.testing.toy_fleet import job, send_proposal

ROOT = Path(__file__).resolve().parents[4]


class Topic:
    """The topic `notices` of a project, and a subscriber who sees all that comes to it."""

    def __init__(self, connection: Connection, project: str) -> None:
        self.connection, self.project = connection, project
        self.path = f"projects/{project}/topics/notices"
        self._subscription = f"projects/{project}/subscriptions/notices"

    async def make(self) -> None:
        await self.connection.publisher.create_topic(request={"name": self.path})
        made = {
            "name": self._subscription, "topic": self.path, "enable_message_ordering": True,
            "ack_deadline_seconds": 60,
        }  # fmt: skip
        await self.connection.subscriber.create_subscription(request=made)

    async def messages(self, count: int) -> list[Any]:
        """Return the next messages, at least so many; 0 waits a moment for any."""
        found: list[Any] = []
        async with asyncio.timeout(20):
            while not found or len(found) < count:
                pulled = await self._pull(0.5 if count == 0 else 10)
                found += [one.message for one in pulled]
                ids = [one.ack_id for one in pulled]
                if ids:
                    await self.connection.acknowledge(self._subscription, ids)
                if count == 0:
                    break
        return found

    async def _pull(self, timeout_s: float) -> Sequence[Any]:
        request = {"subscription": self._subscription, "max_messages": 100}
        try:
            answer = await self.connection.subscriber.pull(
                request=request, retry=None, timeout=timeout_s
            )
        except DeadlineExceeded:
            return []
        found: Sequence[Any] = type(answer).pb(answer).received_messages
        return found

    def call(self, key: str = "key-1", **more: Any) -> Call:
        target = {"kind": "pubsub", "project": self.project, "topic": "notices"}
        made = Call("wire.send", {}, key, "worker", "run_1", target, ("scout", "worker"), 1,
                    5_000_000)  # fmt: skip
        return replace(made, **more)


@pytest.fixture
async def topic(pubsub_emulator: Emulator) -> AsyncIterator[Topic]:
    connection = await connect()
    made = Topic(connection, pubsub_emulator.project())
    await made.make()
    yield made
    await connection.close()


def events(messages: Sequence[Any]) -> list[Event]:
    """Return messages as a vedette that subscribes to the topic sees them."""
    decoder = Decoder("notices")
    found = []
    for one in messages:
        event = decoder.decode(one.message_id, one.data, dict(one.attributes), one.ordering_key, 0)
        assert isinstance(event, Event), event
        found.append(event)
    return found


async def test_a_call_is_one_event_with_its_key_as_id_and_its_lineage(topic: Topic) -> None:
    call = topic.call(target={**topic.call().target, "source": "https://harbour.example/"})
    done = await asyncio.to_thread(
        publish, call, {"n": 1.5, "text": "café"}, type="harbour.notice", subject="berth 7"
    )
    assert done.state == "done", done
    (message,) = await topic.messages(1)
    assert done.data == {"message": message.message_id, "id": "key-1"}
    assert message.ordering_key == "", "only where the target says so"
    (event,) = events([message])
    assert (event.id, event.source, event.type) == (
        "key-1", "https://harbour.example/", "harbour.notice",
    )  # fmt: skip
    assert (event.subject, event.data) == ("berth 7", {"n": 1.5, "text": "café"})
    assert (event.lineage, event.hops, event.vouched) == (("scout", "worker"), 2, ENVELOPE)


async def test_a_repeat_is_another_message_and_the_same_event(topic: Topic) -> None:
    for _ in range(2):
        done = await asyncio.to_thread(publish, topic.call(), 1, type="t")
        assert done.state == "done"
    # The control: another call is another event.
    await asyncio.to_thread(publish, topic.call("key-2"), 1, type="t")
    messages = await topic.messages(3)
    assert len({one.message_id for one in messages}) == 3
    intake = ListIntake()
    receipts = await intake.accept(events(messages))
    assert sorted(receipt.status for receipt in receipts) == ["accepted", "accepted", "duplicate"]


async def test_an_ordered_target_keeps_the_order_of_a_key(topic: Topic) -> None:
    target = {**topic.call().target, "ordered": True}

    def work() -> list[Outcome]:
        return [
            publish(topic.call(f"{n}", target=target), n, type="t", subject="pump")
            for n in range(20)
        ]

    assert {done.state for done in await asyncio.to_thread(work)} == {"done"}
    messages = await topic.messages(20)
    assert {one.ordering_key for one in messages} == {"pump"}
    assert [event.data for event in events(messages)] == list(range(20))


async def test_what_the_broker_says_becomes_an_outcome(
    topic: Topic, monkeypatch: pytest.MonkeyPatch
) -> None:
    def go(call: Call, data: Any = 1, **more: Any) -> Outcome:
        return publish(call, data, **{"type": "t", **more})

    base = topic.call().target
    lost = await asyncio.to_thread(go, topic.call(target={**base, "topic": "never-made"}))
    assert lost.state == "retry", "a topic may yet be made, and nothing was published"
    for bad in (
        topic.call(lineage=tuple("x" * 60 for _ in range(20))),
        topic.call(target={"kind": "pubsub", "topic": "notices"}),
    ):
        assert (await asyncio.to_thread(go, bad)).state == "failed"
    never: list[dict[str, Any]] = [
        {"subject": "s" * 1025}, {"data": "x" * 10_000_001}, {"data": float("nan")},
    ]  # fmt: skip
    for more in never:
        assert (await asyncio.to_thread(go, topic.call(), **more)).state == "failed"
    assert await topic.messages(0) == []
    monkeypatch.setenv("PUBSUB_EMULATOR_HOST", "127.0.0.1:9")
    began = time.monotonic()
    nobody = await asyncio.to_thread(go, topic.call(timeout_us=500_000))
    assert nobody.state == "unknown", "it may have gone out; the tool settles by its key"
    assert time.monotonic() - began < 3


def made_up(**more: Any) -> Call:
    target = {"kind": "pubsub", "project": "p", "topic": "t"}
    call = Call("wire.send", {}, "k", "worker", "run_1", target, ("worker",), 1, 5_000_000)
    return replace(call, **more)


def test_without_credentials_nothing_was_sent_and_it_may_come_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from google.auth.exceptions import DefaultCredentialsError

    def none(*given: Any, **more: Any) -> Any:
        raise DefaultCredentialsError("there are none yet")  # type: ignore[no-untyped-call]

    monkeypatch.delenv("PUBSUB_EMULATOR_HOST", raising=False)
    monkeypatch.setattr(publisher, "_clients", {})
    monkeypatch.setattr("google.auth.default", none)
    found = publish(made_up(), 1, type="t")
    assert found.state == "retry", found
    assert "there are none yet" in (found.error or "")


@pytest.mark.parametrize(("takes_s", "state"), [(0.1, "done"), (0.5, "retry")])
def test_making_the_client_takes_of_the_calls_time(
    takes_s: float, state: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Beyond its end nothing is sent any more."""
    given: list[float] = []
    now_s = [100.0]

    class Client:
        def publish(self, *, timeout: float, **more: Any) -> Any:
            given.append(timeout)
            return SimpleNamespace(message_ids=["1"])

    def slow(*, own_token: bool) -> Any:
        now_s[0] += takes_s
        return Client()

    monkeypatch.setattr(publisher, "_client", slow)
    monkeypatch.setattr(publisher, "time", SimpleNamespace(monotonic=lambda: now_s[0]))
    assert publish(made_up(timeout_us=400_000), 1, type="t").state == state
    assert given == ([pytest.approx(0.3)] if state == "done" else [])


async def test_a_target_may_give_its_topics_full_name(topic: Topic) -> None:
    """As `vedette pubsub --apply` takes it."""
    target = {**topic.call().target, "topic": topic.path}
    done = await asyncio.to_thread(publish, topic.call(target=target), 1, type="t")
    assert done.state == "done", done
    assert len(await topic.messages(1)) == 1


def test_flow_bounds_messages_and_bytes_and_gives_up_in_time() -> None:
    flow = Flow(2, 100)

    def fits(octets: int, within_s: float = 0.0) -> bool:
        with flow.reserve(octets, time.monotonic() + within_s) as found:
            return found

    with flow.reserve(1000, 0) as alone:
        assert alone, "one message always fits alone"
        assert not fits(1)
    with flow.reserve(60, 0):
        assert fits(40)
        assert not fits(41)
        with flow.reserve(1, 0):
            assert not fits(1), "two messages are in hand"
        held, free = threading.Event(), threading.Event()

        def hold() -> None:
            with flow.reserve(40, 0):
                held.set()
                free.wait(10)

        thread = threading.Thread(target=hold)
        thread.start()
        assert held.wait(10)
        assert not fits(1, 0.05)
        threading.Timer(0.05, free.set).start()
        assert fits(1, 10), "whoever waits is woken when room appears"
        thread.join()


async def test_a_full_publisher_did_nothing(topic: Topic) -> None:
    call = topic.call(target={**topic.call().target, "max_messages": 1}, timeout_us=200_000)
    flow = publisher._flow(topic.path, call.target)
    with flow.reserve(1, 0):
        full = await asyncio.to_thread(publish, call, 1, type="t")
        assert full.state == "retry"
    assert (await asyncio.to_thread(publish, call, 1, type="t")).state == "done"
    assert len(await topic.messages(1)) == 1


async def test_an_agents_tool_publishes_from_a_process_of_its_own(
    topic: Topic, tmp_path: Path
) -> None:
    async with publishing_fleet(tmp_path, topic.project, workers=True) as fleet:
        sent = job("1", send_proposal("the berth is free"))
        await fleet.send(sent)
        await fleet.wait_until_idle(30)
        (row,) = fleet.actions(sent)
        assert row.effect == "done", row
        (event,) = events(await topic.messages(1))
        (intended,) = fleet.entries("effect.intended")
        assert (event.id, event.subject) == (intended["effect_key"], "berth-7")
        assert event.lineage == ("worker",)
        # What comes back to the fleet that sent it wakes its sender never.
        assert fleet.app.services.fleet.matching_agents(replace(event, type="worker.job")) == ()


async def test_killed_between_publish_and_record_it_is_one_event_to_a_vedette(
    topic: Topic, tmp_path: Path
) -> None:
    child = [sys.executable, "-m", "tests.faults.sink_child", str(tmp_path), topic.project]
    killed = await asyncio.to_thread(
        subprocess.run, [*child, "publish:after"], cwd=ROOT, timeout=60, check=False
    )
    assert killed.returncode == -signal.SIGKILL
    messages = await topic.messages(1)
    async with publishing_fleet(tmp_path, topic.project) as fleet:
        assert fleet.entries("effect.done") == [], "it was published and not recorded"
        await fleet.wait_until_idle()
        assert len(fleet.entries("effect.done")) == 1
        messages += await topic.messages(1)
        await fleet.restart()
        await fleet.wait_until_idle()
        assert await topic.messages(0) == [], "what is recorded is not done again"
    assert len({one.message_id for one in messages}) == 2, "it was published twice"
    intake = ListIntake()
    receipts = await intake.accept(events(messages))
    assert [receipt.status for receipt in receipts] == ["accepted", "duplicate"]

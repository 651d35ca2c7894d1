"""`vedette pubsub --redrive`: dead letters come again, once each, against the real emulator."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from tests.contract.adapters.pubsub.test_pubsub_acknowledgement import failing
from tests.letters import Letters, dead_letters, jobs, pull_plan
from tests.pubsub import Emulator

from vedette.adapters.pubsub import admin, redrive
from vedette.adapters.pubsub.redrive import DeadLetters, attributes_of
from vedette.app.sources import build_source
from vedette.domain.base import failpoint
from vedette.domain.base.errors import AlreadyDone, BadCommand, Forbidden, Unavailable
from vedette.domain.identity import Principal
from vedette.interfaces.http.command_dispatch import dispatch
from vedette.operations.commands import Order
from vedette.testing.harness import FleetHarness
from vedette.testing.toy_fleet import World, toy_fleet, wait_until


@pytest.fixture
async def letters(pubsub_emulator: Emulator) -> AsyncIterator[Letters]:
    async with dead_letters(pubsub_emulator.project()) as made:
        yield made


async def order(
    fleet: FleetHarness, command: str | None = None, who: Principal | None = None, **args: Any
) -> dict[str, Any]:
    given = Order(who or Principal.owner("ann"), "the parser is mended", command)
    question = {"source": "jobs", **args}
    return await dispatch(fleet.app.commands, "pubsub_redrive", given, question)


async def test_dead_letters_come_again_once_each_and_the_order_is_recorded(
    letters: Letters, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    await letters.die(*jobs(3), (b'{"do": []}', {}))
    async with toy_fleet(tmp_path, World()) as fleet:
        assert fleet.app.commands.maintenance is not None
        fleet.app.commands.maintenance.dead_letters = DeadLetters([letters.plan])
        done = await order(fleet, "one")
        assert done == {"source": "jobs", "redriven": 4, "left": False}
        (entry,) = fleet.entries("source.redriven")
        assert (entry["what"], entry["size"], entry["actor"]) == ("jobs", 4, "person:ann")
        assert fleet.body(entry["seq"]) == {"reason": "the parser is mended"}
        messages = await letters.all_of("jobs", 4)
        events = letters.events(messages)
        assert sorted(e.id for e in events if e.source == "https://a.example/") == ["0", "1", "2"]
        (bare,) = [e for e in events if e.source == "pubsub:jobs"]
        (sent,) = [m for m in messages if "event_id" in m.attributes]
        assert bare.id == sent.attributes["event_id"] != sent.message_id
        assert {m.attributes["vedette-redriven"] for m in messages} == {"1"}
        assert not any(n.startswith("CloudPubSub") for m in messages for n in m.attributes)
        receipts = await fleet.send(*events)
        assert [r.status for r in receipts] == ["accepted"] * 4
        monkeypatch.setattr(redrive, "_FIRST_S", 0.5)
        assert (await order(fleet))["redriven"] == 0
        assert len(fleet.entries("source.redriven")) == 1, "nothing was done, nothing is recorded"


async def test_a_repeated_order_is_not_done_again_and_a_viewer_may_not(
    letters: Letters, tmp_path: Path
) -> None:
    await letters.die(*jobs(2))
    async with toy_fleet(tmp_path, World()) as fleet:
        assert fleet.app.commands.maintenance is not None
        fleet.app.commands.maintenance.dead_letters = DeadLetters([letters.plan])
        viewer = Principal("person", "eve", frozenset({"viewer"}))
        with pytest.raises(Forbidden):
            await order(fleet, who=viewer)
        done = await order(fleet, "one", most=1)
        assert (done["redriven"], done["left"]) == (1, True)
        with pytest.raises(AlreadyDone):
            await order(fleet, "one", most=1)
        # What the refused repeat had pulled was given back, and is there for the next order.
        assert (await order(fleet, "two", most=5))["redriven"] == 1
        assert len(await letters.all_of("jobs", 2)) == 2


class Killed(BaseException):
    """The process died here."""


@pytest.mark.parametrize("point", ["redrive:before", "redrive:published"])
async def test_a_redrive_that_breaks_off_loses_none_and_doubles_none(
    letters: Letters, tmp_path: Path, point: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    await letters.die(*jobs(2), (b'{"do": []}', {}))

    def die(reached: str) -> None:
        if reached == point:
            raise Killed

    async def recorded(number: int) -> None:
        return None

    source = DeadLetters([letters.plan])
    monkeypatch.setattr(failpoint, "hook", die)
    with pytest.raises(Killed):
        await source.redrive("jobs", 100, recorded)
    monkeypatch.setattr(failpoint, "hook", None)
    assert (await source.redrive("jobs", 100, recorded))["redriven"] == 3
    copies = 6 if point == "redrive:published" else 3
    events = letters.events(await letters.all_of("jobs", copies))
    async with toy_fleet(tmp_path, World()) as fleet:
        receipts = await fleet.send(*events)
    assert sorted(r.status for r in receipts) == ["accepted"] * 3 + ["duplicate"] * (copies - 3)


async def test_what_cannot_be_redriven_is_said(
    letters: Letters, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def recorded(number: int) -> None:
        raise AssertionError("nothing was there to record")

    plans = [
        letters.plan, pull_plan(name="none", dead_letter_topic=None),
        pull_plan(name="lost", topic=None), pull_plan(name="ticks", schedules=True),
        letters.plan.replace(name="gone", dead_letter_topic="never-made"),
    ]  # fmt: skip
    source = DeadLetters(plans)
    for name, value in {
        "unheard-of": "no Pub/Sub source", "none": "no dead-letter topic", "lost": "no topic",
        "ticks": "schedules", "gone": "no such subscription",
    }.items():  # fmt: skip
        with pytest.raises(BadCommand, match=value):
            await source.redrive(name, 10, recorded)
    with pytest.raises(BadCommand, match="takes 1 to"):
        await source.redrive("jobs", 0, recorded)
    monkeypatch.setenv("PUBSUB_EMULATOR_HOST", "127.0.0.1:9")
    monkeypatch.setattr(admin, "_RETRY_TIMEOUT_S", 0.2)
    with pytest.raises(Unavailable):
        await source.redrive("jobs", 10, recorded)


async def test_large_dead_letters_come_in_as_many_requests_as_they_need(letters: Letters) -> None:
    """The broker takes 10 MB a request: together these are more, one by one they are not."""
    big = b'"' + b"x" * 2_100_000 + b'"'
    dead = f"{letters.base}/topics/jobs-dead"
    for n in range(5):
        message = letters.connection.message(big, {"event_id": f"{n}"})
        await letters.connection.publish(dead, [message])
    assert (await DeadLetters([letters.plan]).redrive("jobs", 100, kept([])))["redriven"] == 5
    found = await letters.all_of("jobs", 5)
    assert sorted(message.attributes["event_id"] for message in found) == list("01234")


async def test_what_no_repeat_mends_is_not_called_to_be_repeated(letters: Letters) -> None:
    dead = f"{letters.base}/topics/jobs-dead"
    await letters.connection.publish(dead, [letters.connection.message(b"1", {})])
    lost = letters.plan.replace(topic="never-made")
    with pytest.raises(BadCommand, match="NOT_FOUND: Topic") as refusal:
        await DeadLetters([lost]).redrive("jobs", 100, kept([]))
    assert "mend what the broker names" in str(refusal.value)
    assert "AioRpcError" not in str(refusal.value)
    # It was given back; and the control is a status that passes.
    assert (await DeadLetters([letters.plan]).redrive("jobs", 100, kept([])))["redriven"] == 1
    passing = redrive._translate_error(failing("UNAVAILABLE"), "s")
    assert isinstance(passing, Unavailable)
    assert "UNAVAILABLE: said" in str(passing)


def kept(numbers: list[int]) -> redrive.RecordRedrive:
    async def record(number: int) -> None:
        numbers.append(number)

    return record


class _Dead:
    message_id = "77"

    def __init__(self, **attributes: str) -> None:
        self.attributes = {name.replace("_", "-"): value for name, value in attributes.items()}


def test_an_id_of_its_own_is_kept_and_redrives_are_counted() -> None:
    assert attributes_of(_Dead()) == {"event_id": "77", "vedette-redriven": "1"}
    assert attributes_of(_Dead(ce_id="1")) == {"ce-id": "1", "vedette-redriven": "1"}
    twice = attributes_of(_Dead(ce_id="1", vedette_redriven="1"))
    assert twice["vedette-redriven"] == "2"
    structured = {"content_type": "application/cloudevents+json"}
    assert "event_id" not in attributes_of(_Dead(**structured))


async def test_poison_lies_with_the_broker_until_one_order_brings_it_back(
    letters: Letters, tmp_path: Path
) -> None:
    """The source gives poison back, the broker moves it away, and mended it is handled: once."""
    topic = f"{letters.base}/topics/jobs"
    messages = [(b'{"do": []}', {}), *jobs(3), (b'{"do": []}', {"event_id": "own"})]
    sent = [letters.connection.message(data, dict(given)) for data, given in messages]
    async with toy_fleet(tmp_path, World()) as fleet:
        app = fleet.app
        assert app.commands.maintenance is not None
        app.commands.maintenance.dead_letters = DeadLetters([letters.plan])
        source = build_source(letters.plan, app, until_idle=False)
        task = asyncio.create_task(source.deliver(app.intake))
        await letters.connection.publish(topic, sent)
        dead = f"{letters.base}/subscriptions/jobs-dead"
        async with asyncio.timeout(30):
            moved = 0
            while moved < 2:
                # Looked at and given back, which a dead letter may be as often as one likes.
                found = await letters.pull("jobs-dead", 0.5)
                moved = len(found)
                for one in found:
                    await letters.connection.modify_deadline(dead, [one.ack_id], 0)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        assert len(fleet.entries("event.accepted")) == 3
        assert len(fleet.entries("event.refused")) == 2, "once each, after five deliveries"
        # The mend: bare data has a type now. The same order, the same topic, the same source.
        mended = build_source(letters.plan.replace(type="worker.job"), app, until_idle=False)
        task = asyncio.create_task(mended.deliver(app.intake))
        assert (await order(fleet))["redriven"] == 2
        await wait_until(lambda: len(fleet.entries("run.closed")) == 5, 30)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        assert len(fleet.entries("event.accepted")) == 5
        assert len(fleet.entries("event.refused")) == 2

"""Telling the broker: in batches, again where it may help, and forgotten where it cannot."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any

import grpc  # type: ignore[import-untyped]
import pytest
from google.rpc.error_details_pb2 import ErrorInfo  # type: ignore[import-untyped]
from google.rpc.status_pb2 import Status  # type: ignore[import-untyped]

from vedette.adapters.pubsub.acknowledgement import MAX_IDS, Acknowledger, send_batch
from vedette.adapters.pubsub.leases import Leases
from vedette.adapters.telemetry.prometheus import PrometheusMetrics

IDS_OF_12 = [f"a{n}" for n in range(12)]


def failing(code: str, named: dict[str, str] | None = None) -> grpc.aio.AioRpcError:
    """Return an error as the broker answers it; `named` as on exactly-once subscriptions."""
    trailing = grpc.aio.Metadata()
    if named:
        status = Status()
        status.details.add().Pack(ErrorInfo(reason="X", metadata=named))
        trailing.add("grpc-status-details-bin", status.SerializeToString())
    return grpc.aio.AioRpcError(grpc.StatusCode[code], grpc.aio.Metadata(), trailing, "said")


class Broker:
    """Takes ids; raises what `answer` makes of a batch."""

    def __init__(self, answer: Callable[[Sequence[str]], Exception | None]) -> None:
        self.answer = answer
        self.batches: list[list[str]] = []
        self.taken: list[str] = []

    async def send(self, ids: Sequence[str]) -> None:
        self.batches.append(list(ids))
        if error := self.answer(ids):
            raise error
        self.taken += ids


# --- one batch ------------------------------------------------------------------------------


async def test_what_may_pass_is_tried_again_whole() -> None:
    for code in ("UNAVAILABLE", "ABORTED", "INTERNAL", "DEADLINE_EXCEEDED", "RESOURCE_EXHAUSTED"):
        broker = Broker(lambda ids, code=code: failing(code))  # type: ignore[misc]
        assert await send_batch(broker.send, IDS_OF_12) == (IDS_OF_12, [])
        assert len(broker.batches) == 1


@pytest.mark.parametrize("code", ["NOT_FOUND", "PERMISSION_DENIED", "FAILED_PRECONDITION"])
async def test_what_does_not_pass_is_lost_whole(code: str) -> None:
    broker = Broker(lambda ids: failing(code))
    assert await send_batch(broker.send, IDS_OF_12) == ([], IDS_OF_12)
    assert len(broker.batches) == 1


async def test_one_bad_id_costs_none_of_its_neighbours() -> None:
    broker = Broker(lambda ids: failing("INVALID_ARGUMENT") if "a7" in ids else None)
    assert await send_batch(broker.send, IDS_OF_12) == ([], ["a7"])
    assert sorted(broker.taken) == sorted(set(IDS_OF_12) - {"a7"})


async def test_an_exactly_once_answer_says_it_of_each_id() -> None:
    named = {"a1": "PERMANENT_FAILURE_INVALID_ACK_ID", "a2": "TRANSIENT_FAILURE_INTERNAL"}
    broker = Broker(lambda ids: failing("INVALID_ARGUMENT", named))
    assert await send_batch(broker.send, IDS_OF_12) == (["a2"], ["a1"])
    assert len(broker.batches) == 1


# --- a source's settler ---------------------------------------------------------------------


@asynccontextmanager
async def settling(
    broker: Broker,
) -> AsyncIterator[tuple[Acknowledger, list[str], PrometheusMetrics]]:
    over: list[str] = []
    metrics = PrometheusMetrics()
    settler = Acknowledger("s", broker.send, broker.send, over.extend, metrics)
    task = asyncio.create_task(settler.run())
    try:
        yield settler, over, metrics
    finally:
        task.cancel()
        await asyncio.wait([task])


@pytest.fixture
def hasty(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("vedette.adapters.pubsub.acknowledgement._FIRST_S", 0.0001)
    monkeypatch.setattr("vedette.adapters.pubsub.acknowledgement._LAST_S", 0.001)


async def test_batches_hold_a_thousand_ids() -> None:
    broker = Broker(lambda ids: None)
    ids = [f"{n}" for n in range(2500)]
    async with settling(broker) as (settler, over, metrics):
        settler.ack(ids)
        await settler.flush()
    assert [len(batch) for batch in broker.batches] == [MAX_IDS, MAX_IDS, 500]
    assert over == ids
    assert metrics.total("pubsub_acks", outcome="acked") == 2500


@pytest.mark.usefixtures("hasty")
async def test_a_failure_that_passes_costs_nothing() -> None:
    left = [3]

    def answer(ids: Sequence[str]) -> Any:
        left[0] -= 1
        return failing("UNAVAILABLE") if left[0] >= 0 else None

    broker = Broker(answer)
    async with settling(broker) as (settler, over, metrics):
        settler.ack(IDS_OF_12)
        await settler.flush()
    assert broker.taken == over == IDS_OF_12
    assert metrics.total("pubsub_acks", outcome="lost") == 0


@pytest.mark.usefixtures("hasty")
async def test_a_failure_that_does_not_pass_ends_with_the_lease() -> None:
    broker = Broker(lambda ids: failing("UNAVAILABLE"))
    async with settling(broker) as (settler, over, metrics):
        settler.ack(IDS_OF_12)
        await settler.flush()
    assert over == IDS_OF_12
    assert metrics.total("pubsub_acks", outcome="lost") == 12


@pytest.mark.usefixtures("hasty")
async def test_forgotten_ids_are_not_sent_to_a_broker_that_would_mean_others() -> None:
    """Also those that were on their way when it was heard that the broker knows them no more."""
    request, answered = asyncio.Event(), asyncio.Event()

    async def send(ids: Sequence[str]) -> None:
        sent.append(list(ids))
        request.set()
        await answered.wait()
        raise failing("UNAVAILABLE")

    sent: list[list[str]] = []
    over: list[str] = []
    settler = Acknowledger("s", send, send, over.extend, PrometheusMetrics())
    task = asyncio.create_task(settler.run())
    settler.ack(["old"])
    await request.wait()
    settler.ack(["queued"])
    settler.forget()
    answered.set()
    await settler.flush()
    task.cancel()
    assert sent == [["old"]]
    assert over == []


# --- leases ---------------------------------------------------------------------------------


def test_leases_bound_messages_and_bytes() -> None:
    leases = Leases(3, 100)
    leases.add_lease("a", 200, 0)  # one is always let in, however large
    assert leases.is_full
    leases.drop_lease("a")
    leases.drop_lease("a")
    assert (leases.is_full, leases.octets) == (False, 0)
    for name in "abc":
        leases.add_lease(name, 1, 0)
    assert leases.is_full
    leases.add_lease("a", 1, 0)  # the same delivery counts once
    assert leases.octets == 3
    leases.clear_leases()
    assert not leases.is_full


def test_a_lease_is_due_once_in_its_time_and_dropped_when_held_too_long() -> None:
    leases = Leases(10, 100)
    leases.add_lease("a", 1, 0)
    leases.add_lease("b", 1, 5)
    assert leases.select_due(10, age_us=10, oldest_us=100) == (["a"], [])
    assert leases.select_due(15, age_us=10, oldest_us=100) == (["b"], [])
    assert leases.select_due(16, age_us=10, oldest_us=100) == ([], [])
    assert leases.select_due(101, age_us=10, oldest_us=100) == (["b"], ["a"])
    assert list(leases.active) == ["b"]

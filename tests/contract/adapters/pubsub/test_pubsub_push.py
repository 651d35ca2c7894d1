"""Pub/Sub push, over a real server: who may push, what is answered, what the emulator pushes."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx
import pytest
from msgspec.structs import replace
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from tests.pubsub import Emulator
from tests.push import ACCOUNT, AUDIENCE, SUBSCRIPTION, Issuer, ce, issuing, serving, wrapped

from vedette.adapters.identity.jwt import Jwks, Verifier
from vedette.adapters.pubsub.client import connect
from vedette.adapters.pubsub.config import PushFile
from vedette.adapters.pubsub.decoder import Decoder
from vedette.adapters.telemetry.prometheus import PrometheusMetrics
from vedette.domain.base.errors import StoreFailed
from vedette.domain.event import ENVELOPE
from vedette.domain.ports.tokens import Claims
from vedette.interfaces.http.pubsub_receiver import PushEndpoint, PushLimits, push_routes, routes
from vedette.interfaces.http.server import build_application
from vedette.testing.intake import ListIntake
from vedette.testing.toy_fleet import World, toy_fleet

NAME = "metrics"

Stranger = asyncio.StreamReader


class Pushing:
    """One door of a fleet that keeps what it takes, and what pushes into it."""

    def __init__(self) -> None:
        self.intake = ListIntake()
        self.metrics = PrometheusMetrics()
        self.issuer = Issuer()
        self.stack = AsyncExitStack()
        self.client: httpx.AsyncClient
        self.now_s: float | None = None

    async def open(
        self,
        *,
        dead_letters: bool = False,
        verify: Any = None,
        scheduled: Any = None,
        **limits: Any,
    ) -> Pushing:
        self.issuer = await self.stack.enter_async_context(issuing())
        verifier = Verifier(
            keys=Jwks(issuer=self.issuer.url, now_us=self._now_us), issuer=self.issuer.url,
            audience=AUDIENCE, now_us=self._now_us, algorithms=("RS256",),
        )  # fmt: skip
        decoder = Decoder(NAME, type="point", decode_tick=scheduled)
        server = PushEndpoint(
            NAME, SUBSCRIPTION, ACCOUNT, verify or verifier.verify,
            lambda m: decoder.decode(m.id, m.data, m.attributes, m.ordering_key, m.published_us),
            dead_letters,
        )  # fmt: skip
        # The first token waits for what checks it to be loaded, for long on a busy machine.
        made = PushLimits(**{"verify_seconds": 30.0, **limits})
        app = Starlette(routes=routes(self.intake, [server], self.metrics, made))
        url = await self.stack.enter_async_context(serving(app))
        self.client = await self.stack.enter_async_context(
            httpx.AsyncClient(base_url=url, timeout=10, trust_env=False)
        )
        return self

    async def stranger(self) -> Stranger:
        """Open a request of 14 MB without a token, of which nothing but the head is sent."""
        url = self.client.base_url
        reader, writer = await asyncio.open_connection(url.host, url.port)
        head = f"POST /v1/pubsub/{NAME} HTTP/1.1\r\nHost: x\r\nContent-Length: {14 << 20}\r\n\r\n"
        writer.write(head.encode())
        await writer.drain()
        self.stack.callback(writer.close)
        return reader

    def _now_us(self) -> int:
        return int((time.time() if self.now_s is None else self.now_s) * 1e6)

    async def post(
        self, body: Any = None, *, token: str | None = "", name: str = NAME
    ) -> httpx.Response:
        """Push; without `token` with a good one, with None without any."""
        headers = {}
        if token is not None:
            headers["Authorization"] = f"Bearer {token or self.issuer.token()}"
        raw = body if isinstance(body, bytes) else json.dumps(body or wrapped(data=1)).encode()
        return await self.client.post(f"/v1/pubsub/{name}", content=raw, headers=headers)


@pytest.fixture
async def pushing() -> AsyncIterator[Pushing]:
    made = Pushing()
    yield made
    made.intake.gate.set()
    await made.stack.aclose()


async def test_a_message_is_taken_in_once_and_its_token_checked_once(pushing: Pushing) -> None:
    await pushing.open()
    token = pushing.issuer.token()
    body = wrapped("77", {"value": 1}, ce("e1", subject="pump"), orderingKey="pump")
    assert (await pushing.post(body, token=token)).status_code == 204
    (event,) = pushing.intake.events
    assert (event.source, event.id, event.subject) == ("https://a.example/", "e1", "pump")
    assert event.vouched == ENVELOPE
    assert (await pushing.post(body, token=token)).status_code == 204
    assert len(pushing.intake.events) == 1
    assert pushing.metrics.total("push_requests", source=NAME, outcome="duplicate") == 1
    bare = wrapped("78", {"value": 2}, {"event_id": "b"})
    assert (await pushing.post(bare, token=token)).status_code == 204
    assert (pushing.intake.events[1].source, pushing.intake.events[1].id) == ("pubsub:metrics", "b")
    assert pushing.issuer.fetched == 1


async def test_only_the_brokers_own_token_opens(pushing: Pushing) -> None:
    await pushing.open()
    issuer, now = pushing.issuer, time.time()
    sign = issuer.token
    tampered = sign()[:-8] + "AAAAAAAA"
    bad: dict[str, tuple[str | None, int]] = {
        "no token": (None, 401),
        "no JSON Web Token": ("word", 401),
        "wrong audience": (sign(aud="https://other.example"), 401),
        "no audience": (sign(without="aud"), 401),
        "another issuer": (sign(iss="https://evil.example"), 401),
        "expired": (sign(now_s=now - 7200), 401),
        "no expiry": (sign(without="exp"), 401),
        "not yet valid": (sign(now_s=now + 7200), 401),
        "alg none": (issuer.unsigned(), 401),
        "HS256 with the public key": (issuer.with_the_public_key_as_secret(), 401),
        "an unknown key": (sign(kid="two"), 401),
        "a signature that does not fit": (tampered, 401),
        "another account": (sign(email="someone@harbour.iam.gserviceaccount.com"), 403),
        "no account": (sign(without="email"), 403),
        "an e-mail nobody verified": (sign(email_verified=False), 403),
        "a verified e-mail in words": (sign(email_verified="true"), 403),
    }
    for what, (token, status) in bad.items():
        answer = await pushing.post(token=token)
        assert answer.status_code == status, what
        assert ("www-authenticate" in answer.headers) == (status == 401), what
    assert pushing.intake.batches == [], "who may not push leaves nothing in the record"
    assert pushing.metrics.total("push_requests", outcome="unauthorised") == 12
    assert pushing.metrics.total("push_requests", outcome="forbidden") == 4
    # The control: what differs from all of these in nothing but being right.
    assert (await pushing.post()).status_code == 204


async def test_a_message_of_another_subscription_is_forbidden(pushing: Pushing) -> None:
    await pushing.open()
    for other in ("projects/evil/subscriptions/metrics", SUBSCRIPTION + "-2", ""):
        answer = await pushing.post(wrapped(data=1, subscription=other))
        assert answer.status_code == 403
    assert (await pushing.post(name="nobody")).status_code == 404
    assert pushing.intake.batches == []


async def test_what_is_no_wrapped_message_is_a_bad_request(pushing: Pushing) -> None:
    await pushing.open()
    bodies = [
        b" ", b"{", b"[]", b"{}", b'{"message": 1}', b'{"message": {}, "message": {}}',
        json.dumps(wrapped(id="")).encode(),
        json.dumps(wrapped(published="yesterday")).encode(),
        json.dumps(wrapped(attributes={"n": 1})).encode(),  # type: ignore[dict-item]
        json.dumps(wrapped()).replace('"data": "', '"data": "%%').encode(),
    ]  # fmt: skip
    for body in bodies:
        assert (await pushing.post(body)).status_code == 400, body
    assert pushing.intake.batches == []


@pytest.mark.parametrize(("dead_letters", "status"), [(False, 204), (True, 422)])
async def test_poison_is_recorded_once_and_answered_as_declared(
    pushing: Pushing, dead_letters: bool, status: int
) -> None:
    await pushing.open(dead_letters=dead_letters)
    poison = (
        wrapped("1", 1, ce(source="vedette://x/schedule/y")),
        wrapped("2", b"{", ce("2")),
        wrapped("3", "x" * 300_000, ce("3")),
    )
    for _ in range(5):
        for body in poison:
            assert (await pushing.post(body)).status_code == status
    assert len(pushing.intake.refusals) == 3 if dead_letters else 15
    # The control: beside them an event is accepted.
    assert (await pushing.post(wrapped("4", 1, ce("4")))).status_code == 204
    assert [event.id for event in pushing.intake.events] == ["4"]


async def test_back_pressure_is_an_answer_not_a_queue(pushing: Pushing) -> None:
    await pushing.open(max_waiting=2, wait_seconds=0.2)
    pushing.intake.gate.clear()
    bodies = [wrapped(f"{n}", n, ce(f"{n}")) for n in range(6)]
    answers = await asyncio.gather(*(pushing.post(body) for body in bodies))
    assert {answer.status_code for answer in answers} == {429}
    assert all(answer.headers["retry-after"] == "1" for answer in answers)
    pushing.intake.gate.set()
    pushing.intake.failure = StoreFailed("the disk is full")
    answer = await pushing.post(bodies[0])
    assert (answer.status_code, answer.headers["retry-after"]) == (503, "1")
    assert pushing.intake.events == [], "nothing was answered 2xx, so nothing need be here"
    pushing.intake.failure = None
    answers = [await pushing.post(body) for body in bodies]
    assert {answer.status_code for answer in answers} == {204}
    assert len(pushing.intake.events) == 6


async def test_a_store_that_is_away_while_a_tick_is_looked_up_is_asked_again(
    pushing: Pushing,
) -> None:
    def away(*given: Any) -> Any:
        raise StoreFailed("the server is away")

    await pushing.open(scheduled=away)
    answer = await pushing.post()
    assert (answer.status_code, answer.headers["retry-after"]) == (503, "1")
    assert pushing.intake.batches == []


async def test_bodies_are_bounded_one_by_one_and_together(pushing: Pushing) -> None:
    await pushing.open(max_body_bytes=4096, max_waiting_bytes=6000, wait_seconds=5)
    assert (await pushing.post(wrapped("1", "x" * 5000))).status_code == 413
    pushing.intake.gate.clear()
    first = asyncio.create_task(pushing.post(wrapped("2", "x" * 2500)))
    while not pushing.intake.gate._waiters:  # noqa: ASYNC110
        await asyncio.sleep(0.001)
    assert (await pushing.post(wrapped("3", "x" * 2500))).status_code == 429
    pushing.intake.gate.set()
    assert (await first).status_code == 204


async def test_strangers_do_not_keep_others_out(pushing: Pushing) -> None:
    """What they announce takes no room: eight times 14 MB is more than there is."""
    await pushing.open()
    for _ in range(8):
        await pushing.stranger()
    async with asyncio.timeout(5):
        while pushing.metrics.total("push_requests") < 8:  # noqa: ASYNC110 (the server's)
            await asyncio.sleep(0.001)
    assert (await pushing.post()).status_code == 204
    assert pushing.metrics.total("push_requests", outcome="unauthorised") == 8


async def test_strangers_are_listened_to_in_bounds(
    pushing: Pushing, monkeypatch: pytest.MonkeyPatch
) -> None:
    over = asyncio.Event()

    async def listening(*given: Any) -> None:
        await over.wait()

    monkeypatch.setattr("vedette.interfaces.http.pubsub_receiver.drain_request", listening)
    await pushing.open(max_draining=1)
    first = asyncio.create_task((await pushing.stranger()).readline())
    async with asyncio.timeout(5):
        while not pushing.metrics.total("push_requests"):  # noqa: ASYNC110
            await asyncio.sleep(0.001)
        second = await (await pushing.stranger()).readline()
        assert b" 401 " in second
        assert not first.done(), "who is still listened to"
        over.set()
        assert b" 401 " in await first


async def test_keys_that_do_not_come_are_waited_for_shortly_and_fetched_all_the_same(
    pushing: Pushing,
) -> None:
    gate, request = asyncio.Event(), []

    async def verify(token: str) -> Claims:
        request.append("begun")
        await gate.wait()
        request.append("done")
        return Claims("i", "s", (), 0, 0, "", "", {"email": ACCOUNT, "email_verified": True})

    await pushing.open(verify=verify, verify_seconds=0.1)
    answer = await asyncio.wait_for(pushing.post(), 5)
    assert (answer.status_code, answer.headers["retry-after"]) == (503, "1")
    gate.set()
    assert (await pushing.post()).status_code == 204
    assert request.count("done") == 2, "the first one was not broken off"


async def test_without_the_issuers_keys_the_broker_is_asked_to_come_again(pushing: Pushing) -> None:
    await pushing.open()
    pushing.now_s = time.time()
    pushing.issuer.up = False
    answer = await pushing.post()
    assert (answer.status_code, answer.headers["retry-after"]) == (503, "1")
    pushing.issuer.up = True
    pushing.now_s += 2
    assert (await pushing.post()).status_code == 204


async def test_a_token_that_was_taken_is_not_taken_after_its_end(pushing: Pushing) -> None:
    await pushing.open()
    token = pushing.issuer.token()
    assert (await pushing.post(token=token)).status_code == 204
    pushing.now_s = time.time() + 3700
    assert (await pushing.post(token=token)).status_code == 401


# --- a whole fleet ---------------------------------------------------------------------------


def plan(**more: Any) -> PushFile:
    given: dict[str, Any] = {
        "kind": "pubsub-push", "name": NAME, "project": "harbour", "subscription": "metrics",
        "topic": "metrics", "audience": AUDIENCE, "service_account": ACCOUNT, "issuer": "",
    }  # fmt: skip
    return PushFile(**{**given, **more})


async def test_a_2xx_means_that_a_fleet_killed_then_still_has_it(tmp_path: Path) -> None:
    job = wrapped("1", {"do": []}, ce("1", type="worker.job", subject="k"))
    fleet = toy_fleet(tmp_path, World())
    async with AsyncExitStack() as stack:
        issuer = await stack.enter_async_context(issuing())
        await fleet.open()
        fleet.app.settings = replace(fleet.app.settings, sources=(plan(issuer=issuer.url),))
        url = await stack.enter_async_context(serving(build_application(fleet.app)))
        client = await stack.enter_async_context(httpx.AsyncClient(base_url=url, trust_env=False))
        headers = {"Authorization": f"Bearer {issuer.token()}"}
        answer = await client.post(f"/v1/pubsub/{NAME}", json=job, headers=headers)
        assert answer.status_code == 204
        await fleet.restart()
        await fleet.wait_until_idle()
        kinds = [entry["kind"] for entry in fleet.entries("event.accepted", "run.closed")]
        assert kinds == ["event.accepted", "run.closed"]
        await fleet.close()


def test_without_push_subscriptions_nothing_is_served() -> None:
    app: Any = SimpleNamespace(settings=SimpleNamespace(sources=()))
    assert push_routes(app) == []


# --- the emulator ----------------------------------------------------------------------------


async def test_what_the_emulator_pushes_is_refused_as_it_is_and_taken_with_a_token(
    pubsub_emulator: Emulator, pushing: Pushing
) -> None:
    """The emulator pushes real requests, without a token: a proxy puts one on, as Google does."""
    await pushing.open(dead_letters=True)
    project, seen, sign = pubsub_emulator.project(), [], [False]
    subscription = f"projects/{project}/subscriptions/{NAME}"

    async def forward(request: Request) -> Response:
        body = json.loads(await request.body())
        assert body["subscription"] == subscription
        # The door knows one subscription, the emulator a fresh project for each test.
        body["subscription"] = SUBSCRIPTION
        answer = await pushing.post(body, token="" if sign[0] else None)
        seen.append(answer.status_code)
        return Response(status_code=answer.status_code)

    proxy = Starlette(routes=[Route("/push", forward, methods=["POST"])])
    url = await pushing.stack.enter_async_context(serving(proxy))
    connection = await connect()
    try:
        topic = f"projects/{project}/topics/{NAME}"
        await connection.publisher.create_topic(request={"name": topic})
        made = {
            "name": subscription,
            "topic": topic,
            "push_config": {"push_endpoint": f"{url}/push"},
        }
        await connection.subscriber.create_subscription(request=made)
        await connection.publish(topic, [connection.message(b'{"v": 1}', ce("e1"))])
        async with asyncio.timeout(20):
            while not seen:  # noqa: ASYNC110 (the emulator's process)
                await asyncio.sleep(0.01)
            assert seen[0] == 401
            assert pushing.intake.batches == []
            sign[0] = True  # from now on as the service does it; the message comes again by itself
            while not pushing.intake.events:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
    finally:
        await connection.close()
    (event,) = pushing.intake.events
    assert (event.id, event.data, event.vouched) == ("e1", {"v": 1}, ENVELOPE)

"""HTTP ingest, over a real server on the loopback."""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import httpx
import pytest
import uvicorn
from starlette.applications import Starlette

from vedette.config.reserved_names import SOURCE_PREFIXES, source_kinds
from vedette.config.settings_file import settings_schema
from vedette.domain.base.errors import BadFleet, StoreFailed
from vedette.domain.cloudevents import BATCH, STRUCTURED
from vedette.domain.event import ENVELOPE, Event
from vedette.domain.ports.sources import Receipt, Refused
from vedette.interfaces.http.event_receiver import IngestLimits, Sender, routes
from vedette.testing.intake import ListIntake

TOKEN, OTHER, GREEDY = "token-of-the-lighthouse", "token-of-the-breakwater", "token-of-the-greedy"
SENDERS = (
    Sender.of("lighthouse", TOKEN),
    Sender.of("breakwater", OTHER, prefix="https://breakwater.example/"),
    # What somebody wrote into vedette.toml gives nobody what an adapter vouches for.
    Sender.of("greedy", GREEDY, prefix="imap:"),
)
AUTHORISED = {"Authorization": f"Bearer {TOKEN}"}

Serve = Callable[..., Awaitable[httpx.AsyncClient]]


@asynccontextmanager
async def serving(intake: ListIntake, limits: IngestLimits) -> AsyncIterator[httpx.AsyncClient]:
    app = Starlette(routes=routes(intake, SENDERS, limits))
    config = uvicorn.Config(app, lifespan="off", ws="none", log_config=None, access_log=False)
    server = uvicorn.Server(config)
    with socket.create_server(("127.0.0.1", 0)) as listening:
        port = listening.getsockname()[1]
        task = asyncio.create_task(server.serve(sockets=[listening]))
        async with httpx.AsyncClient(
            base_url=f"http://127.0.0.1:{port}", timeout=10, trust_env=False
        ) as client:
            try:
                yield client
            finally:
                intake.gate.set()  # or a test that failed would leave a request waiting for ever
                server.should_exit = server.force_exit = True
                await task


@pytest.fixture
async def serve() -> AsyncIterator[Serve]:
    async with AsyncExitStack() as stack:

        async def start(intake: ListIntake, **limits: Any) -> httpx.AsyncClient:
            return await stack.enter_async_context(serving(intake, IngestLimits(**limits)))

        yield start


def event(**more: Any) -> dict[str, Any]:
    base = {"specversion": "1.0", "id": "1", "source": "https://a.example/", "type": "ping"}
    return base | more


async def post(
    client: httpx.AsyncClient, body: Any, headers: dict[str, str] | None = None
) -> httpx.Response:
    """Post structured events; `headers` replaces those of an authorised sender."""
    sent = AUTHORISED if headers is None else headers
    kind = BATCH if isinstance(body, list) else STRUCTURED
    return await client.post(
        "/v1/events", content=json.dumps(body), headers={"Content-Type": kind} | sent
    )


async def test_an_authenticated_sender_is_vouched_for_and_gets_receipts(serve: Serve) -> None:
    intake = ListIntake()
    client = await serve(intake)
    answer = await post(client, event(subject="s", data={"value": 1.5}))
    assert answer.status_code == 202
    key = intake.events[0].key
    expected: dict[str, Any] = {"status": "accepted", "event": key, "runs": [], "error": None}
    assert answer.json() == {"receipts": [expected]}
    assert intake.events[0].vouched == ENVELOPE
    repeat = await post(client, event(subject="s"))
    assert repeat.json()["receipts"][0]["status"] == "duplicate"


async def test_binary_and_batch(serve: Serve) -> None:
    intake = ListIntake()
    client = await serve(intake)
    headers = {f"ce-{name}": value for name, value in event(subject="caf%C3%A9").items()}
    answer = await client.post("/v1/events", json={"x": 1}, headers=headers | AUTHORISED)
    assert answer.status_code == 202
    assert (intake.events[0].subject, intake.events[0].data) == ("café", {"x": 1})
    answer = await post(client, [event(id="2"), event(id="3")])
    assert [receipt["status"] for receipt in answer.json()["receipts"]] == ["accepted"] * 2
    assert len(intake.batches) == 2


@pytest.mark.parametrize(
    "authorization",
    [None, "Bearer", "Bearer wrong", TOKEN, f"Basic {TOKEN}", f"Bearer {TOKEN}x"],
)
async def test_without_a_known_token_nothing_is_accepted(
    serve: Serve, authorization: str | None
) -> None:
    intake = ListIntake()
    headers = {} if authorization is None else {"Authorization": authorization}
    answer = await post(await serve(intake), event(), headers)
    assert answer.status_code == 401
    assert answer.headers["www-authenticate"] == "Bearer"
    assert answer.json()["error"]["code"] == "no-sender"
    assert intake.batches == []


async def test_anybody_may_send_where_that_is_configured_but_is_vouched_for_in_nothing(
    serve: Serve,
) -> None:
    intake = ListIntake()
    client = await serve(intake, anonymous=True)
    for at, headers in enumerate(({}, {"Authorization": "Bearer wrong"}, AUTHORISED)):
        body = event(id=str(at), vedettelineage="scout", vedettehops=2)
        assert (await post(client, body, headers)).status_code == 202
    assert [kept.vouched for kept in intake.events] == [frozenset(), frozenset(), ENVELOPE]
    assert {(kept.lineage, kept.hops) for kept in intake.events} == {(("scout",), 2)}


@pytest.mark.parametrize(
    ("token", "source", "type_", "status"),
    [
        (OTHER, "https://breakwater.example/cam", "ping", 202),
        (OTHER, "https://a.example/", "ping", 403),
        (OTHER, "https://breakwater.example.evil/", "ping", 403),
        (TOKEN, "https://breakwater.example/cam", "ping", 403),
        (None, "https://breakwater.example/cam", "ping", 403),
        (None, "maildir:sample", "mail.received", 403),
        (TOKEN, "csv:series", "metric.point", 403),
        (TOKEN, "vedette://harbour/schedule/desk", "ping", 403),
        (TOKEN, "https://a.example/", "vedette.tick", 403),
        (None, "https://a.example/", "ping", 202),
    ],
)
async def test_nobody_uses_the_source_of_another(
    serve: Serve, token: str | None, source: str, type_: str, status: int
) -> None:
    intake = ListIntake()
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    client = await serve(intake, anonymous=True)
    answer = await post(client, [event(id="0", source=source, type=type_)], headers)
    assert answer.status_code == status
    assert len(intake.events) == (status == 202)
    if status == 403:
        error = answer.json()["error"]
        assert error["where"] == "events[0]"
        assert error["mend"]


@pytest.mark.parametrize("token", [None, TOKEN, GREEDY])
@pytest.mark.parametrize("kind", source_kinds())
async def test_nobody_sends_under_the_name_of_a_source_of_ours(
    serve: Serve, kind: str, token: str | None
) -> None:
    """One posted a `mail.received` of `imap:desk` with a trusted message id: a mail was moved."""
    intake = ListIntake()
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    client = await serve(intake, anonymous=True)
    answer = await post(client, event(source=f"{kind}:desk", type="mail.received"), headers)
    assert (answer.status_code, answer.json()["error"]["code"]) == (403, "not-your-source")
    assert intake.batches == []
    near = await post(client, event(source=f"{kind}s/desk"), AUTHORISED)
    assert near.status_code == 202, "the control"


def test_every_source_of_ours_is_reserved() -> None:
    """By the schema of vedette.toml, and by the prefixes that adapters were seen to use."""
    schema = settings_schema()
    listed = schema["properties"]["sources"]["items"]
    tables = [schema["$defs"][table["$ref"].rpartition("/")[2]] for table in listed["oneOf"]]
    kinds = [table["properties"]["kind"]["const"] for table in tables]
    assert kinds == list(source_kinds())
    seen = "csv jsonl maildir host pubsub bigquery sql prometheus alertmanager imap"
    assert {f"{kind}:" for kind in seen.split()} <= set(SOURCE_PREFIXES)


@pytest.mark.parametrize(
    ("body", "where", "word"),
    [
        ([event(), event(id="")], "events[1]", "'id'"),
        ([event(), event(id="2", data="x" * 2000)], "events[1]", "the limit is 1000"),
        ([event(), event(id="2", vedettelineage="a", vedettehops=0)], "events[1]", "hops"),
        (event(specversion="2.0"), None, "specversion"),
        ([1], "events[0]", "object"),
    ],
)
async def test_one_bad_event_refuses_the_whole_request(
    serve: Serve, body: Any, where: str | None, word: str
) -> None:
    intake = ListIntake()
    answer = await post(await serve(intake, max_event_bytes=1000), body)
    assert answer.status_code == 400
    error = answer.json()["error"]
    assert (error["code"], error["where"]) == ("bad-event", where)
    assert word in error["what"]
    assert error["mend"]
    assert intake.batches == []


async def test_invalid_utf8_and_doubled_keys_are_refused(serve: Serve) -> None:
    intake = ListIntake()
    client = await serve(intake)
    for raw in (b'{"id": "\xff"}', b'{"id": "1", "id": "2"}', b"{"):
        headers = {"Content-Type": STRUCTURED} | AUTHORISED
        answer = await client.post("/v1/events", content=raw, headers=headers)
        assert answer.status_code == 400, raw
    assert intake.batches == []


@pytest.mark.parametrize(
    "headers",
    [
        {"Content-Type": "application/json"},
        {"Content-Type": "application/cloudevents+avro"},
        {"Content-Type": STRUCTURED, "Content-Encoding": "gzip"},
        {},
    ],
)
async def test_another_content_type_is_refused(serve: Serve, headers: dict[str, str]) -> None:
    client = await serve(ListIntake())
    answer = await client.post("/v1/events", content=b"{}", headers=headers | AUTHORISED)
    assert answer.status_code == 415
    assert STRUCTURED in answer.json()["error"]["mend"]


async def test_a_body_over_the_limit_is_refused_announced_or_not(serve: Serve) -> None:
    intake = ListIntake()
    client = await serve(intake, max_body_bytes=1000)
    body = json.dumps(event(data="x" * 1000)).encode()

    async def chunks() -> AsyncIterator[bytes]:
        for at in range(0, len(body), 100):
            yield body[at : at + 100]

    for content in (body, chunks()):
        headers = {"Content-Type": STRUCTURED} | AUTHORISED
        answer = await client.post("/v1/events", content=content, headers=headers)
        assert answer.status_code == 413
        assert "1000" in answer.json()["error"]["what"]
    assert (await post(client, event())).status_code == 202
    assert len(intake.batches) == 1


async def test_a_stream_without_an_end_is_cut_off_at_the_limit(serve: Serve) -> None:
    client = await serve(ListIntake(), max_body_bytes=10_000)
    sent = 0

    async def endless() -> AsyncIterator[bytes]:
        nonlocal sent
        while True:
            sent += 1000
            yield b"x" * 1000
            await asyncio.sleep(0)

    headers = {"Content-Type": STRUCTURED} | AUTHORISED
    try:
        answer = await client.post("/v1/events", content=endless(), headers=headers)
    except (httpx.WriteError, httpx.ReadError):
        pass  # the server hung up while we were still sending
    else:
        assert answer.status_code == 413
    assert 10_000 < sent < 50_000_000


async def test_one_who_is_refused_gets_the_answer_though_the_body_was_not_wanted(
    serve: Serve,
) -> None:
    client = await serve(ListIntake(), max_body_bytes=2_000_000)
    for at in range(3):
        answer = await post(client, event(id=str(at), data="x" * 1_500_000), {})
        assert answer.status_code == 401
        assert answer.headers["connection"] == "close"


@pytest.mark.parametrize("announced", [True, False])
async def test_who_sends_more_than_the_limit_reads_that_it_was_too_much(
    serve: Serve, announced: bool
) -> None:
    """A client that reads nothing before it has sent everything, as most do; 5 MB of 4."""
    client = await serve(ListIntake())
    size = 5_000_000
    head = f"POST /v1/events HTTP/1.1\r\nHost: here\r\nContent-Type: {STRUCTURED}\r\n"
    head += f"Authorization: {AUTHORISED['Authorization']}\r\n"
    head += f"Content-Length: {size}\r\n" if announced else "Transfer-Encoding: chunked\r\n"
    body = b"x" * size
    if not announced:
        body = f"{size:x}\r\n".encode() + body + b"\r\n0\r\n\r\n"
    reader, writer = await asyncio.open_connection(client.base_url.host, client.base_url.port)
    writer.write(head.encode() + b"\r\n" + body)
    await writer.drain()
    answer = await reader.read()
    writer.close()
    assert answer.startswith(b"HTTP/1.1 413 ")
    assert b'"too-large"' in answer


async def test_a_batch_of_too_many_is_refused(serve: Serve) -> None:
    intake = ListIntake()
    client = await serve(intake, max_events=2)
    answer = await post(client, [event(id=str(at)) for at in range(3)])
    assert answer.status_code == 413
    assert intake.batches == []


async def test_a_body_that_does_not_come_is_not_waited_for(serve: Serve) -> None:
    client = await serve(ListIntake(), read_seconds=0.1)

    async def stuck() -> AsyncIterator[bytes]:
        yield b"{"
        await asyncio.sleep(1)

    headers = {"Content-Type": STRUCTURED} | AUTHORISED
    answer = await client.post("/v1/events", content=stuck(), headers=headers)
    assert answer.status_code == 408


async def test_a_store_that_fails_is_503_and_the_same_may_be_sent_again(serve: Serve) -> None:
    intake = ListIntake()
    client = await serve(intake, retry_after_seconds=7)
    intake.failure = StoreFailed("the disk is full")
    answer = await post(client, event())
    assert answer.status_code == 503
    assert answer.headers["retry-after"] == "7"
    assert answer.json()["error"]["code"] == "store-failed"
    intake.failure = None
    assert (await post(client, event())).json()["receipts"][0]["status"] == "accepted"


async def test_no_answer_before_it_is_durable_and_503_when_too_many_wait(serve: Serve) -> None:
    arrived = asyncio.Semaphore(0)

    class Slow(ListIntake):
        async def accept(
            self, deliveries: Sequence[Event | Refused], *, position: tuple[str, str] | None = None
        ) -> list[Receipt]:
            arrived.release()
            return await super().accept(deliveries, position=position)

    intake = Slow()
    client = await serve(intake, max_waiting=2)
    intake.gate.clear()
    waiting = [asyncio.create_task(post(client, event(id=str(at)))) for at in range(2)]
    async with asyncio.timeout(10):
        for _ in waiting:
            await arrived.acquire()
    refused = await post(client, event(id="x"))
    assert (refused.status_code, refused.headers["retry-after"]) == (503, "1")
    assert refused.json()["error"]["code"] == "overloaded"
    assert not any(task.done() for task in waiting)
    intake.gate.set()
    assert [(await task).status_code for task in waiting] == [202, 202]
    assert (await post(client, event(id="x"))).status_code == 202


async def test_who_is_not_waited_for_at_the_end_is_told_to_come_back(serve: Serve) -> None:
    """A server that ends gives its requests up: that is no error of ours, with a traceback."""
    intake = ListIntake()
    client = await serve(intake)
    intake.gate.clear()
    waiting = asyncio.create_task(post(client, event()))
    given_up = 0
    async with asyncio.timeout(10):
        while not given_up:
            await asyncio.sleep(0.01)
            for task in asyncio.all_tasks():
                if "run_asgi" in repr(task.get_coro()):
                    given_up += task.cancel()
    answer = await waiting
    assert (answer.status_code, answer.json()["error"]["code"]) == (503, "ending")


async def test_only_post(serve: Serve) -> None:
    client = await serve(ListIntake())
    assert (await client.get("/v1/events")).status_code == 405


@pytest.mark.parametrize("token", ["", " ", "short"])
def test_a_token_that_can_be_guessed_is_refused(token: str) -> None:
    with pytest.raises(BadFleet, match="sender 'x'"):
        Sender.of("x", token)


def test_the_token_itself_is_not_kept() -> None:
    assert TOKEN not in repr(SENDERS)


@pytest.mark.parametrize("name", ["vedetteprincipal", "vedettereason"])
@pytest.mark.parametrize("authorised", [True, False])
async def test_nobody_claims_to_be_a_person_over_http(
    serve: Serve, name: str, authorised: bool
) -> None:
    intake = ListIntake()
    client = await serve(intake, anonymous=True)
    headers: dict[str, str] | None = None if authorised else {}
    batch = [event(id="1"), event(id="2", **{name: "person:admiral"})]
    answer = await post(client, batch, headers)
    assert (answer.status_code, answer.json()["error"]["code"]) == (403, "not-your-attribute")
    assert (answer.json()["error"]["where"], intake.batches) == ("events[1]", [])
    binary = {f"ce-{key}": value for key, value in batch[1].items()} | (
        AUTHORISED if authorised else {}
    )
    assert (await client.post("/v1/events", json={"x": 1}, headers=binary)).status_code == 403
    other = await post(client, event(vedetteother="x"), headers)
    assert other.status_code == 202

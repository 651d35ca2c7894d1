"""Connections to Pub/Sub: Google's generated asynchronous client, and its raw messages under it.

`PUBSUB_EMULATOR_HOST` names an emulator, reached without credentials; otherwise the application's
default credentials are used. For what is done thousands of times a second (`pull`, `acknowledge`,
`publish`) the stubs exchange protobuf messages as they are: the generated classes around them
cost several times the work itself (docs/design/pubsub.md).
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from functools import cached_property
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

from msgspec import Struct, field

from vedette.domain.base.errors import Unavailable

if TYPE_CHECKING:
    from google.pubsub_v1 import PublisherAsyncClient, SubscriberAsyncClient

EMULATOR_HOST = "PUBSUB_EMULATOR_HOST"

# The service allows about a hundred streams on a connection; some are left for the other calls.
STREAMS_PER_CHANNEL = 90

_SERVICE = "pubsub.googleapis.com"
_SCOPES = ("https://www.googleapis.com/auth/pubsub",)
# Pub/Sub takes requests of at most 10 MB, and answers are as large. gRPC would wait up to two
# minutes before it tries a lost server again: how long is ours to say, with jitter.
_OPTIONS: tuple[tuple[str, int], ...] = (
    ("grpc.max_send_message_length", -1),
    ("grpc.max_receive_message_length", -1),
    ("grpc.max_metadata_size", 4 * 1024 * 1024),
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 2000),
)
# A connection that died without a word is found by the service's own pings; an emulator takes
# them for an attack.
_KEEPALIVE = (("grpc.keepalive_time_ms", 30_000), ("grpc.keepalive_timeout_ms", 10_000))


class Connection:
    """One gRPC channel to Pub/Sub, of the event loop that made it. `close` ends it.

    Methods raise grpc.aio.AioRpcError, the generated clients google.api_core.exceptions.
    """

    def __init__(self, channel: Any, *, emulated: bool) -> None:
        from google.pubsub_v1.types import pubsub

        self.channel = channel
        self.emulated = emulated
        service = "/google.pubsub.v1."
        empty = _parse_empty
        self._pull = channel.stream_stream(
            f"{service}Subscriber/StreamingPull",
            request_serializer=_bytes_of,
            response_deserializer=pubsub.StreamingPullResponse.pb().FromString,
        )
        self._acknowledge = channel.unary_unary(
            f"{service}Subscriber/Acknowledge", request_serializer=_bytes_of,
            response_deserializer=empty,
        )  # fmt: skip
        self._modify = channel.unary_unary(
            f"{service}Subscriber/ModifyAckDeadline", request_serializer=_bytes_of,
            response_deserializer=empty,
        )  # fmt: skip
        self._publish = channel.unary_unary(
            f"{service}Publisher/Publish",
            request_serializer=_bytes_of,
            response_deserializer=pubsub.PublishResponse.pb().FromString,
        )
        self._pull_request = pubsub.StreamingPullRequest.pb()
        self._acknowledge_request = pubsub.AcknowledgeRequest.pb()
        self._modify_request = pubsub.ModifyAckDeadlineRequest.pb()
        self._publish_request = pubsub.PublishRequest.pb()
        self._message = pubsub.PubsubMessage.pb()

    @cached_property
    def subscriber(self) -> SubscriberAsyncClient:
        """Return the generated client for subscriptions."""
        from google.pubsub_v1 import SubscriberAsyncClient
        from google.pubsub_v1.services.subscriber.transports import SubscriberGrpcAsyncIOTransport

        return SubscriberAsyncClient(transport=SubscriberGrpcAsyncIOTransport(channel=self.channel))

    @cached_property
    def publisher(self) -> PublisherAsyncClient:
        """Return the generated client for topics."""
        from google.pubsub_v1 import PublisherAsyncClient
        from google.pubsub_v1.services.publisher.transports import PublisherGrpcAsyncIOTransport

        return PublisherAsyncClient(transport=PublisherGrpcAsyncIOTransport(channel=self.channel))

    def pull(self) -> Any:
        """Begin a streaming pull: a grpc.aio stream of raw StreamingPull messages."""
        return self._pull()

    def pull_request(self, **fields: Any) -> Any:
        """Make a request of a streaming pull; without fields it is a heartbeat."""
        return self._pull_request(**fields)

    async def acknowledge(
        self, subscription: str, ack_ids: Sequence[str], *, timeout_s: float = 30
    ) -> None:
        """Acknowledge at most 1000 deliveries."""
        request = self._acknowledge_request(subscription=subscription, ack_ids=ack_ids)
        await self._acknowledge(request, timeout=timeout_s)

    async def modify_deadline(
        self, subscription: str, ack_ids: Sequence[str], seconds: int, *, timeout_s: float = 30
    ) -> None:
        """Give at most 1000 deliveries so many seconds from now; 0 gives them back."""
        request = self._modify_request(
            subscription=subscription, ack_ids=ack_ids, ack_deadline_seconds=seconds
        )
        await self._modify(request, timeout=timeout_s)

    def message(self, data: bytes, attributes: dict[str, str], ordering_key: str = "") -> Any:
        """Make a raw message to publish."""
        return self._message(data=data, attributes=attributes, ordering_key=ordering_key)

    async def publish(
        self, topic: str, messages: Sequence[Any], *, timeout_s: float = 60
    ) -> list[str]:
        """Publish raw messages, at most 1000 and of one ordering key; return their message ids."""
        request = self._publish_request(topic=topic, messages=messages)
        answer = await self._publish(request, timeout=timeout_s)
        return list(answer.message_ids)

    async def close(self) -> None:
        """Close the channel; streams of it end."""
        await self.channel.close()


def emulator() -> str | None:
    """Return the address of Pub/Sub's emulator that the environment names, if it does."""
    return os.environ.get(EMULATOR_HOST) or None


async def connect(host: str | None = None) -> Connection:
    """Connect to Pub/Sub's emulator at `host` or of the environment, else to the service.

    Raises Unavailable without credentials for the service.
    """
    # It takes a second: the line goes on meanwhile.
    await asyncio.to_thread(_load)
    import grpc  # type: ignore[import-untyped]
    from google.pubsub_v1.services.subscriber.transports import SubscriberGrpcAsyncIOTransport

    host = host or emulator()
    if host is not None:
        return Connection(grpc.aio.insecure_channel(host, options=_OPTIONS), emulated=True)
    credentials = await asyncio.to_thread(_default_credentials)
    made = SubscriberGrpcAsyncIOTransport.create_channel(
        _SERVICE, credentials=credentials, options=(*_OPTIONS, *_KEEPALIVE)
    )
    return Connection(made, emulated=False)


def _load() -> None:
    import google.pubsub_v1  # noqa: F401
    import grpc  # noqa: F401


def _default_credentials() -> Any:
    import google.auth
    from google.auth.exceptions import GoogleAuthError

    try:
        return google.auth.default(scopes=_SCOPES)[0]
    except GoogleAuthError as error:
        raise Unavailable(
            f"no credentials for Pub/Sub: {error}",
            mend="run `gcloud auth application-default login`, run as a service account, or set "
            f"{EMULATOR_HOST}",
        ) from error


class _SharedConnection(Struct):
    """A connection that several sources use, and how many streams they have on it."""

    host: str | None
    task: asyncio.Task[Connection]
    streams: int = 0


class _Pool(Struct, weakref=True):
    connections: list[_SharedConnection] = field(default_factory=list)


# A channel belongs to the event loop it was made in.
_POOLS: WeakKeyDictionary[asyncio.AbstractEventLoop, _Pool] = WeakKeyDictionary()


@asynccontextmanager
async def borrow_connection(streams: int = 1) -> AsyncIterator[Connection]:
    """Lend a connection to Pub/Sub for so many streams; one that nobody uses any more is closed.

    Raises Unavailable without credentials for the service.
    """
    pool = _POOLS.setdefault(asyncio.get_running_loop(), _Pool()).connections
    host = emulator()
    for each in pool:
        if each.host == host and each.streams + streams <= STREAMS_PER_CHANNEL:
            break
    else:
        each = _SharedConnection(host, asyncio.create_task(connect(host)))
        pool.append(each)
    each.streams += streams
    connection: Connection | None = None
    try:
        connection = await asyncio.shield(each.task)
        yield connection
    finally:
        each.streams -= streams
        if each.streams == 0:
            pool.remove(each)
            if connection is not None:
                await connection.close()
            else:
                each.task.cancel()


def topic_path(project: str, topic: str) -> str:
    """Return the full name of a Pub/Sub topic; a name that is full already stays."""
    return topic if topic.startswith("projects/") else f"projects/{project}/topics/{topic}"


def subscription_path(project: str, subscription: str) -> str:
    """Return the full name of a Pub/Sub subscription; a name that is full already stays."""
    if subscription.startswith("projects/"):
        return subscription
    return f"projects/{project}/subscriptions/{subscription}"


def _bytes_of(message: Any) -> bytes:
    return message.SerializeToString()  # type: ignore[no-any-return]


def _parse_empty(raw: bytes) -> None:
    """Acknowledge answers Empty: there is nothing to parse."""

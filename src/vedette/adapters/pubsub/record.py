"""The messages on a Pub/Sub topic, by a subscription that is there for the audit alone.

`record_subscription` names it: on the target's topic, with the longest retention, and pulled by
nobody else. What is read is not acknowledged, so the next audit sees it again, until it expires:
how long that takes is asked of the subscription (`pubsub.subscriptions.get`, as in
roles/pubsub.viewer).
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Any

from vedette.domain.base.errors import BadFleet, Unavailable
from vedette.domain.target_record import TargetEffect

_EMULATOR_HOST = "PUBSUB_EMULATOR_HOST"
# Messages for one request; and how long one may stay ours, in seconds (the longest there is).
_BATCH, _LEASE_S = 1000, 600
_PULL_TIMEOUT_S, _EMPTY_PULLS = 3.0, 2
_REQUEST_TIMEOUT_S = 10.0
# https://cloud.google.com/pubsub/docs/subscription-properties#message_retention_duration
_DEFAULT_RETENTION_US = 7 * 86_400_000_000


def retention_us(table: Mapping[str, Any], where: str) -> int:
    """Return for how long a message stays on the Pub/Sub subscription, in microseconds.

    Raises BadFleet, Unavailable.
    """
    path = _path(table, where)
    client = _client()
    try:
        with _translate_errors("looked at", "roles/pubsub.viewer", f"{where}: {path}"):
            found = client.get_subscription(
                subscription=path, timeout=_REQUEST_TIMEOUT_S, retry=None
            )
            return (
                int(found.message_retention_duration.total_seconds() * 1e6) or _DEFAULT_RETENTION_US
            )
    finally:
        client.transport.close()


def read_messages(table: Mapping[str, Any], where: str) -> Iterator[TargetEffect]:
    """Yield a Pub/Sub topic's messages by their `ce-id`, each key once: a repeat is the same event.

    Raises BadFleet, Unavailable.
    """
    path = _path(table, where)
    client = _client()
    held: list[str] = []
    seen: set[str] = set()
    try:
        with _translate_errors("pulled", "roles/pubsub.subscriber", f"{where}: {path}"):
            for message in _pull_messages(client, path, held):
                key = message.attributes.get("ce-id") or f"message {message.message_id}"
                if key not in seen:
                    seen.add(key)
                    at_us = int(message.publish_time.timestamp() * 1e6)
                    yield TargetEffect(key, at_us, f"message {message.message_id}")
    finally:
        from google.api_core.exceptions import GoogleAPICallError

        # Back at once, and if not, by themselves when their time is over.
        with suppress(GoogleAPICallError):
            _set_ack_deadline(client, path, held, 0)
        client.transport.close()


def _path(table: Mapping[str, Any], where: str) -> str:
    subscription = table.get("record_subscription")
    if not subscription:
        raise BadFleet("its record is not named", where=where, mend="add record_subscription")
    return f"projects/{table.get('project')}/subscriptions/{subscription}"


@contextmanager
def _translate_errors(action: str, role: str, where: str) -> Iterator[None]:
    """Raise what goes wrong inside as BadFleet or Unavailable."""
    from google.api_core import exceptions

    try:
        yield
    except (exceptions.NotFound, exceptions.PermissionDenied) as error:
        what = f"cannot be {action}: {type(error).__name__}"
        mend = f"mend record_subscription, or give this identity {role} on it"
        raise BadFleet(what, where=where, mend=mend) from error
    except exceptions.GoogleAPICallError as error:
        what = f"Pub/Sub does not answer: {type(error).__name__}"
        raise Unavailable(what, where=where) from error


def _pull_messages(client: Any, path: str, held: list[str]) -> Iterator[Any]:
    """Yield all messages; the end is where nothing comes any more, twice."""
    from google.api_core import exceptions

    empty, known = 0, set[str]()
    while empty < _EMPTY_PULLS:
        try:
            answer = client.pull(
                subscription=path, max_messages=_BATCH, timeout=_PULL_TIMEOUT_S, retry=None
            )
        except exceptions.DeadlineExceeded:
            empty += 1
            continue
        fresh = [one for one in answer.received_messages if one.message.message_id not in known]
        empty = 0 if fresh else empty + 1
        held += [one.ack_id for one in answer.received_messages]
        _set_ack_deadline(client, path, [one.ack_id for one in answer.received_messages], _LEASE_S)
        for one in fresh:
            known.add(one.message.message_id)
            yield one.message


def _set_ack_deadline(client: Any, path: str, acks: list[str], seconds: int) -> None:
    for at in range(0, len(acks), _BATCH):
        client.modify_ack_deadline(
            subscription=path, ack_ids=acks[at : at + _BATCH], ack_deadline_seconds=seconds
        )


def _client() -> Any:
    from google.pubsub_v1.services.subscriber import SubscriberClient

    host = os.environ.get(_EMULATOR_HOST, "")
    if not host:
        return SubscriberClient()
    import grpc  # type: ignore[import-untyped]
    from google.pubsub_v1.services.subscriber.transports import SubscriberGrpcTransport

    return SubscriberClient(transport=SubscriberGrpcTransport(channel=grpc.insecure_channel(host)))

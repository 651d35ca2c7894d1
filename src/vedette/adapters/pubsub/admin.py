"""Admin of a fleet's Pub/Sub topics and subscriptions: looks at them, and makes those declared.

Nothing is ever deleted, and what cannot be changed in place is left and said. Everything here may
be repeated: what another one made meanwhile counts as made.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from vedette.adapters.pubsub.client import Connection, connect
from vedette.adapters.pubsub.declaration import Change, Declaration, Fields, compare_declaration
from vedette.domain.base import failpoint
from vedette.domain.base.errors import BadCommand, Unavailable, VedetteError

TIMEOUT_S = 20.0

# Which field of the broker's subscription each of ours is part of.
_MASKS = {
    "ack_deadline_s": "ack_deadline_seconds",
    "exactly_once": "enable_exactly_once_delivery",
    "dead_letter_topic": "dead_letter_policy",
    "max_delivery_attempts": "dead_letter_policy",
    "retry_min_s": "retry_policy",
    "retry_max_s": "retry_policy",
    "push_endpoint": "push_config",
    "push_audience": "push_config",
    "push_service_account": "push_config",
    "expires_s": "expiration_policy",
}
# How long a broker is tried for that is not there, or only just.
_RETRY_TIMEOUT_S = 5.0


def retry_options(timeout_s: float = TIMEOUT_S) -> dict[str, Any]:
    """Return the retry options of a generated Pub/Sub client's call that may be repeated."""
    from google.api_core.exceptions import ServiceUnavailable
    from google.api_core.retry import AsyncRetry, if_exception_type

    retry = AsyncRetry(
        predicate=if_exception_type(ServiceUnavailable),
        initial=0.1,
        maximum=1.0,
        timeout=_RETRY_TIMEOUT_S,
    )
    return {"retry": retry, "timeout": timeout_s}


async def plan_subscriptions(wanted: Declaration) -> list[Change]:
    """Compare the declared topics and subscriptions with those that Pub/Sub has.

    Raises Unavailable without an answer, and BadCommand if we may not look.
    """
    connection = await connect()
    try:
        return await _find_changes(connection, wanted)
    finally:
        await connection.close()


async def apply_declaration(wanted: Declaration) -> list[Change]:
    """Make what Pub/Sub lacks and change what differs, topics first; return what was to be done.

    Raises what `plan` raises; what was made until then stays, and a repeat goes on from there.
    """
    connection = await connect()
    try:
        changes = await _find_changes(connection, wanted)
        for change in changes:
            if change.action in ("create", "update"):
                failpoint.hit_failpoint("pubsub_apply:before")
                await _apply_change(connection, change)
                failpoint.hit_failpoint("pubsub_apply:after")
        return changes
    finally:
        await connection.close()


async def _find_changes(connection: Connection, wanted: Declaration) -> list[Change]:
    topics: list[str] = []
    names = dict.fromkeys(wanted.subscriptions)
    for topic in wanted.topics:
        try:
            # Not left to the list: the emulator's is empty for a topic that is not there.
            await connection.publisher.get_topic(request={"topic": topic}, **retry_options())
            pages = await connection.publisher.list_topic_subscriptions(
                request={"topic": topic}, **retry_options()
            )
            names.update(dict.fromkeys([name async for name in pages]))
            topics.append(topic)
        except Exception as error:
            _check_absent(error, topic)
    found: dict[str, Fields] = {}
    for name in names:
        try:
            subscription = await connection.subscriber.get_subscription(
                request={"subscription": name}, **retry_options()
            )
            found[name] = _fields_of(subscription)
        except Exception as error:
            _check_absent(error, name)
    return compare_declaration(wanted, topics, found)


def _fields_of(subscription: Any) -> Fields:
    """Return a subscription of the broker's as our fields."""
    raw = type(subscription).pb(subscription)
    push = raw.push_config
    # Without a policy at all the broker takes its own default of 31 days.
    expires = raw.expiration_policy.ttl.seconds if raw.HasField("expiration_policy") else 31 * 86400
    return {
        "topic": raw.topic,
        "ack_deadline_s": raw.ack_deadline_seconds,
        "ordered": raw.enable_message_ordering,
        "exactly_once": raw.enable_exactly_once_delivery,
        "filter": raw.filter,
        "dead_letter_topic": raw.dead_letter_policy.dead_letter_topic,
        "max_delivery_attempts": raw.dead_letter_policy.max_delivery_attempts,
        "retry_min_s": raw.retry_policy.minimum_backoff.seconds,
        "retry_max_s": raw.retry_policy.maximum_backoff.seconds,
        "expires_s": expires,
        "push_endpoint": push.push_endpoint,
        "push_audience": push.oidc_token.audience,
        "push_service_account": push.oidc_token.service_account_email,
    }


async def _apply_change(connection: Connection, change: Change) -> None:
    from google.api_core.exceptions import AlreadyExists
    from google.protobuf.field_mask_pb2 import FieldMask  # type: ignore[import-untyped]

    try:
        if change.resource == "topic":
            await connection.publisher.create_topic(
                request={"name": change.name}, **retry_options()
            )
        elif change.action == "create":
            made = _subscription(change.name, change.wanted)
            await connection.subscriber.create_subscription(request=made, **retry_options())
        else:
            masks = sorted({_MASKS[one.name] for one in change.fields if one.is_mutable})
            request = {
                "subscription": _subscription(change.name, change.wanted),
                "update_mask": FieldMask(paths=masks),
            }
            await connection.subscriber.update_subscription(request=request, **retry_options())
    except AlreadyExists:
        return  # another one was quicker; the next plan says if it differs
    except Exception as error:
        raise _translate_error(error, change.name) from error


def _subscription(name: str, fields: Fields) -> Any:
    """Return the broker's subscription of our fields."""
    from google.protobuf.duration_pb2 import Duration  # type: ignore[import-untyped]
    from google.pubsub_v1.types import pubsub

    made: dict[str, Any] = {
        "name": name,
        "topic": fields.get("topic", ""),
        "ack_deadline_seconds": fields["ack_deadline_s"],
        "enable_message_ordering": fields["ordered"],
        "enable_exactly_once_delivery": fields["exactly_once"],
        "filter": fields["filter"],
        "expiration_policy": pubsub.ExpirationPolicy(),  # without a time: never
    }
    if fields.get("dead_letter_topic"):
        made["dead_letter_policy"] = pubsub.DeadLetterPolicy(
            dead_letter_topic=fields["dead_letter_topic"],
            max_delivery_attempts=fields["max_delivery_attempts"],
        )
    if fields.get("retry_max_s"):
        made["retry_policy"] = pubsub.RetryPolicy(
            minimum_backoff=Duration(seconds=int(fields["retry_min_s"])),
            maximum_backoff=Duration(seconds=int(fields["retry_max_s"])),
        )
    if fields["push_endpoint"]:
        made["push_config"] = pubsub.PushConfig(
            push_endpoint=fields["push_endpoint"],
            oidc_token=pubsub.PushConfig.OidcToken(
                service_account_email=fields["push_service_account"],
                audience=fields["push_audience"],
            ),
        )
    return pubsub.Subscription(**made)


def _check_absent(error: Exception, name: str) -> None:
    """Return if an error says that it is not there; else raise what a person can be told."""
    from google.api_core.exceptions import NotFound

    if not isinstance(error, NotFound):
        raise _translate_error(error, name) from error


def _translate_error(error: BaseException, name: str) -> BaseException:
    """Return the broker's error as one of ours, and any other one as it is."""
    from google.api_core import exceptions as google

    if isinstance(error, google.RetryError) and error.cause is not None:
        return _translate_error(error.cause, name)
    if isinstance(error, VedetteError) or not isinstance(error, google.GoogleAPICallError):
        return error
    what = error.message or type(error).__name__
    if isinstance(error, google.Forbidden | google.Unauthorized):
        return BadCommand(
            what, where=name, mend="grant roles/pubsub.editor, or let Terraform do it"
        )
    if isinstance(error, google.InvalidArgument | google.FailedPrecondition | google.NotFound):
        return BadCommand(what, where=name, mend="correct its source in vedette.toml")
    return Unavailable(what, where=name, mend="try again: what was made stays")


def declaration_exit_code(changes: Sequence[Change], *, applied: bool) -> int:
    """Return 1 if Pub/Sub is not as declared, as every check does (2 is for a wrong call).

    After `apply` that is only what cannot be changed in place.
    """
    if not applied and any(change.action in ("create", "update") for change in changes):
        return 1
    return 1 if any(change.is_unresolved for change in changes) else 0

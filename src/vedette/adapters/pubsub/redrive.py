"""Dead letters of a Pub/Sub source, published again to its topic with the ids they had.

Each is pulled from the dead-letter subscription, published, and only then acknowledged: a redrive
that breaks off may publish one twice, and never loses one. Twice is once to us, since an event's
id goes along. Bare data without an id of its own gets the dead letter's message id as `event_id`:
its first id is not among what the broker keeps of it.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Sequence
from contextlib import suppress
from typing import Any

from vedette.adapters.pubsub.acknowledgement import TRANSIENT_CODES
from vedette.adapters.pubsub.admin import retry_options
from vedette.adapters.pubsub.client import Connection, connect, topic_path
from vedette.adapters.pubsub.config import PubsubFile, PushFile
from vedette.adapters.pubsub.declaration import dead_letter_subscription
from vedette.domain.base import failpoint
from vedette.domain.base.errors import BadCommand, Unavailable

MAX_MESSAGES = 10_000
MAX_BYTES = 64 << 20
_BATCH = 100
# The broker takes requests of 10 MB; the attributes that are added need some of it.
_BATCH_BYTES = 9_000_000
# A pull waits for something to come. What is there comes with the first; what does not come soon
# after that is not there.
_FIRST_S, _NEXT_S = 5.0, 1.0
_SEND_TIMEOUT_S = 30.0

# What the broker adds to a message that it gives up on.
_BROKERS = "CloudPubSubDeadLetterSource"
COUNT_ATTRIBUTE = "vedette-redriven"

RecordRedrive = Callable[[int], Awaitable[None]]


class DeadLetters:
    """The dead letters of a fleet's Pub/Sub sources, by the source's name."""

    def __init__(self, plans: Iterable[object]) -> None:
        self._plans = {plan.name: plan for plan in plans if isinstance(plan, PubsubFile | PushFile)}

    def find_paths(self, name: str) -> tuple[str, str]:
        """Return the dead-letter subscription and the topic of a source. Raises BadCommand."""
        plan = self._plans.get(name)
        if plan is None:
            known = ", ".join(sorted(self._plans)) or "none"
            raise BadCommand(f"there is no Pub/Sub source {name!r}", mend=f"there are: {known}")
        where = f"source {name}"
        dead = dead_letter_subscription(plan)
        if dead is None:
            raise BadCommand("has no dead-letter topic", where=where, mend="add dead_letter_topic")
        if plan.topic is None:
            raise BadCommand("names no topic to publish to again", where=where, mend="add topic")
        if plan.schedules:
            # Which tick a message means follows from when it was published: that would change.
            mend = "send the tick's event yourself, or wait for the next one"
            raise BadCommand("brings schedules, which are not redriven", where=where, mend=mend)
        return dead, topic_path(plan.project, plan.topic)

    async def redrive(self, name: str, most: int, record: RecordRedrive) -> dict[str, Any]:
        """Publish at most `most` dead letters again; `left` says that there may be more.

        `record` is called with their number before the first is published, and may refuse by
        raising. Raises BadCommand, and Unavailable if the broker fails; what was not done is still
        there then.
        """
        if not 1 <= most <= MAX_MESSAGES:
            raise BadCommand(
                f"a redrive takes 1 to {MAX_MESSAGES:,} messages", mend="repeat it for more"
            )
        subscription, topic = self.find_paths(name)
        connection = await connect()
        try:
            found, left = await _pull(connection, subscription, most)
            done = 0
            try:
                if found:
                    await record(len(found))
                for batch in _batches(found):
                    await _republish(connection, subscription, topic, batch)
                    done += len(batch)
            finally:
                await _nack(connection, subscription, found[done:])
            return {"source": name, "redriven": done, "left": left}
        except Exception as error:
            raise _translate_error(error, subscription) from error
        finally:
            await connection.close()


async def _pull(connection: Connection, subscription: str, most: int) -> tuple[list[Any], bool]:
    """Return what is there, up to a number and a size, and whether there may be more."""
    from google.api_core.exceptions import DeadlineExceeded

    found: dict[str, Any] = {}
    octets = 0
    while len(found) < most and octets < MAX_BYTES:
        request = {"subscription": subscription, "max_messages": min(_BATCH, most - len(found))}
        try:
            answer = await connection.subscriber.pull(
                request=request, **retry_options(_NEXT_S if found else _FIRST_S)
            )
        except DeadlineExceeded:
            return list(found.values()), False
        received = type(answer).pb(answer).received_messages
        if not received:
            return list(found.values()), False
        for one in received:
            found[one.ack_id] = one
            octets += len(one.message.data)
    return list(found.values()), True


def _batches(found: Sequence[Any]) -> list[list[Any]]:
    """Return messages in batches of one ordering key each, as the broker wants them.

    One request has at most _AT_ONCE of them and _AT_ONCE_BYTES; a larger message goes alone.
    """
    batches: list[list[Any]] = []
    octets = 0
    for one in sorted(found, key=lambda one: one.message.ordering_key):
        last, size = batches[-1] if batches else [], one.message.ByteSize()
        full = len(last) >= _BATCH or octets + size > _BATCH_BYTES
        if not last or full or last[0].message.ordering_key != one.message.ordering_key:
            batches.append([])
            octets = 0
        batches[-1].append(one)
        octets += size
    return batches


async def _republish(
    connection: Connection, subscription: str, topic: str, batch: Sequence[Any]
) -> None:
    messages = [
        connection.message(one.message.data, attributes_of(one.message), one.message.ordering_key)
        for one in batch
    ]
    failpoint.hit_failpoint("redrive:before")
    await connection.publish(topic, messages, timeout_s=_SEND_TIMEOUT_S)
    failpoint.hit_failpoint("redrive:published")
    await connection.acknowledge(
        subscription, [one.ack_id for one in batch], timeout_s=_SEND_TIMEOUT_S
    )
    failpoint.hit_failpoint("redrive:after")


def attributes_of(message: Any) -> dict[str, str]:
    """Return the attributes under which a dead letter is published to Pub/Sub again."""
    found = {n: v for n, v in message.attributes.items() if not n.startswith(_BROKERS)}
    structured = found.get("content-type", "").startswith("application/cloudevents")
    if not structured and not found.keys() & {"ce-id", "event_id"}:
        found["event_id"] = message.message_id
    before = found.get(COUNT_ATTRIBUTE, "0")
    found[COUNT_ATTRIBUTE] = str(int(before) + 1 if before.isdecimal() else 1)
    return found


async def _nack(connection: Connection, subscription: str, rest: Sequence[Any]) -> None:
    """Let the broker have at once what was pulled and not done; else it would wait its deadline."""
    for start in range(0, len(rest), 1000):
        ids = [one.ack_id for one in rest[start : start + 1000]]
        with suppress(Exception):  # its deadline does the same, later
            await connection.modify_deadline(subscription, ids, 0)


def _translate_error(error: Exception, subscription: str) -> Exception:
    """Return the broker's error as one of ours, and any other one as it is."""
    from google.api_core.exceptions import GoogleAPICallError, RetryError
    from google.api_core.exceptions import NotFound as Gone
    from grpc.aio import AioRpcError  # type: ignore[import-untyped]

    if isinstance(error, Gone):
        mend = "make it: vedette pubsub --apply"
        return BadCommand("there is no such subscription", where=subscription, mend=mend)
    if isinstance(error, RetryError):
        code, said = "UNAVAILABLE", str(error)
    elif isinstance(error, GoogleAPICallError):
        code, said = getattr(error.grpc_status_code, "name", "UNKNOWN"), error.message
    elif isinstance(error, AioRpcError):
        code, said = error.code().name, error.details() or ""
    else:
        return error
    what = f"the broker failed: {code}: {' '.join(said.split())[:300]}"
    if code in TRANSIENT_CODES:
        return Unavailable(what, where=subscription, mend="repeat it: nothing is lost")
    mend = "mend what the broker names, then repeat it: nothing is lost"
    return BadCommand(what, where=subscription, mend=mend)

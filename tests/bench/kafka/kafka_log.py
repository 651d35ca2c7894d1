"""A shard's log on a Kafka broker: one partition, one transaction a segment, one writer's epoch.

`transactional.id` is the shard: `init_transactions` gives its producer the next epoch, ends what
the one before left open, and makes the broker refuse whoever still writes under an older epoch
(KIP-98, KIP-360). Runs in the client's environment alone.
"""

from __future__ import annotations

import importlib
import time
from collections.abc import Callable
from typing import Any

from tests.bench.kafka.owner import LeaseError
from tests.bench.kafka.segment import Segment

TOPIC = "segments"
WAIT_S = 30.0
# Names of librdkafka's errors by which a producer learns that another has its transactional.id.
_FENCED = frozenset(
    {"_FENCED", "INVALID_PRODUCER_EPOCH", "PRODUCER_FENCED", "INVALID_PRODUCER_ID_MAPPING"}
)


class DoubtError(Exception):
    """The broker did not say whether a segment is committed: take the shard again to know."""


def kafka() -> Any:
    """Import the client: it is only in its own environment."""
    return importlib.import_module("confluent_kafka")


def make_topic(address: str, shards: int, *, again: bool = False) -> None:
    """Make the topic of segments with a partition a shard; wait until the broker can do so.

    `again`: whatever topic of that name there is goes first.
    """
    admin_of: Any = importlib.import_module("confluent_kafka.admin")
    admin = admin_of.AdminClient({"bootstrap.servers": address})
    end = time.monotonic() + 2 * WAIT_S
    if again and TOPIC in admin.list_topics(timeout=WAIT_S).topics:
        for gone in admin.delete_topics([TOPIC], operation_timeout=WAIT_S).values():
            gone.result(WAIT_S)
        while TOPIC in admin.list_topics(timeout=WAIT_S).topics and time.monotonic() < end:
            time.sleep(0.1)
    settings = {"max.message.bytes": "16777216", "compression.type": "producer"}
    topic = admin_of.NewTopic(TOPIC, num_partitions=shards, replication_factor=1, config=settings)
    while True:
        try:
            for made in admin.create_topics([topic], request_timeout=WAIT_S).values():
                made.result(WAIT_S)
            return
        except kafka().KafkaException as error:
            # One that was told to go may still be going.
            if error.args[0].name() != "TOPIC_ALREADY_EXISTS" or time.monotonic() > end:
                raise
            time.sleep(0.1)


class KafkaLog:
    """One owner's hand on a shard's partition.

    `transactional` off: an idempotent producer without a lease, to see what the lease costs.
    """

    def __init__(
        self, address: str, shard: int, *, transactional: bool = True, wait_s: float = WAIT_S
    ) -> None:
        self._address, self._shard, self._transactional = address, shard, transactional
        self._wait_s = wait_s
        self._producer: Any = None

    def take(self) -> None:
        """See Log. Raises DoubtError if the broker does not answer."""
        settings: dict[str, Any] = {
            "bootstrap.servers": self._address,
            "acks": "all",
            "enable.idempotence": True,
            # A group is whole already; waiting for more would only delay it.
            "linger.ms": 0,
            "message.max.bytes": 16_777_216,
            "message.timeout.ms": int(self._wait_s * 1000),
            "log_level": 0,
        }
        if self._transactional:
            settings |= {"transactional.id": f"shard-{self._shard}",
                         "transaction.timeout.ms": int(self._wait_s * 1000)}  # fmt: skip
        # The one before would go on trying in its own threads.
        self.close()
        self._producer = kafka().Producer(settings)
        if self._transactional:
            self._guarded(lambda: self._producer.init_transactions(self._wait_s))

    def append(self, segment: Segment, reach: Callable[[str], None]) -> int:
        """See Log. Raises DoubtError if the broker does not answer."""
        answers: list[tuple[Any, Any]] = []
        raw = segment.to_bytes()

        def put() -> None:
            if self._transactional:
                self._producer.begin_transaction()
            self._producer.produce(
                TOPIC, raw, partition=self._shard,
                on_delivery=lambda error, message: answers.append((error, message)),
            )  # fmt: skip
            if self._producer.flush(self._wait_s):
                raise DoubtError("a segment was not acknowledged in time")
            error = answers[0][0]
            if error is not None:
                raise kafka().KafkaException(error)

        self._guarded(put)
        reach("produce:after")
        if self._transactional:
            self._guarded(lambda: self._producer.commit_transaction(self._wait_s))
        return int(answers[0][1].offset())

    def _guarded(self, call: Callable[[], object]) -> None:
        try:
            call()
        except (kafka().KafkaException, SystemError) as error:
            # The client raises a fatal error amid a call back, so it may come as the cause.
            chain = [each for each in (error, error.__cause__, error.__context__) if each]
            told = [each.args[0] for each in chain if isinstance(each, kafka().KafkaException)]
            if not told:
                raise
            for each in told:
                if each.name() in _FENCED:
                    raise LeaseError("log", each.str()) from error
            raise DoubtError(f"{told[0].name()}: {told[0].str()}") from error

    def read(self, offset: int) -> list[tuple[int, Segment]]:
        """See Log."""
        return read_partition(self._address, self._shard, offset, self._wait_s)

    def close(self) -> None:
        """Give up the producer, whatever it still had to say."""
        if self._producer is not None:
            self._producer.purge()
            self._producer = None


def read_partition(
    address: str, shard: int, offset: int = 0, wait_s: float = WAIT_S, *, committed: bool = False
) -> list[tuple[int, Segment]]:
    """Return a shard's segments from an offset on. Raises DoubtError if there is no answer.

    What was aborted, too: only the chain from the head says what counts. With `committed` what
    Kafka calls so: that may end early where a broker was killed between a transaction's commit and
    its mark, and forgot the mark when it came back (docs/design/scale.md).
    """
    client = kafka()
    consumer = client.Consumer({
        "bootstrap.servers": address, "group.id": "none", "enable.auto.commit": False,
        "isolation.level": "read_committed" if committed else "read_uncommitted",
        "enable.partition.eof": True,
        "auto.offset.reset": "error", "fetch.message.max.bytes": 16_777_216, "log_level": 0,
        "fetch.wait.max.ms": 20,
    })  # fmt: skip
    found = []
    try:
        consumer.assign([client.TopicPartition(TOPIC, shard, offset)])
        while True:
            message = consumer.poll(wait_s)
            if message is None:
                raise DoubtError("the broker does not answer a reader")
            error = message.error()
            if error is None:
                found.append((int(message.offset()), Segment.from_bytes(message.value())))
            elif error.name() == "_PARTITION_EOF":
                return found
            elif error.name() == "_AUTO_OFFSET_RESET":
                # The head names an offset behind the log's end: the log has lost it.
                return []
            elif not error.retriable() and error.name() not in ("_TRANSPORT", "_ALL_BROKERS_DOWN"):
                raise DoubtError(f"{error.name()}: {error.str()}")
    finally:
        consumer.close()

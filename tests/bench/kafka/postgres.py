"""Heads in PostgreSQL, and the write path without a broker: the segment in the head's transaction.

The table is one row a shard; a publish is one UPDATE of all of them. Half of each page is left
free, so that a new version of a row finds room beside the old one and no index is touched.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import psycopg
from tests.bench.kafka.owner import Head
from tests.bench.kafka.segment import Segment

TABLES = (
    """CREATE TABLE head(shard int PRIMARY KEY, epoch bigint NOT NULL, size bigint NOT NULL,
       root bytea NOT NULL, at bigint NOT NULL, policy_rev bigint NOT NULL,
       stop_epoch bigint NOT NULL, note text NOT NULL) WITH (fillfactor=50)""",
    "CREATE TABLE segment(shard int, at bigint, bytes bytea NOT NULL, PRIMARY KEY(shard, at))",
    # Bodies do not compress well, and are not read with the row.
    "ALTER TABLE segment ALTER bytes SET STORAGE EXTERNAL",
)
_COLUMNS = "shard, epoch, size, root, at, policy_rev, stop_epoch"
_ADVANCE = """UPDATE head SET size=%s, root=%s, at=%s, note=%s
   WHERE shard=%s AND epoch=%s AND size=%s AND policy_rev=%s AND stop_epoch=%s"""
# One statement, so one transaction and one way there: no segment where the head did not move.
_ADVANCE_WITH = f"""WITH moved AS ({_ADVANCE} RETURNING 1)
   INSERT INTO segment SELECT %s, %s, %s FROM moved"""


def make_tables(url: str, shards: int) -> None:
    """Make the tables with an empty head for each shard."""
    with psycopg.connect(url, autocommit=True) as connection:
        for statement in TABLES:
            connection.execute(statement.encode())
        for shard in range(shards):
            empty = Head(shard)
            connection.execute(
                "INSERT INTO head VALUES(%s, 0, 0, %s, %s, 0, 0, '')",
                (shard, empty.root, empty.offset),
            )


def publish(url: str, policy_rev: int) -> None:
    """Put a policy revision into all heads in one transaction."""
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute("UPDATE head SET policy_rev=%s", (policy_rev,))


class PostgresHeads:
    """See Heads. `with_segments`: the segment goes into the same transaction, there is no log."""

    def __init__(self, url: str, *, with_segments: bool = False) -> None:
        self._connection = psycopg.connect(url, autocommit=True)
        self._cursor = self._connection.cursor(binary=True)
        self._with_segments = with_segments

    def take(self, shard: int) -> Head:
        """See Heads."""
        return self._one(
            f"UPDATE head SET epoch=epoch+1 WHERE shard=%s RETURNING {_COLUMNS}", shard
        )

    def read(self, shard: int) -> Head:
        """See Heads."""
        return self._one(f"SELECT {_COLUMNS} FROM head WHERE shard=%s", shard)

    def _one(self, statement: str, shard: int) -> Head:
        row: Any = self._cursor.execute(statement.encode(), (shard,)).fetchone()
        if row is None:
            raise LookupError(f"there is no head of shard {shard}")
        return Head(row[0], row[1], row[2], bytes(row[3]), *row[4:])

    def advance(self, before: Head, after: Head, segment: Segment) -> bool:
        """See Heads."""
        values: tuple[Any, ...] = (
            after.size, after.root, after.offset, segment.note, before.shard, before.epoch,
            before.size, before.policy_rev, before.stop_epoch,
        )  # fmt: skip
        if not self._with_segments:
            return self._cursor.execute(_ADVANCE.encode(), values).rowcount == 1
        values += (segment.shard, segment.at, segment.to_bytes())
        return self._cursor.execute(_ADVANCE_WITH.encode(), values).rowcount == 1

    def close(self) -> None:
        """Close the connection."""
        self._connection.close()


class NoLog:
    """The log of a shard whose segments lie in PostgreSQL beside the heads."""

    def __init__(self, url: str, shard: int) -> None:
        self._url, self._shard = url, shard

    def take(self) -> None:
        """See Log: the head's epoch is all there is."""

    def append(self, segment: Segment, reach: Callable[[str], None]) -> int:
        """See Log: it goes with the head; where it begins is its offset."""
        reach("produce:after")
        return segment.at

    def read(self, offset: int) -> list[tuple[int, Segment]]:
        """See Log."""
        with psycopg.connect(self._url, autocommit=True) as connection:
            rows = connection.execute(
                "SELECT at, bytes FROM segment WHERE shard=%s AND at>=%s ORDER BY at",
                (self._shard, offset),
            ).fetchall()
        return [(at, Segment.from_bytes(raw)) for at, raw in rows]

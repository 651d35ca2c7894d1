"""The ledger shipped into BigQuery: every entry once, however often anything is killed.

The local ledger is first; it is shipped from there, behind the line, in a thread. How far is a
mark in the store: the stream that is written to, the offset its next row has, the entry that the
last row was of. An append at an offset is taken once by the service. Whenever it is not known what
came of one (this process is new, an error), the stream is closed: the service then says how many
rows it took, nobody can append to it any more, and the mark moves there.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import orjson
from msgspec import Struct
from msgspec.structs import asdict, replace

from vedette.adapters.bigquery.tables import KINDS, MAX_ROWS, ShippedRowBatch, ShippedRowEncoder
from vedette.adapters.bigquery.warehouse import Warehouse
from vedette.domain.base.backoff import delay_us
from vedette.domain.base.canonical import sha256_hex
from vedette.domain.base.clock import Clock
from vedette.domain.base.errors import BadStore, Unavailable
from vedette.domain.base.failpoint import hit_failpoint
from vedette.domain.ports.reasoner import Metrics
from vedette.domain.ports.store import Store, StoreReader

FIRST_US, LAST_US = 1_000_000, 300_000_000  # backoff while BigQuery does not answer


class ShippedPosition(Struct, frozen=True):
    """How far a BigQuery table is: `seq` is shipped; its stream's next row has `offset`.

    `rows` counts all that were ever shipped there.
    """

    to: str
    seq: int = 0
    history: int = 0
    stream: str | None = None
    offset: int = 0
    rows: int = 0


class Shipper:
    """Ships one fleet's ledger into one BigQuery dataset, for one caller at a time."""

    def __init__(
        self, fleet: str, marks: Store, reader: Callable[[], StoreReader], warehouse: Warehouse
    ) -> None:
        """`reader` opens a connection; it is opened and closed in a thread for each batch."""
        self.warehouse = warehouse
        self._fleet, self._marks, self._reader = fleet, marks, reader
        self._encoders = {table: ShippedRowEncoder(table, fleet) for table in KINDS}
        self._open_streams: dict[str, str] = {}  # the streams that stand where our marks say
        self._known_marks: dict[str, str | None] = {}  # as they were when we last knew them
        self._prepared = False
        self.gaps: list[str] = []  # what a person should see
        self.shipped_seq = 0  # the ledger's table has all up to this entry

    async def ship(self) -> int:
        """Ship all there is; return how many entries the ledger's table got of it.

        Raises BadStore if the tables know more than the store, and what the clients raise; then
        what was shipped stays shipped, and the next call finds out where it is.
        """
        if not self._prepared:
            for table in await asyncio.to_thread(self.warehouse.prepare):
                # A stream may outlive the table it was opened for.
                self._open_streams.pop(table, None)
            self._prepared = True
            self.gaps += self.warehouse.view_problems
            self.warehouse.view_problems.clear()
        counts = {table: await self._ship(table) for table in KINDS}
        return counts["ledger"]

    async def close(self) -> None:
        """Let go of the connections."""
        await asyncio.to_thread(self.warehouse.close)

    async def _ship(self, table: str) -> int:
        self._known_marks[table] = self._marks.meta(_name(table))
        mark = saved_mark = read_shipped_position(self._marks, self.warehouse, table)
        count = 0
        try:
            if mark.stream is not None and self._open_streams.get(table) != mark.stream:
                mark = saved_mark = await self._close_stream(table, mark)
            while (batch := await self._next_batch(table, mark)) is not None:
                if mark.stream is not None and mark.history != batch.history:
                    # A stream has rows of one history only, so that its count tells where it is.
                    await asyncio.to_thread(self.warehouse.close_stream, mark.stream)
                    mark = replace(mark, stream=None, offset=0)
                if batch.rows and mark.stream is None:
                    there = await self._resume_mark(table, mark, batch)
                    if there != mark:
                        mark = there
                        continue
                if batch.rows:
                    mark = await self._append(table, mark, batch)
                    count += len(batch.rows)
                mark = replace(mark, seq=batch.last, history=batch.history)
                if batch.rows:
                    saved_mark = await self._save_mark(table, mark)
            if mark != saved_mark:
                await self._save_mark(table, mark)
            if table == "ledger":
                self.shipped_seq = mark.seq
        except BaseException:
            # What came of the last append is not known: the stream is closed before the next. It
            # may have gone with its table, too.
            self._open_streams.pop(table, None)
            self._prepared = False
            raise
        return count

    async def _append(
        self, table: str, mark: ShippedPosition, batch: ShippedRowBatch
    ) -> ShippedPosition:
        """Append a batch; to a new stream where there is none."""
        warehouse, stream = self.warehouse, mark.stream
        if stream is None:
            hit_failpoint("ship.open:before")
            stream = await asyncio.to_thread(warehouse.open_stream, table)
            hit_failpoint("ship.open:after")
            # Durable before anything is in it: a row in a stream that we forgot would be doubled.
            mark = replace(mark, stream=stream, offset=0, history=batch.history)
            await self._save_mark(table, mark)
            self._open_streams[table] = stream
        rows = [row for _, row in batch.rows]
        hit_failpoint("ship.append:before")
        descriptor = self._encoders[table].descriptor
        await asyncio.to_thread(warehouse.append, stream, mark.offset, rows, descriptor)
        hit_failpoint("ship.append:after")
        return replace(mark, offset=mark.offset + len(rows), rows=mark.rows + len(rows))

    # --- where it stands --------------------------------------------------------------------

    async def _save_mark(self, table: str, mark: ShippedPosition) -> ShippedPosition:
        """Make a mark durable; not over one that another worker set since we read ours."""
        value = orjson.dumps(asdict(mark)).decode()
        was = self._known_marks[table]
        # In one commit: of two who read the same mark one goes on, and only a stream that a mark
        # names is written to.
        if not await self._marks.commands.compare_and_set_meta(_name(table), was, value):
            raise Unavailable("another worker ships the ledger", where=mark.to)
        self._known_marks[table] = value
        return mark

    async def _close_stream(self, table: str, mark: ShippedPosition) -> ShippedPosition:
        """Close the stream of a mark and move the mark to what is in the table."""
        assert mark.stream is not None
        count = await asyncio.to_thread(self.warehouse.close_stream, mark.stream)
        # One that is gone is old, or went with its table: `_resume_mark` finds out.
        if count is not None and count < mark.offset:
            what = f"{mark.to} has {count} rows of {mark.offset} that it acknowledged"
            raise BadStore(what, where="[audit]", mend="ship into a new dataset")
        if count is not None:
            mark = await self._advance(table, mark, count - mark.offset)
        return await self._save_mark(table, replace(mark, stream=None, offset=0))

    async def _resume_mark(
        self, table: str, mark: ShippedPosition, batch: ShippedRowBatch
    ) -> ShippedPosition:
        """Return the mark behind what a table has of a history; asked before a stream is opened.

        A mark that came back with a backup is behind its table, and its stream is an old one. A
        table that has nothing of us any more was made anew: then all is shipped again.
        """
        warehouse, fleet = self.warehouse, self._fleet
        count, last, digest = await asyncio.to_thread(
            warehouse.read_progress, table, fleet, batch.history
        )
        if not count:
            return ShippedPosition(mark.to) if mark.rows else mark
        while mark.seq < last:
            following = await self._next_batch(table, mark)
            if following is None:
                raise self._diverged_error(mark, f"more entries, up to {last},")
            if following.history != batch.history:
                # The rest are of entries that were lost; the views leave them out.
                return mark
            seq = min(following.last, last)
            rows = sum(1 for at, _ in following.rows if at <= seq)
            mark = replace(mark, seq=seq, history=batch.history, rows=mark.rows + rows)
        if last and not await asyncio.to_thread(self._is_same_entry, last, digest):
            raise self._diverged_error(mark, f"another entry {last}")
        return mark

    def _is_same_entry(self, seq: int, digest: str) -> bool:
        """Say whether our entry is the one that a table has, in a thread; so if it is archived."""
        reader = self._reader()
        try:
            found = reader.ledger.entries_after(seq - 1, 1)
        finally:
            reader.close()
        return not found or found[0][0] != seq or sha256_hex(found[0][1]) == digest

    def _diverged_error(self, mark: ShippedPosition, what: str) -> BadStore:
        mend = "was it put back by hand? use `vedette restore`, or ship into a new dataset"
        return BadStore(f"{mark.to} has {what} than this store", where="[audit]", mend=mend)

    async def _advance(self, table: str, mark: ShippedPosition, rows: int) -> ShippedPosition:
        """Move a mark over rows that the table has already, but not into another history."""
        while rows > 0:
            batch = await self._next_batch(table, mark)
            if batch is None:
                raise self._diverged_error(mark, f"{rows} more rows")
            if batch.history != mark.history:
                # The rows are of entries that were lost; the views leave them out.
                return mark
            some = min(rows, len(batch.rows))
            seq = batch.last if some == len(batch.rows) else batch.rows[some - 1][0]
            mark = replace(mark, seq=seq, history=batch.history, rows=mark.rows + some)
            rows -= some
        return mark

    async def _next_batch(self, table: str, mark: ShippedPosition) -> ShippedRowBatch | None:
        batch, missing = await asyncio.to_thread(self._read_batch, table, mark.seq, mark.history)
        if missing is not None:
            self.gaps.append(missing)
            del self.gaps[:-10]
        return batch

    def _read_batch(
        self, table: str, after: int, history: int
    ) -> tuple[ShippedRowBatch | None, str | None]:
        """Read and encode what comes next, in a thread; say what was archived before it."""
        reader = self._reader()
        try:
            entries = reader.ledger.entries_after(after, MAX_ROWS)
        finally:
            reader.close()
        missing = None
        if entries and entries[0][0] != after + 1:
            last = entries[0][0] - 1
            missing = f"entries {after + 1} to {last} were archived before they were shipped"
        return self._encoders[table].batch(entries, history), missing


def read_shipped_position(marks: StoreReader, warehouse: Warehouse, table: str) -> ShippedPosition:
    """Return how far a BigQuery table is; a new mark where it was never shipped to this place."""
    to = warehouse.table_id(table)
    value = marks.meta(_name(table))
    mark = None if value is None else ShippedPosition(**orjson.loads(value))
    return mark if mark is not None and mark.to == to else ShippedPosition(to)


def _name(table: str) -> str:
    return f"audit.{table}"


async def ship_ledger(
    shipper: Shipper,
    clock: Clock,
    every_us: int,
    metrics: Metrics,
    is_leader: Callable[[], bool],
    last_seq: Callable[[], int],
    report: Callable[[str], None],
) -> None:
    """Ship to BigQuery every `every_us` until cancelled; a failure is told and tried again later.

    `is_leader` says whether this worker is the one to ship, `last_seq` what the last entry is.
    """
    tries = 0
    while True:
        wait = every_us
        if is_leader():
            try:
                metrics.count("shipped", await shipper.ship())
                metrics.gauge("unshipped", last_seq() - shipper.shipped_seq)
                tries = 0
            except asyncio.CancelledError:
                # Else the loop's end waits for a query that takes long.
                asyncio.get_running_loop().run_in_executor(None, shipper.warehouse.cancel_query)
                raise
            except Exception as error:
                tries += 1
                metrics.count("ship_failures")
                report(f"the ledger is not shipped: {type(error).__name__}: {error}"[:300])
                wait = delay_us(tries, first_us=FIRST_US, last_us=LAST_US, seed="ship")
            for gap in shipper.gaps:
                report(gap)
            shipper.gaps.clear()
        await clock.sleep_until(clock.now_us() + wait)

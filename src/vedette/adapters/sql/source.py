"""A table of SQLite or PostgreSQL as a source: its new rows as events, each once.

Asked every `every` for rows in the order of a column that grows, a page at a time. Where it was
left becomes durable with the events. Rows that were seen already are dropped here, and by the
store after a restart; `marks` says why none is missed.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from itertools import islice
from pathlib import Path

import orjson

from vedette.adapters.sql.config import SqlFile
from vedette.adapters.sql.rows import RowMapper
from vedette.adapters.sql.sqlite import SqliteTable, create_file
from vedette.adapters.sql.tables import SourceRow, SourceTable, SourceUnavailable
from vedette.adapters.sql.watermark import Value, Watermark
from vedette.domain.base.backoff import delay_us
from vedette.domain.base.clock import Clock, duration_us
from vedette.domain.base.errors import BadFleet, StoreFailed, Unavailable
from vedette.domain.event import Event
from vedette.domain.ports.sources import Intake, Refused

PAGE = 500  # rows read and handed over at once
MAX_REFUSED = 1000  # refused rows that are remembered over a restart
MAX_SEEN = 100_000  # rows of one asking that are remembered
FIRST_US, LAST_US = 500_000, 60_000_000  # backoff while the database does not answer


class SqlSource:
    """New rows of one table. Events are of source `sql:NAME`; see `rows.RowMapper`.

    With `watch` it stays; without, it asks once and ends. `is_leader` says whether this worker
    still runs the fleet's sources.
    """

    def __init__(
        self,
        plan: SqlFile,
        clock: Clock,
        *,
        watch: bool = True,
        is_leader: Callable[[], bool] = lambda: True,
        max_bytes: int = 262_144,
    ) -> None:
        self.name = f"sql:{plan.name}"
        self.finite = not watch
        self._plan, self._clock, self._is_leader, self._max_bytes = (
            plan,
            clock,
            is_leader,
            max_bytes,
        )
        self._known_position: str | None = None  # the position as we know it
        self._watermark = Watermark(plan.overlap_us)
        self._floor: Value | None = None  # from where the next asking begins, as it is kept
        self._seen: dict[str, None] = {}  # the rows of the last asking, in order
        self._has_connected = False
        self._tries = 0

    async def deliver(self, intake: Intake) -> None:
        """Hand over new rows until cancelled, or once (`finite`).

        Raises BadFleet for what is wrong in the settings, AwayError where the database may answer
        later: the next call waits longer before it asks. StoreFailed if another worker leads.
        """
        while True:
            if self._tries:
                wait = delay_us(self._tries, first_us=FIRST_US, last_us=LAST_US, seed=self.name)
                await self._clock.sleep_until(self._clock.now_us() + wait)
            try:
                table = await asyncio.to_thread(self._open)
                try:
                    await self._poll(table, intake)
                except BaseException:
                    # What is durable is known by the store alone.
                    self._known_position = None
                    raise
                finally:
                    await asyncio.to_thread(table.close)
            except SourceUnavailable:
                self._tries += 1
                raise
            except BadFleet as error:
                if not self._has_connected:
                    raise
                # It was right before: somebody is at work on the database.
                self._tries += 1
                raise SourceUnavailable(str(error)) from error
            self._tries = 0
            if self.finite:
                return
            await self._clock.sleep_until(self._clock.now_us() + self._pause())

    def prepare(self) -> None:
        """Make the file of SQLite if that was asked for. Raises BadFleet."""
        if self._plan.path is not None and self._plan.create_from is not None:
            create_file(Path(self._plan.path), Path(self._plan.create_from), self.name)

    def _open(self) -> SourceTable:
        self.prepare()
        return open_table(self._plan)

    # --- one asking -------------------------------------------------------------------------

    async def _poll(self, table: SourceTable, intake: Intake) -> None:
        """Hand over what is new, in order."""
        began = self._clock.now_us()
        await self._resume(table, intake)
        mapper = RowMapper(self._plan, table.columns, max_bytes=self._max_bytes)
        floor, begin = self._watermark.floor(), self._watermark.begin
        after_row: SourceRow | None = None
        found: dict[str, None] = {}
        while True:
            self._check_leader()
            page = await asyncio.to_thread(table.page, floor, begin, after_row, PAGE)
            self._has_connected = True
            if page:
                after_row = page[-1]
                found |= await self._hand_over(mapper, page, intake)
                for name in list(islice(found, max(0, len(found) - MAX_SEEN))):
                    del found[name]
            if len(page) < PAGE:
                break
        self._seen = found
        self._watermark.finish_poll(began)
        if self._watermark.floor() != self._floor:
            # Else a restart would read everything since then once more.
            self._known_position = self._position()
            await intake.accept([], position=(self.name, self._known_position))
            self._floor = self._watermark.floor()

    async def _resume(self, table: SourceTable, intake: Intake) -> None:
        """Go on where the source was left, be it by another worker that led meanwhile."""
        position = intake.position(self.name)
        if position is not None and position == self._known_position:
            return
        self._seen = {}
        if position is not None:
            self._watermark = Watermark.from_json(orjson.loads(position), self._plan.overlap_us)
            self._known_position, self._floor = position, self._watermark.floor()
            return
        self._watermark = Watermark(self._plan.overlap_us)
        if self._plan.begin == "now":
            # Made durable at once, else rows that come before the first event would be lost with
            # a restart.
            self._watermark.begin = await asyncio.to_thread(table.last_number)
        self._known_position = self._position()
        await intake.accept([], position=(self.name, self._known_position))

    async def _hand_over(
        self, mapper: RowMapper, page: list[SourceRow], intake: Intake
    ) -> dict[str, None]:
        """Hand over the rows of a page that are new; return the names of all."""
        names = [mapper.event_id(found.id) for found in page]
        known = {*self._seen, *self._watermark.refused} & set(names)
        batch: list[Event | Refused] = []
        fresh: set[str] = set()
        refused: list[str] = []
        for name, found in zip(names, page, strict=True):
            if name in known or name in fresh:
                continue
            made = mapper.to_event(found.id, found.row)
            batch.append(made)
            fresh.add(name)
            if isinstance(made, Refused):
                refused.append(name)
        if batch:
            self._watermark.record_mark(self._clock.now_us(), page[-1].number)
            self._watermark.remember_refused((*self._watermark.refused, *refused), MAX_REFUSED)
            position = self._position()
            await intake.accept(batch, position=(self.name, position))
            self._known_position, self._floor = position, self._watermark.floor()
        return dict.fromkeys(names)

    def _pause(self) -> int:
        """Return how long to wait for the next asking."""
        every = duration_us(self._plan.every)
        # A long table that was read for the first time is read whole until a mark is old enough.
        reads_whole = self._watermark.floor() is None and len(self._seen) >= MAX_SEEN
        return max(every, self._plan.overlap_us) if reads_whole else every

    def _position(self) -> str:
        return orjson.dumps(self._watermark.to_json()).decode()

    def _check_leader(self) -> None:
        if not self._is_leader():
            raise StoreFailed("another worker leads")


def open_table(plan: SqlFile) -> SourceTable:
    """Open the table that a source `sql` reads. Raises BadFleet, SourceUnavailable."""
    if plan.path is not None:
        return SqliteTable(plan)
    from vedette.adapters.sql.postgres import PostgresTable

    return PostgresTable(plan)


async def probe(plan: SqlFile) -> str:
    """Say what a source's SQL table holds, without taking rows. Raises BadFleet and Unavailable."""

    def inspect_table() -> str:
        script = Path(plan.create_from) if plan.create_from else None
        if plan.path is not None and script is not None and not Path(plan.path).exists():
            if not script.is_file():
                raise BadFleet(f"{script} is no file", where=f"sql:{plan.name}")
            return f"will be made of {script.name}"
        table = open_table(plan)
        try:
            last, lost = table.last_number(), table.count_unplaced()
        finally:
            table.close()
        contents = "no row yet" if last is None else f"the last row is at {last}"
        if lost:
            contents += f"; {lost} rows have no {plan.id_column} or {plan.order_column}: never seen"
        return f"table {plan.table} answers, {contents}"

    try:
        return await asyncio.to_thread(inspect_table)
    except SourceUnavailable as error:
        raise Unavailable(
            str(error), where=f"sql:{plan.name}", mend="see whether it runs"
        ) from error

"""A table as a source: its new rows as events, each once.

Asked every `every` for rows in the order of a column that grows, a page at a time. Where it was
left becomes durable with the events. Rows that were seen already are dropped here, and by the
store after a restart; `marks` says why none is missed.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from itertools import islice

import orjson

from vedette.adapters.sql.rows import Maker
from vedette.adapters.sql.sqlite import SqliteTable, create
from vedette.adapters.sql.tables import AwayError, Found, Table
from vedette.adapters.sql.watermark import Marks, Value
from vedette.config.source_tables import SqlPlan
from vedette.domain.base.backoff import delay_us
from vedette.domain.base.clock import Clock
from vedette.domain.base.errors import BadFleet, StoreFailed, Unavailable
from vedette.domain.event import Event
from vedette.domain.ports import Intake, Refused

PAGE = 500  # rows read and handed over at once
REFUSED = 1000  # refused rows that are remembered over a restart
MANY = 100_000  # rows of one asking that are remembered
FIRST_US, LAST_US = 500_000, 60_000_000  # backoff while the database does not answer


class SqlSource:
    """New rows of one table. Events are of source `sql:NAME`; see `rows.Maker`.

    With `watch` it stays; without, it asks once and ends. `leads` says whether this worker still
    runs the fleet's sources.
    """

    def __init__(
        self,
        plan: SqlPlan,
        clock: Clock,
        *,
        watch: bool = True,
        leads: Callable[[], bool] = lambda: True,
        max_bytes: int = 262_144,
    ) -> None:
        self.name = f"sql:{plan.name}"
        self.finite = not watch
        self._plan, self._clock, self._leads, self._max_bytes = plan, clock, leads, max_bytes
        self._told: str | None = None  # the position as we know it
        self._marks = Marks(plan.overlap_us)
        self._floor: Value | None = None  # from where the next asking begins, as it is kept
        self._seen: dict[str, None] = {}  # the rows of the last asking, in order
        self._was_there = False
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
                    await self._ask(table, intake)
                except BaseException:
                    # What is durable is known by the store alone.
                    self._told = None
                    raise
                finally:
                    await asyncio.to_thread(table.close)
            except AwayError:
                self._tries += 1
                raise
            except BadFleet as error:
                if not self._was_there:
                    raise
                # It was right before: somebody is at work on the database.
                self._tries += 1
                raise AwayError(str(error)) from error
            self._tries = 0
            if self.finite:
                return
            await self._clock.sleep_until(self._clock.now_us() + self._pause())

    def prepare(self) -> None:
        """Make the file of SQLite if that was asked for. Raises BadFleet."""
        if self._plan.path is not None and self._plan.create_from is not None:
            create(self._plan.path, self._plan.create_from, self.name)

    def _open(self) -> Table:
        self.prepare()
        return open_table(self._plan)

    # --- one asking -------------------------------------------------------------------------

    async def _ask(self, table: Table, intake: Intake) -> None:
        """Hand over what is new, in order."""
        began = self._clock.now_us()
        await self._take_up(table, intake)
        maker = Maker(self._plan, table.columns, max_bytes=self._max_bytes)
        floor, begin = self._marks.floor(), self._marks.begin
        behind: Found | None = None
        found: dict[str, None] = {}
        while True:
            self._check_lead()
            page = await asyncio.to_thread(table.page, floor, begin, behind, PAGE)
            self._was_there = True
            if page:
                behind = page[-1]
                found |= await self._hand_over(maker, page, intake)
                for name in list(islice(found, max(0, len(found) - MANY))):
                    del found[name]
            if len(page) < PAGE:
                break
        self._seen = found
        self._marks.asked(began)
        if self._marks.floor() != self._floor:
            # Else a restart would read everything since then once more.
            self._told = self._position()
            await intake.accept([], position=(self.name, self._told))
            self._floor = self._marks.floor()

    async def _take_up(self, table: Table, intake: Intake) -> None:
        """Go on where the source was left, be it by another worker that led meanwhile."""
        told = intake.position(self.name)
        if told is not None and told == self._told:
            return
        self._seen = {}
        if told is not None:
            self._marks = Marks.of(orjson.loads(told), self._plan.overlap_us)
            self._told, self._floor = told, self._marks.floor()
            return
        self._marks = Marks(self._plan.overlap_us)
        if self._plan.begin == "now":
            # Made durable at once, else rows that come before the first event would be lost with
            # a restart.
            self._marks.begin = await asyncio.to_thread(table.last)
        self._told = self._position()
        await intake.accept([], position=(self.name, self._told))

    async def _hand_over(self, maker: Maker, page: list[Found], intake: Intake) -> dict[str, None]:
        """Hand over the rows of a page that are new; return the names of all."""
        names = [maker.event_id(found.id) for found in page]
        known = {*self._seen, *self._marks.refused} & set(names)
        batch: list[Event | Refused] = []
        fresh: set[str] = set()
        refused: list[str] = []
        for name, found in zip(names, page, strict=True):
            if name in known or name in fresh:
                continue
            made = maker.make(found.id, found.row)
            batch.append(made)
            fresh.add(name)
            if isinstance(made, Refused):
                refused.append(name)
        if batch:
            self._marks.read(self._clock.now_us(), page[-1].number)
            self._marks.told((*self._marks.refused, *refused), REFUSED)
            position = self._position()
            await intake.accept(batch, position=(self.name, position))
            self._told, self._floor = position, self._marks.floor()
        return dict.fromkeys(names)

    def _pause(self) -> int:
        """Return how long to wait for the next asking."""
        every = self._plan.every_us
        # A long table that was read for the first time is read whole until a mark is old enough.
        again = self._marks.floor() is None and len(self._seen) >= MANY
        return max(every, self._plan.overlap_us) if again else every

    def _position(self) -> str:
        return orjson.dumps(self._marks.to_json()).decode()

    def _check_lead(self) -> None:
        if not self._leads():
            raise StoreFailed("another worker leads")


def open_table(plan: SqlPlan) -> Table:
    """Open the table of a plan. Raises BadFleet, AwayError."""
    if plan.path is not None:
        return SqliteTable(plan)
    from vedette.adapters.sql.postgres import PostgresTable

    return PostgresTable(plan)


async def probe(plan: SqlPlan) -> str:
    """Say what is there, without taking anything. Raises BadFleet and Unavailable."""

    def look() -> str:
        if plan.path is not None and plan.create_from is not None and not plan.path.exists():
            if not plan.create_from.is_file():
                raise BadFleet(f"{plan.create_from} is no file", where=f"sql:{plan.name}")
            return f"will be made of {plan.create_from.name}"
        table = open_table(plan)
        try:
            last, lost = table.last(), table.without_place()
        finally:
            table.close()
        told = "no row yet" if last is None else f"the last row is at {last}"
        if lost:
            told += f"; {lost} rows have no {plan.id_column} or {plan.order_column}: never seen"
        return f"table {plan.table} answers, {told}"

    try:
        return await asyncio.to_thread(look)
    except AwayError as error:
        raise Unavailable(
            str(error), where=f"sql:{plan.name}", mend="see whether it runs"
        ) from error

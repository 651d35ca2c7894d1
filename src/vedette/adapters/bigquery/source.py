"""A BigQuery table as a source: its new rows as events, each once.

Asked every `every` for rows behind a watermark, which is the greatest instant handed over so far
and becomes durable with the events. Each asking looks back by `overlap` once more, for rows that
came late; what was seen already is dropped here, and by the store after a restart.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Mapping
from itertools import islice
from typing import TYPE_CHECKING, Any

import orjson

from vedette.adapters.bigquery.clients import may_pass, query_client
from vedette.adapters.bigquery.query import Parameter, Query, RunningError
from vedette.adapters.bigquery.rows import Maker
from vedette.adapters.bigquery.sql import AT, ROW, Place, query_text, table_name
from vedette.domain.base.backoff import delay_us
from vedette.domain.base.clock import Clock
from vedette.domain.base.errors import BadFleet, StoreFailed, VedetteError
from vedette.domain.event import Event
from vedette.domain.ports import Intake, Refused

if TYPE_CHECKING:
    from google.cloud.bigquery import Client

    from vedette.config.deployment import BigQueryPlan

PAGE = 500  # rows handed over at once
LIMIT = 20_000  # rows of one query; there may be more, asked for by the next
REFUSED = 1000  # refused rows that are remembered over a restart
FIRST_US, LAST_US = 500_000, 60_000_000  # backoff while BigQuery does not answer

LED_ELSEWHERE = "another worker leads"

Row = Mapping[str, Any]


class AwayError(Exception):
    """BigQuery did not answer; it is asked again, later each time."""


class BigQuerySource:
    """New rows of one table. Events are of source `bigquery:NAME`; see `rows.Maker` for ids.

    With `watch` it stays; without, it asks once and ends. `begin` (in the plan) says where a
    source starts that was never here before: at the present instant, or at the table's first row.
    `leads` says whether this worker still runs the fleet's sources.
    """

    def __init__(
        self,
        plan: BigQueryPlan,
        clock: Clock,
        *,
        watch: bool = True,
        leads: Callable[[], bool] = lambda: True,
        client: Callable[[], Client] | None = None,
    ) -> None:
        """`client` makes the client, in a thread. Raises BadFleet for a name that is none."""
        self.name = f"bigquery:{plan.name}"
        self.finite = not watch
        self._plan, self._clock, self._leads = plan, clock, leads
        self._made: Client | None = None
        self._make = client or (lambda: query_client(plan.project, plan.location))
        self._maker = Maker(
            self.name, table_name(plan), plan.type, plan.id_column, plan.subject_column,
            vouches=plan.vouches,
            vouched=plan.vouched,
        )  # fmt: skip
        query_text(plan, limit=LIMIT, onward=False)
        self._told: str | None = None  # the position as we know it
        self._under_way: Query | None = None  # asked, and not answered yet
        self._watermark = 0
        self._floor = 0  # rows up to here are none of ours
        self._seen: dict[str, int] = {}
        self._refused: dict[str, int] = {}
        self._tries = 0

    async def deliver(self, intake: Intake) -> None:
        """Hand over new rows until cancelled, or once (`finite`).

        Raises BadFleet for what BigQuery calls wrong, AwayError where it may answer later: the
        next call waits longer before it asks. StoreFailed if another worker leads.
        """
        while True:
            if self._tries:
                wait = delay_us(self._tries, first_us=FIRST_US, last_us=LAST_US, seed=self.name)
                await self._clock.sleep_until(self._clock.now_us() + wait)
            try:
                await self._ask(intake)
            except VedetteError:
                raise
            except asyncio.CancelledError:
                if (query := self._under_way) is not None:
                    # Not waited for: the loop's end does that.
                    asyncio.get_running_loop().run_in_executor(None, query.give_up)
                raise
            except Exception as error:
                raise self._failed(error) from error
            self._tries = 0
            if self.finite:
                return
            await self._clock.sleep_until(self._clock.now_us() + self._plan.every_us)

    def _failed(self, error: Exception) -> Exception:
        if not may_pass(error):
            what = " ".join(str(error).split())[:300]
            mend = "mend the columns in vedette.toml"
            return BadFleet(f"BigQuery refuses the query: {what}", where=self.name, mend=mend)
        self._tries += 1
        return AwayError(f"{type(error).__name__}: {error}"[:300])

    # --- one asking -------------------------------------------------------------------------

    async def _ask(self, intake: Intake) -> None:
        """Hand over what is new up to a little before now, in order."""
        self._check_lead()
        now = self._clock.now_us()
        await self._take_up(intake, now)
        if self._under_way is not None:
            # It bounds how far it goes by when it was asked first; what came since is asked now.
            await self._taken_in(intake, self._under_way)
        after, until = self._after(), now - self._plan.behind_us
        last: Place | None = None
        while True:
            count, last = await self._taken_in(intake, self._asked(after, until, last))
            if count < LIMIT:
                return

    async def _taken_in(self, intake: Intake, query: Query) -> tuple[int, Place | None]:
        """Hand over the rows of a query; return how many there were, and the last of them."""
        rows = await self._waited(query)
        count, last = 0, None
        while page := await asyncio.to_thread(_page, rows):
            count += len(page)
            await self._hand_over(intake, page)
            last = Place(page[-1][AT], page[-1][ROW])
        after = self._after()
        for known in (self._seen, self._refused):
            for name in [name for name, at in known.items() if at < after]:
                del known[name]
        return count, last

    async def _waited(self, query: Query) -> Iterator[Row]:
        """Wait for a query as long as it takes, in turns: nobody waits for the thread for long."""
        self._under_way = query
        while True:
            try:
                rows = await asyncio.to_thread(self._rows, query)
            except RunningError:
                if self._leads():
                    continue
                self._under_way = None
                await asyncio.to_thread(query.cancel)
                raise StoreFailed(LED_ELSEWHERE) from None
            except Exception:
                if query.over:
                    self._under_way = None
                raise
            else:
                self._under_way = None
                return rows

    def _after(self) -> int:
        """Return the instant behind which rows are asked for."""
        # APPENDS goes by the instant of the commit, so nothing comes late.
        overlap = 0 if self._plan.method == "appends" else self._plan.overlap_us
        return max(self._watermark - overlap, self._floor)

    def _check_lead(self) -> None:
        if not self._leads():
            raise StoreFailed(LED_ELSEWHERE)

    async def _take_up(self, intake: Intake, now: int) -> None:
        """Go on where the source was left, be it by another worker that led meanwhile.

        If it never was anywhere, make durable where it starts: else rows that came before the
        first event would be lost with a restart.
        """
        told = intake.position(self.name)
        if told is not None and told == self._told:
            return
        self._seen, self._refused, self._under_way = {}, {}, None
        if told is None:
            self._floor = 0 if self._plan.begin == "start" else now - self._plan.behind_us
            told = self._position(self._floor, {})
            await intake.accept([], position=(self.name, told))
        value = orjson.loads(told)
        self._watermark, self._floor = value["at"], value["from"]
        self._refused = value["refused"]
        self._told = told

    async def _hand_over(self, intake: Intake, page: list[Row]) -> None:
        self._check_lead()
        fresh: dict[str, int] = {}
        refused: dict[str, int] = {}
        batch: list[Event | Refused] = []
        for row in page:
            name, at = self._maker.event_id(row), int(row[AT])
            if name in self._seen or name in self._refused or name in fresh:
                continue
            made = self._maker.make(row)
            batch.append(made)
            fresh[name] = at
            if isinstance(made, Refused):
                refused[name] = at
        if not batch:
            return
        watermark = max(self._watermark, *fresh.values())
        told = dict(list({**self._refused, **refused}.items())[-REFUSED:])
        position = self._position(watermark, told)
        await intake.accept(batch, position=(self.name, position))
        self._watermark, self._refused, self._told = watermark, told, position
        self._seen |= fresh

    def _position(self, at_us: int, refused: Mapping[str, int]) -> str:
        """Return the watermark as it is kept, with the refused rows that are looked at again.

        A refusal has no event by which the store would know it.
        """
        value = {"at": at_us, "from": self._floor, "refused": dict(refused)}
        return orjson.dumps(value).decode()

    # --- queries ----------------------------------------------------------------------------

    def _asked(self, after: int, until: int, last: Place | None) -> Query:
        """Return the query for rows in order, from an instant on or behind a place."""
        text = query_text(self._plan, limit=LIMIT, onward=last is not None)
        given: list[Parameter] = [("after", "INT64", after), ("until", "INT64", until)]
        if last is not None:
            given = [("until", "INT64", until), ("last", "INT64", last.at_us)]
            given.append(("row", "STRING", last.row))
        return Query(text, given, location=self._plan.location)

    def _rows(self, query: Query) -> Iterator[Row]:
        """Wait for a query, in a thread; what is returned fetches its rows page by page."""
        if self._made is None:
            self._made = self._make()
        return query.rows(self._made, page_size=PAGE)


def _page(rows: Iterator[Row]) -> list[Row]:
    return list(islice(rows, PAGE))

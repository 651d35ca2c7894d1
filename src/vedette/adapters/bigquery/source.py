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

from vedette.adapters.bigquery.clients import is_transient, query_client
from vedette.adapters.bigquery.config import BigQueryFile
from vedette.adapters.bigquery.query import Parameter, Query, QueryPendingError
from vedette.adapters.bigquery.rows import RowMapper
from vedette.adapters.bigquery.sql import (
    AT_COLUMN,
    ROW_COLUMN,
    RowPosition,
    build_query,
    table_name,
)
from vedette.domain.base.backoff import delay_us
from vedette.domain.base.clock import Clock, duration_us
from vedette.domain.base.errors import BadFleet, StoreFailed, VedetteError
from vedette.domain.event import Event
from vedette.domain.ports.sources import Intake, Refused

if TYPE_CHECKING:
    from google.cloud.bigquery import Client

PAGE = 500  # rows handed over at once
LIMIT = 20_000  # rows of one query; there may be more, asked for by the next
MAX_REFUSED = 1000  # refused rows that are remembered over a restart
FIRST_US, LAST_US = 500_000, 60_000_000  # backoff while BigQuery does not answer

NOT_LEADER = "another worker leads"

Row = Mapping[str, Any]


class SourceUnavailable(Exception):
    """BigQuery did not answer; it is asked again, later each time."""


class BigQuerySource:
    """New rows of one table. Events are of source `bigquery:NAME`; see `rows.RowMapper` for ids.

    With `watch` it stays; without, it asks once and ends. `begin` (in the plan) says where a
    source starts that was never here before: at the present instant, or at the table's first row.
    `is_leader` says whether this worker still runs the fleet's sources.
    """

    def __init__(
        self,
        plan: BigQueryFile,
        clock: Clock,
        *,
        watch: bool = True,
        is_leader: Callable[[], bool] = lambda: True,
        client: Callable[[], Client] | None = None,
    ) -> None:
        """`client` makes the client, in a thread. Raises BadFleet for a name that is none."""
        self.name = f"bigquery:{plan.name}"
        self.finite = not watch
        self._plan, self._clock, self._is_leader = plan, clock, is_leader
        self._behind_us = duration_us(plan.behind)
        self._client: Client | None = None
        self._open_client = client or (lambda: query_client(plan.project, plan.location))
        self._mapper = RowMapper(
            self.name, table_name(plan), plan.type, plan.id_column, plan.subject_column,
            vouches=plan.vouches,
            vouched=plan.vouched,
        )  # fmt: skip
        build_query(plan, limit=LIMIT, after_row=False)
        self._known_position: str | None = None  # the position as we know it
        self._pending_query: Query | None = None  # asked, and not answered yet
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
                await self._poll(intake)
            except VedetteError:
                raise
            except asyncio.CancelledError:
                if (query := self._pending_query) is not None:
                    # Not waited for: the loop's end does that.
                    asyncio.get_running_loop().run_in_executor(None, query.request_cancel)
                raise
            except Exception as error:
                raise self._classify_error(error) from error
            self._tries = 0
            if self.finite:
                return
            await self._clock.sleep_until(self._clock.now_us() + duration_us(self._plan.every))

    def _classify_error(self, error: Exception) -> Exception:
        if not is_transient(error):
            what = " ".join(str(error).split())[:300]
            mend = "mend the columns in vedette.toml"
            return BadFleet(f"BigQuery refuses the query: {what}", where=self.name, mend=mend)
        self._tries += 1
        return SourceUnavailable(f"{type(error).__name__}: {error}"[:300])

    # --- one asking -------------------------------------------------------------------------

    async def _poll(self, intake: Intake) -> None:
        """Hand over what is new up to a little before now, in order."""
        self._check_leader()
        now = self._clock.now_us()
        await self._resume(intake, now)
        if self._pending_query is not None:
            # It bounds how far it goes by when it was asked first; what came since is asked now.
            await self._deliver_rows(intake, self._pending_query)
        after, until = self._lower_bound_us(), now - self._behind_us
        last: RowPosition | None = None
        while True:
            count, last = await self._deliver_rows(intake, self._build_query(after, until, last))
            if count < LIMIT:
                return

    async def _deliver_rows(self, intake: Intake, query: Query) -> tuple[int, RowPosition | None]:
        """Hand over the rows of a query; return how many there were, and the last of them."""
        rows = await self._await_rows(query)
        count, last = 0, None
        while page := await asyncio.to_thread(_page, rows):
            count += len(page)
            await self._hand_over(intake, page)
            last = RowPosition(page[-1][AT_COLUMN], page[-1][ROW_COLUMN])
        after = self._lower_bound_us()
        for known in (self._seen, self._refused):
            for name in [name for name, at in known.items() if at < after]:
                del known[name]
        return count, last

    async def _await_rows(self, query: Query) -> Iterator[Row]:
        """Wait for a query as long as it takes, in turns: nobody waits for the thread for long."""
        self._pending_query = query
        while True:
            try:
                rows = await asyncio.to_thread(self._rows, query)
            except QueryPendingError:
                if self._is_leader():
                    continue
                self._pending_query = None
                await asyncio.to_thread(query.cancel_job)
                raise StoreFailed(NOT_LEADER) from None
            except Exception:
                if query.failed:
                    self._pending_query = None
                raise
            else:
                self._pending_query = None
                return rows

    def _lower_bound_us(self) -> int:
        """Return the instant behind which rows are asked for."""
        # APPENDS goes by the instant of the commit, so nothing comes late.
        overlap = 0 if self._plan.method == "appends" else duration_us(self._plan.overlap)
        return max(self._watermark - overlap, self._floor)

    def _check_leader(self) -> None:
        if not self._is_leader():
            raise StoreFailed(NOT_LEADER)

    async def _resume(self, intake: Intake, now: int) -> None:
        """Go on where the source was left, be it by another worker that led meanwhile.

        If it never was anywhere, make durable where it starts: else rows that came before the
        first event would be lost with a restart.
        """
        position = intake.position(self.name)
        if position is not None and position == self._known_position:
            return
        self._seen, self._refused, self._pending_query = {}, {}, None
        if position is None:
            self._floor = 0 if self._plan.begin == "start" else now - self._behind_us
            position = self._position(self._floor, {})
            await intake.accept([], position=(self.name, position))
        value = orjson.loads(position)
        self._watermark, self._floor = value["at"], value["from"]
        self._refused = value["refused"]
        self._known_position = position

    async def _hand_over(self, intake: Intake, page: list[Row]) -> None:
        self._check_leader()
        fresh: dict[str, int] = {}
        refused: dict[str, int] = {}
        batch: list[Event | Refused] = []
        for row in page:
            name, at = self._mapper.event_id(row), int(row[AT_COLUMN])
            if name in self._seen or name in self._refused or name in fresh:
                continue
            made = self._mapper.to_event(row)
            batch.append(made)
            fresh[name] = at
            if isinstance(made, Refused):
                refused[name] = at
        if not batch:
            return
        watermark = max(self._watermark, *fresh.values())
        remembered = dict(list({**self._refused, **refused}.items())[-MAX_REFUSED:])
        position = self._position(watermark, remembered)
        await intake.accept(batch, position=(self.name, position))
        self._watermark, self._refused, self._known_position = watermark, remembered, position
        self._seen |= fresh

    def _position(self, at_us: int, refused: Mapping[str, int]) -> str:
        """Return the watermark as it is kept, with the refused rows that are looked at again.

        A refusal has no event by which the store would know it.
        """
        value = {"at": at_us, "from": self._floor, "refused": dict(refused)}
        return orjson.dumps(value).decode()

    # --- queries ----------------------------------------------------------------------------

    def _build_query(self, after: int, until: int, last: RowPosition | None) -> Query:
        """Return the query for rows in order, from an instant on or behind a place."""
        text = build_query(self._plan, limit=LIMIT, after_row=last is not None)
        given: list[Parameter] = [("after", "INT64", after), ("until", "INT64", until)]
        if last is not None:
            given = [("until", "INT64", until), ("last", "INT64", last.at_us)]
            given.append(("row", "STRING", last.row))
        return Query(text, given, location=self._plan.location)

    def _rows(self, query: Query) -> Iterator[Row]:
        """Wait for a query, in a thread; what is returned fetches its rows page by page."""
        if self._client is None:
            self._client = self._open_client()
        return query.rows(self._client, page_size=PAGE)


def _page(rows: Iterator[Row]) -> list[Row]:
    return list(islice(rows, PAGE))

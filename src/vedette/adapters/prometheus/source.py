"""Prometheus as a source: the points of its queries, each once and without a gap.

Each query is asked for its steps in order, up to the last one that is over and `delay` old: by then
its samples have come. Where a query is becomes durable with its points, so a fleet that stood still
asks for what it missed. A step without a sample is no event: that is how staleness looks.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import orjson

from vedette.adapters.prometheus.client import Client, SourceUnavailable
from vedette.adapters.prometheus.config import PrometheusFile, QueryFile
from vedette.adapters.prometheus.series import (
    choose_series,
    cut_series_after,
    index_series,
    series_points,
)
from vedette.domain.base.backoff import delay_us
from vedette.domain.base.clock import MICROS, Clock, duration_us
from vedette.domain.base.errors import BadFleet, StoreFailed, Unavailable
from vedette.domain.ports.reasoner import Metrics
from vedette.domain.ports.sources import Intake

POINTS = 5_000  # of one asking, about
STEPS = 1_000  # of one asking, at most
FIRST_US, LAST_US = 500_000, 60_000_000  # backoff while Prometheus does not answer


class PrometheusSource:
    """Points of one server. Events are `metric.point` of source `prometheus:NAME`.

    With `watch` it stays; without, it asks once and ends. `is_leader` says whether this worker
    still runs the fleet's sources.
    """

    def __init__(
        self,
        plan: PrometheusFile,
        clock: Clock,
        metrics: Metrics,
        *,
        watch: bool = True,
        is_leader: Callable[[], bool] = lambda: True,
    ) -> None:
        self.name = f"prometheus:{plan.name}"
        self.finite = not watch
        self._plan, self._clock, self._metrics, self._is_leader = plan, clock, metrics, is_leader
        self._client = Client(plan)
        self._delay_us = duration_us(plan.delay)
        self._known_series: dict[str, list[str]] = {query.name: [] for query in plan.queries}
        self._answered_queries: set[str] = set()
        self._tries = 0

    async def deliver(self, intake: Intake) -> None:
        """Hand over points until cancelled, or once (`finite`).

        Raises BadFleet for what is wrong in the settings, AwayError where Prometheus may answer
        later: the next call waits longer before it asks. StoreFailed if another worker leads.
        """
        while True:
            if self._tries:
                wait = delay_us(self._tries, first_us=FIRST_US, last_us=LAST_US, seed=self.name)
                await self._clock.sleep_until(self._clock.now_us() + wait)
            away: SourceUnavailable | None = None
            for query in self._plan.queries:
                # One that cannot be answered now keeps none of the others waiting.
                try:
                    await self._catch_up(query, intake)
                except SourceUnavailable as error:
                    away = away or error
                except BadFleet as error:
                    if query.name not in self._answered_queries:
                        raise
                    away = away or SourceUnavailable(str(error))
            if away is not None:
                self._tries += 1
                raise away
            self._tries = 0
            if self.finite:
                return
            await self._clock.sleep_until(self._next_poll_us(intake))

    # --- one query --------------------------------------------------------------------------

    async def _catch_up(self, query: QueryFile, intake: Intake) -> None:
        """Hand over the steps of a query that are over."""
        step, position_name = query.step_s, f"{self.name}/{query.name}"
        last = self._last_complete_step(step)
        at = self._position(position_name, intake)
        if at is None:
            lookback_s = duration_us(self._plan.lookback) // MICROS
            at = last - lookback_s // step * step
            await intake.accept([], position=(position_name, _format_position(at)))
        # Steps lie on whole multiples of the step, whatever it was when we stopped.
        at = at // step * step
        while at < last:
            if not self._is_leader():
                raise StoreFailed("another worker leads")
            many = max(
                1, min(STEPS, POINTS // (len(self._known_series[query.name]) or self._plan.most))
            )
            end = min(last, at + many * step)
            at = await self._hand_over(query, at + step, end, position_name, intake)
            if at < end:
                return

    async def _hand_over(
        self, query: QueryFile, start: int, end: int, position_name: str, intake: Intake
    ) -> int:
        """Hand over the points of some steps; return the last step that was taken."""
        step = query.step_s
        result, date = await asyncio.to_thread(
            self._client.query_range, query.expr, start, end, step
        )
        there = index_series(query.name, result, self.name)
        self._answered_queries.add(query.name)
        if date is not None:
            # By the server's own clock a step may not be over yet where ours is ahead of it.
            end = min(end, (date - self._delay_us // MICROS) // step * step)
            if end < start:
                return start - step
        series = cut_series_after(there, end)
        chosen = choose_series(self._known_series[query.name], list(series), self._plan.most)
        events, skipped = series_points(
            self.name, {name: series[name] for name in chosen}, self._plan.vouched
        )
        skipped["most"] += len(series) - len(chosen)
        await intake.accept(events, position=(position_name, _format_position(end)))
        missing = [name for name in self._known_series[query.name] if name not in series]
        self._known_series[query.name] = (chosen + missing)[: self._plan.most]
        for why, count in skipped.items():
            if count:
                self._metrics.count("prometheus_skipped", count, source=self._plan.name, why=why)
        return end

    def _last_complete_step(self, step: int) -> int:
        """Return the last step that is over and old enough, in seconds since the epoch."""
        return (self._clock.now_us() - self._delay_us) // MICROS // step * step

    def _position(self, position_name: str, intake: Intake) -> int | None:
        text = intake.position(position_name)
        return None if text is None else int(orjson.loads(text)["at"])

    def _next_poll_us(self, intake: Intake) -> int:
        """Return when there is something to ask for again."""
        now = self._clock.now_us()
        if self._plan.every is not None:
            return now + duration_us(self._plan.every)
        steps = [query.step_s for query in self._plan.queries]
        over = ((self._last_complete_step(step) + step) * MICROS for step in steps)
        return max(now + 1, min(over) + self._delay_us)


def _format_position(at_s: int) -> str:
    return orjson.dumps({"version": 1, "at": at_s}).decode()


async def probe(plan: PrometheusFile) -> str:
    """Ask Prometheus for the present series of each query. Raises BadFleet and Unavailable."""

    def query_series() -> str:
        client, counts = Client(plan), []
        for query in plan.queries:
            data = client.fetch_data("/api/v1/query", {"query": query.expr})
            result = data.get("result")
            count = len(result) if data.get("resultType") == "vector" and result else 0
            counts.append(f"{query.name} {count} series" + (" (too many)" * (count > plan.most)))
        return f"Prometheus answers: {', '.join(counts)}"

    try:
        return await asyncio.to_thread(query_series)
    except SourceUnavailable as error:
        raise Unavailable(
            str(error), where=f"prometheus:{plan.name}", mend="see whether it runs"
        ) from error

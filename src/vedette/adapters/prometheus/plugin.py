"""The source `prometheus`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from vedette.adapters.prometheus.config import PrometheusFile
from vedette.config.secret_reference import secret_keys
from vedette.domain.base.clock import MICROS, duration_us
from vedette.domain.base.urls import carries_secrets, parse_url
from vedette.domain.ports.plugin import SourceContext, SourcePlugin, TableContext, TableProblem

if TYPE_CHECKING:
    from vedette.domain.ports.sources import Source


class PrometheusPlugin(SourcePlugin):
    """Points of a Prometheus server."""

    table = PrometheusFile

    def problems(self, table: PrometheusFile, context: TableContext) -> Iterator[TableProblem]:
        """Yield what is wrong beyond the shape."""
        parts, tokens = parse_url(table.url), secret_keys(vars(table), "token")
        if parts is None or parts.query or parts.fragment:
            yield ("url",), "is no URL of a server", "write http://HOST:9090"
        elif parts.username or parts.password:
            what = "a secret does not stand in a file of the fleet"
            yield ("url",), what, "write token_env = and take it out of the URL"
        elif tokens and not carries_secrets(parts):
            yield ("url",), "a token is not sent over plain HTTP", "use https"
        if len(tokens) > 1:
            yield (), "has more than one token", "leave one of _env, _file and _secret"
        seen: set[str] = set()
        for index, query in enumerate(table.queries):
            if query.name in seen:
                what = f"{query.name!r} is the name of another query already"
                yield ("queries", index, "name"), what, "give it its own name"
            seen.add(query.name)
            if duration_us(query.step) % MICROS:
                what = "is no whole number of seconds"
                yield ("queries", index, "step"), what, "write for example 30s"

    def build(self, plan: PrometheusFile, context: SourceContext) -> Source:
        """Make the source."""
        from vedette.adapters.prometheus.source import PrometheusSource

        return PrometheusSource(
            plan, context.clock, context.metrics, watch=context.watch, is_leader=context.leads
        )

    async def probe(self, plan: PrometheusFile) -> str:
        """Ask the server."""
        from vedette.adapters.prometheus.source import probe

        return await probe(plan)


PROMETHEUS = PrometheusPlugin()

"""The target `http`: a server that tools with `http:` make requests to."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from vedette.adapters.http.template import header_problem
from vedette.config.secret_reference import secret_names
from vedette.domain.base.urls import carries_secrets, parse_url
from vedette.domain.ports.plugin import TableProblem, TargetPlugin


class HttpTarget(TargetPlugin):
    """The target `http`: a server outside that tools make requests to."""

    required = ("base_url",)

    def problems(
        self, table: Mapping[str, Any], targets: Mapping[str, Mapping[str, Any]]
    ) -> Iterator[TableProblem]:
        """Yield what is wrong beyond its URL."""
        parts = parse_url(str(table.get("base_url", "")))
        if parts is None:
            return  # said of the URL itself
        if parts.query or parts.fragment:
            yield ("base_url",), "has more than a path", "end it before ? and #"
        if "private" in table and not isinstance(table["private"], bool):
            yield ("private",), "must be true or false", "write private = true"
        if "token" in secret_names(table) and not carries_secrets(parts):
            yield ("base_url",), "a token is not sent over plain HTTP", "write https"
        named = table.get("token_header")
        if named is not None:
            why = header_problem(named) if isinstance(named, str) else "is no name of a header"
            if why is not None:
                yield ("token_header",), f"{named!r} {why}", "write for example X-Api-Key"

    async def probe(self, table: Mapping[str, Any]) -> str:
        """Connect, TLS included, and send nothing. Raises Unavailable."""
        import asyncio

        from vedette.adapters.http.request import probe_endpoint

        return await asyncio.to_thread(probe_endpoint, table)


HTTP = HttpTarget()

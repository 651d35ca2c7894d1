"""Declarative HTTP tools: requests of agent.yaml, made by the engine itself."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from vedette.domain.base import machine

if TYPE_CHECKING:
    from vedette.domain.agent import Fleet
    from vedette.domain.ports.reasoner import ToolExecutor

__all__ = ["probe", "with_http"]


def with_http(fleet: Fleet, tools: ToolExecutor) -> ToolExecutor:
    """Return hands that make the requests of HTTP tools; the same if no agent has one."""
    if all(tool.http is None for agent in fleet.agents.values() for tool in agent.tools.values()):
        return tools
    from vedette.adapters.http.tools import HttpTools

    return HttpTools(tools)


async def probe(target: Mapping[str, Any]) -> str:
    """Connect to a target, TLS included, and send nothing. Raises Unavailable."""
    import asyncio

    from vedette.adapters.http.request import SendFailure, open_connection, parse_endpoint
    from vedette.domain.base.errors import Unavailable

    def connect_target() -> str:
        try:
            endpoint = parse_endpoint(target)
            open_connection(endpoint, machine.monotonic_s() + 5.0).close()
        except SendFailure as error:
            raise Unavailable(str(error), mend="see base_url in vedette.toml") from error
        return f"{endpoint.host}:{endpoint.port} takes connections; nothing was sent"

    return await asyncio.to_thread(connect_target)

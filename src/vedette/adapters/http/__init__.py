"""Declarative HTTP tools: requests of agent.yaml, made by the engine itself."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from vedette.domain.agent import Fleet
    from vedette.domain.ports.reasoner import ToolExecutor

__all__ = ["with_http"]


def with_http(fleet: Fleet, tools: ToolExecutor) -> ToolExecutor:
    """Return hands that make the requests of HTTP tools; the same if no agent has one."""
    if all(tool.http is None for agent in fleet.agents.values() for tool in agent.tools.values()):
        return tools
    from vedette.adapters.http.tools import HttpTools

    return HttpTools(tools)

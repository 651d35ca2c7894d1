"""A look at whether servers offer the tools that agents declare: at each start, and hourly."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any

from vedette.app.workers import box_settings
from vedette.config.reach import target_plugin
from vedette.domain.base.clock import MICROS

if TYPE_CHECKING:
    from vedette.config.settings import Settings
    from vedette.domain.agent import Agent
    from vedette.domain.base.clock import Clock
    from vedette.domain.tool import Tool

PERIOD_US = 3_600 * MICROS


def tools_of_target(name: str, agents: Iterable[Agent]) -> list[tuple[str, Tool]]:
    """Return the tools that name a target, each behind its agent's name."""
    return [
        (agent.name, tool)
        for agent in agents
        for tool in agent.tools.values()
        if tool.target == name
    ]


def pinning_targets(settings: Settings) -> list[str]:
    """Return the targets whose tools may change, and are pinned."""
    return [name for name, table in settings.targets.items() if target_plugin(table).pins_tools]


async def watch_pinned_tools(
    settings: Settings, agents: Mapping[str, Agent], clock: Clock, trouble: Callable[[str], None]
) -> None:
    """Tell `trouble`, at the start and each hour, of servers that offer other tools than were
    declared, or are away; of each state once.

    Nothing waits for it: each call of such a tool is refused by itself.
    """
    told: dict[str, str] = {}
    while True:
        for name in pinning_targets(settings):
            tools = tools_of_target(name, agents.values())
            if not tools:
                continue
            found = await _look(settings, name, tools)
            if found and told.get(name) != found:
                trouble(found)
            told[name] = found
        await clock.sleep_until(clock.now_us() + PERIOD_US)


async def _look(settings: Settings, name: str, tools: list[tuple[str, Tool]]) -> str:
    table: Mapping[str, Any] = settings.targets[name]
    try:
        probe = target_plugin(table).probe_with(table, tools, box_settings(settings))
        if probe is not None:
            await probe
    except Exception as error:  # no look at a server ends a fleet
        return f"target {name}: {error}"
    return ""

"""Stops: the whole fleet, one agent, or one tool; in force before they are answered."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from vedette.errors import BadCommand


@dataclass(slots=True)
class Stops:
    """What is stopped. `epoch` grows with every change; older steps are refused."""

    epoch: int = 0
    _set: set[tuple[str, str]] = field(default_factory=set)

    def restore(self, epoch: int, stops: Iterable[tuple[str, str]]) -> None:
        """Take over what the store knows."""
        self.epoch, self._set = epoch, set(stops)

    def agent(self, agent: str) -> bool:
        """Say whether an agent may not start anything."""
        return ("all", "") in self._set or ("agent", agent) in self._set

    def tool(self, agent: str, tool: str) -> bool:
        """Say whether an action of this agent with this tool may not start."""
        return self.agent(agent) or ("tool", tool) in self._set

    def listed(self) -> list[tuple[str, str]]:
        """Return what is stopped, sorted."""
        return sorted(self._set)


def scope_of(agent: str | None, tool: str | None, everything: bool) -> tuple[str, str]:
    """Return the (scope, name) a person means. Raises BadCommand unless it is exactly one."""
    if sum((agent is not None, tool is not None, everything)) != 1:
        raise BadCommand("say what to stop", mend="give an agent, or --tool NAME, or --all")
    if everything:
        return "all", ""
    return ("agent", agent) if agent is not None else ("tool", tool or "")

"""Stops: the whole fleet, one agent, or one tool; in force before they are answered."""

from __future__ import annotations

from collections.abc import Iterable

from msgspec import Struct, field

from vedette.domain.base.errors import BadCommand
from vedette.domain.entry import Draft

StopScope = tuple[str, str]


class Stop(Struct, frozen=True):
    """One stop in force: (scope, name) with scope all, agent or tool, and the seq of its entry.

    `until_us` is when it lifts itself, 0 for never.
    """

    scope: str
    name: str
    seq: int = 0
    until_us: int = 0


class UnrecordedStop(Struct, frozen=True):
    """A stop that holds in this process and could not be made durable: what is to be written.

    `why` says what was in the way, `at_us` when it was ordered.
    """

    draft: Draft
    command: str | None
    why: str
    at_us: int


class StopState(Struct):
    """The state of all stops. `epoch` grows with every change; older steps are refused.

    `timed_stops` are those that lift themselves. A stop is *pending* between its announcement and
    its commit: no call that it concerns is permitted any more, but decisions see it only after the
    commit. `unrecorded` are stops that could not be committed yet; decisions see those.
    `last_lift_seq` is the last entry that lifted a stop as far as this process has heard.
    """

    epoch: int = 0
    last_lift_seq: int = 0
    timed_stops: list[Stop] = field(default_factory=list)
    unrecorded: dict[StopScope, UnrecordedStop] = field(default_factory=dict)
    _active: set[StopScope] = field(default_factory=set)
    _paused: dict[str, set[str]] = field(default_factory=dict)
    _pending: list[StopScope] = field(default_factory=list)

    def restore(self, epoch: int, stops: Iterable[StopScope]) -> None:
        """Take over what the store knows."""
        self.epoch, self._active = epoch, set(stops)

    def is_agent_stopped(self, agent: str) -> bool:
        """Say whether an agent may not begin a run or a turn here."""
        return agent in self._paused or self._is_stopped(agent)

    def _is_stopped(self, agent: str) -> bool:
        if not (self._active or self.unrecorded):
            return False
        scopes = (("all", ""), ("agent", agent))
        return any(scope in self._active or scope in self.unrecorded for scope in scopes)

    def pause(self, agent: str, cause: str) -> None:
        """Have an agent begin nothing in this process; what was begun is seen through.

        It is no stop: nobody ordered it, no decision tells of it, and no other worker heeds it. It
        lasts until each `cause` of it is gone.
        """
        self._paused.setdefault(agent, set()).add(cause)

    def unpause(self, agent: str, cause: str) -> None:
        """End a pause that has this cause."""
        causes = self._paused.get(agent, set())
        causes.discard(cause)
        if not causes:
            self._paused.pop(agent, None)

    def is_tool_stopped(self, agent: str, tool: str) -> bool:
        """Say whether an action of this agent with this tool may not start."""
        one = ("tool", tool)
        return self._is_stopped(agent) or one in self._active or one in self.unrecorded

    def stopped_among(self, agents: Iterable[str]) -> list[str]:
        """Return those of some agents that may not begin a run or a turn here."""
        return [agent for agent in agents if self.is_agent_stopped(agent)]

    def bars_call(self, agent: str, tool: str) -> bool:
        """Say whether no call of this agent with this tool may start."""
        return self.is_tool_stopped(agent, tool) or self.is_stop_pending(agent, tool)

    def is_stop_pending(self, agent: str, tool: str) -> bool:
        """Say whether a stop that concerns such an action is on its way to the store."""
        scopes = (("all", ""), ("agent", agent), ("tool", tool))
        return bool(self._pending) and any(scope in self._pending for scope in scopes)

    def announce(self, scope: StopScope) -> None:
        """Make a stop pending; `withdraw` follows, whatever happens."""
        self._pending.append(scope)

    def withdraw(self, scope: StopScope) -> None:
        """End one announcement: the stop is durable, or could not be made so."""
        self._pending.remove(scope)

    def list_scopes(self) -> list[StopScope]:
        """Return what is stopped, sorted; what could not be recorded yet, too."""
        return sorted(self._active | self.unrecorded.keys())


def scope_of(agent: str | None, tool: str | None, everything: bool) -> StopScope:
    """Return the (scope, name) of the stop a person means. Raises BadCommand unless it is one."""
    if sum((agent is not None, tool is not None, everything)) != 1:
        raise BadCommand("say what to stop", mend="give an agent, or --tool NAME, or --all")
    if everything:
        return "all", ""
    return ("agent", agent) if agent is not None else ("tool", tool or "")

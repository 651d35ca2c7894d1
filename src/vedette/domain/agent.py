"""An Agent as declared, and the Fleet that `match` asks."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from msgspec import Struct, field

from vedette.domain.budget import Budget
from vedette.domain.event import DATA, UNDO_ACTION, Event
from vedette.domain.identity import Identity
from vedette.domain.rate_limit import RateLimits
from vedette.domain.readers import Readers
from vedette.domain.tool import Tool
from vedette.domain.trigger import TICK_TYPE, UNDO_TRIGGER, UNDO_TYPE, Schedule, Subscription

Mode = Literal["observe", "ask", "act"]


class MemoryScope(Struct, frozen=True):
    """A memory scope that an agent asks to read: in which bank, on which topics.

    `readers` are those who may read what is remembered there.
    """

    bank: str
    scope: str
    topics: tuple[str, ...] = ()
    limit: int = 4
    readers: Readers = None


class ResourceLimits(Struct, frozen=True):
    """What an agent's own code may take: the time of one judgement, the bytes of one process."""

    time_us: int = 5_000_000
    memory: int = 512 * 1024 * 1024


class Agent(Struct, frozen=True):
    """A specialist: its charter is reviewed content, `release` is the digest of its folder.

    `order_by` is the event attribute whose value is the key: events of one key are handled in
    order. `collection` is where the agent's transactional tools keep rows, one per key.
    `reasoner` names what reasons for it (a plugin of `vedette.reasoners`), `asks_model` says that
    its turns may make model calls.
    """

    name: str
    identity: Identity
    title: str
    owner: str
    release: str
    folder: str
    instruction: str
    charter: Mapping[str, Any]
    subscriptions: tuple[Subscription, ...]
    schedules: tuple[Schedule, ...]
    tools: Mapping[str, Tool]
    scopes: tuple[MemoryScope, ...]
    budget: Budget
    requested_mode: Mode
    order_by: Literal["subject", "id", "source"] = "subject"
    collection: str | None = None
    reasoner: str = "judge"
    max_turns: int = 1
    rate_limits: RateLimits = field(default_factory=RateLimits)
    limits: ResourceLimits = field(default_factory=ResourceLimits)
    asks_model: bool = False

    @property
    def has_judge(self) -> bool:
        """Say whether its own judge.py reasons for it: made of memories, and of nothing else."""
        return self.reasoner == "judge"

    def key_of(self, event: Event) -> str:
        """Return the key under which this agent orders the event.

        What takes an effect back belongs to the key that the effect belonged to.
        """
        if event.type == UNDO_TYPE and isinstance(event.data, Mapping):
            return str(event.data.get("key") or "")
        return getattr(event, self.order_by) or ""

    def trigger_of(self, event: Event) -> str:
        """Return the name of the trigger that an event of this agent's wakes it by.

        It is the first that matches; "" if none does, as after a change of agent.yaml.
        """
        if event.type == UNDO_TYPE:
            return UNDO_TRIGGER if UNDO_ACTION in event.vouched else ""
        if event.type == TICK_TYPE:
            # The engine makes ticks, and vouches for the name of the schedule.
            mine = DATA in event.vouched
            return next((s.name for s in self.schedules if mine and s.name == event.subject), "")
        return next(
            (s.trigger_name for s in self.subscriptions if s.find_mismatch(event) is None), ""
        )


class Match(Struct, frozen=True):
    """Why one agent wakes on one event, or why it does not."""

    agent: str
    wakes: bool
    why: str


class Fleet(Struct, frozen=True):
    """All agents of one store, by name. Belongs to the event loop once it runs."""

    name: str
    agents: dict[str, Agent]
    max_hops: int = 8
    _match_cache: dict[tuple[str, str, str | None], tuple[str, ...]] = field(default_factory=dict)

    def replace(self, agent: Agent) -> None:
        """Put another release of an agent in the place of the one there is."""
        self.agents[agent.name] = agent
        self._match_cache.clear()

    def match(self, event: Event) -> list[Match]:
        """Say for every agent whether the event wakes it, and why. A pure function."""
        return [self._match_one(agent, event) for agent in self.agents.values()]

    def matching_agents(self, event: Event) -> tuple[str, ...]:
        """Return the names of the agents that the event wakes."""
        if event.lineage or event.hops or event.type in (TICK_TYPE, UNDO_TYPE):
            return tuple(match.agent for match in self.match(event) if match.wakes)
        known = (event.type, event.source, event.subject)
        found = self._match_cache.get(known)
        if found is None:
            found = tuple(match.agent for match in self.match(event) if match.wakes)
            if len(self._match_cache) < 65536:
                self._match_cache[known] = found
        return found

    def _match_one(self, agent: Agent, event: Event) -> Match:
        if agent.name in event.lineage:
            return Match(agent.name, False, "the event comes from one of its own effects")
        if event.hops > self.max_hops:
            return Match(agent.name, False, f"{event.hops} hops, the fleet takes {self.max_hops}")
        if event.type == TICK_TYPE:
            mine = event.source == schedule_source(self.name, agent.name)
            return Match(agent.name, mine, "its own tick" if mine else "the tick of another agent")
        if event.type == UNDO_TYPE:
            # Only the engine vouches for data: what somebody else sends under this type is nothing.
            mine = (
                event.source == undo_source(self.name, agent.name) and UNDO_ACTION in event.vouched
            )
            return Match(agent.name, mine, "takes its effect back" if mine else "not its effect")
        whys = [subscription.find_mismatch(event) for subscription in agent.subscriptions]
        if any(why is None for why in whys):
            return Match(agent.name, True, f"subscribed to {event.type}")
        return Match(agent.name, False, "; ".join(why for why in whys if why) or "no subscription")


def schedule_source(fleet: str, agent: str) -> str:
    """Return the CloudEvents source of an agent's ticks."""
    return f"vedette://{fleet}/schedule/{agent}"


def undo_source(fleet: str, agent: str) -> str:
    """Return the CloudEvents source of what takes an agent's effects back."""
    return f"vedette://{fleet}/undo/{agent}"

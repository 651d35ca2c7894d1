"""An Agent as declared, with the triggers that wake it, and the Fleet that events are matched to.

A Schedule makes ticks, a Subscription matches events.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from contextlib import suppress
from fnmatch import fnmatchcase
from functools import lru_cache
from typing import Any, Literal

from msgspec import Struct, field

from vedette.domain.base.canonical import canonicalize, normalize_json, sha256_hex
from vedette.domain.base.errors import BadEvent, BadFleet, BadProposal
from vedette.domain.budget import Budget
from vedette.domain.done_condition import DoneCondition
from vedette.domain.event import CALL_TYPE, DATA, TASK_TYPE, TICK_TYPE, UNDO_TYPE, Event
from vedette.domain.identity import Identity
from vedette.domain.memory import Memory
from vedette.domain.origin import resolve_path
from vedette.domain.rate_limit import RateLimits
from vedette.domain.readers import Labels, Readers, meet_labels
from vedette.domain.tool import Tool

Mode = Literal["observe", "ask", "act"]
MissedTickPolicy = Literal["skip", "latest", "all"]

# What a run that takes an effect back was woken by; no trigger of an agent is called so.
UNDO_TRIGGER = "undo"
# … and what a run that is a person's task was.
TASK_TRIGGER = "task"
# Events that are one agent's own: whom they wake is not a matter of type, source and subject.
_MAX_SESSION = 200  # characters of a value that is a key as it is
_OWN_TYPES = frozenset({TICK_TYPE, UNDO_TYPE, CALL_TYPE, TASK_TYPE})


class Subscription(Struct, frozen=True):
    """A trigger of an Agent: events whose attributes match all given patterns (fnmatch, case kept).

    Without a name it is called by its patterns (`trigger_name`), as policy is told what woke a run.
    With a `goal` a run that it wakes is a task.
    """

    types: tuple[str, ...]
    sources: tuple[str, ...] = ("*",)
    subjects: tuple[str, ...] = ("*",)
    name: str = ""
    goal: str = ""

    @property
    def trigger_name(self) -> str:
        """Return the name: its own, or its types with what narrows them, `mail.*@imap:*`."""
        if self.name:
            return self.name
        text = ",".join(self.types)
        if self.sources != ("*",):
            text += "@" + ",".join(self.sources)
        return text if self.subjects == ("*",) else text + "#" + ",".join(self.subjects)

    def find_mismatch(self, event: Event) -> str | None:
        """Return which attribute does not match, or None if the event wakes the agent."""
        if not _matches(event.type, self.types):
            return f"type {event.type!r} is not among {', '.join(self.types)}"
        if not _matches(event.source, self.sources):
            return f"source {event.source!r} is not among {', '.join(self.sources)}"
        # Of a subject nothing is kept: whose content it names may ask that it be erased.
        if not _fits(event.subject or "", self.subjects):
            return f"subject {event.subject!r} is not among {', '.join(self.subjects)}"
        return None


def _fits(value: str, patterns: tuple[str, ...]) -> bool:
    return patterns == ("*",) or any(fnmatchcase(value, pattern) for pattern in patterns)


_matches = lru_cache(4096)(_fits)


class Schedule(Struct, frozen=True):
    """A trigger of an Agent: nominal instants.

    Exactly one of `every_us` (a period, counted from the epoch), `cron` (five fields) and
    `daily` (HH:MM local time) is given. `missed` says what becomes of instants that passed while
    nothing ran, none of them older than `max_age_us`. With a `goal` a run that it wakes is a task.
    """

    name: str
    every_us: int | None = None
    cron: str | None = None
    daily: str | None = None
    zone: str = "UTC"
    missed: MissedTickPolicy = "latest"
    max_age_us: int = 7 * 86_400_000_000
    data: Mapping[str, object] = field(default_factory=dict)
    goal: str = ""


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
    """The limits of an Agent's own code: the time of one judgement, the bytes of one process."""

    time_us: int = 5_000_000
    memory: int = 512 * 1024 * 1024


class Cascade(Struct, frozen=True):
    """From which confidence a judge settles its event (thousandths), and when a person takes over.

    A run whose model has been away for `person_after_us` is a person's; 0: it goes on waiting.
    """

    settle_at_milli: int
    person_after_us: int = 0

    def settles(self, confidence: float) -> bool:
        """Say whether a judge that is so sure settles its event."""
        return int(confidence * 1000) >= self.settle_at_milli


class ConfidencePlan(Struct, frozen=True):
    """How a model's confidence is measured: on how many answers of people at least, and which share
    (thousandths) of what it may do they are shown in any case.
    """

    cases: int = 100
    audit_share_milli: int = 50


class WorkPlan(Struct, frozen=True):
    """The bounds of an agent's tasks: turns, turns in a row without progress, time from the event.

    At one of them a task waits for a person. `conditions` are those of done.yaml, for tasks that
    come with none of their own; with `proposes_conditions` the first turn may propose some.
    `waits_for` are the types of events that they may wait for, `asks` the agents that they may ask.
    """

    max_turns: int = 1000
    no_progress: int = 10
    deadline_us: int = 14 * 86_400_000_000
    conditions: tuple[DoneCondition, ...] = ()
    waits_for: tuple[str, ...] = ()
    asks: tuple[str, ...] = ()
    proposes_conditions: bool = False


class Agent(Struct, frozen=True):
    """A specialist: its charter is reviewed content, `release` is the digest of its folder.

    `order_by` is the event attribute whose value is the key: events of one key are handled in
    order. `collection` is where the agent's transactional tools keep rows, one per key.
    `reasoner` names what reasons for it (a plugin of `vedette.reasoners`), `asks_model` says that
    its turns may make model calls, `model` which entry of [models] they ask; `fallback_prices` are
    what those that are asked in its place cost, where that differs. With a `cascade` its judge has
    a run's first turn, and `last_reasoner` those of what it defers. With `artefacts` what is large
    in its outcomes is told by reference, and read by a tool (`vedette.domain.artefact`). An agent
    that takes tasks has a plan for its `work`, and the engine's tools (`vedette.domain.work_tools`)
    among its own. With a `session` (the path below an event) events with the same value there go to
    the same run while it is open (`vedette.engine.sessions`).
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
    model: str | None = None
    fallback_prices: tuple[str, ...] = ()
    cascade: Cascade | None = None
    confidence: ConfidencePlan = field(default_factory=ConfidencePlan)
    artefacts: bool = False
    work: WorkPlan | None = None
    session: tuple[str, ...] = ()

    @property
    def has_judge(self) -> bool:
        """Say whether its own judge.py reasons for it: made of memories, and of nothing else.

        In a cascade, first.
        """
        return self.reasoner == "judge"

    @property
    def judges_tasks(self) -> bool:
        """Say whether its judge takes the turns of tasks: in a cascade its model does."""
        return self.has_judge and self.work is not None and self.cascade is None

    @property
    def last_reasoner(self) -> str:
        """Return what reasons last for it: of a cascade what asks the model."""
        return self.reasoner if self.cascade is None else "adk"

    def key_of(self, event: Event) -> str:
        """Return the key under which this agent orders the event.

        What takes an effect back belongs to the key that the effect belonged to.
        """
        if event.type == UNDO_TYPE and isinstance(event.data, Mapping):
            return str(event.data.get("key") or "")
        if event.type == TASK_TYPE:
            return event.id  # each is one of its own
        if self.session:
            found = self.session_of(event)
            if found is None:
                self._require_no_session(event)
            return found or event.id
        return getattr(event, self.order_by) or ""

    def _require_no_session(self, event: Event) -> None:
        """Raise BadEvent if what is to name an event's session is no text or number."""
        with suppress(BadProposal):
            value = resolve_path(event.root(), self.session)
            if isinstance(value, (Mapping, list, tuple)) and event.type not in _OWN_TYPES:
                place = "/".join(("", *self.session))
                raise BadEvent(f"{place} names a session of {self.name}: it is no text or number")

    def session_of(self, event: Event) -> str | None:
        """Return which session an event belongs to: the value there as text; None for none.

        A text that is long stands for itself by its digest. What is no text or number is no session
        (`key_of` refuses such an event).
        """
        if not self.session or event.type in _OWN_TYPES:
            return None
        try:
            value = normalize_json(resolve_path(event.root(), self.session))
        except BadProposal:
            return None
        if isinstance(value, (dict, list)):
            return None
        text = value if isinstance(value, str) else canonicalize(value).decode()
        short = len(text) <= _MAX_SESSION and "\0" not in text and text
        return text if short else sha256_hex(canonicalize(value))

    def trigger_of(self, event: Event) -> str:
        """Return the name of the trigger that an event of this agent's wakes it by.

        It is the first that matches; "" if none does, as after a change of agent.yaml.
        """
        if event.type == UNDO_TYPE:
            return UNDO_TRIGGER if event.is_undo else ""
        if event.type == TASK_TYPE:
            return TASK_TRIGGER if event.is_task else ""
        if event.type == TICK_TYPE:
            schedule = self._schedule_of(event)
            return "" if schedule is None else schedule.name
        return next(
            (s.trigger_name for s in self.subscriptions if s.find_mismatch(event) is None), ""
        )

    def goal_of(self, event: Event) -> str:
        """Return the goal of the trigger that an event wakes this agent by; "" if it has none."""
        found: Schedule | Subscription | None
        if event.type == TICK_TYPE:
            found = self._schedule_of(event)
        else:
            found = next((s for s in self.subscriptions if s.find_mismatch(event) is None), None)
        return "" if found is None or event.type in (UNDO_TYPE, TASK_TYPE) else found.goal

    def _schedule_of(self, tick: Event) -> Schedule | None:
        # The engine makes ticks, and vouches for the name of the schedule.
        mine = DATA in tick.vouched
        return next((s for s in self.schedules if mine and s.name == tick.subject), None)

    def label_run(
        self,
        event: Event,
        memories: Iterable[Memory],
        row: Readers,
        answers: Mapping[str, Readers],
    ) -> Labels | None:
        """Return who may read what a run has before it; None if all of it is public.

        `row` is the label of its row, `answers` have those of its outcomes by place (`outcome/0`).
        What the agent may be taught counts whole, whatever it was briefed with: its judge is made
        of all that its scopes hold.
        """
        scope_labels = [scope.readers for scope in self.scopes]
        run = meet_labels(event.readers, row, *scope_labels, *answers.values())
        if run is None:
            return None
        scopes = {(scope.bank, scope.scope): scope.readers for scope in self.scopes}
        places = {"event": event.readers, "row": row, **answers}
        for memory in memories:
            # Who is briefed with what it does not declare may tell nobody.
            readers = scopes.get((memory.bank, memory.scope), frozenset())
            places[f"memory/{memory.id}"] = readers
        return Labels(run, places)


class Match(Struct, frozen=True):
    """The match of one event with one Agent: why it wakes, or why it does not."""

    agent: str
    wakes: bool
    why: str


class Canary(Struct, frozen=True):
    """A canary of an agent: another release, beside the one that runs: it has a share of the keys.

    `since` is the ledger's entry that began it: it names the canary, and what was accepted before
    it stays with the release that runs. `share_milli` is how many keys of a thousand it has.
    """

    agent: Agent
    since: int
    share_milli: int

    def has_key(self, key: str) -> bool:
        """Say whether a key is the canary's: by a hash, the same for as long as it runs."""
        text = f"{self.since}\n{self.agent.name}\n{key}".encode("utf-8", "surrogatepass")
        place = int.from_bytes(hashlib.sha256(text).digest()[:8])
        return place * 1000 < self.share_milli << 64

    def has_run(self, key: str, position: int) -> bool:
        """Say whether the run of a key's event, accepted at `position`, is the canary's."""
        return position > self.since and self.has_key(key)


class Fleet(Struct, frozen=True):
    """All agents of one store, by name. Belongs to the event loop once it runs.

    `canaries` are the releases that are tried beside an agent's, by its name.
    """

    name: str
    agents: dict[str, Agent]
    max_hops: int = 8
    canaries: dict[str, Canary] = field(default_factory=dict)
    _match_cache: dict[tuple[str, str, str | None], tuple[str, ...]] = field(default_factory=dict)

    def agent(self, name: str) -> Agent:
        """Return an agent. Raises BadFleet if there is none: a run may outlive its agent."""
        found = self.agents.get(name)
        if found is None:
            raise BadFleet(
                f"a run belongs to the agent {name!r}, which the fleet no longer has",
                mend="bring its folder back, or let the run be a dead letter",
            )
        return found

    def release_of(self, name: str, key: str, position: int) -> Agent:
        """Return the release of an agent that a run belongs to. Raises as `agent`."""
        canary = self.canaries.get(name)
        if canary is not None and canary.has_run(key, position):
            return canary.agent
        return self.agent(name)

    def releases(self, name: str) -> tuple[Agent, ...]:
        """Return every release of an agent that runs: its own, and its canary's."""
        canary, found = self.canaries.get(name), self.agents.get(name)
        trial = None if canary is None else canary.agent
        return tuple(agent for agent in (found, trial) if agent is not None)

    def replace(self, agent: Agent) -> None:
        """Put another release of an agent in the place of the one there is."""
        self.agents[agent.name] = agent
        self._match_cache.clear()

    def match(self, event: Event) -> list[Match]:
        """Say for every agent whether the event wakes it, and why. A pure function."""
        return [self._match_one(agent, event) for agent in self.agents.values()]

    def matching_agents(self, event: Event) -> tuple[str, ...]:
        """Return the names of the agents that the event wakes."""
        known = (event.type, event.source, event.subject)
        cacheable = not (event.lineage or event.hops or event.type in _OWN_TYPES)
        found = self._match_cache.get(known) if cacheable else None
        if found is None:
            found = tuple(match.agent for match in self.match(event) if match.wakes)
            if cacheable and len(self._match_cache) < 65536:
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
            mine = event.is_undo and event.source == undo_source(self.name, agent.name)
            return Match(agent.name, mine, "takes its effect back" if mine else "not its effect")
        if event.type == TASK_TYPE:
            mine = event.is_task and event.source == task_source(self.name, agent.name)
            return Match(agent.name, mine, "its own task" if mine else "not its task")
        if event.type == CALL_TYPE and event.source != call_source(self.name, agent.name):
            return Match(agent.name, False, "the call of another agent")
        whys = [subscription.find_mismatch(event) for subscription in agent.subscriptions]
        if None in whys:
            return Match(agent.name, True, f"subscribed to {event.type}")
        return Match(agent.name, False, "; ".join(filter(None, whys)) or "no subscription")


def schedule_source(fleet: str, agent: str) -> str:
    """Return the CloudEvents source of an agent's ticks."""
    return f"vedette://{fleet}/schedule/{agent}"


def undo_source(fleet: str, agent: str) -> str:
    """Return the CloudEvents source of what takes an agent's effects back."""
    return f"vedette://{fleet}/undo/{agent}"


def task_source(fleet: str, agent: str) -> str:
    """Return the CloudEvents source of the tasks that an agent is given."""
    return f"vedette://{fleet}/task/{agent}"


def call_source(fleet: str, agent: str) -> str:
    """Return the CloudEvents source of the calls that an agent's client makes."""
    return f"vedette://{fleet}/call/{agent}"

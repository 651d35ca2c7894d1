"""A history: what happened, as plain data, to whoever stood outside.

What a source was told, what the targets' own record says, what people ordered and when they were
told that it is done, the faults, and the ledger as exported. Instants are seconds of one true
clock, never of a worker's. Whoever makes a history, the simulation or a run of real processes,
fills the same fields; `tests.simulation.model.judge` says what is wrong with it.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

NEVER = float("inf")


@dataclass(frozen=True)
class Want:
    """What an event asks of each agent that it wakes: a call, or a row (`row`) of the fleet's own.

    `held`: policy wants a person's approval of it. `text` is unique in the history.
    """

    tool: str
    text: str
    row: bool = False
    held: bool = False


@dataclass
class Event:
    """One event. `ref` is its name in the ledger, as a receipt tells it.

    `sent_s` is the first delivery, `told_s` when the source was told that it is durable (NEVER if
    it was not) and `by` by which worker. `value` is a number of its own.
    """

    ref: str
    agents: tuple[str, ...]
    key: str
    value: int
    wants: tuple[Want, ...] = ()
    sent_s: float = 0.0
    told_s: float = NEVER
    by: str = ""


@dataclass
class Act:
    """One line of a target's own record: a call `begun`, an effect `done`, an outcome `asked`, a
    call `refused` for good, or as often as it is tried; `told`: the answer that it is done has come
    to the tool.

    `entries` is how many entries of the ledger were durable then; None: nobody looked.
    """

    at_s: float
    what: str
    tool: str
    key: str
    text: str = ""
    agent: str = ""
    by: str = ""
    entries: int | None = None


@dataclass
class Order:
    """What a person ordered: `stop`, `resume`, `publish`, `approve`, `deny`, `erase`, `archive`,
    `rotate`, `restore`, `confirm`.

    `what` is `agent:NAME`, `tool:NAME` or `all:` of a stop or resume, the effect's key of an
    answer, the event's ref of an erasure. `denies` are the tools that a published policy denies and
    `revision` its number, if it was told. `since_s`: a restored store knows nothing from then on.
    `by`: the worker that alone is bound by a stop, as it said that it could not record it.
    `recorded`: whether the ledger names a person for it once it was told; not what held in memory
    alone, or what the engine does of itself.
    """

    verb: str
    asked_s: float
    told_s: float = NEVER
    what: str = ""
    denies: tuple[str, ...] = ()
    revision: int = 0
    since_s: float = NEVER
    by: str = ""
    recorded: bool = True


@dataclass
class Fault:
    """A fault, where, from when to when. The model only counts them."""

    what: str
    where: str
    from_s: float
    to_s: float


@dataclass
class History:
    """All that is known of one history from outside.

    `entries` are the ledger's entries in order, parsed, and `bodies` what lies beside them, by
    their seq. `rows` are the texts of the fleet's own rows at the end, by (agent, key). `errors`
    is what nobody may see, such as a traceback. `grace_s` is how long a call may be under way
    before its target notes that it began, `quiet_s` how long one may be under way at all. `refused`
    are orders that people were told no to, each with the reason; `person` is who they are in the
    ledger. `proof` says what of the ledger does not agree with its signed heads and salted digests;
    `content` is all content that is left at the end, as text; `spend` how many actions are booked
    of each agent. Whoever does not look leaves these three empty. `expires_us` is how long a hold
    that nobody answers stays open (NEVER: a history is shorter than that), `judged` are the agents
    whose events are all here (None: all). Every fault has ended and every person has answered
    before `end_s`; how long that is, is the bound of liveness.
    """

    events: list[Event] = field(default_factory=list)
    acts: list[Act] = field(default_factory=list)
    orders: list[Order] = field(default_factory=list)
    faults: list[Fault] = field(default_factory=list)
    entries: list[dict[str, Any]] = field(default_factory=list)
    bodies: dict[int, dict[str, Any]] = field(default_factory=dict)
    rows: dict[tuple[str, str], list[str]] = field(default_factory=dict)
    errors: list[str] = field(default_factory=list)
    refused: list[tuple[Order, str]] = field(default_factory=list)
    person: str = "person:tester"
    proof: list[str] = field(default_factory=list)
    content: str = ""
    spend: dict[str, int] | None = None
    grace_s: float = 0.0
    quiet_s: float = 0.0
    expires_us: float = NEVER
    judged: frozenset[str] | None = None
    end_s: float = 0.0

    def judges(self, agent: str) -> bool:
        """Say whether all that an agent was asked is here."""
        return self.judged is None or agent in self.judged

    def refuse(self, order: Order, why: str) -> None:
        """Take back an order that was refused: it binds nobody."""
        self.orders.remove(order)
        self.refused.append((order, why))

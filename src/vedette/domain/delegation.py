"""Delegation: what an agent that was asked by another may do, and what its run has of the asker.

A child's run is a task whose event says who asked (`Delegation`). Each of its actions is decided
with what is found of the agents above it (`DelegationState`): it may do no more than each of them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Literal

from msgspec import Struct

from vedette.domain.budget import UNITS
from vedette.domain.event import Event
from vedette.domain.tool import Tool

# What one agent's grants are to another's action: it may do it itself, only with a person's
# approval, or not at all.
Cover = Literal["act", "ask", "none"]

COVER_RULE = "delegation.cover"
BUDGET_RULE = "delegation.budget"
UNKNOWN_RULE = "delegation.unknown"
ASK_RULE = "delegation.ask"

_PLAIN = frozenset({"verb", "resource", "impact"})


class Delegation(Struct, frozen=True):
    """Who asked for a child's run, and within which bounds.

    `run` and `action` are the parent's run and its ask; `ancestors` are the agents above, with
    their `runs`, the first asker first. `budget` is what was set aside, by unit; `until_us` when
    the child is over at the latest.
    """

    run: str
    action: str
    ancestors: tuple[str, ...]
    runs: tuple[str, ...]
    budget: Mapping[str, int]
    until_us: int

    def to_json(self) -> dict[str, Any]:
        """Return it as the child's event has it."""
        return {
            "action": self.action,
            "ancestors": list(self.ancestors),
            "budget": dict(self.budget),
            "run": self.run,
            "runs": list(self.runs),
            "until_us": self.until_us,
        }


def find_delegation(event: Event) -> Delegation | None:
    """Return who asked for the run of an event; None if no agent did. It is the engine's word."""
    if not event.is_delegated:
        return None
    said = event.data["delegation"]
    return Delegation(
        run=said["run"],
        action=said["action"],
        ancestors=tuple(said["ancestors"]),
        runs=tuple(said["runs"]),
        budget=said["budget"],
        until_us=said["until_us"],
    )


class AncestorState(Struct, frozen=True):
    """What is found of an agent above: its owner, the mode that it requests, and what its grants
    are to the action.
    """

    agent: str
    owner: str
    requested_mode: str
    cover: Cover

    def to_json(self) -> dict[str, Any]:
        """Return it as the question has it."""
        return {
            "agent": self.agent,
            "cover": self.cover,
            "owner": self.owner,
            "requested_mode": self.requested_mode,
        }


class DelegationState(Struct, frozen=True):
    """What a question says of the agents above: each of them, and whether the part of a budget that
    was set aside has room for the action.
    """

    ancestors: tuple[AncestorState, ...]
    room: bool

    def to_json(self) -> dict[str, Any]:
        """Return it as the question has it."""
        return {
            "ancestors": [one.to_json() for one in self.ancestors],
            "room": self.room,
        }


def list_uncovered(state: Mapping[str, Any]) -> list[str]:
    """Return why an action is beyond what is above it, by a question's `delegation`: rules, each
    with the agent that may not do it.
    """
    ancestors = state["ancestors"]
    bare = [one["agent"] for one in ancestors if one["cover"] not in ("act", "ask")]
    reasons = [f"{COVER_RULE}:{agent}" for agent in bare]
    reasons += [] if state["room"] is True else [BUDGET_RULE]
    return reasons if ancestors else [*reasons, UNKNOWN_RULE]


def needs_person(state: Mapping[str, Any] | None) -> bool:
    """Say whether an agent above would need a person for an action."""
    return state is not None and any(one["cover"] != "act" for one in state["ancestors"])


def find_cover(
    grants: Mapping[str, Any],
    agent: str,
    owner: str,
    requested_mode: str,
    declared: Mapping[str, Tool],
    verb: str,
    resource: str,
) -> Cover:
    """Return what an agent's grants (`data.grants`) are to an action of another.

    Names of tools are each agent's own: what counts is the verb and the type of resource. A grant
    for some triggers covers nothing, nor one with a key that nobody reads, nor any to an agent of
    another owner than policy knows.

    `declared` are the agent's own tools. Where it declares that the impact of one is high, it needs
    a person whatever its grant says; so does a grant of a tool that it has not, if all that it has
    of this verb and resource are such.
    """
    given = grants.get(agent)
    if not isinstance(given, Mapping) or given.get("owner", owner) != owner:
        return "none"
    modes, tools = {given.get("mode"), requested_mode}, given.get("tools")
    if not isinstance(tools, Mapping) or not modes <= {"ask", "act"}:
        return "none"
    found = [
        (name, grant)
        for name, grant in tools.items()
        if isinstance(grant, Mapping)
        and (grant.get("verb"), grant.get("resource")) == (verb, resource)
        and grant.get("impact") in ("low", "high")
        and grant.keys() <= {*_PLAIN, "only"}
    ]
    if not found:
        return "none"
    high = {
        tool.name: tool.high_impact
        for tool in declared.values()
        if (tool.verb, tool.resource) == (verb, resource)
    }
    all_high = bool(high) and all(high.values())
    alone = any(
        grant["impact"] == "low" and grant.keys() <= _PLAIN and not high.get(name, all_high)
        for name, grant in found
    )
    return "act" if alone and modes == {"act"} else "ask"


def read_budget(given: Mapping[str, Any]) -> dict[str, int]:
    """Return the amounts of an ask's budget by unit. Raises ValueError for what is none."""
    for unit, amount in given.items():
        if unit not in UNITS:
            raise ValueError(f"{unit!r} is no unit of a budget: {', '.join(UNITS)}")
        if type(amount) is not int or not 0 <= amount <= _MOST:
            raise ValueError(f"the budget's {unit} is a whole number, not {amount!r}")
    return {unit: given[unit] for unit in UNITS if given.get(unit)}


_MOST = 10**15


def add_spend(*spends: Mapping[str, int]) -> dict[str, int]:
    """Return the sum of amounts by unit."""
    found: dict[str, int] = {}
    for spend in spends:
        for unit, amount in spend.items():
            found[unit] = found.get(unit, 0) + amount
    return found


def trusted_places(origins: Iterable[tuple[str, str]]) -> frozenset[str]:
    """Return the places of a child's payload that are vouched for: what was trusted in the ask.

    `origins` are those of its arguments, by pointer. All else is untrusted in the child.
    """
    return frozenset(
        f"data{pointer}"
        for pointer, origin in origins
        if origin == "trusted" and pointer.split("/")[1] in ("goal", "inputs")
    )

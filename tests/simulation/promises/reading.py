"""How promises read a history: a violation, and what several of them ask of it."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from tests.simulation.history import Event, History, Order, Want


@dataclass(frozen=True, order=True)
class Violation:
    """What is wrong: its kind, and a sentence for people."""

    kind: str
    what: str


Found = Iterator[Violation]


def find_entries(history: History, *kinds: str) -> Iterator[dict[str, Any]]:
    """Give the ledger's entries of some kinds."""
    return (entry for entry in history.entries if entry["kind"] in kinds)


def find_judgements(history: History) -> Iterator[dict[str, Any]]:
    """Give the entries that record a judgement: of a turn, or of a run that came to nothing."""
    return (entry for entry in history.entries if "label" in entry)


def find_subjects(history: History, verb: str) -> set[str]:
    """Return what people ordered something of."""
    return {order.what for order in history.orders if order.verb == verb}


def find_restores(history: History) -> list[Order]:
    """Return the orders to go over to an older copy of the store."""
    return [order for order in history.orders if order.verb == "restore"]


def read_losses(history: History) -> Callable[[float], bool]:
    """Return who says whether an instant lies in what a restored store knows nothing of."""
    restores = find_restores(history)
    return lambda at_s: any(one.since_s <= at_s < one.told_s for one in restores)


def read_actions(history: History) -> dict[tuple[str, str], list[str]]:
    """Return the actions of each run, by (event, agent): the n-th is of the event's n-th want."""
    actions: dict[tuple[str, str], dict[str, None]] = defaultdict(dict)
    for entry in find_entries(history, "action.decided"):
        actions[entry["event"], entry["agent"]].setdefault(entry["action"])
    return {run: list(names) for run, names in actions.items()}


def list_wants(event: Event) -> Iterator[tuple[str, int, Want]]:
    """Give all that an event asks for: the agent, which of its wants, and the want."""
    return ((agent, at, want) for agent in event.agents for at, want in enumerate(event.wants))


def find_row_tools(history: History) -> set[str]:
    """Return the tools that write rows of the fleet's own."""
    return {want.tool for event in history.events for want in event.wants if want.row}


def list_scopes(agent: str, tool: str) -> set[str]:
    """Return what may be stopped to stop a call."""
    return {f"agent:{agent}", f"tool:{tool}", "all:"}

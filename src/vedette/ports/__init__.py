"""Ports: what the line asks of the world. Adapters need not import these; they only have to fit.

No transaction object, no SQL and no vendor's type crosses a port.
"""

from vedette.ports.agents import InHand, Metrics, Performer, Reasoner, Thought
from vedette.ports.memory import BankStore
from vedette.ports.policy import (
    Comparing,
    Compiling,
    Finding,
    Gate,
    PolicyEngine,
    PolicyStage,
    Warming,
)
from vedette.ports.shelf import Shelf
from vedette.ports.sources import Intake, Receipt, Refused, Source
from vedette.ports.store import Accepted, Arrival, Ended, Erased, History, Store, Survey

__all__ = [
    "Accepted",
    "Arrival",
    "BankStore",
    "Comparing",
    "Compiling",
    "Ended",
    "Erased",
    "Finding",
    "Gate",
    "History",
    "InHand",
    "Intake",
    "Metrics",
    "Performer",
    "PolicyEngine",
    "PolicyStage",
    "Reasoner",
    "Receipt",
    "Refused",
    "Shelf",
    "Source",
    "Store",
    "Survey",
    "Thought",
    "Warming",
]

"""Ports: what the line asks of the world. Adapters need not import these; they only have to fit.

No transaction object, no SQL and no vendor's type crosses a port. Names are imported when they are
first used: who reads settings needs that of the plugins alone.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from vedette.domain.ports.bundle_repository import BundleRepository
    from vedette.domain.ports.memory_bank import BankStore
    from vedette.domain.ports.policy_engine import (
        ComparisonStage,
        CompilationStage,
        Finding,
        MemoryAuthorizer,
        PolicyEngine,
        PolicyStage,
        WarmupStage,
    )
    from vedette.domain.ports.reasoner import (
        Metrics,
        Reasoner,
        ReasonerJudgement,
        RunJournal,
        ToolExecutor,
    )
    from vedette.domain.ports.sources import Intake, Receipt, Refused, Source
    from vedette.domain.ports.store import (
        AcceptResult,
        Arrival,
        DeadLetterResult,
        ErasureResult,
        ErasureSurvey,
        StateHistory,
        Store,
    )

__all__ = [
    "AcceptResult",
    "Arrival",
    "BankStore",
    "BundleRepository",
    "ComparisonStage",
    "CompilationStage",
    "DeadLetterResult",
    "ErasureResult",
    "ErasureSurvey",
    "Finding",
    "Intake",
    "MemoryAuthorizer",
    "Metrics",
    "PolicyEngine",
    "PolicyStage",
    "Reasoner",
    "ReasonerJudgement",
    "Receipt",
    "Refused",
    "RunJournal",
    "Source",
    "StateHistory",
    "Store",
    "ToolExecutor",
    "WarmupStage",
]

_FROM = {
    "reasoner": ("InHand", "Metrics", "Performer", "Reasoner", "Thought"),
    "memory_bank": ("BankStore",),
    "policy_engine": (
        "Comparing",
        "Compiling",
        "Finding",
        "Gate",
        "PolicyEngine",
        "PolicyStage",
        "Warming",
    ),
    "bundle_repository": ("Shelf",),
    "sources": ("Intake", "Receipt", "Refused", "Source"),
    "store": ("Accepted", "Arrival", "Ended", "Erased", "History", "Store", "Survey"),
}
_HOME = {name: module for module, names in _FROM.items() for name in names}


if not TYPE_CHECKING:  # to a type checker a name that is not there is an error

    def __getattr__(name: str) -> Any:
        if name not in _HOME:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        found = getattr(importlib.import_module(f"{__name__}.{_HOME[name]}"), name)
        globals()[name] = found
        return found

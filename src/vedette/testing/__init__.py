"""The public test kit: a fleet in a folder, a clock that tests move, sources and models by script.

    from vedette.testing import FleetHarness

Public is what `__all__` names, under the terms of `vedette.sdk`; the other modules here try the
engine itself and may change with it. A name is imported when it is first asked for, so that a test
of a source loads no fleet.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from vedette.testing.clock import ManualClock, run_ready_tasks
    from vedette.testing.faults import ChildResult, run_in_child
    from vedette.testing.harness import FleetHarness, checkout, copy_policies, remove_tests
    from vedette.testing.intake import ListIntake
    from vedette.testing.scripted import Hang, ScriptedModel, ScriptedReasoner, ToolCall
    from vedette.testing.unreliable_source import UnreliableSource

__all__ = [
    "ChildResult",
    "FleetHarness",
    "Hang",
    "ListIntake",
    "ManualClock",
    "ScriptedModel",
    "ScriptedReasoner",
    "ToolCall",
    "UnreliableSource",
    "checkout",
    "copy_policies",
    "remove_tests",
    "run_in_child",
    "run_ready_tasks",
]

_NAMES_BY_MODULE = {
    "vedette.testing.clock": ("ManualClock", "settle"),
    "vedette.testing.faults": ("Ended", "in_child"),
    "vedette.testing.harness": ("FleetHarness", "checkout", "copy_policies", "without_tests"),
    "vedette.testing.intake": ("ListIntake",),
    "vedette.testing.unreliable_source": ("RoughSource",),
    "vedette.testing.scripted": ("Calls", "Hang", "ScriptedModel", "ScriptedReasoner"),
}
_MODULE_BY_NAME = {name: module for module, names in _NAMES_BY_MODULE.items() for name in names}


if not TYPE_CHECKING:  # to a type checker a name that is not there is an error

    def __getattr__(name: str) -> Any:
        if name not in _MODULE_BY_NAME:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        found = getattr(importlib.import_module(_MODULE_BY_NAME[name]), name)
        globals()[name] = found
        return found


def __dir__() -> list[str]:
    return sorted(__all__)

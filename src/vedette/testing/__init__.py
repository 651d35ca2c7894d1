"""The public test kit: a fleet in a folder, a clock that tests move, sources and models by script.

    from vedette.testing import FleetHarness

Public is what `__all__` names, under the terms of `vedette.sdk`; the other modules here try the
engine itself and may change with it. A name is imported when it is first asked for, so that a test
of a source loads no fleet.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:  # a type checker is told in its own way
    from vedette.testing.clock import ManualClock as ManualClock
    from vedette.testing.clock import run_ready_tasks as run_ready_tasks
    from vedette.testing.faults import ChildResult as ChildResult
    from vedette.testing.faults import run_in_child as run_in_child
    from vedette.testing.harness import FleetHarness as FleetHarness
    from vedette.testing.harness import checkout as checkout
    from vedette.testing.harness import copy_policies as copy_policies
    from vedette.testing.harness import remove_tests as remove_tests
    from vedette.testing.intake import ListIntake as ListIntake
    from vedette.testing.model_server.server import ModelServer as ModelServer
    from vedette.testing.scripted import Hang as Hang
    from vedette.testing.scripted import ScriptedModel as ScriptedModel
    from vedette.testing.scripted import ScriptedReasoner as ScriptedReasoner
    from vedette.testing.scripted import ToolCall as ToolCall
    from vedette.testing.unreliable_source import UnreliableSource as UnreliableSource
else:
    from vedette.domain.base.lazy_names import lazy_names

    __getattr__, __dir__, __all__ = lazy_names(
        __name__,
        {
            "vedette.testing.clock": ("ManualClock", "run_ready_tasks"),
            "vedette.testing.faults": ("ChildResult", "run_in_child"),
            "vedette.testing.harness": (
                "FleetHarness",
                "checkout",
                "copy_policies",
                "remove_tests",
            ),
            "vedette.testing.intake": ("ListIntake",),
            "vedette.testing.model_server.server": ("ModelServer",),
            "vedette.testing.scripted": ("Hang", "ScriptedModel", "ScriptedReasoner", "ToolCall"),
            "vedette.testing.unreliable_source": ("UnreliableSource",),
        },
    )

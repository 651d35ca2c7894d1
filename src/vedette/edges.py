"""Wiring of the edges of a deployment: the sources of Google Cloud, made of their plans."""

from __future__ import annotations

import sys
from collections.abc import Coroutine
from typing import TYPE_CHECKING, Any

from vedette.errors import BadFleet
from vedette.ports import Source

if TYPE_CHECKING:
    from vedette.app import App
    from vedette.load.edges import EdgePlan


def edge_source(plan: EdgePlan, app: App, *, until_idle: bool) -> Source:
    """Make one source of its table. Raises BadFleet for one that is not served here."""
    raise BadFleet(f"source {plan.name} cannot be made", where="vedette.toml")


def followers(app: App) -> list[tuple[str, Coroutine[Any, Any, None]]]:
    """Return what follows the ledger beside the line, as (name, coroutine). Raises BadFleet."""
    from vedette.load.edges import TelemetryPlan

    found: list[tuple[str, Coroutine[Any, Any, None]]] = []
    if app.settings.edges.telemetry != TelemetryPlan():
        from vedette.tell import tellers

        found += tellers(app, sys.stderr)
    return found

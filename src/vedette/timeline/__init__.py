"""Timeline: what people read of the record: explain, inbox, runs, status, report, reconstruct.

One object each for CLI, API and console. Everything is pure over a `Record`; a caller that wants
its reads to agree makes them within the record's `snapshot()`.
"""

from __future__ import annotations

from vedette.timeline.entries import changes, entries_page
from vedette.timeline.explain import explain
from vedette.timeline.match import Matched, match
from vedette.timeline.pages import hold_item, inbox, runs_page, status
from vedette.timeline.reconstruct import Reconstruction, reconstruct
from vedette.timeline.record import Record, resolve
from vedette.timeline.report import report

__all__ = [
    "Matched",
    "Reconstruction",
    "Record",
    "changes",
    "entries_page",
    "explain",
    "hold_item",
    "inbox",
    "match",
    "reconstruct",
    "report",
    "resolve",
    "runs_page",
    "status",
]

"""Compensations: what became of an effect since, by the runs that were to take it back."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Literal

from msgspec import Struct

from vedette.domain.compensation import undo_ids, undo_run_id
from vedette.domain.effect import OPEN_STATES
from vedette.domain.run import ActionRow, Run

if TYPE_CHECKING:
    from vedette.domain.ports.run_store import RunReader

# waiting: not decided or not done yet; dead: a dead letter; void: nothing came of it; unknown: it
# was begun and given up, and nobody knows whether it happened.
State = Literal["undone", "waiting", "dead", "void", "unknown"]

# What is found of an effect that is done: it stands, or was taken back; unknown while what takes it
# back is under way, and where nobody knows whether that happened.
Standing = Literal["stands", "undone", "unknown"]


class UndoAttempt(Struct, frozen=True):
    """One attempt on record to take an effect back: its event's id, its run, what came of it."""

    id: str
    run: Run
    state: State


def find_undo_attempts(
    runs: RunReader, fleet: str, row: ActionRow
) -> tuple[list[UndoAttempt], str]:
    """Return the attempts on record to take an action's effect back, and the next one's id.

    Only after one that came to nothing (denied, failed, expired, in mode observe) is there
    another, so at most the last of them did it.
    """
    found: list[UndoAttempt] = []
    for id in undo_ids(row.id):
        run = runs.run(undo_run_id(fleet, row.agent, id))
        if run is None:
            return found, id
        found.append(UndoAttempt(id, run, _state(run, runs.actions(run.id))))
    raise AssertionError("ids of undos do not end")


def find_standing(runs: RunReader, fleet: str, row: ActionRow) -> Standing:
    """Return whether an action's effect stands, or was taken back and that was not in turn."""
    found, _ = find_undo_attempts(runs, fleet, row)
    rows = runs.actions(found[-1].run.id) if found else []
    done = [one for one in rows if one.effect == "done"]
    if not done:
        return "unknown" if any(one.effect in OPEN_STATES for one in rows) else "stands"
    inverses = {find_standing(runs, fleet, one) for one in done}
    if "unknown" in inverses:
        return "unknown"
    return "stands" if "undone" in inverses else "undone"


def _state(run: Run, rows: Sequence[ActionRow]) -> State:
    if any(row.effect == "done" for row in rows):
        return "undone"
    if run.state == "dead":
        return "dead"
    if run.state != "done":
        return "waiting"
    # A dead letter that a person dropped is closed with its rows as they were.
    nothing = all(row.effect in (None, "failed", "cancelled") for row in rows)
    return "void" if nothing else "unknown"


def undo_object(runs: RunReader, fleet: str | None, row: ActionRow) -> dict[str, Any] | None:
    """Return what became of an effect that was to be taken back, as explain shows it."""
    if fleet is None or row.effect != "done":
        return None
    found, _ = find_undo_attempts(runs, fleet, row)
    if not found:
        return None
    last = found[-1]
    return {"run": last.run.id, "event": last.run.event, "state": last.state, "tries": len(found)}

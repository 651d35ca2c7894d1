"""`vedette undo`: has what an effect did taken back by the inverse that its tool declares."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import click

from vedette.app.stores import store_reader
from vedette.domain.base.errors import BadCommand
from vedette.interfaces.cli.fleet import command_prefix, current_settings
from vedette.interfaces.cli.orders import (
    OrderCommand,
    OrderOptions,
    deferred_note,
    submit_command,
)
from vedette.interfaces.cli.output import print_result, sanitize_text

if TYPE_CHECKING:
    from vedette.config.settings import Settings
    from vedette.store.reader import StoreReader

# How long a running fleet is waited for; what takes longer is told by `explain`.
_MAX_WAIT_S = 2.0

_OUTCOME_TEXTS: dict[str | None, str] = {
    None: "it is not done yet",
    "done": "undone: it is as it was before",
    "hold": "it waits for a person: see `vedette hold`",
    "deny": "policy did not permit it; nothing was done",
    "failed": "its target did not do it; nothing is undone",
}


@click.command(cls=OrderCommand)
@click.argument("effect")
def undo(effect: str, order: OrderOptions) -> None:
    """Take back what EFFECT did (its id, that of its action, or the first characters).

    The inverse that the tool declares is decided under the policy of this moment like any other
    action, done once, and recorded with the effect as its cause.
    """
    settings = current_settings()
    with store_reader(settings) as store:
        name = _find_effect(store, effect)
    done = submit_command(settings, "undo", {"effect": name}, order)
    done["outcome"] = _wait_for_outcome(settings, done["run"]) if done["by"] == "fleet" else None
    lines = [f"undo of {done['effect']}: {done['inverse']} of {done['agent']}"]
    lines += [f"  {key} = {sanitize_text(str(value))}" for key, value in done["args"].items()]
    lines += deferred_note(done, "it is acted on") or [_OUTCOME_TEXTS[done["outcome"]]]
    lines.append(f"see: {command_prefix()} explain {done['run']}")
    print_result(done, "\n".join(lines))


def _find_effect(store: StoreReader, text: str) -> str:
    """Return the action that is meant. Raises BadCommand, NotFound."""
    from vedette.ledger.history.reader import resolve, to_action_id

    kind, name = resolve(store, text)
    if kind not in ("run", "event"):
        return to_action_id(name)
    runs = [name] if kind == "run" else [run.id for run in store.runs.runs_of_event(name)]
    rows = [row for run in runs for row in store.runs.actions(run)]
    done = [row for row in rows if row.effect == "done"]
    if len(rows) == 1 or len(done) == 1:
        return (done or rows)[0].id
    listed = ", ".join(f"{row.id.replace('act_', 'eff_')} ({row.tool})" for row in done)
    raise BadCommand(
        f"{text} did {len(done)} things" + (f": {listed}" if done else ""),
        mend="name the one to take back",
    )


def _wait_for_outcome(settings: Settings, run: str) -> Any:
    """Wait a moment for what becomes of an undo; None if it takes longer."""
    end = time.monotonic() + _MAX_WAIT_S
    with store_reader(settings) as store:
        while time.monotonic() < end:
            rows = store.runs.actions(run)
            if rows and rows[0].effect in ("done", "failed"):
                return rows[0].effect
            if rows and rows[0].decided in ("hold", "deny"):
                return rows[0].decided
            time.sleep(0.05)
    return None

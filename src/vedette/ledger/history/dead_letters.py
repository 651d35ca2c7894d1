"""Dead letters for people: which there are, why, and what is not known of them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from vedette.domain.base.errors import BadCommand
from vedette.domain.ports.store import StoreReader
from vedette.domain.run import ActionRow, Run
from vedette.ledger.history.entry_view import DeathEntry
from vedette.ledger.history.lists import MAX_PAGE
from vedette.ledger.history.reader import resolve
from vedette.ledger.history.run import RunHistory, read_run

DEAD = "vedette.dead/1"
# How many a command may name: all are moved in one transaction.
MAX_BATCH = 1000


def dead_letter_page(
    record: StoreReader,
    now_us: int,
    *,
    agent: str | None = None,
    error: str | None = None,
    before: str | None = None,
    limit: int = 20,
) -> dict[str, Any]:
    """Return a page of dead letters for people, newest event first; `older` is the next's cursor.

    `error` is the class of the reason: what the reason says before its first colon. Raises
    BadCommand for a limit or a cursor that is none.
    """
    if not 1 <= limit <= MAX_PAGE:
        raise BadCommand(
            f"a page has 1 to {MAX_PAGE} items, not {limit}", mend="give another limit"
        )
    found = []
    letters = _letters(record, agent, error, before)
    for run, death in letters:
        found.append((run, death))
        if len(found) > limit:
            break
    more, found = len(found) > limit, found[:limit]
    last = found[-1][0] if found else None
    return {
        "schema": DEAD,
        "items": [_item(record, run, death) for run, death in found],
        "older": f"{last.position}.{last.agent}" if last is not None and more else None,
        "head": record.ledger.last_seq(),
        "now": now_us,
    }


def list_dead_letters(
    record: StoreReader,
    *,
    agent: str | None = None,
    error: str | None = None,
    most: int = MAX_BATCH,
) -> tuple[list[str], bool]:
    """Return the ids of dead letters that people filter for; whether there are more than `most`."""
    names: list[str] = []
    for run, _ in _letters(record, agent, error, None):
        if len(names) == most:
            return names, True
        names.append(run.id)
    return names, False


def show_dead_letter(record: StoreReader, text: str) -> dict[str, Any]:
    """Return one dead letter for people: reason, trace, entries, what is unknown of its actions.

    `text` is a run's id or a unique beginning of one. Raises BadCommand if it names none.
    """
    run = find_dead_letter(record, text)
    history = read_run(record.ledger, run.id)
    death = _last_death(history)
    rows = record.runs.actions(run.id)
    return {
        "schema": DEAD,
        **_item(record, run, death, rows),
        "trace": None if death is None else death.trace,
        "redriven": sum(entry.kind == "run.redriven" for entry in history.entries),
        "actions": [_action(row) for row in rows],
        "timeline": [entry.item() for entry in history.entries],
        "cut": history.is_truncated,
    }


def find_dead_letter(record: StoreReader, text: str) -> Run:
    """Return the dead letter that an id or its beginning names in the record. Raises BadCommand."""
    kind, name = resolve(record, text)
    run = record.runs.run(name) if kind == "run" else None
    if run is None:
        raise BadCommand(f"{text!r} is no run", mend="see `vedette dead`")
    if run.state != "dead":
        raise BadCommand(
            f"run {run.id} is no dead letter, it is {run.state}", mend="see `vedette dead`"
        )
    return run


def _letters(
    record: StoreReader, agent: str | None, error: str | None, before: str | None
) -> Iterator[tuple[Run, DeathEntry | None]]:
    place, beside = _parse_cursor(before)
    while True:
        runs = record.runs.runs_page(
            agent=agent, state="dead", before=place, beside=beside, limit=MAX_PAGE, after=None
        )
        for run in runs:
            death = _last_death(read_run(record.ledger, run.id))
            if error is None or (death is not None and death.error == error):
                yield run, death
        if len(runs) < MAX_PAGE:
            return
        place, beside = runs[-1].position, runs[-1].agent


def _last_death(history: RunHistory) -> DeathEntry | None:
    deaths = history.of_type(DeathEntry)
    return deaths[-1] if deaths else None


def _item(
    record: StoreReader, run: Run, death: DeathEntry | None, rows: list[ActionRow] | None = None
) -> dict[str, Any]:
    rows = record.runs.actions(run.id) if rows is None else rows
    return {
        "run": run.id,
        "agent": run.agent,
        "event": run.event,
        "key": run.key,
        "at": death and death.at,
        "error": death and death.error,
        "why": death and death.why,
        "erased": death is None or death.erased,
        "turns": run.turn,
        "attempts": run.attempts,
        "unknown": [row.id for row in rows if row.effect == "unknown"],
    }


def _action(row: ActionRow) -> dict[str, Any]:
    return {
        "action": row.id,
        "tool": row.tool,
        "effect": row.effect,
        "ended_by_burial": row.rule == "run.dead",
        "tries": row.tries,
    }


def _parse_cursor(cursor: str | None) -> tuple[int | None, str]:
    if cursor is None:
        return None, ""
    seq, _, beside = cursor.partition(".")
    if not (seq.isascii() and seq.isdigit() and len(seq) < 19):
        raise BadCommand(f"{cursor[:40]!r} is no cursor", mend="take `older` of a page")
    return int(seq), beside

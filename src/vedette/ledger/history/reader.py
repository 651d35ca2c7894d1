"""A reader's ids: what an id, or a unique beginning of one, names in the record."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

from vedette.domain.base.errors import BadCommand, NotFound
from vedette.domain.ports.store import StoreReader

Kind = Literal["run", "event", "action", "hold", "effect"]

# What an id begins with. A hold and an effect share the number of their action.
PREFIXES: Mapping[str, Kind] = {
    "run_": "run",
    "evt_": "event",
    "act_": "action",
    "hold_": "hold",
    "eff_": "effect",
}

_SHORTEST = 4


def _prefer_run(found: list[tuple[Kind, str]]) -> list[tuple[Kind, str]]:
    """Return the run, or else the event, if a bare beginning means one of them and what it made.

    The ids of an event, its runs and their actions begin alike.
    """
    for kind in ("run", "event"):
        named = [one for one in found if one[0] == kind]
        if len(named) == 1:
            return named
    return found


def resolve(record: StoreReader, text: str) -> tuple[Kind, str]:
    """Return what an id or a unique beginning of one names in the record: its kind and the full id.

    Raises NotFound if it names nothing, BadCommand if more than one thing (the message lists them).
    """
    text = text.strip()
    prefix = next((known for known in PREFIXES if text.startswith(known)), None)
    if prefix is None and len(text) < _SHORTEST:
        raise BadCommand(f"{text!r} is no id", mend="give an id such as run_… or hold_…")
    found: list[tuple[Kind, str]] = []
    for known in PREFIXES if prefix is None else (prefix,):
        if prefix is None and known in ("hold_", "eff_"):
            continue
        found += _find_named(record, known, text.removeprefix(known))
    if not found:
        raise NotFound(
            f"nothing is known by {text!r}",
            mend="see `vedette runs`, `vedette hold`; the first characters of an id will do",
        )
    if prefix is None:
        found = _prefer_run(found)
    if len(found) > 1:
        several = ", ".join(name for _, name in found[:8]) + (", …" if len(found) > 8 else "")
        raise BadCommand(f"{text!r} may be any of {several}", mend="give more of the id")
    return found[0]


def _find_named(record: StoreReader, prefix: str, rest: str) -> list[tuple[Kind, str]]:
    kind = PREFIXES[prefix]
    if kind in ("run", "event"):
        return [(kind, name) for name in record.runs.find_by_prefix(kind, prefix + rest)]
    named: list[tuple[Kind, str]] = []
    for name in record.runs.find_by_prefix("action", "act_" + rest):
        if kind != "action":
            row = record.runs.action(name)
            has = row is not None and (row.hold if kind == "hold" else row.effect) is not None
            if not has:
                continue
        named.append((kind, prefix + name.removeprefix("act_")))
    return named


def to_action_id(name: str) -> str:
    """Return the id of the action that a reader means by the id of it, its hold or its effect."""
    return "act_" + name.partition("_")[2]

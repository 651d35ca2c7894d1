"""What a candidate would have changed: recent events judged with it and without it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vedette.interfaces.cli.common import reading

if TYPE_CHECKING:
    from vedette.config import Settings
    from vedette.domain.event import Event


def would_flip(
    settings: Settings, agent: str, candidate: Mapping[str, Any], taught: Mapping[str, Any]
) -> dict[str, Any]:
    """Return which of an agent's latest runs a candidate would have labelled otherwise.

    The judge is made twice here, of what the fleet makes it of (`taught`: folder, charter and
    lessons); nothing of it is stored.
    """
    from vedette.config import load_module
    from vedette.config.agent_loader import judge_of
    from vedette.domain.memory import Memory
    from vedette.memory.review import flips, keeps_state, taught_with

    found: dict[str, Any] = {"agent": agent, "events": 0, "flips": [], "why_not": None}
    if candidate["kind"] != "example" or not candidate["label"]:
        return {**found, "why_not": "it is no labelled example"}
    folder, charter = Path(taught["folder"]), taught["charter"]
    if keeps_state(load_module(folder, "judge").Judge):
        return {**found, "why_not": "its judge keeps a state"}
    lessons = [Memory(**{**one, "topics": tuple(one["topics"])}) for one in taught["lessons"]]
    before = judge_of(folder, charter, lessons)
    after = judge_of(folder, charter, taught_with(lessons, candidate))
    runs = _latest(settings, agent)
    told = [asdict(flip) for flip in flips(before, after, runs, agent)]
    return {**found, "events": len(runs), "flips": told}


def _latest(settings: Settings, agent: str) -> list[tuple[str, Event]]:
    """Return the agent's latest runs with their events, as far as these are not erased."""
    from vedette.memory.review import MOST_EVENTS

    with reading(settings) as store:
        runs = store.runs_page(agent=agent, state=None, before=None, limit=MOST_EVENTS)
        found = [(run.id, store.event(run.event)) for run in runs]
    return [(run, event) for run, event in found if event is not None]

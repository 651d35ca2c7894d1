"""Trial of a memory's candidate: recent events judged with it and without it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from msgspec.structs import asdict

from vedette.domain.memory import Memory

if TYPE_CHECKING:
    from vedette.domain.event import Event
    from vedette.store.reader import StoreReader


def try_candidate(
    store: StoreReader, agent: str, candidate: Mapping[str, Any], training: Mapping[str, Any]
) -> dict[str, Any]:
    """Try a candidate on an agent's own judge: return which latest runs it would label otherwise.

    The judge is made twice here, of what the fleet makes it of (`training`: folder, charter and
    lessons); nothing of it is stored. `why_not` says why it was not tried, None if it was.
    """
    from vedette.config.agent_loader import load_judge, load_module
    from vedette.memory.review import add_lesson, find_flips, is_stateful

    found: dict[str, Any] = {"agent": agent, "events": 0, "flips": [], "why_not": None}
    if candidate["kind"] != "example" or not candidate["label"]:
        return {**found, "why_not": "it is no labelled example"}
    folder, charter = Path(training["folder"]), training["charter"]
    if is_stateful(load_module(folder, "judge").Judge):
        return {**found, "why_not": "its judge keeps a state"}
    lessons = [Memory(**{**one, "topics": tuple(one["topics"])}) for one in training["lessons"]]
    before = load_judge(folder, charter, lessons)
    after = load_judge(folder, charter, add_lesson(lessons, candidate))
    runs = _latest_runs(store, agent)
    flips = [asdict(flip) for flip in find_flips(before, after, runs, agent)]
    return {**found, "events": len(runs), "flips": flips}


def _latest_runs(store: StoreReader, agent: str) -> list[tuple[str, Event]]:
    """Return the agent's latest runs with their events, as far as these are not erased."""
    from vedette.memory.review import MOST_EVENTS

    runs = store.runs.runs_page(agent=agent, state=None, before=None, limit=MOST_EVENTS)
    found = [(run.id, store.runs.event(run.event)) for run in runs]
    return [(run, event) for run, event in found if event is not None]

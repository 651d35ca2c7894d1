"""Agents as their kept releases declare them: read out of the snapshots of the state folder."""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec.structs import replace

from vedette.config.snapshot import find_snapshot
from vedette.domain.agent import Agent
from vedette.domain.base.errors import BadCommand

if TYPE_CHECKING:
    from vedette.config.settings import Settings


def load_released_agent(
    settings: Settings, name: str, release: str, *, now_us: int = 0
) -> Agent | None:
    """Return an agent as the snapshot of a release declares it; None if that is not kept whole.

    Raises BadCommand for one that this version, or the fleet of today, does not take.
    """
    from vedette.config.fleet import read_fleet

    snapshot = find_snapshot(settings.state, release, name)
    if snapshot is None:
        return None
    # Read as any folder of agents, one that holds this agent alone.
    release_settings = replace(settings, agents=snapshot.folder.parent)
    agents, _, problems = read_fleet(settings.root, release_settings, now_us=now_us)
    if name not in agents:
        first = next(p for p in problems if not p.warning)
        raise BadCommand(first.what, where=first.file, mend=first.mend or None)
    return replace(agents[name], folder=str(snapshot.folder), release=release)

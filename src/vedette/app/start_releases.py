"""Start releases: what a start runs of an agent whose folder was taken back, or is tried.

Who rolls an agent back, or begins a canary, leaves its folder as it is. So that a restart does not
bring back what was taken back, give a canary every key, or run what somebody is still editing, the
release that the ledger names runs on out of its snapshot until a person gives `agent release`.
Of every other agent a start releases what lies in its folder.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from msgspec import Struct

from vedette.app.release_archive import load_kept_release
from vedette.domain.base.errors import BadCommand
from vedette.domain.ports.store import StoreReader
from vedette.ledger.history.release_history import find_waiting_folders

if TYPE_CHECKING:
    from vedette.config.fleet import LoadedFleet
    from vedette.config.settings import Settings


class StartReleases(Struct, frozen=True):
    """What a start made of the folders that wait.

    `missing` are the agents whose release cannot be run here, with its digest: they are to begin
    nothing. `told` is what a person should see.
    """

    missing: Mapping[str, str]
    told: list[str]


def apply_start_releases(
    loaded: LoadedFleet, settings: Settings, store: StoreReader
) -> StartReleases:
    """Have agents whose folder waits run the release that the ledger names."""
    missing: dict[str, str] = {}
    told = []
    for name, waiting in find_waiting_folders(store.ledger).items():
        agent = loaded.fleet.agents.get(name)
        if agent is None or agent.release == waiting.release:
            continue
        short, join = waiting.release[:12], f"`vedette agent release {name}`"
        try:
            released = load_kept_release(settings, store, name, waiting.release)
            why = "its files are not kept here"
        except BadCommand as error:
            released, why = None, str(error)
        if released is None:
            missing[name] = waiting.release
            told.append(
                f"{name} begins nothing: it was taken back to release {short}, and {why}; "
                f"{join} makes what its folder holds the release"
            )
            continue
        loaded.fleet.replace(released)
        told.append(
            f"{name} runs release {short}: its folder, which holds {agent.release[:12]}, was "
            f"taken back or is tried in a canary; {join} makes it the release"
        )
    return StartReleases(missing, told)

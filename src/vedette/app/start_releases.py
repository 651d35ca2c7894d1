"""Start releases: what a start runs of an agent whose folder was taken back, or is tried.

Who rolls an agent back, or begins a canary, leaves its folder as it is. So that a restart does not
bring back what was taken back, or give a canary every key, the release that the ledger names
runs on out of its snapshot for as long as the folder has that content; anything else that lies
there is released by a start as ever.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import orjson
from msgspec import Struct, field

from vedette.config.agent_snapshot import load_released_agent
from vedette.domain.base.errors import BadCommand, BadFleet
from vedette.domain.entry import RELEASE_KINDS, releases_of
from vedette.domain.ports.ledger_reader import EntryLog

if TYPE_CHECKING:
    from vedette.config.fleet import LoadedFleet
    from vedette.config.settings import Settings


class StartRelease(Struct):
    """What a start makes of an agent's folder: `release` runs while it holds one of `contents`."""

    release: str
    contents: set[str] = field(default_factory=set)


def find_start_releases(record: EntryLog) -> Mapping[str, StartRelease]:
    """Return, by agent, the release that the ledger names, and the contents it runs in place of."""
    found: dict[str, StartRelease] = {}
    for _, raw, _, _ in record.walk((*RELEASE_KINDS, "canary.started")):
        entry = orjson.loads(raw)
        if entry["kind"] == "canary.started":
            # The folder's content is a canary's, whatever comes of it, until it is released.
            known = found.setdefault(entry["agent"], StartRelease(entry["what"]))
            known.contents.add(entry["release"])
            continue
        for name, release in releases_of(entry).items():
            before = found.get(name)
            if entry.get("back_to") is not None:
                contents = set() if before is None else before.contents
                found[name] = StartRelease(release, (contents | {entry["what"]}) - {release})
            elif before is None or entry["kind"] == "agent.released" or release != before.release:
                found[name] = StartRelease(release)
    return found


def apply_start_releases(loaded: LoadedFleet, settings: Settings, record: EntryLog) -> list[str]:
    """Have agents whose folder waits run the release that the ledger names; say which.

    Raises BadFleet where that release's files are not kept, or it fits the fleet no more.
    """
    told = []
    for name, start in find_start_releases(record).items():
        agent = loaded.fleet.agents.get(name)
        if agent is None or agent.release not in start.contents:
            continue
        mend = "change its folder: a start releases what it holds then"
        try:
            released = load_released_agent(settings, name, start.release)
        except BadCommand as error:
            raise BadFleet(error.what, where=error.where, mend=mend) from error
        if released is None:
            short = start.release[:12]
            what = f"{name} was taken back to release {short}, whose files are not kept"
            raise BadFleet(what, where=str(settings.agents / name), mend=mend)
        loaded.fleet.replace(released)
        told.append(
            f"{name} runs release {start.release[:12]}: its folder still holds "
            f"{agent.release[:12]}, which was taken back or is tried in a canary; "
            f"`vedette agent release {name}` makes it the release"
        )
    return told

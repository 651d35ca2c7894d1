"""The release archive: the files of releases in the store, for agents whose tasks stay on one.

A snapshot lies in the state folder of one worker, and no backup has it. What a task runs on is
needed by whoever takes it up: it is kept with the record, under `release/NAME/DIGEST`, before it
becomes a release. Who takes it from there compares the digest.
"""

from __future__ import annotations

import asyncio
import zlib
from base64 import b64decode, b64encode
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import orjson

from vedette.config.agent_folder import digest_files, read_files
from vedette.config.agent_snapshot import load_released_agent
from vedette.config.snapshot import Snapshot, find_snapshot, keep_files
from vedette.domain.agent import Agent
from vedette.domain.ports.store import Store, StoreReader

if TYPE_CHECKING:
    from vedette.config.settings import Settings


def _key(name: str, release: str) -> str:
    return f"release/{name}/{release}"


def pack_files(files: Mapping[str, bytes]) -> str:
    """Return an agent's files as one text: JSON of base64 by path, deflated, in base64."""
    named = {path: b64encode(data).decode() for path, data in sorted(files.items())}
    return b64encode(zlib.compress(orjson.dumps(named))).decode()


def unpack_files(text: str) -> dict[str, bytes]:
    """Return the files of `pack_files`. Raises ValueError."""
    try:
        named = orjson.loads(zlib.decompress(b64decode(text, validate=True)))
        return {str(path): b64decode(data, validate=True) for path, data in named.items()}
    except (zlib.error, AttributeError, TypeError) as error:
        raise ValueError("no files of a release") from error


async def keep_in_store(store: Store, agents: Iterable[Agent]) -> None:
    """Keep the releases of agents that take tasks, out of their snapshots; of others nothing.

    Raises StoreFailed, OSError.
    """
    for agent in agents:
        key = _key(agent.name, agent.release)
        if agent.work is None or store.meta(key) is not None:
            continue
        files = await asyncio.to_thread(read_files, Path(agent.folder))
        await store.commands.set_meta(key, pack_files(files))


def load_kept_release(
    settings: Settings, store: StoreReader, name: str, release: str, now_us: int = 0
) -> Agent | None:
    """Return a release of an agent, out of its snapshot or the store; None if it is kept nowhere.

    Raises as `load_released_agent`, StoreFailed, OSError.
    """
    if _restore_snapshot(settings, store, name, release) is None:
        return None
    return load_released_agent(settings, name, release, now_us=now_us)


def _restore_snapshot(
    settings: Settings, store: StoreReader, name: str, release: str
) -> Snapshot | None:
    """Return the snapshot of a release, out of the store where it is not here; None if nowhere."""
    found = find_snapshot(settings.state, release, name)
    text = store.meta(_key(name, release)) if found is None else None
    if text is None:
        return found
    try:
        files = unpack_files(text)
        if digest_files(files) != release:
            return None
    except ValueError:
        return None
    return keep_files(settings.state, name, files)

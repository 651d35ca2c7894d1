"""Reset: empties the state folder, and nothing that is not one (`vedette run --fresh`)."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import TYPE_CHECKING

from vedette.domain.base.errors import BadCommand
from vedette.domain.base.state_folder import refuse_link
from vedette.store.runner_lock import LOCK_FILE, acquire_lock

if TYPE_CHECKING:
    from vedette.config.settings import Settings

# What a sample target writes there of its own: its record outlives the fleet's.
_RECEIVER_PREFIX = "receiver."


def wipe_state(settings: Settings) -> list[str]:
    """Empty a fleet's state folder: store, keys, copies, caches; return the names.

    Raises StoreBusy if a runner lives, and BadCommand if the folder is not plainly a state folder.
    """
    state = settings.state
    refuse_link(state)
    if not state.exists():
        return []
    _check_state_folder(settings)
    mend = "stop it first; --fresh deletes what it works on"
    with acquire_lock(state / LOCK_FILE, mend=mend):
        removed = []
        # The lock itself stays: another runner may be about to take it.
        for path in sorted(state.iterdir()):
            if path.name == LOCK_FILE or path.name.startswith(_RECEIVER_PREFIX):
                continue
            if path.is_dir() and not path.is_symlink():
                shutil.rmtree(path)
            else:
                path.unlink()
            removed.append(path.name)
        return removed


def _check_state_folder(settings: Settings) -> None:
    """A state folder lies apart from the content, and a runner has left its mark in it."""
    state = settings.state.resolve()
    others = (settings.root, settings.agents, settings.policies, settings.memory, Path.home())
    for other in others:
        if other.resolve().is_relative_to(state):
            mend = "name a state folder of its own in vedette.toml"
            raise BadCommand(f"would delete {other}", where=str(state), mend=mend)
    found = [path.name for path in state.iterdir() if not path.name.startswith(_RECEIVER_PREFIX)]
    if found and not {LOCK_FILE, "store.db"} & set(found):
        raise BadCommand(
            f"does not look like a state folder (it holds {found[0]!r} and no {LOCK_FILE})",
            where=str(state),
            mend="empty it yourself if that is what you mean",
        )

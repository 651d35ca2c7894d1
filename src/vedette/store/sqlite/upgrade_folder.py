"""The folder of a state folder in which an upgrade makes the new file: `upgrade/`.

It goes when the new file is in its place. Where somebody was killed between the two, whoever owns
the store next removes what is left.
"""

from __future__ import annotations

import shutil
from pathlib import Path

from vedette.domain.base.fsync import sync
from vedette.domain.base.state_folder import refuse_link

FOLDER = "upgrade"


def make_work(state: Path) -> Path:
    """Return the folder, made if it is not there; what no upgrade put there goes.

    Raises BadStore for a link.
    """
    work = state / FOLDER
    refuse_link(work)
    if work.exists() and not work.is_dir():
        work.unlink()
    work.mkdir(mode=0o700, exist_ok=True)
    for path in work.iterdir():
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
    sync(state)
    return work


def drop_work(state: Path) -> None:
    """Remove the folder, if it is there."""
    shutil.rmtree(state / FOLDER, ignore_errors=True)

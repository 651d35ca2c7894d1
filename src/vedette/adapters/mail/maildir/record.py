"""The mails of a Maildir++ mailbox: where each lies, how it is flagged, since when.

`emptied = ["Outbox"]` in the target names the folders that others take mails out of.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from vedette.domain.base.errors import BadFleet, Unavailable
from vedette.domain.target_record import INBOX, Mail

_INFO = ":2,"


def drained_folders(table: Mapping[str, Any]) -> frozenset[str]:
    """Return the Maildir folders that others take mails out of."""
    named = table.get("emptied", ["Outbox"])
    if not isinstance(named, list) or not all(isinstance(one, str) for one in named):
        raise BadFleet("emptied is a list of folders", where="target", mend='as ["Outbox"]')
    return frozenset(named)


def read_mails(table: Mapping[str, Any], where: str) -> list[Mail]:
    """Return every mail of a Maildir. Raises Unavailable if there is none at the path.

    Read until nothing moved meanwhile, a few times at most: a mail that moves while we read is
    seen in neither folder, or in both.
    """
    root = Path(str(table.get("path")))
    if not (root / "new").is_dir() and not (root / "cur").is_dir():
        raise Unavailable(f"{root} is no Maildir", where=where, mend="mount it, or mend path")
    before = _list_mails(root)
    for _ in range(5):
        now = _list_mails(root)
        if now == before:
            break
        before = now
    return before


def _list_mails(root: Path) -> list[Mail]:
    return sorted(_scan_mails(root), key=lambda mail: (mail.name, mail.folder))


def _scan_mails(root: Path) -> Iterator[Mail]:
    folders = {INBOX: root}
    with os.scandir(root) as entries:
        for entry in entries:
            inside = Path(entry.path)
            if entry.name.startswith(".") and entry.is_dir() and (inside / "cur").is_dir():
                folders[entry.name[1:]] = inside
    for folder, path in folders.items():
        for place in ("new", "cur"):
            try:
                with os.scandir(path / place) as entries:
                    found = [(e.name, e) for e in entries if not e.name.startswith(".")]
            except FileNotFoundError:
                continue
            for name, entry in found:
                unique, _, flags = name.partition(_INFO)
                try:
                    # The instant of the last rename: a move or a flag.
                    changed = entry.stat(follow_symlinks=False).st_ctime_ns // 1000
                except FileNotFoundError:
                    continue
                yield Mail(unique, folder, flags, changed)

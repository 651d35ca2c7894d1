"""A policy folder's upload: over the network nobody names a folder of the gateway's host."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path, PurePosixPath
from typing import Any

from vedette.domain.base.errors import BadCommand

MAX_FILES = 1000


@contextmanager
def unpack_files(args: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield an upload's arguments of `policy_apply`, `files` (path -> text) in a private folder.

    The folder is gone afterwards. Raises BadCommand for a `folder`, and for a path that leads out
    of the folder or is hidden.
    """
    if "folder" in args:
        what = "a folder of the gateway's host cannot be named from here"
        raise BadCommand(what, mend="send files: an object of path and text")
    files = args.get("files")
    if not isinstance(files, dict) or not 0 < len(files) <= MAX_FILES:
        raise BadCommand(f"files is an object of 1 to {MAX_FILES} paths and texts")
    with tempfile.TemporaryDirectory(prefix="vedette-policy-") as folder:
        for name, text in files.items():
            if not isinstance(text, str):
                raise BadCommand("a file is a text", where=name)
            path = Path(folder) / _check_path(name)
            try:
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_bytes(text.encode("utf-8"))
            except (OSError, ValueError) as error:
                raise BadCommand("cannot be the path of a file", where=name) from error
        yield {**{k: v for k, v in args.items() if k != "files"}, "folder": folder}


def _check_path(name: str) -> PurePosixPath:
    path = PurePosixPath(name)
    hidden = [part for part in path.parts if part.startswith(".")]
    if path.is_absolute() or "\0" in name or not path.parts or hidden not in ([], [".manifest"]):
        raise BadCommand("leads out of the folder, or is hidden", where=name[:200])
    return path

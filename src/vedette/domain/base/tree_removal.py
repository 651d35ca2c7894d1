"""Removal of a folder that a stranger filled: as deep as it likes, of any mode, full of links.

Nothing here recurses or follows a link.
"""

from __future__ import annotations

import os
import stat
import sys
from contextlib import suppress
from pathlib import Path

from vedette.domain.base import machine


def remove_tree(path: Path) -> None:
    """Remove a scratch folder and all in it, or a file; what cannot be removed is left."""
    with suppress(OSError):
        if path.is_symlink() or not path.is_dir():
            path.unlink()
            return
        root = _open_folder(str(path), None)
        try:
            # A folder's folders are moved up before it goes, so no depth needs a stack.
            while folders := _remove_files(root, None):
                if not sum(_remove_folder(root, name) for name in folders):
                    break
        finally:
            os.close(root)
        path.rmdir()


def _remove_folder(root: int, name: str) -> bool:
    """Remove a folder in `root`; what folders it holds come to lie in `root`. False if it stays."""
    try:
        folder = _open_folder(name, root)
        try:
            _remove_files(folder, root)
        finally:
            os.close(folder)
        os.rmdir(name, dir_fd=root)
    except OSError:
        return False
    return True


def _remove_files(folder: int, up: int | None) -> list[str]:
    """Remove the files of a folder, move its folders to `up`; return the names of its folders."""
    folders = []
    for name in os.listdir(folder):
        with suppress(OSError):
            found = os.stat(name, dir_fd=folder, follow_symlinks=False)
            if not stat.S_ISDIR(found.st_mode):
                os.unlink(name, dir_fd=folder)
                continue
            folders.append(name)
            if up is not None:
                os.close(_open_folder(name, folder))  # who moves a folder must own its mode
                os.rename(name, machine.random_bytes(16).hex(), src_dir_fd=folder, dst_dir_fd=up)
    return folders


def _open_folder(name: str, within: int | None) -> int:
    """Open a folder, never a link to one, whatever its mode was. Raises OSError."""
    flags = os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
    if sys.platform != "linux":
        os.chmod(name, 0o700, dir_fd=within, follow_symlinks=False)
        return os.open(name, flags | os.O_RDONLY, dir_fd=within)
    path = os.open(name, flags | os.O_PATH, dir_fd=within)
    try:
        Path(f"/proc/self/fd/{path}").chmod(0o700)
        return os.open(".", flags | os.O_RDONLY, dir_fd=path)
    finally:
        os.close(path)

"""The cache of wasmtime's machine code of OPA's Wasm: compiling it takes 0.6 s of CPU.

Whoever can write such a file runs what they like in the gateway. So it lies in a folder that only
the fleet's own user may write to, as its keys do, and is passed over where that is not so. That of
the shipped rules may lie in the package itself, beside their Wasm: there it is what the modules
around it are, if nobody but their owner may write it. The digest before the code finds a file that
was cut off or damaged; it proves nothing of its author.
"""

from __future__ import annotations

import os
import stat
import tempfile
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import vedette
from vedette.domain.base.canonical import sha256_hex

# The Wasm of the shipped rules, made when the wheel is built and by `make setup`
# (tools/policy_wasm.py), and beside it, if it was made, their machine code (`__main__.py`).
SHIPPED_FOLDER = Path(vedette.__file__).parent / "_wasm"

# Of each the newest: the live rules, those before them, and two of another wasmtime.
_MAX_FILES = 4
_DIGEST = 64


class MachineCodeCache:
    """The files of wasmtime's machine code in one folder, by the digest of the Wasm they came from.

    Who may write nothing (`vedette check`) asks for it `read_only`. `owner` is the id of the user
    who alone may write there: that of this process unless another is named.
    """

    def __init__(self, folder: Path, *, read_only: bool = False, owner: int | None = None) -> None:
        self._folder = folder
        self._read_only = read_only
        self._owner = os.geteuid() if owner is None else owner

    def read(self, name: str) -> bytes | None:
        """Return the code that is kept under a name; None if there is none of ours."""
        try:
            if not self._is_private(os.lstat(self._folder), stat.S_ISDIR):
                return None
            descriptor = os.open(self._path(name), os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
            with os.fdopen(descriptor, "rb") as file:
                if not self._is_private(os.fstat(descriptor), stat.S_ISREG):
                    return None
                raw = file.read()
        except OSError:
            return None
        digest, code = raw[:_DIGEST], raw[_DIGEST:]
        return code if digest == sha256_hex(code).encode("ascii") else None

    def write(self, name: str, code: bytes) -> None:
        """Keep code under a name. What cannot be kept is compiled again next time."""
        if self._read_only:
            return
        with suppress(OSError):
            self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            if not self._is_private(os.lstat(self._folder), stat.S_ISDIR):
                return
            descriptor, made = tempfile.mkstemp(prefix=".code.", dir=self._folder)
            try:
                with os.fdopen(descriptor, "wb") as file:
                    file.write(sha256_hex(code).encode("ascii") + code)
                Path(made).replace(self._path(name))
            except OSError:
                Path(made).unlink(missing_ok=True)
                raise
            self._prune()

    def _path(self, name: str) -> Path:
        return self._folder / f"{name}.cwasm"

    def _prune(self) -> None:
        found = sorted(self._folder.glob("*.cwasm"), key=lambda path: path.stat().st_mtime_ns)
        for path in found[:-_MAX_FILES]:
            path.unlink(missing_ok=True)

    def _is_private(self, found: os.stat_result, kind: Callable[[int], bool]) -> bool:
        """Say whether nobody but the owner may write to a file or folder."""
        return kind(found.st_mode) and found.st_uid == self._owner and not found.st_mode & 0o022


def package_cache(*, read_only: bool = True) -> MachineCodeCache:
    """Return the cache beside the shipped Wasm; whose the package is, they alone may write there.

    Who runs a fleet trusts that user with every line of vedette.
    """
    owner = Path(vedette.__file__).stat().st_uid
    return MachineCodeCache(SHIPPED_FOLDER, read_only=read_only, owner=owner)

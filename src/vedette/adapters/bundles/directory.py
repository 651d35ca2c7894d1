"""A folder as a bundle repository: whole files, synced, changed under a lock of all writers."""

from __future__ import annotations

import fcntl
import os
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from vedette.domain.base.canonical import sha256_hex
from vedette.domain.base.errors import BadPolicy, Unavailable
from vedette.domain.base.failpoint import hit_failpoint
from vedette.domain.base.fsync import sync

LOCK = ".lock"
# How long another writer is waited for; it holds the lock for as long as one file takes.
LOCK_S = 3.0
_POLL_S = 0.02
MAX_BYTES = 32 << 20


class DirectoryRepository:
    """Bundle archives in a folder made on first use; whoever can read the folder can read them.

    The version of a file is the digest of its bytes. A process that dies leaves no half file:
    each is written beside its place, synced, and then moved there.
    """

    def __init__(self, where: str) -> None:
        self.where = where
        self._folder = Path(where)

    def get(self, name: str) -> tuple[bytes, str] | None:
        """Return the bytes under a name and their version; None if there are none."""
        path = self._folder / name
        with self._translate_errors(path):
            try:
                with path.open("rb") as file:
                    raw = file.read(MAX_BYTES + 1)
            except FileNotFoundError:
                return None
        if len(raw) > MAX_BYTES:
            raise BadPolicy(f"is larger than {MAX_BYTES >> 20} MiB", where=str(path))
        return raw, sha256_hex(raw)

    def put(self, name: str, raw: bytes) -> None:
        """Put bytes under a name that tells their content; what is there already stays."""
        path = self._folder / name
        with self._translate_errors(path):
            there = self.get(name)
            if there is None:
                path.parent.mkdir(parents=True, exist_ok=True)
                # A link, not a rename: it never takes the place of something else.
                with _temporary_file(path, raw) as new, suppress(FileExistsError):
                    os.link(new, path)
                sync(path.parent)
                there = self.get(name)
        if there is None or there[0] != raw:
            raise BadPolicy(
                "holds other bytes than its name tells",
                where=str(path),
                mend="somebody changed it: look who can write there, then delete it",
            )

    def replace(self, name: str, raw: bytes, version: str | None) -> bool:
        """Put bytes under a name if it still has this version; say whether it had."""
        path = self._folder / name
        with self._translate_errors(path), self._exclusive_lock():
            there = self.get(name)
            if (there[1] if there else None) != version:
                return False
            with _temporary_file(path, raw) as new:
                Path(new).replace(path)
            sync(path.parent)
            return True

    @contextmanager
    def _exclusive_lock(self) -> Iterator[None]:
        """Keep other writers out; the system lets go of the lock of one that dies."""
        self._folder.mkdir(parents=True, exist_ok=True)
        lock = os.open(self._folder / LOCK, os.O_RDWR | os.O_CREAT, 0o600)
        try:
            self._acquire_lock(lock)
            yield
        finally:
            os.close(lock)

    def _acquire_lock(self, lock: int) -> None:
        """Take the lock. Raises Unavailable: one that hangs with it must not keep us as well."""
        end = time.monotonic() + LOCK_S
        while True:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                if time.monotonic() >= end:
                    where = str(self._folder / LOCK)
                    mend = "see which process holds it (fuser), and end it if it hangs"
                    raise Unavailable(
                        f"another writer has held the shelf for {LOCK_S:g} s",
                        where=where,
                        mend=mend,
                    ) from None
                time.sleep(_POLL_S)
            else:
                return

    @contextmanager
    def _translate_errors(self, path: Path) -> Iterator[None]:
        """Raise Unavailable for what the system refuses."""
        try:
            yield
        except OSError as error:
            raise Unavailable(
                f"the shelf cannot be used: {error.strerror or error}",
                where=str(path),
                mend="see `bundles` in [policy] of vedette.toml",
            ) from error


@contextmanager
def _temporary_file(path: Path, raw: bytes) -> Iterator[str]:
    """Write bytes to a file beside `path`, synced; it is gone afterwards unless it was moved."""
    descriptor, new = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
    try:
        with os.fdopen(descriptor, "wb") as file:
            # Others read it: a bundle is code, no secret.
            os.fchmod(descriptor, 0o644)
            file.write(raw)
            file.flush()
            os.fsync(descriptor)
        hit_failpoint("shelf:mid")
        yield new
    finally:
        with suppress(FileNotFoundError):
            Path(new).unlink()

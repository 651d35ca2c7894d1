"""The ledger's signing key: an Ed25519 key in the state folder, readable by its owner alone.

A rotation puts the next key beside the present one before the entry that names it is committed,
and in its place after; whoever finds both asks the store which of them is in force.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from vedette import crashpoint
from vedette.errors import BadStore
from vedette.proof import SigningKey, verifier_key

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

KEY_FILE = "ledger.key"
NEXT_FILE = "ledger.key.next"
PUBLIC_FILE = "ledger.pub"


def ledger_key(
    folder: Path, name: str, in_force: Callable[[], str | None] | None = None
) -> SigningKey:
    """Return the fleet's signing key, made on first use; its public half lies beside it.

    `ledger.pub` holds the verifier key line of the *first* key (see vedette.proof): copy it, and
    the witness file, to where nobody who can write the store can write. `in_force` tells the
    verifier key that the store's last rotation named, None if there was none; it is asked only if
    a rotation was broken off. Raises BadStore for a key that is missing or none.
    """
    path = folder / KEY_FILE
    if (folder / NEXT_FILE).exists():
        _mend(folder, name, in_force() if in_force is not None else None)
    if path.exists():
        key = read_key(path)
    else:
        if (folder / "store.db").exists():
            raise BadStore(
                "the signing key of this store is missing",
                where=str(path),
                mend="restore it; a new key would not match the ledger's checkpoints",
            )
        key = _new()
        folder.mkdir(parents=True, exist_ok=True)
        write_private(path, key.private_bytes_raw())
    public = folder / PUBLIC_FILE
    if not public.exists():
        write_private(public, (line_of(name, key) + "\n").encode("ascii"))
    return key


class KeyFolder:
    """The keys of a state folder, for their rotation: prepare, then finish or drop."""

    def __init__(self, folder: Path, name: str) -> None:
        self._folder = folder
        self._name = name

    def prepare(self) -> tuple[SigningKey, str]:
        """Make the next key durable beside the present one; return it and its verifier key."""
        path = self._folder / NEXT_FILE
        path.unlink(missing_ok=True)
        key = _new()
        write_private(path, key.private_bytes_raw())
        return key, line_of(self._name, key)

    def finish(self) -> None:
        """Put the next key in the place of the present one, and overwrite that."""
        _finish(self._folder)

    def drop(self) -> None:
        """Forget the next key: its rotation was not committed."""
        (self._folder / NEXT_FILE).unlink(missing_ok=True)


def read_key(path: Path) -> Ed25519PrivateKey:
    """Read a private key. Raises BadStore if the file holds none."""
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

    raw = path.read_bytes()
    if len(raw) != 32:
        raise BadStore("is not a signing key", where=str(path), mend="restore it from a backup")
    return Ed25519PrivateKey.from_private_bytes(raw)


def line_of(name: str, key: SigningKey) -> str:
    """Return the verifier key line of a key."""
    return verifier_key(name, key.public_key().public_bytes_raw())


def write_private(path: Path, raw: bytes) -> None:
    """Write a new file that its owner alone may read: durable and whole, or not there at all.

    Raises FileExistsError if somebody else was here first.
    """
    crashpoint.reach("key:before")
    import tempfile  # a key is made once, and loading this costs every start

    descriptor, name = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
    with os.fdopen(descriptor, "wb") as file:
        file.write(raw)
        file.flush()
        os.fsync(file.fileno())
    crashpoint.reach("key:mid")
    # A link, not a rename: what is there already keeps its place.
    try:
        os.link(name, path)
    finally:
        Path(name).unlink()
    _sync(path.parent)
    crashpoint.reach("key:after")


def _mend(folder: Path, name: str, in_force: str | None) -> None:
    """End a rotation that was broken off: as the store says, forward or back."""
    path = folder / NEXT_FILE
    raw = path.read_bytes()
    if in_force is not None and len(raw) == 32 and line_of(name, read_key(path)) == in_force:
        _finish(folder)
    else:
        path.unlink()


def _finish(folder: Path) -> None:
    path = folder / KEY_FILE
    crashpoint.reach("rotate:before")
    with path.open("r+b") as old:
        (folder / NEXT_FILE).replace(path)
        _sync(folder)
        crashpoint.reach("rotate:mid")
        # The name is the new key's by now; this is the old one's content, wherever it lies.
        old.write(bytes(32))
        old.flush()
        os.fsync(old.fileno())
    crashpoint.reach("rotate:after")


def _sync(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _new() -> Ed25519PrivateKey:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

    return Ed25519PrivateKey.generate()

"""The ledger's signing key: an Ed25519 key in the state folder, readable by its owner alone.

A rotation puts the next key beside the present one before the entry that names it is committed,
and in its place after; whoever finds both asks the store which of them is in force. Each next key
has a file of its own, so no rotation can destroy what another has made.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING

from vedette.domain.base import failpoint, machine
from vedette.domain.base.errors import BadStore
from vedette.domain.base.fsync import create_atomic, remove_partial_files, sync
from vedette.ledger.merkle import SigningKey, verifier_key

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

KEY_FILE = "ledger.key"
# Of each next key: this, and the beginning of the digest of its public half.
NEXT_KEY_PREFIX = "ledger.key.next"
PUBLIC_FILE = "ledger.pub"


def open_ledger_key(folder: Path, name: str, in_force: Callable[[], str | None]) -> SigningKey:
    """Return the ledger's signing key from its file in the state folder, made on first use.

    The caller holds the runner's lock of the folder: whoever rotates holds it too, and a key that
    is on its way to be named must not be taken for one that was left behind.

    `ledger.pub` holds the verifier key line of the *first* key (see vedette.proof): copy it, and
    the witness file, to where nobody who can write the store can write. `in_force` tells the
    verifier key that the store's last rotation named, None if there was none; it is asked only if
    a rotation was broken off, or the key is not the first. Raises BadStore for a key that is
    missing, none, or not the one in force.
    """
    path, public = folder / KEY_FILE, folder / PUBLIC_FILE
    remove_partial_files(folder)
    next_keys = next_key_files(folder)
    if next_keys:
        _recover_rotations(folder, name, next_keys, in_force())
    if path.exists():
        key = read_signing_key(path)
    else:
        if (folder / "store.db").exists():
            raise BadStore(
                "the signing key of this store is missing",
                where=str(path),
                mend="restore it; a new key would not match the ledger's checkpoints",
            )
        key = _generate_key()
        folder.mkdir(parents=True, exist_ok=True)
        write_key_file(path, key.private_bytes_raw())
    verifier_line = format_verifier_key(name, key)
    if not public.exists():
        write_key_file(public, (verifier_line + "\n").encode("ascii"))
    elif (
        public.read_text(encoding="utf-8").strip() != verifier_line and in_force() != verifier_line
    ):
        raise BadStore(
            "the signing key is neither the first, whose public half is ledger.pub, nor the one "
            "that the ledger's last rotation named",
            where=str(path),
            mend="put the key in its place that signs this ledger",
        )
    return key


def next_key_files(folder: Path) -> list[Path]:
    """Return the files of next signing keys that are in a state folder."""
    return sorted(folder.glob(f"{NEXT_KEY_PREFIX}*"))


class KeyFolder:
    """The signing keys of a state folder, for their rotation: prepare, then finish or drop.

    For whoever holds the runner's lock of the folder.
    """

    def __init__(self, folder: Path, name: str) -> None:
        self._folder = folder
        self._name = name
        self._pending_key: SigningKey | None = None

    def prepare(self) -> tuple[SigningKey, str]:
        """Make a next key durable beside the present one; return it and its verifier key.

        A rotation that was broken off behind its commit is finished first.
        """
        if self._pending_key is not None:
            self.finish(self._pending_key)
        key = _generate_key()
        write_key_file(self._key_path(key), key.private_bytes_raw())
        return key, format_verifier_key(self._name, key)

    def finish(self, key: SigningKey) -> None:
        """Put this next key in the place of the present one, and overwrite that."""
        self._pending_key = key
        if self._key_path(key).exists():
            _install_key(self._folder, self._key_path(key))
        self._pending_key = None

    def drop(self, key: SigningKey) -> None:
        """Forget this next key: it is certain that its rotation was not committed."""
        self._key_path(key).unlink(missing_ok=True)

    def _key_path(self, key: SigningKey) -> Path:
        digest = sha256(key.public_key().public_bytes_raw()).hexdigest()
        return self._folder / f"{NEXT_KEY_PREFIX}.{digest[:16]}"


def read_signing_key(path: Path) -> Ed25519PrivateKey:
    """Read a private signing key (Ed25519). Raises BadStore if the file holds none."""
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

    raw = path.read_bytes()
    if len(raw) != 32:
        raise BadStore("is not a signing key", where=str(path), mend="restore it from a backup")
    return Ed25519PrivateKey.from_private_bytes(raw)


def format_verifier_key(name: str, key: SigningKey) -> str:
    """Return the verifier key line of a signing key."""
    return verifier_key(name, key.public_key().public_bytes_raw())


def write_key_file(path: Path, raw: bytes) -> None:
    """Write a new file for a signing key, its owner's alone: durable and whole, or not at all.

    Raises FileExistsError if somebody else was here first.
    """
    create_atomic(path, raw, "key")


def _recover_rotations(
    folder: Path, name: str, next_keys: list[Path], in_force: str | None
) -> None:
    """End the rotations that were broken off: as the store says, forward or back."""
    for path in next_keys:
        whole = path.stat().st_size == 32
        if (
            in_force is not None
            and whole
            and format_verifier_key(name, read_signing_key(path)) == in_force
        ):
            _install_key(folder, path)
        else:
            path.unlink()


def _install_key(folder: Path, next_key: Path) -> None:
    path = folder / KEY_FILE
    failpoint.hit_failpoint("rotate:before")
    with path.open("r+b") as old:
        next_key.replace(path)
        try:
            sync(folder)
            failpoint.hit_failpoint("rotate:mid")
        finally:
            # The name is the new key's by now; this is the old one's content, wherever it lies.
            # Nobody needs it even if the disk takes the name back: the next one has its file then.
            old.write(bytes(32))
            old.flush()
            os.fsync(old.fileno())
    failpoint.hit_failpoint("rotate:after")


def _generate_key() -> Ed25519PrivateKey:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

    return Ed25519PrivateKey.from_private_bytes(machine.random_bytes(32))

"""The ledger's signing key: an Ed25519 key in the state folder, readable by its owner alone."""

from __future__ import annotations

import os
from pathlib import Path

from vedette.errors import BadStore
from vedette.proof import SigningKey, verifier_key

KEY_FILE = "ledger.key"
PUBLIC_FILE = "ledger.pub"


def ledger_key(folder: Path, name: str) -> SigningKey:
    """Return the fleet's signing key, made on first use; its public half lies beside it.

    `ledger.pub` holds the verifier key line (see vedette.proof): copy it, and the witness file,
    to where nobody who can write the store can write.
    """
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

    path = folder / KEY_FILE
    if path.exists():
        raw = path.read_bytes()
        if len(raw) != 32:
            raise BadStore("is not a signing key", where=str(path), mend="restore it from a backup")
        key = Ed25519PrivateKey.from_private_bytes(raw)
    else:
        if (folder / "store.db").exists():
            raise BadStore(
                "the signing key of this store is missing",
                where=str(path),
                mend="restore it; a new key would not match the ledger's checkpoints",
            )
        key = Ed25519PrivateKey.generate()
        folder.mkdir(parents=True, exist_ok=True)
        _write_private(path, key.private_bytes_raw())
    public = folder / PUBLIC_FILE
    if not public.exists():
        line = verifier_key(name, key.public_key().public_bytes_raw())
        public.write_text(line + "\n", encoding="ascii")
    return key


def _write_private(path: Path, raw: bytes) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "wb") as file:
        file.write(raw)
        file.flush()
        os.fsync(file.fileno())

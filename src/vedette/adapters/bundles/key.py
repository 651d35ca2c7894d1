"""The key that signs policy bundles: ECDSA on P-256 (ES256 of RFC 7518), in the state folder.

Signatures are deterministic (RFC 6979) and in their low form, so that the same bundle always makes
the same archive, and nobody can make a second valid signature out of a first.
"""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec import Struct

from vedette.domain.base import machine
from vedette.domain.base.canonical import sha256_hex
from vedette.domain.base.disk_errors import convert_disk_errors
from vedette.domain.base.errors import BadPolicy, BadStore
from vedette.domain.base.fsync import create_atomic

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ec import (
        EllipticCurvePrivateKey,
        EllipticCurvePublicKey,
    )

KEY_FILE = "policy.key"
PUBLIC_FILE = "policy.pub"

_BYTES = 32
# The order of P-256 (SEC 2, 2.4.2).
_ORDER = 0xFFFFFFFF00000000FFFFFFFFFFFFFFFFBCE6FAADA7179E84F3B9CAC2FC632551


class PolicyKey(Struct, frozen=True):
    """The P-256 key pair of policy.key, which signs bundle archives; `public` is its public PEM."""

    private: EllipticCurvePrivateKey
    public: bytes

    @classmethod
    def open(cls, folder: Path) -> PolicyKey:
        """Return the key of a state folder, made on first use; its public half lies beside it.

        `policy.key` is PKCS 8 in PEM, for its owner alone; `policy.pub` is what an OPA server and
        everybody else verifies with. Raises BadStore for a file that holds no such key.
        """
        path = folder / KEY_FILE
        if not path.exists():
            folder.mkdir(parents=True, exist_ok=True)
            # Whoever was here first made the key.
            with suppress(FileExistsError):
                create_atomic(path, _generate_pem(), "policykey")
        key = cls.read(path)
        public = folder / PUBLIC_FILE
        if not public.exists():
            with suppress(FileExistsError):
                create_atomic(public, key.public, "policykey")
        elif public.read_bytes() != key.public:
            raise BadStore(
                "is not the public half of policy.key",
                where=str(public),
                mend="restore both from one backup, or delete policy.pub to have it made again",
            )
        return key

    @classmethod
    def read(cls, path: Path) -> PolicyKey:
        """Read a private key in PEM. Raises BadStore if the file holds none on P-256."""
        from cryptography.exceptions import UnsupportedAlgorithm
        from cryptography.hazmat.primitives.asymmetric import ec
        from cryptography.hazmat.primitives.serialization import (
            Encoding,
            PublicFormat,
            load_pem_private_key,
        )

        mend = "restore it from a backup"
        try:
            with convert_disk_errors(path):
                raw = path.read_bytes()
            key = load_pem_private_key(raw, None)
        except (OSError, ValueError, TypeError, UnsupportedAlgorithm) as error:
            raise BadStore("is not a policy key", where=str(path), mend=mend) from error
        if not isinstance(key, ec.EllipticCurvePrivateKey) or key.curve.name != "secp256r1":
            raise BadStore("is not a key on P-256", where=str(path), mend=mend)
        public = key.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
        return cls(key, public)

    @property
    def id(self) -> str:
        """Return what tells this key from others: 16 hex digits of its public half's digest."""
        return key_id(self.public)

    def sign(self, message: bytes) -> bytes:
        """Return the 64 bytes of the ES256 signature of a message."""
        from cryptography.hazmat.primitives.asymmetric import ec
        from cryptography.hazmat.primitives.asymmetric.utils import decode_dss_signature
        from cryptography.hazmat.primitives.hashes import SHA256

        how = ec.ECDSA(SHA256(), deterministic_signing=True)
        r, s = decode_dss_signature(self.private.sign(message, how))
        s = min(s, _ORDER - s)
        return r.to_bytes(_BYTES, "big") + s.to_bytes(_BYTES, "big")


def key_id(public: bytes) -> str:
    """Return the id of a policy key by its PEM. Raises BadPolicy if that is none on P-256."""
    from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

    der = _load_public_key(public).public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)
    return sha256_hex(der)[:16]


def verify_signature(public: bytes, message: bytes, signature: bytes) -> bool:
    """Say whether bytes are a policy key's ES256 signature of a message; `public` is its PEM.

    The high form of a signature, which anybody can compute from the low one, is none of ours.
    """
    from cryptography.exceptions import InvalidSignature
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.hazmat.primitives.asymmetric.utils import encode_dss_signature
    from cryptography.hazmat.primitives.hashes import SHA256

    if len(signature) != 2 * _BYTES:
        return False
    r, s = (int.from_bytes(half, "big") for half in (signature[:_BYTES], signature[_BYTES:]))
    if s > _ORDER // 2:
        return False
    try:
        _load_public_key(public).verify(encode_dss_signature(r, s), message, ec.ECDSA(SHA256()))
    except InvalidSignature:
        return False
    return True


def _load_public_key(public: bytes) -> EllipticCurvePublicKey:
    from cryptography.exceptions import UnsupportedAlgorithm
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.hazmat.primitives.serialization import load_pem_public_key

    mend = "give the PEM of policy.pub"
    try:
        key = load_pem_public_key(public)
    except (ValueError, UnsupportedAlgorithm) as error:
        raise BadPolicy("the verifying key is no public key in PEM", mend=mend) from error
    if not isinstance(key, ec.EllipticCurvePublicKey) or key.curve.name != "secp256r1":
        raise BadPolicy("the verifying key is not on P-256", mend=mend)
    return key


def _generate_pem() -> bytes:
    """Make a key: 64 bits more than its size, reduced (FIPS 186-5, A.2.1)."""
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.hazmat.primitives.serialization import (
        Encoding,
        NoEncryption,
        PrivateFormat,
    )

    drawn = int.from_bytes(machine.random_bytes(_BYTES + 8), "big")
    key = ec.derive_private_key(drawn % (_ORDER - 1) + 1, ec.SECP256R1())
    return key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())

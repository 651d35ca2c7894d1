"""PolicyWasm: the rules of a bundle as OPA compiled them, kept in the record by its own digest.

It depends on the rules alone: bundles that differ in data or tests share it. Which one decides for
a revision is said by that revision's `policy.published`, or by the `ledger.archived` that took it
away: both are signed with the ledger. So bytes in the record that are not named there decide
nothing.
"""

from __future__ import annotations

import base64
import binascii
import zlib
from typing import Protocol

from msgspec import Struct

from vedette.domain.base.canonical import sha256_hex
from vedette.domain.base.errors import BadPolicy
from vedette.domain.bundle import Bundle

META_PREFIX = "policy_wasm:"
MAX_BYTES = 16 << 20
# Of zlib: the usual 6 takes 14 ms for the shipped rules, where this takes 6 and 5 kB more.
_LEVEL = 3


class PolicyWasm(Struct, frozen=True):
    """A bundle's rules as a Wasm module: `rules` is the rules' digest, `digest` the module's own.

    `origin` says where it was found, for people.
    """

    rules: str
    raw: bytes
    digest: str
    origin: str

    @classmethod
    def of(cls, bundle: Bundle, raw: bytes, origin: str) -> PolicyWasm:
        """Return the module of a bundle's rules with the digest of its bytes."""
        return cls(bundle.rules_digest, raw, sha256_hex(raw), origin)

    def to_meta(self) -> dict[str, str]:
        """Return what the record keeps of it, under its name."""
        packed = zlib.compress(self.raw, _LEVEL)
        return {META_PREFIX + self.digest: base64.b64encode(packed).decode("ascii")}


def unpack_wasm(text: str) -> bytes:
    """Return the bytes of Wasm that the record keeps as text; none for a text that holds none."""
    try:
        packed = base64.b64decode(text, validate=True)
        return zlib.decompressobj().decompress(packed, MAX_BYTES)
    except (binascii.Error, ValueError, zlib.error):
        return b""


class WasmPublications(Protocol):
    """What is asked of the port `PolicyReader`; a part of it, as the ports import this module."""

    def published_wasm(self, digest: str) -> str | None: ...


class WasmRecord(Protocol):
    """What is asked of the port `StoreReader` to find a PolicyWasm."""

    @property
    def policy(self) -> WasmPublications: ...

    def meta(self, name: str) -> str | None: ...


def load_wasm(record: WasmRecord, bundle: Bundle) -> tuple[str | None, PolicyWasm | None]:
    """Return the digest of the Wasm a bundle was published with, and its PolicyWasm if it is there.

    Raises BadPolicy for bytes that are not those that were published.
    """
    named = record.policy.published_wasm(bundle.digest)
    text = record.meta(META_PREFIX + named) if named else None
    if named is None or text is None:
        return named, None
    found = PolicyWasm.of(bundle, unpack_wasm(text), "published with the revision")
    if found.digest != named:
        raise BadPolicy(
            "the Wasm in the store is not the one that was published",
            mend='restore the store from a backup, or start with engine = "embedded"',
        )
    return named, found

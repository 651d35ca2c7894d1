"""A revision's signed archive, as the record keeps it beside the live revision.

Who signs and where it is kept are ports; `distribution` brings archives to others.
"""

from __future__ import annotations

import base64
from typing import Any, Protocol

import orjson
from msgspec import Struct

from vedette.domain.base.canonical import sha256_hex
from vedette.domain.bundle import Bundle
from vedette.domain.ports.store import StoreReader

# Under these names the record keeps the live revision's archive, who signs, and the highest
# number that was seen in the repository and not in the record.
ARCHIVE, KEY, HIGHEST_MARK = "policy_archive", "policy_key", "policy_ahead"


class ArchiveSigner(Protocol):
    """Signs archives of policy revisions and reads them back."""

    def key_id(self, *, make: bool) -> str | None:
        """Return the id of the key here; None if there is none and none is to be made."""
        ...

    def pack(
        self, bundle: Bundle, number: int, who: str, commit: str | None, at_us: int,
        wasm: bytes | None = None,
    ) -> bytes:  # fmt: skip
        """Return the signed archive of a bundle as a revision. Raises BadPolicy.

        `wasm` is what was compiled of the bundle's rules.
        """
        ...

    def public_key(self) -> str:
        """Return the PEM of the public half of the key here, which is made if there is none."""
        ...

    def read(self, raw: bytes, public: str | None = None) -> tuple[int, str]:
        """Return the number and bundle digest that an archive of a key tells.

        `public_key` is its PEM; without it, it is the key here. Raises BadPolicy for all other
        bytes.
        """
        ...


class Archive(Struct, frozen=True):
    """The signed archive of one policy revision; `digest` is the SHA-256 of its bytes.

    `public` is the PEM of the key that signed it. It is kept with it, so that a worker without
    that key knows what else the key signed.
    """

    number: int
    bundle: str
    key: str
    raw: bytes
    digest: str = ""
    public: str = ""

    @classmethod
    def from_raw(cls, number: int, bundle: str, key: str, raw: bytes, public: str = "") -> Archive:
        """Return an archive with the digest of its bytes."""
        return cls(number, bundle, key, raw, sha256_hex(raw), public)

    def marks(self) -> dict[str, str]:
        """Return what the record keeps of it, under its names."""
        value = {
            "number": self.number,
            "bundle": self.bundle,
            "key": self.key,
            "public": self.public,
            "raw": base64.b64encode(self.raw).decode("ascii"),
        }
        return {ARCHIVE: orjson.dumps(value).decode(), KEY: self.key}

    @classmethod
    def load_live(cls, record: StoreReader) -> Archive | None:
        """Return what the record keeps, if it is the live revision's."""
        found = cls.load_last(record)
        if found is None or (found.number, found.bundle) != record.policy.live_revision():
            return None
        return found

    @classmethod
    def load_last(cls, record: StoreReader) -> Archive | None:
        """Return what the record keeps: the archive of the last revision that was signed."""
        mark = record.meta(ARCHIVE)
        if mark is None:
            return None
        value: dict[str, Any] = orjson.loads(mark)
        if "public" not in value:
            return None  # of a version that did not keep it; a leader with the key signs anew
        raw = base64.b64decode(value["raw"])
        return cls.from_raw(value["number"], value["bundle"], value["key"], raw, value["public"])

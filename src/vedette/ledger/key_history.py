"""Key history: which key signs which checkpoint, a chain from the one key a verifier trusts.

A key hands over to the next by an entry `key.rotated` that names it. The old key signs the first
checkpoint that covers the entry (the *handover*); every later checkpoint is signed by the next
key, and a signature of the old one is worth nothing any more. So who knows the first key alone
can follow the chain, and nobody can enter it without having held a key of it at its time.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import orjson
from msgspec import Struct, field

from vedette.ledger.merkle import (
    Checkpoint,
    ProofError,
    leaf_hash,
    parse_verifier_key,
    verify_inclusion,
    verify_note,
)

ROTATED = "key.rotated"


def read_next_key(entry: Mapping[str, Any], name: str) -> str:
    """Return the verifier key that an entry `key.rotated` names. Raises ProofError.

    The next key bears the name of the one before: it signs for the same fleet.
    """
    line = entry.get("key")
    if entry.get("kind") != ROTATED or not isinstance(line, str):
        raise ProofError("the entry names no key")
    found, _ = parse_verifier_key(line)
    if found != name:
        raise ProofError("the entry names a key of another name")
    return line


class Handover(Struct, frozen=True):
    """The proof that one key handed over to the next, without the ledger around it.

    `entry` is the canonical bytes of a `key.rotated`, `path` its inclusion proof against `note`,
    the handover checkpoint, which the older key signed.
    """

    entry: bytes
    path: tuple[bytes, ...]
    note: str

    def follow(self, key: str) -> tuple[int, str]:
        """Return (size of the handover, next verifier key) after `key`. Raises ProofError."""
        point = Checkpoint.from_body(verify_note(self.note, key))
        name, _ = parse_verifier_key(key)
        try:
            entry = orjson.loads(self.entry)
            seq = entry["seq"]
        except (ValueError, KeyError, TypeError) as error:
            raise ProofError("the handover holds no entry") from error
        if type(seq) is not int or not verify_inclusion(
            leaf_hash(self.entry), seq - 1, point.size, self.path, point.root
        ):
            raise ProofError("the entry is not in the handover's checkpoint")
        return point.size, read_next_key(entry, name)

    def to_json(self) -> dict[str, Any]:
        """Return the handover as JSON."""
        path = [node.hex() for node in self.path]
        return {"entry": self.entry.decode("utf-8"), "path": path, "note": self.note}

    @classmethod
    def from_json(cls, value: Any) -> Handover:
        """Read what `to_json` wrote. Raises ProofError."""
        try:
            path = tuple(bytes.fromhex(node) for node in value["path"])
            entry, note = value["entry"].encode("utf-8"), value["note"]
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise ProofError("not a handover of a key") from error
        if not isinstance(note, str):
            raise ProofError("not a handover of a key")
        return cls(entry, path, note)


class KeyChain(Struct):
    """The keys of a ledger in the order of their time, from the one that is trusted."""

    first: str
    _links: list[tuple[int, str]] = field(default_factory=list)

    def __post_init__(self) -> None:
        """Raises ProofError for a malformed first key."""
        parse_verifier_key(self.first)

    @property
    def last(self) -> str:
        """Return the verifier key in force at the end."""
        return self._links[-1][1] if self._links else self.first

    @property
    def length(self) -> int:
        """Return how many keys there are."""
        return len(self._links) + 1

    def link(self, handover: int, key: str) -> None:
        """Let `key` sign every checkpoint larger than `handover`. Raises ProofError."""
        parse_verifier_key(key)
        if self._links and handover <= self._links[-1][0]:
            raise ProofError("a key hands over before it was in force")
        self._links.append((handover, key))

    def key_at(self, size: int) -> str:
        """Return the verifier key that signs a checkpoint of this size."""
        found = self.first
        for handover, key in self._links:
            if size <= handover:
                break
            found = key
        return found


def build_chain(first: str, handovers: Iterable[Handover]) -> KeyChain:
    """Return the chain that leads from a trusted key over its handovers. Raises ProofError."""
    chain = KeyChain(first)
    for handover in handovers:
        chain.link(*handover.follow(chain.last))
    return chain

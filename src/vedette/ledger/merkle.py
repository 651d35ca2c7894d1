"""The arithmetic of the ledger's proof: a Merkle tree over entry bytes, and signed checkpoints.

The tree, its proofs and their checks are those of RFC 9162, section 2.1 (SHA-256; a leaf is
hashed behind 0x00, an inner node behind 0x01). A checkpoint is a C2SP tlog-checkpoint inside a
C2SP signed note with Ed25519 (https://c2sp.org/tlog-checkpoint, https://c2sp.org/signed-note),
so that the tools of other transparency logs can read ours.

Hashes are 32 raw bytes everywhere; `leaves` are always leaf *hashes*, in order, from index 0.
"""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Iterable, Sequence
from hashlib import sha256
from typing import Protocol

from msgspec import Struct

HASH_BYTES = 32
EMPTY_ROOT = sha256(b"").digest()

_FRONTIER_VERSION = b"\x01"
_ED25519 = b"\x01"
_DASH = "\N{EM DASH} "
_SIZE = re.compile(r"(?:0|[1-9][0-9]{0,17})\Z", re.ASCII)
_CONTROL = re.compile(r"[\x00-\x09\x0b-\x1f]")
_MAX_NOTE = 100_000


class ProofError(ValueError):
    """A frontier, checkpoint, note or key is not in its format, or a signature does not hold."""


class PublicKey(Protocol):
    """The public half of a key that signs checkpoints, as `cryptography` shapes it."""

    def public_bytes_raw(self) -> bytes: ...


class SigningKey(Protocol):
    """What signing a checkpoint needs of a key: an Ed25519PrivateKey, or a KMS of that shape."""

    def sign(self, data: bytes, /) -> bytes: ...
    def public_key(self) -> PublicKey: ...


def is_signature(public_key: PublicKey, data: bytes, signature: bytes) -> bool:
    """Say whether an Ed25519 signature (RFC 8032) is a ledger key's, of exactly these bytes."""
    from cryptography.exceptions import InvalidSignature
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

    try:
        raw = public_key.public_bytes_raw()
        Ed25519PublicKey.from_public_bytes(raw).verify(signature, data)
    except (InvalidSignature, ValueError):
        return False
    return True


# --- the tree -------------------------------------------------------------------------------


def leaf_hash(entry: bytes) -> bytes:
    """Return the leaf hash of an entry's canonical bytes."""
    return sha256(b"\x00" + entry).digest()


def node_hash(left: bytes, right: bytes) -> bytes:
    """Return the hash of the inner node over two subtrees."""
    return sha256(b"\x01" + left + right).digest()


class Frontier:
    """A growing Merkle tree, kept as the roots of complete subtrees (its *peaks*), widest first.

    There is one peak for each set bit of the size, so a store persists at most 64 hashes and
    goes on appending after a restart without reading any entry again.
    """

    __slots__ = ("_peaks", "_size")

    def __init__(self) -> None:
        self._size = 0
        self._peaks: list[bytes] = []

    @property
    def size(self) -> int:
        """The number of leaves appended so far."""
        return self._size

    @property
    def peaks(self) -> tuple[bytes, ...]:
        """The roots of the complete subtrees, widest first."""
        return tuple(self._peaks)

    def append(self, leaf: bytes) -> None:
        """Append one leaf hash."""
        peaks = self._peaks
        size = self._size
        while size & 1:
            leaf = sha256(b"\x01" + peaks.pop() + leaf).digest()
            size >>= 1
        peaks.append(leaf)
        self._size += 1

    def grow(self, entries: Iterable[bytes]) -> Frontier:
        """Return this tree with the canonical bytes of more entries appended; it stays itself."""
        grown = self.copy()
        for entry in entries:
            grown.append(leaf_hash(entry))
        return grown

    def root(self) -> bytes:
        """Return the root of the tree as it stands."""
        if not self._peaks:
            return EMPTY_ROOT
        root = self._peaks[-1]
        for peak in self._peaks[-2::-1]:
            root = node_hash(peak, root)
        return root

    def copy(self) -> Frontier:
        """Return an independent copy, to be thrown away if a commit fails."""
        twin = Frontier()
        twin._size, twin._peaks = self._size, self._peaks.copy()
        return twin

    def checkpoint(self, origin: str) -> Checkpoint:
        """Return the head of the tree as it stands."""
        return Checkpoint(origin, self._size, self.root())

    def to_bytes(self) -> bytes:
        """Return version (1 byte), size (8 bytes, big-endian), then the peaks."""
        return _FRONTIER_VERSION + self._size.to_bytes(8, "big") + b"".join(self._peaks)

    @classmethod
    def from_bytes(cls, raw: bytes) -> Frontier:
        """Read what `to_bytes` wrote. Raises ProofError for any other version or length."""
        size = int.from_bytes(raw[1:9], "big")
        if raw[:1] != _FRONTIER_VERSION or len(raw) != 9 + HASH_BYTES * size.bit_count():
            raise ProofError("not a frontier of version 1: wrong version byte or length")
        frontier = cls()
        frontier._size = size
        frontier._peaks = [raw[at : at + HASH_BYTES] for at in range(9, len(raw), HASH_BYTES)]
        return frontier


def _hashes(*values: bytes) -> bool:
    return all(len(value) == HASH_BYTES for value in values)


def verify_inclusion(
    leaf: bytes, index: int, size: int, proof: Sequence[bytes], root: bytes
) -> bool:
    """Say whether `leaf` is number `index` of the tree (RFC 9162 §2.1.3.2)."""
    if not 0 <= index < size or not _hashes(leaf, root, *proof):
        return False
    node, last, found = index, size - 1, leaf
    for sibling in proof:
        if last == 0:
            return False
        if node & 1 or node == last:
            found = node_hash(sibling, found)
            while not node & 1 and node:
                node, last = node >> 1, last >> 1
        else:
            found = node_hash(found, sibling)
        node, last = node >> 1, last >> 1
    return last == 0 and found == root


def verify_consistency(
    first: int, second: int, first_root: bytes, second_root: bytes, proof: Sequence[bytes]
) -> bool:
    """Say whether the tree of `second` leaves extends that of `first` (RFC 9162 §2.1.4.2)."""
    if not 0 <= first <= second or not _hashes(first_root, second_root, *proof):
        return False
    if first == second:
        return not proof and first_root == second_root
    if first == 0:
        return not proof and first_root == EMPTY_ROOT
    path = list(proof)
    if first & (first - 1) == 0:
        path.insert(0, first_root)
    if not path:
        return False
    node, last = first - 1, second - 1
    while node & 1:
        node, last = node >> 1, last >> 1
    old = new = path[0]
    for sibling in path[1:]:
        if last == 0:
            return False
        if node & 1 or node == last:
            old, new = node_hash(sibling, old), node_hash(sibling, new)
            while not node & 1 and node:
                node, last = node >> 1, last >> 1
        else:
            new = node_hash(new, sibling)
        node, last = node >> 1, last >> 1
    return last == 0 and old == first_root and new == second_root


# --- checkpoints and notes ------------------------------------------------------------------


def _decode64(text: str, what: str) -> bytes:
    """Decode standard base64, refusing every spelling but the one the encoder writes."""
    try:
        raw = base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError) as error:
        raise ProofError(f"{what} is not base64") from error
    if _encode64(raw) != text:
        raise ProofError(f"{what} is not canonical base64")
    return raw


def _encode64(raw: bytes) -> str:
    return base64.b64encode(raw).decode("ascii")


class Checkpoint(Struct, frozen=True):
    """The head of a ledger at one size: whose (`origin`), how many entries, and their root."""

    origin: str
    size: int
    root: bytes

    def __post_init__(self) -> None:
        if not self.origin or "\n" in self.origin:
            raise ProofError("the origin of a checkpoint is one line of text")
        if self.size < 0 or len(self.root) != HASH_BYTES:
            raise ProofError("a checkpoint has a size of 0 or more and a root of 32 bytes")

    def body(self) -> str:
        """Return the text that is signed: origin, size, root, a line each."""
        return f"{self.origin}\n{self.size}\n{_encode64(self.root)}\n"

    def sign(self, name: str, key: SigningKey, signer_id: bytes = b"") -> str:
        """Return the signed note of the checkpoint; the arguments are those of `sign_note`."""
        return sign_note(self.body(), name, key, signer_id)

    @classmethod
    def from_body(cls, body: str) -> Checkpoint:
        """Read a checkpoint. Extension lines are legal and carry nothing for us.

        Raises ProofError for what is not a C2SP tlog-checkpoint.
        """
        lines = body.split("\n")
        if len(lines) < 4 or lines[-1] or not all(lines[:-1]):
            raise ProofError("a checkpoint has at least three lines, none of them empty")
        if not _SIZE.match(lines[1]):
            raise ProofError("line 2 of a checkpoint is its size in decimal")
        return cls(lines[0], int(lines[1]), _decode64(lines[2], "the root of the checkpoint"))


class Signature(Struct, frozen=True):
    """One signature line of a checkpoint's note, not yet verified."""

    name: str
    key_id: bytes
    signature: bytes


class Note(Struct, frozen=True):
    """A checkpoint's note taken apart; nothing in it may be believed before `verify_note`."""

    body: str
    signatures: tuple[Signature, ...]


def key_id(name: str, public_key: bytes) -> bytes:
    """Return the four bytes that name a key in a note: SHA-256(name, newline, 0x01, key)[:4].

    Raises ProofError for a name with a space or a plus, or a key that is not 32 bytes.
    """
    if not name or "+" in name or any(char.isspace() or char < " " for char in name):
        raise ProofError(f"key name {name!r}: it must not be empty nor hold a space or a plus")
    if len(public_key) != 32:
        raise ProofError("an Ed25519 public key has 32 bytes")
    return sha256(name.encode() + b"\n" + _ED25519 + public_key).digest()[:4]


def verifier_key(name: str, public_key: bytes) -> str:
    """Return the line to hand to the ledger's verifiers: name+hash+base64(0x01 || public key)."""
    return f"{name}+{key_id(name, public_key).hex()}+{_encode64(_ED25519 + public_key)}"


def parse_verifier_key(text: str) -> tuple[str, bytes]:
    """Return (name, public key) of a verifier key line. Raises ProofError if it is none."""
    parts = text.strip().split("+", 2)  # base64 may hold a plus of its own
    if len(parts) != 3:
        raise ProofError("a verifier key is name+hash+key")
    name, identity, encoded = parts
    raw = _decode64(encoded, "the last part of the verifier key")
    if raw[:1] != _ED25519 or key_id(name, raw[1:]).hex() != identity:
        raise ProofError("the verifier key's hash is not that of an Ed25519 key of this name")
    return name, raw[1:]


def _check_text(text: str) -> None:
    if len(text) > _MAX_NOTE:
        raise ProofError(f"the note is longer than {_MAX_NOTE} characters")
    if _CONTROL.search(text):
        raise ProofError("a note holds no control character but newline")
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise ProofError("a note is valid UTF-8") from error


def sign_note(body: str, name: str, key: SigningKey, signer_id: bytes = b"") -> str:
    """Return the signed note of `body`, which must end in a newline; `signer_id` is the key's id.

    Raises ProofError for a body or a key name that the format does not allow.
    """
    if not body.endswith("\n"):
        raise ProofError("the body of a note ends in a newline")
    _check_text(body)
    stamp = (signer_id or key_id(name, key.public_key().public_bytes_raw())) + key.sign(
        body.encode()
    )
    return f"{body}\n{_DASH}{name} {_encode64(stamp)}\n"


def parse_note(text: str) -> Note:
    """Take a signed note apart without believing it. Raises ProofError if it is none."""
    _check_text(text)
    body, gap, signature_text = text.rpartition("\n\n")
    lines = signature_text.split("\n")
    if not gap or len(lines) < 2 or lines[-1]:
        raise ProofError("a note is text, an empty line, and signature lines")
    signatures = []
    for line in lines[:-1]:
        name, _, encoded = line.removeprefix(_DASH).partition(" ")
        stamp = _decode64(encoded, "a signature")
        if not line.startswith(_DASH) or not name or "+" in name or len(stamp) < 5:
            raise ProofError("a signature line is an em dash, a key name and base64")
        signatures.append(Signature(name, stamp[:4], stamp[4:]))
    return Note(body + "\n", tuple(signatures))


def read_notes(text: str) -> list[str]:
    """Split a file of signed notes behind empty lines; a last one that broke off is left out."""
    notes: list[str] = []
    lines: list[str] = []
    signed = False
    for line in text.splitlines(keepends=True):
        if line == "\n" and signed:
            notes.append("".join(lines))
            lines, signed = [], False
            continue
        lines.append(line)
        signed = signed or line.startswith(_DASH)
    rest = "".join(lines)
    spoilt = text.endswith("\n\n") and "\n\n" in rest.rstrip("\n")  # not broken off
    return [*notes, rest] if spoilt or (signed and rest.endswith("\n")) else notes


def verify_note(text: str, verifier_key: str) -> str:
    """Return the body of a checkpoint's note that the key of `verifier_key` signed.

    Signatures by other keys (cosigners) are passed over, as the format asks. Raises ProofError
    if the note is malformed, this key did not sign it, or any signature in its name is wrong.
    """
    from cryptography.exceptions import InvalidSignature
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

    name, raw = parse_verifier_key(verifier_key)
    identity = key_id(name, raw)
    note = parse_note(text)
    ours = [made for made in note.signatures if (made.name, made.key_id) == (name, identity)]
    if not ours:
        raise ProofError(f"the note is not signed by {name}+{identity.hex()}")
    try:
        public = Ed25519PublicKey.from_public_bytes(raw)
        for made in ours:
            public.verify(made.signature, note.body.encode())
    except (InvalidSignature, ValueError) as error:
        raise ProofError(f"the signature of {name} is not of this text") from error
    return note.body

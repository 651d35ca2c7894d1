"""A segment as a log would hold it: one commit group's records, and where it stands in its shard.

The records are made up, of the shape the line writes: three an acting event (accepted, a turn with
its decision, the outcome), each body salted, together about 1.5 kB. Their tree is that of
vedette.ledger.merkle. A segment names the one before it by its offset: a log cannot be cut off, so
what a crash left behind stays there, and *the chain back from the head says which segments count*.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import msgspec
from msgspec import Struct

from vedette.domain.base.canonical import canonical_json, salted_digest
from vedette.ledger.merkle import Frontier, ProofError, SigningKey, verify_note

RECORDS_AN_EVENT = 3
_EPOCH_US = 1_700_000_000_000_000
# No segment before this one.
NOTHING = -1
KEY_NAME = "vedette/scale"


class Segment(Struct, frozen=True, array_like=True):
    """A commit group of one shard.

    `at` is the shard's size in events before it, `previous` the log's offset of the segment that it
    follows (NOTHING for the first), `epoch` its writer's lease. `frontier` is the tree after it
    (its leaves are records), `note` the signed head of that tree.
    """

    shard: int
    epoch: int
    at: int
    previous: int
    policy_rev: int
    stop_epoch: int
    frontier: bytes
    note: str
    records: tuple[bytes, ...]

    @property
    def end(self) -> int:
        """The shard's size in events after it."""
        return self.at + len(self.records) // RECORDS_AN_EVENT

    @property
    def tree(self) -> Frontier:
        """The tree after it. Raises ProofError if it is malformed."""
        return Frontier.from_bytes(self.frontier)

    def to_bytes(self) -> bytes:
        """Return it as the log holds it."""
        return _ENCODER.encode(self)

    @classmethod
    def from_bytes(cls, raw: bytes) -> Segment:
        """Read one. Raises ValueError for what is none."""
        try:
            return _DECODER.decode(raw)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise ValueError(f"not a segment: {error}") from error


_ENCODER = msgspec.msgpack.Encoder()
_DECODER = msgspec.msgpack.Decoder(Segment)


def origin(shard: int) -> str:
    """Return whose heads a shard's notes are."""
    return f"vedette/scale/{shard}"


def make_records(shard: int, first: int, events: int, policy_rev: int) -> tuple[bytes, ...]:
    """Return the canonical bytes of the records of some events of a shard, `first` on.

    Bodies and salts are functions of the event alone, so that a test may say what they must be.
    """
    made = []
    for number in range(first, first + events):
        name = f"{shard}-{number}"
        seed = hashlib.sha256(name.encode()).hexdigest()
        bodies: tuple[tuple[str, dict[str, Any]], ...] = (
            ("event.accepted", {"id": name, "series": f"gauge-{number % 200}", "value": seed[:12],
                                "note": seed * 3}),
            ("turn", {"agent": "gauge_keeper", "release": 7, "action": "mark.write", "question": {
                "arguments": {"mark": "over", "series": f"gauge-{number % 200}"}, "seen": seed},
                "decision": {"allow": True, "policy_rev": policy_rev, "rules": ["grant", "rate"]},
                "confidence": 930, "note": seed}),
            ("effect.done", {"action": name, "target": "marks", "answer": {"at": seed[:16]}}),
        )  # fmt: skip
        for kind, body in bodies:
            salt = hashlib.sha256(f"{kind} {name}".encode()).digest()[:16]
            raw = canonical_json(body)
            made.append(
                canonical_json(
                    {"kind": kind, "shard": shard, "event": name, "at": _EPOCH_US + number,
                     "digest": salted_digest(salt, raw), "salt": salt.hex(), "body": raw.decode()}
                )
            )  # fmt: skip
    return tuple(made)


def make_segment(
    shard: int, epoch: int, at: int, previous: int, fence: tuple[int, int], tree: Frontier,
    records: tuple[bytes, ...], key: SigningKey,
) -> Segment:  # fmt: skip
    """Return the segment that follows `tree`, which stays as it was.

    `fence` is the (policy revision, stop epoch) under which its records were decided.
    """
    grown = tree.grow(records)
    note = grown.checkpoint(origin(shard)).sign(KEY_NAME, key)
    return Segment(shard, epoch, at, previous, *fence, grown.to_bytes(), note, records)


def read_chain(held: Mapping[int, Segment], head_offset: int) -> Iterator[tuple[int, Segment]]:
    """Yield the segments that count, with their offsets, from the head's backwards.

    Raises ValueError where the chain leads to no segment of the log, or forwards.
    """
    offset = head_offset
    while offset != NOTHING:
        segment = held.get(offset)
        if segment is None:
            raise ValueError(f"the chain leads to offset {offset}, where no segment is")
        yield offset, segment
        if segment.previous >= offset:
            raise ValueError(f"the segment at {offset} follows {segment.previous}, behind itself")
        offset = segment.previous


def check_chain(chain: Iterable[Segment], shard: int, verifier: str) -> tuple[int, bytes]:
    """Hold a shard's segments, first to last, against their tree; return its size and root.

    Sequence dense, every event once, epochs and revisions never falling, each tree the one before
    it grown by the records, each note signed by `verifier`. Raises ValueError naming the segment.
    """
    tree, size, fence, epoch = Frontier(), 0, (0, 0), 0
    for segment in chain:
        where = f"shard {shard}, segment at event {segment.at}"
        if segment.shard != shard or segment.at != size:
            raise ValueError(f"{where}: the shard has {size} events before it")
        if segment.epoch < epoch:
            raise ValueError(f"{where}: epoch {segment.epoch} after {epoch}")
        if segment.policy_rev < fence[0] or segment.stop_epoch < fence[1]:
            raise ValueError(f"{where}: an older policy or stop than before it")
        wanted = make_records(shard, size, segment.end - size, segment.policy_rev)
        if segment.records != wanted:
            raise ValueError(f"{where}: its records are not those of its events")
        tree = tree.grow(segment.records)
        if segment.frontier != tree.to_bytes():
            raise ValueError(f"{where}: its tree is not the one before it, grown")
        try:
            body = verify_note(segment.note, verifier)
        except ProofError as error:
            raise ValueError(f"{where}: {error}") from error
        if body != tree.checkpoint(origin(shard)).body():
            raise ValueError(f"{where}: its note signs another head")
        size, epoch, fence = segment.end, segment.epoch, (segment.policy_rev, segment.stop_epoch)
    return size, tree.root()

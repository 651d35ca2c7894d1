"""The name of a judge's state: what the judge was made of, and the events it has seen.

`observe` is a function of state and event alone, so a state is known by the judge that made it and
the events that it has taken in, in their order. Its digest is that: of the release and the lessons
(8 hexadecimal digits), and, of a judge that keeps state, of the positions since the checkpoint that
the state was taken up from (12 more). It costs 1.6 µs an event, where a digest of the
state's bytes would cost 16; those are digested where a checkpoint is made of them anyway.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence

from vedette.domain.base.canonical import normalized_json
from vedette.domain.memory import Memory

_JUDGE_DIGITS = 8
_STATE_DIGITS = 12
_STATE_BYTES = _STATE_DIGITS // 2


def judge_digest(release: str | None, lessons: Sequence[Memory]) -> str:
    """Return the digest of a judge, for its states' names; a release is charter and code."""
    lesson_values = [
        [getattr(lesson, name) for name in Memory.__struct_fields__] for lesson in lessons
    ]
    return hashlib.sha256(normalized_json([release, lesson_values])).hexdigest()[:_JUDGE_DIGITS]


def initial_digest(checkpoint: int) -> bytes:
    """Return the digest of a judge's state as taken up: of a checkpoint's position, 0 for none."""
    return hashlib.blake2b(checkpoint.to_bytes(8, "big"), digest_size=_STATE_BYTES).digest()


def advance_digest(digest: bytes, position: int) -> bytes:
    """Return the digest of a judge's state that has observed one more event, given its position."""
    return hashlib.blake2b(digest + position.to_bytes(8, "big"), digest_size=_STATE_BYTES).digest()


def advance_digest_all(digest: bytes, positions: Iterable[int]) -> bytes:
    """Return the digest of a judge's state that has observed more events, in this order."""
    for position in positions:
        digest = advance_digest(digest, position)
    return digest


def format_state_name(judge: str, digest: bytes | None) -> str:
    """Return the name by which an entry has its judge's state; `digest` is None without one."""
    return judge if digest is None else judge + digest.hex()


def parse_state_name(state: str) -> tuple[str, str]:
    """Return (what the judge was made of, what its state had seen) of `format_state_name`."""
    return state[:_JUDGE_DIGITS], state[_JUDGE_DIGITS:]


def is_state_name(state: str) -> bool:
    """Say whether a text is a name of a judge's state; a worker may answer anything."""
    return len(state) in (_JUDGE_DIGITS, _JUDGE_DIGITS + _STATE_DIGITS) and not set(state) - set(
        "0123456789abcdef"
    )


def checkpoint_digest(checkpoint: bytes) -> str:
    """Return the digest by which an entry names the bytes of a judge's checkpointed state."""
    return hashlib.sha256(checkpoint).hexdigest()[:32]

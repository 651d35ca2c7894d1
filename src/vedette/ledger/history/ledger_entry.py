"""An entry as the read model takes it: the fields that its projection and its lists go by."""

from __future__ import annotations

from typing import Any

import msgspec


class LedgerEntry(msgspec.Struct, gc=False):
    """What the projection reads of an entry; `at` is in microseconds, `n` counts within the run.

    Decoded by the names of the ledger's fields, and not checked: entries are proved elsewhere.
    """

    seq: Any
    at: Any
    kind: Any
    about: Any = None
    run: Any = None
    n: Any = 0
    agent: Any = None
    event: Any = None
    outcome: Any = None
    rule: Any = None
    action: Any = None
    tool: Any = None
    turn: Any = None
    wait: Any = None
    until: Any = None
    would: Any = None
    woke: Any = None
    spend: Any = None
    actor: Any = None
    what: Any = None
    policy_rev: Any = None
    bundle: Any = None
    memory: Any = None
    scope: Any = None
    unit: Any = None
    window: Any = None
    limit: Any = None


_decoder = msgspec.json.Decoder(LedgerEntry)


def to_ledger_entry(seq: int, raw: bytes, about: int | None = None) -> LedgerEntry:
    """Return a stored entry as the projection takes it; `about` if it does not say that itself."""
    entry = _decoder.decode(raw)
    entry.seq = seq
    if entry.about is None:
        entry.about = about
    return entry

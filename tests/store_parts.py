"""A store for tests, every part of which is one object."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

PARTS = (
    "runs", "judge_states", "spend", "schedule", "ledger", "policy", "memories", "tables", "steps",
    "commands", "cluster",
)  # fmt: skip


def store_of(fake: Any) -> Any:
    """Return a store whose parts have what `fake` has, as well as its `meta` and `close`."""
    own = {name: getattr(fake, name) for name in ("meta", "close") if hasattr(fake, name)}
    return SimpleNamespace(**dict.fromkeys(PARTS, fake), **own)

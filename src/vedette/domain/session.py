"""The engine's own rows that say which run a session was begun by last."""

from __future__ import annotations

SESSIONS = "vedette:sessions"


def session_row_key(agent: str, key: str) -> str:
    """Return the key of the row of the session that is an agent's key."""
    return f"{agent}\n{key}"

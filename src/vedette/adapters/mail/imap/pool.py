"""Pool of IMAP sessions, kept for the next call: logins are most of the work, and servers count.

A pool lives in the process that performs an agent's tools. It holds the password no longer than
the sessions that were opened with it, as the engine gives it to each call.
"""

from __future__ import annotations

import atexit
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from vedette.adapters.mail.imap.session import MailSession
from vedette.domain.base.canonical import canonical_json, sha256_hex
from vedette.domain.base.errors import Temporary

CONNECTIONS = 4  # at once to one mailbox; servers allow ten and more
IDLE_S = 60.0
_KEYS = ("host", "port", "tls", "user", "password", "ca_file")


class _Pool:
    def __init__(self, connections: int) -> None:
        self.free: list[tuple[float, MailSession]] = []
        self.slots = threading.BoundedSemaphore(connections)


_pools: dict[str, _Pool] = {}
_lock = threading.Lock()


@contextmanager
def mail_session(target: Mapping[str, Any], *, wait_s: float = 5.0) -> Iterator[MailSession]:
    """Lend a session with a mailbox: one that is free, or a new one.

    Raises as `Session`, and Temporary if all are taken for so long.
    """
    pool = _pool_of(target)
    if not pool.slots.acquire(timeout=wait_s):
        raise Temporary("all connections with the mail server are in use")
    try:
        session = _pop_idle(pool) or MailSession(target)
        try:
            yield session
        except BaseException:
            # Whatever went wrong, the next one begins with a session of which nothing is open.
            session.close()
            raise
        if session.broken:
            session.close()
        else:
            pool.free.append((time.monotonic(), session))
    finally:
        pool.slots.release()


def close_all() -> None:
    """Close all IMAP sessions that are free."""
    with _lock:
        pools = list(_pools.values())
        _pools.clear()
    for pool in pools:
        while pool.free:
            session = pool.free.pop()[1]
            # Without a farewell, for which a server that hangs would keep us waiting.
            session.interrupt()
            session.close()


atexit.register(close_all)


def _pool_of(target: Mapping[str, Any]) -> _Pool:
    facts = {key: str(target.get(key, "")) for key in _KEYS}
    key = sha256_hex(canonical_json(facts))
    with _lock:
        if key not in _pools:
            _pools[key] = _Pool(int(target.get("connections", CONNECTIONS)))
        return _pools[key]


def _pop_idle(pool: _Pool) -> MailSession | None:
    """Return a session that is not too old and still answers."""
    while True:
        try:
            since, session = pool.free.pop()
        except IndexError:
            return None
        age = time.monotonic() - since
        if age < 1.0 or (age < IDLE_S and session.is_alive()):
            return session
        session.close()

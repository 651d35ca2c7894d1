"""Which store a fleet has: a SQLite file in its state folder, or a PostgreSQL database."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from vedette.config.settings import Settings
    from vedette.ledger.merkle import SigningKey
    from vedette.store.read_runs import StoreReader
    from vedette.store.store import SqlStore


def open_store(
    settings: Settings,
    *,
    fleet: str,
    key: SigningKey,
    key_name: str,
    now_us: Callable[[], int],
) -> SqlStore:
    """Open the store to run the fleet. Raises StoreBusy, BadStore, BadFleet, Unavailable."""
    if settings.store.kind == "postgresql":
        from vedette.store.postgres import PostgresStore

        return PostgresStore(
            settings.store.url(), settings.state, fleet=fleet, key=key, key_name=key_name,
            now_us=now_us, lease_us=settings.store.lease_us,
            visit=settings.store.visit,
        )  # fmt: skip
    from vedette.store.sqlite import SqliteStore

    return SqliteStore(
        settings.state, fleet=fleet, key=key, key_name=key_name, now_us=now_us,
        synchronous="FULL" if settings.store.survives == "power-loss" else "NORMAL",
    )  # fmt: skip


def open_reader(settings: Settings) -> StoreReader:
    """Open the store to read, beside a running fleet or with none; `close` it.

    Raises BadStore if there is none.
    """
    if settings.store.kind == "postgresql":
        from vedette.store.postgres import PostgresReader

        return PostgresReader(settings.store.url())
    from vedette.store.sqlite import SqliteReader

    return SqliteReader(settings.state)


def store_exists(settings: Settings) -> bool:
    """Say whether the fleet has a store already."""
    if settings.store.kind == "postgresql":
        from vedette.store.postgres import has_store

        return has_store(settings.store.url())
    return (settings.state / "store.db").exists()

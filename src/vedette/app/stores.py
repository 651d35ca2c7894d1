"""Store of a fleet, by its settings: SQLite in its state folder, or a PostgreSQL database."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from vedette.domain.base.disk_errors import to_disk_error
from vedette.domain.base.errors import BadCommand, BadStore
from vedette.store.meta import KEY

if TYPE_CHECKING:
    from vedette.config.settings import Settings
    from vedette.ledger.merkle import SigningKey
    from vedette.store.postgres import PostgresStore
    from vedette.store.reader import StoreReader
    from vedette.store.sqlite import SqliteStore

    FleetStore = PostgresStore | SqliteStore


def ledger_key_name(fleet: str) -> str:
    """Return the name of the key that signs a fleet's ledger in its store."""
    return f"vedette/{fleet}"


def open_store(settings: Settings, now_us: Callable[[], int]) -> FleetStore:
    """Wire the store that the settings name, to run the fleet, with the key that signs its ledger.

    Raises StoreBusy, BadStore, BadFleet, Unavailable.
    """
    from vedette.store.runner_lock import LOCK_FILE, acquire_lock

    name = ledger_key_name(settings.fleet)
    # Under the lock: a runner that rotates the key now must not have it mended meanwhile.
    # The store takes the lock again, and refuses a key that was rotated away in between.
    with acquire_lock(settings.state / LOCK_FILE):
        key = open_signing_key(settings)
    if settings.store.kind == "postgresql":
        from vedette.store.postgres import PostgresStore

        return PostgresStore(
            settings.store.url(), settings.state, fleet=settings.fleet, key=key, key_name=name,
            now_us=now_us, lease_us=settings.store.lease_us,
            visit=settings.store.visit,
        )  # fmt: skip
    from vedette.store.sqlite import SqliteStore

    return SqliteStore(
        settings.state, fleet=settings.fleet, key=key, key_name=name, now_us=now_us,
        synchronous="FULL" if settings.store.survives == "power-loss" else "NORMAL",
    )  # fmt: skip


def open_signing_key(settings: Settings) -> SigningKey:
    """Return the key that signs the ledger of the settings' store, of whatever schema that is.

    The caller holds the runner's lock. Raises BadStore for a key that is not the one in force.
    """
    from vedette.adapters.signing_keys import open_ledger_key

    name = ledger_key_name(settings.fleet)
    return open_ledger_key(settings.state, name, lambda: _key_in_force(settings))


def open_idle_store(settings: Settings) -> FleetStore:
    """Open the settings' store to write, while no fleet runs. Raises BadCommand, StoreBusy."""
    from vedette.domain.base.clock import SystemClock
    from vedette.domain.base.state_folder import secure_folder

    if not store_exists(settings):
        raise BadCommand("there is no store here", mend="start `vedette run` once")
    secure_folder(settings.state)
    return open_store(settings, SystemClock().now_us)


def _key_in_force(settings: Settings) -> str | None:
    """Return the verifier key that the store's last rotation named, if there is such a store."""
    if not store_exists(settings):
        return None
    # Of whatever schema the store is: whoever opens it then says so.
    if settings.store.kind == "postgresql":
        from vedette.store.postgres import read_value

        return read_value(settings.store.url(), KEY)
    from vedette.store.sqlite.connection import read_value as read_file_value

    return read_file_value(settings.state / "store.db", KEY)


def open_reader(settings: Settings) -> StoreReader:
    """Open the settings' store to read, beside a running fleet or none; `close` it.

    Raises BadStore if there is none.
    """
    if settings.store.kind == "postgresql":
        from vedette.store.postgres import PostgresReader

        return PostgresReader(settings.store.url())
    from vedette.store.sqlite import SqliteReader

    return SqliteReader(settings.state)


@contextmanager
def store_reader(settings: Settings) -> Iterator[StoreReader]:
    """Open the store that the settings name, to read for as long as the block runs.

    Raises BadStore, also for what the library that reads the file says within the block.
    """
    try:
        store = open_reader(settings)
        try:
            yield store
        finally:
            store.close()
    except Exception as error:
        # By its name: which library reads the file is the adapter's business.
        if type(error).__module__.partition(".")[0] not in ("apsw", "psycopg"):
            raise
        if (disk_error := to_disk_error(error, settings.state / "store.db")) is not None:
            raise disk_error from error
        raise BadStore(
            f"the store cannot be read: {error}",
            where=settings.store.url_env or str(settings.state / "store.db"),
            mend="restore it from a backup; `vedette verify` says what stands",
        ) from error


def store_exists(settings: Settings) -> bool:
    """Say whether the store that the settings name is there already."""
    if settings.store.kind == "postgresql":
        from vedette.store.postgres import has_store

        return has_store(settings.store.url())
    return (settings.state / "store.db").exists()

"""The store's values by name (table meta): the key in force, what was archived, marks."""

from __future__ import annotations

from vedette.store.dialect import Database

ARCHIVED = "archived"
INSTANCE = "instance"
KEY = "ledger_key"
RESTORED = "restored"
STOP_EPOCH = "stop_epoch"
# How often a group of several workers' did more than accept events and commit steps.
ORDERS = "orders"
# The entry up to which the rows of view_base were folded.
VIEW_BASE = "view_base"

UPSERT_META = (
    "INSERT INTO meta(name,value) VALUES(?,?) ON CONFLICT(name) DO UPDATE SET value=excluded.value"
)


def read_meta(database: Database, name: str) -> str | None:
    """Return a value of the store's meta table by its name, or None if none is kept."""
    rows = database.rows("SELECT value FROM meta WHERE name=?", (name,))
    return str(rows[0][0]) if rows else None


def write_meta(database: Database, name: str, value: object) -> None:
    """Keep a value under a name in the store's meta table."""
    database.execute(UPSERT_META, (name, str(value)))

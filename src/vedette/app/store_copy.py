"""Copy of a fleet's store from SQLite to PostgreSQL: everything, in one transaction, verified.

The state folder stays: keys, witness file and memory banks go on with the new store. The old file
is left as it is; it cannot be run again by mistake, since the witness file has moved on.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from itertools import islice
from typing import TYPE_CHECKING, Any

from msgspec import Struct

from vedette.domain.base.canonical import canonical_json
from vedette.domain.base.clock import SystemClock
from vedette.domain.base.errors import BadCommand, BadStore
from vedette.domain.base.failpoint import hit_failpoint
from vedette.domain.entry import Body, Draft
from vedette.domain.identity import Principal
from vedette.store.meta import read_meta
from vedette.store.read_ledger import LedgerReader
from vedette.store.schema import TABLES, list_tables

if TYPE_CHECKING:
    from vedette.config.settings import Settings
    from vedette.store.dialect import Database
    from vedette.store.postgres.database import PostgresDatabase

_BATCH = 2000


class CopyResult(Struct, frozen=True):
    """What a store copy took to PostgreSQL: entries, the root of their tree, rows by table."""

    size: int
    root: str
    rows: dict[str, int]


def list_copied_tables() -> list[str]:
    """Return the names of the tables that a store copy takes, in the order of their declaration."""
    return list_tables(TABLES)


async def copy_store(settings: Settings, url: str, who: Principal, reason: str) -> CopyResult:
    """Copy the SQLite store of a state folder into an empty database.

    Either all of it is there and verified, or nothing. Raises StoreBusy if the fleet runs,
    BadCommand for a target that holds a store, BadStore if either does not verify.
    """
    from vedette.adapters.signing_keys import open_ledger_key
    from vedette.store.postgres import PostgresStore
    from vedette.store.postgres.database import PostgresDatabase
    from vedette.store.postgres.schema import create_tables
    from vedette.store.runner_lock import LOCK_FILE, acquire_lock
    from vedette.store.sqlite.connection import open_database

    path = settings.state / "store.db"
    if not path.exists():
        raise BadStore("there is no store here", where=str(path), mend="start `vedette run` once")
    with ExitStack() as stack:
        stack.enter_context(acquire_lock(settings.state / LOCK_FILE))
        source = open_database(path, write=False)
        stack.callback(source.close)
        key_name = f"vedette/{settings.fleet}"
        key = open_ledger_key(settings.state, key_name, LedgerReader(source).key_in_force)
        target = PostgresDatabase(url, name="vedette copy", hold_ms=0)
        stack.callback(target.close)
        create_tables(target)
        copied = _copy_all(settings, source, target)
    store = PostgresStore(
        url, settings.state, fleet=settings.fleet, key=key, key_name=key_name,
        now_us=SystemClock().now_us, visit=True,
    )  # fmt: skip
    try:
        body = Body(canonical_json({"reason": reason}))
        await store.commands.append_entries([Draft("store.copied", {"actor": str(who)}, body=body)])
    finally:
        store.close()
    return copied


def _copy_all(settings: Settings, source: Database, target: PostgresDatabase) -> CopyResult:
    witness, public = settings.state / "witness.log", settings.state / "ledger.pub"
    key = public.read_text(encoding="ascii").strip()
    fleet = read_meta(source, "fleet")
    if fleet != settings.fleet:
        raise BadStore(
            f"this store belongs to the fleet {fleet!r}, not {settings.fleet!r}",
            where=str(settings.state / "store.db"),
            mend="give the settings of the fleet's own",
        )
    hit_failpoint("store-copy:before")
    target.begin()
    try:
        _require_empty(target)
        size, root = _verify_ledger(LedgerReader(source), key, witness, "the store")
        rows = {name: _copy_table(source, target, name) for name in list_copied_tables()}
        target.execute(
            "UPDATE leasing SET life=COALESCE("
            "(SELECT CAST(value AS BIGINT) FROM meta WHERE name='epoch'), 0)"
        )
        hit_failpoint("store-copy:mid")
        if _verify_ledger(LedgerReader(target), key, witness, "the copy") != (size, root):
            raise BadStore("the copy has another head than the store", where="[store]")
        target.commit()
    finally:
        target.rollback()
    hit_failpoint("store-copy:after")
    return CopyResult(size, root, rows)


def _require_empty(target: PostgresDatabase) -> None:
    for name in list_copied_tables():
        ((there,),) = target.rows(f'SELECT COUNT(*) FROM "{name}"')  # noqa: S608 (our own names)
        if there > (name == "meta"):
            raise BadCommand(
                f"the database holds a store already ({there} rows of {name})",
                mend="give one that is empty; nothing was written",
            )


def _copy_table(source: Database, target: PostgresDatabase, name: str) -> int:
    names = target.columns_of(name)
    quoted = ", ".join(f'"{column}"' for column in names)
    where = " WHERE name<>'schema'" if name == "meta" else ""
    count = 0
    rows: Iterator[Any] = source.iterate_rows(f'SELECT {quoted} FROM "{name}"{where}')  # noqa: S608
    while batch := list(islice(rows, _BATCH)):
        count += target.copy_in(name, batch)
    ((there,),) = source.rows(f'SELECT COUNT(*) FROM "{name}"{where}')  # noqa: S608
    if there != count:
        raise BadStore(f"{there} rows of {name} became {count}", mend="nothing was written")
    return count


def _verify_ledger(ledger: LedgerReader, key: str, witness: Any, what: str) -> tuple[int, str]:
    """Verify a ledger with its bodies; return (size, root). Raises BadStore."""
    from vedette.adapters.ledger_export import verify_store

    report = verify_store(ledger, key, witness)
    if not report.ok:
        raise BadStore(
            f"{what} does not verify: {report.findings[0].sentence}",
            mend="see `vedette verify`; nothing was written",
        )
    return report.size, report.root.hex()

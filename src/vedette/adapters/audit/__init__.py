"""What targets know of what was done to them: one reader for each kind of target.

A reader only reads. What its target needs in vedette.toml for that stands in its module.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from msgspec import Struct

from vedette.domain.base.errors import BadFleet
from vedette.ledger.history.audit import Mail, TargetEffect


class TargetRecord(Struct, frozen=True):
    """What one target says: effects by key, or the mails of a mailbox.

    `retention_us` is for how long it keeps what it has, in microseconds; None if for good.
    """

    items: Iterable[TargetEffect] | None = None
    mails: list[Mail] | None = None
    drained_folders: frozenset[str] = frozenset()
    retention_us: int | None = None


def read_record(name: str, table: Mapping[str, Any], since_us: int) -> TargetRecord:
    """Read the record of a target; readers may leave out what is older than `since_us`.

    Raises BadFleet if the target keeps none that can be read, or it cannot be read as the settings
    say; Unavailable if it does not answer now.
    """
    kind, where = table.get("kind"), f"target {name}"
    if kind == "maildir":
        from vedette.adapters.audit.maildir import drained_folders, read_mails

        return TargetRecord(mails=read_mails(table, where), drained_folders=drained_folders(table))
    if kind == "board":
        from vedette.adapters.audit.board import read_statements

        return TargetRecord(items=read_statements(table, where))
    if kind == "webhook":
        from vedette.adapters.audit.webhook import read_calls

        return TargetRecord(items=read_calls(table, where))
    if kind == "pubsub":
        from vedette.adapters.audit.pubsub import read_messages, retention_us

        keeps_us = retention_us(table, where)
        return TargetRecord(items=read_messages(table, where), retention_us=keeps_us)
    if kind == "bigquery":
        from vedette.adapters.audit.bigquery import read_rows

        return TargetRecord(items=read_rows(table, where, since_us))
    raise BadFleet(f"nothing here reads the record of a {kind}", where=where)


# What names the record of a target; the first that is there does.
_RECORD_KEYS: Mapping[str, tuple[str, ...]] = {
    "maildir": ("path",),
    "board": ("path",),
    "webhook": ("record_file", "record_url"),
    "pubsub": ("record_subscription",),
    "bigquery": ("table",),
}


# What says that two targets are one place: all of any row.
_IDENTITY_KEYS: Mapping[str, tuple[tuple[str, ...], ...]] = {
    "maildir": (("path",),),
    "board": (("path",),),
    "webhook": (("url",), ("record_file",), ("record_url",)),
    "pubsub": (("project", "topic"), ("project", "record_subscription")),
    "bigquery": (("project", "dataset", "table"),),
}


def is_same_target(one: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    """Say whether what was done to one target may stand in the record of the other."""
    if one.get("kind") != other.get("kind"):
        return False
    rows = _IDENTITY_KEYS.get(str(one.get("kind")), ())
    return any(all(one.get(n) and one.get(n) == other.get(n) for n in row) for row in rows)


def audit_problem(table: Mapping[str, Any]) -> str | None:
    """Return why a target cannot be audited as it is declared; None if it can."""
    kind = table.get("kind")
    needs = _RECORD_KEYS.get(str(kind))
    if needs is None:
        return f"nothing here reads the record of a {kind}"
    if not any(table.get(name) for name in needs):
        return f"its record is not named: add {' or '.join(needs)}"
    return None

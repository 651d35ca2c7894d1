"""Tables in BigQuery that the ledger is shipped into: columns, and rows for Storage Write.

Columns are read from schema/*.json, in the form that `bq` and Terraform take too, so there is one
place that says them. A row holds fields of an entry, its canonical bytes and their digest; content
(bodies) and the salts of its digests never leave the store, so a row stays true after an erasure.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import orjson
from msgspec import Struct

from vedette.domain.base.canonical import sha256_hex

FOLDER = Path(__file__).parent

# Which kinds of entry a table takes, and how it is clustered beside its partitions by day.
KINDS: Mapping[str, frozenset[str] | None] = {
    "ledger": None,
    "decisions": frozenset({"action.decided", "recall.decided"}),
}
CLUSTER_COLUMNS: Mapping[str, tuple[str, ...]] = {
    "ledger": ("fleet", "agent", "kind"),
    "decisions": ("fleet", "agent", "rule"),
}
PARTITION_COLUMN = "recorded_at"

# In the order in which they stand on one another.
VIEWS = (
    "entries", "actions_per_agent", "denials_by_rule", "cost_per_useful_action", "holds",
    "held_time",
)  # fmt: skip

# What one append takes. The service takes 10 MB.
MAX_ROWS, MAX_BYTES = 1000, 2_000_000

# Columns that are no field of an entry under their own name.
_FIELD_NAMES = {"recorded_at": "at", "hold_until": "until"}


@cache
def table_columns(table: str) -> tuple[dict[str, str], ...]:
    """Return the columns of a BigQuery table: name, type, mode, description."""
    return tuple(json.loads((FOLDER / "schema" / f"{table}.json").read_text("utf-8")))


def view_query(view: str, dataset: str) -> str:
    """Return the query of a BigQuery view over a dataset, written project.dataset."""
    text = (FOLDER / "views" / f"{view}.sql").read_text("utf-8")
    return text.replace("${dataset}", dataset)


class ShippedRowBatch(Struct, frozen=True):
    """Rows for one BigQuery table, of a stretch of the ledger that ends at entry `last`.

    `history` is when its line of history began (microseconds); `rows` are (seq, serialised row).
    """

    last: int
    history: int
    rows: tuple[tuple[int, bytes], ...]


class ShippedRowEncoder:
    """Encodes a fleet's entries as the rows of one BigQuery table."""

    def __init__(self, table: str, fleet: str) -> None:
        self.table, self._fleet, self._kinds = table, fleet, KINDS[table]
        self._row_class, self.descriptor = _row_message(table)
        self._fields = [
            (column["name"], _FIELD_NAMES.get(column["name"], column["name"]))
            for column in table_columns(table)
            if column["name"] not in _COMPUTED_COLUMNS
        ]
        self._computed = {column["name"] for column in table_columns(table)} & set(
            _COMPUTED_COLUMNS
        )

    def batch(self, entries: Sequence[tuple[int, bytes]], history: int) -> ShippedRowBatch | None:
        """Return the rows of the next entries; fewer where they are many or a history begins.

        `history` is that of the entry before. None if there are no entries.
        """
        rows: list[tuple[int, bytes]] = []
        last = size = 0
        for seq, raw in entries:
            entry = orjson.loads(raw)
            if begins_history(entry):
                if last:
                    break
                history = entry["at"]
            if self._kinds is None or entry["kind"] in self._kinds:
                row = self.row(entry, raw, history)
                size += len(row)
                if rows and (size > MAX_BYTES or len(rows) >= MAX_ROWS):
                    break
                rows.append((seq, row))
            last = seq
        return ShippedRowBatch(last, history, tuple(rows)) if last else None

    def row(self, entry: Mapping[str, Any], raw: bytes, history: int) -> bytes:
        """Return the serialised row of one entry."""
        values = {
            name: entry[field] for name, field in self._fields if entry.get(field) is not None
        }
        for name in self._computed:
            value = _COMPUTED_COLUMNS[name](entry, raw)
            if value is not None:
                values[name] = value
        values["fleet"], values["history"] = self._fleet, history
        row: bytes = self._row_class(**values).SerializeToString()
        return row


def begins_history(entry: Mapping[str, Any]) -> bool:
    """Say whether an entry for BigQuery begins a line of history: the first, or a restore's."""
    return bool(entry["seq"] == 1 or entry["kind"] == "store.restored")


def _effect(entry: Mapping[str, Any], raw: bytes) -> str | None:
    kind: str = entry["kind"]
    return kind[7:] if kind.startswith("effect.") else None


def _spend(entry: Mapping[str, Any], raw: bytes) -> str | None:
    spend = entry.get("spend")
    return None if spend is None else orjson.dumps(spend).decode()


# Columns that are made of an entry.
_COMPUTED_COLUMNS: Mapping[str, Callable[[Mapping[str, Any], bytes], str | None]] = {
    "fleet": lambda entry, raw: None,
    "history": lambda entry, raw: None,
    "digest": lambda entry, raw: sha256_hex(raw),
    "effect": _effect,
    "spend": _spend,
    "entry": lambda entry, raw: raw.decode(),
}


@cache
def _row_message(table: str) -> tuple[Any, Any]:
    """Return the class of a table's rows and its descriptor, as Storage Write wants it.

    A TIMESTAMP goes as microseconds, JSON as text (docs.cloud.google.com, supported protobuf
    types of the Storage Write API).
    """
    from google.protobuf import (  # type: ignore[import-untyped]
        descriptor_pb2,
        descriptor_pool,
        message_factory,
    )

    kinds = descriptor_pb2.FieldDescriptorProto
    file = descriptor_pb2.FileDescriptorProto(name=f"vedette_{table}.proto", syntax="proto2")
    message = file.message_type.add(name="Row")
    for number, column in enumerate(table_columns(table), 1):
        whole = column["type"] in ("INTEGER", "TIMESTAMP")
        message.field.add(
            name=column["name"],
            number=number,
            type=kinds.TYPE_INT64 if whole else kinds.TYPE_STRING,
            label=kinds.LABEL_OPTIONAL,
        )
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    made = message_factory.GetMessageClass(pool.FindMessageTypeByName("Row"))
    descriptor = descriptor_pb2.DescriptorProto()
    made.DESCRIPTOR.CopyToProto(descriptor)
    return made, descriptor

"""The tables of the read model: rows, lists of entries, and how far along the ledger they are.

They lie in a file of their own beside a SQLite store, in tables of their own in a PostgreSQL
database. Nothing of them is kept in a backup, and nobody decides by them.
"""

from __future__ import annotations

# Another number, and the model is made anew from the entries.
VIEW_SCHEMA = 1

# `mark` is that of the ledger at entry `reached` (`entry_batches`): tables of another history, as
# of before a store was restored, are known by it.
VIEW_TABLES = f"""
CREATE TABLE view_row(
  name TEXT NOT NULL, id TEXT NOT NULL, version INTEGER NOT NULL, sort INTEGER NOT NULL,
  data BLOB NOT NULL, PRIMARY KEY(name, id)
) STRICT, WITHOUT ROWID;
CREATE INDEX view_row_sort ON view_row(name, sort, id);
CREATE TABLE view_list(id INTEGER PRIMARY KEY, name TEXT NOT NULL UNIQUE) STRICT;
CREATE TABLE view_entry(
  list INTEGER NOT NULL, seq INTEGER NOT NULL, PRIMARY KEY(list, seq)
) STRICT, WITHOUT ROWID;
CREATE TABLE view_state(
  one INTEGER PRIMARY KEY CHECK(one = 1), schema INTEGER NOT NULL, reached INTEGER NOT NULL,
  mark TEXT NOT NULL
) STRICT;
INSERT INTO view_state VALUES(1, {VIEW_SCHEMA}, 0, '');
"""

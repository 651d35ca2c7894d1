"""The SQL statements of the memory banks: tables, and the ranking."""

from __future__ import annotations

from functools import cache

_APPEND_ONLY = "BEGIN SELECT RAISE(ABORT, 'memory_rev is append-only'); END"

SCHEMA = f"""
CREATE TABLE IF NOT EXISTS meta (name TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS bank (
  name TEXT PRIMARY KEY, version INTEGER NOT NULL, digest TEXT NOT NULL) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS memory (
  bank TEXT NOT NULL, id TEXT NOT NULL, revision INTEGER NOT NULL, state TEXT NOT NULL,
  scope TEXT NOT NULL, kind TEXT NOT NULL, topics TEXT NOT NULL, text TEXT NOT NULL,
  digest TEXT NOT NULL, reviewed_by TEXT NOT NULL, reviewed_on TEXT NOT NULL,
  expires_us INTEGER NOT NULL, label TEXT, trust TEXT NOT NULL, dl INTEGER NOT NULL,
  PRIMARY KEY (bank, id));
CREATE INDEX IF NOT EXISTS memory_scope ON memory (bank, scope, state, expires_us, dl);
CREATE TABLE IF NOT EXISTS memory_topic (
  bank TEXT NOT NULL, memory_id TEXT NOT NULL, topic TEXT NOT NULL,
  PRIMARY KEY (bank, memory_id, topic)) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS memory_rev (
  seq INTEGER PRIMARY KEY, bank TEXT NOT NULL, id TEXT NOT NULL, revision INTEGER NOT NULL,
  state TEXT NOT NULL, digest TEXT NOT NULL, bank_version INTEGER NOT NULL);
CREATE INDEX IF NOT EXISTS memory_rev_id ON memory_rev (bank, id, revision);
CREATE TRIGGER IF NOT EXISTS memory_rev_kept BEFORE DELETE ON memory_rev {_APPEND_ONLY};
CREATE TRIGGER IF NOT EXISTS memory_rev_fixed BEFORE UPDATE ON memory_rev {_APPEND_ONLY};
CREATE TABLE IF NOT EXISTS memory_body (
  bank TEXT NOT NULL, id TEXT NOT NULL, digest TEXT NOT NULL, body TEXT NOT NULL,
  PRIMARY KEY (bank, id, digest)) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS post (
  bank TEXT NOT NULL, scope TEXT NOT NULL, term TEXT NOT NULL, memory_id TEXT NOT NULL,
  tf INTEGER NOT NULL, dl INTEGER NOT NULL, expires_us INTEGER NOT NULL,
  PRIMARY KEY (bank, scope, term, memory_id)) WITHOUT ROWID;
CREATE INDEX IF NOT EXISTS post_memory ON post (bank, memory_id);
CREATE TABLE IF NOT EXISTS candidate (
  id TEXT PRIMARY KEY, bank TEXT NOT NULL, scope TEXT NOT NULL, text TEXT NOT NULL,
  topics TEXT NOT NULL, agent TEXT NOT NULL, run TEXT NOT NULL, event TEXT NOT NULL,
  state TEXT NOT NULL, proposed_us INTEGER NOT NULL, kind TEXT NOT NULL DEFAULT 'fact',
  label TEXT, evidence TEXT NOT NULL DEFAULT '[]', replaces TEXT,
  decided_by TEXT NOT NULL DEFAULT '', decided_us INTEGER NOT NULL DEFAULT 0,
  promoted_us INTEGER NOT NULL DEFAULT 0) WITHOUT ROWID;
CREATE INDEX IF NOT EXISTS candidate_event ON candidate (event);
CREATE TABLE IF NOT EXISTS taken_back (
  bank TEXT NOT NULL, id TEXT NOT NULL, PRIMARY KEY (bank, id)) WITHOUT ROWID;
"""

FIELDS = (
    "bank, id, revision, scope, kind, topics, text, digest, reviewed_by, reviewed_on, "
    "expires_us, label, trust"
)
COUNT = (
    "SELECT COUNT(*), AVG(dl) FROM memory"
    " WHERE bank = :b AND scope = :s AND state = 'active' AND (expires_us = 0 OR expires_us > :now)"
)
NOT_EXPIRED = "(expires_us = 0 OR expires_us > :now)"


@cache
def ranking_query(terms: int, topics: int) -> str:
    """Return the SQL that ranks a bank's memories by BM25, rounded so that equal scores tie.

    The common table is materialised and comes first in a CROSS JOIN: with the planner's own
    choice the same ranking took seven times as long.
    """
    wanted = ",".join(f":t{index}" for index in range(terms))
    about = ""
    if topics:
        names = ",".join(f":u{index}" for index in range(topics))
        about = (
            " AND EXISTS (SELECT 1 FROM memory_topic t WHERE t.bank = :b"
            f" AND t.memory_id = p.memory_id AND t.topic IN ({names}))"
        )
    score = "i.idf * p.tf * 2.2 / (p.tf + 1.2 * (0.25 + 0.75 * p.dl / :mean))"
    fields = ", ".join(f"m.{name}" for name in FIELDS.split(", "))
    return (
        "WITH i AS MATERIALIZED ("
        "SELECT term, LN((:n - COUNT(*) + 0.5) / (COUNT(*) + 0.5) + 1.0) AS idf FROM post"
        f" WHERE bank = :b AND scope = :s AND term IN ({wanted}) AND {NOT_EXPIRED} GROUP BY term),"
        f" r AS (SELECT p.memory_id AS id, ROUND(SUM({score}), 9) AS score"
        " FROM i CROSS JOIN post p WHERE p.bank = :b AND p.scope = :s AND p.term = i.term"
        f" AND (p.expires_us = 0 OR p.expires_us > :now){about}"
        " GROUP BY p.memory_id ORDER BY score DESC, p.memory_id LIMIT :limit)"
        f" SELECT {fields} FROM r JOIN memory m ON m.bank = :b AND m.id = r.id"
        " ORDER BY r.score DESC, m.id"
    )

"""The board that comments stand on: a SQLite file, changed in one transaction per effect.

A comment is `new`, `approved` or `hidden`. Every effect leaves a row of `statement` under its
idempotency key, with the state before and after: found again it is not done again, and what it did
can be taken back exactly. The row, the comment and the evidence stand or fall together.

The clock is SQLite's. It dates records and decides nothing but how long evidence is kept.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable, Mapping
from contextlib import closing
from hashlib import sha256
from pathlib import Path
from typing import Any

from vedette.sdk import failpoint

_BUSY_S = 5.0
_NOW = "strftime('%Y-%m-%dT%H:%M:%fZ', 'now')"
EVIDENCE_DAYS = 180

# What a board needs beside `comment` and `appeal`; made on a board that has not got it.
_OWN = """
CREATE TABLE IF NOT EXISTS statement (effect TEXT PRIMARY KEY, comment TEXT NOT NULL,
  action TEXT NOT NULL, before TEXT NOT NULL, after TEXT NOT NULL, was TEXT, made_at TEXT NOT NULL,
  body TEXT NOT NULL);
CREATE TABLE IF NOT EXISTS evidence (effect TEXT PRIMARY KEY, comment TEXT NOT NULL, text TEXT,
  digest TEXT NOT NULL, kept_at TEXT NOT NULL);
CREATE TABLE IF NOT EXISTS queue (effect TEXT PRIMARY KEY, comment TEXT NOT NULL,
  label TEXT NOT NULL, recipient TEXT NOT NULL, state TEXT NOT NULL DEFAULT 'open',
  put_at TEXT NOT NULL);
CREATE TABLE IF NOT EXISTS outcome (appeal TEXT PRIMARY KEY, comment TEXT NOT NULL,
  effect TEXT NOT NULL, outcome TEXT NOT NULL, decided_at TEXT NOT NULL);
"""


class Refused(Exception):
    """The board cannot do this now or ever: what it says is told to people."""


def digest(text: str) -> str:
    """Return the SHA-256 of a comment's text, in hex."""
    return sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


class Board:
    """One effect on the board. `change` runs it in one transaction, once per key.

    Whatever is changed, evidence older than `days` is erased with it.
    """

    def __init__(self, path: str | Path, key: str, days: int = EVIDENCE_DAYS) -> None:
        self.path = Path(path)
        self.key = key
        self.days = days

    def change(self, act: Callable[[sqlite3.Connection], Mapping[str, Any]]) -> Mapping[str, Any]:
        """Return what `act` made of the board, or what it made of it when it was first called.

        Raises Refused for what the board does not allow and sqlite3.Error for what went wrong; in
        both cases nothing was changed.
        """
        with closing(self._open()) as db:
            db.execute("BEGIN IMMEDIATE")
            try:
                known = self._known(db)
                found = dict(act(db)) if known is None else known
                self._forget(db)
                failpoint("board:before")
                db.execute("COMMIT")
            except BaseException:
                if db.in_transaction:
                    db.execute("ROLLBACK")
                raise
            failpoint("board:after")
            return found

    def known(self) -> Mapping[str, Any] | None:
        """Return what the effect did, or None if the board does not know its key.

        Raises sqlite3.Error for a file that is no board: that one knows of no effect.
        """
        with closing(self._open()) as db:
            db.execute("SELECT 1 FROM comment LIMIT 1")
            return self._known(db)

    def _open(self) -> sqlite3.Connection:
        if not self.path.is_file():
            raise sqlite3.OperationalError(f"there is no board at {self.path}")
        db = sqlite3.connect(self.path, timeout=_BUSY_S, isolation_level=None)
        try:
            # Erased evidence is overwritten in the file; a power cut takes nothing answered.
            db.execute("PRAGMA secure_delete = ON")
            db.execute("PRAGMA synchronous = FULL")
            if db.execute("SELECT 1 FROM sqlite_master WHERE name = 'outcome'").fetchone() is None:
                db.executescript(_OWN)
        except BaseException:
            db.close()
            raise
        return db

    def _known(self, db: sqlite3.Connection) -> dict[str, Any] | None:
        row = db.execute(
            "SELECT comment, action, after FROM statement WHERE effect = ?", (self.key,)
        ).fetchone()
        return None if row is None else {"comment": row[0], "action": row[1], "state": row[2]}

    # --- what an effect is made of -------------------------------------------------------------

    def set_state(
        self,
        db: sqlite3.Connection,
        comment: str,
        action: str,
        to: Mapping[str, str],
        body: Mapping[str, Any],
    ) -> dict[str, Any]:
        """Move a comment on, with the statement of reasons. `to` says where each state may go.

        Raises Refused if there is no such comment, or if it may not go from where it is.
        """
        before, was = self._standing(db, comment)
        if before not in to:
            raise Refused(f"comment {comment} is {before} by now: {action} is not for that")
        said = json.dumps(dict(body), ensure_ascii=False, sort_keys=True)
        db.execute(
            "UPDATE comment SET state = ?, statement = ? WHERE id = ?", (to[before], said, comment)
        )
        self._state(db, comment, action, (before, to[before], was), said)
        return {"comment": comment, "action": action, "state": to[before]}

    def take_back(
        self, db: sqlite3.Connection, comment: str, action: str, by: str
    ) -> dict[str, Any]:
        """Undo the last `action` on a comment: state and statement are what they were before it.

        Raises Refused if something else happened to the comment since.
        """
        state, was = self._standing(db, comment)
        last = db.execute(
            "SELECT action, before, after, was, rowid FROM statement WHERE comment = ?"
            " AND before <> after ORDER BY rowid DESC LIMIT 1",
            (comment,),
        ).fetchone()
        if last is None or last[0] != action or last[2] != state:
            raise Refused(
                f"comment {comment} is {state}, and not by {action}: nothing to take back"
            )
        decided = (
            "SELECT 1 FROM statement WHERE comment = ? AND rowid > ? AND action IN (?, ?)",
            (comment, last[4], *_ACTIONS.values()),
        )
        if db.execute(*decided).fetchone():
            raise Refused(
                f"a person decided an appeal of comment {comment} since: its {action} is not"
                " taken back"
            )
        db.execute(
            "UPDATE comment SET state = ?, statement = ? WHERE id = ?", (last[1], last[3], comment)
        )
        self._state(db, comment, by, (state, last[1], was), last[3] or "null")
        return {"comment": comment, "action": by, "state": last[1]}

    def keep(self, db: sqlite3.Connection, comment: str, text: str) -> None:
        """Keep a comment as it was judged, whatever becomes of it."""
        db.execute(
            f"INSERT INTO evidence VALUES (?,?,?,?,{_NOW})",  # noqa: S608 - a constant
            (self.key, comment, text, digest(text)),
        )

    def _forget(self, db: sqlite3.Connection) -> None:
        """Erase evidence whose time is over."""
        db.execute(
            "UPDATE evidence SET text = NULL WHERE text IS NOT NULL AND kept_at <"
            " strftime('%Y-%m-%dT%H:%M:%fZ', 'now', ?)",
            (f"-{self.days} days",),
        )

    def put_in_queue(
        self,
        db: sqlite3.Connection,
        comment: str,
        label: str,
        to: str,
        body: Mapping[str, Any],
        action: str = "escalate",
    ) -> dict[str, Any]:
        """Put a comment before a person; its state stays. Raises Refused if there is none."""
        state, was = self._standing(db, comment)
        db.execute(
            f"INSERT INTO queue (effect, comment, label, recipient, put_at)"  # noqa: S608
            f" VALUES (?,?,?,?,{_NOW})",
            (self.key, comment, label, to),
        )
        said = json.dumps(dict(body), ensure_ascii=False, sort_keys=True)
        self._state(db, comment, action, (state, state, was), said)
        return {"comment": comment, "action": action, "state": state}

    def decide_appeal(
        self, db: sqlite3.Connection, appeal: str, outcome: str, to: str, body: Mapping[str, Any]
    ) -> dict[str, Any]:
        """Write the outcome of an appeal into the comment's statement; `to` is its new state.

        Raises Refused if there is no such appeal, if it was decided, or if the comment is not
        hidden.
        """
        row = db.execute("SELECT comment FROM appeal WHERE id = ?", (appeal,)).fetchone()
        if row is None:
            raise Refused(f"there is no appeal {appeal} on the board")
        comment: str = row[0]
        done = db.execute("SELECT outcome FROM outcome WHERE appeal = ?", (appeal,)).fetchone()
        if done is not None:
            raise Refused(f"appeal {appeal} was decided: {done[0]}")
        _, was = self._standing(db, comment)
        reasons = json.loads(was) if was else {}
        reasons["appeal"] = {**body, "id": appeal, "outcome": outcome}
        found = self.set_state(db, comment, _ACTIONS[outcome], {"hidden": to}, reasons)
        db.execute(
            f"INSERT INTO outcome VALUES (?,?,?,?,{_NOW})",  # noqa: S608 - a constant
            (appeal, comment, self.key, outcome),
        )
        return {**found, "appeal": appeal, "outcome": outcome}

    def text(self, db: sqlite3.Connection, comment: str) -> str:
        """Return the comment as it stands there now. Raises Refused if there is none."""
        row = db.execute("SELECT text FROM comment WHERE id = ?", (comment,)).fetchone()
        if row is None:
            raise Refused(f"there is no comment {comment} on the board")
        return str(row[0])

    def _standing(self, db: sqlite3.Connection, comment: str) -> tuple[str, str | None]:
        row = db.execute("SELECT state, statement FROM comment WHERE id = ?", (comment,)).fetchone()
        if row is None:
            raise Refused(f"there is no comment {comment} on the board")
        return str(row[0]), row[1]

    def _state(
        self,
        db: sqlite3.Connection,
        comment: str,
        action: str,
        change: tuple[str, str, str | None],
        body: str,
    ) -> None:
        before, after, was = change
        db.execute(
            f"INSERT INTO statement VALUES (?,?,?,?,?,?,{_NOW},?)",  # noqa: S608 - a constant
            (self.key, comment, action, before, after, was, body),
        )


_ACTIONS = {"reversed": "restore", "upheld": "uphold"}

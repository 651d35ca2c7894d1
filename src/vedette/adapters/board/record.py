"""The statements that a board of comments keeps: one row for each effect, under its key.

`path` is the SQLite file; its table `statement` has the columns `effect` and `made_at`.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator, Mapping
from contextlib import closing
from pathlib import Path
from typing import Any
from urllib.parse import quote

from vedette.domain.base.clock import from_iso
from vedette.domain.base.errors import BadFleet, Unavailable
from vedette.domain.target_record import TargetEffect

_LOCK_TIMEOUT_S = 5.0


def read_statements(table: Mapping[str, Any], where: str) -> Iterator[TargetEffect]:
    """Yield a comment board's effects. Raises BadFleet for no board, Unavailable for no file."""
    path = Path(str(table.get("path")))
    if not path.is_file():
        raise Unavailable(f"there is no board at {path}", where=where, mend="mend path")
    try:
        # Reading only: an audit never makes, mends or locks what it looks at.
        opened = sqlite3.connect(
            f"file:{quote(str(path))}?mode=ro", uri=True, timeout=_LOCK_TIMEOUT_S
        )
        with closing(opened) as db:
            rows = db.execute("SELECT effect, comment, action, made_at FROM statement").fetchall()
    except sqlite3.OperationalError as error:
        raise Unavailable(f"its record cannot be read: {error}", where=where) from error
    except sqlite3.DatabaseError as error:
        raise BadFleet(f"its record cannot be read: {error}", where=where) from error
    for effect, comment, action, made_at in rows:
        yield TargetEffect(str(effect), _instant(made_at), f"{action} {comment}")


def _instant(at: Any) -> int:
    try:
        return from_iso(at) if isinstance(at, str) else 0
    except ValueError:
        return 0

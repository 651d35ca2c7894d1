"""The policy read from a store: the live one, what was live before it, and what is stopped."""

from __future__ import annotations

from typing import Any

import orjson

from vedette.domain.bundle import Bundle
from vedette.domain.stop import Stop
from vedette.store.dialect import Database
from vedette.store.schema import IS_RARE

# With the words of the index, so that it is used.
_ARCHIVED = (
    f"SELECT bytes FROM entry WHERE kind='ledger.archived' AND {IS_RARE} ORDER BY seq DESC LIMIT 1"
)


class PolicyReader:
    """The policy and the stops in a store's tables; fits `ports.policy_store.PolicyReader`."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def live_revision(self) -> tuple[int, str]:
        rows = self._database.rows("SELECT number,digest FROM policy ORDER BY number DESC LIMIT 1")
        return (rows[0][0], rows[0][1]) if rows else (0, "")

    def revisions(self) -> list[tuple[int, str, int]]:
        rows = self._database.rows("SELECT number,digest,at FROM policy ORDER BY number DESC")
        return [(int(number), str(digest), int(at)) for number, digest, at in rows]

    def bundle_files(self, digest: str) -> dict[str, bytes] | None:
        rows = self._database.rows("SELECT files FROM bundle WHERE digest=?", (digest,))
        if not rows:
            return None
        try:
            texts = orjson.loads(rows[0][0]).items()
            files = {path: text.encode("utf-8") for path, text in texts}
        except (ValueError, AttributeError):
            files = {}
        return dict(Bundle.from_record(files, digest).files)

    def published_wasm(self, digest: str) -> str | None:
        # As an entry says it: the publication's, or that of the archiving which took it away.
        sql = (
            "SELECT bytes FROM entry WHERE kind='policy.published' AND seq<=(SELECT seq FROM policy"
            " WHERE digest=? ORDER BY number DESC LIMIT 1) ORDER BY seq DESC LIMIT 1"
        )
        rows = self._database.rows(sql, (digest,))
        if rows:
            entry = orjson.loads(rows[0][0])
            return entry.get("wasm") if entry["bundle"] == digest else None
        rows = self._database.rows(_ARCHIVED)
        archived: Any = orjson.loads(rows[0][0]).get("wasm") if rows else None
        return archived.get(digest) if archived else None

    def stop_scopes(self) -> list[tuple[str, str]]:
        rows = self._database.rows("SELECT scope,name FROM stop")
        return [(scope, name) for scope, name in rows]

    def active_stops(self) -> list[Stop]:
        sql = "SELECT s.scope, s.name, s.seq, e.bytes FROM stop s LEFT JOIN entry e ON e.seq=s.seq"
        return [
            # One whose entry is archived by now has no end that is known: a person lifts it.
            Stop(scope, name, int(seq), orjson.loads(raw).get("until", 0) if raw else 0)
            for scope, name, seq, raw in self._database.rows(sql)
        ]

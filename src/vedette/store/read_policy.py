"""The policy read from a store: the live one, what was live before it, and what is stopped."""

from __future__ import annotations

from typing import Any

import orjson

from vedette.domain.bundle import Bundle
from vedette.domain.stop import Stop
from vedette.store.dialect import Database
from vedette.store.segment import StoredEntry
from vedette.store.stored_entries import EntryReader


class PolicyReader:
    """The policy and the stops in a store's tables; fits `ports.policy_store.PolicyReader`."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._entries = EntryReader(database, content=False)

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
        sql = "SELECT seq FROM policy WHERE digest=? ORDER BY number DESC LIMIT 1"
        rows = self._database.rows(sql, (digest,))
        upto = int(rows[0][0]) if rows else 0
        for entry in self._newest("policy.published", upto):
            return entry.get("wasm") if entry["bundle"] == digest else None
        for entry in self._newest("ledger.archived", self._entries.last_seq()):
            archived: Any = entry.get("wasm")
            return archived.get(digest) if archived else None
        return None

    def _newest(self, kind: str, upto: int) -> list[Any]:
        """Return the newest entry of a rare kind up to a seq, if there is one."""
        found = self._entries.rare([kind], upto=upto, limit=1)
        return [orjson.loads(one.raw) for one in found]

    def stop_scopes(self) -> list[tuple[str, str]]:
        rows = self._database.rows("SELECT scope,name FROM stop")
        return [(scope, name) for scope, name in rows]

    def active_stops(self) -> list[Stop]:
        stops = self._database.rows("SELECT scope, name, seq FROM stop")
        entries = self._entries.find_all(int(seq) for _, _, seq in stops)
        return [
            # One whose entry is archived by now has no end that is known: a person lifts it.
            Stop(scope, name, int(seq), _end_of(entries.get(int(seq))))
            for scope, name, seq in stops
        ]


def _end_of(stop: StoredEntry | None) -> int:
    """Return when a stop ends by itself, in microseconds; 0 for never, or one that is archived."""
    return (orjson.loads(stop.raw).get("until") or 0) if stop is not None else 0

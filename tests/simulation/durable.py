"""What a cluster made durable, read beside all engines, during a history and at its end."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import apsw
from tests.simulation.history import History
from tests.simulation.server import Server


class Durable:
    """The store of a cluster: the server's, or else the file in the first machine's folder."""

    def __init__(self, server: Server | None, machine: Callable[[], Path]) -> None:
        self._server, self._machine = server, machine
        self._open: tuple[str, apsw.Connection] | None = None

    def close(self) -> None:
        """Let go of the file."""
        if self._open is not None:
            self._open[1].close()

    def rows(self, sql: str) -> list[tuple[Any, ...]]:
        """Read what is durable now; nothing while there are no tables yet."""
        try:
            if self._server is not None:
                return self._server.read(None).execute(sql).fetchall()
            # Each life of a machine has a folder of its own.
            path = str(self._machine() / "store.db")
            if self._open is None or self._open[0] != path:
                self._open = path, apsw.Connection(path, vfs="unix")
            return self._open[1].execute(sql).fetchall()
        except apsw.SQLError:
            return []

    def head(self) -> int:
        """Return how many entries the ledger has."""
        return next((int(row[0]) for row in self.rows("SELECT COALESCE(MAX(seq),0) FROM entry")), 0)

    def collect(self, history: History) -> list[bytes]:
        """Take the ledger and the fleet's own rows into the history; return the ledger's bytes."""
        ledger = [bytes(raw) for (raw,) in self.rows("SELECT bytes FROM entry ORDER BY seq")]
        history.entries = [json.loads(raw) for raw in ledger]
        for seq, data in self.rows("SELECT b.seq, b.data FROM body b JOIN entry e ON e.seq=b.seq "
                                   "WHERE e.kind IN ('turn.reasoned', 'run.closed')"):  # fmt: skip
            history.bodies[seq] = json.loads(data)
        for collection, key, data in self.rows("SELECT collection, key, data FROM row"):
            agent = str(collection).removesuffix("_notes")
            history.rows[agent, key] = json.loads(data)["texts"]
        return ledger

"""What a cluster made durable, read beside all engines, during a history and at its end."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import apsw
import orjson
from tests.segments import SEGMENTS, entries_of
from tests.simulation.clock import SimClock
from tests.simulation.fleet_images import machine_of
from tests.simulation.history import History
from tests.simulation.proof import check_proof
from tests.simulation.server import Server

from vedette.adapters.ledger_export import Archive
from vedette.app.backup import back_up, restore
from vedette.config.settings import Settings
from vedette.domain.base.errors import BadCommand
from vedette.domain.identity import Principal


class Durable:
    """The store of a cluster, and its archive, which lies in `segments`.

    It is the server's, or else a file of the first machine, each `life` of which has a folder.
    """

    def __init__(self, folder: Path, server: Server | None, life: Callable[[], int]) -> None:
        self._folder, self._server, self._life = folder, server, life
        self._open: tuple[Path, apsw.Connection] | None = None
        self._copies = 0
        self.segments = folder / "archive"

    def close(self) -> None:
        """Let go of the file."""
        if self._open is not None:
            self._open[1].close()
        self._open = None

    def rows(self, sql: str) -> list[tuple[Any, ...]]:
        """Read what is durable now; nothing while there are no tables yet."""
        try:
            if self._server is not None:
                return self._server.read(None).execute(sql).fetchall()
            return self._file().execute(sql).fetchall()
        except (apsw.SQLError, apsw.CantOpenError):
            return []

    def _file(self) -> apsw.Connection:
        path = machine_of(self._folder, 0, self._life()) / "store.db"
        if self._open is None or self._open[0] != path:
            # Where there is none yet, as while one is put back, none is made by looking.
            flags = apsw.SQLITE_OPEN_READWRITE
            self._open = path, apsw.Connection(str(path), vfs="unix", flags=flags)
        return self._open[1]

    async def keep(self, settings: Settings, clock: SimClock) -> Path:
        """Copy the store as it stands, as a replica or a backup does; return where that lies."""
        if self._server is not None:
            return self._server.keep()
        self._copies += 1
        copy = self._folder / f"backup{self._copies}"
        back_up(settings, copy, with_keys=True, clock=clock)
        return copy

    async def put_back(self, copy: Path, settings: Settings, clock: SimClock) -> None:
        """Let an earlier copy take the place of the store: what came after it is lost."""
        if self._server is not None:
            self._server.fail_over(copy)
            return
        lost, witness = settings.state, copy.with_suffix(".witness")
        for file in lost.glob("store.db*"):
            file.unlink()
        (lost / "witness.log").rename(witness)
        given: dict[str, Any] = {
            "key": None, "who": Principal.owner("kim"), "reason": "it is gone", "clock": clock,
        }  # fmt: skip
        try:
            await restore(settings, copy, witness=witness, **given)
        except BadCommand:
            # The key was rotated since: heads that only the next one signed hold by no key here.
            await restore(settings, copy, witness=None, **given)
        self.close()  # what was read until now is another file

    def head(self) -> int:
        """Return how many entries the ledger has."""
        sql = "SELECT COALESCE(MAX(last),0) FROM segment"
        return next((int(row[0]) for row in self.rows(sql)), 0)

    def collect(self, history: History) -> list[bytes]:
        """Take the ledger and the fleet's own rows into the history; return the ledger's bytes."""
        archived = self._archived()
        stored = list(entries_of(self.rows(SEGMENTS)))
        kept = [one.raw for one in stored]
        first = orjson.loads(kept[0])["seq"] if kept else 1
        # A segment may hold what the store has not let go of yet.
        ledger = [raw for seq, raw, _ in archived if seq < first] + kept
        history.entries = [orjson.loads(raw) for raw in ledger]
        for seq, _, data in archived:
            if data is not None and seq < first:
                history.bodies[seq] = orjson.loads(data)
        content = [one for one in stored if one.data is not None]
        for one in content:
            if orjson.loads(one.raw)["kind"] in ("turn.reasoned", "run.closed"):
                history.bodies[one.seq] = orjson.loads(one.data or b"")
        for collection, key, data in self.rows("SELECT collection, key, data FROM row"):
            agent = str(collection).removesuffix("_notes")
            history.rows[agent, key] = orjson.loads(data)["texts"]
        left = [one.data for one in content if one.data is not None]
        left += [it for row in self.rows("SELECT record, answer FROM action") for it in row if it]
        history.content = "\n".join(bytes(data).decode() for data in left)
        spent = "SELECT agent, SUM(amount) FROM spend WHERE unit='actions' GROUP BY agent"
        history.spend = {agent: int(total) for agent, total in self.rows(spent)}
        notes = [str(note) for (note,) in self.rows("SELECT note FROM checkpoint")]
        salted = {one.seq: (one.salt or b"") + (one.data or b"") for one in content}
        history.proof = list(check_proof(ledger, notes, salted, first))
        return ledger

    def _archived(self) -> list[tuple[int, bytes, bytes | None]]:
        """Return (seq, entry, body) of what is in the archive."""
        if not self.segments.is_dir() or not any(self.segments.glob("*[0-9]")):
            return []
        segments = [one for _, _, one in Archive(self.segments).segments]
        return [(seq, raw, data) for one in segments for seq, raw, _, data in one.walk()]

"""The read model's rows read: counts, lists and what is open, never a count over the ledger."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import orjson

from vedette.domain.action import hold_id
from vedette.domain.base.errors import VedetteError
from vedette.store.dialect import Database
from vedette.store.readmodel.model import Lag, ReadModel


class TableReader:
    """The reader of a store's read model. Fits `ports.store.TableReader`.

    What is ready or waits is asked of the store itself, by an index that has nothing else.
    """

    def __init__(self, database: Database, model: ReadModel) -> None:
        self._database = database
        self._model = model

    def view(self, name: str, id: str) -> Mapping[str, Any] | None:
        """Return one row's data."""
        rows = self._model.rows("SELECT data FROM view_row WHERE name=? AND id=?", (name, id))
        found: Mapping[str, Any] | None = orjson.loads(rows[0][0]) if rows else None
        return found

    def view_page(
        self, name: str, *, after: tuple[int, str] = (-1, ""), limit: int
    ) -> list[tuple[str, int, int, Mapping[str, Any]]]:
        """Return (id, version, sort, data) of the rows of a name after the one at (sort, id)."""
        sql = (
            "SELECT id, version, sort, data FROM view_row WHERE name=? AND (sort, id) > (?, ?) "
            "ORDER BY sort, id LIMIT ?"
        )
        return [
            (id, int(version), int(sort), orjson.loads(data))
            for id, version, sort, data in self._model.rows(sql, (name, *after, limit))
        ]

    def counts(self) -> dict[str, dict[str, int]]:
        # What has ended is counted as it ends.
        table: dict[str, dict[str, int]] = {}
        for agent, found in self._agents():
            counted = {name: n for name, n in found.items() if "." in name and name[:6] != "would."}
            if counted:
                table[agent] = counted
        for state in ("ready", "waiting"):
            sql = (
                f"SELECT agent, COUNT(*) FROM run WHERE state='{state}' AND agent>'' GROUP BY agent"
            )
            for agent, number in self._database.rows(sql):
                table.setdefault(agent, {})[f"run.{state}"] = int(number)
        return table

    def wait_counts(self) -> dict[str, int]:
        sql = (
            "SELECT agent, waits, COUNT(*) FROM run WHERE state='waiting' AND agent>'' "
            "GROUP BY agent, waits"
        )
        table: dict[str, int] = {}
        for _, waits, number in self._database.rows(sql):
            table[waits or ""] = table.get(waits or "", 0) + int(number)
        return table

    def open_counts(self) -> dict[str, dict[str, int]]:
        sql = (
            "SELECT agent, waits, COUNT(*) FROM run WHERE state='waiting' AND agent>'' "
            "GROUP BY agent, waits UNION ALL "
            "SELECT agent, 'ready', COUNT(*) FROM run WHERE state='ready' AND agent>'' "
            "GROUP BY agent"
        )
        table: dict[str, dict[str, int]] = {}
        for agent, waits, number in self._database.rows(sql):
            table.setdefault(agent, {})[waits or ""] = int(number)
        return table

    def would(self) -> dict[str, dict[str, int]]:
        table = {}
        for agent, found in self._agents():
            would = {name[6:]: n for name, n in found.items() if name.startswith("would.")}
            if would:
                table[agent] = would
        return table

    def event_counts(self) -> tuple[int, int]:
        fleet = self.view("fleet", "") or {}
        return fleet.get("events", 0), fleet.get("woke_nobody", 0)

    def examples(self) -> dict[str, str]:
        """Return an id of each kind worth looking at: a denied run, an open hold, an effect."""
        fleet = self.view("fleet", "") or {}
        found = {name: fleet[name] for name in ("denied", "effect") if name in fleet}
        for id, _, _, _ in self.view_page("hold", limit=1):
            found["hold"] = hold_id(id)
        return {name: found[name] for name in ("denied", "hold", "effect") if name in found}

    def lag(self, now_us: int) -> dict[str, Any]:
        try:
            lag, is_followed = self._model.lag(now_us), self._model.is_followed()
            failure = self._model.failure
        except VedetteError as error:
            lag, is_followed, failure = Lag(0, 0), False, error.what
        return {
            "reached": lag.reached, "behind": lag.entries, "seconds": round(lag.seconds, 3),
            "followed": is_followed, "failure": failure,
        }  # fmt: skip

    def find_wrong_rows(self) -> list[tuple[str, str]]:
        """Return (name, id) of rows of the read model that are not what the entries come to.

        Reads the whole ledger. Raises BadCommand if some of it is archived.
        """
        self._model.refresh()
        return sorted({(name, id) for name, id, *_ in self._model.find_differences()})

    def _agents(self) -> list[tuple[str, Mapping[str, Any]]]:
        rows = self._model.rows("SELECT id, data FROM view_row WHERE name='agent' ORDER BY id")
        return [(id, orjson.loads(data)) for id, data in rows]

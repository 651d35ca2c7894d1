"""People: who order, repeat an order until it is answered, and answer what waits for them."""

from __future__ import annotations

import asyncio
import itertools
import random
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from tests.jepsen.engines import Worker
from tests.jepsen.fleet import DENIED
from tests.jepsen.targets import Targets
from tests.simulation.history import Order

from vedette.domain.base.errors import (
    AlreadyDone,
    StoreBusy,
    StoreFailed,
    Temporary,
    Unavailable,
    VedetteError,
)
from vedette.ledger.history.lists import hold_item


class People:
    """Orders by the local socket of whichever worker answers; `open_store` is to read holds."""

    def __init__(
        self,
        workers: Sequence[Worker],
        targets: Targets,
        open_store: Callable[[], Any],
        now: Callable[[], float],
        draw: random.Random,
    ) -> None:
        self._workers, self._targets, self._open_store = workers, targets, open_store
        self._now, self._draw = now, draw
        self.orders: list[Order] = []
        self.refusals = Counter[str]()
        self._ids = itertools.count(1)
        self._seen: dict[tuple[str, str, int], float] = {}

    async def stop(self, scope: str) -> None:
        """Stop a scope; a stop that its worker could not record is ordered again until it is.

        It might be recorded later, once nobody would lift it any more.
        """
        while not await self._give("stop", _scope(scope), Order("stop", self._now(), what=scope)):  # noqa: ASYNC110
            await asyncio.sleep(0.5)

    async def resume(self, scope: str) -> None:
        """Lift the stop of a scope."""
        await self._give("resume", _scope(scope), Order("resume", self._now(), what=scope))

    async def publish(self, folder: Path, *, strict: bool) -> None:
        """Make a policy folder live, whatever it loosens."""
        order = Order("publish", self._now(), denies=(DENIED,) if strict else ())
        self.orders.append(order)
        args = {"folder": str(folder)}
        fields: Mapping[str, Any] | None = {"confirm": ""}
        while fields is not None and (confirm := fields.get("confirm")) is not None:
            fields = await self._command(
                "policy_apply", args | ({"confirm": confirm} if confirm else {})
            )
        if fields is not None:
            order.revision, order.told_s = fields["revision"], self._now()

    async def go_on(self, deliver_again: Callable[[], Awaitable[None]]) -> None:
        """Do what the runbook says of a restored store that came up stopped, and was looked at."""
        await self.resume("all:")
        await deliver_again()
        await self._command("settle_restore", {})

    async def answer_for_ever(self) -> None:
        """Look at what waits, and answer it, every second or so."""
        while True:
            with suppress(Exception):  # the store is away: look again
                for hold in await asyncio.to_thread(self._holds):
                    await self._answer(*hold)
            await asyncio.sleep(1.0)

    def _holds(self) -> list[tuple[str, str, str, int, str]]:
        store = self._open_store()
        try:
            rows = [
                row
                for row in store.runs.holds_page(after=0, limit=2000)
                if row.waits == "approval" and row.hold == "open"
            ]
            due = [row for row in rows if self._due(row)][:50]
            return [
                (row.id.removeprefix("act_"), row.effect or "", row.tool, row.decisions,
                 hold_item(store, row, 0)["shown_digest"])
                for row in due
            ]  # fmt: skip
        finally:
            store.close()

    def _due(self, row: Any) -> bool:
        """Say whether a person has looked at a hold for long enough, and could look."""
        since_s = self._seen.setdefault((row.id, row.effect or "", row.decisions), self._now())
        could = row.effect != "unknown" or not self._targets.cut
        return could and self._now() - since_s >= 0.5

    async def _answer(self, key: str, effect: str, tool: str, decisions: int, digest: str) -> None:
        """Approve; of an unknown outcome say that it happened, if the target has it."""
        happened = effect == "unknown" and key in self._targets.happened
        verb = "deny" if happened else "approve"
        # ("It happened" is said by a denial of doing it again.)
        order = Order("confirm" if happened else verb, self._now(), what=key)
        await self._give(verb, {"hold": f"hold_{key}", "digest": digest}, order)

    async def _give(self, verb: str, args: dict[str, Any], order: Order) -> bool:
        """Give an order; return whether nothing more is to come of it: recorded, or refused."""
        self.orders.append(order)
        answer = await self._command(verb, args)
        if answer is None:
            return True
        recorded = order.recorded = bool(answer.get("recorded", True))
        if not recorded:
            self.refusals[f"{verb}: it holds here, and is not recorded: {answer['why']}"] += 1
        if recorded or len(self._workers) == 1:  # else the others may not have heard of it
            order.told_s = self._now()
        return recorded

    async def _command(self, verb: str, args: dict[str, Any]) -> dict[str, Any] | None:
        """Give an order, again under its id until it is answered; None if it is refused."""
        command = f"jepsen-{next(self._ids)}"
        while True:
            worker = self._draw.choice(self._workers)
            try:
                return await asyncio.to_thread(
                    worker.client.send_command, verb, "a trial", args, command
                )
            except AlreadyDone:
                return {}
            except (Unavailable, Temporary, StoreBusy, StoreFailed) as error:
                self.refusals[f"{verb}: {error}"] += 1
                await asyncio.sleep(0.2)
            except VedetteError as error:
                self.refusals[f"{verb}: {error}"] += 1
                return None


def _scope(scope: str) -> dict[str, Any]:
    kind, _, name = scope.partition(":")
    return {"all": True} if kind == "all" else {kind: name}

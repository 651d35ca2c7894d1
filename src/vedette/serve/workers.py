"""The gateway's door for workers of other hosts, and the record of whoever was turned away."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import TYPE_CHECKING

from vedette.apart import Apart, issuer_of, tokens_of
from vedette.digest import canonical
from vedette.entry import Body, Draft
from vedette.errors import BadFleet, StoreFailed
from vedette.serve.endpoint import MAX_PATH_BYTES

if TYPE_CHECKING:
    from pathlib import Path

    from vedette.app import App

SOCKET = "workers.sock"
# One entry for an agent and a code within so long; how often it happened is in the next.
EVERY_US = 10_000_000
# Up to which change the ledger has what was changed among the identities.
CHANGES = "identity_changes"
_LOOK_S = 0.5


class Refusals:
    """Puts in the ledger who was turned away and why, and never a token.

    Anybody who reaches the door can cause a refusal, so what they cause is bounded: an entry for
    each agent and code in `EVERY_US`, which counts those since the one before it (`tries`).
    """

    def __init__(self, app: App) -> None:
        self._app = app
        self._since: dict[tuple[str, str], int] = {}
        self._at_us: dict[tuple[str, str], int] = {}
        self._writing: set[asyncio.Task[None]] = set()

    def take(self, agent: str, code: str, what: str) -> None:
        """Count a refusal, and record it unless one like it was recorded a moment ago."""
        self._app.metrics.count("identity_refusals", agent=agent, code=code)
        key = (agent, code)
        self._since[key] = self._since.get(key, 0) + 1
        now = self._app.line.clock.now_us()
        if key in self._at_us and now - self._at_us[key] < EVERY_US:
            return
        self._at_us[key], tries = now, self._since.pop(key)
        body = Body(canonical({"why": what}))
        fields = {"agent": agent, "what": code, "tries": tries}
        task = asyncio.create_task(self._note(Draft("identity.refused", fields, body=body)))
        self._writing.add(task)
        task.add_done_callback(self._writing.discard)

    async def _note(self, draft: Draft) -> None:
        with suppress(StoreFailed):  # counted all the same; there is no one to answer
            await self._app.store.note([draft])

    async def settle(self) -> None:
        """Return when what was taken is written."""
        await asyncio.gather(*self._writing, return_exceptions=True)


async def record_changes(app: App) -> None:
    """Put into the ledger what people change among the identities; goes on until cancelled.

    `vedette identity` works beside the gateway, and without one: what it did is found here.
    """
    issuer = issuer_of(app.settings, app.line.clock.now_us)
    while True:
        with suppress(StoreFailed):  # found again when the store is back
            done = int(app.store.meta(CHANGES) or 0)
            changes = issuer.changes(done) if app.store.leads else []
            for change in changes:
                fields = {name: change[name] for name in ("what", "agent", "key", "actor")}
                body = Body(canonical({"reason": change["reason"]}))
                await app.store.note([Draft("identity.changed", fields, body=body)])
                await app.store.remember(CHANGES, str(change["n"]))
        await asyncio.sleep(_LOOK_S)


@asynccontextmanager
async def serve_workers(app: App) -> AsyncIterator[str | None]:
    """Let workers in for as long as the context lasts; yields the HTTP address, None without one.

    Does nothing unless the app is a gateway's. Raises BadFleet if the port is taken.
    """
    judges = app.line.reasoners.get("judge")
    if not isinstance(judges, Apart):
        yield None
        return
    from vedette.adapters.worker_pool.door import Door

    refusals, pool, metrics = Refusals(app), judges.pool, app.metrics
    path = socket_path(app.settings.state)
    plan = app.settings.edges.gateway
    if path is None and plan.listen is None:
        mend = "give [gateway] listen, or use a shorter state path"
        raise BadFleet(
            "the path is too long for a socket", where=str(app.settings.state), mend=mend
        )
    pool.told = lambda agent, kind, why: metrics.count("worker_deaths", agent=agent, kind=kind)
    pool.refused = refusals.take
    pool.there = lambda agent, number: metrics.gauge("workers_connected", number, agent=agent)
    pool.listen_to()
    door = Door(
        tokens=tokens_of(app.settings, app.line.clock.now_us),
        releases={name: app.line.fleet.agents[name].release for name in judges.far},
        say=pool.say,
        now_us=app.line.clock.now_us,
        listen=plan.listen,
        path=path,
    )
    door.open()
    pool.opened(door)
    recording = asyncio.create_task(record_changes(app), name="identity changes")
    try:
        yield door.address
    finally:
        recording.cancel()
        await asyncio.gather(recording, return_exceptions=True)
        await asyncio.to_thread(door.close)
        await refusals.settle()
        if path is not None:
            path.unlink(missing_ok=True)


def socket_path(state: Path) -> Path | None:
    """Return where a gateway of this state folder takes workers; None if the path is too long."""
    path = state.absolute() / SOCKET
    return path if len(os.fsencode(path)) <= MAX_PATH_BYTES else None

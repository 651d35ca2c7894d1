"""The gateway's endpoint for workers of other hosts, and the record of whoever was refused."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from typing import TYPE_CHECKING

from vedette.app.remote_workers import RoutingReasoner, build_issuer, build_tokens
from vedette.domain.base.canonical import canonical_json
from vedette.domain.base.errors import AlreadyDone, BadFleet, StoreFailed
from vedette.domain.entry import Body, Draft
from vedette.interfaces.http.unix_socket import MAX_PATH_BYTES

if TYPE_CHECKING:
    from pathlib import Path

    from vedette.adapters.identity.spiffe import Issuer
    from vedette.app.composition_root import App

SOCKET = "workers.sock"
# One entry for an agent and a code within so long; how often it happened is in the next.
RECORD_INTERVAL_US = 10_000_000
# Up to which change of a book of identities (by its id) the ledger has what was changed.
CHANGES_KEY = "identity_changes:"
_POLL_S = 0.5


class RefusalLog:
    """Puts in the ledger which worker the gateway's endpoint refused and why, and never a token.

    Anybody who reaches the endpoint can cause a refusal, so what they cause is bounded: an entry
    for each agent and code in `RECORD_INTERVAL_US`, which counts those since the one before it
    (`tries`).
    """

    def __init__(self, app: App) -> None:
        self._app = app
        self._pending_tries: dict[tuple[str, str], int] = {}
        self._last_entry_us: dict[tuple[str, str], int] = {}
        self._writes: set[asyncio.Task[None]] = set()

    def record(self, agent: str, code: str, what: str) -> None:
        """Count a refusal, and record it unless one like it was recorded a moment ago."""
        self._app.metrics.count("identity_refusals", agent=agent, code=code)
        key = (agent, code)
        self._pending_tries[key] = self._pending_tries.get(key, 0) + 1
        now = self._app.services.clock.now_us()
        if key in self._last_entry_us and now - self._last_entry_us[key] < RECORD_INTERVAL_US:
            return
        self._last_entry_us[key], tries = now, self._pending_tries.pop(key)
        body = Body(canonical_json({"why": what}))
        fields = {"agent": agent, "what": code, "tries": tries}
        task = asyncio.create_task(self._write_entry(Draft("identity.refused", fields, body=body)))
        self._writes.add(task)
        task.add_done_callback(self._writes.discard)

    async def _write_entry(self, draft: Draft) -> None:
        with suppress(StoreFailed):  # counted all the same; there is no one to answer
            await self._app.store.commands.append_entries([draft])

    async def drain(self) -> None:
        """Return when what was taken is written."""
        await asyncio.gather(*self._writes, return_exceptions=True)


async def record_changes(app: App, report_trouble: Callable[[str], None]) -> None:
    """Put into the gateway's ledger what people change among identities; goes on until cancelled.

    `vedette identity` works beside the gateway, and without one: what it did is found here.
    """
    issuer = build_issuer(app.settings, app.services.clock.now_us)
    reported = ""
    while True:
        trouble = ""
        try:
            await _record_new_changes(app, issuer)
        except StoreFailed:
            trouble = reported  # found again when the store is back, which others speak of
        except Exception as error:
            # A book can be mended: what is in it by then is recorded by then.
            trouble = f"changes of identities are not recorded: {type(error).__name__}: {error}"
        if trouble and trouble != reported:
            report_trouble(trouble)
        reported = trouble
        await asyncio.sleep(_POLL_S)


async def _record_new_changes(app: App, issuer: Issuer) -> None:
    """Record what the book has since it was looked at last, each change once.

    The store may outlive the book (a new host's state folder, one that was restored) and be shared
    by several gateways with a book each: so a change goes by its book, number and instant, and one
    that is recorded already is refused as done, also after a crash before it was marked so.
    """
    book, changes = issuer.changes()
    done = app.store.meta(CHANGES_KEY + book)
    marks = [f"{change['n']}:{change['at']}" for change in changes]
    for n in range(marks.index(done) + 1 if done in marks else 0, len(marks)):
        change = changes[n]
        fields = {name: change[name] for name in ("what", "agent", "key", "actor")}
        body = Body(canonical_json({"reason": change["reason"]}))
        draft = Draft("identity.changed", fields, body=body)
        with suppress(AlreadyDone):
            await app.store.commands.append_entries([draft], command=f"identity:{book}:{marks[n]}")
        await app.store.commands.set_meta(CHANGES_KEY + book, marks[n])


@asynccontextmanager
async def serve_workers(
    app: App, report_trouble: Callable[[str], None] = lambda message: None
) -> AsyncIterator[str | None]:
    """Serve workers of other hosts while the context lasts; yields the HTTP address, None if none.

    Does nothing unless the app is a gateway's. `report_trouble` is told what a person should see.
    Raises BadFleet if it cannot listen: the port is taken, or so.
    """
    judges = app.services.reasoners.get("judge")
    if not isinstance(judges, RoutingReasoner):
        yield None
        return
    from vedette.adapters.reasoners.workers.websocket_server import WorkerServer

    refusals, pool, metrics = RefusalLog(app), judges.pool, app.metrics
    path = socket_path(app.settings.state)
    plan = app.settings.deployment.gateway
    if path is None and plan.listen is None:
        mend = "give [gateway] listen, or use a shorter state path"
        raise BadFleet(
            "the path is too long for a socket", where=str(app.settings.state), mend=mend
        )
    pool.on_worker_lost = lambda agent, kind, why: metrics.count(
        "worker_deaths", agent=agent, kind=kind
    )
    pool.on_refusal = refusals.record
    pool.on_worker_count = lambda agent, number: metrics.gauge(
        "workers_connected", number, agent=agent
    )
    pool.attach_loop()
    server = WorkerServer(
        tokens=build_tokens(app.settings, app.services.clock.now_us),
        releases=judges.releases,
        notify=pool.notify,
        now_us=app.services.clock.now_us,
        listen=plan.listen,
        path=path,
        connections=app.connections,
    )
    server.open()
    pool.attach_server(server)
    recording = asyncio.create_task(record_changes(app, report_trouble), name="identity changes")
    try:
        yield server.address
    finally:
        recording.cancel()
        await asyncio.gather(recording, return_exceptions=True)
        await asyncio.to_thread(server.close)
        await refusals.drain()
        if path is not None:
            path.unlink(missing_ok=True)


def socket_path(state: Path) -> Path | None:
    """Return the socket where a gateway of this state folder takes workers; None if too long."""
    path = state.absolute() / SOCKET
    return path if len(os.fsencode(path)) <= MAX_PATH_BYTES else None

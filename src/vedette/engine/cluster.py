"""The cluster: how a worker takes up what another worker published or stopped.

From the moment the store has seen it, no call starts here under anything older (`is_lease_valid`),
and no step of an older revision commits. Here the new revision and the stops become live, and
the store is told, so that calls may start again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from vedette.domain.base.clock import aligned_delay_s, wait_for_event
from vedette.domain.base.disk_errors import convert_disk_errors
from vedette.domain.base.errors import VedetteError
from vedette.domain.budget import MINUTE_US
from vedette.engine.kill_switch import reload_stops
from vedette.engine.services import Services
from vedette.policy.rollout import Rollout

# How often it is looked without anything having been committed: a call may have kept us.
_EVERY_S = 1.0
_GATHER_S = 0.01
_RETRY_S = 0.5
_COUNT_US = 1_000_000


async def follow_cluster(
    services: Services,
    rollout: Rollout,
    feed: Callable[[], None],
    trouble: Callable[[str], None],
    releases: Callable[[Callable[[str], None]], Awaitable[None]] | None = None,
) -> None:
    """Take up in this worker's engine what other workers publish, for as long as the run lasts.

    `releases` takes up agents' releases that others made, and tells `trouble` of what it cannot.
    `feed` brings what others ordered about memories, or erased, into this worker's banks. It is
    asked once at the beginning, for what came while this worker started, and then at any news: a
    worker that is idle, or alone but for somebody's command, hears of it too.
    """
    counted_us, fed = 0, -1
    committed = asyncio.Event()
    services.store.subscribe(committed.set)
    while True:
        try:
            with convert_disk_errors(
                "the state folder"
            ):  # a bank's file, an agent's: tried again, too
                await catch_up_with_cluster(services, rollout)
                now, news = services.clock.monotonic_us(), services.store.cluster.change_counter
                if (
                    services.store.cluster.is_shared or news != fed
                ) and now - counted_us >= _COUNT_US:
                    counted_us = now
                    sync_rate_counts(services)
                    services.loss_window = services.store.ledger.loss_window()
                    if releases is not None:
                        await releases(trouble)
                    if news != fed:
                        feed()
                        fed = news  # only now: what could not be read is tried again
            if await wait_for_event(committed, aligned_delay_s(_EVERY_S)):
                await asyncio.sleep(_GATHER_S)
            committed.clear()
        except VedetteError as error:
            # Nothing starts here until it succeeds; the other workers go on.
            trouble(f"cannot take up what another worker published: {error}")
            await asyncio.sleep(_RETRY_S)


async def catch_up_with_cluster(services: Services, rollout: Rollout) -> None:
    """Make live here the cluster's policy and stops. Raises BadPolicy, StoreFailed, Unavailable."""
    store = services.store
    if store.cluster.is_current:
        return
    policy_rev, stop_epoch = store.cluster.policy_rev, store.cluster.stop_epoch
    if stop_epoch > services.stops.epoch:
        reload_stops(services)
    if policy_rev > services.gateway.policy_rev:
        await rollout.catch_up()
    store.cluster.adopt(services.gateway.policy_rev, services.stops.epoch)


def sync_rate_counts(services: Services) -> None:
    """Bring the counts that rate limits see up to what all workers of the cluster have spent.

    They lag by a second at most; budgets are compared in the store and never lag.
    """
    counts, now = services.gateway.counts, services.clock.now_us()
    counts.raise_to_totals(services.store.spend.totals(), now)
    for agent, unit, minute, amount in services.store.spend.by_minute(now // MINUTE_US):
        if minute == now // MINUTE_US:
            counts.raise_to(agent, unit, now, MINUTE_US, amount)

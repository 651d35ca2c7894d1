"""The kill switch: stops, set and lifted by people and by the engine itself.

An agent over a rate limit is parked, which is a stop like any other, and a stop with an end is
lifted when that has come.

A stop holds from the moment it was ordered, whether or not the store can commit it: what could not
be recorded is kept in this process and written as soon as the store takes writes again.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress

from orjson import loads

from vedette.domain.base.canonical import canonical_json
from vedette.domain.base.clock import MICROS
from vedette.domain.base.errors import BadCommand, StoreFailed
from vedette.domain.base.fleet_clock import JUMP_US
from vedette.domain.effect import PERMIT_LIFE_US
from vedette.domain.entry import Body, Draft
from vedette.domain.identity import ENGINE
from vedette.domain.run import Run
from vedette.domain.stop import StopScope, UnrecordedStop
from vedette.engine.services import Services

# How many of the newest lifts are read at once.
_LIFTS = 100


async def set_stop(
    services: Services, draft: Draft, scope: StopScope, on: bool, *, command: str | None = None
) -> str | None:
    """Set or lift a stop by the kill switch, in force on return. Raises BadCommand if it is so.

    A stop that lasts longer takes the place of one that has an end. Returns None once the stop is
    durable; else why it is not: then it holds in this process, and `record_stops` records it.
    A stop that cannot be recorded is never lifted before it is. Raises StoreFailed for a lift.

    No call is permitted from the moment on which a stop is announced, before it is durable. What
    was permitted just before starts within `PERMIT_LIFE_US` or not at all, and that is waited for:
    whoever is told that a stop stands will see no call start.
    """
    ordered_us, failure = services.clock.now_us(), None
    if on:
        services.stops.announce(scope)
    else:
        await record_stops(services)
    try:
        await services.store.commands.stop(draft, *scope, on, command=command)
        reload_stops(services)
        if on:
            services.stops.unrecorded.pop(scope, None)
            await services.store.cluster.wait_for_barrier()
    except StoreFailed as error:
        if not on:
            raise
        failure = str(error)
        services.stops.unrecorded[scope] = UnrecordedStop(draft, command, failure, ordered_us)
    except BadCommand:
        if on:  # it stands already, perhaps for no longer than another order takes
            await asyncio.sleep(PERMIT_LIFE_US / MICROS)
        raise
    finally:
        if on:
            services.stops.withdraw(scope)
            services.metrics.gauge("stops_unrecorded", len(services.stops.unrecorded))
    if on:
        await asyncio.sleep(PERMIT_LIFE_US / MICROS)
    return failure if scope in services.stops.unrecorded else None


async def record_stops(services: Services) -> None:
    """Make durable the stops that hold in this process alone. Raises StoreFailed.

    One that a person lifted through another worker after it was ordered here is recorded and lifted
    in one commit. That worker's clock is taken for right if it is no further off than a jump.
    """
    for scope, stop in list(services.stops.unrecorded.items()):
        # Its commit may have stood though nobody was told, or another's stop may last as long.
        with suppress(BadCommand):
            await services.store.commands.stop(
                stop.draft, *scope, True, command=stop.command,
                lifted_after_us=stop.at_us + JUMP_US,
            )  # fmt: skip
        reload_stops(services)
        if services.stops.unrecorded.get(scope) is stop:
            del services.stops.unrecorded[scope]
        services.metrics.gauge("stops_unrecorded", len(services.stops.unrecorded))


def reload_stops(services: Services) -> None:
    """Take over the stops that are durable, and the loss window that one of them may be for.

    An agent that a person let go on, here or through another worker, starts with a clean sheet.
    Raises StoreFailed: then nothing was taken over.
    """
    store = services.store
    # Never ahead of the stops that are read: the cluster's counts one that is being committed too,
    # and what is decided without it must not pass for what was decided with it.
    epoch = max(int(store.meta("stop_epoch") or 0), services.stops.epoch)
    loss_window, scopes, stops = (
        store.ledger.loss_window(),
        store.policy.stop_scopes(),
        store.policy.active_stops(),
    )
    lifts = store.ledger.latest_entries(("stop.lifted",), services.stops.last_lift_seq, _LIFTS)
    services.loss_window = loss_window
    services.stops.restore(epoch, scopes)
    services.stops.timed_stops = [stop for stop in stops if stop.until_us]
    for seq, raw in lifts:
        services.stops.last_lift_seq, lift = seq, loads(raw)
        scope, _, name = lift["what"].partition(":")
        if scope == "agent" and lift.get("actor") != str(ENGINE):
            services.rate_counters.reset(name)
    store.cluster.adopt(0, epoch)


async def park_agent(services: Services, agent: str, why: str) -> None:
    """Stop an agent that is over a rate limit, until a person resumes it. Its events are kept.

    One that is stopped for some time only is parked too: it would go on by itself.
    """
    ends = {(stop.scope, stop.name) for stop in services.stops.timed_stops}
    lasting = set(services.stops.list_scopes()) - ends
    if lasting & {("all", ""), ("agent", agent)}:
        return
    reason = f"parked by the engine: {why}, which is its ceiling"
    draft = Draft(
        "stop.set",
        {"what": f"agent:{agent}", "actor": str(ENGINE)},
        body=Body(canonical_json({"reason": reason})),
    )
    try:
        await set_stop(services, draft, ("agent", agent), True)
    except BadCommand:
        return  # somebody else was quicker
    services.metrics.count("parked", agent=agent)


async def lift_expired_stops(services: Services, now_us: int) -> None:
    """Lift the stops whose end has come, by the instant that expiries are compared with."""
    for stop in [stop for stop in services.stops.timed_stops if stop.until_us <= now_us]:
        draft = Draft(
            "stop.lifted",
            {"what": f"{stop.scope}:{stop.name}", "actor": str(ENGINE)},
            cause=stop.seq,
            body=Body(canonical_json({"reason": "its time was over"})),
        )
        try:
            await set_stop(services, draft, (stop.scope, stop.name), False)
        except BadCommand:
            reload_stops(services)  # a person lifted it in the same moment


async def count_error(services: Services, run: Run) -> None:
    """Count an error of a run's agent; park it if that was one too many.

    Those of a release that runs apart are counted apart: they end a canary, and have the tasks of a
    former release move; the release that the fleet runs is as well as it was.
    """
    agent, canary = run.agent, services.fleet.canaries.get(run.agent)
    known = services.fleet.agents.get(agent)
    if known is None:
        return
    now_us = services.clock.now_us()
    code = None
    if canary is not None and canary.has_run(run.key, run.position):
        code = services.canary_code[agent]
    elif services.former_code:
        # Where tasks run on former releases alone.
        from vedette.ledger.history.tasks import find_task_release

        code = services.former_code.get((agent, find_task_release(services.store, run)))
    if code is not None:
        over = code.rate_counters.count_error(agent, known.rate_limits, now_us)
        code.ceiling = code.ceiling or over
        return
    over = services.rate_counters.count_error(agent, known.rate_limits, now_us)
    if over is not None:
        await park_agent(services, agent, over)

"""Standing: whatever keeps the fleet on its feet when one of its agents or targets does not.

Stops are set and lifted here, by people and by the engine itself: an agent over a ceiling is
parked, which is a stop like any other, and a stop with an end is lifted when that has come.

A stop holds from the moment it was ordered, whether or not the store can commit it: what could not
be recorded is kept in this process and written as soon as the store takes writes again.
"""

from __future__ import annotations

from contextlib import suppress

from orjson import loads

from vedette.domain.base.canonical import canonical
from vedette.domain.base.errors import BadCommand, StoreFailed
from vedette.domain.base.fleet_clock import JUMP_US, Jump, told_jump
from vedette.domain.entry import Body, Draft
from vedette.domain.identity import ENGINE
from vedette.domain.stop import Scope, Unrecorded
from vedette.engine.services import Line

# After how long a store that cannot commit is tried again, first and at most.
_PROBE_US, _LAST_PROBE_US = 250_000, 4_000_000
# How many of the newest lifts are heard of at once.
_LIFTS = 100


async def set_stop(
    line: Line, draft: Draft, scope: Scope, on: bool, *, command: str | None = None
) -> str | None:
    """Set or lift a stop; in force when this returns. Raises BadCommand if it is so already.

    A stop that lasts longer takes the place of one that has an end. Returns None once the stop is
    durable; else why it is not: then it holds in this process, and `record_stops` records it.
    A stop that cannot be recorded is never lifted before it is. Raises StoreFailed for a lift.

    No call starts from the moment on which a stop is announced, before it is durable: whoever is
    told that it stands will see none start that had its leave a moment earlier.
    """
    ordered_us = line.clock.now_us()
    if on:
        line.stops.announce(scope)
    else:
        await record_stops(line)
    try:
        await line.store.stop(draft, *scope, on, command=command)
        take_over(line)
        if on:
            line.stops.unrecorded.pop(scope, None)
            await line.store.everywhere()
    except StoreFailed as error:
        if not on:
            raise
        line.stops.unrecorded[scope] = Unrecorded(draft, command, str(error), ordered_us)
        return str(error)
    finally:
        if on:
            line.stops.settle(scope)
            line.metrics.gauge("stops_unrecorded", len(line.stops.unrecorded))
    return None


async def record_stops(line: Line) -> None:
    """Make durable the stops that hold in this process alone. Raises StoreFailed.

    One that a person lifted through another worker after it was ordered here is recorded and lifted
    in one commit. That worker's clock is taken for right if it is no further off than a jump.
    """
    for scope, kept in list(line.stops.unrecorded.items()):
        # Its commit may have stood though nobody was told, or another's stop may last as long.
        with suppress(BadCommand):
            await line.store.stop(
                kept.draft, *scope, True, command=kept.command,
                lifted_after_us=kept.at_us + JUMP_US,
            )  # fmt: skip
        take_over(line)
        if line.stops.unrecorded.get(scope) is kept:
            del line.stops.unrecorded[scope]
        line.metrics.gauge("stops_unrecorded", len(line.stops.unrecorded))


class StoreWatch:
    """Tries a store that cannot commit until it can, then records what could not be before.

    Likewise with banks that are behind.
    """

    def __init__(self, line: Line) -> None:
        self._line = line
        self._next_us = self._wait_us = 0

    async def look(self) -> None:
        """Try again if it is time. Raises StoreFailed."""
        line = self._line
        live = line.store.policy_rev
        if line.store.ready and live > line.gateway.policy_rev and line.catch_up is not None:
            await line.catch_up()  # first: banks may be behind for long
        if line.store.ready and not line.stops.unrecorded and not line.recall.behind:
            self._wait_us = 0
            if line.store.stop_epoch > line.stops.epoch:
                take_over(line)  # one stands that could not be read back, or another worker's
            return
        now = line.clock.monotonic_us()
        if now < self._next_us and self._wait_us:
            return
        self._wait_us = min(2 * self._wait_us or _PROBE_US, _LAST_PROBE_US)
        self._next_us = now + self._wait_us
        # The stops first: nothing else may go on before them.
        await record_stops(line)
        if not line.store.ready:
            await line.store.probe()
        if line.recall.behind:
            line.recall.catch_up()


def take_over(line: Line) -> None:
    """Take over the stops that are durable, and the doubt that one of them may be for.

    An agent that a person let go on, here or through another worker, starts with a clean sheet.
    Raises StoreFailed: then nothing was taken over.
    """
    store = line.store
    # Never ahead of the stops that are read: `store.stop_epoch` counts one that is being committed,
    # and what is decided without it must not pass for what was decided with it.
    epoch = max(int(store.meta("stop_epoch") or 0), line.stops.epoch)
    doubt, stops, told = store.doubt(), store.stops(), store.stops_set()
    lifts = store.latest(("stop.lifted",), line.stops.heard, _LIFTS)
    line.doubt = doubt
    line.stops.restore(epoch, stops)
    line.stops.ends = [stop for stop in told if stop.until_us]
    for seq, raw in lifts:
        line.stops.heard, lift = seq, loads(raw)
        scope, _, name = lift["what"].partition(":")
        if scope == "agent" and lift.get("actor") != str(ENGINE):
            line.tallies.forgive(name)
    store.adopt(0, epoch)


async def park_agent(line: Line, agent: str, why: str) -> None:
    """Stop an agent that is over a ceiling, until a person resumes it. Its events are kept.

    One that is stopped for some time only is parked too: it would go on by itself.
    """
    ends = {(stop.scope, stop.name) for stop in line.stops.ends}
    lasting = set(line.stops.listed()) - ends
    if lasting & {("all", ""), ("agent", agent)}:
        return
    reason = f"parked by the engine: {why}, which is its ceiling"
    draft = Draft(
        "stop.set",
        {"what": f"agent:{agent}", "actor": str(ENGINE)},
        body=Body(canonical({"reason": reason})),
    )
    try:
        await set_stop(line, draft, ("agent", agent), True)
    except BadCommand:
        return  # somebody else was quicker
    line.metrics.count("parked", agent=agent)


async def lift_ended(line: Line, now_us: int) -> None:
    """Lift the stops whose end has come, by the instant that expiries are compared with."""
    for stop in [stop for stop in line.stops.ends if stop.until_us <= now_us]:
        draft = Draft(
            "stop.lifted",
            {"what": f"{stop.scope}:{stop.name}", "actor": str(ENGINE)},
            cause=stop.seq,
            body=Body(canonical({"reason": "its time was over"})),
        )
        try:
            await set_stop(line, draft, (stop.scope, stop.name), False)
        except BadCommand:
            take_over(line)  # a person lifted it in the same moment


async def tell_jump(line: Line, jump: Jump) -> None:
    """Record that the wall clock jumped. Raises StoreFailed; then it is not told yet."""
    await line.store.note([jump_entry(jump)])
    line.metrics.count("clock_jumps")


def jump_entry(jump: Jump) -> Draft:
    """Return the entry of a jump of the wall clock."""
    what = f"{jump.by_us // 1_000_000:+d}" if jump.by_us else "away"
    return Draft("clock.jumped", {"what": what}, body=Body(canonical({"why": told_jump(jump)})))


async def erred(line: Line, agent: str) -> None:
    """Count an error of an agent; park it if that was one too many."""
    known = line.fleet.agents.get(agent)
    if known is not None:
        over = line.tallies.error(agent, known.ceilings, line.clock.now_us())
        if over is not None:
            await park_agent(line, agent, over)


async def may_call(line: Line, agent: str) -> bool:
    """Count a call that is about to start; park the agent instead if it is one too many."""
    ceilings = line.agent(agent).ceilings
    over = line.tallies.effect(agent, ceilings, line.clock.now_us())
    if over is not None:
        await park_agent(line, agent, over)
    return over is None

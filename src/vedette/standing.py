"""Standing: whatever keeps the fleet on its feet when one of its agents or targets does not.

Stops are set and lifted here, by people and by the engine itself: an agent over a ceiling is
parked, which is a stop like any other, and a stop with an end is lifted when that has come.
"""

from __future__ import annotations

from vedette.digest import canonical
from vedette.entry import Body, Draft
from vedette.errors import BadCommand
from vedette.identity import ENGINE
from vedette.line import Line
from vedette.stop import Scope


async def set_stop(
    line: Line, draft: Draft, scope: Scope, on: bool, *, command: str | None = None
) -> None:
    """Set or lift a stop; in force when this returns. Raises BadCommand if it is so already.

    A stop that lasts longer takes the place of one that has an end.

    No call starts from the moment on which a stop is announced, before it is durable: whoever is
    told that it stands will see none start that had its leave a moment earlier.
    """
    if on:
        line.stops.announce(scope)
    try:
        epoch = await line.store.stop(draft, *scope, on, command=command)
        take_over(line, epoch)
        if on:
            await line.store.everywhere()
    finally:
        if on:
            line.stops.settle(scope)


def take_over(line: Line, epoch: int | None = None) -> None:
    """Take over the stops that the store knows, and the doubt that one of them may be for."""
    store = line.store
    line.doubt = store.doubt()
    known = line.stops.epoch if epoch is None else max(epoch, line.stops.epoch)
    line.stops.restore(known, store.stops())
    store.adopt(0, known)
    line.stops.ends = [stop for stop in store.stops_set() if stop.until_us]


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
    """Lift the stops whose end has come."""
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

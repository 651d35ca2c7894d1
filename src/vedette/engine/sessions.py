"""Sessions: the events of one business key that one run takes in, while it is open.

The value that agent.yaml names (`session: /event/data/thread`) is the run's key, so the key's order
is the session's. The event's own run closes at once and says which run it joined; that one gets an
entry of it in the same commit, and is made due: its next turn is told of it.
"""

from __future__ import annotations

from vedette.domain.effect import RowWrite
from vedette.domain.entry import Draft
from vedette.domain.run import RunWake
from vedette.domain.session import SESSIONS, session_row_key
from vedette.domain.task_words import CANCELLED, JOINED
from vedette.engine.run_context import RunContext
from vedette.engine.services import Services


async def join_session(services: Services, context: RunContext) -> bool:
    """Let the session's open run take in a run's event, before its first turn; say whether it did.

    Raises Superseded if that run has ended meanwhile, or its task was cancelled: then this one
    begins the next.
    """
    run = context.run
    if context.agent.session_of(context.event) is None:
        return False
    row = services.store.runs.row(SESSIONS, session_row_key(run.agent, run.key)) or {}
    first = services.store.runs.run(str(row.get("run")))
    if first is None or first.state in ("done", "dead") or first.position >= run.position:
        return False
    if services.store.ledger.run_entries(first.id, (CANCELLED,)):
        return False
    wake = RunWake(first.id, Draft(JOINED, {"turn": first.turn}, run.position))
    closed = context.entry("run.closed", settled=0, what="joined", joined=first.id)
    now = services.clock.now_us()
    step = context.build_step([closed], [], now, state="done", wake_us=0, waits=None, wakes=(wake,))
    await context.commit(step)
    return True


def begin_session(context: RunContext) -> tuple[RowWrite, ...]:
    """Return the row with which a run's first turn begins a session; none if it is of none."""
    run = context.run
    if run.turn or context.agent.session_of(context.event) is None:
        return ()
    return (RowWrite(SESSIONS, session_row_key(run.agent, run.key), {"run": run.id}),)

"""`undo`: a person has what an effect did taken back, by the inverse that its tool declares.

The command does nothing itself: it accepts an event (see `vedette.domain.compensation`), which
wakes the agent of the effect, and from there on the inverse is an action like any other: decided
under the policy of that moment, held where policy holds it, performed once, in the ledger.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from vedette.domain.base.errors import AlreadyDone, BadCommand, BadEvent, NotFound
from vedette.domain.compensation import erased_error, undo_event, undo_run_id
from vedette.domain.event import Event, subject_of
from vedette.domain.ports.run_store import AcceptResult, Arrival
from vedette.domain.row_proof import find_outcome_fault
from vedette.domain.run import ActionRow, Run
from vedette.domain.tool import Tool
from vedette.engine.services import Services
from vedette.ledger.history.compensations import find_undo_attempts
from vedette.operations.approvals import authorize
from vedette.operations.commands import Commands, Order
from vedette.operations.corrections import EventAcceptor

VERBS: Mapping[str, Mapping[str, type]] = {"undo": {"effect": str}}
NEEDED = {"undo": "effect"}

_MEND = "`vedette explain` tells what became of it"


async def dispatch(
    commands: Commands, verb: str, order: Order, args: Mapping[str, Any]
) -> dict[str, Any]:
    """Carry out one order to undo an effect. Raises BadCommand."""
    return await undo(commands, order, args["effect"])


async def undo(commands: Commands, order: Order, effect: str) -> dict[str, Any]:
    """Accept, as ordered, the event that takes an effect back; once, however often it is asked for.

    `effect` is the id of an effect or of its action. Raises NotFound for one that is not known,
    BadCommand for what was not done, cannot be taken back, or was taken back already, and
    AlreadyDone for an order that was carried out before, whatever came of it.
    """
    services = commands.services
    authorize(order, "undo")
    store = services.store
    if order.command_id is not None and store.is_command_done(order.command_id):
        # Before anything is looked at: what this order began may have come to nothing since.
        raise AlreadyDone(f"command {order.command_id} was carried out before")
    row = _find_done(services, effect)
    run_and_event = _run_and_event(services, row)
    tools = _find_tools(services, row, run_and_event[0])
    _refuse_edited(services, row)
    earlier, id = find_undo_attempts(services.store.runs, services.fleet.name, row)
    if earlier and earlier[-1].state != "void":
        raise BadCommand(*_refusal(row, earlier[-1].state, earlier[-1].run.id))
    event = undo_event(
        services.fleet.name,
        row,
        run_and_event,
        tools,
        who=str(order.principal),
        reason=order.reason,
        id=id,
        now_us=services.clock.now_us(),
    )
    run = undo_run_id(services.fleet.name, row.agent, id)

    async def commit(arrival: Arrival) -> AcceptResult:
        return await store.commands.accept_undo(row.id, arrival, command=order.command_id)

    intake: Any = commands.intake
    acceptor: EventAcceptor = intake
    try:
        receipt = await acceptor.accept_with(event, subject_of(event), commit)
    except BadEvent as error:
        raise BadCommand(f"the undo was not accepted: {error}") from error
    except AlreadyDone as error:
        if order.command_id is not None and store.is_command_done(order.command_id):
            raise
        # Somebody asked for it at the same moment, and was faster.
        raise BadCommand(*_refusal(row, "waiting", run)) from error
    return {
        "effect": "eff_" + row.id.removeprefix("act_"),
        "agent": row.agent,
        "tool": row.tool,
        "inverse": tools[1].name,
        "args": event.data["args"],
        "event": receipt.event,
        "run": run,
    }


def _refusal(row: ActionRow, state: str, run: str) -> tuple[str]:
    effect = "eff_" + row.id.removeprefix("act_")
    reasons = {
        "undone": f"{effect} was undone already, by {run}",
        "waiting": f"{effect} is being undone already, by {run}; `vedette explain {run}` tells",
        "dead": f"the undo of {effect} is a dead letter: `vedette dead {run} --redrive`",
        "unknown": f"nobody knows whether {effect} was undone, by {run}; look at its target",
    }
    return (reasons[state],)


def _find_done(services: Services, effect: str) -> ActionRow:
    """Return the action whose effect is done. Raises NotFound, BadCommand."""
    name = effect.removeprefix("eff_").removeprefix("act_").removeprefix("hold_")
    row = services.store.runs.action(f"act_{name}")
    if row is None:
        raise NotFound(f"there is no effect {effect!r}", mend="see `vedette explain RUN`")
    if row.effect == "done":
        return row
    if row.effect == "unknown":
        what = f"nobody knows whether {effect} happened, so it cannot be taken back"
        raise BadCommand(what, mend="find out at its target first")
    if row.effect is not None:
        raise BadCommand(f"{effect} is {row.effect}, not done: nothing to undo", mend=_MEND)
    state = {"hold": "held", "deny": "denied"}.get(row.decided or "", "not decided")
    mend = "`vedette deny` it instead" if row.decided == "hold" else _MEND
    raise BadCommand(f"the action of {effect} is {state}: nothing to undo", mend=mend)


def _refuse_edited(services: Services, row: ActionRow) -> None:
    """Raise BadCommand for a row that says of its effect what its entries do not.

    The inverse is made of it: its values, and which of them are trusted.
    """
    fault = find_outcome_fault(row, services.store.ledger.proof_entries([row.id])[row.id])
    if fault is not None:
        services.metrics.count("rows_refused", agent=row.agent, what="row")
        raise BadCommand(
            f"the row of {row.id} is not what the ledger says: {fault}",
            mend="`vedette verify` tells what was edited; take it back by hand",
        )


def _find_tools(services: Services, row: ActionRow, run: Run) -> tuple[Tool, Tool]:
    """Return the tool of an effect and its inverse, as declared now. Raises BadCommand.

    By the release that the undo's own run will belong to: it is a new event of the effect's key.
    """
    if row.agent not in services.fleet.agents:
        raise BadCommand(f"the fleet has no agent {row.agent!r} any more", mend="bring it back")
    next_position = services.store.ledger.last_seq() + 1
    agent = services.fleet.release_of(row.agent, run.key, next_position)
    tool = agent.tools.get(row.tool)
    if tool is None:
        raise BadCommand(f"{row.agent} declares no tool {row.tool} any more", mend="bring it back")
    inverse = agent.tools.get(tool.inverse or "")
    if inverse is None:
        raise BadCommand(
            f"{row.tool} declares no inverse: what it did cannot be taken back by the fleet",
            where=f"{row.agent}/agent.yaml",
            mend="take it back by hand, or declare `inverse:` for the next time",
        )
    return tool, inverse


def _run_and_event(services: Services, row: ActionRow) -> tuple[Run, Event]:
    """Return the run of an effect and its event. Raises BadCommand if its content was erased."""
    run = services.store.runs.run(row.run)
    event = None if run is None else services.store.runs.event(run.event)
    if run is None or event is None or not row.record:
        raise erased_error(row.id)
    return run, event

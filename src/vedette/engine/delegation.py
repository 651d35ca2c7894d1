"""`agent.ask`: a task gives another agent a task, and waits for what comes of it.

The child's run begins with an event whose id is made of the ask's key, so a repeat finds the same
child. It is over for the ask when it has ended, or at the ask's deadline; what is told of it then
follows from what is durable of it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Any

import orjson
from msgspec import Struct

from vedette.domain.action import Action
from vedette.domain.agent import task_source
from vedette.domain.artefact import ARTEFACT_ID, READERS
from vedette.domain.base.canonical import canonical_json, canonicalize_normalized
from vedette.domain.base.clock import iso
from vedette.domain.base.errors import (
    AlreadyDone,
    BadCommand,
    BadEvent,
    BadProposal,
    NotFound,
    Permanent,
)
from vedette.domain.delegation import Delegation, add_spend, read_budget, trusted_places
from vedette.domain.effect import Outcome
from vedette.domain.entry import Body, Draft
from vedette.domain.escrow import held_escrow, spend_of
from vedette.domain.event import ENVELOPE, PARENT, TASK_TYPE, Event
from vedette.domain.identity import ENGINE
from vedette.domain.readers import Readers, argument_readers, meet_labels
from vedette.domain.row_proof import find_row_fault, parse_record
from vedette.domain.run import ActionRow, Run
from vedette.domain.task import MAX_GOAL, child_event_id, child_run
from vedette.domain.task_item import list_items
from vedette.domain.task_words import CANCELLED
from vedette.domain.work_tools import ASK_TOOL, FINISH_TOOL
from vedette.engine.async_tool import AsyncTool, Begun
from vedette.engine.run_context import RunContext
from vedette.engine.services import Services
from vedette.engine.turn_history import verify_history

_MICROS = 1_000_000
_MAX_INPUTS = 100_000  # bytes
# Of what a child says of its task so many characters are told; of its artefacts so many are named.
MAX_SUMMARY, MAX_NAMED = 4_000, 50
# What becomes of a child beside `done`: it is in the outcome as `state`.
CANCELLED_STATE, DEADLINE, REFUSED = "cancelled", "deadline", "refused"
DEAD, UNPROVEN = "dead", "unproven"


class ChildOrder(Struct, frozen=True):
    """What a run gives another agent: whom, the payload of the event (goal, inputs, conditions),
    which places of that are trusted, what it may spend, until when, and who may read it.
    """

    agent: str
    data: Mapping[str, Any]
    budget: Mapping[str, int]
    until_us: int
    trusted: frozenset[str] = frozenset()
    readers: Readers = None


# --- asking ----------------------------------------------------------------------------------


def require_ask(context: RunContext, args: Mapping[str, Any]) -> None:
    """Raise BadProposal for an ask of an agent that agent.yaml does not name, or that is none."""
    agent, goal = args["agent"], args["goal"]
    listed = () if context.agent.work is None else context.agent.work.asks
    if agent not in listed:
        raise BadProposal(f"agent.yaml does not say that it asks {agent!r}", mend="asks:")
    if not 0 < len(goal.strip()) <= len(goal) <= MAX_GOAL:
        raise BadProposal(f"a goal has 1 to {MAX_GOAL} characters")
    if len(canonicalize_normalized(args.get("inputs", {}))) > _MAX_INPUTS:
        raise BadProposal("the inputs are too large: name an artefact, or fewer of them")
    if args.get("deadline_s", 1) <= 0:
        raise BadProposal("deadline_s is a number of seconds ahead")
    try:
        read_budget(args["budget"])
    except ValueError as error:
        raise BadProposal(str(error)) from error


def begin(services: Services, context: RunContext, action: Action, now_us: int) -> Begun:
    """Say until when a permitted ask waits for its child."""
    row = next(row for row in context.actions if row.id == action.id)
    return Begun("child", max(1, _until_us(context, action.args, row)), starts=True)


def _until_us(context: RunContext, args: Mapping[str, Any], row: ActionRow) -> int:
    """Return an ask's deadline: a function of what is durable, so that a repeat has the same."""
    task = context.task
    assert task is not None  # only tasks have the tool
    ends = [max(task.began_us, task.words.at_us) + task.task.deadline_us]
    if "deadline_s" in args:
        ends.append(row.counted_us + args["deadline_s"] * _MICROS)
    if task.task.delegation is not None:
        ends.append(task.task.delegation.until_us)
    return min(ends)


async def settle(
    services: Services, context: RunContext, action: Action, row: ActionRow, now_us: int
) -> Outcome | None:
    """Start an ask's child, if that is not done; return what came of it once it is over."""
    args = action.args
    order = ChildOrder(
        args["agent"],
        {"goal": args["goal"], **({"inputs": args["inputs"]} if "inputs" in args else {})},
        read_budget(args["budget"]),
        row.not_before_us,
        trusted_places(action.origins.items()),
        meet_labels(*action.readers.values()),
    )
    return await advance_child(services, context, row, order, now_us)


async def advance_child(
    services: Services, context: RunContext, row: ActionRow, order: ChildOrder, now_us: int
) -> Outcome | None:
    """Start the run that an action of another run gives an agent; return what came of it once it
    has ended, or its time is over. None before.
    """
    child = services.store.runs.run(child_run(services.fleet.name, order.agent, row.id))
    if child is None:
        why = "its deadline has passed" if now_us >= order.until_us else ""
        why = why or await _start(services, context, row, order)
        return _refuse(why) if why else None
    if child.state in ("done", "dead"):
        return tell_end(services, child, order.budget)
    if now_us < order.until_us:
        return None
    spent = await end_tree(services, child, row.id, "the deadline of who asked has passed")
    return tell_end(services, child, order.budget, DEADLINE, spent)


def _refuse(why: str) -> Outcome:
    """Return what comes of an ask whose child never began."""
    return Outcome("failed", {"state": REFUSED, "why": why, "spent": {}}, error=why)


async def _start(services: Services, context: RunContext, row: ActionRow, order: ChildOrder) -> str:
    """Accept a child's event; return why it is not taken, "" if it is."""
    listed = () if context.agent.work is None else context.agent.work.asks
    if order.agent not in listed:
        return f"agent.yaml does not say any more that it asks {order.agent!r}"
    agent = services.fleet.agents.get(order.agent)
    if agent is None or agent.work is None:
        return f"{order.agent} takes no tasks"
    event = child_event(services, context, row, order)
    match = next(one for one in services.fleet.match(event) if one.agent == agent.name)
    if not match.wakes:
        return match.why
    assert services.accept_child is not None  # wired wherever runs are handled
    try:
        receipt = await services.accept_child(event)
    except BadEvent as error:
        return str(error)
    return receipt.error or ""


def child_event(
    services: Services, context: RunContext, row: ActionRow, order: ChildOrder
) -> Event:
    """Return the event of a child's task.

    No person's word: the engine vouches for who asked, and for the places that were trusted.
    """
    task = context.task
    assert task is not None
    parent = task.session.trace(context.event)
    above = task.task.delegation
    delegation = Delegation(
        run=context.run.id,
        action=row.id,
        ancestors=(*task.ancestors, context.agent.name),
        runs=(*(() if above is None else above.runs), context.run.id),
        budget=order.budget,
        until_us=order.until_us,
    )
    labels = context.labels()
    run_readers = parent.readers if labels is None else labels.run
    return Event(
        source=task_source(services.fleet.name, order.agent),
        id=child_event_id(row.id),
        type=TASK_TYPE,
        # Who asks that content of the parent's be erased means what was made of it, too.
        subject=context.subject,
        time=iso(row.counted_us),
        data={**order.data, "delegation": {**delegation.to_json(), "cause": row.last}},
        hops=parent.hops + 1,
        lineage=(*parent.lineage, context.agent.name),
        vouched=(ENVELOPE - {"subject"}) | {PARENT} | order.trusted,
        extensions={PARENT: context.run.id},
        readers=meet_labels(run_readers, order.readers),
    )


# --- what came of it -------------------------------------------------------------------------


def tell_end(
    services: Services,
    child: Run,
    escrow: Mapping[str, int],
    late: str = "",
    spent: Mapping[str, int] | None = None,
) -> Outcome:
    """Return what is told of a child that is over, or is to be (`late`), with what it `spent`.

    It is `done` if its finish was permitted. What its rows say and the ledger does not counts for
    nothing, and as all spent.
    """
    store = services.store
    actions = store.runs.actions(child.id)
    try:
        verify_history(services, child, (), actions)
    except Permanent:
        told = {"run": child.id, "state": UNPROVEN, "spent": dict(escrow)}
        return Outcome("failed", told, error="its rows are not what the ledger says")
    closed = [orjson.loads(raw) for _, raw, _ in store.ledger.run_entries(child.id, ["run.closed"])]
    finish = next((r for r in actions if r.tool == FINISH_TOOL and r.effect == "done"), None)
    ended = closed[-1].get("what") or "done" if closed else DEAD
    state = late or ended
    states = [item["state"] for item in list_items(actions)]
    told = {
        "run": child.id,
        "state": state,
        "items": {"of": len(states), "done": states.count("done")},
        "spent": spend_of(store.spend.of_run(child.id), actions) if spent is None else dict(spent),
    }
    readers = _end_readers(services, child, finish)
    if readers is not None:
        told[READERS] = sorted(readers)
    if state != "done" or finish is None:
        return Outcome("failed", told, error=f"the child's task ended: {state}")
    summary = parse_record(finish.record)["args"]["summary"]
    told["summary"] = _cut(summary)
    own = store.runs.artefact_sizes(child.id) if "art_" in summary else {}
    named = dict.fromkeys(id for id in ARTEFACT_ID.findall(summary) if id in own)
    if named:
        told["artefacts"] = list(named)[:MAX_NAMED]
    return Outcome("done", told)


def _cut(text: str) -> str:
    if len(text) <= MAX_SUMMARY:
        return text
    return f"{text[:MAX_SUMMARY]}… (cut: {len(text)} characters)"


def _end_readers(services: Services, child: Run, finish: ActionRow | None) -> Readers:
    """Return who may read what a child says: whoever may read all that it had before it."""
    event = services.store.runs.event(child.event)
    labels: list[Readers] = [frozenset() if event is None else event.readers]
    for turn in services.store.runs.turns_back(child.id):
        labels.append(frozenset(turn["readers"]) if "readers" in turn else None)
        break
    if finish is not None:
        labels += argument_readers(parse_record(finish.record)).values()
    return meet_labels(*labels)


# --- what ends it ----------------------------------------------------------------------------


async def cancel_child(services: Services, child: Run, action: str, why: str) -> None:
    """Say to a child's task that it is over, once; nothing if it has ended.

    Whoever has its run finds that it was moved on: it commits no other turn and begins no effect.
    """
    fields = {"agent": child.agent, "actor": str(ENGINE)}
    draft = Draft(CANCELLED, fields, body=Body(canonical_json({"reason": why})))
    with suppress(AlreadyDone, BadCommand, NotFound):
        await services.store.commands.move_task(child.id, draft, command=f"end of {action}")


async def end_ask(services: Services, row: ActionRow, why: str) -> Outcome:
    """Cancel the child of an ask that is not waited for any more, and all below it; return what is
    told of it.

    Of a row that is not what the ledger says nothing is: its child ends when it looks for its ask.
    """
    proof = services.store.ledger.proof_entries([row.id]).get(row.id, ())
    if find_row_fault(row, proof) is not None:
        return Outcome("failed", {"state": UNPROVEN}, error=why)
    args = parse_record(row.record)["args"]
    child = find_child(services, row)
    if child is None:
        return _refuse(why)
    spent = await end_tree(services, child, row.id, why)
    return tell_end(services, child, read_budget(args["budget"]), CANCELLED_STATE, spent)


async def end_tree(services: Services, child: Run, action: str, why: str) -> dict[str, int]:
    """Cancel a child and all below it; return what it has spent, with what is under way.

    None of them commits a turn or a permit after that, so it is at least what they will have spent.
    """
    await cancel_child(services, child, action, why)
    rows = services.store.runs.actions(child.id)
    spent = spend_of(services.store.spend.of_run(child.id), rows)
    for row in open_asks(rows):
        held, below = held_escrow(row), find_child(services, row)
        used = {} if below is None else await end_tree(services, below, row.id, why)
        left = {unit: min(0, used.get(unit, 0) - amount) for unit, amount in held.items()}
        spent = add_spend(spent, left)
    return spent


def open_asks(rows: Iterable[ActionRow]) -> list[ActionRow]:
    """Return the asks of a run whose children are waited for."""
    return [row for row in rows if row.tool == ASK_TOOL and row.is_awaited]


def find_child(services: Services, ask: ActionRow) -> Run | None:
    """Return the run that an ask began; None before it did."""
    agent = parse_record(ask.record)["args"]["agent"]
    return services.store.runs.run(child_run(services.fleet.name, agent, ask.id))


async def cancel_children(services: Services, asks: Sequence[ActionRow], why: str) -> None:
    """Cancel the children of asks that are over, and all below them.

    One that is missed ends when it looks for its ask, before its next turn.
    """
    for row in asks:
        child = find_child(services, row)
        if child is not None:
            await end_tree(services, child, row.id, why)


def find_child_end(services: Services, context: RunContext, now_us: int) -> str:
    """Say why a task that an agent gave is over: nobody waits for it, or its time; "" if it is not.

    A child works only while its ask is open, whatever woke it.
    """
    assert context.task is not None
    given = context.task.task.delegation
    if given is None:
        return ""
    ask = services.store.runs.action(given.action)
    if ask is None or ask.effect != "started":
        return "unasked"
    return DEADLINE if now_us >= given.until_us else ""


def is_due(services: Services, row: ActionRow, now_us: int) -> bool:
    """Say whether something is to be done of an ask: start its child, or tell of its end."""
    child = find_child(services, row)
    return child is None or child.state in ("done", "dead") or now_us >= row.not_before_us


ASK = AsyncTool(begin, settle, is_due)

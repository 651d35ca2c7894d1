"""Corrections: a person says of a run what should have been, or that it was right.

It changes nothing of what was done or will be: the entry is there, and an event that wakes whoever
curates memory. Only what a person promotes out of it changes how the next event is judged.
"""

from __future__ import annotations

from collections.abc import Mapping
from difflib import get_close_matches
from typing import Any, Protocol, cast

import orjson

from vedette.domain.base.canonical import normalized_json, short_id
from vedette.domain.base.clock import iso
from vedette.domain.base.errors import BadCommand, Forbidden, NotFound
from vedette.domain.entry import Body, Draft
from vedette.domain.event import CORRECTION_TYPE, ENVELOPE, Event, subject_of
from vedette.domain.memory import find_label_fault
from vedette.domain.ports.run_store import AcceptResult, Arrival
from vedette.domain.ports.sources import Receipt
from vedette.domain.ports.store import Store
from vedette.domain.readers import meet_labels
from vedette.domain.roles import require_role
from vedette.domain.run import Run
from vedette.engine.run_context import RunContext
from vedette.engine.services import Services
from vedette.ledger.history.reader import resolve
from vedette.operations.commands import Commands, Order

# What of the event a correction carries along: texts up to this, so that it stays an event.
_MAX_TEXT = 12_000  # characters
_MOST_FIELDS = 64
_MOST_BYTES = 60_000
_LABEL_KEYS = ("about", "folders", "labels")
_RECENT_RUNS = 200


class EventAcceptor(Protocol):
    """What a correction asks of the intake (`vedette.engine.ingest.EventIntake`)."""

    async def accept_with(self, event: Event, subject: str | None, commit: Any) -> Receipt: ...


VERBS: Mapping[str, Mapping[str, type]] = {
    "correct": {"run": str, "should": str, "right": bool, "note": str, "new_label": bool}
}
NEEDED = {"correct": "run"}


async def dispatch(commands: Commands, order: Order, args: Mapping[str, Any]) -> dict[str, Any]:
    """Carry out one correction, as ordered. Raises BadCommand."""
    if order.principal.kind != "person":
        raise Forbidden(f"{order.principal} may not give commands", mend="a person must")
    require_role(order.principal, order.principal.roles, "correct")
    if not order.reason.strip():
        raise BadCommand("a reason is missing", mend="add --reason 'why'")
    should, right = args.get("should"), bool(args.get("right"))
    if (should is None) != right:
        raise BadCommand("say what should have been", mend="give a LABEL, or --right")
    return await _correct(commands, order, args, should)


async def _correct(
    commands: Commands, order: Order, args: Mapping[str, Any], should: str | None
) -> dict[str, Any]:
    services = commands.services
    store = services.store
    run, event, was = _find_judged_run(services, args["run"])
    if should is not None:
        _refuse_label(services, run, should, was, bool(args.get("new_label")))
    note = args.get("note")
    body = {"was": was, "reason": order.reason}
    body |= {} if should is None else {"should": should}
    body |= {} if note is None else {"note": note}
    outcome = "right" if should is None else "wrong"
    who = str(order.principal)
    draft = Draft(
        "run.corrected", {"outcome": outcome, "actor": who},
        body=Body(normalized_json(body), subject_of(event)),
    )  # fmt: skip
    done: dict[str, Any] = {"run": run.id, "agent": run.agent, "outcome": outcome, "was": was}
    if should is None:
        seq, _ = await store.commands.record_correction(
            run.id, draft, None, command=order.command_id
        )
        return {**done, "entry": seq, "should": None, "event": None, "woke": []}
    agent = services.fleet.agent(run.agent)
    # Not `open`: that takes the run up under a lease, and nothing is done with it here.
    context = RunContext(services, run, 0, agent, event, store.runs.actions(run.id))
    row = store.runs.row(agent.collection, run.key) if agent.collection else None
    labels = context.labels(row or {})
    corrections_before = sum(
        1 for entry in _entries(store, run) if entry["kind"] == "run.corrected"
    )
    correction = Event(
        source=f"vedette://{services.fleet.name}/people",
        id=short_id("cor", run.id, should, who, corrections_before),
        type=CORRECTION_TYPE,
        subject=event.subject,
        time=iso(services.clock.now_us()),
        data={
            "run": run.id,
            "event": run.event,
            "agent": run.agent,
            "was": was,
            "should": should,
            "note": note,
            "by": who,
            "reads": list(dict.fromkeys(f"{s.bank}/{s.scope}" for s in agent.scopes)),
            "saw": {"type": event.type, "subject": event.subject, "data": _shrink_data(event.data)},
        },
        # Its subject is that of the event, whoever chose that.
        vouched=ENVELOPE if "subject" in event.vouched else ENVELOPE - {"subject"},
        # It carries what the run read, and a label that was made of it.
        readers=event.readers if labels is None else meet_labels(event.readers, labels.run),
    )
    placed: list[int] = []

    async def commit(arrival: Arrival) -> AcceptResult:
        seq, accepted = await store.commands.record_correction(
            run.id, draft, arrival, command=order.command_id
        )
        placed.append(seq)
        assert isinstance(accepted, AcceptResult)
        return accepted

    acceptor = cast("EventAcceptor", commands.intake)
    receipt = await acceptor.accept_with(correction, subject_of(event), commit)
    return {
        **done, "entry": placed[0], "should": should, "event": receipt.event,
        "woke": list(receipt.runs),
    }  # fmt: skip


def _find_judged_run(services: Services, name: str) -> tuple[Run, Event, str]:
    """Return a run, its event and the label it was judged. Raises NotFound, BadCommand."""
    store = services.store
    kind, id = resolve(store, name)
    if kind == "event":
        runs = store.runs.runs_of_event(id)
        if len(runs) != 1:
            names = ", ".join(run.id for run in runs) or "none"
            raise BadCommand(f"{id} made {len(runs)} runs: {names}", mend="name the run")
        run: Run | None = runs[0]
    else:
        action = None if kind == "run" else store.runs.action("act_" + id.partition("_")[2])
        run = store.runs.run(id if action is None else action.run)
    if run is None:
        raise NotFound(f"there is no run {name!r}", mend="see `vedette runs`")
    if run.agent not in services.fleet.agents:
        raise BadCommand(f"the fleet has no agent {run.agent!r} any more", mend="bring it back")
    event = store.runs.event(run.event)
    if event is None:
        raise BadCommand(
            f"the content of {run.id} was erased", mend="there is nothing to learn from"
        )
    labels = [entry["label"] for entry in _entries(store, run) if entry.get("label")]
    turn_labels = [turn.get("label") for turn in store.runs.turns(run.id) if turn.get("label")]
    if not (turn_labels or labels):
        raise BadCommand(
            f"run {run.id} was not judged: it is {run.state}", mend="wait until it was"
        )
    return run, event, str((turn_labels or labels)[-1])


def _entries(store: Store, run: Run) -> list[dict[str, Any]]:
    entries = store.ledger.entries("run", run.id)
    return [orjson.loads(raw) for _, raw, _ in entries]


def _refuse_label(services: Services, run: Run, should: str, was: str, new: bool) -> None:
    """Raise BadCommand for what is no label, the label that it has, and one that nobody knows."""
    if why := find_label_fault(should):
        raise BadCommand(why, mend="name it as the others are: `vedette agent show`")
    if should == was:
        raise BadCommand(f"run {run.id} was judged {was!r}", mend="say --right if that is right")
    known = known_labels(services, run.agent)
    if new or should in known:
        return
    near = get_close_matches(should, known, 1)
    mend = f"did you mean {near[0]!r}? " if near else ""
    raise BadCommand(
        f"{run.agent} knows no label {should!r}",
        mend=f"{mend}it knows {', '.join(sorted(known))}; --new-label takes another",
    )


def known_labels(services: Services, agent: str) -> set[str]:
    """Return the labels a correction knows: of the agent's charter, examples, and latest runs."""
    known: set[str] = set()
    declared = services.fleet.agent(agent)
    for name in _LABEL_KEYS:
        value = declared.charter.get(name)
        if isinstance(value, Mapping | list):
            known.update(str(label) for label in value)
    now = services.clock.now_us()
    for scope in declared.scopes:
        for memory in services.recall.banks.lessons(scope.bank, scope.scope, now):
            if memory.kind == "example" and memory.label:
                known.add(memory.label)
    # Not by the read model: it may be behind, and a label that was used yesterday is known.
    recent = services.store.ledger.latest_of_agent(
        agent, ("run.closed", "turn.reasoned"), _RECENT_RUNS
    )
    known.update(label for raw in recent if (label := orjson.loads(raw).get("label")))
    return known


def _shrink_data(data: Any) -> Any:
    """Return what a judge saw of an event's data, texts cut until it is small beside an event."""
    longest = _MAX_TEXT
    while longest > 1 and len(normalized_json(_truncate(data, longest))) > _MOST_BYTES:
        longest //= 4
    return _truncate(data, longest)


def _truncate(data: Any, longest: int) -> Any:
    if isinstance(data, str):
        return data[:longest]
    if isinstance(data, Mapping):
        return {str(k): _truncate(v, longest) for k, v in list(data.items())[:_MOST_FIELDS]}
    if isinstance(data, list):
        return [_truncate(item, longest) for item in data[:_MOST_FIELDS]]
    return data

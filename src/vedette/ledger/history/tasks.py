"""Tasks for people: goal, conditions, items, what was spent, what was said, what one waits for."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import orjson

from vedette.domain.agent import Agent
from vedette.domain.base.errors import BadCommand, NotFound
from vedette.domain.budget import UNITS
from vedette.domain.entry import RELEASE_KINDS, releases_of
from vedette.domain.ports.store import StoreReader
from vedette.domain.row_proof import parse_record
from vedette.domain.run import ActionRow, Run
from vedette.domain.task import Task, child_run, find_task, list_proposed
from vedette.domain.task_item import Item, list_items, list_plans
from vedette.domain.task_words import (
    ADDED,
    MOVED,
    REVISED,
    STALLED,
    STANDING_KINDS,
    TaskWords,
)
from vedette.domain.work_tools import ASK_TOOL
from vedette.ledger.history.action import tell_awaited


def list_tasks(
    record: StoreReader, agents: Mapping[str, Agent], *, ended: bool, limit: int
) -> list[dict[str, Any]]:
    """Return the tasks of agents in a line each, newest first; with `ended` those too that have.

    `limit` bounds how many runs of each agent are looked at.
    """
    found: list[tuple[int, dict[str, Any]]] = []
    for agent in agents.values():
        # Whoever takes no tasks any more has those that wait for a person to say so.
        states = [None] if ended else ["ready", "waiting"] if agent.work else ["waiting"]
        for state in states:
            for run in record.runs.runs_page(
                agent=agent.name, state=state, before=None, limit=limit
            ):
                if agent.work is None and not ended and run.waits != "person":
                    continue
                task = _task_of(record, agent, run)
                if task is not None:
                    found.append((run.position, _line(record, run, task)))
    return [line for _, line in sorted(found, key=lambda one: -one[0])][:limit]


def show_task(record: StoreReader, agents: Mapping[str, Agent], name: str) -> dict[str, Any]:
    """Return all that there is to see of a task. Raises NotFound, and BadCommand for other runs."""
    run = record.runs.run(name)
    if run is None:
        raise NotFound(f"there is no run {name!r}", mend="see `vedette work list`")
    agent = agents.get(run.agent)
    task = None if agent is None else _task_of(record, agent, run)
    if agent is None or task is None:
        raise BadCommand(f"{name} is no task", mend="see `vedette explain`")
    turns = [turn["task"] for turn in record.runs.turns(run.id) if "task" in turn]
    actions, words = record.runs.actions(run.id), _task_words(record, run)
    items, plans = list_items(actions, words.items), list_plans(actions)
    spent = record.spend.of_run(run.id)
    limits = {unit: most for unit in UNITS if (most := agent.budget.limit(unit, "run"))}
    plan = agent.work
    return {
        **_line(record, run, task),
        "release": find_task_release(record, run) or None,
        "live_release": _live_release(record, run.agent),
        "goal": task.goal,
        "inputs": dict(task.inputs),
        # As the last turn was told: what has changed since is found out when it is decided.
        "conditions": turns[-1]["conditions"] if turns else [],
        "proposed": [one.name for one in list_proposed(actions)],
        "item_list": items,
        "plan": plans[-1].tell(items, None) if plans else {},
        "plans": [
            {"revision": one.revision, "trigger": one.trigger, "reason": one.reason}
            for one in plans
        ],
        "awaits": [
            {"action": row.id, "tool": row.tool, **awaits}
            for row in actions
            if (awaits := tell_awaited(row)) is not None
        ],
        "spend": dict(spent),
        "limits": {**limits, "turns": 0 if plan is None else plan.max_turns},
        "said": _words(record, run),
        "asks": [_ask(record, agent, row) for row in record.runs.actions(run.id)
                 if row.tool == ASK_TOOL],
        "asked_by": _asker(task),
    }  # fmt: skip


def _asker(task: Task) -> dict[str, Any] | None:
    """Return who asked for a task: the agents above, the first asker first, and the run."""
    given = task.delegation
    return None if given is None else {"run": given.run, "agents": list(given.ancestors)}


def _ask(record: StoreReader, agent: Agent, row: ActionRow) -> dict[str, Any]:
    """Return how an ask of a task stands: whom it asked, and where that run is."""
    args = parse_record(row.record)["args"]
    child = record.runs.run(child_run(agent.identity.fleet, args["agent"], row.id))
    told: dict[str, Any] = {} if row.answer is None else orjson.loads(row.answer)["data"]
    return {
        "action": row.id,
        "agent": args["agent"],
        "goal": args["goal"],
        "budget": args["budget"],
        "state": told.get("state") or row.effect or row.decided,
        "spent": told.get("spent"),
        "run": None if child is None else child.id,
        "run_state": None if child is None else child.state,
        "waits": None if child is None else child.waits,
        "turns": 0 if child is None else child.turn,
    }


def find_task_release(record: StoreReader, run: Run) -> str:
    """Return the release that a task runs on; "" before its first turn."""
    words = TaskWords.of(
        (orjson.loads(raw), None) for _, raw, _ in record.ledger.run_entries(run.id, (MOVED,))
    )
    return words.find_release(next(record.runs.turns_back(run.id), None) if run.turn else None)


def _live_release(record: StoreReader, agent: str) -> str | None:
    live = None
    for _, raw, _, _ in record.ledger.walk(RELEASE_KINDS):
        live = releases_of(orjson.loads(raw)).get(agent, live)
    return live


def _task_of(record: StoreReader, agent: Agent, run: Run) -> Task | None:
    event = record.runs.event(run.event)
    if event is None:
        return None
    turns = record.runs.turns(run.id) if run.turn else []
    task = find_task(agent, event, turns[0] if turns else None)
    if task is None:
        return None
    proposed = list_proposed(record.runs.actions(run.id))
    return task.revise(proposed, _task_words(record, run).revision)


def _task_words(record: StoreReader, run: Run) -> TaskWords:
    return TaskWords.of(record.runs.task_entries(run.id))


def _items(record: StoreReader, run: Run) -> list[Item]:
    return list_items(record.runs.actions(run.id), _task_words(record, run).items)


def _line(record: StoreReader, run: Run, task: Task) -> dict[str, Any]:
    states = [item["state"] for item in _items(record, run)]
    why = None
    if run.waits == "person":
        why = next((one["why"] for one in reversed(_words(record, run)) if one["why"]), None)
    return {
        "run": run.id,
        "agent": run.agent,
        "state": run.state,
        "waits": run.waits,
        "why": why,
        "turns": run.turn,
        "goal": task.goal,
        "revision": task.revision,
        "items": {"of": len(states), **{state: states.count(state) for state in sorted({*states})}},
    }


def _words(record: StoreReader, run: Run) -> list[dict[str, Any]]:
    """Return what was said of the task: kind, when, at which turn, by whom, and in which words."""
    words = []
    for _, raw, data in record.ledger.run_entries(run.id, STANDING_KINDS):
        entry, body = orjson.loads(raw), {} if data is None else orjson.loads(data)
        if entry["kind"] == MOVED and "actor" not in entry:
            told = f"{entry['rule']}: {entry['what'][:12]} -> {entry['release'][:12]}"
            body = {"reason": f"{told} ({body['reason']})" if body else told}
        said = _said(entry["kind"], body)
        words.append(
            {
                "kind": entry["kind"],
                "at": entry["at"],
                "turn": entry["turn"],
                "by": entry.get("actor"),
                "why": said,
            }
        )
    return words


def _said(kind: str, body: Mapping[str, Any]) -> str | None:
    """Return the words of an entry about a task: what was noted, added, or is the goal now."""
    if kind == ADDED and body:
        return f"{body['item']['id']}: {body['item']['title']}"
    if kind == REVISED and body:
        return f"{body['reason']}: {body['goal']}"
    found: str | None = body.get("note", body.get("why" if kind == STALLED else "reason"))
    return found

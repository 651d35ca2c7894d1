"""A task's progress: its done conditions, its items, what was said of it; found again in the store.

Everything here follows from what is durable: the recorded turns, the run's actions (of which its
items are made) and the entries of `vedette.domain.task_words`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import orjson
from msgspec import Struct, field

from vedette.domain.action import Action
from vedette.domain.agent import Agent
from vedette.domain.base.canonical import canonicalize_normalized
from vedette.domain.base.errors import BadProposal, RepeatedProposal
from vedette.domain.done_condition import (
    ACTIONS_OVER,
    ActionDone,
    ConditionState,
    PersonApproves,
    TaskFacts,
    TaskState,
    asks_person,
    evaluate,
)
from vedette.domain.effect import Outcome
from vedette.domain.event import Event
from vedette.domain.ports.store import Store
from vedette.domain.run import ActionRow, Run
from vedette.domain.task import Task, find_task, record_task
from vedette.domain.task_item import ITEM_STATES, Item, list_items, take_items
from vedette.domain.task_words import TASK_KINDS, TaskWords
from vedette.domain.work_tools import (
    ADD_ITEM_TOOL,
    CLOSE_ITEM_TOOL,
    FINISH_TOOL,
    HAND_OFF_TOOL,
    READ_HISTORY_TOOL,
    WORK_PERFORMER,
)
from vedette.engine.task_history import TaskHistory
from vedette.engine.tool_calls import answer_data

MAX_ITEMS = 10_000
# What is done for the next turns alone.
_NO_PROGRESS = frozenset({HAND_OFF_TOOL, READ_HISTORY_TOOL})
_MAX_ID, _MAX_TEXT = 200, 2000  # characters
_MAX_ITEM_INPUTS = 10_000  # bytes


def read_words(store: Store, run: str) -> TaskWords:
    """Return what was said of a run's task so far."""
    return TaskWords.of(
        (orjson.loads(raw), None if body is None else orjson.loads(body))
        for _, raw, body in store.ledger.run_entries(run, TASK_KINDS)
    )


class TaskProgress(Struct):
    """One task's progress.

    `told` is what its turns were told, by turn: the names of the conditions that held, and the item
    that was worked on. `release` is the one that it runs on ("": not known).
    `step_items` are its items as the step leaves them that is being made; `history` are its turns.
    """

    task: Task
    run: str
    began_us: int
    words: TaskWords
    items: dict[str, Item]
    told: dict[int, tuple[frozenset[str], str | None]]
    step_items: dict[str, Item] = field(default_factory=dict)
    history: TaskHistory = field(default_factory=TaskHistory)
    release: str = ""

    @classmethod
    def load(
        cls,
        store: Store,
        agent: Agent,
        event: Event,
        run: Run,
        turns: Sequence[Mapping[str, Any]],
        actions: Sequence[ActionRow],
    ) -> TaskProgress | None:
        """Read a run's progress; None if it is no task. It is the one that it began as."""
        task = find_task(agent, event, turns[0] if turns else None)
        if task is None:
            return None
        accepted = store.ledger.entry(run.position)
        began_us = 0 if accepted is None else int(orjson.loads(accepted[1])["at"])
        words = read_words(store, run.id)
        items = {item["id"]: item for item in list_items(actions)}
        told = {
            turn["turn"]: (
                frozenset(one["name"] for one in turn["task"]["conditions"] if one["held"]),
                turn["task"]["item"],
            )
            for turn in turns
            if "task" in turn
        }
        history = TaskHistory()
        history.load(turns)
        release = words.find_release(turns[-1] if turns else None)
        return cls(task, run.id, began_us, words, items, told, dict(items), history, release)

    def begin_step(self) -> None:
        """Begin a step with the items as they are durable."""
        self.step_items = dict(self.items)

    def take_step(self, actions: Sequence[ActionRow]) -> None:
        """Take in the items that the actions of a committed step made."""
        take_items(self.items, actions)
        self.begin_step()

    # --- conditions --------------------------------------------------------------------------

    @property
    def asks_person(self) -> bool:
        """Say whether its finish is held for a person."""
        return asks_person(self.task.conditions)

    def is_over(self, rows: Sequence[ActionRow]) -> bool:
        """Say whether the task is to go on no more: finished by its own action, or cancelled."""
        return self.words.cancelled or any(
            row.tool == FINISH_TOOL and row.effect == "done" for row in rows
        )

    def evaluate(self, rows: Sequence[ActionRow], row: Mapping[str, Any]) -> list[ConditionState]:
        """Return what is found of its conditions: `row` is the agent's own for the run's key."""
        # Of a long task few answers are asked for, and each would be read in every turn.
        read = {
            one.tool for one in self.task.conditions if isinstance(one, ActionDone) and one.answer
        }
        done = [
            (one.tool, answer_data(one) if one.tool in read else {})
            for one in rows
            if one.effect == "done"
        ]
        return evaluate(self.task.conditions, TaskFacts(self.step_items, row, done))

    def assess(self, rows: Sequence[ActionRow], row: Mapping[str, Any]) -> TaskState:
        """Return what is found for the decision of its finish."""
        found = zip(self.task.conditions, self.evaluate(rows, row), strict=True)
        own = [state for one, state in found if not isinstance(one, PersonApproves)]
        if still := sum(not one.is_final for one in rows):
            # What comes of it is part of what the task did.
            own.append(ConditionState(ACTIONS_OVER, False, f"{still} other actions are not over"))
        return TaskState(tuple(own), self.asks_person)

    def may_begin(self, agent: Agent) -> bool:
        """Say whether its first turn may be taken: no person has it wait, or is to be asked."""
        return not self.words.is_halted and agent.work is not None

    def find_stall(self, agent: Agent, run: Run, rows: Sequence[ActionRow], now_us: int) -> str:
        """Say why a person is asked before the next turn; "" if it is taken."""
        plan, since = agent.work, self.words.turn
        if plan is None:
            return "its agent takes no tasks any more"
        if not run.turn:
            return ""
        if run.turn - since >= plan.max_turns:
            return f"it took {run.turn - since} turns, and {plan.max_turns} are the limit"
        if now_us >= max(self.began_us, self.words.at_us) + self.task.deadline_us:
            return "its deadline has passed"
        idle = run.turn - max(since, self._last_progress(rows))
        return f"{idle} turns made no progress" if idle >= plan.no_progress else ""

    def _last_progress(self, rows: Sequence[ActionRow]) -> int:
        """Return the last turn that did something, or before which a condition came to hold."""
        done = (row for row in rows if row.effect == "done" and row.tool not in _NO_PROGRESS)
        last = max((row.turn for row in done), default=0)
        held: frozenset[str] = frozenset()
        for turn, (names, _) in sorted(self.told.items()):
            last = max(last, turn - 1) if names - held else last
            held |= names
        return last

    # --- what the reasoner is told --------------------------------------------------------------

    def tell(self, rows: Sequence[ActionRow], row: Mapping[str, Any]) -> dict[str, Any]:
        """Return a briefing's `task`: goal, inputs, conditions, items, notes of people."""
        told: dict[str, Any] = {
            "goal": self.task.goal,
            "conditions": [state.to_json() for state in self.evaluate(rows, row)],
            "items": self.count_items(),
        }
        if self.task.inputs:
            told["inputs"] = dict(self.task.inputs)
        if self.words.notes:
            told["notes"] = [dict(note) for note in self.words.notes]
        if (current := self.current_item) is not None:
            about = {name: current[name] for name in ("id", "title", "inputs") if name in current}
            told["items"]["current"] = {**about, "attempts": self.count_attempts(current["id"])}
        return told

    def record_turn(
        self, turn: int, told: Mapping[str, Any], bound: Sequence[Action | BadProposal]
    ) -> dict[str, Any]:
        """Return what a turn's entry says of the task, and note it.

        The first has goal and conditions, as `find_task` reads them; `repeated` names, by
        ordinal, what was done before.
        """
        conditions = list(told["conditions"])
        item = told["items"].get("current", {}).get("id")
        held = frozenset(one["name"] for one in conditions if one["held"])
        self.told[turn] = (held, item)
        pinned = record_task(self.task) if turn == 1 else {}
        again = {
            str(at): one.where for at, one in enumerate(bound) if isinstance(one, RepeatedProposal)
        }
        repeated = {"repeated": again} if again else {}
        return {**pinned, **repeated, "conditions": conditions, "item": item}

    # --- items ----------------------------------------------------------------------------------

    @property
    def current_item(self) -> Item | None:
        """Return the item that is worked on: the first that is open."""
        return next((item for item in self.items.values() if item["state"] == "open"), None)

    def count_items(self) -> dict[str, Any]:
        """Return how many items there are (`of`), and how many in each state."""
        states = [item["state"] for item in self.step_items.values()]
        return {"of": len(states), **{state: states.count(state) for state in ITEM_STATES}}

    def count_attempts(self, item: str) -> int:
        """Return how many turns worked on an item."""
        return sum(current == item for _, current in self.told.values())

    def find_like(
        self, action: Action, rows: Sequence[ActionRow], told: Mapping[str, Any]
    ) -> list[ActionRow]:
        """Return the actions of earlier turns like this one, for the same item."""
        current = told["items"].get("current")
        if current is None or action.tool.performer == WORK_PERFORMER:
            return []
        turns = {turn for turn, (_, item) in self.told.items() if item == current["id"]}
        same = (action.digest, action.tool.name)
        return [row for row in rows if (row.digest, row.tool) == same and row.turn in turns]

    def perform(self, action: Action) -> Outcome:
        """Perform a tool of the engine's own: return its outcome, which is all that it writes."""
        if action.tool.name == FINISH_TOOL:
            return Outcome("done", {"items": self.count_items()})
        item, why = self._change_item(action)
        if item is None:
            return Outcome("failed", {"why": why}, error=why)
        self.step_items[item["id"]] = item
        return Outcome("done", {"item": item})

    def _change_item(self, action: Action) -> tuple[dict[str, Any] | None, str]:
        args, id = action.args, action.args["id"]
        known = self.step_items.get(id)
        if action.tool.name == ADD_ITEM_TOOL:
            if known is not None:
                return None, f"there is an item {id!r} already: it is {known['state']}"
            if not 0 < len(id) <= _MAX_ID or len(args["title"]) > _MAX_TEXT:
                return None, f"an item has an id of 1 to {_MAX_ID} characters, and a short title"
            if len(self.step_items) >= MAX_ITEMS:
                return None, f"a task has {MAX_ITEMS} items at most"
            inputs = {"inputs": args["inputs"]} if "inputs" in args else {}
            if len(canonicalize_normalized(inputs)) > _MAX_ITEM_INPUTS:
                return None, f"an item's inputs are {_MAX_ITEM_INPUTS} bytes at most"
            number = len(self.step_items) + 1
            about = {"id": id, "title": args["title"], "number": number, **inputs}
            return {**about, "state": "open", "attempts": 0, "why": ""}, ""
        assert action.tool.name == CLOSE_ITEM_TOOL
        if known is None:
            return None, f"there is no item {id!r}"
        if known["state"] != "open":
            return None, f"the item {id!r} is closed already: it is {known['state']}"
        if args["state"] not in ITEM_STATES[1:]:
            return None, f"{args['state']!r} is no state that closes: {', '.join(ITEM_STATES[1:])}"
        why, attempts = args["why"][:_MAX_TEXT], self.count_attempts(id)
        return {**known, "state": args["state"], "attempts": attempts, "why": why}, ""

    def closing_fields(self) -> dict[str, Any]:
        """Return what the run's last entry says of it: items done, of how many; how it ended."""
        items = self.count_items()
        return {
            "items": items["of"],
            "items_done": items["done"],
            "what": "cancelled" if self.words.cancelled else None,
        }

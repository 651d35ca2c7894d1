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
    count_actions,
    evaluate,
)
from vedette.domain.effect import Outcome
from vedette.domain.event import Event
from vedette.domain.ports.store import Store
from vedette.domain.run import ActionRow, Run
from vedette.domain.task import Task, find_task, record_task
from vedette.domain.task_item import ITEM_STATES, ItemList, list_items
from vedette.domain.task_words import TASK_KINDS, TaskWords
from vedette.domain.work_tools import (
    ADD_ITEM_TOOL,
    CLOSE_ITEM_TOOL,
    FINISH_TOOL,
    WORK_PERFORMER,
)
from vedette.engine.action_history import ActionHistory
from vedette.engine.task_history import TaskHistory
from vedette.engine.tool_calls import answer_data

MAX_ITEMS = 10_000
_MAX_ID, _MAX_TEXT = 200, 2000  # characters
_MAX_ITEM_INPUTS = 10_000  # bytes


def read_words(store: Store, run: str) -> TaskWords:
    """Return what was said of a run's task so far."""
    return TaskWords.of(
        (orjson.loads(raw), None if body is None else orjson.loads(body))
        for _, raw, body in store.ledger.run_entries(run, TASK_KINDS)
    )


class ToldTurns(Struct):
    """What a task's turns were told. `last` is the last: its number, the names of the conditions
    that held, the item that was worked on.

    Of those before it `worked` are the turns that worked on an item, by its id, `held` the
    conditions that ever held, and `gained` is the last turn before which one came to hold.
    """

    last: tuple[int, frozenset[str], str | None] = (0, frozenset(), None)
    worked: dict[str, set[int]] = field(default_factory=dict)
    held: frozenset[str] = frozenset()
    gained: int = 0

    def add(self, turn: int, held: frozenset[str], item: str | None) -> None:
        """Take in what a turn is told: a later one, or the last once more."""
        before, _, worked_on = self.last
        if turn > before:
            if worked_on is not None:
                self.worked.setdefault(worked_on, set()).add(before)
            self.gained, self.held = self.last_gain, self.held | self.last[1]
        self.last = (turn, held, item)

    @property
    def last_gain(self) -> int:
        """Return the last turn before which a condition came to hold."""
        turn, held, _ = self.last
        return turn - 1 if held - self.held else self.gained

    def worked_on(self, item: str) -> set[int]:
        """Return the turns that worked on an item."""
        turn, _, last = self.last
        return self.worked.get(item, set()) | ({turn} if last == item else set())

    def count_attempts(self, item: str) -> int:
        """Return how many turns worked on an item."""
        return len(self.worked.get(item, ())) + (self.last[2] == item)


class TaskProgress(Struct):
    """One task's progress.

    `told` is what its turns were told. `step_items` are its items as the step leaves them that is
    being made; `history` are its turns. `counted` is how many of the actions that are over and done
    count for each condition, and of how many of them.
    """

    task: Task
    run: str
    began_us: int
    words: TaskWords
    items: ItemList
    told: ToldTurns
    step_items: ItemList
    history: TaskHistory = field(default_factory=TaskHistory)
    counted: tuple[int, list[int]] = (0, [])

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
        items, told, history = ItemList(), ToldTurns(), TaskHistory()
        for item in list_items(actions):
            items.put(item)
        for turn in turns:
            if "task" in turn:
                held = frozenset(one["name"] for one in turn["task"]["conditions"] if one["held"])
                told.add(turn["turn"], held, turn["task"]["item"])
        history.load(turns)
        counted = (0, [0] * len(task.conditions))
        return cls(
            task, run.id, began_us, words, items, told, items.copy(), history, counted
        )  # fmt: skip

    def begin_step(self) -> None:
        """Begin a step with the items as they are durable."""
        self.step_items = self.items.copy()

    def take_step(self, actions: Sequence[ActionRow]) -> None:
        """Take in the items that the actions of a committed step made."""
        self.items.take(actions)
        self.begin_step()

    # --- conditions --------------------------------------------------------------------------

    @property
    def asks_person(self) -> bool:
        """Say whether its finish is held for a person."""
        return asks_person(self.task.conditions)

    def is_over(self, rows: Sequence[ActionRow]) -> bool:
        """Say whether the task is to go on no more: finished by one of these, or cancelled."""
        return self.words.cancelled or any(
            row.tool == FINISH_TOOL and row.effect == "done" for row in rows
        )

    def evaluate(
        self, rest: Sequence[ActionRow], past: ActionHistory, row: Mapping[str, Any]
    ) -> list[ConditionState]:
        """Return what is found of its conditions: `row` is the agent's own for the run's key,
        `rest` are the run's actions that are not past.
        """
        number, before = self.counted
        before = self._add_counts(before, past.done[number:])
        self.counted = (len(past.done), before)
        done = self._add_counts(before, [one for one in rest if one.effect == "done"])
        return evaluate(self.task.conditions, TaskFacts(self.step_items.counts, row, done))

    def _add_counts(self, counts: list[int], rows: Sequence[ActionRow]) -> list[int]:
        """Return how many actions count for each condition, with these that were done, too."""
        conditions = self.task.conditions
        # Of a long task few answers are asked for, and a large one takes a while to be read.
        read = {one.tool for one in conditions if isinstance(one, ActionDone) and one.answer}
        done = [(one.tool, answer_data(one) if one.tool in read else {}) for one in rows]
        return [a + b for a, b in zip(counts, count_actions(conditions, done), strict=True)]

    def assess(
        self, rest: Sequence[ActionRow], past: ActionHistory, row: Mapping[str, Any]
    ) -> TaskState:
        """Return what is found for the decision of its finish; `rest` are the other actions."""
        found = zip(self.task.conditions, self.evaluate(rest, past, row), strict=True)
        own = [state for one, state in found if not isinstance(one, PersonApproves)]
        if still := sum(not one.is_final for one in rest):
            # What comes of it is part of what the task did.
            own.append(ConditionState(ACTIONS_OVER, False, f"{still} other actions are not over"))
        return TaskState(tuple(own), self.asks_person)

    def may_begin(self, agent: Agent) -> bool:
        """Say whether its first turn may be taken: no person has it wait, or is to be asked."""
        return not self.words.is_halted and agent.work is not None

    def find_stall(self, agent: Agent, run: Run, past: ActionHistory, now_us: int) -> str:
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
        # Before a turn all actions are past.
        idle = run.turn - max(since, past.last_turn, self.told.last_gain)
        return f"{idle} turns made no progress" if idle >= plan.no_progress else ""

    # --- what the reasoner is told --------------------------------------------------------------

    def tell(
        self, rest: Sequence[ActionRow], past: ActionHistory, row: Mapping[str, Any]
    ) -> dict[str, Any]:
        """Return a briefing's `task`: goal, inputs, conditions, items, notes of people."""
        told: dict[str, Any] = {
            "goal": self.task.goal,
            "conditions": [state.to_json() for state in self.evaluate(rest, past, row)],
            "items": self.step_items.count(),
        }
        if self.task.inputs:
            told["inputs"] = dict(self.task.inputs)
        if self.words.notes:
            told["notes"] = [dict(note) for note in self.words.notes]
        if (current := self.items.current) is not None:
            about = {name: current[name] for name in ("id", "title", "inputs") if name in current}
            attempts = self.told.count_attempts(current["id"])
            told["items"]["current"] = {**about, "attempts": attempts}
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
        self.told.add(turn, held, item)
        pinned = record_task(self.task) if turn == 1 else {}
        again = {
            str(at): one.where for at, one in enumerate(bound) if isinstance(one, RepeatedProposal)
        }
        repeated = {"repeated": again} if again else {}
        return {**pinned, **repeated, "conditions": conditions, "item": item}

    # --- items ----------------------------------------------------------------------------------

    def find_like(
        self, action: Action, past: ActionHistory, told: Mapping[str, Any]
    ) -> list[ActionRow]:
        """Return the actions of earlier turns like this one, for the same item."""
        current = told["items"].get("current")
        if current is None or action.tool.performer == WORK_PERFORMER:
            return []
        turns = self.told.worked_on(current["id"])
        alike = past.alike.get((action.digest, action.tool.name), ())
        return [row for row in alike if row.turn in turns]

    def perform(self, action: Action) -> Outcome:
        """Perform a tool of the engine's own: return its outcome, which is all that it writes."""
        if action.tool.name == FINISH_TOOL:
            return Outcome("done", {"items": self.step_items.count()})
        item, why = self._change_item(action)
        if item is None:
            return Outcome("failed", {"why": why}, error=why)
        self.step_items.put(item)
        return Outcome("done", {"item": item})

    def _change_item(self, action: Action) -> tuple[dict[str, Any] | None, str]:
        args, id = action.args, action.args["id"]
        known = self.step_items.by_id.get(id)
        if action.tool.name == ADD_ITEM_TOOL:
            if known is not None:
                return None, f"there is an item {id!r} already: it is {known['state']}"
            if not 0 < len(id) <= _MAX_ID or len(args["title"]) > _MAX_TEXT:
                return None, f"an item has an id of 1 to {_MAX_ID} characters, and a short title"
            if len(self.step_items.by_id) >= MAX_ITEMS:
                return None, f"a task has {MAX_ITEMS} items at most"
            inputs = {"inputs": args["inputs"]} if "inputs" in args else {}
            if len(canonicalize_normalized(inputs)) > _MAX_ITEM_INPUTS:
                return None, f"an item's inputs are {_MAX_ITEM_INPUTS} bytes at most"
            number = len(self.step_items.by_id) + 1
            about = {"id": id, "title": args["title"], "number": number, **inputs}
            return {**about, "state": "open", "attempts": 0, "why": ""}, ""
        assert action.tool.name == CLOSE_ITEM_TOOL
        if known is None:
            return None, f"there is no item {id!r}"
        if known["state"] != "open":
            return None, f"the item {id!r} is closed already: it is {known['state']}"
        if args["state"] not in ITEM_STATES[1:]:
            return None, f"{args['state']!r} is no state that closes: {', '.join(ITEM_STATES[1:])}"
        why, attempts = args["why"][:_MAX_TEXT], self.told.count_attempts(id)
        return {**known, "state": args["state"], "attempts": attempts, "why": why}, ""

    def closing_fields(self) -> dict[str, Any]:
        """Return what the run's last entry says of it: items done, of how many; how it ended."""
        items = self.step_items.count()
        return {
            "items": items["of"],
            "items_done": items["done"],
            "what": "cancelled" if self.words.cancelled else None,
        }

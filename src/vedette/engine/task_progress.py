"""A task's progress: its done conditions, its items, what was said of it; found again in the store.

Everything here follows from what is durable: the recorded turns, the run's actions (of which its
items are made) and the entries of `vedette.domain.task_words`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import orjson
from msgspec import Struct, field
from msgspec.structs import replace

from vedette.domain.action import Action
from vedette.domain.agent import Agent
from vedette.domain.base.canonical import canonicalize_normalized
from vedette.domain.base.errors import BadProposal, RepeatedProposal
from vedette.domain.budget import ACTIONS
from vedette.domain.decision import DecisionContext
from vedette.domain.delegation import AncestorState, DelegationState, find_cover
from vedette.domain.done_condition import (
    ACTIONS_OVER,
    SESSION_READ,
    ActionDone,
    ConditionState,
    PersonApproves,
    TaskFacts,
    TaskState,
    asks_person,
    evaluate,
)
from vedette.domain.effect import Outcome
from vedette.domain.escrow import count_actions
from vedette.domain.event import Event
from vedette.domain.ports.store import Store
from vedette.domain.readers import Readers
from vedette.domain.run import ActionRow, Run, RunWake
from vedette.domain.stop import StopState
from vedette.domain.task import Task, find_task, record_task
from vedette.domain.task_item import ITEM_STATES, Item, list_items, take_items
from vedette.domain.task_words import WORD_KINDS, TaskWords
from vedette.domain.tool import Tool
from vedette.domain.work_tools import (
    ADD_ITEM_TOOL,
    ASK_TOOL,
    CLOSE_ITEM_TOOL,
    ENGINE_TOOLS,
    FINISH_TOOL,
    HAND_OFF_TOOL,
    READ_HISTORY_TOOL,
    WAIT_TOOL,
    WORK_PERFORMER,
)
from vedette.engine.services import Services
from vedette.engine.task_history import TaskHistory
from vedette.engine.tool_calls import answer_data

MAX_ITEMS = 10_000
# What is done for the next turns alone.
_NO_PROGRESS = frozenset({HAND_OFF_TOOL, READ_HISTORY_TOOL})
_MAX_ID, _MAX_TEXT = 200, 2000  # characters
_MAX_ITEM_INPUTS = 10_000  # bytes


def _is_progress(row: ActionRow) -> bool:
    """Say whether an action that is done did something; a wait does if an event came of it."""
    if row.tool == WAIT_TOOL:
        return answer_data(row).get("woke") == "event"
    return row.tool not in _NO_PROGRESS


def read_words(store: Store, run: str) -> TaskWords:
    """Return what was said of a run's task so far."""
    return TaskWords.of(
        (orjson.loads(raw), None if body is None else orjson.loads(body))
        for _, raw, body in store.ledger.run_entries(run, WORD_KINDS)
    )


class TaskProgress(Struct):
    """One task's progress.

    `told` is what its turns were told, by turn: the names of the conditions that held, and the item
    that was worked on. `step_items` are its items as the step leaves them that is being made;
    `history` are its turns. `joined` are the events of its session that it took in (None: its
    content is gone), `joined_told` how many of them its turns were told, the last in `joined_turn`.
    `ended` says why a task is over that was not finished.
    """

    task: Task
    run: str
    began_us: int
    words: TaskWords
    items: dict[str, Item]
    told: dict[int, tuple[frozenset[str], str | None]]
    step_items: dict[str, Item] = field(default_factory=dict)
    history: TaskHistory = field(default_factory=TaskHistory)
    joined: Sequence[Event | None] = ()
    joined_told: int = 0
    joined_turn: int = 0
    ended: str = ""

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
        progress = cls(task, run.id, began_us, TaskWords(), items, told, dict(items), history)
        progress.take_words(store)
        for turn in turns:
            if (count := turn.get("task", {}).get("joined", 0)) > progress.joined_told:
                progress.joined_told, progress.joined_turn = count, turn["turn"]
        return progress

    def take_words(self, store: Store) -> None:
        """Read what was said of it by now."""
        self.words = read_words(store, self.run)
        if self.words.joined:
            found = store.runs.events_at(self.words.joined)
            self.joined = [found[at].event if at in found else None for at in self.words.joined]

    def begin_step(self) -> None:
        """Begin a step with the items as they are durable."""
        self.step_items = dict(self.items)

    def take_step(self, actions: Sequence[ActionRow]) -> None:
        """Take in the items that the actions of a committed step made."""
        take_items(self.items, actions)
        self.begin_step()

    # --- agents above ------------------------------------------------------------------------

    @property
    def ancestors(self) -> tuple[str, ...]:
        """Return the agents above its own, the first asker first; none for a person's task."""
        given = self.task.delegation
        return () if given is None else given.ancestors

    def is_stopped_above(self, stops: StopState, tool: str | None = None) -> bool:
        """Say whether an agent above is stopped: it begins no turn, and no action of `tool`."""
        if tool is None:
            return any(stops.is_agent_stopped(agent) for agent in self.ancestors)
        return any(stops.is_tool_stopped(agent, tool) for agent in self.ancestors)

    def is_stop_pending_above(self, stops: StopState, tool: str) -> bool:
        """Say whether a stop of an agent above is on its way to the store."""
        return any(stops.is_stop_pending(agent, tool) for agent in self.ancestors)

    @property
    def parent_wakes(self) -> tuple[RunWake, ...]:
        """Return what its end makes due: the run that asked for it."""
        given = self.task.delegation
        return () if given is None else (RunWake(given.run),)

    def add_facts(
        self,
        services: Services,
        context: DecisionContext,
        tool: Tool,
        rows: Sequence[ActionRow],
        own_row: Callable[[], Mapping[str, Any]],
    ) -> DecisionContext:
        """Return a decision's context with what the task adds to it: its conditions if it is to
        end, the agents above, and what it set aside of its actions. `rows` are its other actions.
        """
        facts = self.assess(rows, own_row()) if tool.name == FINISH_TOOL else None
        above = self._assess_delegation(services, tool, rows)
        actions = count_actions(rows)
        return replace(context, task=facts, delegation=above, actions_in_run=actions)

    def _assess_delegation(
        self, services: Services, tool: Tool, rows: Sequence[ActionRow]
    ) -> DelegationState | None:
        """Return what is found of the agents above; None for a person's task.

        Whoever is not in the fleet any more may do nothing.
        """
        given = self.task.delegation
        if given is None:
            return None
        found = []
        for name in given.ancestors:
            agent = services.fleet.agents.get(name)
            mode = "observe" if agent is None else agent.requested_mode
            cover = find_cover(services.grants, name, mode, tool.verb, tool.resource)
            found.append(AncestorState(name, mode, cover))
        room = tool.name in ENGINE_TOOLS or count_actions(rows) < given.budget.get(ACTIONS, 0)
        return DelegationState(tuple(found), room)

    # --- conditions --------------------------------------------------------------------------

    @property
    def asks_person(self) -> bool:
        """Say whether its finish is held for a person."""
        return asks_person(self.task.conditions)

    def is_over(self, rows: Sequence[ActionRow]) -> bool:
        """Say whether the task is to go on no more: finished by its own action, or ended."""
        return (
            bool(self.ended)
            or self.words.cancelled
            or any(row.tool == FINISH_TOOL and row.effect == "done" for row in rows)
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
        if new := len(self.joined) - self.joined_told:
            own.append(ConditionState(SESSION_READ, False, f"{new} events came since this turn"))
        return TaskState(tuple(own), self.asks_person)

    def may_begin(self, agent: Agent) -> bool:
        """Say whether its first turn may be taken at once: nobody has it wait, or is to be asked,
        and no agent above is to be looked at first.
        """
        asked = self.task.delegation is not None
        return not self.words.is_halted and agent.work is not None and not asked

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
        done = (row for row in rows if row.effect == "done" and _is_progress(row))
        last = max((row.turn for row in done), default=0)
        last = max(last, self.joined_turn)
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
        if self.task.delegation is not None:
            # It is not a person who says so.
            told["asked_by"] = self.ancestors[-1]
        if self.words.notes:
            told["notes"] = [dict(note) for note in self.words.notes]
        if new := self.joined[self.joined_told :]:
            told["session"] = [
                self._tell_joined(number, event)
                for number, event in enumerate(new, self.joined_told)
            ]
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
        if new := told.get("session"):
            self.joined_told, self.joined_turn = new[-1]["number"] + 1, turn
        joined = {"joined": self.joined_told} if self.joined_told else {}
        return {**pinned, **repeated, **joined, "conditions": conditions, "item": item}

    # --- its session ----------------------------------------------------------------------------

    @staticmethod
    def _tell_joined(number: int, event: Event | None) -> dict[str, Any]:
        if event is None:
            return {"number": number, "erased": True}
        return {"number": number, "ref": f"ref:/session/{number}", **event.root()}

    def session_roots(self) -> dict[str, Any]:
        """Return what references may point at of the events that joined, as fields of `Roots`."""
        return {
            "session": [{} if one is None else one.root() for one in self.joined],
            "session_vouched": [frozenset() if one is None else one.vouched for one in self.joined],
        }

    def session_labels(self) -> dict[str, Readers]:
        """Return who may read the events that joined, by place, where not everybody may."""
        events = enumerate(self.joined)
        return {f"session/{at}": one.readers for at, one in events if one and one.readers}

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
        own = action.tool.performer == WORK_PERFORMER and action.tool.name != ASK_TOOL
        if current is None or own:
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
            "what": self.ended or ("cancelled" if self.words.cancelled else None),
        }

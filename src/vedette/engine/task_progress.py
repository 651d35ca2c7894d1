"""A task's progress: its done conditions, its items, what was said of it; found again in the store.

Everything here follows from what is durable: the recorded turns, the run's actions (of which its
items are made) and the entries of `vedette.domain.task_words`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import orjson
from msgspec import Struct, field
from msgspec.structs import replace

from vedette.domain.action import Action
from vedette.domain.agent import Agent
from vedette.domain.base.errors import BadProposal, Permanent, RepeatedProposal
from vedette.domain.budget import ACTIONS
from vedette.domain.decision import DecisionContext
from vedette.domain.delegation import AncestorState, DelegationState, find_cover
from vedette.domain.done_condition import (
    ACTIONS_OVER,
    SESSION_READ,
    WORDS_TOLD,
    ActionDone,
    ConditionState,
    DoneCondition,
    PersonApproves,
    TaskFacts,
    TaskState,
    asks_person,
    evaluate,
    is_evidence,
    read_conditions,
    write_condition,
)
from vedette.domain.effect import OPEN_STATES, Outcome
from vedette.domain.escrow import count_actions, escrow_of
from vedette.domain.event import Event
from vedette.domain.origin import escape_pointer
from vedette.domain.plan import (
    NO_TRIGGER_RULE,
    Plan,
    PlanFacts,
    find_step_fault,
    find_trigger,
    set_plan,
)
from vedette.domain.ports.store import Store
from vedette.domain.row_proof import parse_record
from vedette.domain.run import ActionRow, Run, RunWake
from vedette.domain.stop import StopState
from vedette.domain.task import Task, find_task, list_proposed, list_unreachable, record_task
from vedette.domain.task_item import (
    ITEM_STATES,
    MAX_ITEMS,
    MAX_TEXT,
    Item,
    add_items,
    find_item_fault,
    first_item,
    list_plans,
    sort_items,
    take_items,
)
from vedette.domain.task_words import WORD_KINDS, TaskWords
from vedette.domain.tool import Tool
from vedette.domain.work_tools import (
    ADD_ITEM_TOOL,
    ASK_TOOL,
    CLOSE_ITEM_TOOL,
    ENGINE_TOOLS,
    FINISH_TOOL,
    PLAN_TOOL,
    PROPOSE_TOOL,
    WORK_PERFORMER,
)
from vedette.engine.services import Services
from vedette.engine.session_events import SessionEvents
from vedette.engine.task_facts import FactReader, find_last_progress
from vedette.engine.task_history import TaskHistory
from vedette.engine.tool_calls import UNSURE_REPEAT, answer_data

# Rules of the engine's own, by which it refuses conditions that an agent proposes.
FIXED_RULE, GIVEN_RULE = "conditions.fixed", "conditions.given"
# … and one ask more than a run may have open.
OPEN_ASKS_RULE, MAX_OPEN_ASKS = "delegation.asks", 16


def read_words(store: Store, run: str) -> TaskWords:
    """Return what was said of a run's task so far. Raises Permanent if it is not all there."""
    entries = store.runs.task_entries(run)
    if any(body is None and entry["kind"] in WORD_KINDS for entry, body in entries):
        raise Permanent("what a person said of the task was erased, or edited")
    return TaskWords.of(entries)


class TurnNote(NamedTuple):
    """What one turn of a task was told: the names of the conditions that held, the item that was
    worked on, how many words of people.
    """

    held: frozenset[str]
    item: str | None
    words: int


class TaskProgress(Struct):
    """One task's progress.

    `given` is the task as it began, `proposed` what its first turn added, `task` what it is by now.
    `peoples_items` are those that people added, as they gave them.
    `told` is what its turns were told. `step_items`, `step_plan` and `step_proposed` are its items,
    its plan and what was proposed, as the step leaves them that is being made; `history` are its
    turns. `session` are the events that joined it. `ended` says why a task is over that was not
    finished. `release` is the one that it runs on ("": not known). `may_have_come` says that what
    is awaited may have come before the store was read last, and was not looked for since.
    """

    given: Task
    run: str
    agent: Agent
    began_us: int
    words: TaskWords
    facts: FactReader
    told: dict[int, TurnNote]
    history: TaskHistory
    items: dict[str, Item] = field(default_factory=dict)
    peoples_items: Mapping[str, Item] = field(default_factory=dict)
    plan: Plan | None = None
    proposed: tuple[DoneCondition, ...] = ()
    step_items: dict[str, Item] = field(default_factory=dict)
    session: SessionEvents = field(default_factory=SessionEvents)
    step_plan: Plan | None = None
    step_proposed: tuple[DoneCondition, ...] = ()
    ended: str = ""
    release: str = ""
    may_have_come: bool = False

    @classmethod
    def load(
        cls,
        store: Store,
        fleet: str,
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
        told = {
            turn["turn"]: TurnNote(
                frozenset(one["name"] for one in turn["task"]["conditions"] if one["held"]),
                turn["task"]["item"],
                turn["task"].get("words", 0),
            )
            for turn in turns
            if "task" in turn
        }
        history = TaskHistory()
        history.load(turns)
        facts = FactReader(store, fleet, run.id)
        found = cls(task, run.id, agent, began_us, TaskWords(), facts, told, history)
        found.read_words(store, actions)
        found.take_step(actions)
        found.release = found.words.find_release(turns[-1] if turns else None)
        for turn in turns:
            found.session.note_told(turn.get("task", {}).get("joined", 0), turn["turn"])
        return found

    @property
    def task(self) -> Task:
        """Return the task as its first turn and people left it."""
        return self.given.revise(self.step_proposed, self.words.revision)

    def read_words(self, store: Store, actions: Sequence[ActionRow]) -> None:
        """Read what was said of it by now, beside its actions. Raises Permanent if it is not all
        there.
        """
        self.words = read_words(store, self.run)
        self.may_have_come = any(row.is_awaited for row in actions)
        self.session.read(store, self.words.joined, self.words.matched)
        self._take_words()

    def is_unread(self, rows: Sequence[ActionRow]) -> bool:
        """Say whether something that one of these actions awaits is still to be looked for."""
        return self.may_have_come and any(row.is_awaited for row in rows)

    def _take_words(self) -> None:
        self.peoples_items = add_items(self.items, self.words.items)
        self.begin_step()

    def begin_step(self) -> None:
        """Begin a step with the items, plan and proposals as they are durable."""
        self.step_items = dict(self.items)
        self.step_plan, self.step_proposed = self.plan, self.proposed

    def take_step(self, actions: Sequence[ActionRow]) -> None:
        """Take in what the actions of a committed step made: items, a plan, conditions."""
        take_items(self.items, actions)
        self.plan = next(reversed(list_plans(actions)), self.plan)
        self.proposed += list_proposed(actions)
        self._take_words()

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
        row: ActionRow,
        rows: Sequence[ActionRow],
        own_row: Callable[[], Mapping[str, Any]],
    ) -> DecisionContext:
        """Return a decision's context with what the task adds to it: its conditions if it is to
        end, the agents above, what it set aside of its actions, and the rule by which the engine
        refuses it. `row` is the action's, `rows` are its other actions.
        """
        tool = self.agent.tools[row.tool]
        facts = self.assess(rows, own_row(), row.turn) if tool.name == FINISH_TOOL else None
        refuses = self.find_refusal(row, rows)
        above = self._assess_delegation(services, tool, rows)
        event = self.session.trace(context.event)
        is_new_ask = row.tool == ASK_TOOL and not row.counted_us
        aside = escrow_of(row).get(ACTIONS, 0) if is_new_ask else 0
        return replace(
            context, event=event, task=facts, delegation=above,
            actions_in_run=count_actions(rows), refuses=refuses, escrow=aside,
        )  # fmt: skip

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
            if agent is None:
                found.append(AncestorState(name, "", "observe", "none"))
                continue
            about = (name, agent.owner, agent.requested_mode)
            cover = find_cover(services.grants, *about, agent.tools, tool.verb, tool.resource)
            found.append(AncestorState(*about, cover))
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

    def evaluate(
        self, rows: Sequence[ActionRow], row: Mapping[str, Any], *, anew: bool = False
    ) -> list[ConditionState]:
        """Return what is found of its conditions: `row` is the agent's own for the run's key.

        With `anew` nothing is taken as it was found before.
        """
        conditions = self.task.conditions
        # Of a long task few answers are asked for, and each would be read in every turn.
        read = {one.tool for one in conditions if isinstance(one, ActionDone) and one.answer}
        counted = self.facts.list_counted(conditions, rows, self.agent, anew=anew)
        done = [(one.tool, answer_data(one) if one.tool in read else {}) for one in counted]
        artefacts = self.facts.list_artefacts(conditions, counted, anew=anew)
        return evaluate(conditions, TaskFacts(self.step_items, row, done, artefacts))

    def assess(self, rows: Sequence[ActionRow], row: Mapping[str, Any], turn: int) -> TaskState:
        """Return what is found for the decision of its finish, which a turn proposed."""
        found = zip(self.task.conditions, self.evaluate(rows, row, anew=True), strict=True)
        own = [state for one, state in found if not isinstance(one, PersonApproves)]
        if still := sum(not one.is_final for one in rows):
            # What comes of it is part of what the task did.
            own.append(ConditionState(ACTIONS_OVER, False, f"{still} other actions are not over"))
        if new := self.session.untold:
            own.append(ConditionState(SESSION_READ, False, f"{new} events came since this turn"))
        if self._is_unheard(turn):
            why = "a person said something of the task since this turn was told of it"
            own.append(ConditionState(WORDS_TOLD, False, why))
        return TaskState(tuple(own), self.asks_person)

    def _is_unheard(self, turn: int) -> bool:
        """Say whether people said something that a turn was not told of, as far as is on record."""
        told = self.told.get(turn)
        return (0 if told is None else told.words) < len(self.words.told)

    def list_stale(self, rows: Sequence[ActionRow]) -> list[ActionRow]:
        """Return the open finishes that were proposed before a person's last word."""
        return [
            row
            for row in rows
            if row.tool == FINISH_TOOL and not row.is_final and self._is_unheard(row.turn)
        ]

    def find_refusal(self, row: ActionRow, rows: Sequence[ActionRow]) -> str:
        """Return the engine's own rule by which an action is refused; "" if none does.

        `rows` are the run's others.
        """
        if row.tool == PLAN_TOOL:
            # One a turn: what the first is made on is used up.
            is_due = self.step_plan is self.plan and self._find_trigger(rows)
            return "" if is_due else NO_TRIGGER_RULE
        if row.tool == ASK_TOOL:
            still = sum(one.tool == ASK_TOOL and one.effect in OPEN_STATES for one in rows)
            return OPEN_ASKS_RULE if still >= MAX_OPEN_ASKS else ""
        if row.tool != PROPOSE_TOOL:
            return ""
        # What a judge deferred is its model's to begin.
        first = 2 if self.history.opinion else 1
        if row.turn != first or self.words.revision is not None:
            return FIXED_RULE
        given = {one.name for one in self.task.conditions}
        names = [one.get("name") for one in parse_record(row.record)["args"]["conditions"]]
        return GIVEN_RULE if any(one in given for one in names if isinstance(one, str)) else ""

    def _find_trigger(self, rows: Sequence[ActionRow]) -> tuple[str, str] | None:
        plan = self.step_plan
        if plan is None:
            return find_trigger(None, PlanFacts())
        facts = self.facts.read_plan_facts(plan, rows, self.words.told, self.agent)
        return find_trigger(plan, facts)

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
        last = self.session.last_turn
        held: frozenset[str] = frozenset()
        for turn, note in sorted(self.told.items()):
            last = max(last, turn - 1) if note.held - held else last
            held |= note.held
        return find_last_progress(rows, last)

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
        if self.session.untold:
            told["session"] = self.session.tell()
        if self.words.told:
            told["words"] = len(self.words.told)
        if self.task.revision > 1:
            told["revision"] = self.task.revision
        if self.plan is not None:
            ordered = sort_items(self.items.values(), self.plan)
            told["plan"] = self.plan.tell(ordered, self._find_trigger(rows))
        if (current := self.current_item) is not None:
            names = ("id", "title", "inputs", "phase", "by")
            about = {name: current[name] for name in names if name in current}
            if "by" in current and "inputs" in current:
                about["place"] = f"/item/{escape_pointer(current['id'])}/inputs"
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
        words = told.get("words", 0)
        self.told[turn] = TurnNote(held, item, words)
        pinned = record_task(self.given) if turn == 1 else {}
        again = {
            str(at): one.where for at, one in enumerate(bound) if isinstance(one, RepeatedProposal)
        }
        repeated = {"repeated": again} if again else {}
        heard = {"words": words} if words else {}
        if new := told.get("session"):
            self.session.note_told(new[-1]["number"] + 1, turn)
        joined = {"joined": self.session.told} if self.session.told else {}
        return {**pinned, **repeated, **heard, **joined, "conditions": conditions, "item": item}

    def list_roots(self) -> dict[str, Any]:
        """Return what references may point at of events that joined and of items that people added,
        as fields of `Roots`.
        """
        return {**self.session.list_roots(), "item": self.peoples_items}

    # --- items ----------------------------------------------------------------------------------

    @property
    def current_item(self) -> Item | None:
        """Return the item that is worked on: the first that is open, in the order of the plan."""
        still = (item for item in self.items.values() if item["state"] == "open")
        return first_item(still, self.plan)

    def count_items(self) -> dict[str, Any]:
        """Return how many items there are (`of`), and how many in each state."""
        states = [item["state"] for item in self.step_items.values()]
        return {"of": len(states), **{state: states.count(state) for state in ITEM_STATES}}

    def count_attempts(self, item: str) -> int:
        """Return how many turns worked on an item."""
        return sum(note.item == item for note in self.told.values())

    def find_like(
        self, action: Action, rows: Sequence[ActionRow], told: Mapping[str, Any]
    ) -> list[ActionRow]:
        """Return the actions of earlier turns like this one, for the same item.

        One that was undone is none of them: it may be done again. Raises BadProposal where nobody
        knows whether one was.
        """
        current = told["items"].get("current")
        own = action.tool.performer == WORK_PERFORMER and action.tool.name != ASK_TOOL
        if current is None or own:
            return []
        turns = {turn for turn, note in self.told.items() if note.item == current["id"]}
        same = (action.digest, action.tool.name)
        like = [row for row in rows if (row.digest, row.tool) == same and row.turn in turns]
        undone = self.facts.find_undone(like, self.agent)
        if "unknown" in undone.values():
            where = next(id for id, standing in undone.items() if standing == "unknown")
            raise BadProposal(UNSURE_REPEAT, where=where)
        return [row for row in like if row.id not in undone]

    def perform(self, action: Action, rows: Sequence[ActionRow], row: Mapping[str, Any]) -> Outcome:
        """Perform a tool of the engine's own: return its outcome, which is all that it writes.

        `rows` are the run's actions, `row` the agent's own for the run's key.
        """
        if action.tool.name == FINISH_TOOL:
            return Outcome("done", {"items": self.count_items()})
        if action.tool.name == PROPOSE_TOOL:
            return self._take_proposed(action, rows, row)
        if action.tool.name == PLAN_TOOL:
            return self._take_plan(action, rows)
        item, why = self._change_item(action)
        if item is None:
            return Outcome("failed", {"why": why}, error=why)
        self.step_items[item["id"]] = item
        return Outcome("done", {"item": item})

    def _change_item(self, action: Action) -> tuple[dict[str, Any] | None, str]:
        args, id = action.args, action.args["id"]
        known = self.step_items.get(id)
        if action.tool.name == ADD_ITEM_TOOL:
            inputs = {"inputs": args["inputs"]} if "inputs" in args else {}
            fault = find_item_fault(id, args["title"], args.get("inputs", {}), self.step_items)
            if fault:
                return None, fault
            if (phase := args.get("phase")) is not None:
                of_task = self.step_items.values()
                if fault := find_step_fault(self.step_plan, phase, args["title"], of_task):
                    return None, fault
                inputs["phase"] = phase
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
        why, attempts = args["why"][:MAX_TEXT], self.count_attempts(id)
        return {**known, "state": args["state"], "attempts": attempts, "why": why}, ""

    # --- what the first turn proposes, and plans ------------------------------------------------

    def _take_proposed(
        self, action: Action, rows: Sequence[ActionRow], row: Mapping[str, Any]
    ) -> Outcome:
        """Take conditions that the first turn proposes; some of them must be left to reach."""
        found, faults = read_conditions(action.args["conditions"], self.task.stated)
        # What the agent notes by tools of the engine's is no evidence.
        tools = self.agent.tools.keys() - ENGINE_TOOLS.keys()
        faults += list_unreachable(self.agent, found, tools)
        if faults:
            path, what, mend = faults[0]
            where = "conditions" + "".join(f"[{one!r}]" for one in path)
            return Outcome("failed", {"where": where}, error=f"{where}: {what}; {mend}")
        before, self.step_proposed = self.step_proposed, (*self.step_proposed, *found)
        names = {one.name for one in found if is_evidence(one)} or {one.name for one in found}
        states = [one for one in self.evaluate(rows, row) if one.name in names]
        if all(one.held for one in states):
            self.step_proposed = before
            why = "what would show it holds already: nothing would be left to do"
            return Outcome("failed", error=why)
        return Outcome("done", {"conditions": [write_condition(one) for one in found]})

    def _take_plan(self, action: Action, rows: Sequence[ActionRow]) -> Outcome:
        """Take a plan, which its trigger allows (`find_refusal`): its steps are items."""
        found = self._find_trigger(rows)
        if found is None:
            return Outcome("failed", error="no plan is due")
        before = self.step_plan
        phases = action.args["phases"]
        told = self.told.get(action.turn)
        plan = Plan(
            1 if before is None else before.revision + 1,
            found[0],
            action.args["reason"],
            tuple({"id": one["id"], "title": one["title"]} for one in phases),
            self.facts.measure_spend(rows, self.agent),
            0 if told is None else told.words,
        )
        changed = set_plan(plan, {one["id"]: one["steps"] for one in phases}, self.step_items)
        if isinstance(changed, str):
            return Outcome("failed", error=changed)
        if len({*self.step_items, *(item["id"] for item in changed)}) > MAX_ITEMS:
            return Outcome("failed", error=f"a task has {MAX_ITEMS} items at most")
        for item in changed:
            if item["state"] == "set_aside":
                item["attempts"] = self.count_attempts(item["id"])
            self.step_items[item["id"]] = item
        self.step_plan = plan
        return Outcome("done", {"plan": plan.to_json(), "items": changed})

    def closing_fields(self) -> dict[str, Any]:
        """Return what the run's last entry says of it: items done, of how many; how it ended."""
        items = self.count_items()
        return {
            "items": items["of"],
            "items_done": items["done"],
            "what": self.ended or ("cancelled" if self.words.cancelled else None),
        }

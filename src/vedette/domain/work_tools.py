"""Tools that the engine declares for an agent that takes work: to finish a task, to keep its items.

They are ordinary tools, so that policy grants them and the ledger tells of them like all others;
what performs them is the engine itself (`vedette.engine.context_tools`). They are transactional,
what comes of them is part of the step; but for those whose outcome comes later, which the engine
finds out of what is durable (`vedette.engine.async_completion`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

from vedette.domain.artefact import ARTEFACT_TOOLS
from vedette.domain.plan import PLAN_SCHEMA
from vedette.domain.run import ActionRow
from vedette.domain.stop import StopState
from vedette.domain.tool import SettlementMode, Tool

# What performs them, in the place of a plugin's name (`ENGINE_PERFORMERS`).
WORK_PERFORMER = "work"
FINISH_TOOL = "task.finish"
ADD_ITEM_TOOL = "item.add"
CLOSE_ITEM_TOOL = "item.close"
HAND_OFF_TOOL = "task.hand_off"
READ_HISTORY_TOOL = "history.read"
PROPOSE_TOOL = "task.conditions"
PLAN_TOOL = "plan.set"
ASK_TOOL = "agent.ask"
WAIT_TOOL = "task.wait"


def _declare(
    name: str,
    resource: str,
    args: Mapping[str, str],
    description: str,
    *,
    sinks: tuple[str, ...] = (),
    settles: SettlementMode = "transactional",
    schema: Mapping[str, Any] | None = None,
) -> Tool:
    return Tool(
        name=name,
        verb=name.partition(".")[2],
        resource=resource,
        args=args,
        sinks=sinks,
        settles=settles,
        function=WORK_PERFORMER,
        query=None if settles == "transactional" else WORK_PERFORMER,
        performer=WORK_PERFORMER,
        schema=schema,
        description=description,
    )


WORK_TOOLS: Mapping[str, Tool] = MappingProxyType(
    {
        tool.name: tool
        for tool in (
            _declare(
                FINISH_TOOL,
                "task",
                {"summary": "string"},
                "Ends the task. It is permitted when every done condition holds and no other "
                "action is open, else you are told what is unmet. Nothing follows it in its turn.",
            ),
            _declare(
                ADD_ITEM_TOOL,
                "item",
                {"id": "string", "title": "string", "inputs": "object?", "phase": "string?"},
                "Adds an item to the list of what the task has to do, to a phase of its plan if it "
                "has one.",
            ),
            _declare(
                CLOSE_ITEM_TOOL,
                "item",
                {"id": "string", "state": "string", "why": "string"},
                "Closes an item: state is done, failed or set_aside.",
            ),
            _declare(
                HAND_OFF_TOOL,
                "task",
                {
                    "decisions": "strings",
                    "artefacts": "strings",
                    "open_questions": "strings",
                    "next_step": "string",
                },
                "Leaves to the context after this one what it needs to go on, in plain words: what "
                "was decided and why, the places of what was made (/outcome/3, without ref:), what "
                "is open, and what to do next. Goal, conditions and items are told by the engine: "
                "do not repeat them. At most 4,000 characters in all.",
            ),
            _declare(
                READ_HISTORY_TOOL,
                "task",
                {"turn_from": "integer", "turn_to": "integer"},
                "Reads turns of this task that lie before what you are told, in lines.",
            ),
            _declare(
                WAIT_TOOL,
                "task",
                {
                    "until": "string?",
                    "for_s": "integer?",
                    "event": "string?",
                    "source": "string?",
                    "where": "object?",
                },
                "Waits, for days if need be, whatever comes first: until an instant (RFC 3339), "
                "for_s seconds, or for an event of a type that /charter/waits_for lists; source "
                "and where narrow it, by places of the event and the value that each must have "
                '({"/data/thread": 7}). You are told what woke it, and the event.',
                sinks=("/event",),
                settles="queryable",
            ),
        )
    }
)

# … and of one whose agent.yaml says whom it may ask.
ASK_TOOLS: Mapping[str, Tool] = MappingProxyType(
    {
        ASK_TOOL: _declare(
            ASK_TOOL,
            "agent",
            {
                "agent": "string",
                "goal": "string",
                "inputs": "object?",
                "budget": "object",
                "deadline_s": "integer?",
            },
            "Gives one of the agents that /charter/asks lists a task, and waits for it. It may do "
            "what both of you may. budget is what of yours it may spend at most: actions, "
            "model_calls, tokens, money_micros; what you leave out is 0. You are told how it "
            "ended (state), its items, what it says of it (summary), and what it spent.",
            sinks=("/agent",),
            settles="queryable",
        )
    }
)

# Of an agent whose tasks' first turn may propose done conditions, and of one that makes plans.
PROPOSE_TOOLS: Mapping[str, Tool] = MappingProxyType(
    {
        PROPOSE_TOOL: _declare(
            PROPOSE_TOOL,
            "task",
            {},
            "Says what must hold before the task may end, beside what was given. In the first turn "
            "alone: from then on it stands. Each has a name and one of: items (closed or done), "
            "action (a tool that was done, at_least so often), artefacts (the tool that made them, "
            "or a media type; at_least, schema, min_size; only outcomes of more than 16 KiB have "
            "any: of smaller ones wait for the action), rows (a JSON Pointer into your row, "
            "with equals or at_least), person (what a person is asked). Where nobody gave any, a "
            "person is asked too, unless one is on an action, an artefact or a row: tools of the "
            "engine's, as item.close, are none.",
            schema={
                "type": "object",
                "properties": {
                    "conditions": {"type": "array", "items": {"type": "object"}, "minItems": 1}
                },
                "required": ["conditions"],
                "additionalProperties": False,
            },
        )
    }
)
PLAN_TOOLS: Mapping[str, Tool] = MappingProxyType(
    {
        PLAN_TOOL: _declare(
            PLAN_TOOL,
            "plan",
            {},
            "Lays the task out in phases, each with steps, which are items: close them as such. A "
            "plan is replaced only when you are told that this is due (plan.replan). Steps that "
            "are done stay done; open ones that you leave out are set aside.",
            schema=PLAN_SCHEMA,
        )
    }
)

# All that the engine performs itself. None counts against `actions_per_run`; a permit of one counts
# against the limits of an hour and a day, and takes a slot of them, as all permits do.
ENGINE_TOOLS: Mapping[str, Tool] = MappingProxyType(
    {**ARTEFACT_TOOLS, **WORK_TOOLS, **ASK_TOOLS, **PROPOSE_TOOLS, **PLAN_TOOLS}
)
# Who performs those, so that no plugin of `vedette.tools` may have such a name.
ENGINE_PERFORMERS = frozenset(tool.performer for tool in ENGINE_TOOLS.values())


def waits_first(rows: Sequence[ActionRow]) -> list[ActionRow]:
    """Return a task's actions with its waits ahead of all that is called.

    What comes of a call of the same turn, be it an answer before the call is over, is then one that
    came after the wait began.
    """
    return sorted(rows, key=lambda row: row.tool != WAIT_TOOL)


def hold_stopped(rows: Sequence[ActionRow], agent: str, stops: StopState) -> list[ActionRow]:
    """Return an agent's actions, with each that is awaited and whose tool is stopped as one that
    waits for that to be lifted: nothing of it is settled before.
    """
    return [
        _wait_for_resume(row) if row.is_awaited and stops.is_tool_stopped(agent, row.tool) else row
        for row in rows
    ]


def _wait_for_resume(row: ActionRow) -> ActionRow:
    held = row.copy()
    held.effect, held.waits = None, "resume"
    return held

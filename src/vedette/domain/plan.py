"""A Plan: the phases of a task in order, and on which triggers another may take its place.

The steps of a phase are the items that name it (`vedette.domain.task_item`): what is done of a plan
is what is done of them. A plan is what the run's own `plan.set` answered; the last one counts.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from msgspec import Struct, to_builtins

from vedette.domain.task_words import ADDED, REVISED, STEERED

MAX_PHASES, MAX_STEPS = 20, 50  # of a plan; of a phase
_MAX_ID, MAX_TITLE, _MAX_REASON = 60, 200, 1000  # characters
# So many open steps of the current phase a turn is told.
MAX_TOLD_STEPS = 20
# A finish that was denied so often since the plan was made is a reason to make another.
MAX_DENIALS = 3
# So many hundredths of a limit of the run.
SPEND_MARKS = (80, 50)
FIRST, UNKNOWN, UNMET = "first", "unknown", "unmet"
# What a person said, by its kind: of several the first of these counts.
_WORD_TRIGGERS: Mapping[str, tuple[str, str]] = {
    REVISED: ("goal", "a person changed the goal"),
    ADDED: ("input", "a person added an item"),
    STEERED: ("person", "a person noted something"),
}
# By the names of its own rules the engine bars a plan without a trigger.
NO_TRIGGER_RULE = "plan.no_trigger"


def _text(most: int) -> dict[str, Any]:
    return {"type": "string", "minLength": 1, "maxLength": most}


def _listed(most: int, **members: Any) -> dict[str, Any]:
    entry = {
        "type": "object",
        "properties": {"id": _text(_MAX_ID), "title": _text(MAX_TITLE), **members},
        "required": ["id", "title", *members],
        "additionalProperties": False,
    }
    return {"type": "array", "items": entry, "maxItems": most}


PLAN_SCHEMA: Mapping[str, Any] = {
    "type": "object",
    "properties": {
        "phases": {**_listed(MAX_PHASES, steps=_listed(MAX_STEPS)), "minItems": 1},
        "reason": _text(_MAX_REASON),
    },
    "required": ["phases", "reason"],
    "additionalProperties": False,
}


class Plan(Struct, frozen=True):
    """A task's plan: `phases` have id and title. `trigger` is why it might be made, `reason` what
    its agent says; `spent` (hundredths of a limit) and `words` (of people) are as of then.
    """

    revision: int
    trigger: str
    reason: str
    phases: tuple[Mapping[str, str], ...]
    spent: int = 0
    words: int = 0

    def to_json(self) -> dict[str, Any]:
        """Return it as its action's outcome has it."""
        made: dict[str, Any] = to_builtins(self)
        return made

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Plan:
        """Return the plan of an outcome."""
        return cls(**{**value, "phases": tuple(value["phases"])})

    def place(self, item: Mapping[str, Any]) -> int:
        """Return the place of an item's phase; one without any comes after all."""
        ids = [phase["id"] for phase in self.phases]
        return ids.index(item["phase"]) if item.get("phase") in ids else len(ids)

    def tell(
        self, items: Iterable[Mapping[str, Any]], replan: tuple[str, str] | None
    ) -> dict[str, Any]:
        """Return what a turn is told of it: counts of phases, the next steps of one.

        `replan` is the trigger that is due, and why.
        """
        of: dict[str, list[Mapping[str, Any]]] = {phase["id"]: [] for phase in self.phases}
        for item in items:
            if item.get("phase") in of:
                of[item["phase"]].append(item)
        phases = []
        current: dict[str, Any] = {}
        for phase in self.phases:
            steps = of[phase["id"]]
            closed = sum(step["state"] != "open" for step in steps)
            state = "closed" if closed == len(steps) else "open"
            phases.append({**phase, "state": state, "closed": closed, "of": len(steps)})
            if state == "open" and not current:
                still = [step for step in steps if step["state"] == "open"][:MAX_TOLD_STEPS]
                told = [{"id": step["id"], "title": step["title"][:MAX_TITLE]} for step in still]
                current = {"current": {"id": phase["id"], "steps": told}}
        due = {} if replan is None else {"replan": {"trigger": replan[0], "why": replan[1]}}
        return {"revision": self.revision, "phases": phases, **current, **due}


class PlanFacts(Struct, frozen=True):
    """What has come about in a task: the kinds of people's words, oldest first; since its plan how
    many finishes were denied, outcomes are unknown and effects done; what is spent, in hundredths.
    """

    words: Sequence[str] = ()
    denials: int = 0
    unknown: int = 0
    spent: int = 0
    effects: int = 0


def find_trigger(plan: Plan | None, facts: PlanFacts) -> tuple[str, str] | None:
    """Return why a plan may be made now, and in words; None if the one there is stands."""
    if plan is None:
        return FIRST, "there is none"
    said = facts.words[plan.words :]
    for kind, trigger in _WORD_TRIGGERS.items():
        if kind in said:
            return trigger
    if facts.unknown:
        return UNKNOWN, f"nobody knows what came of {facts.unknown} actions"
    # One that was made for that reason has something done first: else each denial makes plans.
    if facts.denials >= MAX_DENIALS and (plan.trigger != UNMET or facts.effects):
        return UNMET, f"the finish was denied {facts.denials} times"
    for mark in SPEND_MARKS:
        if plan.spent < mark <= facts.spent:
            return f"spend_{mark}", f"{facts.spent} % of a limit of the run is spent"
    return None


def find_step_fault(
    plan: Plan | None, phase: str, title: str, items: Iterable[Mapping[str, Any]]
) -> str:
    """Return why an item cannot be added to a phase, of which there are these; "" if it can."""
    if plan is None or all(one["id"] != phase for one in plan.phases):
        return f"the plan has no phase {phase!r}"
    if len(title) > MAX_TITLE:
        return f"a step of a phase has a title of {MAX_TITLE} characters at most"
    if sum(item.get("phase") == phase for item in items) >= MAX_STEPS:
        return f"a phase has {MAX_STEPS} steps at most"
    return ""


def set_plan(
    plan: Plan, steps: Mapping[str, Sequence[Mapping[str, Any]]], items: Mapping[str, Any]
) -> list[dict[str, Any]] | str:
    """Return the items that a plan adds, moves or sets aside; or what is wrong with it.

    `steps` are those of each phase, `items` all of the task. What is closed stays as it is, and so
    does what a person added, but for its phase.
    """
    phases = [phase["id"] for phase in plan.phases]
    ids = [step["id"] for phase in phases for step in steps[phase]]
    for what, listed in (("phases", phases), ("steps", ids)):
        twice = next((one for one in listed if listed.count(one) > 1), None)
        if twice is not None:
            return f"two {what} have the id {twice!r}"
    changed = []
    number = len(items)
    for phase in phases:
        for step in steps[phase]:
            known = items.get(step["id"])
            if known is None:
                number += 1
                fresh = {"number": number, "state": "open", "attempts": 0, "why": ""}
                changed.append({**step, "phase": phase, **fresh})
            elif known["state"] == "open" and known.get("phase") != phase:
                changed.append({**known, "phase": phase})
    for item in items.values():
        is_left_out = "phase" in item and "by" not in item and item["id"] not in ids
        if item["state"] == "open" and is_left_out:
            why = f"not in plan {plan.revision}"
            changed.append({**item, "state": "set_aside", "why": why})
    return changed

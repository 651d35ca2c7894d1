"""Done conditions: named facts that must hold before a task may end, and how each is found out.

They are written in the `done.yaml` of an agent's folder, or come with the event that gives the
task; nothing that an agent proposes reaches them. What holds is a pure function of facts that the
engine reads from what is durable:

    conditions:
      - {name: all_items, items: closed, at_least: 3}
      - {name: none_left_out, items: done}
      - {name: total, rows: /total, equals: 12}
      - {name: report, action: report.send, at_least: 1, answer: /sent, equals: true}
      - {name: read, person: reads the report}
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, TypeAlias

from msgspec import UNSET, Struct, UnsetType

from vedette.domain.base.canonical import normalize_json

MAX_CONDITIONS = 50
_MAX_NAME = 60
# By the key that says what is looked at: what else such a condition may have.
_KINDS: Mapping[str, frozenset[str]] = {
    "items": frozenset({"at_least"}),
    "rows": frozenset({"at_least", "equals"}),
    "action": frozenset({"at_least", "answer", "equals"}),
    "person": frozenset(),
}
_ITEM_STATES = ("closed", "done")
# A finish is held for a person by this reason (`vedette.domain.decision.ask_person`).
PERSON_ASKED = "task.person"
# Not written by anybody: no other action of the run is open when its finish is decided.
ACTIONS_OVER = "actions_over"
# A fault of what is written: where in it, what is wrong, the mend.
Fault: TypeAlias = tuple[tuple[str | int, ...], str, str]


class ItemsClosed(Struct, frozen=True):
    """Every item of the task is closed, and `at_least` so many are: without a list nothing is.

    What failed and what the agent set aside is closed, too. With `state` done each has to be done.
    """

    name: str
    at_least: int = 1
    state: str = "closed"


class RowValue(Struct, frozen=True):
    """The agent's row for the run's key has at `pointer` (JSON Pointer) this value, or so much."""

    name: str
    pointer: str
    equals: Any = UNSET
    at_least: int | None = None


class ActionDone(Struct, frozen=True):
    """A tool was done in this run `at_least` so many times; counted are calls whose answer equals.

    `answer` is a JSON Pointer into what the tool answered; without one every call counts.
    """

    name: str
    tool: str
    at_least: int = 1
    answer: str | None = None
    equals: Any = UNSET


class PersonApproves(Struct, frozen=True):
    """A person approves the finish, which is held for that; `asks` is what they are asked."""

    name: str
    asks: str


DoneCondition: TypeAlias = ItemsClosed | RowValue | ActionDone | PersonApproves
# Of a task for which nobody wrote any: that it is done is for a person to say.
NO_CONDITIONS: tuple[DoneCondition, ...] = (
    PersonApproves("approved", "nobody wrote when this task is done"),
)


class TaskFacts(Struct, frozen=True):
    """The facts that done conditions are evaluated on: how many items are in each state, the row,
    and for each of the conditions how many actions count (`count_actions`).
    """

    items: Mapping[str, int]
    row: Mapping[str, Any]
    done: Sequence[int]


class ConditionState(Struct, frozen=True):
    """What was found of one done condition. `why` has counts and no content of a row or an answer:
    it is told to whoever is told of the task.
    """

    name: str
    held: bool
    why: str

    def to_json(self) -> dict[str, Any]:
        """Return it as questions, briefings and commands have it."""
        return {"name": self.name, "held": self.held, "why": self.why}


class TaskState(Struct, frozen=True):
    """What was found of all done conditions but a person's; `person` says that there is one."""

    conditions: tuple[ConditionState, ...]
    person: bool

    def to_json(self) -> dict[str, Any]:
        """Return it as the question has it."""
        return {"conditions": [one.to_json() for one in self.conditions], "person": self.person}


def evaluate(conditions: Sequence[DoneCondition], facts: TaskFacts) -> list[ConditionState]:
    """Return what facts say of each condition; of a person's that it is still to be asked."""
    return [
        _evaluate_one(condition, facts, done)
        for condition, done in zip(conditions, facts.done, strict=True)
    ]


def count_actions(
    conditions: Sequence[DoneCondition], done: Sequence[tuple[str, Mapping[str, Any]]]
) -> list[int]:
    """Return for each condition how many of these done actions count: tool, and what it answered.

    Counts of two parts of a run add up.
    """
    return [
        sum(_counts(one, tool, data) for tool, data in done) if isinstance(one, ActionDone) else 0
        for one in conditions
    ]


def _counts(condition: ActionDone, tool: str, data: Mapping[str, Any]) -> bool:
    if tool != condition.tool:
        return False
    answer = condition.answer
    return answer is None or _fits(_look_up(data, answer), condition.equals, None)


def asks_person(conditions: Sequence[DoneCondition]) -> bool:
    """Say whether one of the conditions is that a person approves."""
    return any(isinstance(condition, PersonApproves) for condition in conditions)


def _evaluate_one(condition: DoneCondition, facts: TaskFacts, done: int) -> ConditionState:
    match condition:
        case ItemsClosed(name, at_least, state):
            of = sum(facts.items.values())
            count = of - facts.items.get("open", 0)
            if state == "done":
                count = facts.items.get("done", 0)
            why = f"{count} of {of} items are {state}"
            if count < at_least:
                why += f", at least {at_least} are needed"
            return ConditionState(name, count == of and count >= at_least, why)
        case RowValue(name, pointer, equals, at_least):
            found = _look_up(facts.row, pointer)
            if found is UNSET:
                return ConditionState(name, False, f"the row has no {pointer}")
            held = _fits(found, equals, at_least)
            return ConditionState(name, held, f"{pointer} {'is' if held else 'is not'} as wanted")
        case ActionDone(name, tool, at_least, answer):
            why = f"{tool} was done {done} of {at_least} times"
            return ConditionState(
                name, done >= at_least, why if answer is None else f"{why} with that answer"
            )
        case PersonApproves(name, asks):
            return ConditionState(name, False, f"a person is asked when the rest holds: {asks}")


def _fits(found: Any, equals: Any, at_least: int | None) -> bool:
    if found is UNSET:
        return False
    if equals is not UNSET and (type(found) is not type(equals) or found != equals):
        return False
    if at_least is None:
        return True
    return isinstance(found, int) and not isinstance(found, bool) and found >= at_least


def _look_up(value: Any, pointer: str) -> Any | UnsetType:
    """Return what stands at a JSON Pointer (RFC 6901) of a value; UNSET if there is nothing."""
    for part in pointer.split("/")[1:]:
        name = part.replace("~1", "/").replace("~0", "~")
        if isinstance(value, Mapping) and name in value:
            value = value[name]
        elif isinstance(value, list) and name.isdigit() and int(name) < len(value):
            value = value[int(name)]
        else:
            return UNSET
    return value


# --- as they are written -------------------------------------------------------------------------


def read_conditions(value: Any) -> tuple[tuple[DoneCondition, ...], list[Fault]]:
    """Return the conditions that are written in a list, or none and everything wrong with it."""
    if not isinstance(value, list) or not value:
        return (), [((), "is not a list of conditions", "begin with - name: …")]
    if len(value) > MAX_CONDITIONS:
        return (), [((), f"has {len(value)} conditions", f"write {MAX_CONDITIONS} at most")]
    faults: list[Fault] = []
    found: list[DoneCondition] = []
    for at, one in enumerate(value):
        wrong = [((at, *inside), what, mend) for inside, what, mend in _find_faults(one)]
        faults += wrong
        if wrong:
            continue
        condition = _build(one)
        if any(other.name == condition.name for other in found):
            what = f"two conditions are named {condition.name!r}"
            faults.append(((at, "name"), what, "give each a name of its own"))
        found.append(condition)
    return ((), faults) if faults else (tuple(found), [])


def write_condition(condition: DoneCondition) -> dict[str, Any]:
    """Return a condition as `read_conditions` reads it."""
    match condition:
        case ItemsClosed(name, at_least, state):
            return {"name": name, "items": state, "at_least": at_least}
        case RowValue(name, pointer, equals, at_least):
            written = {"name": name, "rows": pointer, "equals": equals, "at_least": at_least}
        case ActionDone(name, tool, at_least, answer, equals):
            written = {"name": name, "action": tool, "at_least": at_least, "answer": answer}
            written["equals"] = equals
        case PersonApproves(name, asks):
            return {"name": name, "person": asks}
    # A value that is waited for may be null; of all else null is left out.
    return {
        key: one
        for key, one in written.items()
        if one is not UNSET and (one is not None or key == "equals")
    }


def _find_faults(value: Any) -> Iterator[Fault]:
    if not isinstance(value, Mapping):
        yield (), "is not a condition", f"give it a name and one of {', '.join(_KINDS)}"
        return
    name = value.get("name")
    if not _is_word(name):
        yield ("name",), "a condition has a name of a-z, 0-9 and _", "add name:"
    if name == ACTIONS_OVER:
        yield ("name",), f"{ACTIONS_OVER} is the engine's own condition", "give it another"
    kinds = [kind for kind in _KINDS if kind in value]
    if len(kinds) != 1:
        what = f"has {' and '.join(kinds)}" if kinds else "says nothing that is to hold"
        yield (), what, f"give exactly one of {', '.join(_KINDS)}"
        return
    kind = kinds[0]
    for key in sorted(map(str, value.keys() - _KINDS[kind] - {"name", kind})):
        yield (key,), f"is nothing that {kind}: has", "remove it"
    if "at_least" in value and not _is_count(value["at_least"], 0 if kind == "items" else 1):
        yield ("at_least",), "is no whole number that can be reached", "write for example 1"
    yield from _find_kind_faults(kind, value)


def _find_kind_faults(kind: str, value: Mapping[str, Any]) -> Iterator[Fault]:
    given = value[kind]
    if kind == "items":
        if given not in _ITEM_STATES:
            what = f"{given!r} is no state that items can be waited for"
            yield (kind,), what, f"write {' or '.join(_ITEM_STATES)}"
        return
    if not isinstance(given, str) or not given.strip():
        yield (kind,), "is no text", "write it out"
        return
    if kind == "rows":
        yield from _pointer_faults(kind, given)
        if ("equals" in value) == ("at_least" in value):
            yield (), "says not what the value is to be", "give equals: or at_least:"
    if kind == "action" and ("answer" in value) != ("equals" in value):
        yield (), "an answer is compared with a value", "give answer: and equals:, or neither"
    if kind == "action" and "answer" in value:
        yield from _pointer_faults("answer", value["answer"])
    if "equals" in value:
        try:
            normalize_json(value["equals"])
        except ValueError as error:
            yield ("equals",), f"has no JSON form: {error}", "use text, numbers, true or false"


def _pointer_faults(key: str, pointer: Any) -> Iterator[Fault]:
    if not isinstance(pointer, str) or not pointer.startswith("/"):
        yield (key,), f"{pointer!r} is not a JSON Pointer", f"write /{pointer}"


def _build(value: Mapping[str, Any]) -> DoneCondition:
    name = value["name"]
    equals = normalize_json(value["equals"]) if "equals" in value else UNSET
    if "items" in value:
        return ItemsClosed(name, value.get("at_least", 1), value["items"])
    if "rows" in value:
        return RowValue(name, value["rows"], equals, value.get("at_least"))
    if "action" in value:
        return ActionDone(
            name, value["action"], value.get("at_least", 1), value.get("answer"), equals
        )
    return PersonApproves(name, value["person"])


def _is_word(value: Any) -> bool:
    return (
        isinstance(value, str)
        and 0 < len(value) <= _MAX_NAME
        and value.isascii()
        and value.replace("_", "a").isalnum()
        and value == value.lower()
    )


def _is_count(value: Any, least: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= least

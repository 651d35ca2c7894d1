"""Done conditions: named facts that must hold before a task may end, and how each is found out.

They are written in the `done.yaml` of an agent's folder, or come with the event that gives the
task, or its first turn proposes them; nothing that an agent proposes later reaches them. What holds
is a pure function of facts that the engine reads from what is durable:

    conditions:
      - {name: all_items, items: closed, at_least: 3}
      - {name: none_left_out, items: done}
      - {name: total, rows: /total, equals: 12}
      - {name: report, action: report.send, at_least: 1, answer: /sent, equals: true}
      - {name: written, artefacts: report.write, min_size: 500, schema: {type: string}}
      - {name: read, person: reads the report}
"""

from __future__ import annotations

from collections.abc import Container, Iterator, Mapping, Sequence
from typing import Any, TypeAlias

from msgspec import UNSET, Struct, UnsetType

from vedette.domain.argument_schema import walk_schemas
from vedette.domain.artefact import MIN_TEXT_CHARS
from vedette.domain.base.canonical import normalize_json
from vedette.domain.base.errors import Permanent
from vedette.domain.schema_check import find_schema_problems

# Of all conditions of a task together: how many, and the schemas in them, each within another.
MAX_CONDITIONS, MAX_SCHEMAS = 50, 200
_MAX_NAME = 60
# What becomes an artefact has more bytes than `artefact.MIN_TEXT_CHARS`, of 4 a character at most.
MIN_ARTEFACT = MIN_TEXT_CHARS // 4
# By the key that says what is looked at: what else such a condition may have.
_KINDS: Mapping[str, frozenset[str]] = {
    "items": frozenset({"at_least"}),
    "rows": frozenset({"at_least", "equals"}),
    "action": frozenset({"at_least", "answer", "equals"}),
    "artefacts": frozenset({"at_least", "schema", "min_size", "max_size"}),
    "person": frozenset(),
}
_ITEM_STATES = ("closed", "done")
# A finish is held for a person by this reason (`vedette.domain.decision.ask_person`).
PERSON_ASKED = "task.person"
# The engine's own rules: a condition does not hold, or there is none.
UNMET_RULE, UNKNOWN_RULE = "task.unmet", "task.unknown"
# Not written by anybody: no other action of the run is open when its finish is decided.
ACTIONS_OVER = "actions_over"
# … and a turn was told of every event that joined the run.
SESSION_READ = "session_read"
# Nor this: the turn that proposed it was told all that people have said of the task.
WORDS_TOLD = "words_told"
_ENGINES = (ACTIONS_OVER, SESSION_READ, WORDS_TOLD)
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


class ArtefactsMade(Struct, frozen=True):
    """The run's own actions made `at_least` so many artefacts of a kind that fit.

    Artefacts are made of outcomes above `artefact.MAX_OUTCOME_BYTES` alone.

    `of` is the tool that made them, or their media type (which has a slash). Sizes are in
    characters. Content fits a `schema` (JSON Schema): of `application/json` what it says, of all
    else the text.
    """

    name: str
    of: str
    at_least: int = 1
    schema: Mapping[str, Any] | None = None
    min_size: int = 0
    max_size: int | None = None

    def covers(self, tool: str, type: str) -> bool:
        """Say whether an artefact of a type, made by a tool, is of the kind."""
        return self.of == (type if "/" in self.of else tool)


class PersonApproves(Struct, frozen=True):
    """A person approves the finish, which is held for that; `asks` is what they are asked."""

    name: str
    asks: str


DoneCondition: TypeAlias = ItemsClosed | RowValue | ActionDone | ArtefactsMade | PersonApproves
# Of a task for which nobody wrote any: that it is done is for a person to say.
NO_CONDITIONS: tuple[DoneCondition, ...] = (
    PersonApproves("approved", "nobody wrote when this task is done"),
)


class ArtefactFact(Struct, frozen=True):
    """What is known of one artefact of a run: the tool that made it, its type, its size in
    characters, whether its content is there, and which conditions' schemas that does not fit.
    """

    tool: str
    type: str
    size: int
    is_erased: bool = False
    misfits: frozenset[str] = frozenset()


class TaskFacts(Struct, frozen=True):
    """The facts that done conditions are evaluated on: items by id, the row, what was done.

    `done` are the run's done actions, oldest first, without those that were undone: tool, and what
    it answered. `artefacts` are what these made.
    """

    items: Mapping[str, Mapping[str, Any]]
    row: Mapping[str, Any]
    done: Sequence[tuple[str, Mapping[str, Any]]]
    artefacts: Sequence[ArtefactFact] = ()


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


def list_unmet(state: Mapping[str, Any]) -> list[str]:
    """Return why a task may not end, by a question's `task`: rules, with the unmet condition."""
    conditions = state["conditions"]
    unmet = [f"{UNMET_RULE}:{one['name']}" for one in conditions if one["held"] is not True]
    return unmet if unmet or conditions or state["person"] else [UNKNOWN_RULE]


def evaluate(conditions: Sequence[DoneCondition], facts: TaskFacts) -> list[ConditionState]:
    """Return what facts say of each condition; of a person's that it is still to be asked."""
    return [_evaluate_one(condition, facts) for condition in conditions]


def is_evidence(condition: DoneCondition) -> bool:
    """Say whether a condition is on what was done or is recorded, not on what its agent says of its
    own items.
    """
    return isinstance(condition, ActionDone | ArtefactsMade | RowValue)


def asks_person(conditions: Sequence[DoneCondition]) -> bool:
    """Say whether one of the conditions is that a person approves."""
    return any(isinstance(condition, PersonApproves) for condition in conditions)


def _evaluate_one(condition: DoneCondition, facts: TaskFacts) -> ConditionState:
    match condition:
        case ItemsClosed(name, at_least, state):
            states = [item["state"] for item in facts.items.values()]
            count = sum(one == "done" or (state == "closed" and one != "open") for one in states)
            why = f"{count} of {len(states)} items are {state}"
            if count < at_least:
                why += f", at least {at_least} are needed"
            return ConditionState(name, count == len(states) and count >= at_least, why)
        case RowValue(name, pointer, equals, at_least):
            found = _look_up(facts.row, pointer)
            if found is UNSET:
                return ConditionState(name, False, f"the row has no {pointer}")
            held = _fits(found, equals, at_least)
            return ConditionState(name, held, f"{pointer} {'is' if held else 'is not'} as wanted")
        case ActionDone(name, tool, at_least, answer, equals):
            counted = sum(
                done == tool and (answer is None or _fits(_look_up(data, answer), equals, None))
                for done, data in facts.done
            )
            why = f"{tool} was done {counted} of {at_least} times"
            return ConditionState(
                name, counted >= at_least, why if answer is None else f"{why} with that answer"
            )
        case ArtefactsMade():
            return _evaluate_artefacts(condition, facts.artefacts)
        case PersonApproves(name, asks):
            return ConditionState(name, False, f"a person is asked when the rest holds: {asks}")


def _evaluate_artefacts(
    condition: ArtefactsMade, artefacts: Sequence[ArtefactFact]
) -> ConditionState:
    """Return what is found of artefacts; the state counts those that do not count, and why."""
    counts = dict.fromkeys(("fit", "of another size", "against the schema", "erased"), 0)
    for one in artefacts:
        if not condition.covers(one.tool, one.type):
            continue
        most = one.size if condition.max_size is None else condition.max_size
        if one.is_erased:
            counts["erased"] += 1
        elif not condition.min_size <= one.size <= most:
            counts["of another size"] += 1
        else:
            counts["against the schema" if condition.name in one.misfits else "fit"] += 1
    fit = counts.pop("fit")
    why = [f"{fit} of {condition.at_least} artefacts of {condition.of} are there"]
    why += [f"{count} {what} not counted" for what, count in counts.items() if count]
    return ConditionState(condition.name, fit >= condition.at_least, "; ".join(why))


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


def read_conditions(
    value: Any, beside: Sequence[DoneCondition] = ()
) -> tuple[tuple[DoneCondition, ...], list[Fault]]:
    """Return the conditions that are written in a list, or none and everything wrong with it.

    `beside` are those that the task has already: the limits are of all together.
    """
    if not isinstance(value, list) or not value:
        return (), [((), "is not a list of conditions", "begin with - name: …")]
    if (many := len(value) + len(beside)) > MAX_CONDITIONS:
        what = f"has {many} conditions" + (", with those that the task has" if beside else "")
        return (), [((), what, f"write {MAX_CONDITIONS} at most")]
    # Before any is looked at: to hold one to the draft's own schema takes a millisecond.
    written = [one.get("schema") for one in value if isinstance(one, Mapping)]
    known = [one.schema for one in beside if isinstance(one, ArtefactsMade)]
    if (many := sum(map(_count_schemas, (*written, *known)))) > MAX_SCHEMAS:
        what = f"has {many} JSON Schemas, one within another, of all conditions together"
        return (), [((), what, f"write {MAX_SCHEMAS} at most")]
    faults: list[Fault] = []
    found: list[DoneCondition] = []
    for at, one in enumerate(value):
        wrong = [((at, *inside), what, mend) for inside, what, mend in _find_written_faults(one)]
        faults += wrong
        if wrong:
            continue
        condition = _build(one)
        if any(other.name == condition.name for other in found):
            what = f"two conditions are named {condition.name!r}"
            faults.append(((at, "name"), what, "give each a name of its own"))
        found.append(condition)
    return ((), faults) if faults else (tuple(found), [])


def load_conditions(recorded: Any) -> tuple[DoneCondition, ...]:
    """Return conditions of a record, which were checked before they were recorded.

    Limits of what is written do not apply: they may have been others then, and what is recorded
    holds. Raises Permanent if they cannot be read, as a task without them would end too early.
    """
    if not isinstance(recorded, list) or any(True for one in recorded for _ in _find_faults(one)):
        raise Permanent("the recorded done conditions of the task cannot be read")
    return tuple(_build(one) for one in recorded)


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
        case ArtefactsMade(name, of, at_least, schema, min_size, max_size):
            written = {"name": name, "artefacts": of, "at_least": at_least, "max_size": max_size}
            written |= {"schema": schema, "min_size": min_size or None}
        case PersonApproves(name, asks):
            return {"name": name, "person": asks}
    # A value that is waited for may be null; of all else null is left out.
    return {
        key: one
        for key, one in written.items()
        if one is not UNSET and (one is not None or key == "equals")
    }


def _find_written_faults(value: Any) -> Iterator[Fault]:
    faults = list(_find_faults(value))
    yield from faults
    if faults:
        return
    if (name := value["name"]) in _ENGINES:
        yield ("name",), f"{name} is the engine's own condition", "give it another"
    if value.get("max_size", MIN_ARTEFACT) < MIN_ARTEFACT:
        what = f"no artefact has fewer than {MIN_ARTEFACT} characters"
        yield ("max_size",), what, "wait for the action instead: action: and answer:"
    if "schema" in value:
        yield from _schema_faults(value["schema"])


def _find_faults(value: Any) -> Iterator[Fault]:
    """Yield what keeps a condition from being read, without what only a writer is held to."""
    if not isinstance(value, Mapping):
        yield (), "is not a condition", f"give it a name and one of {', '.join(_KINDS)}"
        return
    name = value.get("name")
    if not _is_word(name):
        yield ("name",), "a condition has a name of a-z, 0-9 and _", "add name:"
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
    if kind == "artefacts":
        yield from _artefact_faults(value)
    if kind == "action" and ("answer" in value) != ("equals" in value):
        yield (), "an answer is compared with a value", "give answer: and equals:, or neither"
    if kind == "action" and "answer" in value:
        yield from _pointer_faults("answer", value["answer"])
    if "equals" in value:
        try:
            normalize_json(value["equals"])
        except ValueError as error:
            yield ("equals",), f"has no JSON form: {error}", "use text, numbers, true or false"


def _artefact_faults(value: Mapping[str, Any]) -> Iterator[Fault]:
    sizes = {key: value[key] for key in ("min_size", "max_size") if key in value}
    for key, size in sizes.items():
        if not _is_count(size, 1):
            yield (key,), "is no number of characters", "write for example 500"
            return
    if len(sizes) == 2 and sizes["min_size"] > sizes["max_size"]:
        yield ("max_size",), "is below min_size", "write the larger one here"
    if not isinstance(value.get("schema", {}), Mapping):
        yield ("schema",), "is no JSON Schema", "write for example {type: object}"


def _schema_faults(schema: Mapping[str, Any]) -> Iterator[Fault]:
    problems = find_schema_problems(schema, of_arguments=False)
    yield from ((("schema", *one.path), one.what, one.mend) for one in problems)
    if not problems and normalize_json(schema) != schema:
        # An event keeps fractions as texts, and a schema of those is another.
        yield ("schema",), "has a number with a fraction", "use whole numbers"


def _count_schemas(schema: Any) -> int:
    try:
        return 0 if schema is None else sum(1 for _ in walk_schemas(schema, ()))
    except RecursionError:
        return MAX_SCHEMAS + 1


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
    if "artefacts" in value:
        schema = normalize_json(value["schema"]) if "schema" in value else None
        return ArtefactsMade(
            name, value["artefacts"], value.get("at_least", 1), schema,
            value.get("min_size", 0), value.get("max_size"),
        )  # fmt: skip
    return PersonApproves(name, value["person"])


def find_unreachable(
    condition: DoneCondition, tools: Container[str], *, has_rows: bool, has_artefacts: bool
) -> Fault | None:
    """Return why an agent with these tools can never meet a condition; None if it may."""
    if isinstance(condition, ActionDone) and condition.tool not in tools:
        return ("action",), f"{condition.tool!r} is not a tool of this agent", "name one of its own"
    if isinstance(condition, RowValue) and not has_rows:
        return ("rows",), "the agent keeps no rows", "add collection: to agent.yaml"
    if isinstance(condition, ArtefactsMade):
        if not has_artefacts:
            return ("artefacts",), "the agent has no artefacts", "add artefacts: true to agent.yaml"
        if "/" not in condition.of and condition.of not in tools:
            what = f"{condition.of!r} is neither a tool of this agent nor a media type"
            return ("artefacts",), what, "name one of its own, or write for example text/plain"
    return None


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

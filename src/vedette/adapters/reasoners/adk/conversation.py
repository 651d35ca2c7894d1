"""What a model is told in one turn: its context given back as it was, or another one opened.

A context is a first message, the opening, and then the model's answers to the letter, each with
what came of its calls. Nothing of it is ever changed: what changed meanwhile is told in the next
message. What the engine told is not kept, it is told again out of what may be told today, and a
digest says whether that is the same. Where it is not, a context is begun anew: its opening tells
all earlier turns, out of the ledger, in lines.

A task's contexts end before they are full: a turn asks for a hand-off, and the next opening tells
that. What the engine told of the task and of the hand-off stands in the turns that were told it
(`briefed`), so no turn before a context is needed to tell it again.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import orjson
from msgspec import Struct
from msgspec.structs import replace

from vedette.adapters.reasoners.adk.briefing import briefing_text, fence_json, shown_memory
from vedette.adapters.reasoners.adk.wire import FOREIGN_SIGNATURE, Speaker
from vedette.domain.base.canonical import normalized_json, sha256_hex, short_id
from vedette.domain.memory import Briefing
from vedette.domain.model_turn import HAND_OFF, ModelTurn, read_model_turn
from vedette.domain.readers import unpack_row

if TYPE_CHECKING:
    from google.genai import types

    from vedette.adapters.reasoners.adk.tools import DeclaredTool

# Why a context is opened. `REFUSED` is done once in a run.
FIRST, UNRECORDED, REFUSED, MODEL = "first", "unrecorded", "refused", "model"
WITHDRAWN, CHANGED, OUTCOME, WINDOW = "withdrawn", "changed", "outcome", "window"

# Of what a task's request may have, so much ends its context. A hand-off and the message that asks
# for it are a few thousand characters, and what one turn adds is mostly less than a fifth: beyond,
# models read worse than they could, and a context would be cut by its next outcome.
HAND_OFF_SHARE = 0.7
# Of new text, so many bytes are counted as a token: no tokenizer of today has fewer on JSON.
_BYTES_A_TOKEN = 3
_ASK_FOR_HAND_OFF = (
    "This context ends here. Call task_hand_off, and nothing else, with what the next one needs."
)
_GO_ON = "No tool was called, so nothing was done. The task goes on."

_MEMORY, _ROW, _TASK = "/memory/", "/row", "/task"
# Of a turn's outcome, where it is told in a line.
_IN_LINE = ("status", "ref")

# Places and digests of what was shown, in the order in which it was.
Shown = tuple[tuple[str, str], ...]


class Prompt(Struct, frozen=True):
    """What a model is asked: contents, their size as JSON in bytes, and what is new of them.

    `opens`, `told`, `shown`, `outcomes` and `asks` are those of the `ModelTurn` that it becomes.
    """

    contents: list[types.Content]
    size: int
    opens: str
    told: str
    shown: Shown
    outcomes: str
    asks: str = ""

    @property
    def gives_back(self) -> bool:
        """Say whether there are answers of a model in it."""
        return len(self.contents) > 1


class _Run(Struct, frozen=True):
    """A run as it may be told today, to a speaker, in a request with `room` bytes.

    `records` are those of its turns (None: there is none), `results` what came of their calls.
    `values` is what may be told, by place and digest; the first `withdrawn` turns, or some of them,
    had before them a memory that is not among it.
    """

    briefing: Briefing
    tools: Mapping[str, DeclaredTool]
    room: int
    records: Sequence[ModelTurn | None]
    results: Sequence[list[dict[str, Any]]]
    values: Mapping[tuple[str, str], Any]
    withdrawn: int


def compose_prompt(
    briefing: Briefing,
    tools: Mapping[str, DeclaredTool],
    speaker: Speaker,
    room: int,
    window: int | None = None,
) -> Prompt:
    """Return what to ask for a briefing's turn; of at most `room` bytes, if its data are no more.

    `tools` are the agent's by their declared names; `window` are the tokens that the model reads at
    most, where that is known, for the context of a task.
    """
    records = [read_model_turn(turn) for turn in briefing.turns]
    values = _collect_values(briefing)
    run = _Run(
        briefing, tools, room, records, _outcomes(briefing.turns), values,
        _count_withdrawn(briefing, records, values),
    )  # fmt: skip
    context = _last_context(records)
    opens = _find_break(run, context, speaker)
    if not opens:
        prompt = _go_on(run, context, speaker)
        if briefing.task and isinstance(prompt, Prompt) and _is_full(run, context, prompt, window):
            prompt = _go_on(run, context, speaker, HAND_OFF)
        if isinstance(prompt, Prompt) and prompt.size <= room:
            return prompt
        opens = WINDOW if isinstance(prompt, Prompt) else prompt
    shown = _list_shown(briefing)
    text = _tell_opening(run, len(records), shown, briefing.task, briefing.hand_off)
    message = _user_text(text)
    return Prompt([message], _size(message), opens, _digest_text(text), shown, "")


def _is_full(run: _Run, context: Sequence[ModelTurn], prompt: Prompt, window: int | None) -> bool:
    """Say whether a task's context is to end: by its bytes, or by the tokens of the model.

    These are the last turn's as they were counted, and what is new. One that is mostly its opening
    has at least half of what that leaves.
    """
    opening = _size(prompt.contents[0])
    if prompt.size >= max(HAND_OFF_SHARE * run.room, (opening + run.room) / 2):
        return True
    counted = run.briefing.turns[-1].get("tokens")
    if window is None or counted is None or len(context) < 2:
        return False
    new = len(context[-1].content.encode()) + _size(prompt.contents[-1])
    return bool(counted + new // _BYTES_A_TOKEN >= HAND_OFF_SHARE * window)


def has_begun_anew(briefing: Briefing) -> bool:
    """Say whether a context of the run was begun anew because a request was refused."""
    records = map(read_model_turn, briefing.turns)
    return any(one is not None and one.opens == REFUSED for one in records)


# --- may it go on? ----------------------------------------------------------------------------


def _pair(place: str, value: Any) -> tuple[str, str]:
    return place, sha256_hex(normalized_json(value))


def _list_shown(briefing: Briefing) -> Shown:
    """Return what may change of a briefing within its run."""
    return (
        _pair("/charter", dict(briefing.charter)),
        _pair("/registry", dict(briefing.registry)),
        _pair(_ROW, dict(briefing.row)),
        *(_pair(_MEMORY + one.cite(), shown_memory(one)) for one in briefing.memories),
    )


def _collect_values(briefing: Briefing) -> dict[tuple[str, str], Any]:
    """Return what may be told today: of the row also as its run has read or written it."""
    shown = _list_shown(briefing)
    values: list[Any] = [briefing.charter, briefing.registry, briefing.row, *briefing.memories]
    found = dict(zip(shown, values, strict=True))
    return found | {_pair(_ROW, row): row for row in ({}, *_own_rows(briefing.turns))}


def _own_rows(turns: Sequence[Mapping[str, Any]]) -> Iterator[dict[str, Any]]:
    """Yield what a run's tools answered of their row: as it became, as it had been.

    Of a task also what they had made of it before its last context.
    """
    for turn in turns:
        if "row" in turn:
            yield unpack_row(turn["row"])[0]
        for answer in turn["answers"]:
            data = answer.get("data", {})
            rows = data.get("rows")
            for row in [*(rows if isinstance(rows, list) else ()), data.get("was")]:
                if isinstance(row, dict):
                    yield unpack_row(row)[0]


def _count_withdrawn(
    briefing: Briefing,
    records: Sequence[ModelTurn | None],
    values: Mapping[tuple[str, str], Any],
) -> int:
    """Return how many turns, from the first, had a memory before them that may not be told today.

    What a model said then may be made of it, and what it said later, of that.
    """
    places, found = {place for place, _ in values}, 0
    for at, (turn, record) in enumerate(zip(briefing.turns, records, strict=True)):
        seen = () if record is None else record.shown
        withdrawn = any(pair[0].startswith(_MEMORY) and pair not in values for pair in seen)
        if withdrawn or any(_MEMORY + cite not in places for cite in turn.get("memories", ())):
            found = at + 1
    return found


def _last_context(records: Sequence[ModelTurn | None]) -> list[ModelTurn]:
    """Return the records of a run's last context; none if a turn of it has none."""
    found: list[ModelTurn] = []
    for record in reversed(records):
        if record is None:
            break
        found.append(record)
        if record.opens:
            return found[::-1]
    return []


def _find_break(run: _Run, context: Sequence[ModelTurn], speaker: Speaker) -> str:
    """Say why a context cannot go on; "" if nothing that is known before its replay is in the way.

    What the model was shown and may not be shown again cannot be taken out of a message; what is
    new, or what its own run has written, can be told in the next one.
    """
    briefing = run.briefing
    if not briefing.turns:
        return FIRST
    if briefing.anew:
        return REFUSED
    if briefing.context_ended:
        return HAND_OFF
    if not context or not (briefing.task or all(run.results[-len(context) :])):
        return UNRECORDED
    if speaker.is_claude and any(map(speaker.is_foreign, context)):
        # It takes no call of its own loop without the thinking before it, and nobody else's.
        return MODEL
    if run.withdrawn > len(run.records) - len(context):
        return WITHDRAWN
    if any(pair not in run.values for record in context for pair in record.shown):
        return CHANGED
    row = _pair(_ROW, dict(briefing.row))
    return "" if row in context[-1].shown or _is_own_row(briefing) else CHANGED


def _is_own_row(briefing: Briefing) -> bool:
    """Say whether the row stands as the run's last turn has written it."""
    return any(row == briefing.row for row in _own_rows(briefing.turns[-1:]))


# --- the same context -------------------------------------------------------------------------


def _go_on(
    run: _Run, context: Sequence[ModelTurn], speaker: Speaker, asks: str = ""
) -> Prompt | str:
    """Return the context with the next message; why not, if it is not what it was.

    `asks` is what that message asks for, beside.
    """
    from google.genai import types

    before = len(run.records) - len(context)
    tasks = _told_tasks(run.briefing, before)
    briefed = run.briefing.turns[before].get("briefed", {})
    text = _tell_opening(run, before, context[0].shown, tasks[0], briefed.get("hand_off", {}))
    if _digest_text(text) != context[0].told:
        return CHANGED
    message, told, shown = _user_text(text), "", context[0].shown
    contents, size = [message], _size(message)
    outcomes = context[0].outcomes
    for number, (record, results) in enumerate(zip(context, run.results[before:], strict=True)):
        if record.outcomes != outcomes:
            return OUTCOME
        try:
            said = types.Content.model_validate_json(record.content)
        except ValueError:  # another version of the provider's client wrote it
            return UNRECORDED
        if speaker.is_foreign(record):
            said = _without_signatures(said, number, run.briefing.run, speaker)
        if not said.parts:
            return UNRECORDED  # no provider takes back an answer with nothing in it
        later = next(iter(context[number + 1 :]), None)
        shown = _add_shown(record.shown, run.briefing) if later is None else later.shown
        changes = _tell_changes(run, record.shown, shown, tasks[number : number + 2])
        asked = asks if later is None else later.asks
        told = _digest_text(changes + asked)
        if later is not None and later.told != told:
            return CHANGED
        message = _answer_calls(said, results, changes, asked)
        outcomes = _digest_outcomes(results)
        contents += [said, message]
        size += len(record.content.encode()) + _size(message)
    return Prompt(contents, size, "", told, shown, outcomes, asks)


def _told_tasks(briefing: Briefing, before: int) -> list[Mapping[str, Any]]:
    """Return the task as each turn of a context was told it, and as the next one is."""
    told: list[Mapping[str, Any]] = []
    for turn in briefing.turns[before:]:
        changed = turn.get("briefed", {}).get("task", {})
        told.append({**(told[-1] if told else {}), **changed})
    return [*told, briefing.task]


def _size(message: types.Content) -> int:
    return len(message.model_dump_json(exclude_none=True).encode())


def _digest_text(text: str) -> str:
    return sha256_hex(text.encode()) if text else ""


def _digest_outcomes(results: Sequence[dict[str, Any]]) -> str:
    return sha256_hex(normalized_json(results))


def _user_text(text: str) -> types.Content:
    from google.genai import types

    return types.Content(role="user", parts=[types.Part(text=text)])


def _answer_calls(
    said: types.Content, results: Sequence[dict[str, Any]], changes: str, asked: str
) -> types.Content:
    """Return the message that answers all calls of one answer, in their order, by their ids.

    What is told or asked for beside stands in the last answer: no provider takes other parts
    between these. In a task an answer without a call is answered, too.
    """
    from google.genai import types

    calls = [part.function_call for part in said.parts or [] if part.function_call is not None]
    beside: dict[str, Any] = {"changed": orjson.loads(changes)} if changes else {}
    if asked:
        beside["asked"] = _ASK_FOR_HAND_OFF
    if not calls:
        return _user_text("\n".join([_GO_ON, *([fence_json(beside)] if beside else [])]))
    last = len(calls) - 1
    parts = []
    for at, (call, result) in enumerate(zip(calls, results, strict=True)):
        response = {**result, **beside} if at == last else result
        answer = types.FunctionResponse(id=call.id, name=call.name, response=response)
        parts.append(types.Part(function_response=answer))
    return types.Content(role="user", parts=parts)


def _add_shown(before: Shown, briefing: Briefing) -> Shown:
    """Return what the model will have been shown: what it was, and what is new of a briefing."""
    charter, registry, row, *memories = _list_shown(briefing)
    known = [pair for pair in before if pair[0].startswith(_MEMORY)]
    return (charter, registry, row, *known, *(pair for pair in memories if pair not in known))


def _tell_changes(
    run: _Run, before: Shown, shown: Shown, tasks: Sequence[Mapping[str, Any]]
) -> str:
    """Return, as JSON, what is shown now and was not before; "" if nothing.

    `tasks` are the task as it was told last, and as it is.
    """
    told: dict[str, Any] = {}
    memories = []
    for pair in shown:
        if pair in before:
            continue
        if pair[0] == _ROW:
            told[_ROW] = dict(run.values[pair])
        elif pair[0].startswith(_MEMORY):
            memories.append(shown_memory(run.values[pair]))
    if memories:
        told["/memory"] = memories
    if tasks[0] != tasks[1]:
        told[_TASK] = {
            name: _new_of(tasks[0].get(name), value)
            for name, value in tasks[1].items()
            if value != tasks[0].get(name)
        }
    return fence_json(told) if told else ""


def _new_of(before: Any, value: Any) -> Any:
    """Return of a list what is new in it, of anything else all."""
    is_list = isinstance(before, list | tuple) and isinstance(value, list | tuple)
    return [one for one in value if one not in before] if is_list else value


def _without_signatures(
    said: types.Content, number: int, run: str, speaker: Speaker
) -> types.Content:
    """Return another model's answer as any model takes it: calls and text.

    Names and ids have what every provider takes. An id is made of the call's place, since a model
    may give one twice, or none.
    """
    from google.genai import types

    parts: list[types.Part] = []
    signature = FOREIGN_SIGNATURE if speaker.is_gemini else None
    for part in said.parts or []:
        call = part.function_call
        if call is not None:
            clean = {
                "id": short_id("call", run, number, len(parts)),
                "name": _clean_name(call.name or ""),
            }
            call = call.model_copy(update=clean)
            parts.append(types.Part(function_call=call, thought_signature=signature))
            signature = None  # of calls made together the first is signed
        elif part.text and not part.thought:
            parts.append(types.Part(text=part.text))
    return types.Content(role="model", parts=parts)


def _clean_name(name: str) -> str:
    """Return a made-up tool's name, cut to what every provider takes."""
    return re.sub(r"[^A-Za-z0-9_]", "_", name)[:64] or "unnamed"


# --- an opening -------------------------------------------------------------------------------


def _tell_opening(
    run: _Run,
    turns: int,
    shown: Shown,
    task: Mapping[str, Any],
    hand_off: Mapping[str, Any],
) -> str:
    """Return a context's first message, with the turns before it; those that lie far back as lines.

    So that the context has room to grow, they fill half of what rules and data leave. A task's
    opening tells its hand-off in their place.
    """
    cited = [pair for pair in shown if pair[0].startswith(_MEMORY)]
    row = run.values[_ROW, dict(shown)[_ROW]]
    memories = tuple(run.values[pair] for pair in cited)
    briefing = replace(run.briefing, memories=memories, row=row, task=task, hand_off=hand_off)
    if task:
        return briefing_text(briefing)
    past = [_retell(run, at, in_line=False) for at in range(turns)]
    lines = [_retell(run, at, in_line=True) for at in range(turns)]
    in_lines = min(run.withdrawn, turns)
    told = [*lines[:in_lines], *past[in_lines:]]
    if told:
        room = (run.room - len(briefing_text(briefing).encode())) // 2
        sizes = [len(fence_json(one).encode()) + 1 for one in told]
        filled = sum(sizes)
        while filled > room and in_lines < turns:
            filled += len(fence_json(lines[in_lines]).encode()) + 1 - sizes[in_lines]
            told[in_lines] = lines[in_lines]
            in_lines += 1
    return briefing_text(briefing, told)


def _retell(run: _Run, at: int, *, in_line: bool) -> dict[str, Any]:
    from vedette.adapters.reasoners.adk.tools import write_args

    turn, calls = run.briefing.turns[at], []
    for proposal, result in zip(turn["proposals"], run.results[at], strict=True):
        tool = run.tools.get(proposal["tool"])
        name = tool.name if tool else _clean_name(proposal["tool"])
        if in_line:
            calls.append({"tool": name, **{key: result[key] for key in _IN_LINE if key in result}})
        else:
            given = proposal["args"]
            args = write_args(given, {}) if tool is None else tool.write(given)
            calls.append({"tool": name, "args": args, **result})
    told: dict[str, Any] = {"calls": calls}
    text = "" if in_line or not turn["proposals"] else turn["proposals"][0]["why"]
    return {"text": text, **told} if text else told


# --- what came of calls -----------------------------------------------------------------------


def _outcomes(turns: Sequence[Mapping[str, Any]]) -> list[list[dict[str, Any]]]:
    """Return what came of each call of each turn, in order; done ones with their reference.

    A task's answers say their number, as the turns before are not there to be counted.
    """
    found: list[list[dict[str, Any]]] = []
    done, certain = 0, True
    for turn in turns:
        answers = {answer["ordinal"]: answer for answer in turn["answers"]}
        results = []
        for ordinal in range(len(turn["proposals"])):
            result = _outcome(answers.get(ordinal))
            number = answers.get(ordinal, {}).get("outcome")
            if result["status"] == "done" and number is not None:
                result["ref"] = f"ref:/outcome/{number}"
            elif result["status"] == "done" and certain:
                result["ref"] = f"ref:/outcome/{done}"
                done += 1
            # An answer that is not told may still have a number: what follows cannot be counted.
            certain = certain and result["status"] != "failed"
            results.append(result)
        found.append(results)
    return found


def _outcome(answer: Mapping[str, Any] | None) -> dict[str, Any]:
    if answer is None:
        return {"status": "refused", "why": "no such tool, argument or reference"}
    return {key: answer[key] for key in ("status", "data", "unmet") if key in answer}

"""What a model is told in one turn: its context given back as it was, or another one opened.

A context is a first message, the opening, and then the model's answers to the letter, each with
what came of its calls. Nothing of it is ever changed: what changed meanwhile is told in the next
message. Where that will not do a context is begun anew: its opening tells all earlier turns, out of
the ledger, in lines.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import orjson
from msgspec import Struct

from vedette.adapters.reasoners.adk.briefing import briefing_text, fence_json, shown_memory
from vedette.adapters.reasoners.adk.wire import FOREIGN_SIGNATURE, Speaker
from vedette.domain.base.canonical import normalized_json, sha256_hex
from vedette.domain.memory import Briefing
from vedette.domain.model_turn import ModelTurn, read_model_turn
from vedette.domain.readers import unpack_row

if TYPE_CHECKING:
    from google.genai import types

    from vedette.adapters.reasoners.adk.tools import DeclaredTool

# Why a context is opened. `SIGNATURES` is done once in a run.
FIRST, UNRECORDED, SIGNATURES, MODEL = "first", "unrecorded", "signatures", "model"
WITHDRAWN, CHANGED, OUTCOME, WINDOW = "withdrawn", "changed", "outcome", "window"

_MEMORY, _ROW = "/memory/", "/row"
# Of a turn's outcome, where it is told in a line.
_IN_LINE = ("status", "ref")


class Prompt(Struct, frozen=True):
    """What a model is asked: contents, their size as JSON in bytes, and what is new of them.

    `opens`, `told`, `shown` and `outcomes` are those of the `ModelTurn` that it becomes.
    """

    contents: list[types.Content]
    size: int
    opens: str
    told: str
    shown: tuple[tuple[str, str], ...]
    outcomes: str

    @property
    def gives_back(self) -> bool:
        """Say whether there are answers of a model in it."""
        return len(self.contents) > 1


class _Context(Struct, frozen=True):
    """The recorded turns since a context was opened, with what came of their calls."""

    records: Sequence[ModelTurn]
    results: Sequence[list[dict[str, Any]]]


def compose_prompt(
    briefing: Briefing, tools: Mapping[str, DeclaredTool], speaker: Speaker, room: int
) -> Prompt:
    """Return what to ask for a briefing's turn; of at most `room` bytes, if its data are no more.

    `tools` are the agent's by their declared names.
    """
    shown = _digest_shown(briefing)
    records = [read_model_turn(turn) for turn in briefing.turns]
    results = _outcomes(briefing.turns)
    context = _last_context(records, results)
    opens = _find_break(briefing, context, shown, speaker)
    if context is not None and not opens:
        prompt = _go_on(briefing, context, shown, speaker)
        if prompt is not None and prompt.size <= room:
            return prompt
        opens = OUTCOME if prompt is None else WINDOW
    return _open_context(briefing, tools, records, results, shown, opens, room)


def has_begun_anew(briefing: Briefing) -> bool:
    """Say whether a context of the run was begun anew because signatures were refused."""
    records = map(read_model_turn, briefing.turns)
    return any(one is not None and one.opens == SIGNATURES for one in records)


# --- may it go on? ----------------------------------------------------------------------------


def _digest_shown(briefing: Briefing) -> dict[str, str]:
    """Return digests of what may change of a briefing within its run, by place."""
    values: dict[str, Any] = {
        "/charter": dict(briefing.charter),
        "/registry": dict(briefing.registry),
        _ROW: dict(briefing.row),
    }
    for memory in briefing.memories:
        values[_MEMORY + memory.cite()] = shown_memory(memory)
    return {place: sha256_hex(normalized_json(value)) for place, value in values.items()}


def _last_context(
    records: Sequence[ModelTurn | None], results: Sequence[list[dict[str, Any]]]
) -> _Context | None:
    """Return the run's last context; None if there is none, or a turn of it has no record."""
    found: list[ModelTurn] = []
    for record in reversed(records):
        if record is None:
            return None
        found.append(record)
        if record.opens:
            return _Context(found[::-1], results[-len(found) :])
    return None


def _find_break(
    briefing: Briefing, context: _Context | None, shown: Mapping[str, str], speaker: Speaker
) -> str:
    """Say why a context cannot go on; "" if nothing that is known before its replay is in the way.

    What the model was shown and may not be shown again cannot be taken out of a message; what is
    new, or what its own run has written, can be told in the next one.
    """
    if not briefing.turns:
        return FIRST
    if briefing.anew:
        return SIGNATURES
    if context is None or not all(context.results):
        return UNRECORDED
    if speaker.is_claude and any(map(speaker.is_foreign, context.records)):
        # It takes no call of its own loop without the thinking before it, and nobody else's.
        return MODEL
    before = dict(context.records[-1].shown)
    gone = {place for place in before if before[place] != shown.get(place)}
    if any(place.startswith(_MEMORY) for place in gone):
        return WITHDRAWN
    if gone and not (gone == {_ROW} and _is_own_row(briefing)):
        return CHANGED
    return ""


def _is_own_row(briefing: Briefing) -> bool:
    """Say whether the row stands as the run's last turn has written it."""
    found = [answer.get("data", {}).get("rows") for answer in briefing.turns[-1]["answers"]]
    rows = [row for several in found if isinstance(several, list) for row in several]
    return any(isinstance(row, dict) and unpack_row(row)[0] == briefing.row for row in rows)


# --- the same context -------------------------------------------------------------------------


def _go_on(
    briefing: Briefing, context: _Context, shown: Mapping[str, str], speaker: Speaker
) -> Prompt | None:
    """Return the context with the next message; None if what came of a call is not as it was."""
    from google.genai import types

    records = context.records
    message, told = _user_text(records[0].told), ""
    contents, size = [message], _size(message)
    outcomes = records[0].outcomes
    for number, (record, results) in enumerate(zip(records, context.results, strict=True)):
        if record.outcomes != outcomes:
            return None
        said = types.Content.model_validate_json(record.content)
        if speaker.is_foreign(record):
            said = _without_signatures(said, number, speaker)
        later = records[number + 1 : number + 2]
        told = later[0].told if later else _tell_changes(briefing, record, shown)
        message, outcomes = _answer_calls(said, results, told), _digest_outcomes(results)
        contents += [said, message]
        size += len(record.content.encode()) + _size(message)
    return Prompt(contents, size, "", told, tuple(sorted(shown.items())), outcomes)


def _size(message: types.Content) -> int:
    return len(message.model_dump_json(exclude_none=True).encode())


def _digest_outcomes(results: Sequence[dict[str, Any]]) -> str:
    return sha256_hex(normalized_json(results))


def _user_text(text: str) -> types.Content:
    from google.genai import types

    return types.Content(role="user", parts=[types.Part(text=text)])


def _answer_calls(
    said: types.Content, results: Sequence[dict[str, Any]], told: str
) -> types.Content:
    """Return the message that answers all calls of one answer, in their order, by their ids.

    What is told beside stands in the last answer: no provider takes other parts between these.
    """
    from google.genai import types

    calls = [part.function_call for part in said.parts or [] if part.function_call is not None]
    last = len(calls) - 1
    parts = []
    for at, (call, result) in enumerate(zip(calls, results, strict=True)):
        response = {**result, "changed": orjson.loads(told)} if told and at == last else result
        answer = types.FunctionResponse(id=call.id, name=call.name, response=response)
        parts.append(types.Part(function_response=answer))
    return types.Content(role="user", parts=parts)


def _tell_changes(briefing: Briefing, record: ModelTurn, shown: Mapping[str, str]) -> str:
    """Return, as JSON, what the model was not shown by the turn of a record; "" if nothing."""
    before = dict(record.shown)
    new = {place for place, digest in shown.items() if before.get(place) != digest}
    told: dict[str, Any] = {}
    if _ROW in new:
        told[_ROW] = dict(briefing.row)
    memories = [shown_memory(one) for one in briefing.memories if _MEMORY + one.cite() in new]
    if memories:
        told["/memory"] = memories
    return fence_json(told) if told else ""


def _without_signatures(said: types.Content, number: int, speaker: Speaker) -> types.Content:
    """Return another model's answer as any model takes it: calls and text."""
    from google.genai import types

    parts: list[types.Part] = []
    signature = FOREIGN_SIGNATURE if speaker.is_gemini else None
    for part in said.parts or []:
        call = part.function_call
        if call is not None:
            # Some providers give a call no id, and others take none without.
            call = call.model_copy(update={"id": call.id or f"call_{number}_{len(parts)}"})
            parts.append(types.Part(function_call=call, thought_signature=signature))
            signature = None  # of calls made together the first is signed
        elif part.text and not part.thought:
            parts.append(types.Part(text=part.text))
    return types.Content(role="model", parts=parts)


# --- another context --------------------------------------------------------------------------


def _open_context(
    briefing: Briefing,
    tools: Mapping[str, DeclaredTool],
    records: Sequence[ModelTurn | None],
    results: Sequence[list[dict[str, Any]]],
    shown: Mapping[str, str],
    opens: str,
    room: int,
) -> Prompt:
    """Return a context's first message, with the turns before it; those that lie far back as lines.

    What a model said before something was withdrawn from it may be made of that: of these turns,
    too, only the lines are told. So that the context has room to grow, its turns fill half of it.
    """
    turns = briefing.turns
    last_withdrawn = [
        at for at, one in enumerate(records) if one is not None and one.opens == WITHDRAWN
    ]
    in_lines = len(turns) if opens == WITHDRAWN else max(last_withdrawn, default=0)
    while True:
        past = [
            _retell(turn, results[at], tools, in_line=at < in_lines)
            for at, turn in enumerate(turns)
        ]
        text = briefing_text(briefing, past)
        if in_lines == len(turns) or len(text.encode()) <= room // 2:
            break
        in_lines += 1
    message = _user_text(text)
    return Prompt([message], _size(message), opens, text, tuple(sorted(shown.items())), "")


def _retell(
    turn: Mapping[str, Any],
    results: Sequence[dict[str, Any]],
    tools: Mapping[str, DeclaredTool],
    *,
    in_line: bool,
) -> dict[str, Any]:
    from vedette.adapters.reasoners.adk.tools import write_args

    calls = []
    for proposal, result in zip(turn["proposals"], results, strict=True):
        tool = tools.get(proposal["tool"])
        name = _function_name(tool, proposal["tool"])
        if in_line:
            calls.append({"tool": name, **{key: result[key] for key in _IN_LINE if key in result}})
        else:
            given = proposal["args"]
            args = write_args(given, {}) if tool is None else tool.write(given)
            calls.append({"tool": name, "args": args, **result})
    told: dict[str, Any] = {"calls": calls}
    text = "" if in_line or not turn["proposals"] else turn["proposals"][0]["why"]
    return {"text": text, **told} if text else told


def _function_name(tool: DeclaredTool | None, name: str) -> str:
    """Return what ADK called a tool; a made-up name is cut to what every model's wire takes."""
    return tool.name if tool else re.sub(r"[^A-Za-z0-9_]", "_", name)[:64] or "unnamed"


# --- what came of calls -----------------------------------------------------------------------


def _outcomes(turns: Sequence[Mapping[str, Any]]) -> list[list[dict[str, Any]]]:
    """Return what came of each call of each turn, in order; done ones with their reference."""
    found: list[list[dict[str, Any]]] = []
    done, certain = 0, True
    for turn in turns:
        answers = {answer["ordinal"]: answer for answer in turn["answers"]}
        results = []
        for ordinal in range(len(turn["proposals"])):
            result = _outcome(answers.get(ordinal))
            if result["status"] == "done" and certain:
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
    return {key: answer[key] for key in ("status", "data") if key in answer}

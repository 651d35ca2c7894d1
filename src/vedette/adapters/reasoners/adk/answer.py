"""A model's answer, read: what it said to the letter, its calls, and what it used, each in bounds.

Whatever a provider's client hands over may be the work of a stranger's server. It is measured
before it is written out, and what could not be given back as it came is not taken.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from msgspec import Struct, field

from vedette.domain.budget import INPUT_TOKENS, OUTPUT_TOKENS
from vedette.domain.model_turn import BadModelAnswer, ModelFailed, ModelUse

if TYPE_CHECKING:
    from google.adk.models.llm_response import LlmResponse
    from google.genai import types

MAX_BYTES = 1 << 20  # of an answer as JSON
MAX_CALLS = 32
_MAX_DEPTH = 32  # of an argument's lists and objects
_MAX_BITS = 1024  # of a whole number
_MAX_TOKENS = 1 << 26  # of one call; more than any model reads or writes
_MAX_TEXT = 2000


class Answer(Struct):
    """What a model answered in one turn, as it was when the provider's client gave it.

    `content` is its JSON, `calls` are its calls as (function, arguments), `text` is what it said
    aloud. `fault` says why it is not taken, `trouble` why the provider gave none; "" if it is fine.
    """

    content: str = '{"role":"model"}'
    calls: list[tuple[str, Mapping[str, Any]]] = field(default_factory=list)
    text: str = ""
    fault: str = ""
    trouble: str = ""
    spent: dict[str, int] = field(default_factory=dict)


def read_answer(response: LlmResponse) -> Answer:
    """Return the answer that a provider's client gave. Raises nothing: faults stand in it."""
    answer = Answer()
    try:
        answer.spent = read_usage(response.usage_metadata)
        if "MALFORMED" in f"{response.error_code} {response.finish_reason}":
            answer.fault = "answered with a malformed call"
        elif response.error_code or response.error_message:
            what = f"failed: {response.error_code} {response.error_message or ''}"
            answer.trouble = what.strip()[:_MAX_TEXT]
        elif response.finish_reason is not None and response.finish_reason.name != "STOP":
            answer.trouble = f"was cut short: {response.finish_reason.name}"
        elif response.content is not None:
            _read_content(answer, response.content)
    except _Fault as fault:
        answer.fault = str(fault)
    except Exception as error:  # whatever a client made: of any type, with any attribute missing
        answer.fault = f"answered what cannot be read ({type(error).__name__})"
    return answer


def check_answer(
    agent: str, answers: Sequence[Answer], calls: int, *, may_be_empty: bool
) -> Answer:
    """Return a model's one answer. Raises ModelFailed or BadModelAnswer with what it cost."""
    if not answers:
        raise ModelFailed(f"the model of {agent} answered nothing", ModelUse(calls))
    answer, use = answers[0], ModelUse(calls, answers[0].spent)
    if len(answers) > 1:
        # Which of them was counted how is not said.
        what = f"the model of {agent} answered {len(answers)} times"
        raise BadModelAnswer(what, ModelUse(calls))
    if answer.fault:
        raise BadModelAnswer(f"the model of {agent} {answer.fault}", use)
    if answer.trouble:
        raise ModelFailed(f"the model of {agent} {answer.trouble}", use)
    if not (answer.calls or answer.text or may_be_empty):
        raise ModelFailed(f"the model of {agent} answered nothing", use)
    return answer


def read_usage(
    usage: types.GenerateContentResponseUsageMetadata | None,
) -> dict[str, int]:
    """Return what a call read and wrote; what it thought and never said was written, too.

    Raises a fault for numbers that no call can have.
    """
    if usage is None:
        return {}
    read, written, total = (
        _count(number)
        for number in (
            usage.prompt_token_count, usage.candidates_token_count, usage.total_token_count
        )
    )  # fmt: skip
    thoughts, tool_use = (
        _count(usage.thoughts_token_count),
        _count(usage.tool_use_prompt_token_count),
    )
    if read is None:
        return {}
    read += tool_use or 0
    if total is not None:
        if total < read:
            raise _Fault("was counted as reading more tokens than it used in all")
        return {INPUT_TOKENS: read, OUTPUT_TOKENS: total - read}
    if written is None:
        return {}
    return {INPUT_TOKENS: read, OUTPUT_TOKENS: written + (thoughts or 0)}


class _Fault(Exception):
    """Why an answer is not taken."""


def _count(number: object) -> int | None:
    if number is None:
        return None
    if type(number) is not int or not 0 <= number <= _MAX_TOKENS:
        raise _Fault(f"was counted as using {str(number)[:40]} tokens")
    return number


def _read_content(answer: Answer, content: types.Content) -> None:
    from google.genai import types

    if content.role not in ("model", None):
        raise _Fault("answered in another's name")
    texts: list[str] = []
    room = MAX_BYTES
    for part in content.parts or []:
        room = _measure(part, room)
        if part.function_response is not None:
            raise _Fault("answered a call of its own")
        if part.function_call is not None:
            call = part.function_call
            answer.calls.append((call.name or "<unnamed>", call.args or {}))
        elif part.text and not part.thought:
            texts.append(part.text)
    if len(answer.calls) > MAX_CALLS:
        raise _Fault(f"made {len(answer.calls)} calls in one turn, at most {MAX_CALLS} are taken")
    raw = content.model_dump_json(exclude_none=True)
    if len(raw.encode()) > MAX_BYTES:
        raise _Fault(f"answered more than {MAX_BYTES} bytes")
    # What another type writes as JSON reads back as something else, and would go back changed.
    if types.Content.model_validate_json(raw) != content:
        raise _Fault("answered what JSON does not keep as it is")
    answer.content, answer.text = raw, "\n".join(texts).strip()


def _measure(part: types.Part, room: int) -> int:
    """Return what is left of the room for bytes. Raises a fault if a part takes more, or odd data.

    Whatever is left has to be small when it is written out.
    """
    room -= len(part.text or "") + len(part.thought_signature or b"")
    if part.inline_data is not None:
        room -= len(part.inline_data.data or b"")
    stack: list[tuple[Any, int]] = [(part.part_metadata, 0)]
    if part.function_call is not None:
        stack.append((part.function_call.args, 0))
    while stack:
        value, depth = stack.pop()
        room -= len(value) if isinstance(value, str) else 1
        if isinstance(value, dict):
            stack += [(item, depth + 1) for pair in value.items() for item in pair]
        elif isinstance(value, list):
            stack += [(item, depth + 1) for item in value]
        elif isinstance(value, float) and not math.isfinite(value):
            raise _Fault(f"gave an argument that is no number: {value}")
        elif isinstance(value, int) and value.bit_length() > _MAX_BITS:
            raise _Fault("gave an argument that is too long a number")
        if depth > _MAX_DEPTH:
            raise _Fault(f"nested an argument more than {_MAX_DEPTH} deep")
        if room < 0:
            raise _Fault(f"answered more than {MAX_BYTES} bytes")
    return room

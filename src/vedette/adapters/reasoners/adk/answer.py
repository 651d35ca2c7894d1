"""A model's answer, read: what it said to the letter, its calls, and what it used, each in bounds.

Whatever a provider's client hands over may be the work of a stranger's server. It is measured
before anything copies it, and what could not be given back as it came is not taken.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from msgspec import Struct, field

from vedette.domain.budget import INPUT_TOKENS, OUTPUT_TOKENS
from vedette.domain.model_turn import (
    CACHE_CREATION,
    CACHE_READ,
    NO_METADATA,
    REASONING,
    BadModelAnswer,
    ModelCallMetadata,
    ModelFailed,
    ModelUse,
)

if TYPE_CHECKING:
    from google.adk.models.llm_response import LlmResponse
    from google.genai import types

MAX_BYTES = 1 << 20  # of an answer as JSON
MAX_CALLS = 32
MAX_PARTS = 1000
MAX_ITEMS = 10_000  # of the lists and objects of all arguments: each is walked often, on one loop
MAX_TOKENS = 1 << 26  # of one call; more than any model reads or writes
_MAX_DEPTH = 32  # of an argument's lists and objects
_MAX_BITS = 1024  # of a whole number
_MAX_TEXT = 2000
MAX_NAME = 256  # of a model, which an agent.py, or its provider, may give as it likes
# What some provider takes back. Names of declared tools have less, made-up ones may have more.
_NAME = re.compile(r"[A-Za-z0-9_.:-]{1,128}\Z")
_ID = re.compile(r"[\x21-\x7e]{1,512}\Z")
_PART = frozenset(
    {"function_call", "inline_data", "part_metadata", "text", "thought", "thought_signature"}
)
_CALL = frozenset({"args", "id", "name"})


class Answer(Struct):
    """What a model answered in one turn, as it was when the provider's client gave it.

    `content` is its JSON, `calls` are its calls as (function, arguments), `text` is what it said
    aloud. `fault` says why it is not taken, `trouble` why the provider gave none; "" if it is fine.
    `metadata` is what the provider says of it beside.
    """

    content: str = '{"role":"model"}'
    calls: list[tuple[str, Mapping[str, Any]]] = field(default_factory=list)
    text: str = ""
    fault: str = ""
    trouble: str = ""
    spent: dict[str, int] = field(default_factory=dict)
    metadata: ModelCallMetadata = NO_METADATA


def read_answer(
    response: LlmResponse, most_read: int = MAX_TOKENS, most_written: int = MAX_TOKENS
) -> Answer:
    """Return the answer that a provider's client gave. Raises nothing: faults stand in it.

    The other two are the tokens that its call can have read and written.
    """
    answer = Answer()
    try:
        spent = read_usage(response.usage_metadata)
        for unit, most in ((INPUT_TOKENS, most_read), (OUTPUT_TOKENS, most_written)):
            if spent.get(unit, 0) > most:
                raise _Fault(f"was counted as using {spent[unit]} {unit}, of {most} at most")
        answer.spent = spent
        answer.metadata = _read_metadata(response)
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
    if not read:
        return {}  # something was asked: nobody counted it
    read += tool_use or 0
    if total:  # some clients write 0 for what they were not told
        if total < read:
            raise _Fault("was counted as reading more tokens than it used in all")
        return {INPUT_TOKENS: read, OUTPUT_TOKENS: total - read}
    if written is None:
        return {}
    return {INPUT_TOKENS: read, OUTPUT_TOKENS: written + (thoughts or 0)}


def _read_metadata(response: LlmResponse) -> ModelCallMetadata:
    """Return what a provider says beside an answer. What is of another type is left out."""
    answered = response.model_version
    reason = getattr(response.finish_reason, "name", None)
    counted = (
        (CACHE_READ, "cached_content_token_count"),
        (CACHE_CREATION, "cache_creation_input_tokens"),  # set by ADK
        (REASONING, "thoughts_token_count"),
    )
    parts = ((kind, getattr(response.usage_metadata, name, None)) for kind, name in counted)
    return ModelCallMetadata(
        answered=answered[:MAX_NAME] if isinstance(answered, str) else "",
        finish_reason=reason.lower()[:MAX_NAME] if isinstance(reason, str) else "",
        tokens={kind: n for kind, n in parts if type(n) is int and 0 < n <= MAX_TOKENS},
    )


class _Fault(Exception):
    """Why an answer is not taken."""


def _count(number: object) -> int | None:
    if number is None:
        return None
    if type(number) is not int or not 0 <= number <= MAX_TOKENS:
        raise _Fault(f"was counted as using {str(number)[:40]} tokens")
    return number


def _read_content(answer: Answer, content: types.Content) -> None:
    from google.genai import types

    if content.role not in ("model", None):
        raise _Fault("answered in another's name")
    parts = content.parts or []
    if len(parts) > MAX_PARTS:
        raise _Fault(f"answered in {len(parts)} parts, at most {MAX_PARTS} are taken")
    room = _Room()
    texts: list[str] = []
    ids: set[str] = set()
    for part in parts:
        _measure(part, room)
        if (call := part.function_call) is not None:
            name = _check_call(call, ids)
            answer.calls.append((name, call.args or {}))
        elif part.text and not part.thought:
            texts.append(part.text)
    if len(answer.calls) > MAX_CALLS:
        raise _Fault(f"made {len(answer.calls)} calls in one turn, at most {MAX_CALLS} are taken")
    content = content.model_copy(update={"role": "model"})
    raw = content.model_dump_json(exclude_none=True)
    if len(raw.encode()) > MAX_BYTES:
        raise _Fault(f"answered more than {MAX_BYTES} bytes")
    # What another type writes as JSON reads back as something else, and would go back changed.
    if types.Content.model_validate_json(raw) != content:
        raise _Fault("answered what JSON does not keep as it is")
    answer.content, answer.text = raw, "\n".join(texts).strip()


def _check_call(call: types.FunctionCall, ids: set[str]) -> str:
    """Return a call's name. Raises a fault if no provider would take the call back."""
    if not isinstance(call.name, str) or _NAME.match(call.name) is None:
        raise _Fault("made a call of a name that no tool has")
    if call.id is not None:
        if not isinstance(call.id, str) or _ID.match(call.id) is None or call.id in ids:
            raise _Fault("made a call with an id that does not name it")
        ids.add(call.id)
    return call.name


class _Room(Struct):
    """What is left for the rest of an answer: bytes, and items of lists and objects."""

    bytes: int = MAX_BYTES
    items: int = MAX_ITEMS

    def take(self, size: int = 1, items: int = 0) -> None:
        self.bytes -= size
        self.items -= items
        if self.bytes < 0:
            raise _Fault(f"answered more than {MAX_BYTES} bytes")
        if self.items < 0:
            raise _Fault(f"gave more than {MAX_ITEMS} items in its arguments")


def _measure(part: types.Part, room: _Room) -> None:
    """Raise a fault if a part takes more room than is left, or is none of those that are known."""
    call, blob = part.function_call, part.inline_data
    for value, known in ((part, _PART), (call, _CALL)):
        fields = () if value is None else type(value).model_fields
        if odd := [name for name in fields if name not in known and _is_given(value, name)]:
            raise _Fault(f"answered with what is neither said nor called: {odd[0]}")
    room.take(len(part.text or "") + len(part.thought_signature or b""))
    if blob is not None:
        room.take(len(blob.data or b"") + len(blob.mime_type or "") + len(blob.display_name or ""))
    stack: list[tuple[Any, int]] = [(part.part_metadata, 0)]
    if call is not None:
        room.take(len(call.name or "") + len(call.id or ""))
        stack.append((call.args, 0))
    while stack:
        value, depth = stack.pop()
        if depth > _MAX_DEPTH:
            raise _Fault(f"nested an argument more than {_MAX_DEPTH} deep")
        room.take(len(value) if isinstance(value, str) else 1)
        if isinstance(value, dict | list):
            room.take(items=len(value))
            inner = value if isinstance(value, list) else [*value, *value.values()]
            stack += [(item, depth + 1) for item in inner]
        elif isinstance(value, float) and not math.isfinite(value):
            raise _Fault(f"gave an argument that is no number: {value}")
        elif isinstance(value, int) and value.bit_length() > _MAX_BITS:
            raise _Fault("gave an argument that is too long a number")


def _is_given(value: object, name: str) -> bool:
    return getattr(value, name, None) is not None

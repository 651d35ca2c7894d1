"""OpenAI: Chat Completions, which most other providers speak too.

Nothing is sealed on this wire; calls and what came of them are paired by id. Source:
platform.openai.com, API reference *Chat*; the words of the errors are those that people report.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from vedette.testing.model_server.fault import ErrorAnswer
from vedette.testing.model_server.openai import (
    check_fields,
    check_function,
    read_arguments,
    read_body,
    read_text,
    refuse,
    trouble,
)
from vedette.testing.model_server.turn import FunctionCall, FunctionResult, Message, Request, Turn
from vedette.testing.model_server.wire import (
    SSE,
    Answer,
    HttpRequest,
    Refusal,
    Server,
    encode,
    joined,
    pieces,
)

NAME = "chat"

_FIELDS = frozenset(
    [
        "audio",
        "frequency_penalty",
        "function_call",
        "functions",
        "logit_bias",
        "logprobs",
        "max_completion_tokens",
        "max_tokens",
        "messages",
        "metadata",
        "modalities",
        "model",
        "n",
        "parallel_tool_calls",
        "prediction",
        "presence_penalty",
        "prompt_cache_key",
        "reasoning_effort",
        "response_format",
        "safety_identifier",
        "seed",
        "service_tier",
        "stop",
        "store",
        "stream",
        "stream_options",
        "temperature",
        "tool_choice",
        "tools",
        "top_logprobs",
        "top_p",
        "user",
        "verbosity",
    ]
)
_FINISH = {"length": "length", "safety": "content_filter"}


class ChatCompletions:
    """Chat Completions' wire."""

    name = NAME

    def __init__(self, server: Server) -> None:
        self._server = server

    def match(self, method: str, path: str) -> bool:
        return method == "POST" and path == "/v1/chat/completions"

    def read(self, http: HttpRequest) -> Request:
        body, model, key = read_body(self._server, NAME, http)
        check_fields(body, _FIELDS)
        raws = body.get("messages")
        if not isinstance(raws, list) or not raws:
            said = "Missing required parameter: 'messages'."
            raise refuse(said, "messages", "missing_required_parameter")
        tools = [
            check_function(tool.get("function"), at, f"tools[{at}].function")
            for at, tool in enumerate(body.get("tools") or ())
        ]
        read = [_read_message(raw, f"messages[{at}]") for at, raw in enumerate(raws)]
        _check_places(raws)
        return Request(
            number=http.number,
            wire=NAME,
            model=model.name,
            key=key,
            messages=joined(message for message in read if isinstance(message, Message)),
            tools=tuple(tools),
            system="\n".join(text for text in read if isinstance(text, str)),
            streamed=body.get("stream") is True,
            body=body,
        )

    def write(self, request: Request, turn: Turn) -> Answer:
        calls = [
            {
                "id": self._server.new_id("call_"),
                "type": "function",
                "function": {
                    "name": call.name,
                    "arguments": call.args if isinstance(call.args, str) else json.dumps(call.args),
                },
            }
            for call in turn.calls
        ]
        texts = [part for part in turn.parts if isinstance(part, str)]
        finish = _FINISH.get(turn.finish, turn.finish)
        finish = finish or ("tool_calls" if calls else "stop")
        head = {
            "id": self._server.new_id("chatcmpl-"),
            "created": self._server.now_s(),
            "model": request.model,
        }
        usage = turn.usage
        read, written = usage.input + usage.cache_read + usage.cache_write, usage.output
        counts = {
            "prompt_tokens": read,
            "completion_tokens": written + usage.thinking,
            "total_tokens": read + written + usage.thinking,
            "prompt_tokens_details": {"cached_tokens": usage.cache_read},
            "completion_tokens_details": {"reasoning_tokens": usage.thinking},
        }
        if request.streamed:
            asked = (request.body.get("stream_options") or {}).get("include_usage") is True
            events = list(_chunks(head, texts, calls, finish, counts if asked else None))
            body = [b"data: " + encode(event) + b"\n\n" for event in events]
            return Answer([*body, b"data: [DONE]\n\n"], headers=SSE)
        message = {
            "role": "assistant",
            "content": "".join(texts) if texts else None,
            "refusal": None,
            **({"tool_calls": calls} if calls else {}),
        }
        choice = {"index": 0, "message": message, "logprobs": None, "finish_reason": finish}
        whole = {**head, "object": "chat.completion", "choices": [choice], "usage": counts}
        return Answer([encode(whole)])

    def trouble(self, fault: ErrorAnswer) -> Refusal:
        return trouble(fault)


def _read_message(raw: Any, where: str) -> Message | str:
    """Return a message; of what the system says its text."""
    role = raw.get("role") if isinstance(raw, dict) else None
    if role not in ("system", "developer", "user", "assistant", "tool"):
        raise refuse(f"Invalid value: '{role}'.", f"{where}.role", "invalid_value")
    fields = {"role", "content", "name"}
    fields |= {"tool_calls", "refusal", "audio", "function_call"} if role == "assistant" else set()
    fields |= {"tool_call_id"} if role == "tool" else set()
    check_fields(raw, frozenset(fields), f"{where}.")
    kinds = ("text", "refusal") if role == "assistant" else ("text", "image_url")
    text = read_text(raw.get("content"), kinds, f"{where}.content")
    if role in ("system", "developer"):
        return text
    if role == "tool":
        return Message("user", results=(FunctionResult(str(raw.get("tool_call_id")), "", text),))
    calls = []
    for at, call in enumerate(raw.get("tool_calls") or ()):
        each = f"{where}.tool_calls[{at}]"
        function = call.get("function") or {}
        if not call.get("id") or not function.get("name"):
            said = f"Missing required parameter: '{each}'."
            raise refuse(said, each, "missing_required_parameter")
        args = read_arguments(function.get("arguments"), f"{each}.function.arguments")
        calls.append(FunctionCall(function["name"], args, call["id"]))
    if role == "assistant" and not calls and raw.get("content") is None:
        said = "Invalid value for 'content': expected a string, got null."
        raise refuse(said, f"{where}.content")
    return Message("model" if role == "assistant" else "user", text, tuple(calls))


def _check_places(raws: Sequence[Mapping[str, Any]]) -> None:
    """Raise Refusal unless each call is answered by the tool messages right after it."""
    waiting: list[str] = []
    for at, raw in enumerate([*raws, {"role": ""}]):
        if raw["role"] == "tool":
            if raw.get("tool_call_id") not in waiting:
                said = "Invalid parameter: messages with role 'tool' must be a response to a "
                said += "preceeding message with 'tool_calls'."
                raise refuse(said, f"messages.[{at}].role")
            waiting.remove(raw["tool_call_id"])
            continue
        if waiting:
            said = "An assistant message with 'tool_calls' must be followed by tool messages "
            said += "responding to each 'tool_call_id'. The following tool_call_ids did not have "
            said += f"response messages: {', '.join(waiting)}"
            raise refuse(said, f"messages.[{at}].role")
        waiting = [call["id"] for call in raw.get("tool_calls") or ()]


def _chunks(
    head: Mapping[str, Any],
    texts: Sequence[str],
    calls: Sequence[Mapping[str, Any]],
    finish: str,
    usage: Mapping[str, Any] | None,
) -> Iterator[Mapping[str, Any]]:
    head = {**head, "object": "chat.completion.chunk"}

    def chunk(delta: Mapping[str, Any], ended: str | None = None) -> Mapping[str, Any]:
        choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": ended}
        return {**head, "choices": [choice]}

    yield chunk({"role": "assistant", "content": "" if texts else None})
    for text in texts:
        for piece in pieces(text):
            yield chunk({"content": piece})
    for index, call in enumerate(calls):
        function = {**call["function"], "arguments": ""}
        yield chunk({"tool_calls": [{**call, "index": index, "function": function}]})
        for piece in pieces(call["function"]["arguments"]):
            yield chunk({"tool_calls": [{"index": index, "function": {"arguments": piece}}]})
    yield chunk({}, finish)
    if usage is not None:
        yield {**head, "choices": [], "usage": usage}

"""Ollama: /api/chat and /api/show.

No key, no ids, nothing sealed: results follow their calls in order. Source: Ollama's docs/api.md.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from vedette.testing.model_server.fault import ErrorAnswer
from vedette.testing.model_server.turn import (
    FunctionCall,
    FunctionResult,
    Message,
    Request,
    Thinking,
    Turn,
)
from vedette.testing.model_server.wire import (
    Answer,
    HttpRequest,
    Refusal,
    Server,
    encode,
    joined,
    parse,
    pieces,
    schema_error,
)

NAME = "ollama"

_DATE = "2025-06-15T15:06:40Z"
_FINISH = {"": "stop"}


class Ollama:
    """Ollama's wire."""

    name = NAME

    def __init__(self, server: Server) -> None:
        self._server = server

    def match(self, method: str, path: str) -> bool:
        return method == "POST" and path in ("/api/chat", "/api/show")

    def read(self, http: HttpRequest) -> Request | Answer:
        body = parse(http.body, _refuse("invalid character in request body"))
        name = str(body.get("model", body.get("name", "")))
        model = self._server.models.get((NAME, name.removesuffix(":latest")))
        if not name:
            raise _refuse("model is required")
        if model is None:
            raise _refuse(f"model '{name}' not found", 404)
        if http.path == "/api/show":
            return Answer([encode(_show())])
        raws = body.get("messages") or ()
        tools = [_read_tool(tool) for tool in body.get("tools") or ()]
        read = [_read_message(raw) for raw in raws]
        return Request(
            number=http.number,
            wire=NAME,
            model=model.name,
            key="",
            messages=joined(
                message for raw, message in zip(raws, read, strict=True) if raw["role"] != "system"
            ),
            tools=tuple(tools),
            system="\n".join(
                str(raw.get("content", "")) for raw in raws if raw["role"] == "system"
            ),
            streamed=body.get("stream", True) is not False,
            body=body,
        )

    def write(self, request: Request, turn: Turn) -> Answer:
        head = {"model": request.model, "created_at": _DATE}
        calls = []
        for call in turn.calls:
            if isinstance(call.args, str):
                raise TypeError(f"the arguments of {call.name} are an object on Ollama's wire")
            calls.append({"function": {"name": call.name, "arguments": call.args}})
        text = "".join(part for part in turn.parts if isinstance(part, str))
        thoughts = [part.text for part in turn.parts if isinstance(part, Thinking)]
        thinks = bool(request.body.get("think"))
        message: dict[str, Any] = {"role": "assistant", "content": text}
        if thinks and thoughts:
            message["thinking"] = "".join(thoughts)
        if calls:
            message["tool_calls"] = calls
        usage = turn.usage
        done = {
            "done": True,
            "done_reason": _FINISH.get(turn.finish, turn.finish),
            "total_duration": 2_000_000,
            "load_duration": 1_000_000,
            "prompt_eval_count": usage.input + usage.cache_read + usage.cache_write,
            "prompt_eval_duration": 500_000,
            "eval_count": usage.output + usage.thinking,
            "eval_duration": 500_000,
        }
        if not request.streamed:
            return Answer([encode({**head, "message": message, **done})])
        empty = {"role": "assistant", "content": ""}
        said: list[Mapping[str, Any]] = [
            {**empty, "thinking": piece} for piece in pieces(message.get("thinking", ""))
        ]
        said += [{**empty, "content": piece} for piece in pieces(text)]
        said += [{**empty, "tool_calls": [call]} for call in calls]
        lines = [{**head, "message": each, "done": False} for each in said]
        ended = {**head, "message": empty, **done}
        body = [encode(line) + b"\n" for line in (*lines, ended)]
        return Answer(body, headers={"content-type": "application/x-ndjson"})

    def trouble(self, fault: ErrorAnswer) -> Refusal:
        waits = fault.retry_after_s
        headers = {} if waits is None else {"retry-after": str(waits)}
        if fault.trouble in ("rate_limit", "daily_quota", "billing"):
            return _refuse("you've reached your usage limit", 429, headers)
        if fault.trouble == "internal":
            return _refuse("llama runner process has terminated", 500, headers)
        said = "server busy, please try again.  maximum pending requests exceeded"
        return _refuse(said, 503, headers)


def _refuse(message: str, status: int = 400, headers: Mapping[str, str] | None = None) -> Refusal:
    return Refusal(status, {"error": message}, headers)


def _show() -> Mapping[str, Any]:
    details = {"format": "gguf", "family": "qwen3", "families": ["qwen3"], "parameter_size": "8B"}
    return {
        "modelfile": "FROM qwen3",
        "parameters": 'stop "<|im_end|>"',
        "template": "{{ .Prompt }}{{ .Tools }}",
        "details": {"parent_model": "", "quantization_level": "Q4_K_M", **details},
        "model_info": {"general.architecture": "qwen3", "qwen3.context_length": 40960},
        "capabilities": ["completion", "tools", "thinking"],
        "modified_at": _DATE,
    }


def _read_tool(tool: Any) -> str:
    function = tool.get("function") if isinstance(tool, dict) else None
    if not isinstance(function, dict) or not function.get("name"):
        raise _refuse("invalid tool: function.name is required")
    wrong = schema_error(function.get("parameters", {"type": "object"}))
    if wrong:
        raise _refuse(f"invalid tool {function['name']}: {wrong}")
    return str(function["name"])


def _read_message(raw: Any) -> Message:
    role = raw.get("role") if isinstance(raw, dict) else None
    if role not in ("system", "user", "assistant", "tool"):
        raise _refuse(f"invalid role: {role}")
    content = raw.get("content") or ""
    if not isinstance(content, str):
        raise _refuse(
            "json: cannot unmarshal array into Go struct field ChatRequest.messages.content of "
            "type string"
        )
    calls = []
    for call in raw.get("tool_calls") or ():
        function = call.get("function") or {}
        if not isinstance(function.get("arguments"), dict):
            raise _refuse(
                "json: cannot unmarshal string into Go struct field "
                "ChatRequest.messages.tool_calls.function.arguments of type "
                "api.ToolCallFunctionArguments"
            )
        calls.append(FunctionCall(str(function.get("name", "")), function["arguments"]))
    if role == "tool":
        name = str(raw.get("tool_name") or raw.get("name") or "")
        return Message("user", results=(FunctionResult("", name, content),))
    return Message("model" if role == "assistant" else "user", content, tuple(calls))

"""Anthropic: the Messages API.

Sources: platform.claude.com, *Extended thinking*, *Adaptive thinking*, *Errors*, *Streaming*; the
words of the errors are those that people report of it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from vedette.testing.model_server.fault import ErrorAnswer
from vedette.testing.model_server.turn import (
    FunctionCall,
    FunctionResult,
    Message,
    RedactedThinking,
    Request,
    Thinking,
    Turn,
)
from vedette.testing.model_server.turn_history import Route, prefixes
from vedette.testing.model_server.wire import (
    JSON,
    SSE,
    Answer,
    HttpRequest,
    Model,
    Refusal,
    Server,
    encode,
    parse,
    pieces,
    schema_error,
    turns_of,
)

NAME = "anthropic"

_NAME = re.compile(r"[a-zA-Z0-9_-]{1,128}")
_FIELDS = frozenset(
    [
        "model",
        "messages",
        "max_tokens",
        "system",
        "tools",
        "tool_choice",
        "thinking",
        "output_config",
        "stream",
        "stop_sequences",
        "temperature",
        "top_p",
        "top_k",
        "metadata",
        "service_tier",
        "cache_control",
        "container",
        "context_management",
    ]
)
_TYPES = {
    400: "invalid_request_error",
    401: "authentication_error",
    404: "not_found_error",
    429: "rate_limit_error",
    500: "api_error",
    529: "overloaded_error",
}
_FINISH = {"length": "max_tokens", "safety": "refusal"}
_BLOCKS = ("text", "thinking", "redacted_thinking", "tool_use", "tool_result", "image", "document")

_MODIFIED = (
    "{where}: `thinking` or `redacted_thinking` blocks in the latest assistant message cannot be "
    "modified. These blocks must remain as they were in the original response."
)
_EXPECTED = (
    "{where}.type: Expected `thinking` or `redacted_thinking`, but found `{kind}`. When `thinking` "
    "is enabled, a final `assistant` message must start with a thinking block (preceeding the "
    "lastmost set of `tool_use` and `tool_result` blocks). We recommend you include thinking "
    "blocks from previous turns. To avoid this requirement, disable `thinking`."
)


class Anthropic:
    """Anthropic's wire."""

    name = NAME

    def __init__(self, server: Server) -> None:
        self._server = server

    def match(self, method: str, path: str) -> bool:
        return method == "POST" and path == "/v1/messages"

    def read(self, http: HttpRequest) -> Request:
        key = self._read_key(http.headers)
        if "anthropic-version" not in http.headers:
            raise _refuse("anthropic-version: header is required")
        body = parse(http.body, _refuse("The request body is not valid JSON"))
        for name in body:
            if name not in _FIELDS:
                raise _refuse(f"{name}: Extra inputs are not permitted")
        for name in ("model", "max_tokens", "messages"):
            if name not in body:
                raise _refuse(f"{name}: Field required")
        model = self._server.models.get((NAME, body["model"]))
        if model is None:
            raise _refuse(f"model: {body['model']}", 404)
        if not isinstance(body["max_tokens"], int) or body["max_tokens"] < 1:
            raise _refuse("max_tokens: Input should be greater than or equal to 1")
        tools = _read_tools(body.get("tools") or ())
        enabled = _check_thinking(body, model)
        raws = body["messages"]
        if not isinstance(raws, list) or not raws:
            raise _refuse("messages: at least one message is required")
        contents = [_read_content(raw, at) for at, raw in enumerate(raws)]
        messages = tuple(
            _message(raw["role"], blocks) for raw, blocks in zip(raws, contents, strict=True)
        )
        _check_places(messages, contents)
        if model.strict and messages[-1].role == "model":
            raise _refuse(
                "This model does not support assistant message prefill. The conversation must end "
                "with a user message."
            )
        self._check_thinking_blocks(contents, messages, (NAME, model.name, key), model)
        if enabled and not model.strict:
            _check_loop(contents, messages)
        return Request(
            number=http.number,
            wire=NAME,
            model=model.name,
            key=key,
            messages=messages,
            tools=tools,
            system=_text(body.get("system") or ""),
            streamed=body.get("stream") is True,
            body=body,
        )

    def write(self, request: Request, turn: Turn) -> Answer:
        model = self._server.models[NAME, request.model]
        thinking = request.body.get("thinking") or {}
        thinks = model.strict or thinking.get("type") in ("enabled", "adaptive")
        shown = not model.strict or thinking.get("display") == "summarized"
        blocks: list[dict[str, Any]] = []
        opaque: dict[str, Any] = {}
        for part in turn.parts:
            if isinstance(part, str):
                blocks.append({"type": "text", "text": part})
            elif isinstance(part, FunctionCall):
                if isinstance(part.args, str) and not request.streamed:
                    raise TypeError(f"the arguments of {part.name} are an object in an answer")
                called = self._server.new_id("toolu_01", 22)
                blocks.append(
                    {"type": "tool_use", "id": called, "name": part.name, "input": part.args}
                )
            elif thinks:
                sealed = self._server.new_id("E", 60)
                if isinstance(part, RedactedThinking):
                    block = {"type": "redacted_thinking", "data": sealed}
                else:
                    assert isinstance(part, Thinking)
                    text = part.text if shown else ""
                    block = {"type": "thinking", "thinking": text, "signature": sealed}
                blocks.append(block)
                opaque[sealed] = block
        usage = turn.usage
        finish = _FINISH.get(turn.finish, turn.finish)
        whole = {
            "id": self._server.new_id("msg_01", 22),
            "type": "message",
            "role": "assistant",
            "model": request.model,
            "content": blocks,
            "stop_reason": finish or ("tool_use" if turn.calls else "end_turn"),
            "stop_sequence": None,
            "usage": {
                "input_tokens": usage.input,
                "cache_creation_input_tokens": usage.cache_write,
                "cache_read_input_tokens": usage.cache_read,
                "output_tokens": usage.output + usage.thinking,
            },
        }
        headers = {"request-id": self._server.new_id("req_01", 22)}
        parts = [_opaque_block(block) for block in blocks]
        if not request.streamed:
            return Answer([encode(whole)], parts, opaque, {**JSON, **headers})
        events = [
            f"event: {event['type']}\ndata: ".encode() + encode(event) + b"\n\n"
            for event in _events(whole, blocks)
        ]
        return Answer(events, parts, opaque, {**SSE, **headers})

    def trouble(self, fault: ErrorAnswer) -> Refusal:
        waits = fault.retry_after_s
        headers = {} if waits is None else {"retry-after": str(waits)}
        match fault.trouble:
            case "rate_limit" | "daily_quota":
                said = "This request would exceed your organization's rate limit."
                return _refuse(said, 429, headers=headers)
            case "billing":
                code = fault.code or "enforced_spend_limit_reached"
                said = "You have reached your specified API usage limits."
                return _refuse(said, 429, {"details": {"error_code": code}}, headers)
            case "internal":
                return _refuse("Internal server error", 500, headers=headers)
            case "unavailable":
                error = {"type": "api_error", "message": "Service unavailable"}
                return Refusal(503, {"type": "error", "error": error}, headers)
            case _:
                return _refuse("Overloaded", 529, headers=headers)

    def _read_key(self, headers: Mapping[str, str]) -> str:
        scheme, _, bearer = headers.get("authorization", "").partition(" ")
        key = headers.get("x-api-key") or (bearer if scheme == "Bearer" else "")
        if not key:
            raise _refuse("x-api-key header is required", 401)
        if key not in self._server.keys:
            raise _refuse("invalid x-api-key", 401)
        return key

    def _check_thinking_blocks(
        self,
        contents: Sequence[Sequence[Mapping[str, Any]]],
        messages: Sequence[Message],
        route: Route,
        model: Model,
    ) -> None:
        history = self._server.history
        said = prefixes(messages)
        for at, _ in turns_of(messages):
            shown = [_opaque_block(block) for block in contents[at]]
            handed = history.at(route, said[at])
            if handed and shown not in handed:
                where = _first_difference(shown, handed[-1])
                raise _refuse(_MODIFIED.format(where=f"messages.{at}.content.{where}"))
            for index, block in enumerate(contents[at]):
                if block["type"] not in ("thinking", "redacted_thinking"):
                    continue
                sealed = block.get("signature") or block.get("data") or ""
                # The newest models' thinking belongs to its conversation and to no other.
                bound = model.strict and not handed
                if bound or history.opaque(route, sealed) != block:
                    field = "signature" if block["type"] == "thinking" else "data"
                    raise _refuse(
                        f"messages.{at}.content.{index}: Invalid `{field}` in `{block['type']}` "
                        "block"
                    )


def _refuse(
    message: str,
    status: int = 400,
    more: Mapping[str, Any] | None = None,
    headers: Mapping[str, str] | None = None,
) -> Refusal:
    error = {"type": _TYPES[status], "message": message, **(more or {})}
    return Refusal(status, {"type": "error", "error": error}, headers)


def _check_thinking(body: Mapping[str, Any], model: Model) -> bool:
    """Tell whether thinking is on; raise Refusal for what the model does not take."""
    thinking = body.get("thinking") or {}
    kind = thinking.get("type")
    forced = (body.get("tool_choice") or {}).get("type") in ("any", "tool")
    if model.strict and kind in ("enabled", "disabled"):
        raise _refuse(
            f'"thinking.type.{kind}" is not supported for this model. Use '
            '"thinking.type.adaptive" and "output_config.effort" to control thinking behavior.'
        )
    if kind == "enabled":
        budget = thinking.get("budget_tokens")
        if not isinstance(budget, int) or budget < 1024:
            raise _refuse(
                "thinking.enabled.budget_tokens: Input should be greater than or equal to 1024"
            )
        if budget >= body["max_tokens"]:
            raise _refuse("`max_tokens` must be greater than `thinking.budget_tokens`.")
    on = model.strict or kind in ("enabled", "adaptive")
    if on and forced:
        raise _refuse("Thinking may not be enabled when tool_choice forces tool use.")
    return on


def _read_tools(tools: Sequence[Any]) -> tuple[str, ...]:
    names = []
    for at, tool in enumerate(tools):
        name = tool.get("name", "") if isinstance(tool, dict) else ""
        if not _NAME.fullmatch(str(name)):
            raise _refuse(
                f"tools.{at}.custom.name: String should match pattern '^[a-zA-Z0-9_-]{{1,128}}$'"
            )
        if "input_schema" not in tool:
            raise _refuse(f"tools.{at}.custom.input_schema: Field required")
        if schema_error(tool["input_schema"]):
            raise _refuse(
                f"tools.{at}.custom.input_schema: JSON schema is invalid. It must match JSON "
                "Schema draft 2020-12 (https://json-schema.org/draft/2020-12)."
            )
        names.append(str(name))
    return tuple(names)


def _read_content(raw: Any, at: int) -> list[dict[str, Any]]:
    role = raw.get("role") if isinstance(raw, dict) else None
    if role not in ("user", "assistant"):
        raise _refuse(f"messages.{at}.role: Input should be 'user' or 'assistant'")
    content = raw.get("content")
    if isinstance(content, str):
        content = [{"type": "text", "text": content}]
    if not isinstance(content, list) or not content:
        raise _refuse(f"messages.{at}: all messages must have non-empty content")
    return [
        _read_block(block, role, f"messages.{at}.content.{i}") for i, block in enumerate(content)
    ]


def _read_block(raw: Any, role: str, where: str) -> dict[str, Any]:
    kind = raw.get("type") if isinstance(raw, dict) else None
    if kind not in _BLOCKS:
        raise _refuse(
            f"{where}: Input tag '{kind}' found using 'type' does not match any of the expected "
            f"tags: {', '.join(map(repr, _BLOCKS))}"
        )
    if kind in ("tool_use", "thinking", "redacted_thinking") and role != "assistant":
        raise _refuse(f"{where}: `{kind}` blocks can only be in `assistant` messages")
    if kind == "tool_result" and role != "user":
        raise _refuse(f"{where}: `tool_result` blocks can only be in `user` messages")
    if kind == "text" and not raw.get("text"):
        raise _refuse("messages: text content blocks must be non-empty")
    if kind == "thinking" and not isinstance(raw.get("signature"), str):
        raise _refuse(f"{where}.thinking.signature: Field required")
    if kind == "tool_use":
        if not _NAME.fullmatch(str(raw.get("id", ""))):
            raise _refuse(f"{where}.tool_use.id: String should match pattern '^[a-zA-Z0-9_-]+$'")
        if not isinstance(raw.get("input"), dict):
            raise _refuse(f"{where}.tool_use.input: Input should be a valid dictionary")
    # Clients send what they do not set as null.
    return {k: v for k, v in raw.items() if k != "cache_control" and v is not None}


def _text(content: Any) -> str:
    if isinstance(content, str):
        return content
    return "".join(str(each.get("text", "")) for each in content if each.get("type") == "text")


def _message(role: str, blocks: Sequence[Mapping[str, Any]]) -> Message:
    return Message(
        "model" if role == "assistant" else "user",
        _text(blocks),
        tuple(
            FunctionCall(block["name"], block["input"], block["id"])
            for block in blocks
            if block["type"] == "tool_use"
        ),
        tuple(
            FunctionResult(str(block.get("tool_use_id", "")), "", block.get("content"))
            for block in blocks
            if block["type"] == "tool_result"
        ),
    )


def _check_places(
    messages: Sequence[Message], contents: Sequence[Sequence[Mapping[str, Any]]]
) -> None:
    """Raise Refusal unless each tool_use has its one result in the very next message."""
    known: set[str] = set()
    for at, message in enumerate(messages):
        for index, block in enumerate(contents[at]):
            if block["type"] == "tool_use":
                if block["id"] in known:
                    raise _refuse(f"messages.{at}.content.{index}: `tool_use` ids must be unique")
                known.add(block["id"])
        expected = [call.id for call in messages[at - 1].calls] if at else []
        found = [result.id for result in message.results]
        for index, block in enumerate(contents[at]):
            if block["type"] == "tool_result" and block.get("tool_use_id") not in expected:
                raise _refuse(
                    f"messages.{at}.content.{index}: unexpected `tool_use_id` found in "
                    f"`tool_result` blocks: {block.get('tool_use_id')}. Each `tool_result` block "
                    "must have a corresponding `tool_use` block in the previous message."
                )
        for name in found:
            if found.count(name) > 1:
                raise _refuse(
                    f"messages.{at}.content: each tool_use must have a single result. Found "
                    f"multiple `tool_result` blocks with id: {name}"
                )
        _check_answered(at - 1, [name for name in expected if name not in found])
    _check_answered(len(messages) - 1, [call.id for call in messages[-1].calls])


def _check_answered(at: int, missing: Sequence[str]) -> None:
    if missing:
        raise _refuse(
            f"messages.{at}: `tool_use` ids were found without `tool_result` blocks immediately "
            f"after: {', '.join(missing)}. Each `tool_use` block must have a corresponding "
            "`tool_result` block in the next message."
        )


def _check_loop(
    contents: Sequence[Sequence[Mapping[str, Any]]], messages: Sequence[Message]
) -> None:
    """Raise Refusal unless the message whose tools were just called begins with thinking.

    The rule of models whose thinking is enabled by hand, whoever made the message.
    """
    if not messages[-1].results:
        return
    first = contents[-2][0]["type"]
    if first not in ("thinking", "redacted_thinking"):
        where = f"messages.{len(messages) - 2}.content.0"
        raise _refuse(_EXPECTED.format(where=where, kind=first))


def _opaque_block(block: Mapping[str, Any]) -> Any:
    """Return what of a block must come back as it was: not what a text says."""
    return "text" if block["type"] == "text" else dict(block)


def _first_difference(shown: Sequence[Any], handed: Sequence[Any]) -> int:
    for index, (mine, its) in enumerate(zip(shown, handed, strict=False)):
        if mine != its:
            return index
    return min(len(shown), len(handed))


def _events(
    whole: Mapping[str, Any], blocks: Sequence[Mapping[str, Any]]
) -> Iterator[Mapping[str, Any]]:
    usage = whole["usage"]
    begin = {**whole, "content": [], "stop_reason": None, "usage": {**usage, "output_tokens": 1}}
    yield {"type": "message_start", "message": begin}
    yield {"type": "ping"}
    for index, block in enumerate(blocks):
        empty, deltas = _deltas(block)
        yield {"type": "content_block_start", "index": index, "content_block": empty}
        for delta in deltas:
            yield {"type": "content_block_delta", "index": index, "delta": delta}
        yield {"type": "content_block_stop", "index": index}
    ended = {"stop_reason": whole["stop_reason"], "stop_sequence": None}
    yield {"type": "message_delta", "delta": ended, "usage": usage}
    yield {"type": "message_stop"}


def _deltas(block: Mapping[str, Any]) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """Return a block as a stream begins it, and what follows."""
    match block["type"]:
        case "text":
            texts = [{"type": "text_delta", "text": text} for text in pieces(block["text"])]
            return {**block, "text": ""}, texts
        case "thinking":
            thoughts = [
                {"type": "thinking_delta", "thinking": text} for text in pieces(block["thinking"])
            ]
            signed = {"type": "signature_delta", "signature": block["signature"]}
            return {**block, "thinking": "", "signature": ""}, [*thoughts, signed]
        case "tool_use":
            args = block["input"]
            text = args if isinstance(args, str) else encode(args).decode()
            jsons = [{"type": "input_json_delta", "partial_json": each} for each in pieces(text)]
            return {**block, "input": {}}, jsons
        case _:
            return dict(block), []

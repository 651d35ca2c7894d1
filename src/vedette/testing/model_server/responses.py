"""OpenAI: the Responses API, for an organisation that lets nothing be stored.

So `store` is as good as false: no `previous_response_id`, and a reasoning item comes back whole,
with its encrypted content. Source: platform.openai.com, *Reasoning models*, API reference
*Responses*; the words of the errors are those that people report of it.
"""

from __future__ import annotations

import contextlib
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
from vedette.testing.model_server.turn import (
    FunctionCall,
    FunctionResult,
    Message,
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
    Refusal,
    Server,
    encode,
    pieces,
    turns_of,
)

NAME = "responses"

_FIELDS = frozenset(
    [
        "background",
        "conversation",
        "include",
        "input",
        "instructions",
        "max_output_tokens",
        "max_tool_calls",
        "metadata",
        "model",
        "parallel_tool_calls",
        "previous_response_id",
        "prompt",
        "prompt_cache_key",
        "prompt_cache_retention",
        "reasoning",
        "safety_identifier",
        "service_tier",
        "store",
        "stream",
        "stream_options",
        "temperature",
        "text",
        "tool_choice",
        "tools",
        "top_logprobs",
        "top_p",
        "truncation",
        "user",
        "context_management",
    ]
)
_ITEMS: Mapping[str, frozenset[str]] = {
    "message": frozenset({"type", "role", "content", "id", "status", "phase"}),
    "reasoning": frozenset({"type", "id", "summary", "content", "encrypted_content", "status"}),
    "function_call": frozenset(
        {"type", "id", "call_id", "name", "arguments", "status", "namespace"}
    ),
    "function_call_output": frozenset({"type", "id", "call_id", "output", "status"}),
}
_TOOL_FIELDS = frozenset({"type", "name", "description", "parameters", "strict"})
_SEALED = "reasoning.encrypted_content"


class Responses:
    """The Responses API's wire."""

    name = NAME

    def __init__(self, server: Server) -> None:
        self._server = server

    def match(self, method: str, path: str) -> bool:
        return method == "POST" and path == "/v1/responses"

    def read(self, http: HttpRequest) -> Request:
        body, model, key = read_body(self._server, NAME, http)
        check_fields(body, _FIELDS)
        if body.get("previous_response_id"):
            named = body["previous_response_id"]
            said = f"Previous response with id '{named}' not found."
            raise refuse(said, "previous_response_id", "previous_response_not_found")
        tools = []
        for at, tool in enumerate(body.get("tools") or ()):
            check_fields(tool, _TOOL_FIELDS, f"tools[{at}].")
            tools.append(check_function(tool, at, f"tools[{at}]"))
        raw = body.get("input")
        if isinstance(raw, str):
            raw = [{"role": "user", "content": raw}]
        if not isinstance(raw, list) or not raw:
            raise refuse(
                "Missing required parameter: 'input'.", "input", "missing_required_parameter"
            )
        items = [_read_item(item, f"input[{at}]") for at, item in enumerate(raw)]
        _check_outputs(items)
        groups = list(_groups(items))
        messages = tuple(_message(group) for group in groups)
        self._check_reasoning(groups, messages, (NAME, model.name, key))
        system = [str(body.get("instructions") or "")]
        system += [item["text"] for item in items if item.get("role") in ("system", "developer")]
        return Request(
            number=http.number,
            wire=NAME,
            model=model.name,
            key=key,
            messages=messages,
            tools=tuple(tools),
            system="\n".join(filter(None, system)),
            streamed=body.get("stream") is True,
            body=body,
        )

    def write(self, request: Request, turn: Turn) -> Answer:
        sealed = _SEALED in (request.body.get("include") or ())
        output = [self._item(part, sealed) for part in turn.parts]
        usage = turn.usage
        read, written = usage.input + usage.cache_read + usage.cache_write, usage.output
        reasons = {"length": "max_output_tokens", "safety": "content_filter"}
        reason = reasons.get(turn.finish, turn.finish)
        whole = {
            "id": self._server.new_id("resp_"),
            "object": "response",
            "created_at": self._server.now_s(),
            "status": "incomplete" if reason else "completed",
            "error": None,
            "incomplete_details": {"reason": reason} if reason else None,
            "instructions": request.body.get("instructions"),
            "metadata": {},
            "model": request.model,
            "output": output,
            "parallel_tool_calls": request.body.get("parallel_tool_calls", True),
            "tool_choice": request.body.get("tool_choice", "auto"),
            "tools": request.body.get("tools") or [],
            "store": False,
            "usage": {
                "input_tokens": read,
                "input_tokens_details": {"cached_tokens": usage.cache_read},
                "output_tokens": written + usage.thinking,
                "output_tokens_details": {"reasoning_tokens": usage.thinking},
                "total_tokens": read + written + usage.thinking,
            },
        }
        opaque: dict[str, Any] = {}
        for at, item in enumerate(output):
            opaque[item["id"]] = {"item": item, "next": output[at + 1 : at + 2]}
            if item["type"] == "function_call":
                before = [each for each in output[:at] if each["type"] == "reasoning"]
                opaque[item["call_id"]] = {"item": item, "reasoning": before[-1:]}
        parts = [_identity(item) for item in output if item["type"] != "message"]
        headers = {"x-request-id": self._server.new_id("req_")}
        if not request.streamed:
            return Answer([encode(whole)], parts, opaque, {**JSON, **headers})
        body = []
        for number, event in enumerate(_events(whole, output)):
            data = encode({**event, "sequence_number": number})
            body.append(f"event: {event['type']}\ndata: ".encode() + data + b"\n\n")
        return Answer(body, parts, opaque, {**SSE, **headers})

    def trouble(self, fault: ErrorAnswer) -> Refusal:
        return trouble(fault)

    def _item(self, part: Any, sealed: bool) -> dict[str, Any]:
        if isinstance(part, str):
            text = {"type": "output_text", "text": part, "annotations": [], "logprobs": []}
            return {
                "type": "message",
                "id": self._server.new_id("msg_"),
                "status": "completed",
                "role": "assistant",
                "content": [text],
            }
        if isinstance(part, FunctionCall):
            args = part.args if isinstance(part.args, str) else json.dumps(part.args)
            return {
                "type": "function_call",
                "id": self._server.new_id("fc_"),
                "call_id": self._server.new_id("call_"),
                "name": part.name,
                "arguments": args,
                "status": "completed",
            }
        thought = part.text if isinstance(part, Thinking) else ""
        item: dict[str, Any] = {
            "type": "reasoning",
            "id": self._server.new_id("rs_"),
            "summary": [{"type": "summary_text", "text": thought}] if thought else [],
        }
        return {**item, "encrypted_content": self._server.new_id("gAAAAA", 60)} if sealed else item

    def _check_reasoning(
        self,
        groups: Sequence[Sequence[Mapping[str, Any]]],
        messages: Sequence[Message],
        route: Route,
    ) -> None:
        """Raise Refusal unless reasoning and what followed on it come back together."""
        history = self._server.history
        said = prefixes(messages)
        for at, _ in turns_of(messages):
            group = groups[at]
            for index, item in enumerate(group):
                if item["type"] == "reasoning":
                    kept = history.opaque(route, item["id"])
                    _check_item(item, kept, group[index + 1 : index + 2])
                elif item["type"] == "function_call":
                    kept = history.opaque(route, item["call_id"])
                    _check_call(item, kept, group[:index])
            shown = [_identity(item) for item in group if item["type"] != "message"]
            handed = history.at(route, said[at])
            if handed and shown not in handed:
                _check_whole(group, handed[-1])


def _check_item(
    item: Mapping[str, Any], kept: Mapping[str, Any] | None, following: Sequence[Mapping[str, Any]]
) -> None:
    name = item["id"]
    if not item.get("encrypted_content"):
        raise refuse(
            f"Item with id '{name}' not found. Items are not persisted when `store` is set to "
            "false. Try again with `store` set to true, or remove this item from your input.",
            "input",
            status=404,
        )
    if kept is None or kept["item"].get("encrypted_content") != item["encrypted_content"]:
        raise refuse(
            f"The encrypted content for item {name} could not be verified. Reason: Encrypted "
            "content could not be decrypted or parsed.",
            code="invalid_encrypted_content",
        )
    if [_identity(each) for each in following] != [_identity(each) for each in kept["next"]]:
        raise _unfollowed(name)


def _check_call(
    item: Mapping[str, Any], kept: Mapping[str, Any] | None, before: Sequence[Mapping[str, Any]]
) -> None:
    if kept is None:
        return
    reasoning = [each["id"] for each in before if each["type"] == "reasoning"]
    for needed in kept["reasoning"]:
        if needed["id"] not in reasoning:
            raise _unreasoned(item.get("id") or kept["item"]["id"], needed["id"])


def _check_whole(group: Sequence[Mapping[str, Any]], handed: Sequence[Any]) -> None:
    """Raise Refusal if reasoning of a turn is gone, or what followed on it is another thing."""
    shown = [_identity(item) for item in group]
    for kind, name, *_ in handed:
        if kind == "reasoning":
            call: Mapping[str, Any]
            call = next((item for item in group if item["type"] == "function_call"), {})
            if (kind, name) in shown:
                raise _unfollowed(name)
            raise _unreasoned(str(call.get("id") or call.get("call_id")), name)


def _unreasoned(name: str, needed: str) -> Refusal:
    return refuse(
        f"Item '{name}' of type 'function_call' was provided without its required 'reasoning' "
        f"item: '{needed}'.",
        "input",
    )


def _unfollowed(name: str) -> Refusal:
    said = f"Item '{name}' of type 'reasoning' was provided without its required following item."
    return refuse(said, "input")


def _identity(item: Mapping[str, Any]) -> tuple[Any, ...]:
    """Return what an item is known by: a call by its call_id, as clients may leave out its id."""
    if item["type"] == "function_call":
        args = item["arguments"] if "args" not in item else item["args"]
        if isinstance(args, str):
            with contextlib.suppress(ValueError):
                args = json.loads(args)
        return ("function_call", item["call_id"], item["name"], json.dumps(args, sort_keys=True))
    return (item["type"], item["id"]) if item["type"] == "reasoning" else (item["type"],)


def _read_item(raw: Any, where: str) -> dict[str, Any]:
    kind = str(raw.get("type", "message")) if isinstance(raw, dict) else ""
    if kind not in _ITEMS:
        raise refuse(f"Invalid value: '{kind}'.", where, "invalid_value")
    check_fields(raw, _ITEMS[kind], f"{where}.")
    item = {"type": kind, **raw}
    if kind == "message":
        role = raw.get("role")
        if role not in ("user", "assistant", "system", "developer"):
            raise refuse(f"Invalid value: '{role}'.", f"{where}.role", "invalid_value")
        kinds = ("output_text", "refusal") if role == "assistant" else ("input_text", "input_image")
        item["text"] = read_text(raw.get("content"), kinds, f"{where}.content")
        return item
    for name in ("id",) if kind == "reasoning" else ("call_id",):
        if not raw.get(name):
            said = f"Missing required parameter: '{where}.{name}'."
            raise refuse(said, f"{where}.{name}", "missing_required_parameter")
    if kind == "function_call":
        item["args"] = read_arguments(raw.get("arguments"), f"{where}.arguments")
    if kind == "function_call_output" and not isinstance(raw.get("output"), str | list):
        said = f"Invalid type for '{where}.output'."
        raise refuse(said, f"{where}.output", "invalid_type")
    return item


def _check_outputs(items: Sequence[Mapping[str, Any]]) -> None:
    """Raise Refusal unless each call has its output, and each output its call before it."""
    waiting: list[str] = []
    for item in items:
        if item["type"] == "function_call":
            waiting.append(item["call_id"])
        elif item["type"] == "function_call_output":
            if item["call_id"] not in waiting:
                said = (
                    f"No tool call found for function call output with call_id {item['call_id']}."
                )
                raise refuse(said, "input")
            waiting.remove(item["call_id"])
    if waiting:
        raise refuse(f"No tool output found for function call {waiting[0]}.", "input")


def _groups(items: Sequence[Mapping[str, Any]]) -> Iterator[list[Mapping[str, Any]]]:
    """Yield items that make one message: what the model said in a row, or what it was told."""
    group: list[Mapping[str, Any]] = []
    for item in items:
        if item.get("role") in ("system", "developer"):
            continue
        if group and _is_model(group[-1]) != _is_model(item):
            yield group
            group = []
        group.append(item)
    if group:
        yield group


def _is_model(item: Mapping[str, Any]) -> bool:
    return item.get("role") == "assistant" or item["type"] in ("reasoning", "function_call")


def _message(group: Sequence[Mapping[str, Any]]) -> Message:
    return Message(
        "model" if _is_model(group[0]) else "user",
        "".join(item.get("text", "") for item in group),
        tuple(
            FunctionCall(item["name"], item["args"], item["call_id"])
            for item in group
            if item["type"] == "function_call"
        ),
        tuple(
            FunctionResult(item["call_id"], "", item["output"])
            for item in group
            if item["type"] == "function_call_output"
        ),
    )


def _events(
    whole: Mapping[str, Any], output: Sequence[Mapping[str, Any]]
) -> Iterator[Mapping[str, Any]]:
    begin = {**whole, "status": "in_progress", "output": [], "usage": None}
    yield {"type": "response.created", "response": begin}
    yield {"type": "response.in_progress", "response": begin}
    for index, item in enumerate(output):
        place = {"output_index": index}
        at = {**place, "item_id": item["id"]}
        empty = {"message": "content", "function_call": "arguments"}.get(item["type"])
        started = {**item, **({empty: type(item[empty])()} if empty else {})}
        yield {"type": "response.output_item.added", **place, "item": started}
        if item["type"] == "function_call":
            kind = "response.function_call_arguments"
            for piece in pieces(item["arguments"]):
                yield {"type": f"{kind}.delta", **at, "delta": piece}
            yield {
                "type": f"{kind}.done",
                **at,
                "arguments": item["arguments"],
                "name": item["name"],
            }
        for part in item["content"] if item["type"] == "message" else ():
            at = {**at, "content_index": 0}
            yield {"type": "response.content_part.added", **at, "part": {**part, "text": ""}}
            for piece in pieces(part["text"]):
                delta = {"delta": piece, "logprobs": []}
                yield {"type": "response.output_text.delta", **at, **delta}
            text = {"text": part["text"], "logprobs": []}
            yield {"type": "response.output_text.done", **at, **text}
            yield {"type": "response.content_part.done", **at, "part": part}
        yield {"type": "response.output_item.done", **place, "item": item}
    yield {"type": f"response.{whole['status']}", "response": whole}

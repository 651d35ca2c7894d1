"""Gemini: generateContent and streamGenerateContent.

Sources: ai.google.dev, *Thought signatures*, *Function calling*, *Troubleshooting*; the words of
the errors are those that people report of it. Names are taken in camelCase and in snake_case.
"""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Mapping, Sequence
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
from vedette.testing.model_server.turn_history import Parts, Route, prefixes
from vedette.testing.model_server.wire import (
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

NAME = "gemini"
SKIP = b"skip_thought_signature_validator"

_PATH = re.compile(r"(?:/v1beta|/v1)?/models/([^/:]+):(generateContent|streamGenerateContent)")
_FUNCTION = re.compile(r"[a-zA-Z_][a-zA-Z0-9_.:-]{0,63}")
_FIELDS = frozenset(
    [
        "contents",
        "tools",
        "toolConfig",
        "safetySettings",
        "systemInstruction",
        "generationConfig",
        "cachedContent",
        "serviceTier",
        "store",
        "labels",
        "model",
    ]
)
_PART_FIELDS = frozenset(
    [
        "text",
        "thought",
        "thoughtSignature",
        "functionCall",
        "functionResponse",
        "inlineData",
        "fileData",
        "executableCode",
        "codeExecutionResult",
        "videoMetadata",
        "mediaResolution",
        "partMetadata",
        "toolCall",
        "toolResponse",
    ]
)
_STATUS = {
    400: "INVALID_ARGUMENT",
    402: "FAILED_PRECONDITION",
    403: "PERMISSION_DENIED",
    404: "NOT_FOUND",
    429: "RESOURCE_EXHAUSTED",
    500: "INTERNAL",
    503: "UNAVAILABLE",
}
_FINISH = {"": "STOP", "length": "MAX_TOKENS", "safety": "SAFETY"}

_MISSING = (
    "Function call is missing a thought_signature in functionCall parts. This is required for "
    "tools to work correctly, and missing thought_signature may lead to degraded model "
    "performance. Additional data, function call `default_api:{name}` , position {position}. "
    "Please refer to https://ai.google.dev/gemini-api/docs/thought-signatures for more details."
)
_CORRUPTED = "Corrupted thought signature."
_COUNT = (
    "Please ensure that the number of function response parts is equal to the number of function "
    "call parts of the function call turn."
)
_RESPONSE_PLACE = (
    "Please ensure that function response turn comes immediately after a function call turn."
)
_CALL_PLACE = (
    "Please ensure that function call turn comes immediately after a user turn or after a "
    "function response turn."
)


class Gemini:
    """Gemini's wire."""

    name = NAME

    def __init__(self, server: Server) -> None:
        self._server = server

    def match(self, method: str, path: str) -> bool:
        return method == "POST" and _PATH.fullmatch(path) is not None

    def read(self, http: HttpRequest) -> Request:
        key = http.headers.get("x-goog-api-key") or http.query.get("key", "")
        self._check_key(key)
        matched = _PATH.fullmatch(http.path)
        assert matched is not None
        model = self._server.models.get((NAME, matched[1]))
        if model is None:
            raise _refuse(
                f"models/{matched[1]} is not found for API version v1beta, or is not supported "
                f"for {matched[2]}. Call ListModels to see the list of available models and their "
                "supported methods.",
                404,
            )
        body = parse(http.body, _refuse("Invalid JSON payload received. Unexpected token."))
        body = _known(body, _FIELDS, "")
        contents = [_read_content(raw, at) for at, raw in enumerate(_contents(body))]
        tools = _read_tools(body.get("tools") or ())
        messages = tuple(_message(content) for content in contents)
        _check_places(messages, model)
        self._check_signatures(contents, messages, model, (NAME, model.name, key))
        return Request(
            number=http.number,
            wire=NAME,
            model=model.name,
            key=key,
            messages=messages,
            tools=tools,
            system=_system(body.get("systemInstruction")),
            streamed=matched[2] == "streamGenerateContent",
            body={**body, "alt": http.query.get("alt", "")},
        )

    def write(self, request: Request, turn: Turn) -> Answer:
        model = self._server.models[NAME, request.model]
        parts = [self._part(part, model) for part in turn.parts]
        parts = [part for part in parts if part]
        opaque: dict[str, Any] = {}
        last_text: dict[str, Any] = {}
        calls = [part for part in parts if "functionCall" in part]
        signed = calls[:1] or [part for part in parts if not part.get("thought")][-1:]
        if model.strict and signed:
            signature = base64.b64encode(self._server.new_id("gemini-", 60).encode()).decode()
            opaque[_token(signature)] = _bound(signed[0])
            if "functionCall" in signed[0] or not request.streamed:
                signed[0]["thoughtSignature"] = signature
            else:
                # In a stream a text is over before its signature is known.
                last_text = {"text": "", "thoughtSignature": signature}
        whole = self._whole(request, turn)
        if not request.streamed:
            content = {"role": "model", **({"parts": parts} if parts else {})}
            body = [encode(whole(content, last=True))]
            return Answer(body, _calls(parts), opaque)
        streamed = [each for part in parts for each in _cut(part)]
        streamed = [*streamed, last_text] if last_text else streamed or [{"text": ""}]
        chunks = [
            whole({"role": "model", "parts": [part]}, last=at == len(streamed) - 1)
            for at, part in enumerate(streamed)
        ]
        if request.body["alt"] != "sse":
            return Answer([encode(chunks)], _calls(parts), opaque)
        events = [b"data: " + encode(chunk) + b"\r\n\r\n" for chunk in chunks]
        return Answer(events, _calls(parts), opaque, SSE)

    def trouble(self, fault: ErrorAnswer) -> Refusal:
        help_ = {
            "@type": "type.googleapis.com/google.rpc.Help",
            "links": [{"url": "https://ai.google.dev/gemini-api/docs/rate-limits"}],
        }
        if fault.trouble in ("rate_limit", "daily_quota"):
            each = "PerDay" if fault.trouble == "daily_quota" else "PerMinute"
            violation = {
                "quotaMetric": "generativelanguage.googleapis.com/generate_content_requests",
                "quotaId": fault.code or f"GenerateRequests{each}PerProjectPerModel",
                "quotaValue": "10",
            }
            details: list[Mapping[str, Any]] = [
                {"@type": "type.googleapis.com/google.rpc.QuotaFailure", "violations": [violation]},
                help_,
            ]
            if fault.retry_after_s is not None:
                delay = f"{fault.retry_after_s}s"
                info = "type.googleapis.com/google.rpc.RetryInfo"
                details.append({"@type": info, "retryDelay": delay})
            said = "You exceeded your current quota, please check your plan and billing details."
            return _refuse(said, 429, details)
        if fault.trouble == "billing":
            return _refuse("Your prepayment credits are depleted.", 402)
        if fault.trouble == "internal":
            return _refuse("An internal error has occurred. Please retry.", 500)
        return _refuse("The model is overloaded. Please try again later.", 503)

    def _check_key(self, key: str) -> None:
        if not key:
            raise _refuse(
                "Method doesn't allow unregistered callers (callers without established "
                "identity). Please use API Key or other form of API consumer identity to call "
                "this API.",
                403,
            )
        if key not in self._server.keys:
            info = {
                "@type": "type.googleapis.com/google.rpc.ErrorInfo",
                "reason": "API_KEY_INVALID",
                "domain": "googleapis.com",
            }
            raise _refuse("API key not valid. Please pass a valid API key.", 400, [info])

    def _check_signatures(
        self,
        contents: Sequence[Mapping[str, Any]],
        messages: Sequence[Message],
        model: Model,
        route: Route,
    ) -> None:
        history = self._server.history
        said = prefixes(messages)
        for at, message in turns_of(messages):
            handed = history.at(route, said[at])
            first_call = next((p for p in contents[at]["parts"] if "functionCall" in p), None)
            for part in contents[at]["parts"]:
                signature = part.get("thoughtSignature")
                if signature is None:
                    continue
                if part is first_call and not handed and _is_skip(signature):
                    continue
                if history.opaque(route, _token(signature)) != _bound(part):
                    raise _refuse(_CORRUPTED)
            if not (model.strict and message.calls):
                continue
            own = any(signature for turn in handed for _, signature in turn)
            assert first_call is not None
            current = not any(later.text for later in messages[at:] if later.role == "user")
            if "thoughtSignature" not in first_call and (own or current):
                raise _refuse(_MISSING.format(name=message.calls[0].name, position=at + 1))
            if handed and _calls(contents[at]["parts"]) not in handed:
                raise _refuse(_CORRUPTED)

    def _part(self, part: Any, model: Model) -> dict[str, Any]:
        if isinstance(part, str):
            return {"text": part}
        if isinstance(part, FunctionCall):
            if isinstance(part.args, str):
                raise TypeError(f"the arguments of {part.name} are an object on Gemini's wire")
            call = {"name": part.name, "args": part.args}
            if model.strict:
                call["id"] = self._server.new_id("", 8)
            return {"functionCall": call}
        if isinstance(part, Thinking) and part.text:
            return {"text": part.text, "thought": True}
        return {}

    def _whole(self, request: Request, turn: Turn) -> Any:
        usage = turn.usage
        read = usage.input + usage.cache_read + usage.cache_write
        counts = {
            "promptTokenCount": read,
            "candidatesTokenCount": usage.output,
            "totalTokenCount": read + usage.output + usage.thinking,
            **({"thoughtsTokenCount": usage.thinking} if usage.thinking else {}),
            **({"cachedContentTokenCount": usage.cache_read} if usage.cache_read else {}),
        }
        named = {"modelVersion": request.model, "responseId": self._server.new_id("", 22)}
        finish = {"finishReason": _FINISH.get(turn.finish, turn.finish)}

        def whole(content: Mapping[str, Any], *, last: bool) -> dict[str, Any]:
            candidate = {"content": content, "index": 0, **(finish if last else {})}
            return {"candidates": [candidate], "usageMetadata": counts, **named}

        return whole


def _refuse(message: str, status: int = 400, details: Sequence[Mapping[str, Any]] = ()) -> Refusal:
    error: dict[str, Any] = {"code": status, "message": message, "status": _STATUS[status]}
    if details:
        error["details"] = details
    return Refusal(status, {"error": error})


def _known(raw: Any, fields: frozenset[str], where: str) -> dict[str, Any]:
    """Return a message with its own field names in camelCase; unknown ones are refused."""
    if not isinstance(raw, dict):
        raise _refuse(f"Invalid value at '{where.strip()}' (expected an object).")
    named = {re.sub(r"_([a-z])", lambda m: m[1].upper(), name): raw[name] for name in raw}
    for name in named:
        if name not in fields:
            raise _refuse(
                f'Invalid JSON payload received. Unknown name "{name}"{where}: Cannot find field.'
            )
    return named


def _contents(body: Mapping[str, Any]) -> list[Any]:
    contents = body.get("contents")
    if not isinstance(contents, list) or not contents:
        raise _refuse("* GenerateContentRequest.contents: contents is not specified\n")
    return contents


def _read_content(raw: Any, at: int) -> dict[str, Any]:
    content = _known(raw, frozenset({"role", "parts"}), f" at 'contents[{at}]'")
    role = content.get("role", "user")
    if role not in ("user", "model", "function"):
        raise _refuse("Please use a valid role: user, model.")
    parts = [
        _read_part(part, f" at 'contents[{at}].parts[{index}]'")
        for index, part in enumerate(content.get("parts") or [])
    ]
    if not parts:
        raise _refuse(
            f"* GenerateContentRequest.contents[{at}].parts: contents.parts must not be empty.\n"
        )
    return {"role": "model" if role == "model" else "user", "parts": parts}


def _read_part(raw: Any, where: str) -> dict[str, Any]:
    part = _known(raw, _PART_FIELDS, where)
    if "functionCall" in part:
        fields = frozenset({"id", "name", "args"})
        call = _known(part["functionCall"], fields, f"{where}.function_call")
        part["functionCall"] = {**call, "args": call.get("args") or {}}
    if "functionResponse" in part:
        fields = frozenset({"id", "name", "response", "willContinue", "scheduling", "parts"})
        answer = _known(part["functionResponse"], fields, f"{where}.function_response")
        if not isinstance(answer.get("response"), dict):
            raise _refuse(
                f"Invalid value{where}.function_response.response "
                "(type.googleapis.com/google.protobuf.Struct)"
            )
        part["functionResponse"] = answer
    return part


def _read_tools(tools: Sequence[Any]) -> tuple[str, ...]:
    names = []
    for at, raw in enumerate(tools):
        tool = _known(raw, frozenset({"functionDeclarations"}), f" at 'tools[{at}]'")
        for index, each in enumerate(tool.get("functionDeclarations") or ()):
            where = f"tools[{at}].function_declarations[{index}]"
            fields = frozenset(
                [
                    "name",
                    "description",
                    "parameters",
                    "parametersJsonSchema",
                    "response",
                    "responseJsonSchema",
                    "behavior",
                ]
            )
            function = _known(each, fields, f" at '{where}'")
            name = str(function.get("name", ""))
            if not _FUNCTION.fullmatch(name):
                raise _refuse(
                    f"* GenerateContentRequest.{where}.name: [FIELD_INVALID] Invalid function "
                    "name. Must start with a letter or an underscore.\n"
                )
            schema = function.get("parametersJsonSchema")
            if schema is None and "parameters" in function:
                schema = _json_schema(function["parameters"])
            trouble = None if schema is None else schema_error(schema)
            if trouble:
                raise _refuse(f"* GenerateContentRequest.{where}.parameters: {trouble}\n")
            names.append(name)
    return tuple(names)


def _json_schema(schema: Any) -> Any:
    """Return the JSON Schema of a schema of OpenAPI's: it names types in capitals."""
    if isinstance(schema, list):
        return [_json_schema(each) for each in schema]
    if not isinstance(schema, dict):
        return schema
    made = {
        name: {key: _json_schema(each) for key, each in value.items()}
        if name == "properties" and isinstance(value, dict)
        else _json_schema(value)
        for name, value in schema.items()
    }
    kind = made.get("type")
    return {**made, "type": kind.lower()} if isinstance(kind, str) else made


def _message(content: Mapping[str, Any]) -> Message:
    texts = [
        part["text"] for part in content["parts"] if part.get("text") and not part.get("thought")
    ]
    calls = [part["functionCall"] for part in content["parts"] if "functionCall" in part]
    answers = [part["functionResponse"] for part in content["parts"] if "functionResponse" in part]
    return Message(
        content["role"],
        "".join(texts),
        tuple(
            FunctionCall(call.get("name", ""), call.get("args") or {}, call.get("id", ""))
            for call in calls
        ),
        tuple(
            FunctionResult(each.get("id", ""), each.get("name", ""), each["response"])
            for each in answers
        ),
    )


def _check_places(messages: Sequence[Message], model: Model) -> None:
    """Raise Refusal unless calls and their responses stand side by side."""
    for at, message in enumerate(messages):
        if message.calls and (message.role == "user" or not at or messages[at - 1].role != "user"):
            raise _refuse(_CALL_PLACE)
        before = messages[at - 1].calls if at else ()
        if message.results and (message.role == "model" or not before):
            raise _refuse(_RESPONSE_PLACE)
        if len(before) != len(message.results):
            raise _refuse(_COUNT)
        if model.strict and {(call.id, call.name) for call in before} != {
            (result.id, result.name) for result in message.results
        }:
            raise _refuse(_COUNT)
    if messages[-1].calls:
        raise _refuse(_COUNT)


def _system(raw: Any) -> str:
    parts = raw.get("parts") or () if isinstance(raw, dict) else ()
    return "\n".join(str(part.get("text", "")) for part in parts)


def _token(signature: Any) -> str:
    """Return the bytes of a signature in one alphabet: clients write either of base64's."""
    try:
        return base64.urlsafe_b64decode(str(signature).replace("+", "-").replace("/", "_")).hex()
    except (binascii.Error, ValueError):
        return ""


def _is_skip(signature: str) -> bool:
    return signature == SKIP.decode() or _token(signature) == SKIP.hex()


def _bound(part: Mapping[str, Any]) -> Any:
    """Return what a signature is bound to: a call, or that it is a text's."""
    return part.get("functionCall", "text")


def _calls(parts: Sequence[Mapping[str, Any]]) -> Parts:
    """Return what must come back of a turn: its calls, with the signature in its place."""
    return [
        (part["functionCall"], _token(part.get("thoughtSignature", "")))
        for part in parts
        if "functionCall" in part
    ]


def _cut(part: dict[str, Any]) -> list[dict[str, Any]]:
    if "text" not in part or not part["text"]:
        return [part]
    return [{**part, "text": piece} for piece in pieces(part["text"])]

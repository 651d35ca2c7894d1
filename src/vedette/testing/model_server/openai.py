"""What OpenAI's two wires have in common: keys, models, errors, schemas.

Source: platform.openai.com, *Error codes*; the words are those that people report.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from vedette.testing.model_server.fault import ErrorAnswer
from vedette.testing.model_server.wire import (
    HttpRequest,
    Model,
    Refusal,
    Server,
    parse,
    schema_error,
)

_FUNCTION = re.compile(r"[a-zA-Z0-9_-]{1,64}")
_BILLING = {
    "credit_balance_exhausted": "Your credit balance is exhausted. Add credits to continue.",
    "insufficient_quota": (
        "You exceeded your current quota, please check your plan and billing details."
    ),
}


def refuse(
    message: str,
    param: str | None = None,
    code: str | None = None,
    *,
    status: int = 400,
    kind: str = "invalid_request_error",
    headers: Mapping[str, str] | None = None,
) -> Refusal:
    """Return an error as OpenAI says it."""
    error = {"message": message, "type": kind, "param": param, "code": code}
    return Refusal(status, {"error": error}, headers)


def read_body(server: Server, wire: str, http: HttpRequest) -> tuple[dict[str, Any], Model, str]:
    """Return the body, the model and the key of a request."""
    scheme, _, key = http.headers.get("authorization", "").partition(" ")
    if scheme.lower() != "bearer" or not key:
        said = "You didn't provide an API key. You need to provide your API key in an "
        raise refuse(said + "Authorization header using Bearer auth.", status=401)
    if key not in server.keys:
        said = f"Incorrect API key provided: {key[:3]}***. You can find your API key at "
        said += "https://platform.openai.com/account/api-keys."
        raise refuse(said, code="invalid_api_key", status=401)
    said = "We could not parse the JSON body of your request. (HINT: This likely means you "
    body = parse(http.body, refuse(said + "aren't using your HTTP library correctly.)"))
    name = body.get("model")
    if not name:
        raise refuse("you must provide a model parameter")
    model = server.models.get((wire, str(name)))
    if model is None:
        said = f"The model `{name}` does not exist or you do not have access to it."
        raise refuse(said, code="model_not_found", status=404)
    return body, model, key


def trouble(fault: ErrorAnswer) -> Refusal:
    """Return OpenAI's error for a trouble of the provider's."""
    waits = fault.retry_after_s
    headers = {} if waits is None else {"retry-after": str(waits)}
    match fault.trouble:
        case "rate_limit" | "daily_quota":
            code = fault.code or "rate_limit_exceeded"
            said = "Rate limit reached for requests. Please try again later."
            return refuse(said, code=code, status=429, kind="requests", headers=headers)
        case "billing":
            code = fault.code or "credit_balance_exhausted"
            said = _BILLING.get(code, "Your spend limit is reached.")
            return refuse(said, code=code, status=429, kind=code, headers=headers)
        case "internal":
            said = "The server had an error while processing your request. Sorry about that!"
            return refuse(said, status=500, kind="server_error", headers=headers)
        case _:
            said = "The engine is currently overloaded, please try again later."
            return refuse(said, status=503, kind="server_error", headers=headers)


def check_fields(raw: Mapping[str, Any], fields: frozenset[str], where: str = "") -> None:
    """Raise Refusal for a field that there is not."""
    for name in raw:
        if name not in fields:
            raise refuse(f"Unknown parameter: '{where}{name}'.", where + name, "unknown_parameter")


def check_function(function: Any, at: int, where: str) -> str:
    """Return the name of a function that is offered; its schema is checked."""
    name = function.get("name", "") if isinstance(function, dict) else ""
    if not _FUNCTION.fullmatch(str(name)):
        said = f"Invalid '{where}.name': string does not match pattern. Expected a string that "
        raise refuse(
            said + "matches the pattern '^[a-zA-Z0-9_-]+$'.", f"{where}.name", "invalid_value"
        )
    schema = function.get("parameters")
    wrong = None if schema is None else schema_error(schema)
    if wrong:
        said = f"Invalid schema for function '{name}': {wrong}"
        raise refuse(said, f"tools[{at}].parameters", "invalid_function_parameters")
    return str(name)


def read_arguments(arguments: Any, where: str) -> Any:
    """Return the arguments of a call, which are JSON in a string."""
    if not isinstance(arguments, str):
        kind = "an object" if isinstance(arguments, dict) else "another type"
        said = f"Invalid type for '{where}': expected a string, but got {kind} instead."
        raise refuse(said, where, "invalid_type")
    try:
        return json.loads(arguments)
    except ValueError:
        raise refuse(f"Invalid '{where}': not valid JSON.", where, "invalid_value") from None


def read_text(content: Any, kinds: Sequence[str], where: str) -> str:
    """Return the text of a message's content, whose parts may be of these types."""
    if content is None or isinstance(content, str):
        return content or ""
    if not isinstance(content, list):
        raise refuse(f"Invalid type for '{where}'.", where, "invalid_type")
    for at, part in enumerate(content):
        kind = part.get("type") if isinstance(part, dict) else None
        if kind not in kinds:
            named = " and ".join(f"'{each}'" for each in kinds)
            said = f"Invalid value: '{kind}'. Supported values are: {named}."
            raise refuse(said, f"{where}[{at}]", "invalid_value")
    return "".join(str(part.get("text", "")) for part in content)

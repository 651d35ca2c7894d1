"""Responses of the agents' API and of /mcp: JSON, and errors with their HTTP status."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from vedette.domain.base.errors import Forbidden, NotFound, Temporary, VedetteError
from vedette.domain.ports.tokens import BadToken

if TYPE_CHECKING:
    from starlette.responses import Response

_CHALLENGE = 'Bearer realm="vedette", error="invalid_token"'
_BY_CODE: Mapping[str, int] = {
    "too-large": 413, "too-slow": 408, "too-many": 429, "key-reused": 409, "key-erased": 409,
    "no-mcp": 501,
    "wakes-nobody": 500,
}  # fmt: skip


def http_status(error: VedetteError) -> int:
    """Return the HTTP status with which an agent's client is told of an error."""
    if isinstance(error, BadToken):
        return 401
    if error.code in _BY_CODE:
        return _BY_CODE[error.code]
    if isinstance(error, Temporary):
        return 503
    if isinstance(error, NotFound):
        return 404
    return 403 if isinstance(error, Forbidden) else 400


def error_response(error: VedetteError) -> Response:
    """Return the answer that tells an agent's client of an error."""
    status = http_status(error)
    headers = {"WWW-Authenticate": _CHALLENGE} if status == 401 else {}
    headers |= {"Retry-After": "1"} if status in (429, 503) else {}
    return json_response(status, {"error": error.to_json()}, headers)


def json_response(
    status: int, value: Mapping[str, Any], headers: Mapping[str, str] | None = None
) -> Response:
    """Return an answer to an agent's client; after an error its connection ends."""
    from starlette.responses import Response

    body = json.dumps(value, ensure_ascii=False).encode("utf-8", "replace")
    close = {} if status == 200 else {"Connection": "close"}
    return Response(
        body, status, {"Cache-Control": "no-store", **close, **(headers or {})}, "application/json"
    )

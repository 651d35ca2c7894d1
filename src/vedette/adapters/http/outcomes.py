"""Outcomes of HTTP tools: what an answer of a target means for an effect; pure.

The classes are those of RFC 9110: a 4xx says that the request was refused, a 5xx only that the
server failed at it, be it before or behind the effect. So a 5xx leaves an effect unknown unless a
repeat is harmless. So does a 303, and a 302, which is used like it: whoever answers a POST with
"see there" (15.4.4) has most often done it, and a login page says so, too.
"""

from __future__ import annotations

from collections.abc import Mapping
from email.utils import parsedate_to_datetime
from typing import Any

from vedette.adapters.http.request import Response
from vedette.adapters.http.template import SEE_OTHER, fill_text
from vedette.domain.base.clock import MICROS
from vedette.domain.base.errors import BadEvent
from vedette.domain.cloudevents import load_json
from vedette.domain.effect import Outcome
from vedette.domain.tool import Tool

MAX_RETRY_AFTER_US = 3_600 * MICROS  # that a target may ask us to wait

# Refused before anything was done, and taken the next time (RFC 9110 15.5.9; RFC 8470; RFC 6585).
_RETRY_STATUSES = (408, 425, 429)


def outcome_of(tool: Tool, response: Response) -> Outcome:
    """Return the outcome of an HTTP tool's call, as the target's answer says."""
    assert tool.request is not None
    status = response.status
    if status in tool.request["ok"]:
        return Outcome("done", data_of(response))
    what = f"the target answers {status}{_body_excerpt(response)}"
    busy = status == 409 and bool(tool.request.get("idempotency_header"))
    if status in _RETRY_STATUSES or (busy and tool.settles == "idempotent"):
        # 409: another request with this key is under way (draft-ietf-httpapi-idempotency-key).
        return Outcome("retry", error=what, retry_after_us=retry_after_us(response))
    if status >= 500:
        if tool.settles == "idempotent":
            return Outcome("retry", error=what, retry_after_us=retry_after_us(response))
        return Outcome("unknown", error=what, retry_after_us=retry_after_us(response))
    if status in SEE_OTHER:
        what = f"{what}, which `ok` does not list; a redirect is not followed"
        return Outcome("retry" if tool.settles == "idempotent" else "unknown", error=what)
    if 300 <= status < 400:
        return Outcome("failed", error=f"{what}: a redirect is not followed; mend url or base_url")
    if 200 <= status < 300:
        # It did something, and not what was declared.
        return Outcome("unknown", error=f"{what}, which `ok` does not list")
    return Outcome("failed", data_of(response), error=what)


def query_outcome(spec: Mapping[str, Any], response: Response, call: Any) -> Outcome | None:
    """Return what an HTTP target's answer to an outcome query means; None if there is no effect.

    It is not there if the target says so: by a status, or in an answer that can be read. What
    cannot be (a login page, half an answer, another shape) says nothing. Raises BadArgument for a
    template that the arguments do not fit.
    """
    if response.status in spec["absent"]:
        return None
    if response.status not in spec["done"]:
        return _unreadable(str(response.status))
    if response.truncated:
        return _unreadable("more or less than the whole")
    if not spec["where"]:
        page = _media_type(response) in _PAGE_TYPES
        return _unreadable("a page for people") if page else Outcome("done", data_of(response))
    body = _parse_json(response)
    if body is _MISSING:
        return _unreadable(f"no JSON (its Content-Type is {_media_type(response) or 'missing'})")
    matches = True
    for pointer, template in spec["where"].items():
        wanted = fill_text(template, call.args, call.key)
        value = _resolve_pointer(body, pointer)
        if value is _MISSING or isinstance(value, list | dict):
            return _unreadable(f"something without a text or number at {pointer}")
        matches &= _text(value) == wanted
    return Outcome("done", data_of(response)) if matches else None


def _unreadable(what: str) -> Outcome:
    return Outcome("unknown", error=f"asked for the outcome, the target answers {what}")


def data_of(response: Response) -> dict[str, Any]:
    """Return an HTTP target's answer as data: `body` is JSON where it is such, else text."""
    data: dict[str, Any] = {"status": response.status}
    if response.truncated:
        data["cut"] = True
    if not response.body:
        return data
    body = _parse_json(response)
    if body is not _MISSING:
        return {**data, "body": body}
    return {**data, "body": response.body.decode("utf-8", "replace").replace("\0", "�")}


def retry_after_us(response: Response) -> int:
    """Return how long an HTTP target wants to be left alone (RFC 9110, 10.2.3); 0 if unsaid.

    A date is measured against the target's own, so that no clock is compared with another.
    """
    value = response.headers.get("retry-after", "").strip()
    if value.isascii() and value.isdigit():
        return min(int(value[:9]) * MICROS, MAX_RETRY_AFTER_US)
    try:
        until = parsedate_to_datetime(value)
        now = parsedate_to_datetime(response.headers.get("date", ""))
        seconds = (until - now).total_seconds()
    except (ValueError, TypeError):
        return 0
    return max(0, min(int(seconds) * MICROS, MAX_RETRY_AFTER_US))


def _body_excerpt(response: Response) -> str:
    text = response.body[:200].decode("utf-8", "replace").replace("\0", "�")
    excerpt = " ".join(text.split())
    return f": {excerpt}" if excerpt else ""


_MISSING = object()
_PAGE_TYPES = ("text/html", "application/xhtml+xml")


def _media_type(response: Response) -> str:
    return response.headers.get("content-type", "").partition(";")[0].strip().lower()


def _parse_json(response: Response) -> Any:
    """Return an answer that says that it is JSON, and is."""
    kind = _media_type(response)
    if response.truncated or not (kind == "application/json" or kind.endswith("+json")):
        return _MISSING
    try:
        return load_json(response.body)
    except BadEvent:
        return _MISSING


def _resolve_pointer(value: Any, pointer: str) -> Any:
    """Return what a JSON Pointer (RFC 6901) points at.

    None where the answer says itself that nothing is there: a null on the way, or a list that is
    too short.
    """
    for part in pointer.split("/")[1:]:
        part = part.replace("~1", "/").replace("~0", "~")
        if isinstance(value, dict) and part in value:
            value = value[part]
        elif isinstance(value, list) and part.isascii() and part.isdigit():
            value = value[int(part)] if int(part) < len(value) else None
        elif value is not None:
            return _MISSING
    return value


def _text(value: Any) -> str | None:
    if isinstance(value, bool):
        return "true" if value else "false"
    return str(value) if isinstance(value, str | int | float) else None

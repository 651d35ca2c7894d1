"""What an answer of a target means for an effect: pure.

The classes are those of RFC 9110: a 4xx says that the request was refused, a 5xx only that the
server failed at it, be it before or behind the effect. So a 5xx leaves an effect unknown unless a
repeat is harmless. So does a 303, and a 302, which is used like it: whoever answers a POST with
"see there" (15.4.4) has most often done it, and a login page says so, too.
"""

from __future__ import annotations

from collections.abc import Mapping
from email.utils import parsedate_to_datetime
from typing import Any

from vedette.adapters.http.request import Answer
from vedette.config.http_template import SEE_OTHER, filled_text
from vedette.domain.base.clock import MICROS
from vedette.domain.base.errors import BadEvent
from vedette.domain.cloudevents import load_json
from vedette.domain.effect import Outcome
from vedette.domain.tool import Tool

LONGEST_US = 3_600 * MICROS  # that a target may ask us to wait

# Refused before anything was done, and taken the next time (RFC 9110 15.5.9; RFC 8470; RFC 6585).
_LATER = (408, 425, 429)


def outcome_of(tool: Tool, answer: Answer) -> Outcome:
    """Return what came of a call."""
    assert tool.http is not None
    status = answer.status
    if status in tool.http["ok"]:
        return Outcome("done", data_of(answer))
    what = f"the target answers {status}{_said(answer)}"
    busy = status == 409 and bool(tool.http.get("idempotency_header"))
    if status in _LATER or (busy and tool.settles == "idempotent"):
        # 409: another request with this key is under way (draft-ietf-httpapi-idempotency-key).
        return Outcome("retry", error=what, retry_after_us=retry_after_us(answer))
    if status >= 500:
        if tool.settles == "idempotent":
            return Outcome("retry", error=what, retry_after_us=retry_after_us(answer))
        return Outcome("unknown", error=what, retry_after_us=retry_after_us(answer))
    if status in SEE_OTHER:
        what = f"{what}, which `ok` does not list; a redirect is not followed"
        return Outcome("retry" if tool.settles == "idempotent" else "unknown", error=what)
    if 300 <= status < 400:
        return Outcome("failed", error=f"{what}: a redirect is not followed; mend url or base_url")
    if 200 <= status < 300:
        # It did something, and not what was declared.
        return Outcome("unknown", error=f"{what}, which `ok` does not list")
    return Outcome("failed", data_of(answer), error=what)


def found_of(spec: Mapping[str, Any], answer: Answer, call: Any) -> Outcome | None:
    """Return what the answer to an outcome query means; None if the effect is not there.

    It is not there if the target says so: by a status, or in an answer that can be read. What
    cannot be (a login page, half an answer, another shape) says nothing. Raises BadArgument for a
    template that the arguments do not fit.
    """
    if answer.status in spec["absent"]:
        return None
    if answer.status not in spec["done"]:
        return _unread(str(answer.status))
    if answer.cut:
        return _unread("more or less than the whole")
    if not spec["where"]:
        page = _kind(answer) in _PAGES
        return _unread("a page for people") if page else Outcome("done", data_of(answer))
    body = _json(answer)
    if body is _NOTHING:
        return _unread(f"no JSON (its Content-Type is {_kind(answer) or 'missing'})")
    there = True
    for pointer, template in spec["where"].items():
        wanted = filled_text(template, call.args, call.key)
        value = _at(body, pointer)
        if value is _NOTHING or isinstance(value, list | dict):
            return _unread(f"something without a text or number at {pointer}")
        there &= _text(value) == wanted
    return Outcome("done", data_of(answer)) if there else None


def _unread(what: str) -> Outcome:
    return Outcome("unknown", error=f"asked for the outcome, the target answers {what}")


def data_of(answer: Answer) -> dict[str, Any]:
    """Return an answer as data: `body` is JSON where it is such, else text."""
    data: dict[str, Any] = {"status": answer.status}
    if answer.cut:
        data["cut"] = True
    if not answer.body:
        return data
    body = _json(answer)
    if body is not _NOTHING:
        return {**data, "body": body}
    return {**data, "body": answer.body.decode("utf-8", "replace").replace("\0", "�")}


def retry_after_us(answer: Answer) -> int:
    """Return how long the target wants to be left alone (RFC 9110, 10.2.3); 0 if it does not say.

    A date is measured against the target's own, so that no clock is compared with another.
    """
    told = answer.headers.get("retry-after", "").strip()
    if told.isascii() and told.isdigit():
        return min(int(told[:9]) * MICROS, LONGEST_US)
    try:
        until = parsedate_to_datetime(told)
        now = parsedate_to_datetime(answer.headers.get("date", ""))
        seconds = (until - now).total_seconds()
    except (ValueError, TypeError):
        return 0
    return max(0, min(int(seconds) * MICROS, LONGEST_US))


def _said(answer: Answer) -> str:
    text = answer.body[:200].decode("utf-8", "replace").replace("\0", "�")
    told = " ".join(text.split())
    return f": {told}" if told else ""


_NOTHING = object()
_PAGES = ("text/html", "application/xhtml+xml")


def _kind(answer: Answer) -> str:
    return answer.headers.get("content-type", "").partition(";")[0].strip().lower()


def _json(answer: Answer) -> Any:
    """Return an answer that says that it is JSON, and is."""
    kind = _kind(answer)
    if answer.cut or not (kind == "application/json" or kind.endswith("+json")):
        return _NOTHING
    try:
        return load_json(answer.body)
    except BadEvent:
        return _NOTHING


def _at(value: Any, pointer: str) -> Any:
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
            return _NOTHING
    return value


def _text(value: Any) -> str | None:
    if isinstance(value, bool):
        return "true" if value else "false"
    return str(value) if isinstance(value, str | int | float) else None

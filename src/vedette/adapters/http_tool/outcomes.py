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

from vedette.adapters.http_tool.send import Answer
from vedette.clock import MICROS
from vedette.cloudevents import load_json
from vedette.effect import Outcome
from vedette.errors import BadEvent
from vedette.load.http_template import SEE_OTHER, filled_text
from vedette.tool import Tool

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

    Raises BadArgument for a template that the arguments do not fit.
    """
    if answer.status in spec["absent"]:
        return None
    if answer.status not in spec["done"] or answer.cut:
        what = "too much" if answer.cut else str(answer.status)
        return Outcome("unknown", error=f"asked for the outcome, the target answers {what}")
    data = data_of(answer)
    for pointer, template in spec["where"].items():
        wanted = filled_text(template, call.args, call.key)
        if _text(_at(data.get("body"), pointer)) != wanted:
            return None
    return Outcome("done", data)


def data_of(answer: Answer) -> dict[str, Any]:
    """Return an answer as data: `body` is JSON where it is such, else text."""
    data: dict[str, Any] = {"status": answer.status}
    if answer.cut:
        data["cut"] = True
    if not answer.body:
        return data
    kind = answer.headers.get("content-type", "").partition(";")[0].strip().lower()
    if (kind == "application/json" or kind.endswith("+json")) and not answer.cut:
        try:
            return {**data, "body": load_json(answer.body)}
        except BadEvent:
            pass  # it says that it is JSON, and is none
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


def _at(value: Any, pointer: str) -> Any:
    """Return what a JSON Pointer (RFC 6901) points at."""
    for part in pointer.split("/")[1:]:
        part = part.replace("~1", "/").replace("~0", "~")
        if isinstance(value, dict) and part in value:
            value = value[part]
        elif isinstance(value, list) and part.isdigit() and int(part) < len(value):
            value = value[int(part)]
        else:
            return _NOTHING
    return value


def _text(value: Any) -> str | None:
    if isinstance(value, bool):
        return "true" if value else "false"
    return str(value) if isinstance(value, str | int | float) else None

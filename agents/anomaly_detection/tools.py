"""What the incident tools do: one row per series in the fleet's own collection, one webhook."""

from __future__ import annotations

import http.client
import json
from collections.abc import Mapping
from typing import Any
from urllib.parse import urlsplit

from vedette.sdk import Call, Outcome, RowWrite

COLLECTION = "incidents"

# An answer is a receipt, not content: more than this is not read.
_ANSWER_BYTES = 65536
# Statuses below 500 by which a server asks to be tried again (RFC 9110, RFC 6585).
_LATER = frozenset({408, 425, 429})


def open_incident(call: Call, row: Mapping[str, Any] | None) -> list[RowWrite]:
    """Open the incident of a series; one that is open already takes the stronger reading."""
    if row is not None and row.get("state") == "open":
        return update_incident(call, row)
    opened = {
        "incident": "inc_" + call.key[:16],
        "state": "open",
        "series": call.args["series"],
        "opened_at": call.args["at"],
        "opened_value": call.args["value"],
        "summary": call.args["summary"],
        "peak": call.args["score"],
        "peak_value": call.args["value"],
        "peak_at": call.args["at"],
        "updates": 0,
        "before": (row or {}).get("incident"),
    }
    return [_write(call, opened)]


def update_incident(call: Call, row: Mapping[str, Any] | None) -> list[RowWrite]:
    """Note a stronger reading. Without an open incident, or for a weaker one, nothing changes."""
    if row is None or row.get("state") != "open":
        return []
    if float(call.args["score"]) <= float(row["peak"]):
        return []
    peak = {
        "peak": call.args["score"],
        "peak_value": call.args["value"],
        "peak_at": call.args["at"],
        "updates": int(row["updates"]) + 1,
    }
    return [_write(call, {**row, **peak})]


def close_incident(call: Call, row: Mapping[str, Any] | None) -> list[RowWrite]:
    """Close the open incident of a series; its row stays until the next one opens."""
    if row is None or row.get("state") != "open":
        return []
    closed = {"state": "closed", "closed_at": call.args["at"], "closed_value": call.args["value"]}
    return [_write(call, {**row, **closed})]


def withdraw_incident(call: Call, row: Mapping[str, Any] | None) -> list[RowWrite]:
    """Take the opening of an incident back: the series' row is as it was before.

    Raises ValueError if another incident was opened since: that one is not to be lost.
    """
    was = call.args.get("was")
    if was is None:
        raise ValueError("it is not said what the series had before")
    if was.get("state") == "open":
        return []  # it was open already, and the opening opened nothing
    if row is None or row.get("before") != was.get("incident"):
        raise ValueError("the incident that was opened is not the one the series has now")
    return [RowWrite(COLLECTION, call.args["series"], dict(was) or None)]


def notify(call: Call) -> Outcome:
    """POST the state of an incident to the on-call webhook; the key makes a repeat harmless.

    2xx and 409 (known already) are done. 408, 425, 429, 5xx, a refused connection, a timeout and
    a broken answer are tried again. Redirects are not followed: the address was decided on.
    """
    url = str(call.target.get("url", ""))
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        return Outcome("failed", error=f"the target's url {url!r} is no http(s) address")
    endpoint = str(call.args["endpoint"])
    if "://" in endpoint and endpoint != url:
        return Outcome("failed", error="the decided endpoint is not the target's url")
    body = {name: call.args[name] for name in ("series", "state", "summary")}
    body |= {"agent": call.agent, "run": call.run, "id": call.key}
    headers = {
        "Content-Type": "application/json",
        "Idempotency-Key": call.key,
        **call.labels,
        "traceparent": call.traceparent,
    }
    if token := call.target.get("token"):
        if parts.scheme != "https" and not _here(parts.hostname):
            return Outcome("failed", error="a token is not sent over plain HTTP; use https")
        headers["Authorization"] = f"Bearer {token}"
    try:
        status, answer = _post(url, json.dumps(body, sort_keys=True).encode(), headers, call)
    except (OSError, http.client.HTTPException) as error:
        return Outcome("retry", error=f"{type(error).__name__}: {error}")
    return _outcome(status, answer)


def _here(host: str) -> bool:
    return host in ("localhost", "::1") or host.startswith("127.")


def _post(url: str, body: bytes, headers: Mapping[str, str], call: Call) -> tuple[int, bytes]:
    parts = urlsplit(url)
    kind = http.client.HTTPSConnection if parts.scheme == "https" else http.client.HTTPConnection
    connection = kind(parts.hostname or "", parts.port, timeout=call.timeout_us / 1e6)
    path = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
    try:
        connection.request("POST", path, body, dict(headers))
        response = connection.getresponse()
        return response.status, response.read(_ANSWER_BYTES)
    finally:
        connection.close()


def _outcome(status: int, answer: bytes) -> Outcome:
    if 200 <= status < 300 or status == 409:
        answer_object = _json_object(answer)
        data: dict[str, Any] = {"status": status, "duplicate": status == 409}
        if answer_object.get("duplicate") is True:
            data["duplicate"] = True
        if isinstance(answer_object.get("id"), str | int):
            data["id"] = str(answer_object["id"])[:200]
        return Outcome("done", data)
    error = f"the webhook answered {status}"
    if status >= 500 or status in _LATER:
        return Outcome("retry", {"status": status}, error)
    return Outcome("failed", {"status": status}, error)


def _json_object(answer: bytes) -> Mapping[str, Any]:
    try:
        value = json.loads(answer)
    except ValueError:
        return {}
    return value if isinstance(value, dict) else {}


def _write(call: Call, row: Mapping[str, Any]) -> RowWrite:
    # Runs are ordered by subject, so the series is the key of the row.
    return RowWrite(COLLECTION, call.args["series"], row)

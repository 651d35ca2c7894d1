"""Performs the comment tools on a board. All are idempotent by the call's key.

Who decided stands in the statement as the engine tells it: `call.person` says that a person
approved this very action; the agent cannot claim it.
"""

from __future__ import annotations

import http.client
import json
import sqlite3
from collections.abc import Callable, Mapping
from typing import Any
from urllib.parse import urlsplit

from vedette.sdk import Call, Outcome

from .board import EVIDENCE_DAYS, Board, Refused, digest

_ANSWER_BYTES = 65_536
# Statuses below 500 by which a server asks to be tried again (RFC 9110, RFC 6585).
_LATER = frozenset({408, 425, 429})
# What is done about a comment that is another one by now, and to whose queue it goes.
_EDITED = "edited: queued for a person"
_WHOEVER = "a person"

_Act = Callable[[Board, sqlite3.Connection], Mapping[str, Any]]


def approve(call: Call) -> Outcome:
    """Approve a new comment; one that was edited since it was judged is put before a person.

    A row is one event, however often it is written: nobody else would look at the edited one.
    """

    def act(board: Board, db: sqlite3.Connection) -> Mapping[str, Any]:
        comment = _id(call.args["comment"])
        if board.text(db, comment) != call.args["text"]:
            stated = {**_statement(call), "edited_since": True}
            return board.put_in_queue(db, comment, "edited", _WHOEVER, stated, _EDITED)
        return board.set_state(db, comment, "approve", {"new": "approved"}, _statement(call))

    return _guarded(act, call)


def reopen(call: Call) -> Outcome:
    """Take an approval back: the comment is as it was before."""
    return _guarded(
        lambda board, db: board.take_back(db, _id(call.args["comment"]), "approve", "reopen"), call
    )


def hide(call: Call) -> Outcome:
    """Hide a comment, keep it as it was judged, and state the reasons."""

    def act(board: Board, db: sqlite3.Connection) -> Mapping[str, Any]:
        comment, text = _id(call.args["comment"]), str(call.args["text"])
        body = {**_statement(call), "edited_since": board.text(db, comment) != text}
        to = {"new": "hidden", "approved": "hidden"}
        found = board.set_state(db, comment, "hide", to, body)
        board.keep(db, comment, text)
        return found

    return _guarded(act, call)


def show(call: Call) -> Outcome:
    """Take a hiding back: the comment and its statement are as they were before."""
    return _guarded(
        lambda board, db: board.take_back(db, _id(call.args["comment"]), "hide", "show"), call
    )


def escalate(call: Call) -> Outcome:
    """Put a comment into the queue of a person, and keep it as it was judged."""

    def act(board: Board, db: sqlite3.Connection) -> Mapping[str, Any]:
        comment = _id(call.args["comment"])
        label, to = str(call.args["label"]), str(call.args["to"])
        found = board.put_in_queue(db, comment, label, to, _statement(call))
        board.keep(db, comment, str(call.args["text"]))
        return found

    return _guarded(act, call)


def restore(call: Call) -> Outcome:
    """Show a hidden comment again, as a person decided of its author's appeal."""
    return _appeal(call, "reversed", "approved")


def uphold(call: Call) -> Outcome:
    """Leave a comment hidden, as a person decided of its author's appeal."""
    return _appeal(call, "upheld", "hidden")


def known(call: Call) -> Outcome | None:
    """Say what the board knows of the call's key; None if nothing."""
    try:
        found = Board(_path(call), call.key).known()
    except (Refused, sqlite3.Error) as error:
        return Outcome("unknown", error=str(error))
    return None if found is None else Outcome("done", found)


def alert(call: Call) -> Outcome:
    """Tell whoever is on call that a comment cannot wait. The comment itself is not sent along."""
    url = str(call.target.get("url", ""))
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        return Outcome("failed", error="the target has no http address; set url in vedette.toml")
    message = {
        "type": "comment.alert",
        "endpoint": call.args["endpoint"],
        "comment": _id(call.args["comment"]),
        "label": call.args["label"],
        "summary": call.args["summary"],
        "run": call.run,
    }
    headers = {
        "Content-Type": "application/json",
        "Idempotency-Key": call.key,
        "traceparent": call.traceparent,
        **call.labels,
    }
    token = call.target.get("token")
    if isinstance(token, str) and token:
        if parts.scheme != "https" and not _here(parts.hostname):
            return Outcome("failed", error="a token is not sent over plain HTTP; use https")
        headers["Authorization"] = f"Bearer {token}"
    try:
        status = _post(url, json.dumps(message).encode(), headers, call)
    except (OSError, http.client.HTTPException) as error:
        return Outcome("retry", error=f"{type(error).__name__}: {error}")
    if 200 <= status < 300 or status == 409:
        return Outcome("done", {"status": status, "duplicate": status == 409})
    later = status >= 500 or status in _LATER
    return Outcome("retry" if later else "failed", error=f"the webhook answered {status}")


def _appeal(call: Call, outcome: str, to: str) -> Outcome:
    if not call.person:
        # Policy holds these for a person; should it ever not, the board does not take them either.
        return Outcome("failed", error="an appeal is decided by a person, and nobody did")
    appeal, body = _id(call.args["appeal"]), _statement(call)
    return _guarded(lambda board, db: board.decide_appeal(db, appeal, outcome, to, body), call)


def _statement(call: Call) -> dict[str, Any]:
    """Return the statement of reasons as it is stored, with what the engine knows."""
    given = call.args.get("statement")
    stated = dict(given) if isinstance(given, Mapping) else {}
    text = str(call.args.get("text") or call.args.get("comment_text") or "")
    return {
        **stated,
        "ground": call.args.get("ground", stated.get("ground", "")),
        "text_digest": digest(text),
        "decided_by": "a person" if call.person else "automated means alone",
        "run": call.run,
        "effect": call.key,
    }


def _guarded(act: _Act, call: Call) -> Outcome:
    try:
        board = Board(_path(call), call.key, _days(call))
        return Outcome("done", board.change(lambda db: act(board, db)))
    except Refused as error:
        return Outcome("failed", error=str(error))
    except sqlite3.OperationalError as error:
        # Locked, full, or not there yet: all of it may pass, and every tool may be repeated.
        return Outcome("retry", error=str(error))
    except sqlite3.Error as error:
        return Outcome("failed", error=f"{type(error).__name__}: {error}")


def _path(call: Call) -> str:
    path = call.target.get("path")
    if not isinstance(path, str) or not path:
        raise Refused("the target has no path; set it in vedette.toml")
    return path


def _days(call: Call) -> int:
    days = call.target.get("evidence_days", EVIDENCE_DAYS)
    return days if isinstance(days, int) and days > 0 else EVIDENCE_DAYS


def _id(event: object) -> str:
    """Return the row's own id: events of a table are called TABLE/ID."""
    text = str(event)
    return text.partition("/")[2] or text


def _here(host: str) -> bool:
    return host in ("localhost", "::1") or host.startswith("127.")


def _post(url: str, body: bytes, headers: Mapping[str, str], call: Call) -> int:
    parts = urlsplit(url)
    kind = http.client.HTTPSConnection if parts.scheme == "https" else http.client.HTTPConnection
    connection = kind(parts.hostname or "", parts.port, timeout=call.timeout_us / 1e6)
    path = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
    try:
        connection.request("POST", path, body, dict(headers))
        response = connection.getresponse()
        response.read(_ANSWER_BYTES)
        return response.status
    finally:
        connection.close()

"""The calls that a webhook receiver recorded itself.

`record_file` names its file of JSON lines, `record_url` a URL that answers the same as a JSON
list (with the bearer token of `record_token_env`, `_file` or `_secret`, if one is given). Each call
is an object with its idempotency `key`; `effect` false marks one that did nothing (a repeat, a
refusal), `at` is when it came: RFC 3339, or microseconds.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import SplitResult, urlsplit

from vedette.config.secret_reference import read_secret
from vedette.domain.base.clock import from_iso
from vedette.domain.base.errors import BadFleet, Unavailable
from vedette.domain.base.urls import is_loopback
from vedette.domain.target_record import TargetEffect

MAX_BYTES = 256 << 20
_TIMEOUT_S = 30.0
_DEADLINE_S = 600.0


def read_calls(table: Mapping[str, Any], where: str) -> Iterator[TargetEffect]:
    """Yield the calls of a webhook that had an effect. Raises BadFleet, Unavailable."""
    file, url = table.get("record_file"), table.get("record_url")
    if file:
        yield from _items(_read_file(Path(str(file)), where), where)
    elif url:
        token = read_secret(table, "record_token", where=where)
        yield from _items(_fetch_calls(str(url), token, where), where)
    else:
        mend = "add record_file or record_url"
        raise BadFleet("its record is not named", where=where, mend=mend)


def _items(calls: Iterable[Any], where: str) -> Iterator[TargetEffect]:
    for number, call in enumerate(calls, 1):
        if not isinstance(call, dict):
            raise BadFleet(f"call {number} of its record is no object", where=where)
        if call.get("effect") is False:
            continue
        key = call.get("key")
        # A call without a key is one that nobody here made: it is to be listed.
        yield TargetEffect(
            str(key) if key else f"call {number}", _instant(call.get("at")), f"call {number}"
        )


def _instant(at: Any) -> int:
    if isinstance(at, int) and not isinstance(at, bool):
        return at
    try:
        return from_iso(at) if isinstance(at, str) else 0
    except ValueError:
        return 0


def _read_file(path: Path, where: str) -> Iterator[Any]:
    try:
        with path.open("rb") as lines:
            for number, line in enumerate(lines, 1):
                if not line.endswith(b"\n"):
                    # The receiver is writing it, or was killed at it: nobody was answered.
                    return
                try:
                    yield json.loads(line)
                except ValueError as error:
                    raise BadFleet("is no JSON", where=f"{path}:{number}") from error
    except OSError as error:
        what = f"its record cannot be read: {error.strerror or error}"
        raise Unavailable(what, where=f"{where}: {path}", mend="mend record_file") from error


def _fetch_calls(url: str, token: str | None, where: str) -> list[Any]:
    from vedette.adapters.http_client import NoResponse, SendFailure, request

    parts, host, port = _parse_url(url, where)
    where = f"{where}: {_redact_url(parts, host, port)}"
    if token and parts.scheme != "https" and not is_loopback(host):
        raise BadFleet("a token is not sent over plain HTTP", where=where, mend="use https")
    headers = {"Accept": "application/json"} | (
        {"Authorization": f"Bearer {token}"} if token else {}
    )
    try:
        answer = request(
            "GET", url, headers,
            timeout_s=_DEADLINE_S, read_timeout_s=_TIMEOUT_S, max_bytes=MAX_BYTES,
        )  # fmt: skip
        if answer.status != 200 or answer.truncated:
            more = " and more" if answer.truncated else ""
            what = f"it answers {answer.status}, {len(answer.body)} bytes{more}"
            raise Unavailable(what, where=where)
        calls = json.loads(answer.body)
    except (SendFailure, NoResponse, ValueError) as error:
        what = f"its record cannot be had: {type(error.__cause__ or error).__name__}"
        # Some of these errors print the whole address.
        raise Unavailable(what, where=where) from None
    if not isinstance(calls, list):
        raise BadFleet("its record is no JSON list", where=where)
    return calls


def _parse_url(url: str, where: str) -> tuple[SplitResult, str, int | None]:
    """Return a URL's parts, its host and its port."""
    try:
        parts = urlsplit(url)
        host, port = parts.hostname, parts.port
    except ValueError:
        # It says what is wrong by printing it.
        host = None
    if not host or parts.scheme not in ("http", "https"):
        mend = "write https://HOST[:PORT]/PATH, the port at most 65535"
        raise BadFleet("record_url is no URL", where=where, mend=mend)
    return parts, host, port


def _redact_url(parts: SplitResult, host: str, port: int | None) -> str:
    # Neither the user nor the query: either may hold a secret.
    name = f"[{host}]" if ":" in host else host
    return f"{parts.scheme}://{name}{'' if port is None else f':{port}'}{parts.path}"

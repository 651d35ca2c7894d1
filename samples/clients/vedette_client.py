"""A client of the agents' API in one file, of the standard library alone: copy it into your agent.

    fleet = Fleet("https://fleet.example", token)
    found = fleet.call("book.write", {"page": "ref:/charter/pages/arrivals", "text": "…"})
    found = fleet.wait(found, within_s=600)
    if found["status"] == "done": …

What an outcome may say is in docs/guides/agents-from-outside.md.
"""

from __future__ import annotations

import json
import time
import urllib.error
import urllib.request
import uuid
from collections.abc import Mapping
from typing import Any
from urllib.parse import quote

Outcome = dict[str, Any]
OPEN = ("held", "pending")
# A call waits for 4 s at most and an outcome for 30: whoever is silent for longer is not there.
_TIMEOUT_S = 45.0
_MAX_WAIT_S = 30


class FleetError(Exception):
    """The fleet's refusal of a request: `status` of HTTP, `code`, and how to mend it."""

    def __init__(self, status: int, error: Mapping[str, Any]) -> None:
        super().__init__(f"{error.get('what')} ({error.get('mend')})")
        self.status, self.code, self.mend = status, error.get("code"), error.get("mend")


class Fleet:
    """The fleet at `url`, as the agent whose token this is."""

    def __init__(self, url: str, token: str, *, attempts: int = 5) -> None:
        if not url.startswith(("https://", "http://")):
            raise ValueError(f"{url!r} is no URL of a fleet")
        self._url, self._attempts = url.rstrip("/"), attempts
        self._headers = {"Authorization": f"Bearer {token}", "Content-Type": "application/json"}
        # No proxy of the environment is told the token, and no redirect is followed with it.
        self._open = urllib.request.build_opener(
            urllib.request.ProxyHandler({}), _NoRedirect()
        ).open

    def tools(self) -> list[dict[str, Any]]:
        """Return the tools that policy grants now: name, description, input_schema, resource."""
        found: list[dict[str, Any]] = self._ask("GET", "/v1/agent/tools")["tools"]
        return found

    def call(self, tool: str, args: Mapping[str, Any], key: str | None = None) -> Outcome:
        """Call a tool; what came of it within 4 s. It is sent again if the answer is lost.

        Give your own `key` if you may make the same call again yourself, after a crash.
        """
        body = {"tool": tool, "args": dict(args), "key": key or uuid.uuid4().hex}
        return self._ask("POST", "/v1/agent/calls", body)

    def outcome(self, call: str, wait_s: int = 0) -> Outcome:
        """Return what came of a call, waiting up to 30 s if it is not over."""
        return self._ask("GET", f"/v1/agent/calls/{quote(call, safe='')}?wait_s={int(wait_s)}")

    def wait(self, found: Outcome, within_s: float) -> Outcome:
        """Wait until a call is over, or for so long; a person may have to approve it."""
        end = time.monotonic() + within_s
        while found["status"] in OPEN and (left := end - time.monotonic()) > 0:
            found = self.outcome(found["call"], min(_MAX_WAIT_S, int(left) + 1))
        return found

    def may(self, tool: Mapping[str, Any], args: Mapping[str, Any], agent: str) -> Outcome:
        """Return what policy would decide of a call now (AuthZEN): nothing is done.

        `tool` is one of `tools()`, `agent` who asks, by its name in the fleet.
        """
        question = {
            "subject": {"type": "agent", "id": agent},
            "action": {"name": tool["name"]},
            "resource": {**tool["resource"], "properties": dict(args)},
        }
        return self._ask("POST", "/access/v1/evaluation", question)

    def _ask(self, verb: str, path: str, body: Any = None) -> dict[str, Any]:
        """Ask; ask again where nobody answered, or was too busy. All of it may be repeated."""
        data = None if body is None else json.dumps(body).encode()
        for attempt in range(1, self._attempts + 1):
            request = urllib.request.Request(  # noqa: S310 (its scheme was looked at)
                self._url + path, data=data, headers=self._headers, method=verb
            )
            try:
                with self._open(request, timeout=_TIMEOUT_S) as answer:
                    found: dict[str, Any] = json.load(answer)
                return found
            except urllib.error.HTTPError as error:
                if error.code not in (429, 503) or attempt == self._attempts:
                    raise FleetError(error.code, _read_error(error)) from None
            except (OSError, json.JSONDecodeError):
                if attempt == self._attempts:
                    raise
            time.sleep(min(2.0 ** (attempt - 1), 10.0))
        raise AssertionError("the last attempt returned or raised")


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    def redirect_request(self, *_: Any, **__: Any) -> None:
        return None


def _read_error(error: urllib.error.HTTPError) -> Mapping[str, Any]:
    try:
        found: Mapping[str, Any] = json.load(error)["error"]
    except (ValueError, KeyError, TypeError):
        return {"what": f"HTTP {error.code}", "mend": "look at the URL"}
    return found

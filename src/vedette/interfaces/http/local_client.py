"""LocalClient: how a verb talks to the fleet that runs here."""

from __future__ import annotations

import http.client
import json
import socket
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from vedette.domain.base import errors
from vedette.domain.base.errors import Unavailable, VedetteError
from vedette.interfaces.http.unix_socket import socket_of

HEALTH_TIMEOUT_S = 2.0
# Longer than any command may take: a policy's trial, the drain of calls, a slow disk.
COMMAND_TIMEOUT_S = 60.0


class LocalClient:
    """Client of a state folder's local API. A socket that nobody answers at is no runner."""

    def __init__(self, state: Path) -> None:
        self._path = socket_of(state)

    def is_alive(self) -> bool:
        """Say whether a fleet runs here and answers. Raises Forbidden if it refuses us."""
        try:
            answer = self._exchange("GET", "/v1/health", None, HEALTH_TIMEOUT_S)
        except (Unavailable, _NoListener):
            return False
        if "error" in answer:
            raise parse_error(answer["error"])
        return "fleet" in answer

    def status(self) -> dict[str, Any]:
        """Return what the runner says of itself. Raises Unavailable."""
        return self._result(self._request("GET", "/v1/status", None, HEALTH_TIMEOUT_S))

    def send_command(
        self, verb: str, reason: str, args: Mapping[str, Any], command_id: str | None = None
    ) -> dict[str, Any]:
        """Give a command and return its result.

        Raises the error that the command raised; Unavailable if nobody answers, or if the runner
        went away while it had the command.
        """
        document = {"command_id": command_id, "reason": reason, "args": dict(args)}
        return self._result(
            self._request("POST", f"/v1/commands/{verb}", document, COMMAND_TIMEOUT_S)
        )

    def _request(self, method: str, path: str, body: Any, seconds: float) -> dict[str, Any]:
        try:
            return self._exchange(method, path, body, seconds)
        except _NoListener as error:
            mend = "start `vedette run`"
            raise Unavailable("no fleet runs here", where=str(self._path), mend=mend) from error

    def _exchange(self, method: str, path: str, body: Any, seconds: float) -> dict[str, Any]:
        connection = _UnixConnection(self._path, seconds)
        try:
            try:
                connection.connect()
            except OSError as error:
                raise _NoListener from error
            raw = None if body is None else json.dumps(body).encode("utf-8")
            connection.request(method, path, raw, {"Content-Type": "application/json"})
            answer = json.loads(connection.getresponse().read())
        except (OSError, http.client.HTTPException, ValueError) as error:
            raise Unavailable(
                f"the fleet went away before it answered ({type(error).__name__})",
                where=str(self._path),
                mend="look whether it was done; a repeat with the same --command-id is safe",
            ) from error
        finally:
            connection.close()
        if not isinstance(answer, dict):
            raise Unavailable("what answers there is no fleet", where=str(self._path))
        return answer

    def _result(self, answer: Mapping[str, Any]) -> dict[str, Any]:
        error = answer.get("error")
        if error is not None:
            raise parse_error(error)
        found: dict[str, Any] = answer["result"]
        return found


class _NoListener(Exception):
    """Nobody listens."""


class _UnixConnection(http.client.HTTPConnection):
    def __init__(self, path: Path, seconds: float) -> None:
        super().__init__("localhost", timeout=seconds)
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(self.timeout)
        self.sock.connect(str(self._path))


def parse_error(answer: Mapping[str, Any]) -> VedetteError:
    """Return the error that the local API told of, as the class that has its code."""
    known = [kind for kind in vars(errors).values() if isinstance(kind, type)]
    for kind in known:
        if issubclass(kind, VedetteError) and kind.code == answer["code"]:
            return kind(answer["what"], where=answer.get("where"), mend=answer.get("mend"))
    error = VedetteError(answer["what"], where=answer.get("where"), mend=answer.get("mend"))
    error.code = str(answer["code"])
    return error

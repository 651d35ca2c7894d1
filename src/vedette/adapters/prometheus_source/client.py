"""Asks a Prometheus server over its HTTP API. Synchronous.

https://prometheus.io/docs/prometheus/latest/querying/api/. Redirects are not followed: the token is
for the server that the settings name.
"""

from __future__ import annotations

import http.client
import json
import socket
import ssl
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from email.utils import parsedate_to_datetime
from typing import Any
from urllib.parse import urlencode, urlsplit

from vedette.errors import BadFleet, Temporary
from vedette.load.at_hand import PrometheusPlan

TIMEOUT_S = 30.0
MOST_BYTES = 32 << 20  # of one answer


class AwayError(Exception):
    """Prometheus did not answer; it is asked again, later each time."""


class Client:
    """One server. Every call opens a connection of its own, so calls may run side by side."""

    def __init__(self, plan: PrometheusPlan) -> None:
        self._plan = plan
        self._where = f"prometheus:{plan.name}"

    def range(
        self, expr: str, start_s: int, end_s: int, step_s: int
    ) -> tuple[list[Any], int | None]:
        """Return the series of an expression from one instant to another, both included.

        And what time it was for the server when it answered, in seconds, if it says so.

        Raises BadFleet for what the server calls wrong, AwayError where it may answer later.
        """
        asked = {"query": expr, "start": start_s, "end": end_s, "step": step_s}
        # Prometheus knows no partial answer; what speaks its API in front of several may.
        told, date = self._asked("/api/v1/query_range", {**asked, "partial_response": "false"})
        if told.get("resultType") != "matrix" or not isinstance(told.get("result"), list):
            mend = "write an expression of an instant vector or a scalar"
            raise BadFleet(f"{expr!r} has no points", where=self._where, mend=mend)
        found: list[Any] = told["result"]
        return found, date

    def ask(self, path: str, form: Mapping[str, object]) -> dict[str, Any]:
        """Return the data of an answer. Raises BadFleet, AwayError."""
        return self._asked(path, form)[0]

    def _asked(self, path: str, form: Mapping[str, object]) -> tuple[dict[str, Any], int | None]:
        parts, headers = urlsplit(self._plan.url), {"Accept": "application/json"}
        headers["Content-Type"] = "application/x-www-form-urlencoded"
        try:
            token = self._plan.token()
        except Temporary as error:
            raise AwayError(str(error)) from error
        if token:
            headers["Authorization"] = f"Bearer {token}"
        host, context = parts.hostname or "", None
        if parts.scheme == "https":
            context = self._context()
            connection: http.client.HTTPConnection = http.client.HTTPSConnection(
                host, parts.port, context=context
            )
        else:
            connection = http.client.HTTPConnection(host, parts.port)
        end = time.monotonic() + TIMEOUT_S
        try:
            line = socket.create_connection((connection.host, connection.port), TIMEOUT_S)
            if context is not None:
                line = context.wrap_socket(
                    line, server_hostname=connection.host, do_handshake_on_connect=False
                )
            connection.sock = line
            with _until(end, line):
                if isinstance(line, ssl.SSLSocket):
                    line.do_handshake()
                connection.request("POST", parts.path.rstrip("/") + path, urlencode(form), headers)
                answer = connection.getresponse()
                raw = bytearray()
                while chunk := answer.read1(1 << 16):
                    raw += chunk
                    if len(raw) > MOST_BYTES:
                        mend = "ask for fewer series"
                        raise BadFleet("the answer is too long", where=self._where, mend=mend)
            if time.monotonic() >= end:
                raise AwayError(f"no whole answer within {TIMEOUT_S:g} s")
        except (OSError, http.client.HTTPException) as error:
            if time.monotonic() >= end:
                raise AwayError(f"no whole answer within {TIMEOUT_S:g} s") from error
            raise AwayError(f"{type(error).__name__}: {error}"[:300]) from error
        finally:
            connection.close()
        return self._read(answer.status, bytes(raw)), _date(answer.getheader("Date"))

    def _context(self) -> ssl.SSLContext:
        try:
            return ssl.create_default_context(cafile=self._plan.ca_file)
        except (OSError, ssl.SSLError) as error:
            mend = "mend ca_file in vedette.toml"
            what = f"ca_file cannot be read: {error}"
            raise BadFleet(what, where=self._where, mend=mend) from error

    def _read(self, status: int, raw: bytes) -> dict[str, Any]:
        try:
            told = json.loads(raw)
        except ValueError:
            told = {}
        said = told.get("error") if isinstance(told, dict) else None
        said = " ".join(str(said or raw[:200].decode("utf-8", "replace")).split())[:300]
        if status == 200 and isinstance(told, dict) and isinstance(told.get("data"), dict):
            data: dict[str, Any] = told["data"]
            return data
        if status == 400:
            mend = "mend the expression in vedette.toml"
            raise BadFleet(f"Prometheus says: {said}", where=self._where, mend=mend)
        if status in (401, 403):
            mend = "mend token_env, token_file or token_secret"
            raise BadFleet(f"Prometheus lets us not in ({status})", where=self._where, mend=mend)
        if status in (200, 404) or 300 <= status < 400:
            mend = "mend url: it ends where /api/v1 begins"
            raise BadFleet(f"there is no Prometheus ({status})", where=self._where, mend=mend)
        raise AwayError(f"Prometheus answers {status}: {said}")


@contextmanager
def _until(end: float, line: socket.socket) -> Iterator[None]:
    """Shut a connection down when its time is over, under whoever waits for it.

    Each read has a time of its own: a server that says a word now and then would hold us for good.
    """

    def shut() -> None:
        with suppress(OSError):
            # Not the TLS socket's own: that one forgets its keys under whoever reads.
            socket.socket.shutdown(line, socket.SHUT_RDWR)

    deadline = threading.Timer(max(0.0, end - time.monotonic()), shut)
    deadline.daemon = True
    deadline.start()
    try:
        yield
    finally:
        deadline.cancel()


def _date(text: str | None) -> int | None:
    try:
        return int(parsedate_to_datetime(text or "").timestamp())
    except (ValueError, TypeError, OverflowError):
        return None

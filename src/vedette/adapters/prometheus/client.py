"""Asks a Prometheus server over its HTTP API. Synchronous.

https://prometheus.io/docs/prometheus/latest/querying/api/. Redirects are not followed: the token is
for the server that the settings name.
"""

from __future__ import annotations

import json
import ssl
from collections.abc import Mapping
from email.utils import parsedate_to_datetime
from typing import Any
from urllib.parse import urlencode, urlsplit

from vedette.adapters.http_client import NoResponse, SendFailure, request
from vedette.adapters.prometheus.config import PrometheusFile
from vedette.domain.base import machine
from vedette.domain.base.errors import BadFleet, Temporary

TIMEOUT_S = 30.0
MAX_BYTES = 32 << 20  # of one answer


class SourceUnavailable(Exception):
    """Prometheus did not answer; it is asked again, later each time."""


class Client:
    """One Prometheus server. Every call opens its own connection, so calls may run side by side."""

    def __init__(self, plan: PrometheusFile) -> None:
        self._plan = plan
        self._where = f"prometheus:{plan.name}"

    def query_range(
        self, expr: str, start_s: int, end_s: int, step_s: int
    ) -> tuple[list[Any], int | None]:
        """Return the series of an expression from one instant to another, both included.

        And what time it was for the server when it answered, in seconds, if it says so.

        Raises BadFleet for what the server calls wrong, AwayError where it may answer later.
        """
        form = {"query": expr, "start": start_s, "end": end_s, "step": step_s}
        # Prometheus knows no partial answer; what speaks its API in front of several may.
        data, date = self._fetch("/api/v1/query_range", {**form, "partial_response": "false"})
        if data.get("resultType") != "matrix" or not isinstance(data.get("result"), list):
            mend = "write an expression of an instant vector or a scalar"
            raise BadFleet(f"{expr!r} has no points", where=self._where, mend=mend)
        found: list[Any] = data["result"]
        return found, date

    def fetch_data(self, path: str, form: Mapping[str, object]) -> dict[str, Any]:
        """Return the data of an answer. Raises BadFleet, AwayError."""
        return self._fetch(path, form)[0]

    def _fetch(self, path: str, form: Mapping[str, object]) -> tuple[dict[str, Any], int | None]:
        parts, headers = urlsplit(self._plan.url), {"Accept": "application/json"}
        headers["Content-Type"] = "application/x-www-form-urlencoded"
        try:
            token = self._plan.token()
        except Temporary as error:
            raise SourceUnavailable(str(error)) from error
        if token:
            headers["Authorization"] = f"Bearer {token}"
        tls = self._tls() if parts.scheme == "https" else None
        url = parts._replace(path=parts.path.rstrip("/") + path, query="", fragment="").geturl()
        end, too_late = machine.monotonic_s() + TIMEOUT_S, f"no whole answer within {TIMEOUT_S:g} s"
        try:
            response = request(
                "POST", url, headers, urlencode(form).encode(),
                timeout_s=TIMEOUT_S, max_bytes=MAX_BYTES, tls=tls,
            )  # fmt: skip
        except (SendFailure, NoResponse) as error:
            raise SourceUnavailable(
                too_late if machine.monotonic_s() >= end else str(error)
            ) from error
        except ValueError as error:
            mend = "see that url and token are plain ASCII, the host a name of DNS"
            raise BadFleet(f"it cannot be asked: {error}", where=self._where, mend=mend) from error
        if response.truncated and len(response.body) == MAX_BYTES:
            raise BadFleet("the answer is too long", where=self._where, mend="ask for fewer series")
        if response.truncated:
            raise SourceUnavailable(
                too_late if machine.monotonic_s() >= end else "its answer broke off"
            )
        return self._read(response.status, response.body), _date(response.headers.get("date"))

    def _tls(self) -> ssl.SSLContext:
        try:
            return ssl.create_default_context(cafile=self._plan.ca_file)
        except (OSError, ssl.SSLError) as error:
            mend = "mend ca_file in vedette.toml"
            what = f"ca_file cannot be read: {error}"
            raise BadFleet(what, where=self._where, mend=mend) from error

    def _read(self, status: int, raw: bytes) -> dict[str, Any]:
        try:
            document = json.loads(raw)
        except ValueError:
            document = {}
        said = document.get("error") if isinstance(document, dict) else None
        said = " ".join(str(said or raw[:200].decode("utf-8", "replace")).split())[:300]
        if status == 200 and isinstance(document, dict) and isinstance(document.get("data"), dict):
            data: dict[str, Any] = document["data"]
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
        raise SourceUnavailable(f"Prometheus answers {status}: {said}")


def _date(text: str | None) -> int | None:
    try:
        return int(parsedate_to_datetime(text or "").timestamp())
    except (ValueError, TypeError, OverflowError):
        return None

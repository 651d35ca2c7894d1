"""The published keys of an issuer (RFC 7517), fetched when needed and kept.

The set is fetched anew once it is old, or when a token names a key that is not in it: an issuer
that rotates its keys is followed at once. Strangers can name keys that do not exist, so the second
happens at most every 30 s. A fetch that fails keeps the last good set; while there is none, those
who waited for it are told so, and the next try is 2 s later at the earliest.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any
from urllib.parse import urlsplit

import orjson

from vedette.adapters.identity.jwt.keys import import_jwk
from vedette.domain.base.errors import BadFleet, Unavailable
from vedette.domain.base.urls import is_loopback
from vedette.domain.ports.tokens import BadToken

DISCOVERY = "/.well-known/openid-configuration"
MAX_BYTES = 1_048_576
_REFETCH_US = 30_000_000
_RETRY_US = 2_000_000


class Jwks:
    """The keys at `url`, or at the place that `issuer` names by OpenID Connect Discovery 1.0.

    `now_us` is the time, microseconds UTC; `max_age_us` is how long a set is used before it is
    fetched again; `timeout_s` bounds one fetch as a whole. Raises BadFleet for an address that
    anybody on the way could answer for: it is https, or this machine's own.
    """

    def __init__(
        self,
        url: str | None = None,
        *,
        issuer: str | None = None,
        now_us: Callable[[], int],
        max_age_us: int = 3_600_000_000,
        timeout_s: float = 5.0,
    ) -> None:
        if (url is None) == (issuer is None):
            raise ValueError("give either the keys' address or their issuer")
        self._issuer = issuer
        self._url = url
        start = url or issuer or ""
        if not is_safe_url(start):
            mend = "use an https address"
            raise BadFleet("keys are not fetched over plain HTTP", where=start, mend=mend)
        self._now_us = now_us
        self._max_age_us = max_age_us
        self._timeout_s = timeout_s
        self._keys: dict[str, Any] = {}
        self._fetched_us: int | None = None
        # When the last try began, and when the last that failed ended.
        self._tried_us: int | None = None
        self._failed_us: int | None = None
        self._last_error = ""
        self._lock = asyncio.Lock()
        self.fetch_count = 0

    async def key(self, kid: str) -> Any:
        """Return the key of an id. Raises BadToken, and Unavailable while there is no set."""
        if self._is_stale() or kid not in self._keys:
            async with self._lock:
                if (self._is_stale() or kid not in self._keys) and self._may_fetch():
                    await self._fetch()
        if self._fetched_us is None:
            what = f"the issuer's keys cannot be had: {self._last_error}"
            raise Unavailable(what, where=self._url or self._issuer)
        found = self._keys.get(kid)
        if found is None:
            raise BadToken("unknown-key", "it is signed with a key that is not known")
        return found

    def _is_stale(self) -> bool:
        fetched = self._fetched_us
        return fetched is None or not 0 <= self._now_us() - fetched < self._max_age_us

    def _may_fetch(self) -> bool:
        if self._fetched_us is None:
            # There is nothing to go by, so whoever asks waits for it: for one try, not for one
            # after the other.
            return not _is_within(_RETRY_US, self._failed_us, self._now_us())
        return not _is_within(_REFETCH_US, self._tried_us, self._now_us())

    async def _fetch(self) -> None:
        from vedette.adapters.http_client import NoResponse, SendFailure

        self._tried_us = self._now_us()
        self.fetch_count += 1
        try:
            async with asyncio.timeout(self._timeout_s):
                keys = _parse_key_set(
                    await self._fetch_json(self._url or await self._discover_url())
                )
        except (SendFailure, NoResponse, TimeoutError, ValueError) as error:
            self._last_error = str(error) or type(error).__name__
            self._failed_us = self._now_us()
            return
        self._keys, self._fetched_us = keys, self._now_us()

    async def _discover_url(self) -> str:
        issuer = self._issuer or ""
        document = await self._fetch_json(issuer.rstrip("/") + DISCOVERY)
        url = document.get("jwks_uri")
        if document.get("issuer") != issuer:
            raise ValueError("its discovery document is another issuer's")
        if not isinstance(url, str) or not is_safe_url(url):
            raise ValueError("its discovery document names no safe place of its keys")
        return url

    async def _fetch_json(self, url: str) -> dict[str, Any]:
        from vedette.adapters.http_client import request_in_thread

        # A redirect, which could lead to anybody, is an answer like any other.
        answer = await request_in_thread(
            "GET", url, {"Accept": "application/json"},
            timeout_s=self._timeout_s, max_bytes=MAX_BYTES,
        )  # fmt: skip
        if answer.status != 200:
            raise ValueError(f"HTTP {answer.status} from {url}")
        if answer.truncated:
            raise ValueError(f"more than {MAX_BYTES} bytes from {url}, or less than all")
        document = orjson.loads(answer.body)
        if not isinstance(document, dict):
            raise ValueError(f"no JSON object from {url}")
        return document


def _is_within(span_us: int, then_us: int | None, now_us: int) -> bool:
    return then_us is not None and 0 <= now_us - then_us < span_us


def is_safe_url(url: str) -> bool:
    """Say whether an issuer's keys may be fetched from a URL: https, or on this machine."""
    try:
        parts = urlsplit(url)
        host = parts.hostname or ""
    except ValueError:
        return False
    if parts.scheme == "https":
        return bool(host)
    return parts.scheme == "http" and is_loopback(host)


def _parse_key_set(document: dict[str, Any]) -> dict[str, Any]:
    """Return the keys of a set by their ids; those of a kind that is not used are left out."""
    keys = document.get("keys")
    if not isinstance(keys, list):
        raise ValueError("no key set")
    found: dict[str, Any] = {}
    for one in keys:
        if isinstance(one, dict) and isinstance(one.get("kid"), str):
            try:
                found[one["kid"]] = import_jwk(one)
            except ValueError:
                continue
    if not found:
        raise ValueError("no usable key in the set")
    return found

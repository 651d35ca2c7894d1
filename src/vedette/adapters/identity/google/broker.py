"""Tokens from Google: of this machine (metadata server), and of others (IAM Credentials API).

The gateway holds `roles/iam.serviceAccountTokenCreator` on its agents' service accounts and no key
of any. https://cloud.google.com/compute/docs/metadata/querying-metadata
"""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from typing import Any
from urllib.parse import quote

import orjson

from vedette.domain.base.errors import Unavailable

IAM = "https://iamcredentials.googleapis.com"
_METADATA = "metadata.google.internal"
_ACCOUNT = "/computeMetadata/v1/instance/service-accounts/default"
_FLAVOR = {"Metadata-Flavor": "Google"}
# A token that expires sooner than this is fetched anew.
_SPARE_S = 60.0
_MAX_BYTES = 65_536


async def _fetch(
    method: str,
    url: str,
    headers: dict[str, str],
    *,
    body: Any = None,
    timeout_s: float,
    flavor: bool = False,
) -> bytes:
    """Return what a server answers with 200. Raises Unavailable, without a word of the answer."""
    from vedette.adapters.http_client import NoResponse, SendFailure, request_in_thread

    where = url.partition("?")[0]
    data = b"" if body is None else orjson.dumps(body)
    if body is not None:
        headers = {**headers, "Content-Type": "application/json"}
    try:
        answer = await request_in_thread(
            method, url, headers, data, timeout_s=timeout_s, max_bytes=_MAX_BYTES
        )
    except (SendFailure, NoResponse, TimeoutError, ValueError) as error:
        raise Unavailable(type(error.__cause__ or error).__name__, where=where) from error
    if answer.status != 200:
        mend = "check roles/iam.serviceAccountTokenCreator" if answer.status == 403 else None
        raise Unavailable(f"HTTP {answer.status}", where=where, mend=mend)
    # Anything else on this address (a captive portal, a proxy) is not the metadata server.
    if flavor and answer.headers.get("metadata-flavor") != "Google":
        raise Unavailable("is no metadata server", where=where)
    if answer.truncated:
        what = f"answered with over {_MAX_BYTES} bytes, or broke off"
        raise Unavailable(what, where=where)
    return answer.body


class MetadataServer:
    """The metadata server of this machine; `host` is GCE_METADATA_HOST or Google's name for it."""

    def __init__(self, host: str | None = None, *, timeout_s: float = 5.0) -> None:
        self._base = f"http://{host or os.environ.get('GCE_METADATA_HOST') or _METADATA}{_ACCOUNT}"
        self._timeout_s = timeout_s
        self._cached_token = ("", 0.0)

    async def id_token(self, audience: str) -> str:
        """Return an ID token of this machine's service account. Raises Unavailable."""
        url = f"{self._base}/identity?audience={quote(audience, safe='')}&format=full"
        raw = await _fetch("GET", url, _FLAVOR, timeout_s=self._timeout_s, flavor=True)
        return raw.decode("ascii", "replace").strip()

    async def access_token(self) -> str:
        """Return an access token of this machine's service account, kept while it holds."""
        token, until = self._cached_token
        if time.monotonic() < until - _SPARE_S:
            return token
        url = f"{self._base}/token"
        raw = await _fetch("GET", url, _FLAVOR, timeout_s=self._timeout_s, flavor=True)
        try:
            answer = orjson.loads(raw)
            self._cached_token = (
                str(answer["access_token"]),
                time.monotonic() + float(answer["expires_in"]),
            )
        except (ValueError, KeyError, TypeError) as error:
            raise Unavailable("answered with no token", where=url) from error
        return self._cached_token[0]


class IamCredentials:
    """Mints tokens of other Google service accounts with the right of this machine's own."""

    def __init__(
        self, metadata: MetadataServer, *, base: str = IAM, timeout_s: float = 10.0
    ) -> None:
        self._metadata = metadata
        self._base = base
        self._timeout_s = timeout_s

    async def access_token(self, account: str, scopes: Sequence[str], *, seconds: int) -> str:
        """Return an access token of an account for some scopes. Raises Unavailable."""
        body = {"scope": list(scopes), "lifetime": f"{seconds}s"}
        return await self._mint(account, "generateAccessToken", body, "accessToken")

    async def id_token(self, account: str, audience: str) -> str:
        """Return an ID token of an account for an audience. Raises Unavailable."""
        body = {"audience": audience, "includeEmail": True}
        return await self._mint(account, "generateIdToken", body, "token")

    async def _mint(self, account: str, method: str, body: dict[str, Any], name: str) -> str:
        url = f"{self._base}/v1/projects/-/serviceAccounts/{quote(account, safe='@')}:{method}"
        headers = {"Authorization": f"Bearer {await self._metadata.access_token()}"}
        raw = await _fetch("POST", url, headers, body=body, timeout_s=self._timeout_s)
        try:
            found = orjson.loads(raw)[name]
        except (ValueError, KeyError, TypeError) as error:
            raise Unavailable("answered with no token", where=url) from error
        return str(found)

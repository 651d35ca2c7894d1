"""The ToolExecutor port with a Google token for one call, minted once the call is permitted.

A target that says `google_scopes` (an access token) or `google_audience` (an ID token) has its
tools called with `call.target["token"]`: of the calling agent's own service account, and for those
scopes or that audience only. An access token lasts five minutes; an ID token lasts an hour, since
`generateIdToken` takes no lifetime
(https://cloud.google.com/iam/docs/reference/credentials/rest/v1/projects.serviceAccounts/generateIdToken).
It is minted for the call and kept nowhere; no agent holds one before its action was permitted, and
what a tool answers is rid of it before it is recorded.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from msgspec.structs import replace

from vedette.adapters.identity.google.broker import IamCredentials
from vedette.domain.base.errors import Unavailable
from vedette.domain.effect import Call, Outcome, RowWrite
from vedette.domain.ports.reasoner import ToolExecutor
from vedette.domain.redaction import SecretRedactor
from vedette.domain.tool import Tool

# Of an access token, seconds.
LIFE_S = 300
MASK = "[token]"


class TokenTools:
    """The tool executor that gives calls the Google tokens of targets. `account` is by agent."""

    def __init__(
        self, inner: ToolExecutor, credentials: IamCredentials, account: Callable[[str], str]
    ) -> None:
        self._inner = inner
        self._credentials = credentials
        self._account = account

    def prepare(self, agent: str) -> None:
        """Have an agent's worker made before it is needed."""
        inner: Any = self._inner
        inner.prepare(agent)

    def renew(self, agent: str) -> None:
        """Have an agent's tools loaded anew."""
        inner: Any = self._inner
        inner.renew(agent)

    def compute_rows(self, tool: Tool, call: Call, row: Mapping[str, Any] | None) -> list[RowWrite]:
        """Return what a transactional tool writes: it calls nobody, and gets no token."""
        return self._inner.compute_rows(tool, call, row)

    async def perform(
        self, tool: Tool, call: Call, may_start: Callable[[], bool]
    ) -> Outcome | None:
        """Call the tool once; `retry` if no token could be had, since then nothing was called."""
        try:
            token = await self._mint_token(call)
        except Unavailable as error:
            return Outcome("retry", error=f"no token for the call: {error.what}")
        if token is None:
            return await self._inner.perform(tool, call, may_start)
        return await _redaction(token).redact_call(
            self._inner.perform(tool, _with_token(call, token), may_start)
        )

    async def query(self, tool: Tool, call: Call) -> Outcome | None:
        """Ask the target what came of a call; `unknown` if no token could be had."""
        try:
            token = await self._mint_token(call)
        except Unavailable as error:
            return Outcome("unknown", error=f"no token for the question: {error.what}")
        if token is None:
            return await self._inner.query(tool, call)
        return await _redaction(token).redact_call(
            self._inner.query(tool, _with_token(call, token))
        )

    async def _mint_token(self, call: Call) -> str | None:
        scopes = call.target.get("google_scopes")
        audience = call.target.get("google_audience")
        account = self._account(call.agent)
        if scopes:
            scope_list = [scopes] if isinstance(scopes, str) else list(scopes)
            return await self._credentials.access_token(account, scope_list, seconds=LIFE_S)
        if audience:
            return await self._credentials.id_token(account, str(audience))
        return None

    def close(self) -> None:
        """Close what performs."""
        inner: Any = self._inner
        inner.close()


def _with_token(call: Call, token: str) -> Call:
    return replace(call, target={**call.target, "token": token})


def _redaction(token: str) -> SecretRedactor:
    return SecretRedactor([token], MASK)

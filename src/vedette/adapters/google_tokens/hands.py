"""The Performer port with a token for one call, minted once the call is permitted.

A target that says `google_scopes` (an access token) or `google_audience` (an ID token) has its
tools called with `call.target["token"]`: of the calling agent's own service account, for those
scopes only, and for five minutes. It is minted for the call and kept nowhere; no agent holds one
before its action was permitted, and what a tool answers is rid of it before it is recorded.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from vedette.adapters.google_tokens.broker import IamCredentials
from vedette.effect import Call, Outcome, RowWrite
from vedette.errors import Unavailable
from vedette.ports import Performer
from vedette.tool import Tool

LIFE_S = 300
HIDDEN = "[token]"


class TokenHands:
    """Performs by `inner`, with tokens where a target asks for one. `account` is by agent."""

    def __init__(
        self, inner: Performer, credentials: IamCredentials, account: Callable[[str], str]
    ) -> None:
        self._inner = inner
        self._credentials = credentials
        self._account = account

    def prepare(self, agent: str) -> None:
        """Have an agent's worker made before it is needed."""
        inner: Any = self._inner
        inner.prepare(agent)

    def rows(self, tool: Tool, call: Call, row: Mapping[str, Any] | None) -> list[RowWrite]:
        """Return what a transactional tool writes: it calls nobody, and gets no token."""
        return self._inner.rows(tool, call, row)

    async def perform(
        self, tool: Tool, call: Call, may_start: Callable[[], bool]
    ) -> Outcome | None:
        """Call the tool once; `retry` if no token could be had, since then nothing was called."""
        try:
            token = await self._token(call)
        except Unavailable as error:
            return Outcome("retry", error=f"no token for the call: {error.what}")
        if token is None:
            return await self._inner.perform(tool, call, may_start)
        return await self._hidden(self._inner.perform(tool, _with(call, token), may_start), token)

    async def ask(self, tool: Tool, call: Call) -> Outcome | None:
        """Ask the target what came of a call; `unknown` if no token could be had."""
        try:
            token = await self._token(call)
        except Unavailable as error:
            return Outcome("unknown", error=f"no token for the question: {error.what}")
        if token is None:
            return await self._inner.ask(tool, call)
        return await self._hidden(self._inner.ask(tool, _with(call, token)), token)

    async def _token(self, call: Call) -> str | None:
        scopes = call.target.get("google_scopes")
        audience = call.target.get("google_audience")
        account = self._account(call.agent)
        if scopes:
            asked = [scopes] if isinstance(scopes, str) else list(scopes)
            return await self._credentials.access_token(account, asked, seconds=LIFE_S)
        if audience:
            return await self._credentials.id_token(account, str(audience))
        return None

    async def _hidden(self, answer: Any, token: str) -> Outcome | None:
        """Return an answer, or raise its error, without the token in it."""
        try:
            outcome: Outcome | None = await answer
        except Exception as error:
            if token in str(error):
                told = f"{type(error).__name__}: {str(error).replace(token, HIDDEN)}"
                raise RuntimeError(told) from None
            raise
        if outcome is None:
            return None
        data, told = _without(dict(outcome.data), token), outcome.error.replace(token, HIDDEN)
        return replace(outcome, data=data, error=told)

    def close(self) -> None:
        """Close what performs."""
        inner: Any = self._inner
        inner.close()


def _with(call: Call, token: str) -> Call:
    return replace(call, target={**call.target, "token": token})


def _without(value: Any, token: str) -> Any:
    """Return a value with the token hidden wherever it stands in a text."""
    if isinstance(value, str):
        return value.replace(token, HIDDEN)
    if isinstance(value, bytes):
        return value.replace(token.encode(), HIDDEN.encode())
    if isinstance(value, Mapping):
        return {_without(name, token): _without(item, token) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(_without(item, token) for item in value)
    return value

"""Tokens of agents that come from outside: which agent it is whose client sent a request.

Two are taken, both as `Authorization: Bearer TOKEN` (RFC 6750): the one that `[[serve.agents]]`
names for the agent, of which the SHA-256 alone is kept; and the JWT-SVID that the fleet's issuer
made for it, whose audience is this gateway. None is passed on to anybody.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from hmac import compare_digest
from typing import TYPE_CHECKING

from vedette.config.settings import ServedAgent
from vedette.domain.agent import Agent
from vedette.domain.base.canonical import sha256_hex
from vedette.domain.base.errors import BadFleet, Forbidden, Temporary
from vedette.domain.ports.reasoner import Metrics
from vedette.domain.ports.tokens import BadToken, TokenAuthority
from vedette.interfaces.http.event_receiver import token_digest
from vedette.interfaces.http.hosts import AllowedHosts
from vedette.operations.agent_calls import AgentCalls

if TYPE_CHECKING:
    from starlette.datastructures import Headers

# Open requests of one agent: more of them would take what the others need.
MAX_OPEN = 32
_MAX_TOKEN_CHARS = 16_384


class TooManyRequests(Temporary):
    """The error of one request more than an agent may have open."""

    code = "too-many"


class AgentTokens:
    """The tokens of a fleet's served agents. Raises BadFleet for one that two would have."""

    def __init__(
        self,
        served: Sequence[ServedAgent],
        calls: AgentCalls,
        authority: TokenAuthority | None,
        metrics: Metrics,
        hosts: AllowedHosts,
    ) -> None:
        self._hosts = hosts
        self._calls, self._authority, self._metrics = calls, authority, metrics
        self._names = frozenset(one.agent for one in served)
        self._digests: dict[str, str] = {}
        self._open: Counter[str] = Counter()
        for one in served:
            token = one.token()
            if token is None:
                continue
            digest = token_digest(token, f"agent {one.agent!r}")
            if digest in self._digests:
                what = f"{one.agent} and {self._digests[digest]} have the same token"
                raise BadFleet(
                    what, where="vedette.toml: serve.agents", mend="make one for each agent"
                )
            self._digests[digest] = one.agent

    @asynccontextmanager
    async def admit(self, headers: Headers) -> AsyncIterator[Agent]:
        """Let a request in for as long as the context lasts; yields the agent that it is of.

        Raises Forbidden for the page of another site, which a browser names as the Origin (MCP:
        servers must look), what `authenticate` raises, and TooManyRequests.
        """
        if not all(self._hosts.is_origin_allowed(one) for one in headers.getlist("origin")):
            mend = "add its host to [serve] hosts, or send no Origin"
            raise Forbidden("a page of another site asks", where="Origin", mend=mend)
        authorization = headers.get("authorization")
        agent = await self.authenticate(authorization)
        if self._open[agent.name] >= MAX_OPEN:
            raise TooManyRequests(f"{MAX_OPEN} requests of yours are open", mend="wait for them")
        self._open[agent.name] += 1
        try:
            yield agent
        finally:
            self._open[agent.name] -= 1

    async def authenticate(self, authorization: str | None) -> Agent:
        """Return the agent whose token a request carries.

        Raises BadToken, and Unavailable if the issuer's keys cannot be had.
        """
        try:
            name = await self._find_name(authorization)
            agent = self._calls.agent(name) if name in self._names else None
            if agent is None:
                raise BadToken("wrong-subject", "its agent calls nothing from outside")
        except BadToken as error:
            self._metrics.count("identity_refusals", agent="", code=error.code)
            raise
        return agent

    async def _find_name(self, authorization: str | None) -> str:
        scheme, _, token = (authorization or "").partition(" ")
        token = token.strip()
        if scheme.lower() != "bearer" or not 0 < len(token) <= _MAX_TOKEN_CHARS:
            raise BadToken("no-token", "the request carries no token")
        digest = sha256_hex(token.encode("utf-8", "surrogateescape"))
        name = ""
        for known, agent in self._digests.items():  # all of them, so that the time tells nothing
            if compare_digest(digest, known):
                name = agent
        if name:
            return name
        if self._authority is None or token.count(".") != 2:
            raise BadToken("no-token", "the token is none that we know")
        identity, _ = await self._authority.verify(token)
        return identity.agent

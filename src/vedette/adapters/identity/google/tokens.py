"""The TokenAuthority port on Google service accounts, one for each agent."""

from __future__ import annotations

import re
from collections.abc import Callable

from vedette.adapters.identity.google.broker import IamCredentials
from vedette.domain.base.errors import BadFleet
from vedette.domain.identity import Identity
from vedette.domain.ports.tokens import BadToken, Claims, TokenVerifier

GOOGLE_ISSUER = "https://accounts.google.com"


class GoogleTokens:
    """Checks service accounts' ID tokens. `pattern` names an agent's account: {agent}@PROJECT….

    In an account's name `-` stands for the `_` of an agent's. `check_agent` raises BadToken for an
    agent that is revoked here. `verifier` is set by who makes both.
    """

    def __init__(
        self,
        fleet: str,
        pattern: str,
        credentials: IamCredentials,
        *,
        audience: str,
        check_agent: Callable[[str, Claims], None],
    ) -> None:
        if pattern.count("{agent}") != 1 or "@" not in pattern:
            mend = "for example {agent}@PROJECT.iam.gserviceaccount.com"
            raise BadFleet("does not name an agent's account", where="tokens", mend=mend)
        self.verifier: TokenVerifier
        self._fleet = fleet
        self._pattern = pattern
        self._credentials = credentials
        self._audience = audience
        self._check_agent = check_agent
        before, after = (re.escape(part) for part in pattern.split("{agent}"))
        self._account_regex = re.compile(f"{before}([a-z][a-z0-9-]*){after}\\Z")

    def account(self, agent: str) -> str:
        """Return the e-mail address of an agent's service account."""
        return self._pattern.replace("{agent}", agent.replace("_", "-"))

    def agent_of(self, claims: Claims) -> str:
        """Return whose account a verified token is of. Raises BadToken for anybody else's."""
        email = claims.all.get("email")
        found = self._account_regex.match(email) if isinstance(email, str) else None
        if found is None or claims.all.get("email_verified") is not True:
            raise BadToken("wrong-subject", "it is not of an agent's service account")
        return found[1].replace("-", "_")

    def check_revocation(self, claims: Claims) -> None:
        """Raise BadToken for a token of nobody here, or of an agent that is revoked."""
        self._check_agent(self.agent_of(claims), claims)

    async def mint(self, agent: str) -> str:
        """Return an ID token of an agent's account for the gateway. Raises Unavailable."""
        return await self._credentials.id_token(self.account(agent), self._audience)

    async def verify(self, token: str, agent: str | None = None) -> tuple[Identity, Claims]:
        """Return whose token it is; with `agent`, only if it is that agent's.

        Raises BadToken, and Unavailable if Google's keys cannot be had.
        """
        claims = await self.verifier.verify(token)
        found = self.agent_of(claims)
        if agent is not None and found != agent:
            raise BadToken("wrong-subject", f"it is a token of {found}, not of {agent}")
        return Identity(self._fleet, found), claims

    def is_revoked(self, claims: Claims) -> bool:
        """Say whether a token that was taken before is no longer."""
        try:
            self.check_revocation(claims)
        except BadToken:
            return True
        return False

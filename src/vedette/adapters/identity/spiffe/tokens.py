"""The TokenAuthority port on the embedded SPIFFE issuer."""

from __future__ import annotations

from collections.abc import Callable

from vedette.adapters.identity.spiffe.issuer import Issuer
from vedette.domain.identity import Identity
from vedette.domain.ports.tokens import BadToken, Claims, TokenVerifier


class SvidTokens:
    """Makes and checks agents' JWT-SVIDs. `verifier` asks `issuer` for keys and refusals."""

    def __init__(self, issuer: Issuer, verifier: TokenVerifier, now_us: Callable[[], int]) -> None:
        self.issuer = issuer
        self._verifier = verifier
        self._now_us = now_us

    async def mint(self, agent: str) -> str:
        """Return a token of an agent; its key is made if it has none. Raises BadToken."""
        return self.issuer.signer(agent).mint(self._now_us())

    async def verify(self, token: str, agent: str | None = None) -> tuple[Identity, Claims]:
        """Return whose token it is; with `agent`, only if it is that agent's. Raises BadToken."""
        claims = await self._verifier.verify(token)
        found = self.issuer.agent_of(claims)
        if agent is not None and found != agent:
            raise BadToken("wrong-subject", f"it is a token of {found}, not of {agent}")
        return Identity(self.issuer.fleet, found), claims

    def is_revoked(self, claims: Claims) -> bool:
        """Say whether a token that was taken before is no longer."""
        try:
            self.issuer.check_revocation(claims)
        except BadToken:
            return True
        return False

"""The ports of tokens, which say who a caller is: what is wrong with one, who is taken for whom.

A token is reused until it expires; its `jti` serves revocation, not single use.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, Protocol

from msgspec import Struct, field

from vedette.domain.base.errors import Forbidden
from vedette.domain.identity import Identity

TokenErrorCode = Literal[
    "no-token",
    "bad-signature",
    "bad-algorithm",
    "expired",
    "not-yet",
    "too-long",
    "missing-claim",
    "wrong-audience",
    "wrong-issuer",
    "unknown-key",
    "revoked",
    "wrong-subject",
]


class BadToken(Forbidden):
    """The error of a token not taken. `code` says which rule it breaks; the text never holds it."""

    def __init__(self, code: TokenErrorCode, what: str) -> None:
        super().__init__(what, where="token")
        self.code = code


class Claims(Struct, frozen=True):
    """The claims of a verified token. Times are microseconds UTC; `key` is the id of its key.

    `id` is its `jti`, empty if it has none. `all` is every claim as it was signed.
    """

    issuer: str
    subject: str
    audience: tuple[str, ...]
    expires_us: int
    issued_us: int
    id: str
    key: str
    all: Mapping[str, Any] = field(default_factory=dict)


class KeySet(Protocol):
    """The port of the public keys of one issuer."""

    async def key(self, kid: str) -> Any:
        """Return the key of an id, as the verifier's library has it.

        Raises BadToken (unknown-key), and Unavailable if the issuer cannot be asked.
        """
        ...


class TokenVerifier(Protocol):
    """The port that checks tokens of one issuer for one audience."""

    async def verify(self, token: str) -> Claims:
        """Return what a token says. Raises BadToken, and Unavailable if keys cannot be had."""
        ...


class TokenAuthority(Protocol):
    """The port that vouches for agents: makes their tokens and checks them."""

    async def mint(self, agent: str) -> str:
        """Return a token of an agent. Raises BadToken for one that is revoked or unknown."""
        ...

    async def verify(self, token: str, agent: str | None = None) -> tuple[Identity, Claims]:
        """Return whose token it is; with `agent`, only if it is that agent's.

        Raises BadToken, and Unavailable if the issuer's keys cannot be had.
        """
        ...

    def is_revoked(self, claims: Claims) -> bool:
        """Say whether a token that was taken before is no longer: asked while it is in use."""
        ...

"""The verifier of JSON Web Tokens: checks one once, and remembers its claims until it expires."""

from __future__ import annotations

import asyncio
import base64
import math
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from hashlib import sha256
from typing import Any

import orjson

from vedette.adapters.identity.jwt.keys import is_known_algorithm, key_fits_algorithm
from vedette.adapters.identity.jwt.preload import preload
from vedette.domain.ports.tokens import BadToken, Claims, KeySet

# A longer one is no token of an agent or a person, whatever else it is.
MAX_BYTES = 16_384
# So many verified tokens are remembered; the one that was used longest ago goes first.
CACHE_SIZE = 4096
_MAX_NUMERIC_DATE = 2**40


class Verifier:
    """The verifier of JSON Web Tokens of one issuer (any, if None) for one audience.

    `now_us` is the time, microseconds UTC; `max_life_us` bounds exp - iat; `leeway_us` is how far
    the issuer's clock may be off. `required` are claims without which nothing is taken.
    `check_revocation` is asked at every use, of remembered tokens too: it raises BadToken for one
    that is taken no longer (revoked, its key dropped).
    """

    def __init__(
        self,
        *,
        keys: KeySet,
        issuer: str | Sequence[str] | None,
        audience: str,
        now_us: Callable[[], int],
        algorithms: Sequence[str] = ("ES256",),
        max_life_us: int | None = None,
        leeway_us: int = 30_000_000,
        required: Sequence[str] = ("exp", "iat", "aud", "sub"),
        check_revocation: Callable[[Claims], None] | None = None,
    ) -> None:
        odd = [name for name in algorithms if not is_known_algorithm(name)]
        if odd or not algorithms:
            raise ValueError(f"tokens are not signed with {odd or 'nothing'}")
        self._keys = keys
        self._issuers = (issuer,) if isinstance(issuer, str) else issuer
        self._audience = audience
        self._now_us = now_us
        self._algorithms = tuple(algorithms)
        self._max_life_us = max_life_us
        self._leeway_us = leeway_us
        self._required = tuple(required)
        self._check_revocation = check_revocation
        self._cache: OrderedDict[bytes, tuple[Claims, int]] = OrderedDict()
        self._loaded = False
        self.signature_checks = 0  # signatures, for whoever counts them

    async def verify(self, token: str) -> Claims:
        """Return what a token says. Raises BadToken, and Unavailable if keys cannot be had."""
        raw = token.encode("utf-8", "replace")
        if not raw or len(raw) > MAX_BYTES or raw.count(b".") != 2:
            raise BadToken("no-token", "there is no token")
        digest = sha256(raw).digest()
        seen = self._cache.get(digest)
        if seen is None:
            seen = await self._check(raw)
        self._check_times(*seen)
        if self._check_revocation is not None:
            self._check_revocation(seen[0])
        self._cache[digest] = seen
        self._cache.move_to_end(digest)
        while len(self._cache) > CACHE_SIZE:
            self._cache.popitem(last=False)
        return seen[0]

    # --- once for each token ----------------------------------------------------------------

    async def _check(self, raw: bytes) -> tuple[Claims, int]:
        """Return what a token says, and from when on it holds (microseconds)."""
        header, payload = _parts(raw)
        algorithm, kid = header.get("alg"), header.get("kid")
        if algorithm not in self._algorithms:
            raise BadToken(
                "bad-algorithm", f"it is not signed with {' or '.join(self._algorithms)}"
            )
        if "crit" in header or "b64" in header:
            raise BadToken("bad-algorithm", "its header asks for what is not done here")
        if not isinstance(kid, str) or not kid:
            raise BadToken("unknown-key", "it does not name its key")
        if not self._loaded:
            await asyncio.to_thread(preload)
            self._loaded = True
        key = await self._keys.key(kid)
        if not key_fits_algorithm(key, algorithm):
            raise BadToken("bad-algorithm", "its key is not of the kind that its algorithm needs")
        self._check_signature(raw, key, algorithm)
        return self._claims(payload, kid)

    def _check_signature(self, raw: bytes, key: Any, algorithm: str) -> None:
        from joserfc.errors import JoseError
        from joserfc.jws import deserialize_compact

        self.signature_checks += 1
        try:
            deserialize_compact(raw, key, algorithms=[algorithm])
        except (JoseError, ValueError) as error:
            raise BadToken("bad-signature", "its signature does not fit") from error

    def _claims(self, payload: Mapping[str, Any], kid: str) -> tuple[Claims, int]:
        for name in self._required:
            if payload.get(name) in (None, "", []):
                raise BadToken("missing-claim", f"it has no {name}")
        expires, issued, begins = (_instant(payload, name) for name in ("exp", "iat", "nbf"))
        if expires is None:
            # Without an end it could not be remembered, nor would it ever stop to hold.
            raise BadToken("missing-claim", "it has no exp")
        audience = payload.get("aud", ())
        names = (audience,) if isinstance(audience, str) else audience
        if not isinstance(names, list | tuple) or self._audience not in names:
            raise BadToken("wrong-audience", "it is not meant for us")
        if self._issuers is not None and payload.get("iss") not in self._issuers:
            raise BadToken("wrong-issuer", "it is not from the issuer that is asked for")
        if self._max_life_us is not None:
            if issued is None:
                raise BadToken("missing-claim", "it has no iat")
            if expires - issued > self._max_life_us:
                most = self._max_life_us // 1_000_000
                raise BadToken("too-long", f"it lasts longer than {most} s")
        claims = Claims(
            _text(payload, "iss"),
            _text(payload, "sub"),
            tuple(str(name) for name in names),
            expires,
            issued or 0,
            _text(payload, "jti"),
            kid,
            payload,
        )
        return claims, max(issued or 0, begins or 0)

    # --- at each use ------------------------------------------------------------------------

    def _check_times(self, claims: Claims, begins_us: int) -> None:
        now = self._now_us()
        if now >= claims.expires_us + self._leeway_us:
            raise BadToken("expired", "it has expired")
        if now < begins_us - self._leeway_us:
            raise BadToken("not-yet", "it does not hold yet")


def _parts(raw: bytes) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return a token's header and claims, unverified. Raises BadToken."""
    header, payload, _ = raw.split(b".")
    found: list[dict[str, Any]] = []
    for part in (header, payload):
        try:
            value = orjson.loads(base64.urlsafe_b64decode(part + b"=" * (-len(part) % 4)))
        except ValueError as error:
            raise BadToken("no-token", "it is no JSON Web Token") from error
        if not isinstance(value, dict):
            raise BadToken("no-token", "it is no JSON Web Token")
        found.append(value)
    return found[0], found[1]


def _instant(payload: Mapping[str, Any], name: str) -> int | None:
    """Return a NumericDate (seconds) in microseconds; None if there is none. Raises BadToken."""
    value = payload.get(name)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise BadToken("missing-claim", f"its {name} is no instant")
    if not math.isfinite(value) or not 0 <= value < _MAX_NUMERIC_DATE:
        raise BadToken("missing-claim", f"its {name} is no instant")
    return int(value * 1_000_000)


def _text(payload: Mapping[str, Any], name: str) -> str:
    value = payload.get(name, "")
    if not isinstance(value, str):
        raise BadToken("missing-claim", f"its {name} is no text")
    return value

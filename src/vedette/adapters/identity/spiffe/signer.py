"""The signer of an agent's JWT-SVIDs with its own key: all that a worker holds."""

from __future__ import annotations

import secrets
from pathlib import Path
from typing import Any

import orjson

from vedette.domain.base.errors import BadFleet
from vedette.domain.identity import Identity

FORMAT = "vedette-identity/1"
_FIELDS = ("fleet", "agent", "audience", "key")


class Signer:
    """The signer of an agent's JWT-SVIDs. `key` is its private JWK; each lasts `life_us`."""

    def __init__(
        self, fleet: str, agent: str, audience: str, key: dict[str, Any], *, life_us: int
    ) -> None:
        from joserfc.jwk import ECKey

        self.identity = Identity(fleet, agent)
        self.audience = audience
        self.life_us = life_us
        self._key = ECKey.import_key(key)
        self.kid = self._key.thumbprint()

    @classmethod
    def from_file(cls, path: Path) -> Signer:
        """Read an identity file, as `vedette identity issue` writes it. Raises BadFleet.

        One that others may read is refused: whoever has read it is the agent.
        """
        mend = "have one written: vedette identity issue AGENT --out FILE"
        try:
            if path.stat().st_mode & 0o077:
                raise BadFleet(
                    "others may read this key", where=str(path), mend=f"chmod 600 {path}"
                )
            document = orjson.loads(path.read_bytes())
            if document.get("format") != FORMAT or any(name not in document for name in _FIELDS):
                raise ValueError("no identity")
            life_us = int(document["life_us"])
            return cls(
                document["fleet"],
                document["agent"],
                document["audience"],
                document["key"],
                life_us=life_us,
            )
        except OSError as error:
            what = f"cannot be read: {error.strerror}"
            raise BadFleet(what, where=str(path), mend=mend) from error
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise BadFleet("is no identity file", where=str(path), mend=mend) from error

    def mint(self, now_us: int) -> str:
        """Return a new token, valid from now on (microseconds UTC)."""
        from joserfc.jws import serialize_compact

        now = now_us // 1_000_000
        claims = {
            "iss": f"spiffe://{self.identity.fleet}",
            "sub": self.identity.spiffe_id,
            "aud": [self.audience],
            "iat": now,
            "exp": now + self.life_us // 1_000_000,
            "jti": secrets.token_urlsafe(16),
        }
        header = {"alg": "ES256", "typ": "JWT", "kid": self.kid}
        return serialize_compact(header, orjson.dumps(claims), self._key, algorithms=["ES256"])


def format_identity(
    fleet: str, agent: str, audience: str, key: dict[str, Any], life_us: int
) -> bytes:
    """Return the content of a worker's identity file, with its agent's private JWK."""
    document = {"format": FORMAT, "fleet": fleet, "agent": agent, "audience": audience}
    return orjson.dumps({**document, "life_us": life_us, "key": key}, option=orjson.OPT_INDENT_2)

"""The embedded issuer: a P-256 key for each agent, and JWT-SVIDs of at most five minutes.

The format is the JWT-SVID of SPIFFE (https://spiffe.io/docs/latest/spiffe-specs/jwt-svid/): ES256,
`sub` is the agent's SPIFFE id, `aud` the gateway, `kid` the key's RFC 7638 thumbprint.
"""

from vedette.adapters.identity.spiffe.issuer import MAX_LIFE_US, IssuedKey, Issuer
from vedette.adapters.identity.spiffe.signer import Signer
from vedette.adapters.identity.spiffe.tokens import SvidTokens

__all__ = ["MAX_LIFE_US", "IssuedKey", "Issuer", "Signer", "SvidTokens"]

"""JSON Web Tokens: checked against an issuer's published keys, by joserfc.

RFC 7519 (claims), RFC 7515 (signatures), RFC 7517 (key sets), RFC 8725 (best practice: the
algorithm is ours to choose, never the token's).
"""

from vedette.adapters.identity.jwt.jwks import Jwks
from vedette.adapters.identity.jwt.verifier import Verifier
from vedette.domain.ports.tokens import BadToken, Claims, KeySet

__all__ = ["BadToken", "Claims", "Jwks", "KeySet", "Verifier"]

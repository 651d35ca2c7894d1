"""Public keys as joserfc has them, made of JWK, and which algorithms they may be used with."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

# Which kind of key an algorithm is used with (RFC 7518 section 3.1). A shared secret is in no row:
# whoever can check such a signature can make one.
_TYPES = {
    "ES256": ("EC", "P-256"),
    "ES384": ("EC", "P-384"),
    "ES512": ("EC", "P-521"),
    "RS256": ("RSA", ""),
    "RS384": ("RSA", ""),
    "RS512": ("RSA", ""),
    "PS256": ("RSA", ""),
    "PS384": ("RSA", ""),
    "PS512": ("RSA", ""),
}


def is_known_algorithm(name: str) -> bool:
    """Say whether JSON Web Tokens may be signed with an algorithm at all."""
    return name in _TYPES


def key_fits_algorithm(key: Any, algorithm: str) -> bool:
    """Say whether a JWK is of the kind that an algorithm needs, and meant for it if it says so."""
    kind, curve = _TYPES[algorithm]
    if key.key_type != kind or (curve and key.curve_name != curve):
        return False
    parameters = key.as_dict(private=False)
    return bool(
        parameters.get("alg", algorithm) == algorithm and parameters.get("use", "sig") == "sig"
    )


def import_jwk(jwk: Mapping[str, Any]) -> Any:
    """Return the public key of a JWK. Raises ValueError if it is none that tokens are signed with.

    A private part is left out.
    """
    from joserfc.errors import JoseError
    from joserfc.jwk import ECKey, RSAKey

    kinds: dict[Any, Any] = {"EC": ECKey, "RSA": RSAKey}
    made = kinds.get(jwk.get("kty"))
    if made is None:
        raise ValueError(f"a key of type {jwk.get('kty')!r} is not used for tokens")
    private = {"d", "p", "q", "dp", "dq", "qi", "oth"}
    try:
        return made.import_key({n: v for n, v in jwk.items() if n not in private})
    except JoseError as error:
        raise ValueError(f"is no public key: {error}") from error

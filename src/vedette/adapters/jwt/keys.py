"""Public keys as joserfc has them, made of PEM or JWK; and a fixed set of them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from vedette.errors import BadFleet
from vedette.ports.tokens import BadToken

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


def known_algorithm(name: str) -> bool:
    """Say whether tokens may be signed with an algorithm at all."""
    return name in _TYPES


def fits(key: Any, algorithm: str) -> bool:
    """Say whether a key is of the kind that an algorithm needs, and meant for it if it says so."""
    kind, curve = _TYPES[algorithm]
    if key.key_type != kind or (curve and key.curve_name != curve):
        return False
    told = key.as_dict(private=False)
    return bool(told.get("alg", algorithm) == algorithm and told.get("use", "sig") == "sig")


def read_key(told: str | bytes | Mapping[str, Any]) -> Any:
    """Return the public key of a PEM text or a JWK. Raises ValueError if it is neither."""
    from joserfc.errors import JoseError
    from joserfc.jwk import ECKey, RSAKey

    try:
        if isinstance(told, Mapping):
            kinds: dict[Any, Any] = {"EC": ECKey, "RSA": RSAKey}
            made = kinds.get(told.get("kty"))
            if made is None:
                raise ValueError(f"a key of type {told.get('kty')!r} is not used for tokens")
            private = {"d", "p", "q", "dp", "dq", "qi", "oth"}
            return made.import_key({n: v for n, v in told.items() if n not in private})
        text = told.encode() if isinstance(told, str) else told
        return _of_pem(text, ECKey, RSAKey)
    except JoseError as error:
        raise ValueError(f"is no public key: {error}") from error


def _of_pem(text: bytes, ec: Any, rsa: Any) -> Any:
    from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePublicKey
    from cryptography.hazmat.primitives.asymmetric.rsa import RSAPublicKey
    from cryptography.hazmat.primitives.serialization import load_pem_public_key

    found = load_pem_public_key(text)
    if isinstance(found, EllipticCurvePublicKey):
        return ec.import_key(text)
    if isinstance(found, RSAPublicKey):
        return rsa.import_key(text)
    raise ValueError("is no key of an elliptic curve or RSA")


class FixedKeys:
    """A set of public keys that does not change. Raises BadFleet for what is no public key."""

    def __init__(self, keys: Mapping[str, str | bytes | Mapping[str, Any]]) -> None:
        self._keys: dict[str, Any] = {}
        for kid, told in keys.items():
            try:
                self._keys[kid] = read_key(told)
            except ValueError as error:
                raise BadFleet(str(error), where=f"key {kid}") from error

    async def key(self, kid: str) -> Any:
        """Return the key of an id. Raises BadToken."""
        found = self._keys.get(kid)
        if found is None:
            raise BadToken("unknown-key", "it is signed with a key that is not known")
        return found

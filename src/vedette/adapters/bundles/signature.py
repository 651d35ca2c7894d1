"""The one JWT of a signed bundle: ES256, our header, and a payload in canonical JSON."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Mapping
from typing import Any

import orjson

from vedette.adapters.bundles.key import PolicyKey, key_id, verify_signature
from vedette.domain.base.canonical import canonical_json
from vedette.domain.base.errors import BadPolicy

_MEND = "fetch it again from whoever published it, or give the key it was signed with"


def sign_claims(claims: Mapping[str, Any], key: PolicyKey) -> str:
    """Return a bundle archive's claims as a JWT, signed with a policy key."""
    message = f"{_to_base64url(_header(key.id))}.{_to_base64url(canonical_json(dict(claims)))}"
    return f"{message}.{_to_base64url(key.sign(message.encode('ascii')))}"


def verify_token(raw: str, public: bytes) -> tuple[dict[str, Any], str]:
    """Return the claims of a bundle archive's JWT, and the id of the key, if that key signed it.

    The header is compared, never obeyed: it says nothing that is not known before. Raises
    BadPolicy.
    """
    ours = key_id(public)
    header, _, rest = raw.partition(".")
    payload, _, signature = rest.partition(".")
    if header != _to_base64url(_header(ours)):
        raise BadPolicy("the archive was signed with another key", mend=_MEND)
    if not verify_signature(
        public, f"{header}.{payload}".encode("utf-8", "replace"), _from_base64url(signature)
    ):
        raise BadPolicy("the archive's signature is wrong", mend=_MEND)
    try:
        claims = orjson.loads(_from_base64url(payload))
    except orjson.JSONDecodeError as error:
        raise BadPolicy("the archive's signature cannot be read", mend=_MEND) from error
    if not isinstance(claims, dict):
        raise BadPolicy("the archive's signature cannot be read", mend=_MEND)
    return claims, ours


def _header(kid: str) -> bytes:
    return canonical_json({"alg": "ES256", "kid": kid, "typ": "JWT"})


def _to_base64url(raw: bytes) -> str:
    return base64.urlsafe_b64encode(raw).rstrip(b"=").decode("ascii")


def _from_base64url(text: str) -> bytes:
    try:
        raw = base64.b64decode(
            text.encode("ascii") + b"=" * (-len(text) % 4), altchars=b"-_", validate=True
        )
    except (binascii.Error, ValueError) as error:
        raise BadPolicy("the archive's signature is not base64url", mend=_MEND) from error
    # Spare bits of the last character are part of no byte, and must not be free to choose.
    if _to_base64url(raw) != text:
        raise BadPolicy("the archive's signature is not base64url as written by us", mend=_MEND)
    return raw

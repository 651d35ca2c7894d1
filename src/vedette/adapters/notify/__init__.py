"""A webhook that takes notices: one POST of JSON, with an id under which a repeat is known.

Redirects are not followed, and a token goes over TLS or to this machine alone. No error says the
path or the token: chat services put the secret in the path.
"""

from __future__ import annotations

from urllib.parse import urlsplit

from vedette.adapters.http_client import NoResponse, SendFailure, request
from vedette.domain.base import failpoint
from vedette.domain.base.errors import Permanent, Temporary, Unsendable, VedetteError
from vedette.domain.base.urls import is_loopback

# For each answer of the network, and for the whole, as a server may trickle for ever.
TIMEOUT_S = 8.0
DEADLINE_S = 20.0
# Statuses below 500 by which a server asks to be tried again (RFC 9110, RFC 6585).
_RETRY_STATUSES = frozenset({408, 425, 429})
_TOO_LARGE = 413
_ANSWER_BYTES = 4096


def post(url: str, body: bytes, key: str, token: str | None) -> None:
    """Post a notice to a webhook; return when it is taken (2xx, or 409: known already). Blocks.

    Raises Temporary if it may be taken later, Permanent if somebody has to mend something first,
    and Unsendable, a Permanent, if the server takes no notice as long as this one.
    """
    parts = urlsplit(url)
    headers = {"Content-Type": "application/json", "Idempotency-Key": key}
    if token is not None:
        if parts.scheme != "https" and not is_loopback(parts.hostname or ""):
            what = "a token is not sent over plain HTTP"
            raise Permanent(what, where=_strip_path(url), mend="use https")
        headers["Authorization"] = f"Bearer {token}"
    failpoint.hit_failpoint("notice:before")
    try:
        status = request(
            "POST", url, headers, body,
            timeout_s=DEADLINE_S, read_timeout_s=TIMEOUT_S, max_bytes=_ANSWER_BYTES,
        ).status  # fmt: skip
    except SendFailure as error:
        raise Temporary(f"no answer: {error}", where=_strip_path(url)) from error
    except NoResponse as error:
        # Its words may be the server's, which knows the path.
        what = f"no answer: {type(error.__cause__).__name__}"
        raise Temporary(what, where=_strip_path(url)) from None
    except ValueError as error:
        # A host that is no name, or characters that no line of HTTP can hold (RFC 9110, 5.5).
        what = f"it cannot be asked: {type(error).__name__}"
        mend = "see that address and token are plain ASCII, the host a name of DNS"
        raise Permanent(what, where=_strip_path(url), mend=mend) from None
    failpoint.hit_failpoint("notice:after")
    if 200 <= status < 300 or status == 409:
        return
    kind: type[VedetteError] = Permanent
    if status >= 500 or status in _RETRY_STATUSES:
        kind = Temporary
    elif status == _TOO_LARGE:
        kind = Unsendable
    raise kind(f"the webhook answered {status}", where=_strip_path(url))


def _strip_path(url: str) -> str:
    """Return where it was without the path: chat services put the secret there."""
    parts = urlsplit(url)
    return f"{parts.scheme}://{parts.netloc}"

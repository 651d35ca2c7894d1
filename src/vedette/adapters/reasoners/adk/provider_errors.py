"""What a model's provider means by an error: wait, mend something, or never send this again.

Told by the error's code and never by its words, which providers change. A 429 is a rate, a day's
quota or an unpaid bill; a bad key is a 401, or Gemini's 400. Errors of google-genai, anthropic,
openai, litellm and of the HTTP clients below them are known by their shape, so none of these is
imported here. Nothing of what a provider says is told on unless it is a code: providers repeat
parts of the key, and other secrets of whoever asked.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from datetime import datetime
from email.utils import parsedate_to_datetime
from traceback import walk_tb
from typing import Any

from vedette.domain.base.safe_text import escape_text
from vedette.domain.model import FailureKind
from vedette.domain.model_turn import (
    UNCHARGED,
    ModelAway,
    ModelError,
    ModelFailed,
    ModelUse,
    RequestRefused,
)

_RATE, _DAY_US = 429, 86_400_000_000
# OpenAI's and Anthropic's words for a 429 that waiting does not mend.
_BILLING = frozenset(
    {"insufficient_quota", "credit_balance_exhausted", "organization_usage_limit_exceeded",
     "enforced_spend_limit_reached", "billing_hard_limit_reached", "billing_error",
     "BILLING_DISABLED"}
)  # fmt: skip
_BILLING_END = "_spend_limit_exceeded"
_KINDS: Mapping[int, FailureKind] = {
    401: "key", 402: "billing", 403: "forbidden", 404: "missing",
    408: "timeout", 409: "unavailable", 425: "unavailable", 429: "rate", 499: "timeout",
}  # fmt: skip
# Said before a model is asked. Behind any other 5xx it may have answered, and is paid for it.
_NOT_ASKED = (503, 529)
# By names of classes, so that no client is imported. The first that fits counts.
_BY_CLASS: tuple[tuple[FailureKind, frozenset[str]], ...] = (
    ("timeout", frozenset({"TimeoutError", "TimeoutException", "APITimeoutError", "Timeout"})),
    ("key", frozenset({"DefaultCredentialsError", "RefreshError"})),
    (
        "connection",
        frozenset({"ConnectionError", "APIConnectionError", "TransportError", "ClientError",
                   "gaierror", "SSLError"}),
    ),
    # What came was no answer: a proxy's page, or half of one.
    (
        "unavailable",
        frozenset({"JSONDecodeError", "APIResponseValidationError", "UnknownApiResponseError"}),
    ),
)  # fmt: skip
_NOT_SENT = frozenset(
    {"ConnectError", "ConnectTimeout", "ClientConnectorError", "ConnectionRefusedError",
     "gaierror", "SSLError", "PoolTimeout"}
)  # fmt: skip
_MENDS: Mapping[FailureKind, tuple[str, str]] = {
    "rate": ("is asked more often than its provider allows", "set calls_per_minute lower"),
    "unavailable": ("is not available at its provider", "nothing; it is tried again"),
    "timeout": ("did not answer in time", "nothing; or set a longer timeout"),
    "connection": ("cannot be reached", "see that base_url and the network are right"),
    "quota": ("has used up its quota of the day", "nothing; or raise the quota there"),
    "billing": ("is not answered because of billing", "pay, or raise the spend limit there"),
    "key": ("does not take the key", "give another key where the entry's key_… says"),
    "forbidden": ("may not be used with this key", "have the key allowed to use this model"),
    "missing": ("is not known to its provider", "correct model = in its entry"),
}
_CODE = re.compile(r"[A-Za-z0-9_.-]{1,64}\Z")
_SECONDS = re.compile(r"(\d+(?:\.\d+)?)s\Z")
_MAX_WORDS, _MAX_CAUSES = 300, 6


def explain_failure(error: BaseException, model: str, calls: int, *, key: str = "") -> ModelError:
    """Return what an error of a model's call means for the fleet, and what `calls` of it cost.

    ModelAway for what is waited for or mended, RequestRefused for a request that is refused,
    ModelFailed for what nobody knows. `key` is cut out of what is told of that.
    """
    is_sent = not any(_NOT_SENT & _names(one) for one in _causes(error))
    for cause in _causes(error):
        if isinstance(cause, ModelAway):
            return cause
        status, words, names = _status(cause), tuple(_codes(cause)), _names(cause)
        # LiteLLM gives a status to what has none.
        if status is not None and is_sent and "APIConnectionError" not in names:
            return _explain_status(cause, status, words, model, calls)
        if isinstance(cause, AttributeError) and isinstance(cause.obj, str):
            # The client of anthropic hands on a page that is no JSON as a text.
            return _away(model, "unavailable", "", ModelUse(calls))
        for kind, known in _BY_CLASS:
            if names & known and not (kind == "unavailable" and _is_of_adk(cause)):
                if kind == "key" and getattr(cause, "retryable", False):
                    kind = "connection"
                charged = kind in ("timeout", "connection", "unavailable") and is_sent
                return _away(model, kind, "", ModelUse(calls) if charged else UNCHARGED)
    return ModelFailed(f"the model {model} failed: {tell_error(error, key)}", ModelUse(calls))


def _explain_status(
    error: BaseException, status: int, words: tuple[str, ...], model: str, calls: int
) -> ModelError:
    kind = _KINDS.get(status, None if 400 <= status < 500 else "unavailable")
    if any(word.startswith("API_KEY_") for word in words):
        kind = "key"
    elif any(word in _BILLING or word.endswith(_BILLING_END) for word in words):
        kind = "billing"
    elif status == _RATE and _is_daily(error):
        kind = "quota"
    elif kind is None and "FAILED_PRECONDITION" in words:
        kind = "forbidden"  # Gemini's word for a region, or an account, that it does not serve
    said = ", ".join(dict.fromkeys((str(status), *words[:2])))
    if kind is None:
        mend = "see what the model takes; nothing of this request is sent again"
        what = f"the provider of the model {model} refused a request ({said})"
        return RequestRefused(what, UNCHARGED, mend=mend)
    after = retry_after_us(error) if kind in ("rate", "unavailable") else 0
    may_be_paid = kind == "timeout" or (status >= 500 and status not in _NOT_ASKED)
    return _away(model, kind, said, ModelUse(calls) if may_be_paid else UNCHARGED, after)


def _away(model: str, kind: FailureKind, said: str, use: ModelUse, after_us: int = 0) -> ModelAway:
    what, mend = _MENDS[kind]
    told = f"the model {model} {what}" + (f" ({said})" if said else "")
    return ModelAway(told, kind, use, mend=mend, retry_after_us=after_us)


def retry_after_us(error: BaseException) -> int:
    """Return for how long a provider asks to be left alone (microseconds, 0: it does not say)."""
    headers = _headers(error)
    for name, factor in (("retry-after-ms", 1_000), ("retry-after", 1_000_000)):
        if (text := headers.get(name)) is not None:
            try:
                wait = float(text) * factor
            except ValueError:
                wait = _until(text, headers.get("date", "")) * factor
            if math.isfinite(wait) and wait > 0:
                return min(int(wait), _DAY_US)
    for part in _walk(_body(error)):
        if found := _SECONDS.match(str(part.get("retryDelay", ""))):
            return min(int(float(found[1]) * 1_000_000), _DAY_US)
    return 0


def _until(text: str, now: str) -> float:
    """Return the seconds from one HTTP date to another; 0 if one of them is none."""
    try:
        instants: list[datetime] = [parsedate_to_datetime(one) for one in (text, now)]
        return (instants[0] - instants[1]).total_seconds()
    except (TypeError, ValueError):
        return 0.0


def _causes(error: BaseException) -> Iterator[BaseException]:
    """Yield an error and those that it came of: clients and ADK wrap them."""
    found: BaseException | None = error
    for _ in range(_MAX_CAUSES):
        if found is None:
            return
        yield found
        found = found.__cause__ or found.__context__


def _is_of_adk(error: BaseException) -> bool:
    """Say whether ADK could not parse what a model wrote, not a client what a server sent."""
    modules = [str(frame.f_globals.get("__name__")) for frame, _ in walk_tb(error.__traceback__)]
    own = [module for module in modules if not module.startswith("json")]
    return bool(own) and own[-1].startswith("google.adk.")


def _names(error: BaseException) -> set[str]:
    return {one.__name__ for one in type(error).__mro__}


def _status(error: BaseException) -> int | None:
    for name in ("status_code", "code"):
        found = getattr(error, name, None)
        if isinstance(found, int) and 100 <= found < 600 and found // 100 != 2:
            return found
    return None


def _headers(error: BaseException) -> dict[str, str]:
    found = getattr(error, "litellm_response_headers", None)
    if not found:
        found = getattr(getattr(error, "response", None), "headers", None)
    try:
        return {str(name).lower(): str(value) for name, value in dict(found or {}).items()}
    except (TypeError, ValueError):
        return {}


def _body(error: BaseException) -> Any:
    found = getattr(error, "body", None)
    return found if found is not None else getattr(error, "details", None)


def _walk(value: Any, depth: int = 0) -> Iterator[Mapping[str, Any]]:
    """Yield the objects in an error's body, the outermost first."""
    if depth > 6:
        return
    if isinstance(value, Mapping):
        yield value
        for part in value.values():
            yield from _walk(part, depth + 1)
    elif isinstance(value, list):
        for part in value[:16]:
            yield from _walk(part, depth + 1)


def _codes(error: BaseException) -> Iterator[str]:
    """Yield the codes that an error carries, of any of the forms that providers give them."""
    given = [getattr(error, name, None) for name in ("code", "type", "status")]
    for part in _walk(_body(error)):
        given += [part.get(name) for name in ("error_code", "code", "status", "reason", "type")]
    for text in given:
        if isinstance(text, str) and text != "error" and _CODE.match(text):
            yield text


def _is_daily(error: BaseException) -> bool:
    """Say whether Gemini's quota of a day is used up, not that of a minute."""
    return any("PerDay" in str(part.get("quotaId", "")) for part in _walk(_body(error)))


def tell_error(error: BaseException, key: str) -> str:
    """Return an error's kind, and its words on one line without the key, if that is known here."""
    what = type(error).__name__
    return f"{what}: {escape_text(str(error).replace(key, '***')[:_MAX_WORDS])}" if key else what

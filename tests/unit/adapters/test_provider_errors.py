"""Errors of providers, told apart by their codes: real ones of google-genai, others by shape."""

from __future__ import annotations

import json
from typing import Any

import pytest
from google.genai import errors

from vedette.adapters.reasoners.adk.provider_errors import explain_failure, retry_after_us
from vedette.domain.base.errors import Permanent, Temporary
from vedette.domain.model_turn import UNCHARGED, ModelAway, ModelFailed, RequestRefused

SECOND = 1_000_000


class Response:
    """What clients keep of an answer."""

    def __init__(self, **headers: str) -> None:
        self.headers = {name.replace("_", "-"): text for name, text in headers.items()}


class APIStatusError(Exception):
    """The shape of anthropic's and openai's errors of an answer."""

    def __init__(self, status: int, body: Any = None, **headers: str) -> None:
        super().__init__(f"Error code: {status} - {body}")
        self.status_code, self.body, self.response = status, body, Response(**headers)


class APIConnectionError(Exception):
    """The shape of their errors without an answer."""


class APITimeoutError(APIConnectionError):
    """The shape of their errors of one that did not come in time."""


class ConnectError(Exception):
    """The shape of httpx's error of a connection that was never there."""


def gemini(code: int, status: str, *details: dict[str, Any]) -> errors.APIError:
    kind = errors.ClientError if code < 500 else errors.ServerError
    body = {"error": {"code": code, "message": "said", "status": status, "details": [*details]}}
    return kind(code, body, None)


def failed(error: BaseException) -> ModelAway:
    found = explain_failure(error, "fast", 1)
    assert isinstance(found, ModelAway), found
    return found


QUOTA_DAY = {
    "@type": "type.googleapis.com/google.rpc.QuotaFailure",
    "violations": [{"quotaId": "GenerateRequestsPerDayPerProjectPerModel"}],
}
QUOTA_MINUTE = {
    "@type": "type.googleapis.com/google.rpc.QuotaFailure",
    "violations": [{"quotaId": "GenerateRequestsPerMinutePerProjectPerModel"}],
}
BAD_KEY = {"@type": "type.googleapis.com/google.rpc.ErrorInfo", "reason": "API_KEY_INVALID"}
NO_BILLING = {"@type": "type.googleapis.com/google.rpc.ErrorInfo", "reason": "BILLING_DISABLED"}
RETRY = {"@type": "type.googleapis.com/google.rpc.RetryInfo", "retryDelay": "12.5s"}


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (gemini(429, "RESOURCE_EXHAUSTED", QUOTA_MINUTE), "rate"),
        (gemini(429, "RESOURCE_EXHAUSTED", QUOTA_DAY), "quota"),
        (gemini(402, "PAYMENT_REQUIRED"), "billing"),
        (gemini(400, "INVALID_ARGUMENT", BAD_KEY), "key"),
        (gemini(403, "PERMISSION_DENIED"), "forbidden"),
        (gemini(403, "PERMISSION_DENIED", NO_BILLING), "billing"),
        (gemini(400, "FAILED_PRECONDITION"), "forbidden"),
        (gemini(302, ""), "unavailable"),
        (gemini(404, "NOT_FOUND"), "missing"),
        (gemini(500, "INTERNAL"), "unavailable"),
        (gemini(503, "UNAVAILABLE"), "unavailable"),
        (gemini(504, "DEADLINE_EXCEEDED"), "unavailable"),
        (APIStatusError(401, {"error": {"type": "authentication_error"}}), "key"),
        (APIStatusError(409), "unavailable"),
        (APIStatusError(529, {"error": {"type": "overloaded_error"}}), "unavailable"),
        (APIStatusError(429, {"error": {"type": "rate_limit_error"}}), "rate"),
        (
            APIStatusError(
                429,
                {"error": {"type": "rate_limit_error",
                           "details": {"error_code": "enforced_spend_limit_reached"}}},
            ),
            "billing",
        ),
        (APIStatusError(429, {"code": "rate_limit_exceeded"}), "rate"),
        (APIStatusError(429, {"code": "slow_down"}), "rate"),
        (APIStatusError(429, {"code": "insufficient_quota"}), "billing"),
        (APIStatusError(429, {"code": "credit_balance_exhausted"}), "billing"),
        (APIStatusError(429, {"code": "project_spend_limit_exceeded"}), "billing"),
        (APIStatusError(429, {"code": "organization_usage_limit_exceeded"}), "billing"),
        (APITimeoutError(), "timeout"),
        (TimeoutError(), "timeout"),
        (APIConnectionError(), "connection"),
        (ConnectionResetError(), "connection"),
        (json.JSONDecodeError("Expecting value", "<html>", 0), "unavailable"),
        (errors.UnknownApiResponseError("<html>"), "unavailable"),
    ],
)  # fmt: skip
def test_a_failure_is_told_by_its_code(error: BaseException, kind: str) -> None:
    found = failed(error)
    assert (found.kind, found.code) == (kind, f"model-{kind}")
    assert found.mend
    assert "\n" not in str(found)


@pytest.mark.parametrize(
    "error", [gemini(400, "INVALID_ARGUMENT"), APIStatusError(413), APIStatusError(422)]
)
def test_a_refused_request_is_permanent_and_says_so(error: BaseException) -> None:
    found = explain_failure(error, "fast", 1)
    assert isinstance(found, RequestRefused)
    assert isinstance(found, Permanent)
    assert (found.code, found.use.calls) == ("model-request", 0)


def test_what_nobody_knows_is_tried_again() -> None:
    found = explain_failure(ValueError("surprise"), "fast", 1)
    assert isinstance(found, ModelFailed)
    assert isinstance(found, Temporary)
    assert (found.use.calls, found.use.spent) == (1, {}), "nobody knows whether it was answered"
    assert "ValueError: surprise" in str(
        explain_failure(ValueError("surprise"), "fast", 1, key="k")
    )
    assert "surprise" not in str(found), "which might repeat a key that nobody knows here"


def test_a_wrapped_error_is_known_by_its_cause() -> None:
    outer = RuntimeError("Error in plugin")
    outer.__cause__ = gemini(503, "UNAVAILABLE")
    assert failed(outer).kind == "unavailable"


class LiteError(Exception):
    """The shape of LiteLLM's errors: the headers are an attribute of their own."""

    status_code = 429
    litellm_response_headers: Any = {"Retry-After": "7"}  # noqa: RUF012


@pytest.mark.parametrize(
    ("error", "seconds"),
    [
        (APIStatusError(429, None, retry_after="20"), 20),
        (APIStatusError(503, None, retry_after="0.5"), 0.5),
        (APIStatusError(429, None, retry_after="1", retry_after_ms="1500"), 1.5),
        (APIStatusError(429, None, date="Fri, 27 Nov 2026 12:00:00 GMT",
                        retry_after="Fri, 27 Nov 2026 12:00:30 GMT"), 30),
        (APIStatusError(429, None, retry_after="Fri, 27 Nov 2026 12:00:30 GMT"), 0),
        (APIStatusError(429, None, retry_after="-5"), 0),
        (APIStatusError(429, None, retry_after="nan"), 0),
        (APIStatusError(429, None, retry_after="1e12"), 86_400),
        (APIStatusError(429), 0),
        (gemini(429, "RESOURCE_EXHAUSTED", QUOTA_MINUTE, RETRY), 12.5),
        (LiteError(), 7),
    ],
)  # fmt: skip
def test_how_long_a_provider_asks_to_be_left_alone(error: BaseException, seconds: float) -> None:
    assert retry_after_us(error) == int(seconds * SECOND)
    assert failed(error).retry_after_us == int(seconds * SECOND)


def test_only_a_call_that_may_have_been_answered_is_charged() -> None:
    assert failed(APITimeoutError()).use.calls
    assert failed(ConnectionResetError()).use.calls
    assert failed(json.JSONDecodeError("Expecting value", "{", 1)).use.calls
    never_sent = APIConnectionError()
    never_sent.__cause__ = ConnectError()
    assert not failed(never_sent).use.calls
    assert not failed(gemini(503, "UNAVAILABLE")).use.calls


@pytest.mark.parametrize("key", ["", "AQ.mine"])
def test_no_key_is_told_on(key: str) -> None:
    words = "Incorrect API key provided: AQ.mine"
    for error in (
        APIStatusError(401, {"error": {"message": words, "code": "invalid_api_key"}}),
        error_400(words),
        ValueError(words),
    ):
        assert "mine" not in str(explain_failure(error, "fast", 1, key=key))
    assert "(400, invalid_request_error)" in str(explain_failure(error_400(words), "fast", 1))


def error_400(words: str) -> APIStatusError:
    return APIStatusError(400, {"error": {"message": words, "type": "invalid_request_error"}})


@pytest.mark.parametrize("code", [500, 502, 504, 524, 408, 499])
def test_what_may_have_been_answered_behind_a_gateway_is_charged(code: int) -> None:
    assert (failed(APIStatusError(code)).use.calls, failed(APIStatusError(code)).use.spent) == (
        1,
        {},
    )


@pytest.mark.parametrize("code", [401, 402, 403, 404, 409, 425, 429, 503, 529])
def test_what_was_refused_is_not(code: int) -> None:
    assert failed(APIStatusError(code)).use == UNCHARGED

"""The test server's faults as the providers' own clients see them."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import httpx
import pytest
from google import genai
from google.genai import errors as genai_errors
from google.genai import types
from tests.model_server import KEY, find_client

from vedette.testing import ManualClock
from vedette.testing.model_server import (
    CutAnswer,
    ErrorAnswer,
    FunctionCall,
    ModelServer,
    RawAnswer,
    Request,
    ResetConnection,
    SlowAnswer,
    StallAnswer,
    Turn,
    Usage,
)

WIRES = ("gemini", "anthropic", "responses", "chat")
Ask = Callable[..., Any]


def filed(_: Request) -> Turn:
    return Turn(("Filed.",))


@contextmanager
def client(wire: str, server: ModelServer, timeout_s: float = 20) -> Iterator[Ask]:
    """Return what asks one question by the provider's own client, and returns its answer."""
    user = [{"role": "user", "content": "A mail."}]
    if wire == "gemini":
        options = types.HttpOptions(
            base_url=server.url, timeout=int(timeout_s * 1000), client_args={"trust_env": False}
        )
        google = genai.Client(api_key=KEY, http_options=options)

        def ask(*, stream: bool = False) -> Any:
            if stream:
                made = google.models.generate_content_stream(
                    model="gemini-3-pro-preview", contents="A mail."
                )
                return list(made)
            return google.models.generate_content(model="gemini-3-pro-preview", contents="A mail.")

        yield ask
        return
    if wire == "anthropic":
        made = find_client("anthropic").Anthropic(
            api_key=KEY, base_url=server.url, max_retries=0, timeout=timeout_s
        )
        asked: dict[str, Any] = {"model": "claude-opus-5-5", "max_tokens": 100, "messages": user}
        create = made.messages.create
    else:
        made = find_client("openai").OpenAI(
            api_key=KEY, base_url=f"{server.url}/v1", max_retries=0, timeout=timeout_s
        )
        asked = {"model": "gpt-5.5"}
        create = made.chat.completions.create if wire == "chat" else made.responses.create
        asked["messages" if wire == "chat" else "input"] = user

    def answer(*, stream: bool = False) -> Any:
        given = create(**asked, stream=stream)
        return list(given) if stream else given

    with made:
        yield answer


def refused(wire: str, fault: ErrorAnswer) -> Any:
    """Return the error that a client raises of a fault."""
    with ModelServer(filed) as server, client(wire, server) as ask:
        server.add_fault(fault)
        with pytest.raises(Exception) as caught:  # noqa: PT011 - each client has its own
            ask()
        assert len(server.exchanges) == 1
        assert server.exchanges[0].status == status_of(caught.value)
        return caught.value


def status_of(error: Any) -> int:
    return int(getattr(error, "status_code", 0) or getattr(error, "code", 0))


@pytest.mark.parametrize(
    ("trouble", "status", "kind"),
    [
        ("rate_limit", 429, "RateLimitError"),
        ("unavailable", 503, "InternalServerError"),
        ("overloaded", 529, "OverloadedError"),
        ("internal", 500, "InternalServerError"),
    ],
)
@pytest.mark.parametrize("wire", WIRES)
def test_a_trouble_is_the_clients_own_error(
    wire: str, trouble: Any, status: int, kind: str
) -> None:
    error = refused(wire, ErrorAnswer(trouble, retry_after_s=7))
    if wire == "gemini":
        kind = "ClientError" if status == 429 else "ServerError"
    if wire == "anthropic" and status == 503:
        kind = "ServiceUnavailableError"
    if wire != "anthropic" and status == 529:
        status, kind = 503, kind.replace("OverloadedError", "InternalServerError")
    assert status_of(error) == status
    assert type(error).__name__ == kind
    if wire == "gemini":
        assert "retry-after" not in error.response.headers
    else:
        assert error.response.headers["retry-after"] == "7"


def test_gemini_tells_the_wait_in_the_body_alone() -> None:
    error = refused("gemini", ErrorAnswer("rate_limit", retry_after_s=7))
    details = {each["@type"].rpartition(".")[2]: each for each in error.details["error"]["details"]}
    assert details["RetryInfo"]["retryDelay"] == "7s"
    assert "PerMinute" in details["QuotaFailure"]["violations"][0]["quotaId"]
    assert error.status == "RESOURCE_EXHAUSTED"


def test_geminis_daily_quota_is_told_by_its_name() -> None:
    error = refused("gemini", ErrorAnswer("daily_quota"))
    details = {each["@type"].rpartition(".")[2]: each for each in error.details["error"]["details"]}
    assert "PerDay" in details["QuotaFailure"]["violations"][0]["quotaId"]
    assert "RetryInfo" not in details
    assert status_of(error) == 429


@pytest.mark.parametrize(
    ("wire", "code", "status", "found"),
    [
        ("gemini", "", 402, lambda error: error.status == "FAILED_PRECONDITION"),
        (
            "anthropic",
            "",
            429,
            lambda error: (
                error.body["error"]["details"]["error_code"] == "enforced_spend_limit_reached"
            ),
        ),
        ("responses", "", 429, lambda error: error.code == "credit_balance_exhausted"),
        (
            "chat",
            "insufficient_quota",
            429,
            lambda error: error.code == error.type == "insufficient_quota",
        ),
    ],
)
def test_a_bill_that_is_not_paid_is_told_by_its_code(
    wire: str, code: str, status: int, found: Callable[[Any], bool]
) -> None:
    error = refused(wire, ErrorAnswer("billing", code=code))
    assert status_of(error) == status
    assert found(error)


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("fault", [CutAnswer(20), ResetConnection()])
@pytest.mark.parametrize("wire", WIRES)
def test_a_cut_connection_is_an_error_of_the_transport(wire: str, fault: Any, stream: bool) -> None:
    with ModelServer(filed) as server, client(wire, server) as ask:
        server.add_fault(fault, requests={1})
        with pytest.raises(Exception, match=r"(?i)connection|peer|reset|read|disconnect"):
            ask(stream=stream)
        assert server.exchanges[0].cut
        assert ask(stream=stream)
        assert not server.exchanges[1].cut
        assert len(server.exchanges) == 2


@pytest.mark.parametrize("after_bytes", [0, 20])
@pytest.mark.parametrize("wire", WIRES)
def test_a_body_that_stalls_ends_by_the_clients_time(wire: str, after_bytes: int) -> None:
    with ModelServer(filed) as server, client(wire, server, timeout_s=0.5) as ask:
        server.add_fault(StallAnswer(after_bytes), requests={1})
        with pytest.raises(Exception, match=r"(?i)timed? ?out"):
            ask()


def test_a_stalled_answer_ends_with_the_server() -> None:
    with ModelServer(filed) as server:
        server.add_fault(StallAnswer(5))
        with (
            httpx.Client(trust_env=False, timeout=20) as plain,
            plain.stream(
                "POST", server.url + "/api/chat", json={"model": "qwen3", "messages": []}
            ) as answer,
        ):
            pieces = answer.iter_raw()
            assert next(pieces) == b'{"mod'
            assert server.calls_in_flight == 1
            server.close()
            with pytest.raises(httpx.TransportError):
                next(pieces)
    assert server.calls_in_flight == 0


@pytest.mark.parametrize("wire", WIRES)
def test_a_slow_answer_comes_whole(wire: str) -> None:
    with ModelServer(filed) as server, client(wire, server) as ask:
        server.add_fault(SlowAnswer(piece_bytes=200, pause_s=0.001))
        assert "Filed." in str(ask())


@pytest.mark.parametrize("body", [b'{"candidates": [{', b"<html>Bad gateway</html>"])
@pytest.mark.parametrize("wire", WIRES)
def test_what_is_no_json_comes_as_it_is(wire: str, body: bytes) -> None:
    with ModelServer(filed) as server, client(wire, server) as ask:
        server.add_fault(RawAnswer(body, headers={"content-type": "application/json"}))
        with pytest.raises(Exception, match=r"(?i)expect|json"):
            ask()
        assert plain(server, "ollama").content == body
        assert server.exchanges[0].wire == wire


@pytest.mark.parametrize(
    ("usage", "found"),
    [
        (Usage(input=math.nan), "nan"),
        (Usage(output=-5), "-5"),
        (Usage(input=10**15), str(10**15)),
    ],
)
@pytest.mark.parametrize("wire", WIRES[1:])
def test_usage_is_what_the_script_says(wire: str, usage: Usage, found: str) -> None:
    with ModelServer(lambda _: Turn(("Filed.",), usage)) as server, client(wire, server) as ask:
        assert found in str(ask().usage)


def test_geminis_usage_is_what_the_script_says() -> None:
    usage = Usage(10, -5, 7, cache_read=100, cache_write=30)
    with ModelServer(lambda _: Turn(("x",), usage)) as server, client("gemini", server) as ask:
        told = ask().usage_metadata
    assert told.prompt_token_count == 140
    assert told.cached_content_token_count == 100
    assert (told.candidates_token_count, told.thoughts_token_count) == (-5, 7)
    assert told.total_token_count == 142


def test_thinking_is_counted_as_each_wire_does() -> None:
    usage = Usage(10, 5, 7, cache_read=100, cache_write=30)

    def ask_of(wire: str) -> Any:
        with ModelServer(lambda _: Turn(("x",), usage)) as server, client(wire, server) as ask:
            return ask().usage

    claude = ask_of("anthropic")
    assert (claude.input_tokens, claude.output_tokens) == (10, 12)
    assert (claude.cache_read_input_tokens, claude.cache_creation_input_tokens) == (100, 30)
    openai = ask_of("responses")
    assert (openai.input_tokens, openai.output_tokens, openai.total_tokens) == (140, 12, 152)
    assert openai.input_tokens_details.cached_tokens == 100
    assert openai.output_tokens_details.reasoning_tokens == 7
    chat = ask_of("chat")
    assert (chat.prompt_tokens, chat.completion_tokens, chat.total_tokens) == (140, 12, 152)


@pytest.mark.parametrize("wire", WIRES)
def test_an_answer_of_20_mb_comes_whole(wire: str) -> None:
    size = 20_000_000
    with ModelServer(lambda _: Turn(("x" * size,))) as server, client(wire, server) as ask:
        given = ask()
    text = {
        "gemini": lambda: given.text,
        "anthropic": lambda: given.content[0].text,
        "responses": lambda: given.output_text,
        "chat": lambda: given.choices[0].message.content,
    }[wire]()
    assert len(text) == size


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("wire", WIRES)
def test_an_answer_may_be_empty(wire: str, stream: bool) -> None:
    with ModelServer(lambda _: Turn()) as server, client(wire, server) as ask:
        given = ask(stream=stream)
        assert server.statuses == {200: 1}
    if stream:
        assert given
    else:
        empty: dict[str, Callable[[], bool]] = {
            "gemini": lambda: given.candidates[0].content.parts is None,
            "anthropic": lambda: given.content == [],
            "responses": lambda: given.output == [],
            "chat": lambda: given.choices[0].message.content is None,
        }
        assert empty[wire]()


def test_a_model_may_call_what_it_was_never_offered() -> None:
    calls = (FunctionCall("shell", {"command": "rm"}), FunctionCall("other_agents_tool"))
    with ModelServer(lambda _: Turn(calls)) as server, client("gemini", server) as ask:
        assert [call.name for call in ask().function_calls] == ["shell", "other_agents_tool"]


@pytest.mark.parametrize(
    ("wire", "finish", "said"),
    [
        ("gemini", "length", "MAX_TOKENS"),
        ("gemini", "safety", "SAFETY"),
        ("gemini", "MALFORMED_FUNCTION_CALL", "MALFORMED_FUNCTION_CALL"),
        ("anthropic", "length", "max_tokens"),
        ("anthropic", "safety", "refusal"),
        ("anthropic", "pause_turn", "pause_turn"),
        ("responses", "length", "max_output_tokens"),
        ("responses", "safety", "content_filter"),
        ("chat", "length", "length"),
        ("chat", "safety", "content_filter"),
    ],
)
def test_why_it_ended_is_in_the_wires_word(wire: str, finish: str, said: str) -> None:
    script = lambda _: Turn(("x",), finish=finish)  # noqa: E731
    with ModelServer(script) as server, client(wire, server) as ask:
        given = ask()
    found = {
        "gemini": lambda: given.candidates[0].finish_reason.value,
        "anthropic": lambda: given.stop_reason,
        "responses": lambda: given.incomplete_details.reason,
        "chat": lambda: given.choices[0].finish_reason,
    }[wire]()
    assert found == said
    if wire == "responses":
        assert given.status == "incomplete"


# --- for whom, and when -----------------------------------------------------------------------


def plain(server: ModelServer, wire: str = "chat") -> httpx.Response:
    headers = {"authorization": f"Bearer {KEY}"}
    user = [{"role": "user", "content": "A mail."}]
    if wire == "ollama":
        body: Any = {"model": "qwen3", "messages": user, "stream": False}
        return httpx.post(f"{server.url}/api/chat", json=body, trust_env=False)
    body = {"model": "gpt-5.5", "messages": user}
    url = f"{server.url}/v1/chat/completions"
    return httpx.post(url, json=body, headers=headers, trust_env=False)


def test_faults_are_by_number_and_by_wire() -> None:
    with ModelServer(filed) as server:
        server.add_fault(ErrorAnswer("unavailable"), requests={2})
        server.add_fault(ErrorAnswer("internal"), wire="ollama")
        assert [plain(server).status_code for _ in range(3)] == [200, 503, 200]
        assert plain(server, "ollama").status_code == 500
        server.end_faults()
        assert plain(server, "ollama").status_code == 200
        assert server.statuses == {200: 3, 503: 1, 500: 1}


def test_the_fault_added_first_counts() -> None:
    with ModelServer(filed) as server:
        server.add_fault(ErrorAnswer("unavailable"))
        server.add_fault(ErrorAnswer("internal"))
        assert plain(server).status_code == 503


def test_a_period_goes_by_the_clock_that_was_given() -> None:
    clock = ManualClock(1_000_000)
    with ModelServer(filed, clock=clock) as server:
        server.add_fault(ErrorAnswer("unavailable"), period_us=(2_000_000, 302_000_000))
        found = []
        for step in (0, 1_000_000, 299_999_999, 1):
            clock.advance(step)
            found.append(plain(server).status_code)
        assert found == [200, 503, 503, 200]
        assert plain(server).json()["created"] == 302


def test_a_period_needs_a_clock() -> None:
    with ModelServer(filed) as server, pytest.raises(ValueError, match="needs a clock"):
        server.add_fault(ErrorAnswer("unavailable"), period_us=(0, 1))


def test_what_is_malformed_is_refused_in_an_outage_too() -> None:
    with ModelServer(filed) as server:
        server.add_fault(ErrorAnswer("unavailable"))
        url = f"{server.url}/v1/chat/completions"
        answer = httpx.post(url, headers={"authorization": f"Bearer {KEY}"}, trust_env=False)
        assert answer.status_code == 400


@pytest.mark.parametrize(
    "trouble", ["rate_limit", "daily_quota", "billing", "internal", "overloaded"]
)
def test_ollama_has_troubles_too(trouble: Any) -> None:
    with ModelServer(filed) as server:
        server.add_fault(ErrorAnswer(trouble, retry_after_s=3))
        answer = plain(server, "ollama")
        expected = {"internal": 500, "overloaded": 503}.get(trouble, 429)
        assert (answer.status_code, answer.headers["retry-after"]) == (expected, "3")
        assert json.loads(answer.text)["error"]


def test_the_errors_of_googles_client_are_what_was_looked_at() -> None:
    assert issubclass(genai_errors.ClientError, genai_errors.APIError)

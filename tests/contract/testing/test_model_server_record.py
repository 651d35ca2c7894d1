"""What the test server remembers of what came, and that nothing a script does is lost."""

from __future__ import annotations

import asyncio
import json
import socket
import threading
from time import sleep
from typing import Any

import httpx
import pytest
from tests.model_server import KEY, find_client

from vedette.testing.model_server import (
    CutAnswer,
    ModelServer,
    Request,
    SlowAnswer,
    StallAnswer,
    Turn,
    mail_agent,
)

HEADERS = {"authorization": f"Bearer {KEY}"}
USER = [{"role": "user", "content": "A mail."}]


def ask(server: ModelServer, text: str = "A mail.", timeout_s: float = 20) -> httpx.Response:
    return httpx.post(
        f"{server.url}/v1/chat/completions",
        json={"model": "gpt-5.5", "messages": [{"role": "user", "content": text}]},
        headers=HEADERS,
        trust_env=False,
        timeout=timeout_s,
    )


def filed(_: Request) -> Turn:
    return Turn(("Filed.",))


def test_requests_are_kept_in_order() -> None:
    with ModelServer(filed) as server:
        for text in ("a", "b", ""):
            ask(server, text)
        httpx.post(f"{server.url}/v1/chat/completions", content=b"{", trust_env=False)
        httpx.get(f"{server.url}/v1/models", trust_env=False)
        assert [request.messages[0].text for request in server.requests] == ["a", "b", ""]
        assert [each.number for each in server.exchanges] == [1, 2, 3, 4, 5]
        assert [each.wire for each in server.exchanges] == [*["chat"] * 4, ""]
        assert server.statuses == {200: 3, 401: 1, 404: 1}
        assert server.exchanges[3].body == "{"
        asked = server.requests[0]
        assert (asked.number, asked.model, asked.key, asked.streamed) == (1, "gpt-5.5", KEY, False)
        assert server.exchanges[0].headers["authorization"] == f"Bearer {KEY}"
    assert not any(each.cut for each in server.exchanges)


@pytest.mark.parametrize("count", [1, 7])
def test_calls_in_flight_are_counted_exactly(count: int) -> None:
    together, go_on = threading.Barrier(count + 1), threading.Event()

    def script(_: Request) -> Turn:
        together.wait(20)
        assert go_on.wait(20)
        return Turn(("Filed.",))

    with ModelServer(script) as server:
        threads = [threading.Thread(target=ask, args=(server,)) for _ in range(count)]
        for thread in threads:
            thread.start()
        together.wait(20)
        assert server.calls_in_flight == count
        go_on.set()
        for thread in threads:
            thread.join()
        assert (server.calls_in_flight, server.max_calls_in_flight) == (0, count)


def test_a_client_that_asks_one_after_the_other_is_never_counted_twice() -> None:
    with ModelServer(filed) as server, httpx.Client(trust_env=False, headers=HEADERS) as one:
        body = {"model": "gpt-5.5", "messages": USER}
        url = f"{server.url}/v1/chat/completions"
        for number in range(200):
            one.post(url, json=body)
            if number % 10 == 0:
                ask(server)  # over a connection of its own
        assert server.max_calls_in_flight == 1


async def test_a_client_that_keeps_to_a_limit_is_seen_to() -> None:
    with ModelServer(filed) as server:
        limit = asyncio.Semaphore(4)
        async with httpx.AsyncClient(trust_env=False, headers=HEADERS) as client:

            async def once() -> None:
                async with limit:
                    await client.post(
                        f"{server.url}/v1/chat/completions",
                        json={"model": "gpt-5.5", "messages": USER},
                    )

            await asyncio.gather(*(once() for _ in range(200)))
        assert server.max_calls_in_flight <= 4
        assert server.statuses == {200: 200}
        assert [each.number for each in server.exchanges] == list(range(1, 201))


def test_whoever_leaves_is_not_in_flight_any_more() -> None:
    with ModelServer(filed) as server:
        server.add_fault(StallAnswer(), requests=range(1, 20))
        for _ in range(19):
            with pytest.raises(httpx.ReadTimeout):
                ask(server, timeout_s=0.05)
        assert ask(server).status_code == 200
        assert server.max_calls_in_flight == 1
        assert [each.cut for each in server.exchanges] == [*[True] * 19, False]


def test_whoever_leaves_makes_room_at_once() -> None:
    """The end of one connection and a request on another, in one look of the server's loop."""
    body = json.dumps({"model": "gpt-5.5", "messages": USER}).encode()
    head = f"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {KEY}\r\n"
    whole = f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body
    times = 40
    with ModelServer(filed) as server:
        server.add_fault(StallAnswer(), requests=range(1, 2 * times, 2))
        port = int(server.url.rpartition(":")[2])
        with socket.create_connection(("127.0.0.1", port)) as stays:
            stays.settimeout(20)
            for number in range(1, times + 1):
                with socket.create_connection(("127.0.0.1", port)) as leaves:
                    leaves.sendall(whole)
                    while len(server.exchanges) < 2 * number - 1:
                        sleep(0.001)
                stays.sendall(whole)
                while b"Filed." not in stays.recv(65_536):
                    pass
        assert len(server.exchanges) == 2 * times
        assert server.max_calls_in_flight == 1


def test_whoever_is_cut_off_is_not_in_flight_any_more() -> None:
    with ModelServer(filed) as server:
        server.add_fault(CutAnswer(1), requests=range(1, 20))
        for _ in range(19):
            with pytest.raises(httpx.TransportError):
                ask(server)
        assert ask(server).status_code == 200
        assert server.max_calls_in_flight == 1


def test_whoever_leaves_while_the_script_thinks_is_told_apart() -> None:
    go_on = threading.Event()

    def script(request: Request) -> Turn:
        if request.number == 1:
            assert go_on.wait(20)
        return Turn(("Filed.",))

    with ModelServer(script) as server:
        with pytest.raises(httpx.ReadTimeout):
            ask(server, timeout_s=0.2)
        assert ask(server).status_code == 200
        assert server.exchanges[0].cut
        assert server.exchanges[0].status is None
        go_on.set()


class Wrong(Exception):
    """What a script raises here."""


@pytest.mark.parametrize("error", [Wrong("first"), StopIteration("first"), SystemExit("first")])
def test_what_a_script_raises_is_raised_at_the_end(error: BaseException) -> None:
    def script(request: Request) -> Turn:
        if request.number == 2:
            raise error
        return Turn(("Filed.",))

    found: list[int] = []

    def talk() -> None:
        with ModelServer(script) as server:
            found.extend(ask(server).status_code for _ in range(3))

    with pytest.raises(type(error), match="first"):
        talk()
    assert found == [200, 500, 200]


def test_close_raises_it_once() -> None:
    def script(_: Request) -> Turn:
        raise Wrong("first")

    with ModelServer(script) as server:
        ask(server)
        with pytest.raises(Wrong):
            server.close()


def test_the_tests_own_error_is_not_hidden() -> None:
    def script(_: Request) -> Turn:
        raise Wrong("first")

    def talk() -> None:
        with ModelServer(script) as server:
            ask(server)
            raise ValueError("the test's own")

    with pytest.raises(Wrong) as caught:
        talk()
    assert "the test's own" in str(caught.value.__cause__)


def test_a_script_that_returns_no_turn_is_told() -> None:
    script: Any = lambda _: "Filed."  # noqa: E731

    def talk() -> None:
        with ModelServer(script) as server:
            assert ask(server).status_code == 500

    with pytest.raises(AttributeError):
        talk()


def test_a_mail_agents_arguments_may_be_made_of_the_request() -> None:
    script = mail_agent("file", lambda request: {"to": request.messages[0].text}, "Done.")
    with ModelServer(script) as server:
        call = ask(server, "Bills").json()["choices"][0]["message"]["tool_calls"][0]["function"]
        assert (call["name"], call["arguments"]) == ("file", '{"to": "Bills"}')


def test_the_port_is_loopbacks_and_gone_at_the_end() -> None:
    with ModelServer(filed) as server:
        assert server.url.startswith("http://127.0.0.1:")
        url = server.url
        assert ask(server).status_code == 200
    with pytest.raises(httpx.ConnectError):
        httpx.get(url, trust_env=False)


# --- what was handed out ----------------------------------------------------------------------

CLAUDE = {"x-api-key": KEY, "anthropic-version": "2023-06-01"}


def claude(server: ModelServer, messages: list[Any], timeout_s: float = 20) -> httpx.Response:
    return httpx.post(
        f"{server.url}/v1/messages",
        json={"model": "claude-opus-5-5", "max_tokens": 9, "messages": messages},
        headers=CLAUDE,
        trust_env=False,
        timeout=timeout_s,
    )


def told(content: list[Any]) -> list[Any]:
    used = next(block["id"] for block in content if block["type"] == "tool_use")
    result = {"type": "tool_result", "tool_use_id": used, "content": "ok"}
    return [*USER, {"role": "assistant", "content": content}, {"role": "user", "content": [result]}]


def test_a_conversation_asked_twice_may_go_on_by_either_answer() -> None:
    with ModelServer(mail_agent()) as server:
        answers = [claude(server, USER).json()["content"] for _ in range(2)]
        assert answers[0] != answers[1]
        assert [claude(server, told(content)).status_code for content in answers] == [200, 200]
        mixed = [answers[0][0], answers[1][1]]
        assert claude(server, told(mixed)).status_code == 400


@pytest.mark.parametrize("fault", [CutAnswer(30), StallAnswer(30), SlowAnswer(100, 0.6)])
def test_a_turn_that_did_not_arrive_is_not_demanded(fault: Any) -> None:
    foreign = [{"type": "tool_use", "id": "a", "name": "x", "input": {}}]
    with ModelServer(mail_agent()) as server:
        server.add_fault(fault, requests={1})
        with pytest.raises(httpx.TransportError):
            claude(server, USER, timeout_s=0.3)
        assert claude(server, told(foreign)).status_code == 200
        assert claude(server, USER).status_code == 200
        assert claude(server, told(foreign)).status_code == 400


def test_a_client_without_which_ci_would_skip_fails_there(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(pytest.fail.Exception, match="make setup"):
        find_client("no_such_client", {"CI": "true"})
    with pytest.raises(pytest.skip.Exception):
        find_client("no_such_client", {})

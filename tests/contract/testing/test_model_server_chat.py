"""The test server's Chat Completions and Ollama: their clients are content, breaches refused."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from tests.model_server import KEY, PARAMETERS, Break, Talk, broken, find_client, parallel, talk

from vedette.testing.model_server import (
    FunctionCall,
    ModelServer,
    Request,
    Thinking,
    Turn,
    mail_agent,
)

MODEL = "gpt-5.5"
PATH = "/v1/chat/completions"
HEADERS = {"authorization": f"Bearer {KEY}"}
FUNCTION = {"name": "mail_file", "parameters": PARAMETERS}
UNANSWERED = "must be followed by tool messages responding to each 'tool_call_id'"


@pytest.fixture
def conversation() -> Iterator[Talk]:
    with talk(parallel, HEADERS) as made:
        yield made


def first() -> dict[str, Any]:
    tool = {"type": "function", "function": FUNCTION}
    mail = {"role": "user", "content": "A mail."}
    return {"model": MODEL, "messages": [mail], "tools": [tool]}


def results(message: dict[str, Any]) -> list[dict[str, Any]]:
    return [
        {"role": "tool", "tool_call_id": call["id"], "content": "ok"}
        for call in message["tool_calls"]
    ]


def second(made: Talk) -> dict[str, Any]:
    """Return a good second request: a mail, two calls, a message of each result."""
    body = first()
    answered = made.post(PATH, body)
    assert answered.status_code == 200, answered.text
    message = answered.json()["choices"][0]["message"]
    body["messages"] += [message, *results(message)]
    return body


@pytest.mark.parametrize("streamed", [False, True])
@pytest.mark.parametrize(
    ("script", "said", "calls"), [(mail_agent(), "Filed.", 1), (parallel, "2 done.", 2)]
)
def test_openais_client_has_its_turns(script: Any, said: str, calls: int, streamed: bool) -> None:
    openai = find_client("openai")
    with (
        ModelServer(script) as server,
        openai.OpenAI(api_key=KEY, base_url=f"{server.url}/v1", max_retries=0) as client,
    ):
        messages: list[Any] = [{"role": "user", "content": "A mail."}]

        def ask() -> Any:
            asked = {**first(), "messages": messages}
            if streamed:
                usage = {"include_usage": True}
                with client.chat.completions.stream(**asked, stream_options=usage) as stream:
                    completion = stream.get_final_completion()
            else:
                completion = client.chat.completions.create(**asked)
            assert completion.usage.total_tokens == 120
            message = completion.choices[0].message.model_dump(exclude_none=True)
            for call in message.get("tool_calls") or ():
                call["function"].pop("parsed_arguments", None)
                call.pop("index", None)
            messages.append(message)
            return message

        message = ask()
        assert len(message["tool_calls"]) == calls
        messages.extend(results(message))
        assert ask()["content"] == said
        assert server.statuses == {200: 2}


def test_a_good_second_request_is_answered(conversation: Talk) -> None:
    answered = conversation.post(PATH, second(conversation)).json()["choices"][0]
    assert (answered["message"]["content"], answered["finish_reason"]) == ("2 done.", "stop")
    asked = conversation.server.requests[1]
    assert [result.content for result in asked.results] == ["ok", "ok"]


def _arguments(value: Any) -> Any:
    def change(body: Any) -> None:
        body["messages"][1]["tool_calls"][0]["function"]["arguments"] = value

    return change


def _system_between(body: Any) -> None:
    body["messages"].insert(3, {"role": "user", "content": "Go on."})


BREAKS = {
    "a result missing": Break(lambda b: b["messages"].pop(), 400, UNANSWERED),
    "something between": Break(_system_between, 400, UNANSWERED),
    "a result of another id": Break(
        lambda b: b["messages"][2].update(tool_call_id="x"),
        400,
        "must be a response to a preceeding",
    ),
    "a result twice": Break(
        lambda b: b["messages"].append(b["messages"][2]), 400, "must be a response to a preceeding"
    ),
    "calls by the user": Break(
        lambda b: b["messages"][1].update(role="user"), 400, "'messages[1].refusal'"
    ),
    "calls of the user": Break(
        lambda b: b["messages"][0].update(tool_calls=b["messages"][1]["tool_calls"]),
        400,
        "Unknown parameter: 'messages[0].tool_calls'",
    ),
    "arguments that are an object": Break(_arguments({}), 400, "expected a string, but got an obj"),
    "arguments that are no JSON": Break(_arguments("{"), 400, "not valid JSON"),
    "a call without id": Break(
        lambda b: b["messages"][1]["tool_calls"][0].pop("id"), 400, "Missing required parameter"
    ),
    "nothing said": Break(
        lambda b: b["messages"].append({"role": "assistant"}), 400, "expected a string, got null"
    ),
    "another role": Break(lambda b: b["messages"][0].update(role="model"), 400, "'model'"),
    "no messages": Break(lambda b: b.pop("messages"), 400, "parameter: 'messages'"),
    "unknown field": Break(lambda b: b.update(input=[]), 400, "Unknown parameter: 'input'"),
    "schema of another draft": Break(
        lambda b: b["tools"][0]["function"].update(parameters={"type": "object", "required": "x"}),
        400,
        "Invalid schema for function",
    ),
    "name of a tool": Break(
        lambda b: b["tools"][0]["function"].update(name="mail.file"), 400, "match pattern"
    ),
    "no key": Break(lambda _: None, 401, "You didn't provide an API key", headers={}),
    "unknown model": Break(lambda b: b.update(model="gpt-9"), 404, "`gpt-9` does not exist"),
}


@pytest.mark.parametrize("name", BREAKS)
def test_a_breach_is_refused_in_openais_words(conversation: Talk, name: str) -> None:
    breach = BREAKS[name]
    body = broken(second(conversation), breach.change)
    error = conversation.post(PATH, body, breach.headers)
    assert error.status_code == breach.status, error.text
    assert breach.words in error.json()["error"]["message"]


def test_arguments_go_out_as_the_script_has_them() -> None:
    with talk(lambda _: Turn((FunctionCall("mail_file", "{"),)), HEADERS) as made:
        message = made.post(PATH, first()).json()["choices"][0]["message"]
        assert message["tool_calls"][0]["function"]["arguments"] == "{"


# --- Ollama ---------------------------------------------------------------------------------

CHAT = "/api/chat"


def local() -> dict[str, Any]:
    return {**first(), "model": "qwen3", "stream": False, "think": True}


def local_second(made: Talk) -> dict[str, Any]:
    body = local()
    message = made.post(CHAT, body).json()["message"]
    told = [{"role": "tool", "tool_name": "mail_file", "content": "ok"}] * 2
    body["messages"] += [message, *told]
    return body


def test_ollama_answers_two_turns(conversation: Talk) -> None:
    body = local_second(conversation)
    assert body["messages"][1]["thinking"] == "Two."
    assert conversation.post(CHAT, body).json()["message"]["content"] == "2 done."
    asked = conversation.server.requests[1]
    assert [result.name for result in asked.results] == ["mail_file", "mail_file"]


def test_ollama_streams_lines_unless_told_not_to(conversation: Talk) -> None:
    body = local()
    del body["stream"], body["think"]
    lines = [json.loads(line) for line in conversation.post(CHAT, body).text.splitlines()]
    assert [line["done"] for line in lines] == [False, False, True]
    assert not any("thinking" in line["message"] for line in lines)
    calls = [line["message"]["tool_calls"] for line in lines[:2]]
    assert [call[0]["function"]["arguments"]["folder"] for call in calls] == ["A", "B"]


def test_ollama_shows_its_model(conversation: Talk) -> None:
    shown = conversation.post("/api/show", {"model": "qwen3:latest"}).json()
    assert "tools" in shown["capabilities"]
    assert conversation.server.requests == []


OLLAMA_BREAKS = {
    "unknown model": Break(lambda b: b.update(model="no"), 404, "model 'no' not found"),
    "no model": Break(lambda b: b.pop("model"), 400, "model is required"),
    "no JSON": Break(lambda _: b"{", 400, "invalid character"),
    "another role": Break(lambda b: b["messages"][0].update(role="model"), 400, "invalid role"),
    "arguments that are a text": Break(
        lambda b: b["messages"][1]["tool_calls"][0]["function"].update(arguments="{}"),
        400,
        "cannot unmarshal string",
    ),
    "content in parts": Break(
        lambda b: b["messages"][0].update(content=[{"type": "text"}]), 400, "cannot unmarshal array"
    ),
    "a tool without name": Break(
        lambda b: b.update(tools=[{"type": "function"}]), 400, "function.name is required"
    ),
    "schema of another draft": Break(
        lambda b: b["tools"][0]["function"].update(parameters={"type": "object", "required": "x"}),
        400,
        "invalid tool mail_file",
    ),
}


@pytest.mark.parametrize("name", OLLAMA_BREAKS)
def test_a_breach_is_refused_in_ollamas_words(conversation: Talk, name: str) -> None:
    breach = OLLAMA_BREAKS[name]
    error = conversation.post(CHAT, broken(local_second(conversation), breach.change))
    assert error.status_code == breach.status, error.text
    assert breach.words in error.json()["error"]


def test_arguments_that_are_a_text_are_the_scripts_mistake() -> None:
    def script(_: Request) -> Turn:
        return Turn((Thinking(), FunctionCall("mail_file", "{")))

    with pytest.raises(TypeError, match="on Ollama's wire"), talk(script, HEADERS) as made:
        assert made.post(CHAT, local()).status_code == 500

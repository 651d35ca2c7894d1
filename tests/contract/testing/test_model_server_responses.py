"""The test server's Responses API: OpenAI's own client is content, each breach is refused."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from tests.model_server import KEY, PARAMETERS, Break, Talk, broken, find_client, parallel, talk

from vedette.testing.model_server import (
    FunctionCall,
    Model,
    ModelServer,
    Request,
    Thinking,
    Turn,
    mail_agent,
)

MODEL = "gpt-5.5"
PATH = "/v1/responses"
HEADERS = {"authorization": f"Bearer {KEY}"}
TOOL = {"type": "function", "name": "mail_file", "parameters": PARAMETERS, "strict": False}
SEALED = ["reasoning.encrypted_content"]
UNREASONED = "of type 'function_call' was provided without its required 'reasoning' item: 'rs_"
UNFOLLOWED = "of type 'reasoning' was provided without its required following item."


def once(request: Request) -> Turn:
    """Reason once, then call twice: what the parallel calls of one answer stand on."""
    if request.results:
        return parallel(request)
    return Turn((Thinking("Two."), *parallel(request).calls))


@pytest.fixture
def conversation() -> Iterator[Talk]:
    with talk(once, HEADERS) as made:
        yield made


def first() -> dict[str, Any]:
    mail = {"role": "user", "content": "A mail."}
    return {"model": MODEL, "store": False, "include": SEALED, "input": [mail], "tools": [TOOL]}


def results(output: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [
        {"type": "function_call_output", "call_id": item["call_id"], "output": "ok"}
        for item in output
        if item["type"] == "function_call"
    ]


def second(made: Talk) -> dict[str, Any]:
    """Return a good second request: a mail; reasoning and two calls; two outputs."""
    body = first()
    answered = made.post(PATH, body)
    assert answered.status_code == 200, answered.text
    output = answered.json()["output"]
    body["input"] += [*output, *results(output)]
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
        items: list[Any] = [{"role": "user", "content": "A mail."}]

        def ask() -> Any:
            asked = {**first(), "input": items}
            if streamed:
                with client.responses.stream(**asked) as stream:
                    response = stream.get_final_response()
            else:
                response = client.responses.create(**asked)
            for item in response.output:
                dumped = item.model_dump(exclude_none=True)
                dumped.pop("parsed_arguments", None)
                for part in dumped.get("content") or ():
                    part.pop("parsed", None)
                items.append(dumped)
            return response

        given = ask().output
        assert given[0].type == "reasoning"
        assert given[0].encrypted_content
        called = [item for item in given if item.type == "function_call"]
        assert len(called) == calls
        items += results([item.model_dump() for item in given])
        assert ask().output_text == said
        items.append({"role": "user", "content": "Another mail."})
        assert [item for item in ask().output if item.type == "function_call"]
        assert server.statuses == {200: 3}


def test_a_good_second_request_is_answered(conversation: Talk) -> None:
    body = second(conversation)
    assert conversation.post(PATH, body).json()["output"][0]["content"][0]["text"] == "2 done."
    for item in body["input"][1:]:  # ids of calls may be left out, and so may their state
        if item["type"] != "reasoning":
            item.pop("id", None)
            item.pop("status", None)
    assert conversation.post(PATH, body).status_code == 200


def _rename(body: Any) -> None:
    for item in body["input"][1:]:
        if "call_id" in item:
            item["call_id"] += "x"
            item.pop("id", None)


def _new_ids(body: Any) -> None:
    body["input"].pop(1)
    _rename(body)


def _reasoning_last(body: Any) -> None:
    body["input"].insert(3, body["input"].pop(1))


def _reasoning_alone(body: Any) -> None:
    del body["input"][2:]


def _arguments(value: Any) -> Any:
    def change(body: Any) -> None:
        body["input"][2]["arguments"] = value

    return change


BREAKS = {
    "reasoning dropped": Break(lambda b: b["input"].pop(1), 400, UNREASONED),
    "reasoning dropped, new ids": Break(_new_ids, 400, UNREASONED),
    "reasoning after its call": Break(_reasoning_last, 400, UNREASONED),
    "reasoning without its call": Break(_reasoning_alone, 400, UNFOLLOWED),
    "reasoning before another call": Break(_rename, 400, UNFOLLOWED),
    "altered reasoning": Break(
        lambda b: b["input"][1].update(encrypted_content="gAAAA"), 400, "could not be verified"
    ),
    "reasoning of another id": Break(
        lambda b: b["input"][1].update(id="rs_x"), 400, "could not be verified"
    ),
    "reasoning without its content": Break(
        lambda b: b["input"][1].pop("encrypted_content"), 404, "Items are not persisted when"
    ),
    "reasoning without its id": Break(
        lambda b: b["input"][1].pop("id"), 400, "Missing required parameter: 'input[1].id'"
    ),
    "altered arguments": Break(_arguments("{}"), 400, UNFOLLOWED),
    "second call altered": Break(lambda b: b["input"][3].update(arguments="{}"), 400, UNFOLLOWED),
    "arguments that are an object": Break(
        _arguments({}), 400, "Invalid type for 'input[2].arguments': expected a string"
    ),
    "arguments that are no JSON": Break(_arguments("{"), 400, "Invalid 'input[2].arguments'"),
    "an output missing": Break(
        lambda b: b["input"].pop(), 400, "No tool output found for function call call_"
    ),
    "an output of another call": Break(
        lambda b: b["input"][5].update(call_id="call_x"),
        400,
        "No tool call found for function call output with call_id call_x.",
    ),
    "an output before its call": Break(
        lambda b: b["input"].insert(1, b["input"].pop()), 400, "No tool call found for function"
    ),
    "an output twice": Break(
        lambda b: b["input"].append(b["input"][5]), 400, "No tool call found for function"
    ),
    "an output without call_id": Break(
        lambda b: b["input"][5].pop("call_id"), 400, "Missing required parameter"
    ),
    "an output that is an object": Break(
        lambda b: b["input"][5].update(output={}), 400, "Invalid type for 'input[5].output'"
    ),
    "calls of the user": Break(
        lambda b: b["input"][0].update(tool_calls=[]),
        400,
        "Unknown parameter: 'input[0].tool_calls",
    ),
    "the user says what a model says": Break(
        lambda b: b["input"][0].update(content=[{"type": "output_text", "text": "x"}]),
        400,
        "Supported values are: 'input_text'",
    ),
    "content that is a number": Break(
        lambda b: b["input"][0].update(content=1), 400, "Invalid type for 'input[0].content'"
    ),
    "another role": Break(
        lambda b: b["input"][0].update(role="model"), 400, "Invalid value: 'model'"
    ),
    "another item": Break(lambda b: b["input"][0].update(type="x"), 400, "Invalid value: 'x'"),
    "no input": Break(lambda b: b.pop("input"), 400, "Missing required parameter: 'input'"),
    "a response that was not stored": Break(
        lambda b: b.update(previous_response_id="resp_x"), 400, "'resp_x' not found"
    ),
    "unknown field": Break(lambda b: b.update(messages=[]), 400, "Unknown parameter: 'messages'"),
    "a tool as in Chat Completions": Break(
        lambda b: b["tools"][0].update(function={}), 400, "Unknown parameter: 'tools[0].function'"
    ),
    "schema of another draft": Break(
        lambda b: b["tools"][0].update(parameters={"type": "object", "required": "x"}),
        400,
        "Invalid schema for function 'mail_file'",
    ),
    "schema of no object": Break(
        lambda b: b["tools"][0].update(parameters={}), 400, "got 'type: \"None\"'"
    ),
    "name of a tool": Break(
        lambda b: b["tools"][0].update(name="mail.file"), 400, "does not match pattern"
    ),
    "no JSON": Break(lambda _: b"{", 400, "could not parse the JSON body"),
    "no model": Break(lambda b: b.pop("model"), 400, "must provide a model parameter"),
    "unknown model": Break(lambda b: b.update(model="gpt-9"), 404, "`gpt-9` does not exist"),
    "no key": Break(lambda _: None, 401, "You didn't provide an API key", headers={}),
    "no bearer": Break(
        lambda _: None,
        401,
        "You didn't provide an API key",
        headers={"authorization": f"Basic {KEY}"},
    ),
    "wrong key": Break(
        lambda _: None, 401, "Incorrect API key", headers={"authorization": "Bearer no"}
    ),
    "key of another": Break(
        lambda _: None,
        400,
        "could not be verified",
        headers={"authorization": "Bearer other-key"},
    ),
}


@pytest.mark.parametrize("name", BREAKS)
def test_a_breach_is_refused_in_openais_words(conversation: Talk, name: str) -> None:
    breach = BREAKS[name]
    body = broken(second(conversation), breach.change)
    error = conversation.post(PATH, body, breach.headers)
    assert error.status_code == breach.status, error.text
    said = error.json()["error"]
    assert breach.words in said["message"]
    assert said["type"] == "invalid_request_error"


def test_each_parallel_call_needs_the_reasoning(conversation: Talk) -> None:
    body = second(conversation)
    call = body["input"][3]
    body["input"] = [{"role": "user", "content": "Another."}, call, body["input"][5]]
    said = conversation.post(PATH, body).json()["error"]["message"]
    assert said.startswith(f"Item '{call['id']}' {UNREASONED}")


def test_reasoning_needs_what_followed_in_any_conversation(conversation: Talk) -> None:
    body = second(conversation)
    body["input"][0]["content"] = "Another mail."
    assert conversation.post(PATH, body).status_code == 200
    del body["input"][4], body["input"][2]
    assert UNFOLLOWED in conversation.post(PATH, body).json()["error"]["message"]


def test_another_models_calls_are_taken_without_reasoning() -> None:
    models = (Model(MODEL, "responses"), Model("gpt-5-mini", "responses"))
    with ModelServer(once, models=models) as server:
        made = Talk(server, HEADERS)
        body = second(made)
        body["model"] = "gpt-5-mini"
        assert "could not be verified" in made.post(PATH, body).json()["error"]["message"]
        body["input"].pop(1)
        assert made.post(PATH, body).status_code == 200
        made.close()


def test_content_is_sealed_for_whom_asks_for_it(conversation: Talk) -> None:
    body = {**first(), "include": []}
    assert "encrypted_content" not in conversation.post(PATH, body).json()["output"][0]


def test_instructions_and_developers_are_the_system(conversation: Talk) -> None:
    body = {**first(), "instructions": "File mails."}
    body["input"] = [{"role": "developer", "content": "At once."}, *body["input"]]
    assert conversation.post(PATH, body).status_code == 200
    asked = conversation.server.requests[0]
    assert asked.system == "File mails.\nAt once."
    assert [message.role for message in asked.messages] == ["user"]


def test_an_input_may_be_one_text(conversation: Talk) -> None:
    assert conversation.post(PATH, {**first(), "input": "A mail."}).status_code == 200
    assert conversation.server.requests[0].messages[0].text == "A mail."


def test_arguments_go_out_as_the_script_has_them() -> None:
    with talk(lambda _: Turn((FunctionCall("mail_file", "{"),)), HEADERS) as made:
        assert made.post(PATH, first()).json()["output"][0]["arguments"] == "{"
        assert '"delta":"{"' in made.post(PATH, {**first(), "stream": True}).text


def test_the_same_arguments_may_be_written_in_another_way(conversation: Talk) -> None:
    body = second(conversation)
    body["input"][2]["arguments"] = json.dumps(json.loads(body["input"][2]["arguments"]), indent=1)
    assert conversation.post(PATH, body).status_code == 200

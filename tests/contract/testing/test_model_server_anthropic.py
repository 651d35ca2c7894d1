"""The test server's Anthropic: Anthropic's own client is content, each breach is refused."""

from __future__ import annotations

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

MODEL = "claude-opus-5-5"
OLD = "claude-sonnet-4-5"
PATH = "/v1/messages"
HEADERS = {"x-api-key": KEY, "anthropic-version": "2023-06-01"}
TOOL = {"name": "mail_file", "description": "Files a mail.", "input_schema": PARAMETERS}
MODIFIED = "blocks in the latest assistant message cannot be modified"


@pytest.fixture
def conversation() -> Iterator[Talk]:
    with talk(parallel, HEADERS) as made:
        yield made


def first(model: str = MODEL) -> dict[str, Any]:
    mail = {"role": "user", "content": "A mail."}
    return {"model": model, "max_tokens": 4000, "messages": [mail], "tools": [TOOL]}


def results(content: list[dict[str, Any]]) -> dict[str, Any]:
    used = [block["id"] for block in content if block["type"] == "tool_use"]
    told = [{"type": "tool_result", "tool_use_id": name, "content": "ok"} for name in used]
    return {"role": "user", "content": told}


def second(made: Talk, body: dict[str, Any] | None = None) -> dict[str, Any]:
    """Return a good second request: a mail; thinking, redacted, two calls; two results."""
    body = body or first()
    answered = made.post(PATH, body)
    assert answered.status_code == 200, answered.text
    content = answered.json()["content"]
    body["messages"] += [{"role": "assistant", "content": content}, results(content)]
    return body


def block(body: Any, message: int, index: int) -> Any:
    return body["messages"][message]["content"][index]


@pytest.mark.parametrize("streamed", [False, True])
@pytest.mark.parametrize(
    ("script", "said", "calls"), [(mail_agent(), "Filed.", 1), (parallel, "2 done.", 2)]
)
def test_anthropics_client_has_its_turns(
    script: Any, said: str, calls: int, streamed: bool
) -> None:
    anthropic = find_client("anthropic")
    with (
        ModelServer(script) as server,
        anthropic.Anthropic(api_key=KEY, base_url=server.url, max_retries=0) as client,
    ):
        messages: list[Any] = [{"role": "user", "content": "A mail."}]

        def ask() -> list[Any]:
            asked = {"model": MODEL, "max_tokens": 4000, "messages": messages, "tools": [TOOL]}
            if streamed:
                with client.messages.stream(**asked) as stream:
                    content = stream.get_final_message().content
            else:
                content = client.messages.create(**asked).content
            messages.append({"role": "assistant", "content": content})
            return list(content)

        given = ask()
        assert (given[0].type, given[0].thinking) == ("thinking", "")
        assert given[0].signature
        used = [each for each in given if each.type == "tool_use"]
        assert len(used) == calls
        if calls == 1:
            assert used[0].input == {}
        else:
            assert [each.input for each in used] == [{"folder": "A"}, {"folder": "B"}]
        messages.append(
            results([{"type": each.type, "id": getattr(each, "id", "")} for each in given])
        )
        assert ask()[0].text == said
        messages.append({"role": "user", "content": "Another mail."})
        assert [each for each in ask() if each.type == "tool_use"]
        assert server.statuses == {200: 3}


def test_a_good_second_request_is_answered(conversation: Talk) -> None:
    answered = conversation.post(PATH, second(conversation)).json()
    assert answered["content"] == [{"type": "text", "text": "2 done."}]
    assert answered["stop_reason"] == "end_turn"


def _drop_thinking(body: Any) -> None:
    body["messages"][1]["content"] = body["messages"][1]["content"][2:]


def _new_ids(body: Any) -> None:
    _drop_thinking(body)
    _rename(body)


def _rename(body: Any) -> None:
    for message in body["messages"][1:]:
        for each in message["content"]:
            for name in ("id", "tool_use_id"):
                if name in each:
                    each[name] += "x"


def _as_redacted(body: Any) -> None:
    signature = block(body, 1, 0)["signature"]
    body["messages"][1]["content"][0] = {"type": "redacted_thinking", "data": signature}


def _result_later(body: Any) -> None:
    late = body["messages"][2]["content"].pop()
    body["messages"].append({"role": "user", "content": [late]})


def _foreign_thinking(body: Any) -> None:
    made = {"type": "thinking", "thinking": "", "signature": "E"}
    body["messages"][0]["content"] = "Another mail."
    body["messages"][1]["content"][:2] = [made]


def _another_conversation(body: Any) -> None:
    body["messages"][0]["content"] = "Another mail."


BREAKS = {
    "thinking dropped": Break(_drop_thinking, 400, "messages.1.content.0: `thinking` or"),
    "thinking dropped, new ids": Break(_new_ids, 400, MODIFIED),
    "new ids alone": Break(_rename, 400, "messages.1.content.2: `thinking`"),
    "empty thinking as redacted": Break(_as_redacted, 400, MODIFIED),
    "thinking with a text": Break(lambda b: block(b, 1, 0).update(thinking="x"), 400, MODIFIED),
    "another signature": Break(lambda b: block(b, 1, 0).update(signature="E"), 400, MODIFIED),
    "redacted thinking dropped": Break(
        lambda b: b["messages"][1]["content"].pop(1), 400, "messages.1.content.1: `thinking`"
    ),
    "another order": Break(
        lambda b: b["messages"][1]["content"].insert(0, b["messages"][1]["content"].pop(1)),
        400,
        MODIFIED,
    ),
    "altered input": Break(lambda b: block(b, 1, 2).update(input={}), 400, MODIFIED),
    "in another conversation": Break(
        _another_conversation, 400, "Invalid `signature` in `thinking`"
    ),
    "thinking never given": Break(_foreign_thinking, 400, "Invalid `signature` in `thinking`"),
    "no signature": Break(
        lambda b: block(b, 1, 0).pop("signature"), 400, "thinking.signature: Field required"
    ),
    "a result missing": Break(
        lambda b: b["messages"][2]["content"].pop(),
        400,
        "messages.1: `tool_use` ids were found without `tool_result` blocks immediately after",
    ),
    "a result one message later": Break(
        _result_later, 400, "ids were found without `tool_result` blocks immediately after"
    ),
    "ends with the calls": Break(
        lambda b: b["messages"].pop(), 400, "ids were found without `tool_result` blocks"
    ),
    "a result of another id": Break(
        lambda b: block(b, 2, 0).update(tool_use_id="x"), 400, "unexpected `tool_use_id` found"
    ),
    "a result twice": Break(
        lambda b: b["messages"][2]["content"].append(block(b, 2, 0)), 400, "a single result"
    ),
    "ids not unique": Break(
        lambda b: block(b, 1, 3).update(id=block(b, 1, 2)["id"]), 400, "ids must be unique"
    ),
    "an id of other letters": Break(
        lambda b: block(b, 1, 2).update(id="a.b"), 400, "tool_use.id: String should match pattern"
    ),
    "input that is a text": Break(
        lambda b: block(b, 1, 2).update(input="{}"), 400, "Input should be a valid dictionary"
    ),
    "a call by the user": Break(
        lambda b: b["messages"][1].update(role="user"), 400, "can only be in `assistant` messages"
    ),
    "a result by the model": Break(
        lambda b: b["messages"][2].update(role="assistant"), 400, "can only be in `user` messages"
    ),
    "another block": Break(
        lambda b: block(b, 2, 0).update(type="tool"), 400, "does not match any of the expected tags"
    ),
    "an empty text": Break(
        lambda b: b["messages"][0].update(content=""), 400, "text content blocks must be non-empty"
    ),
    "no content": Break(
        lambda b: b["messages"][0].update(content=[]), 400, "must have non-empty content"
    ),
    "another role": Break(
        lambda b: b["messages"][0].update(role="system"), 400, "should be 'user' or 'assistant'"
    ),
    "a prefill": Break(
        lambda b: b["messages"].append({"role": "assistant", "content": "So"}), 400, "prefill"
    ),
    "no messages": Break(lambda b: b["messages"].clear(), 400, "at least one message is required"),
    "no max_tokens": Break(lambda b: b.pop("max_tokens"), 400, "max_tokens: Field required"),
    "max_tokens of 0": Break(lambda b: b.update(max_tokens=0), 400, "max_tokens: Input should"),
    "unknown field": Break(lambda b: b.update(contents=[]), 400, "contents: Extra inputs"),
    "thinking enabled": Break(
        lambda b: b.update(thinking={"type": "enabled", "budget_tokens": 1024}),
        400,
        '"thinking.type.enabled" is not supported for this model',
    ),
    "thinking disabled": Break(
        lambda b: b.update(thinking={"type": "disabled"}),
        400,
        '"thinking.type.disabled" is not supported for this model',
    ),
    "any tool forced": Break(
        lambda b: b.update(tool_choice={"type": "any"}), 400, "when tool_choice forces tool use"
    ),
    "one tool forced": Break(
        lambda b: b.update(tool_choice={"type": "tool", "name": "mail_file"}),
        400,
        "when tool_choice forces tool use",
    ),
    "schema of another draft": Break(
        lambda b: b.update(tools=[{**TOOL, "input_schema": {"type": "object", "required": "x"}}]),
        400,
        "JSON schema is invalid",
    ),
    "no schema": Break(
        lambda b: b.update(tools=[{"name": "x"}]), 400, "input_schema: Field required"
    ),
    "name of a tool": Break(
        lambda b: b.update(tools=[{**TOOL, "name": "mail.file"}]), 400, "custom.name: String should"
    ),
    "no JSON": Break(lambda _: b"{", 400, "not valid JSON"),
    "no key": Break(
        lambda _: None, 401, "header is required", headers={"anthropic-version": "2023-06-01"}
    ),
    "wrong key": Break(
        lambda _: None, 401, "invalid x-api-key", headers={**HEADERS, "x-api-key": "no"}
    ),
    "no version": Break(
        lambda _: None, 400, "anthropic-version: header is required", headers={"x-api-key": KEY}
    ),
    "key of another": Break(
        lambda _: None,
        400,
        "Invalid `signature` in `thinking` block",
        headers={**HEADERS, "x-api-key": "other-key"},
    ),
    "another model's": Break(
        lambda b: b.update(model=OLD), 400, "Invalid `signature` in `thinking` block"
    ),
    "unknown model": Break(lambda b: b.update(model="claude-9"), 404, "model: claude-9"),
}


@pytest.mark.parametrize("name", BREAKS)
def test_a_breach_is_refused_in_anthropics_words(conversation: Talk, name: str) -> None:
    breach = BREAKS[name]
    body = broken(second(conversation), breach.change)
    error = conversation.post(PATH, body, breach.headers)
    assert error.status_code == breach.status, error.text
    assert error.json()["type"] == "error"
    said = error.json()["error"]
    assert breach.words in said["message"]
    named = {400: "invalid_request_error", 401: "authentication_error", 404: "not_found_error"}
    assert said["type"] == named[breach.status]


def test_another_models_calls_and_texts_are_taken(conversation: Talk) -> None:
    body = second(conversation)
    body["model"] = OLD
    _drop_thinking(body)
    assert conversation.post(PATH, body).status_code == 200


def test_thinking_is_shown_where_it_is_asked_for(conversation: Talk) -> None:
    body = {**first(), "thinking": {"type": "adaptive", "display": "summarized"}}
    assert conversation.post(PATH, body).json()["content"][0]["thinking"] == "Two."


def test_an_older_model_thinks_when_told(conversation: Talk) -> None:
    content = conversation.post(PATH, first(OLD)).json()["content"]
    assert [each["type"] for each in content] == ["tool_use", "tool_use"]
    thinking = {"type": "enabled", "budget_tokens": 1024}
    body = second(conversation, {**first(OLD), "thinking": thinking})
    assert block(body, 1, 0)["thinking"] == "Two."
    assert conversation.post(PATH, body).status_code == 200
    forced = {**body, "tool_choice": {"type": "any"}}
    assert "forces tool use" in conversation.post(PATH, forced).json()["error"]["message"]


@pytest.mark.parametrize(
    ("budget", "words"), [(1023, "greater than or equal to 1024"), (4000, "must be greater than")]
)
def test_an_older_models_budget_is_checked(conversation: Talk, budget: int, words: str) -> None:
    thinking = {"type": "enabled", "budget_tokens": budget}
    error = conversation.post(PATH, {**first(OLD), "thinking": thinking})
    assert words in error.json()["error"]["message"]


def test_an_older_models_loop_begins_with_thinking(conversation: Talk) -> None:
    body = first(OLD)
    used = {"type": "tool_use", "id": "a", "name": "mail_file", "input": {}}
    body["messages"] += [{"role": "assistant", "content": [used]}, results([used])]
    assert conversation.post(PATH, body).status_code == 200
    body["thinking"] = {"type": "enabled", "budget_tokens": 1024}
    said = conversation.post(PATH, body).json()["error"]["message"]
    assert "messages.1.content.0.type: Expected `thinking` or `redacted_thinking`, but" in said
    body["messages"] += [
        {"role": "assistant", "content": "Done."},
        {"role": "user", "content": "Next."},
    ]
    assert conversation.post(PATH, body).status_code == 200


def test_an_older_models_thinking_is_of_no_conversation(conversation: Talk) -> None:
    thinking = {"type": "enabled", "budget_tokens": 1024}
    body = second(conversation, {**first(OLD), "thinking": thinking})
    _another_conversation(body)
    assert conversation.post(PATH, body).status_code == 200


def test_caches_and_nulls_change_nothing(conversation: Talk) -> None:
    body = second(conversation)
    body["messages"][0]["content"] = [
        {"type": "text", "text": "A mail.", "cache_control": {"type": "ephemeral"}}
    ]
    block(body, 1, 2)["caller"] = None
    assert conversation.post(PATH, body).status_code == 200


def test_a_bearer_token_is_a_key(conversation: Talk) -> None:
    headers = {"authorization": f"Bearer {KEY}", "anthropic-version": "2023-06-01"}
    assert conversation.post(PATH, first(), headers).status_code == 200


def test_a_provider_that_forgot_refuses_signatures(conversation: Talk) -> None:
    body = second(conversation)
    conversation.server.forget_turns()
    said = conversation.post(PATH, body).json()["error"]["message"]
    assert said == "messages.1.content.0: Invalid `signature` in `thinking` block"
    _drop_thinking(body)
    assert conversation.post(PATH, body).status_code == 200


def test_arguments_that_are_a_text_come_in_a_stream_alone() -> None:
    def script(_: Request) -> Turn:
        return Turn((Thinking(), FunctionCall("mail_file", "{")))

    def ask() -> None:
        with talk(script, HEADERS) as made:
            assert '"partial_json":"{"' in made.post(PATH, {**first(), "stream": True}).text
            assert made.post(PATH, first()).status_code == 500

    with pytest.raises(TypeError, match="an object in an answer"):
        ask()

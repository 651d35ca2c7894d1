"""The test server's Gemini: Google's own client is content, and each breach is refused."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any

import pytest
from google import genai
from google.genai import types
from tests.model_server import KEY, PARAMETERS, Break, Talk, broken, parallel, talk

from vedette.testing.model_server import (
    FunctionCall,
    ModelServer,
    Request,
    Thinking,
    Turn,
    mail_agent,
)

MODEL = "gemini-3-pro-preview"
OLD = "gemini-2.5-flash"
PATH = f"/v1beta/models/{MODEL}:generateContent"
HEADERS = {"x-goog-api-key": KEY}
SKIP = "skip_thought_signature_validator"
MISSING = "Function call is missing a thought_signature in functionCall parts."
CORRUPTED = "Corrupted thought signature."
COUNT = "the number of function response parts is equal to the number of function call parts"


@pytest.fixture
def conversation() -> Iterator[Talk]:
    with talk(parallel, HEADERS) as made:
        yield made


def first() -> dict[str, Any]:
    declared = {"name": "mail_file", "description": "Files.", "parametersJsonSchema": PARAMETERS}
    return {
        "contents": [{"role": "user", "parts": [{"text": "A mail."}]}],
        "tools": [{"functionDeclarations": [declared]}],
    }


def results(content: dict[str, Any]) -> dict[str, Any]:
    calls = [part["functionCall"] for part in content["parts"] if "functionCall" in part]
    answers = [
        {"functionResponse": {**{k: v for k, v in call.items() if k != "args"}, "response": {}}}
        for call in calls
    ]
    return {"role": "user", "parts": answers}


def second(made: Talk, path: str = PATH) -> dict[str, Any]:
    """Return a good second request; its contents are a mail, a call, and what came of it."""
    body = first()
    answered = made.post(path, body)
    assert answered.status_code == 200, answered.text
    content = answered.json()["candidates"][0]["content"]
    body["contents"] += [content, results(content)]
    return body


def part(body: Any, content: int, index: int) -> Any:
    return body["contents"][content]["parts"][index]


def client(server: ModelServer) -> genai.Client:
    options = types.HttpOptions(base_url=server.url, client_args={"trust_env": False})
    return genai.Client(api_key=KEY, http_options=options)


CONFIG = types.GenerateContentConfig(
    tools=[
        types.Tool(
            function_declarations=[
                types.FunctionDeclaration(
                    name="mail_file",
                    description="Files a mail.",
                    parameters=types.Schema(
                        type=types.Type.OBJECT,
                        properties={"folder": types.Schema(type=types.Type.STRING)},
                    ),
                )
            ]
        )
    ],
    automatic_function_calling=types.AutomaticFunctionCallingConfig(disable=True),
    thinking_config=types.ThinkingConfig(include_thoughts=True),
)


@pytest.mark.parametrize("streamed", [False, True])
@pytest.mark.parametrize(
    ("script", "said", "calls"), [(mail_agent(), "Filed.", 1), (parallel, "2 done.", 2)]
)
def test_googles_client_has_its_turns(script: Any, said: str, calls: int, streamed: bool) -> None:
    with ModelServer(script) as server:
        google = client(server)
        history = [types.Content(role="user", parts=[types.Part(text="A mail.")])]

        def ask() -> list[types.Part]:
            given: list[types.Part] = []
            if streamed:
                for chunk in google.models.generate_content_stream(
                    model=MODEL, contents=list(history), config=CONFIG
                ):
                    assert chunk.candidates
                    assert chunk.candidates[0].content
                    given += chunk.candidates[0].content.parts or []
            else:
                whole = google.models.generate_content(
                    model=MODEL, contents=list(history), config=CONFIG
                )
                assert whole.candidates
                assert whole.candidates[0].content
                given = whole.candidates[0].content.parts or []
            history.append(types.Content(role="model", parts=given))
            return given

        asked = [each.function_call for each in ask() if each.function_call]
        assert len(asked) == calls
        signed = [each.thought_signature for each in history[-1].parts or [] if each.function_call]
        assert [bool(each) for each in signed] == [True, *[False] * (calls - 1)]
        answers = [
            types.Part(
                function_response=types.FunctionResponse(
                    id=call.id, name=call.name, response={"ok": True}
                )
            )
            for call in asked
        ]
        history.append(types.Content(role="user", parts=answers))
        assert "".join(each.text or "" for each in ask()) == said
        history.append(types.Content(role="user", parts=[types.Part(text="Another mail.")]))
        assert [each.function_call for each in ask() if each.function_call]
        assert server.statuses == {200: 3}
        assert [request.turn for request in server.requests] == [0, 1, 2]
        assert server.requests[0].tools == ("mail_file",)


def test_a_good_second_request_is_answered(conversation: Talk) -> None:
    answered = conversation.post(PATH, second(conversation))
    assert answered.json()["candidates"][0]["content"]["parts"][0]["text"] == "2 done."


def _swap_signature(body: Any) -> None:
    part(body, 1, 2)["thoughtSignature"] = part(body, 1, 1).pop("thoughtSignature")


def _user_calls(body: Any) -> None:
    body["contents"][1]["role"] = "user"


def _drop_results(body: Any) -> None:
    body["contents"][2] = {"role": "user", "parts": [{"text": "Go on."}]}


def _new_ids(body: Any) -> None:
    for call, answer in zip(
        body["contents"][1]["parts"][1:], body["contents"][2]["parts"], strict=True
    ):
        call["functionCall"]["id"] += "x"
        answer["functionResponse"]["id"] += "x"


def _schema(body: Any, schema: Any) -> None:
    body["tools"][0]["functionDeclarations"][0]["parametersJsonSchema"] = schema


BREAKS = {
    "no signature": Break(lambda b: part(b, 1, 1).pop("thoughtSignature"), 400, MISSING),
    "altered signature": Break(
        lambda b: part(b, 1, 1).update(thoughtSignature="QUJD"), 400, CORRUPTED
    ),
    "no base64": Break(lambda b: part(b, 1, 1).update(thoughtSignature="A"), 400, CORRUPTED),
    "signature on the other call": Break(_swap_signature, 400, CORRUPTED),
    "skipped on an own call": Break(
        lambda b: part(b, 1, 1).update(thoughtSignature=SKIP), 400, CORRUPTED
    ),
    "new ids on both sides": Break(_new_ids, 400, CORRUPTED),
    "altered arguments": Break(
        lambda b: part(b, 1, 1)["functionCall"].update(args={}), 400, CORRUPTED
    ),
    "parallel calls in another order": Break(
        lambda b: b["contents"][1]["parts"].insert(0, b["contents"][1]["parts"].pop()),
        400,
        MISSING,
    ),
    "a call of the second lost": Break(
        lambda b: (b["contents"][1]["parts"].pop(), b["contents"][2]["parts"].pop()),
        400,
        CORRUPTED,
    ),
    "signature on the user's text": Break(
        lambda b: b["contents"].append(
            {"role": "model", "parts": [{"text": "x", "thoughtSignature": "QUJD"}]}
        ),
        400,
        CORRUPTED,
    ),
    "a response twice": Break(
        lambda b: b["contents"][2]["parts"].append(part(b, 2, 0)), 400, COUNT
    ),
    "a response missing": Break(lambda b: b["contents"][2]["parts"].pop(), 400, COUNT),
    "a response of another id": Break(
        lambda b: part(b, 2, 0)["functionResponse"].update(id="x"), 400, COUNT
    ),
    "a response without id": Break(
        lambda b: part(b, 2, 0)["functionResponse"].pop("id"), 400, COUNT
    ),
    "a response of another name": Break(
        lambda b: part(b, 2, 0)["functionResponse"].update(name="x"), 400, COUNT
    ),
    "no response at all": Break(_drop_results, 400, COUNT),
    "ends with the calls": Break(lambda b: b["contents"].pop(), 400, COUNT),
    "a response to nothing": Break(
        lambda b: b["contents"].insert(1, b["contents"][2]), 400, "function response turn comes"
    ),
    "a response that is no object": Break(
        lambda b: part(b, 2, 0)["functionResponse"].update(response="ok"), 400, "protobuf.Struct"
    ),
    "calls by the user": Break(_user_calls, 400, "function call turn comes immediately after"),
    "calls first": Break(
        lambda b: b["contents"].pop(0), 400, "function call turn comes immediately after"
    ),
    "calls after the model": Break(
        lambda b: b["contents"].insert(1, {"role": "model", "parts": [{"text": "x"}]}),
        400,
        "function call turn comes immediately after",
    ),
    "another role": Break(
        lambda b: b["contents"][0].update(role="assistant"), 400, "use a valid role: user, model"
    ),
    "no contents": Break(lambda b: b["contents"].clear(), 400, "contents is not specified"),
    "no parts": Break(
        lambda b: b["contents"][0].update(parts=[]), 400, "contents.parts must not be empty"
    ),
    "unknown field": Break(lambda b: b.update(messages=[]), 400, 'Unknown name "messages"'),
    "unknown field of a part": Break(
        lambda b: part(b, 0, 0).update(type="text"), 400, 'Unknown name "type"'
    ),
    "a part that is a text": Break(
        lambda b: b["contents"][0].update(parts=["x"]), 400, "expected an object"
    ),
    "no JSON": Break(lambda _: b"{", 400, "Invalid JSON payload received"),
    "JSON that is a list": Break(lambda _: b"[]", 400, "Invalid JSON payload received"),
    "schema of another draft": Break(
        lambda b: _schema(b, {"type": "object", "required": "folder"}), 400, "is not of type"
    ),
    "schema of no object": Break(lambda b: _schema(b, {"type": "string"}), 400, "got 'type:"),
    "name of a function": Break(
        lambda b: b["tools"][0]["functionDeclarations"][0].update(name="1 x"), 400, "function name"
    ),
    "no key": Break(lambda _: None, 403, "unregistered callers", headers={}),
    "wrong key": Break(lambda _: None, 400, "API key not valid", headers={"x-goog-api-key": "no"}),
    "key of another": Break(
        lambda _: None, 400, CORRUPTED, headers={"x-goog-api-key": "other-key"}
    ),
    "another model's": Break(lambda _: None, 400, CORRUPTED, model=OLD),
    "unknown model": Break(lambda _: None, 404, "models/gemini-9 is not found", model="gemini-9"),
}


@pytest.mark.parametrize("name", BREAKS)
def test_a_breach_is_refused_in_geminis_words(conversation: Talk, name: str) -> None:
    breach = BREAKS[name]
    body = broken(second(conversation), breach.change)
    path = PATH.replace(MODEL, breach.model or MODEL)
    error = conversation.post(path, body, breach.headers)
    assert error.status_code == breach.status, error.text
    said = error.json()["error"]
    assert breach.words in said["message"]
    assert said["code"] == breach.status
    named = {400: "INVALID_ARGUMENT", 403: "PERMISSION_DENIED", 404: "NOT_FOUND"}
    assert said["status"] == named[breach.status]


def test_where_a_signature_is_missing_is_told(conversation: Talk) -> None:
    body = second(conversation)
    del part(body, 1, 1)["thoughtSignature"]
    said = conversation.post(PATH, body).json()["error"]["message"]
    assert "function call `default_api:mail_file` , position 2." in said


@pytest.mark.parametrize("path", [PATH, PATH.removeprefix("/v1beta"), PATH.replace("beta", "")])
def test_snake_case_is_taken_and_the_version_may_be_absent(conversation: Talk, path: str) -> None:
    body = second(conversation, path)
    snake = {"contents": copy.deepcopy(body["contents"]), "tools": []}
    for content in snake["contents"]:
        for each in content["parts"]:
            for camel, name in (
                ("functionCall", "function_call"),
                ("functionResponse", "function_response"),
                ("thoughtSignature", "thought_signature"),
            ):
                if camel in each:
                    each[name] = each.pop(camel)
    assert conversation.post(path, snake).status_code == 200
    snake["contents"][1]["parts"][1].pop("thought_signature")
    assert MISSING in conversation.post(path, snake).json()["error"]["message"]


def foreign(signature: str | None) -> dict[str, Any]:
    """A conversation that another model had, in calls and texts."""
    call: dict[str, Any] = {"functionCall": {"name": "mail_file", "args": {}, "id": "a"}}
    if signature is not None:
        call["thoughtSignature"] = signature
    body = first()
    body["contents"][0]["parts"][0]["text"] = "A mail that another model had."
    body["contents"] += [{"role": "model", "parts": [call]}, results({"parts": [call]})]
    return body


@pytest.mark.parametrize("signature", [SKIP, "c2tpcF90aG91Z2h0X3NpZ25hdHVyZV92YWxpZGF0b3I="])
def test_a_foreign_call_may_skip_the_validator(conversation: Talk, signature: str) -> None:
    assert conversation.post(PATH, foreign(signature)).status_code == 200
    assert MISSING in conversation.post(PATH, foreign(None)).json()["error"]["message"]


def test_only_the_first_call_may_skip_it(conversation: Talk) -> None:
    body = foreign(SKIP)
    again = {**copy.deepcopy(part(body, 1, 0)), "thoughtSignature": SKIP}
    again["functionCall"]["id"] = "b"
    body["contents"][1]["parts"].append(again)
    body["contents"][2] = results(body["contents"][1])
    assert CORRUPTED in conversation.post(PATH, body).json()["error"]["message"]
    del again["thoughtSignature"]
    assert conversation.post(PATH, body).status_code == 200


def test_a_foreign_call_of_an_earlier_turn_needs_none(conversation: Talk) -> None:
    body = foreign(None)
    body["contents"] += [
        {"role": "model", "parts": [{"text": "Done."}]},
        {"role": "user", "parts": [{"text": "Next."}]},
    ]
    assert conversation.post(PATH, body).status_code == 200


def test_an_own_call_of_an_earlier_turn_needs_its_own(conversation: Talk) -> None:
    body = second(conversation)
    answered = conversation.post(PATH, body).json()["candidates"][0]["content"]
    body["contents"] += [answered, {"role": "user", "parts": [{"text": "Next."}]}]
    assert conversation.post(PATH, body).status_code == 200
    del part(body, 1, 1)["thoughtSignature"]
    assert MISSING in conversation.post(PATH, body).json()["error"]["message"]


def test_an_older_model_signs_nothing_and_demands_nothing(conversation: Talk) -> None:
    path = PATH.replace(MODEL, OLD)
    body = second(conversation, path)
    assert not any("thoughtSignature" in each for each in body["contents"][1]["parts"])
    assert "id" not in part(body, 1, 1)["functionCall"]
    assert conversation.post(path, body).status_code == 200


def test_a_provider_that_forgot_takes_the_conversation_as_another_models(
    conversation: Talk,
) -> None:
    body = second(conversation)
    conversation.server.forget_turns()
    assert CORRUPTED in conversation.post(PATH, body).json()["error"]["message"]
    part(body, 1, 1)["thoughtSignature"] = SKIP
    assert conversation.post(PATH, body).status_code == 200


def test_a_text_is_signed_too(conversation: Talk) -> None:
    body = second(conversation)
    content = conversation.post(PATH, body).json()["candidates"][0]["content"]
    assert content["parts"][0]["thoughtSignature"]
    body["contents"] += [content, {"role": "user", "parts": [{"text": "Next."}]}]
    assert conversation.post(PATH, body).status_code == 200
    content["parts"][0]["thoughtSignature"] = "QUJD"
    assert CORRUPTED in conversation.post(PATH, body).json()["error"]["message"]


def test_a_stream_without_sse_is_one_list(conversation: Talk) -> None:
    path = PATH.replace("generateContent", "streamGenerateContent")
    chunks = conversation.post(path, first()).json()
    assert [chunk["candidates"][0].get("finishReason") for chunk in chunks[-2:]] == [None, "STOP"]


def test_arguments_that_are_a_text_are_the_scripts_mistake() -> None:
    def script(_: Request) -> Turn:
        return Turn((Thinking(), FunctionCall("mail_file", "{")))

    with (
        pytest.raises(TypeError, match="are an object on Gemini's wire"),
        talk(script, HEADERS) as made,
    ):
        assert made.post(PATH, first()).status_code == 500

"""Models of [models]: the providers' own clients, asked over HTTP, against a server of this test.

The server notes what it was asked and answers as told. What of a turn must go back is shown by a
second request that has the first answer in it, after a round trip through JSON.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from aiohttp import web
from google.adk.models.llm_request import LlmRequest
from google.auth.credentials import AnonymousCredentials
from google.genai import types
from msgspec.structs import replace

from vedette.adapters.reasoners.adk.model import AskedModel
from vedette.adapters.reasoners.adk.reasoner import AdkReasoner
from vedette.app.doctor import check_models
from vedette.config import secret_reference
from vedette.config.models import ModelPlan
from vedette.config.settings import Settings
from vedette.domain.base.errors import BadFleet, Permanent, Unavailable, VedetteError
from vedette.domain.event import Event
from vedette.domain.memory import Briefing
from vedette.domain.model import Model, Provider
from vedette.domain.model_turn import ModelAway
from vedette.testing.toy_fleet import World, job, toy_fleet, wait_until

KEY = "sk-test-0123456789"

GEMINI_ANSWER = {
    "candidates": [
        {
            "content": {
                "role": "model",
                "parts": [{"text": "fine", "thoughtSignature": "c2lnbmVk"}],
            },
            "finishReason": "STOP",
        }
    ],
    "usageMetadata": {
        "promptTokenCount": 7,
        "candidatesTokenCount": 2,
        "totalTokenCount": 9,
    },
}
CLAUDE_ANSWER = {
    "id": "msg_1",
    "type": "message",
    "role": "assistant",
    "model": "claude",
    "content": [
        {"type": "thinking", "thinking": "", "signature": "c2lnbmVk"},
        {"type": "redacted_thinking", "data": "aGlkZGVu"},
        {"type": "tool_use", "id": "toolu_1", "name": "look", "input": {"at": "x"}},
    ],
    "stop_reason": "tool_use",
    "usage": {"input_tokens": 7, "output_tokens": 2},
}
REASONING = {
    "type": "reasoning",
    "id": "rs_1",
    "summary": [],
    "encrypted_content": "ZW5jcnlwdGVk",
}
OPENAI_ANSWER = {
    "id": "resp_1",
    "object": "response",
    "created_at": 1,
    "status": "completed",
    "model": "gpt",
    "parallel_tool_calls": True,
    "tool_choice": "auto",
    "tools": [],
    "output": [
        REASONING,
        {"type": "function_call", "id": "fc_1", "call_id": "call_1", "name": "look",
         "arguments": '{"at": "x"}', "status": "completed"},
    ],
    "usage": {"input_tokens": 7, "output_tokens": 2, "total_tokens": 9,
              "input_tokens_details": {"cached_tokens": 0},
              "output_tokens_details": {"reasoning_tokens": 1}},
}  # fmt: skip
CHAT_ANSWER = {
    "id": "chat_1",
    "object": "chat.completion",
    "created": 1,
    "model": "the-model",
    "choices": [
        {"index": 0, "finish_reason": "stop", "message": {"role": "assistant", "content": "a"}}
    ],
    "usage": {"prompt_tokens": 7, "completion_tokens": 2, "total_tokens": 9},
}
ANSWERS: dict[str, Any] = {
    "litellm": CHAT_ANSWER,
    "gemini": GEMINI_ANSWER,
    "anthropic": CLAUDE_ANSWER,
    "openai": OPENAI_ANSWER,
}


class Server:
    """A provider on the loopback. `answer` is a status and a JSON; None begins and goes silent."""

    def __init__(self) -> None:
        self.requests: list[tuple[str, dict[str, str], Any]] = []
        self.answer: tuple[int, Any] | None = (200, {})
        self.headers: dict[str, str] = {}
        self.url = ""

    async def handle(self, request: web.Request) -> web.StreamResponse:
        self.requests.append((request.path, dict(request.headers), await request.json()))
        if self.answer is None:
            response = web.StreamResponse(headers={"Content-Type": "application/json"})
            await response.prepare(request)
            await response.write(b'{"candidates": [')
            await asyncio.sleep(30)
            return response
        status, body = self.answer
        if isinstance(body, str):
            return web.Response(status=status, text=body, content_type="text/html")
        return web.json_response(body, status=status, headers=self.headers)


@pytest.fixture
async def server() -> AsyncIterator[Server]:
    made = Server()
    app = web.Application()
    app.router.add_route("*", "/{path:.*}", made.handle)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    made.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
    yield made
    await runner.cleanup()


@pytest.fixture
def key(tmp_path: Path) -> Path:
    path = tmp_path / "key"
    path.write_text(KEY)
    return path


MADE: list[AskedModel] = []


@pytest.fixture(autouse=True)
async def close_models() -> AsyncIterator[None]:
    yield
    while MADE:
        await MADE.pop().close()


def asked(server: Server, key: Path, provider: Provider, timeout_s: float = 20) -> AskedModel:
    MADE.append(AskedModel(plan_of(server, key, provider, timeout_s)))
    return MADE[-1]


def plan_of(server: Server, key: Path, provider: Provider, timeout_s: float = 20) -> ModelPlan:
    name = "openai/the-model" if provider == "litellm" else "the-model"
    timeout_us = int(timeout_s * 1_000_000)
    model = Model("fast", timeout_us=timeout_us, provider=provider, served_name=name)
    base_url = server.url + ("/v1" if provider in ("openai", "litellm") else "")
    own_key = None if provider == "ollama" else str(key)
    return ModelPlan(model, base_url, key_file=own_key)


def reasoner(folder: Path, model: AskedModel) -> AdkReasoner:
    """Return one for an agent without agent.py: its instruction and no tools."""
    own = folder / "sorter"
    own.mkdir(exist_ok=True)
    (own / "instruction.md").write_text("Sort what comes in.\n")
    (own / "agent.yaml").write_text(
        "version: 1\nname: sorter\ntitle: Sorts\nowner: desk\nmodel: fast\n"
        "triggers: [{on: mail.received}]\nbudget: {model_calls_per_day: 9}\ntools: []\n"
    )
    return AdkReasoner({"sorter": own}, models={"fast": model})


BRIEFING = Briefing(
    run="run_1", agent="sorter", key="k", position=1, previous=0, turn=1,
    event=Event("test", "1", "mail.received", "k", None, {"text": "hello"}),
    charter={}, registry={}, model="fast",
)  # fmt: skip
PROVIDERS: list[Provider] = ["gemini", "anthropic", "openai", "litellm"]


async def ask(model: AskedModel, *contents: types.Content) -> types.Content:
    """Ask once; return the answer as it comes back from a record."""
    first = types.Content(role="user", parts=[types.Part(text="hello")])
    request = LlmRequest(model="the-model", contents=[first, *contents])
    (answer,) = [one async for one in model.llm.generate_content_async(request)]
    assert answer.content is not None
    text = json.dumps(answer.content.model_dump(mode="json", exclude_none=True))
    return types.Content.model_validate_json(text)


def outcome(call: types.Content) -> types.Content:
    (found,) = [part.function_call for part in call.parts or [] if part.function_call]
    response = types.FunctionResponse(id=found.id, name=found.name, response={"ok": True})
    return types.Content(role="user", parts=[types.Part(function_response=response)])


async def test_an_agent_without_agent_py_asks_the_entry_that_its_run_names(
    server: Server, key: Path, tmp_path: Path
) -> None:
    server.answer = (200, GEMINI_ANSWER)
    judgement = await reasoner(tmp_path, asked(server, key, "gemini")).reason(BRIEFING)
    assert (judgement.final, judgement.model_calls) == (True, 1)
    assert judgement.spent == {"input_tokens": 7, "output_tokens": 2}
    ((path, headers, body),) = server.requests
    assert path.endswith("/models/the-model:generateContent")
    assert headers["x-goog-api-key"] == KEY
    assert "Sort what comes in." in json.dumps(body["systemInstruction"])


async def test_claude_gets_its_empty_thinking_back_as_thinking(server: Server, key: Path) -> None:
    server.answer = (200, CLAUDE_ANSWER)
    model = asked(server, key, "anthropic")
    answer = await ask(model)
    await ask(model, answer, outcome(answer))
    content: Any = CLAUDE_ANSWER["content"]
    assert server.requests[1][2]["messages"][1]["content"] == content


async def test_openai_gets_its_reasoning_items_back_before_their_calls(
    server: Server, key: Path
) -> None:
    server.answer = (200, OPENAI_ANSWER)
    model = asked(server, key, "openai")
    answer = await ask(model)
    await ask(model, answer, outcome(answer))
    first, second = (body for _, _, body in server.requests)
    assert first["store"] is False
    assert first["include"] == ["reasoning.encrypted_content"]
    assert "previous_response_id" not in second
    assert second["input"][1] == REASONING
    assert [item["type"] for item in second["input"][1:]] == [
        "reasoning", "function_call", "function_call_output",
    ]  # fmt: skip
    assert {item["call_id"] for item in second["input"][2:]} == {"call_1"}


@pytest.mark.parametrize("provider", PROVIDERS)
@pytest.mark.parametrize(
    ("status", "code"),
    [
        (429, "model-rate"), (503, "model-unavailable"), (401, "model-key"),
        (403, "model-forbidden"), (404, "model-missing"), (400, "model-request"),
    ],
)  # fmt: skip
async def test_a_failure_is_one_request_one_sentence_and_no_key(
    server: Server,
    key: Path,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    provider: Provider,
    status: int,
    code: str,
) -> None:
    words = f"Incorrect API key provided: {KEY}"
    server.answer = (status, {"error": {"message": words, "type": "some_error"}})
    server.headers = {"Retry-After": "17"}
    made = reasoner(tmp_path, asked(server, key, provider))
    with pytest.raises(VedetteError) as raised:
        await made.reason(BRIEFING)
    assert len(server.requests) == 1
    error = raised.value
    assert error.code == code
    assert KEY not in f"{error}{error.to_json()}{caplog.text}"
    if isinstance(error, ModelAway):
        assert "\n" not in str(error)
        after = 17_000_000 if status in (429, 503) else 0
        assert error.retry_after_us == after
    else:
        assert isinstance(error, Permanent)


@pytest.mark.parametrize("provider", [*PROVIDERS, "ollama"])
@pytest.mark.parametrize("page", ["<html>The gateway is busy</html>", '{"candidates": ['])
async def test_what_is_no_answer_is_weather(
    server: Server, key: Path, tmp_path: Path, provider: Provider, page: str
) -> None:
    server.answer = (200, page)
    with pytest.raises(ModelAway) as raised:
        await reasoner(tmp_path, asked(server, key, provider)).reason(BRIEFING)
    # LiteLLM says of all that goes wrong with Ollama that there is no connection.
    assert raised.value.kind == ("connection" if provider == "ollama" else "unavailable")
    assert len(server.requests) == 1


@pytest.mark.parametrize("provider", ["gemini", "vertex", "anthropic", "openai"])
async def test_no_variable_of_the_environment_names_another_server(
    key: Path, monkeypatch: pytest.MonkeyPatch, provider: Provider
) -> None:
    elsewhere = "http://elsewhere.example"
    for name in ("GOOGLE_GEMINI", "GOOGLE_VERTEX", "ANTHROPIC", "OPENAI"):
        monkeypatch.setenv(f"{name}_BASE_URL", elsewhere)
    plan = ModelPlan(Model("fast", provider=provider, served_name="the-model"), key_file=str(key))
    if provider == "vertex":
        plan = replace(plan, key_file=None, project="p", location="europe-west1")
        nobody: Any = AnonymousCredentials  # its __init__ has no types
        monkeypatch.setattr("google.auth.default", lambda **_: (nobody(), "p"))
    MADE.append(AskedModel(plan))
    client: Any = MADE[-1].llm
    client = client.client
    made = getattr(client, "base_url", None) or client._api_client._http_options.base_url
    assert str(made).startswith("https://")
    assert "elsewhere" not in str(made)


async def test_litellm_is_refused_a_server_that_only_the_environment_names(
    key: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPENAI_API_BASE", "http://elsewhere.example")
    plan = ModelPlan(
        Model("fast", provider="litellm", served_name="openai/gpt-5.5"), key_file=str(key)
    )
    with pytest.raises(BadFleet, match="OPENAI_API_BASE"):
        _ = AskedModel(plan).llm


async def test_a_prefix_that_litellm_does_not_know_is_said_at_the_start(
    key: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    plan = ModelPlan(
        Model("fast", provider="litellm", served_name="nobody-serves-this"), key_file=str(key)
    )
    with pytest.raises(BadFleet, match=r"knows no provider of 'nobody-serves-this'"):
        _ = AskedModel(plan).llm
    assert capsys.readouterr().out == ""


async def test_a_key_that_takes_its_time_holds_up_nobody_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Secret Manager is away: it is asked once for all that wait, and not on the event loop."""
    asked_at: list[float] = []

    def fetch(version: str) -> str:
        asked_at.append(time.monotonic())
        time.sleep(0.5)
        raise Unavailable("Secret Manager does not answer")

    monkeypatch.setattr(secret_reference, "_fetchers", [fetch])
    plan = ModelPlan(
        Model("fast", provider="gemini", served_name="m"),
        key_secret="projects/p/secrets/s/versions/1",
    )
    made = reasoner(tmp_path, AskedModel(plan))
    turns = [asyncio.create_task(made.reason(BRIEFING)) for _ in range(4)]
    await asyncio.sleep(0)
    longest = 0.0
    while not all(turn.done() for turn in turns):
        began = time.monotonic()
        await asyncio.sleep(0.01)
        longest = max(longest, time.monotonic() - began)
    assert {type(turn.exception()) for turn in turns} == {ModelAway}
    assert len(asked_at) == 1
    assert longest < 0.4


@pytest.mark.parametrize("provider", PROVIDERS)
async def test_a_body_that_stalls_ends_at_the_entry_s_timeout(
    server: Server, key: Path, tmp_path: Path, provider: Provider
) -> None:
    server.answer = None
    made = reasoner(tmp_path, asked(server, key, provider, timeout_s=0.5))
    began = time.monotonic()
    with pytest.raises(ModelAway) as raised:
        await made.reason(BRIEFING)
    assert time.monotonic() - began < 5
    assert (raised.value.kind, raised.value.use.calls) == ("timeout", 1)
    assert len(server.requests) == 1


@pytest.mark.parametrize("provider", ["gemini", "anthropic", "openai"])
async def test_a_server_that_is_not_there_is_said_so(
    server: Server, key: Path, tmp_path: Path, provider: Provider
) -> None:
    server.url = "http://127.0.0.1:9"
    model = asked(server, key, provider)
    with pytest.raises(ModelAway) as raised:
        await reasoner(tmp_path, model).reason(BRIEFING)
    assert (raised.value.kind, raised.value.use.calls) == ("connection", 0)


async def test_an_ollama_that_does_not_run_is_said_so(
    server: Server, key: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """LiteLLM calls that a 500, and does not say whether anything was sent."""
    server.url = "http://127.0.0.1:9"
    with pytest.raises(ModelAway) as raised:
        await reasoner(tmp_path, asked(server, key, "ollama")).reason(BRIEFING)
    assert raised.value.kind == "connection"
    assert "base_url" in (raised.value.mend or "")
    assert capfd.readouterr().out == ""


def rotate(key: Path) -> None:
    key.write_text("another")


async def test_a_key_that_is_not_taken_is_read_again(
    server: Server, key: Path, tmp_path: Path
) -> None:
    server.answer = (401, {"error": {"message": "no", "status": "UNAUTHENTICATED"}})
    model = asked(server, key, "gemini")
    made, before = reasoner(tmp_path, model), model.llm
    with pytest.raises(ModelAway):
        await made.reason(BRIEFING)
    assert model.llm is before, "no client is made for a key that is the same"
    model.forget_key()
    rotate(key)
    server.answer = (200, GEMINI_ANSWER)
    await made.reason(BRIEFING)
    assert server.requests[1][1]["x-goog-api-key"] == "another"


@pytest.mark.parametrize("provider", PROVIDERS)
async def test_no_key_is_printed_with_a_model(key: Path, provider: Provider) -> None:
    model = asked(Server(), key, provider)
    assert KEY not in f"{model!r}{model.llm!r}{model.llm}"


async def test_a_key_that_is_not_there_is_said_at_the_start_and_waited_for_later(
    tmp_path: Path,
) -> None:
    plan = ModelPlan(
        Model("fast", provider="gemini", served_name="m"), key_file=str(tmp_path / "none")
    )
    made = reasoner(tmp_path, AskedModel(plan))
    with pytest.raises(BadFleet, match=r"models\.fast"):
        made.require_model("fast")
    with pytest.raises(ModelAway) as raised:
        await made.reason(BRIEFING)
    assert raised.value.kind == "key"


def limits_of(body: Any) -> list[Any]:
    """Return what a request says of how much may be written at most, as its provider has it."""
    names = ("maxOutputTokens", "max_tokens", "max_output_tokens", "max_completion_tokens")
    return [part[name] for part in (body, body.get("generationConfig", {})) for name in names
            if name in part]  # fmt: skip


@pytest.mark.parametrize("provider", PROVIDERS)
async def test_check_live_asks_one_token_and_says_what_is_wrong_in_one_sentence(
    server: Server, key: Path, tmp_path: Path, provider: Provider
) -> None:
    plan = plan_of(server, key, provider)
    lost = replace(plan, model=Model("lost"), key_file=str(key) + ".not")
    settings = replace(Settings.of(tmp_path), models={"fast": plan, "lost": lost})
    agents = {name: SimpleNamespace(model=name) for name in ("fast", "lost")}
    server.answer = (200, ANSWERS[provider])
    first, second = await check_models(settings, agents)  # type: ignore[arg-type]
    assert (first.what, first.state) == ("model fast", "ok")
    assert (second.state, "cannot read" in second.told) == ("fail", True)
    ((_, _, body),) = server.requests
    assert 16 in limits_of(body), body
    server.answer = (401, {"error": {"message": "no", "type": "x"}})
    first, _ = await check_models(settings, agents)  # type: ignore[arg-type]
    assert first.state == "fail"
    assert first.told.startswith("the model fast does not take the key")
    assert first.mend


@pytest.mark.parametrize("workers", [False, True])
async def test_a_fleet_asks_the_model_that_one_line_of_agent_yaml_names(
    server: Server, key: Path, tmp_path: Path, workers: bool
) -> None:
    """503 first: the run waits for the model, and goes on by itself. There is no agent.py."""
    fleet = toy_fleet(tmp_path, World(), reasoner="adk", workers=workers)
    folder = fleet.content / "agents" / "worker"
    (folder / "agent.py").unlink()
    text = (folder / "agent.yaml").read_text()
    (folder / "agent.yaml").write_text(text.replace("reasoner: adk", "model: fast"))
    plan = ModelPlan(
        Model("fast", provider="gemini", served_name="the-model"), server.url, key_file=str(key)
    )
    fleet.models = {"fast": plan}
    server.answer = (503, {"error": {"code": 503, "status": "UNAVAILABLE", "message": "busy"}})
    event = job("e")
    async with fleet:
        await fleet.send(event)
        await wait_until(lambda: fleet.runs(event)[0].waits == "model")
        server.answer = (200, GEMINI_ANSWER)
        await wait_until(lambda: fleet.runs(event)[0].state == "done")
    assert len(server.requests) == 2
    assert "Do what the event says." in json.dumps(server.requests[1][2])

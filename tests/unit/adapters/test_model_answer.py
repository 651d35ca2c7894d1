"""What is taken of a model's answer, what is not, and what is charged for either."""

from __future__ import annotations

import math
from typing import Any

import pytest
from google.adk.models.llm_response import LlmResponse
from google.genai import types
from tests.model_turns import call, json_of, said

from vedette.adapters.reasoners.adk.answer import (
    MAX_BYTES,
    MAX_NAME,
    Answer,
    check_answer,
    read_answer,
)
from vedette.adapters.reasoners.adk.reasoner import Exchange
from vedette.domain.base.errors import Temporary
from vedette.domain.model_turn import BadModelAnswer, ModelError, ModelFailed

Usage = types.GenerateContentResponseUsageMetadata
USED = Usage(prompt_token_count=90, candidates_token_count=10)
COUNTED = {"input_tokens": 90, "output_tokens": 10}


def answer_of(content: types.Content | None, usage: Usage | None = USED, **more: Any) -> Answer:
    return read_answer(LlmResponse(content=content, usage_metadata=usage, **more))


def refusal(*answers: Answer, may_be_empty: bool = False) -> ModelError:
    with pytest.raises(ModelError) as refused:
        check_answer("sorter", answers, 1, may_be_empty=may_be_empty)
    assert refused.value.use.calls == 1
    return refused.value


def nested(depth: int) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for _ in range(depth):
        found = {"a": found}
    return found


def test_an_answer_is_taken_as_it_is() -> None:
    content = said(types.Part(text="why"), call("look", "1", n=1.5, none=None, deep=nested(20)))
    answer = check_answer("sorter", [answer_of(content)], 1, may_be_empty=False)
    assert answer.content == json_of(content)
    assert (answer.calls, answer.text) == (
        [("look", {"n": 1.5, "none": None, "deep": nested(20)})], "why",
    )  # fmt: skip
    assert answer.spent == COUNTED


BAD = {
    "NaN": call("f", n=math.nan),
    "infinite": call("f", n=[-math.inf]),
    "a set": call("f", n={1}),
    "a tuple": call("f", n=(1, 2)),
    "bytes": call("f", n=b"x"),
    "half a pair": call("f", n="\ud800"),
    "half a pair said": types.Part(text="\ud800"),
    "too deep": call("f", n=nested(40)),
    "without end": call("f", n=nested(5000)),
    "a long number": call("f", n=1 << 5000),
    "huge text": types.Part(text="w" * (MAX_BYTES + 1)),
    "huge argument": call("f", n=["w" * 1000] * 2000),
    "huge key": call("f", n={"w" * (MAX_BYTES + 1): 1}),
    "huge as JSON": types.Part(text="\x01" * (MAX_BYTES // 3)),
    "huge thought": types.Part(text="w" * MAX_BYTES + "w", thought=True),
    "huge signature": types.Part(thought_signature=b"w" * MAX_BYTES),
    "huge picture": types.Part(
        inline_data=types.Blob(data=b"w" * MAX_BYTES * 2, mime_type="image/png")
    ),
    "huge beside": types.Part(text="a", part_metadata={"a": "w" * (MAX_BYTES + 1)}),
    "many items": call("f", n=[1] * 10_001),
    "many small objects": call("f", n=[{}] * 6000 + [[[]]] * 6000),
    "many items beside": types.Part(text="a", part_metadata={str(n): 1 for n in range(10_001)}),
    "a huge name": call("w" * 20_000_000),
    "a huge id": call("f", "w" * 20_000_000),
    "no name": types.Part(function_call=types.FunctionCall(args={})),
    "an empty name": call(""),
    "a name with spaces": call("no such tool"),
    "a name with NUL": call("a\0"),
    "an empty id": call("f", ""),
    "an id with spaces": call("f", "a b"),
    "more of a call to come": types.Part(
        function_call=types.FunctionCall(name="f", will_continue=True)
    ),
    "code": types.Part(
        executable_code=types.ExecutableCode(code="1", language=types.Language.PYTHON)
    ),
    "its own answer": types.Part(
        function_response=types.FunctionResponse(name="f", response={"status": "done"})
    ),
}


@pytest.mark.parametrize("name", BAD)
def test_what_could_not_be_kept_as_it_is_is_refused_and_charged(name: str) -> None:
    error = refusal(answer_of(said(BAD[name])))
    assert isinstance(error, BadModelAnswer)
    assert isinstance(error, Temporary)
    assert error.code == "bad-model-answer"
    assert error.use.spent == COUNTED, "what the provider counted"
    assert len(str(error)) < 300, "nothing of it goes on"


def test_two_calls_of_one_answer_have_two_ids_or_none() -> None:
    assert refusal(answer_of(said(call("f", "c1"), call("g", "c1")))).code == "bad-model-answer"
    assert answer_of(said(call("f"), call("f"))).fault == ""


def test_as_many_items_as_may_be_are_taken() -> None:
    assert answer_of(said(call("f", n=[1] * 9999))).fault == ""
    assert answer_of(said(call("f", n=[1] * 5000), call("f", n=[1] * 5001))).fault


def test_what_is_said_by_nobody_is_said_by_the_model() -> None:
    answer = answer_of(types.Content(role=None, parts=[call("f")]))
    assert answer.content == json_of(said(call("f")))


def test_as_long_as_may_be_is_taken() -> None:
    room = MAX_BYTES - len(json_of(said(types.Part(text=""))))
    assert answer_of(said(types.Part(text="w" * room))).fault == ""
    assert answer_of(said(types.Part(text="w" * (room + 1)))).fault


def test_a_flood_of_calls_or_of_parts_is_refused() -> None:
    assert answer_of(said(*[call("f")] * 32)).fault == ""
    assert "33 calls" in str(refusal(answer_of(said(*[call("f")] * 33))))
    assert answer_of(said(*[types.Part(text="")] * (MAX_BYTES + 1))).fault


@pytest.mark.parametrize(
    "numbers",
    [{"prompt_token_count": -90, "candidates_token_count": 10},
     {"prompt_token_count": 90, "candidates_token_count": -10},
     {"prompt_token_count": 90, "candidates_token_count": 10, "thoughts_token_count": -50},
     {"prompt_token_count": 90, "tool_use_prompt_token_count": -90, "total_token_count": 1},
     {"prompt_token_count": math.nan, "candidates_token_count": 10},
     {"prompt_token_count": 90.5, "candidates_token_count": 10},
     {"prompt_token_count": True, "candidates_token_count": 10},
     {"prompt_token_count": "90", "candidates_token_count": 10},
     {"prompt_token_count": 90, "total_token_count": 80},
     {"prompt_token_count": 10**15, "candidates_token_count": 10}],
)  # fmt: skip
def test_an_impossible_count_is_refused_and_the_bound_is_charged(numbers: dict[str, Any]) -> None:
    usage = Usage.model_construct(**numbers)
    response = LlmResponse(content=said(call("f")))
    response.usage_metadata = usage
    error = refusal(read_answer(response))
    assert error.code == "bad-model-answer"
    assert error.use.spent == {}, "nobody counted it: the reservation's bound"


def test_more_than_a_call_can_have_used_is_refused() -> None:
    response = LlmResponse(content=said(call("f")), usage_metadata=USED)
    assert read_answer(response, 90, 10).spent == COUNTED
    for most in ((89, 10), (90, 9)):
        error = refusal(read_answer(response, *most))
        assert (error.code, error.use.spent) == ("bad-model-answer", {})


def test_what_nobody_counted_is_left_to_the_bound() -> None:
    """LiteLLM writes 0 for what it was not told."""
    zero = Usage(prompt_token_count=0, candidates_token_count=0, total_token_count=0)
    assert (answer_of(said(call("f")), zero).spent, answer_of(None, zero).fault) == ({}, "")
    partly = Usage(prompt_token_count=90, candidates_token_count=10, total_token_count=0)
    assert answer_of(said(call("f")), partly).spent == COUNTED
    assert answer_of(said(call("f")), None).spent == {}
    assert answer_of(said(call("f")), Usage(candidates_token_count=10)).spent == {}


def test_an_empty_answer_ends_a_run_that_has_done_something_and_no_other() -> None:
    thinking = said(types.Part(text="hm", thought=True))
    for content in (None, said(), thinking):
        error = refusal(answer_of(content))
        assert isinstance(error, ModelFailed)
        assert error.use.spent == COUNTED
        answer = check_answer("sorter", [answer_of(content)], 1, may_be_empty=True)
        assert answer.calls == []
    assert refusal(may_be_empty=True).code == "model-failed", "no answer is not an empty one"


def test_a_failure_is_charged_what_was_counted() -> None:
    cut = refusal(answer_of(said(call("f")), finish_reason=types.FinishReason.MAX_TOKENS))
    assert (cut.code, cut.use.spent) == ("model-failed", COUNTED)
    failed = refusal(answer_of(None, error_code="500", error_message="no"))
    assert (failed.code, failed.use.spent) == ("model-failed", COUNTED)


def test_a_malformed_call_is_a_bad_answer() -> None:
    reason = types.FinishReason.MALFORMED_FUNCTION_CALL
    assert refusal(answer_of(None, finish_reason=reason)).code == "bad-model-answer"
    assert refusal(answer_of(None, error_code=reason.name)).code == "bad-model-answer"


def test_two_answers_to_one_question_are_none() -> None:
    one = answer_of(said(call("f")))
    error = refusal(one, one)
    assert (error.code, error.use.spent) == ("bad-model-answer", {})


def test_an_answer_in_anothers_name_is_refused() -> None:
    assert answer_of(types.Content(role="user", parts=[call("f")])).fault


def test_what_is_no_answer_at_all_is_refused() -> None:
    response = LlmResponse.model_construct(content="hello", usage_metadata=None)
    assert refusal(read_answer(response)).code == "bad-model-answer"


@pytest.mark.parametrize("odd", [5, ["x"], {"a": 1}, b"m", "m" * 5000])
def test_what_a_provider_says_beside_an_answer_refuses_none(odd: Any) -> None:
    """It is told on if it is of its type and no longer than any."""
    response = LlmResponse(content=said(types.Part(text="hi")))
    response.model_version = odd
    response.usage_metadata = USED.model_copy(update={"cached_content_token_count": odd})
    answer = read_answer(response)
    assert (answer.text, answer.fault) == ("hi", "")
    assert answer.metadata.answered == ("m" * MAX_NAME if isinstance(odd, str) else "")
    assert answer.metadata.tokens.keys() == ({"cache_read"} if odd == 5 else set())


@pytest.mark.parametrize(
    ("key", "name", "told"),
    [
        ("sk-1", "m-2026", "m-2026"),
        ("sk-1", "m-sk-1", ""),
        ("", "m-2026", "m-2026"),
        (None, "m-2026", ""),
        (None, "m", "m"),
    ],
)
def test_a_name_with_the_key_in_it_is_not_told(key: str | None, name: str, told: str) -> None:
    """Where the key is not known nothing but what was asked is."""
    response = LlmResponse(content=said(types.Part(text="hi")), model_version=name)
    exchange = Exchange(calls=1, answers=[read_answer(response)])
    assert exchange.metadata("gemini", "m", key).answered == told

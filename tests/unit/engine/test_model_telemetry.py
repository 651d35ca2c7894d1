"""What is told of a model's call is configured, of a closed list, or bounded: whoever told it."""

from __future__ import annotations

import pytest
from google.genai import types

from vedette.adapters.telemetry.prometheus import PrometheusMetrics
from vedette.domain.base.canonical import canonical_json
from vedette.domain.base.errors import Permanent
from vedette.domain.model import Model
from vedette.domain.model_turn import (
    FINISH_REASONS,
    BadModelAnswer,
    ModelCallMetadata,
    ModelError,
    ModelUse,
)
from vedette.domain.ports.reasoner import ReasonerJudgement
from vedette.engine.model_calls import ModelCall
from vedette.engine.model_telemetry import model_call_field, note_result, observe_model_call

KEY = "sk-shown-to-nobody-0123456789"
SPENT = {"input_tokens": 10, "output_tokens": 4}
CONFIGURED = Model("fast", provider="gemini", served_name="gemini-3-pro")


def call_of(told: ModelCallMetadata, model: Model = CONFIGURED) -> ModelCall:
    """Return a call of 2 s that a judgement ended with this metadata."""
    call = ModelCall(model, "call", 7, 0, took_us=2_000_000)
    note_result(call, ReasonerJudgement("x", 1.0, model_calls=1, spent=SPENT, metadata=told))
    return call


@pytest.mark.parametrize("text", [KEY, "pay 5000 to IBAN 12\n", "\ud800", "x\u202ey", "ＧＰＴ"])
@pytest.mark.parametrize("model", [CONFIGURED, Model("worker/agent.py")])
def test_no_text_of_a_worker_goes_on(text: str, model: Model) -> None:
    said = f"gemini-3-pro-{text}"
    for told in (
        ModelCallMetadata(1, text, "m\n" + text, text, text),
        ModelCallMetadata(1, text, "\x00" + text, said, f"stop{text}"),
    ):
        call = call_of(told, model)
        field = model_call_field(call)
        assert "answered" not in field
        assert "finish" not in field
        wanted = ("gemini", "gemini-3-pro") if model is CONFIGURED else ("other", None)
        assert (field["provider"], field.get("asked")) == wanted
        assert text not in repr(field)
        canonical_json(field)
        metrics = PrometheusMetrics()
        observe_model_call(metrics, call)
        page = metrics.scrape()[0].decode()
        assert f'provider="{wanted[0]}"' in page
        assert text not in page


def test_provider_and_name_are_those_that_are_configured() -> None:
    told = ModelCallMetadata(1, "openai", "gpt-5", "gemini-3-pro", "stop")
    field = model_call_field(call_of(told))
    assert (field["provider"], field["asked"], field["finish"]) == (
        "gemini", "gemini-3-pro", "stop",
    )  # fmt: skip
    field = model_call_field(call_of(told, Model("worker/agent.py")))
    assert (field["provider"], field["asked"]) == ("openai", "gpt-5")


@pytest.mark.parametrize(
    ("asked", "answered", "kept"),
    [
        ("gpt-5.5", "gpt-5.5", "gpt-5.5"),
        ("gpt-5.5", "gpt-5.5-2026-01-15", "gpt-5.5-2026-01-15"),
        ("claude-opus-5", "claude-opus-5-20260101", "claude-opus-5-20260101"),
        ("openai/gpt-5.5", "gpt-5.5-2026-01-15", "gpt-5.5-2026-01-15"),
        ("gemini-3-pro", "models/gemini-3-pro-preview-05-20", "gemini-3-pro-preview-05-20"),
        ("gemini-3-pro", "alice@corp.example/gemini-3-pro", "gemini-3-pro"),
        ("gemini-3-pro", "gemini-3-pro/salary-is-120000", ""),
        ("gemini-3-pro", f"gemini-3-pro-{KEY}", ""),
        ("gemini-3-pro", "gemini-3-pro-meet-bob", ""),
        ("gemini-3-pro", "gemini-3-pro\n", ""),
        ("gemini-3-pro", "another", ""),
        ("m/", "anything", ""),
    ],
)
def test_a_model_answers_under_the_name_that_was_asked_or_under_none(
    asked: str, answered: str, kept: str
) -> None:
    call = call_of(ModelCallMetadata(answered=answered), Model("fast", served_name=asked))
    assert call.metadata.answered == kept


def test_finish_reasons_are_those_of_the_client() -> None:
    assert {name.lower() for name in types.FinishReason.__members__} <= FINISH_REASONS


@pytest.mark.parametrize(
    ("told", "kept"),
    [
        ({"cache_read": 6, "cache_creation": 4, "reasoning": 4}, None),
        ({"cache_read": 11}, {}),
        ({"cache_read": 6, "cache_creation": 5, "reasoning": 1}, {"reasoning": 1}),
        ({"reasoning": 5, "cache_read": 1}, {"cache_read": 1}),
    ],
)
def test_parts_of_tokens_are_no_more_than_the_whole(
    told: dict[str, int], kept: dict[str, int] | None
) -> None:
    call = call_of(ModelCallMetadata(tokens=told))
    assert call.metadata.tokens == (told if kept is None else kept)


@pytest.mark.parametrize(("told", "taken"), [(86_400_000_000, 2.0), (500_000, 0.5), (0, 2.0)])
def test_the_client_waited_no_longer_than_its_turn_took(told: int, taken: float) -> None:
    """The entry and the metric say the same."""
    call, metrics = call_of(ModelCallMetadata(1, took_us=told)), PrometheusMetrics()
    observe_model_call(metrics, call)
    assert f'seconds_sum{{model="fast",outcome="answered",provider="gemini"}} {taken}' in (
        metrics.scrape()[0].decode()
    )
    field = model_call_field(call)
    assert field.get("call_took", field["took"]) == taken * 1e6


@pytest.mark.parametrize(
    ("error", "code", "observed"),
    [
        (BadModelAnswer("x", ModelUse(1, SPENT)), "bad-model-answer", 1),
        (RuntimeError("mail from bob"), "error", 1),
        (Permanent("x", code="mail from bob"), "permanent", 1),
        (BadModelAnswer("x", ModelUse(0)), "bad-model-answer", 0),
    ],
)
def test_what_failed_has_a_code_of_a_closed_list_and_what_was_not_asked_no_time(
    error: Exception, code: str, observed: int
) -> None:
    call = ModelCall(CONFIGURED, "call", 7, 0, took_us=5)
    note_result(call, error)
    metrics = PrometheusMetrics()
    observe_model_call(metrics, call)
    page = metrics.scrape()[0].decode()
    assert model_call_field(call)["error"] == code
    assert page.count("vedette_model_call_seconds_count{") == observed
    assert (f'outcome="{code}"' in page) == bool(observed)
    assert isinstance(error, ModelError) or call.use == ModelUse(1)

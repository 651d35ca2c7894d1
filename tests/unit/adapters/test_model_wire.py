"""Whom one speaks to, and by which way."""

from __future__ import annotations

from typing import Any

import pytest
from google.adk.models.google_llm import Gemini

from vedette.adapters.reasoners.adk.wire import describe_speaker


def route(**given: Any) -> str:
    return describe_speaker(Gemini(**{"model": "gemini-3-pro", **given})).route


def test_a_route_is_whom_one_speaks_to(monkeypatch: pytest.MonkeyPatch) -> None:
    plain = route()
    assert route() == plain
    assert route(model="gemini-3-flash") != plain
    assert route(base_url="http://localhost:1") != plain
    assert route(base_url="http://localhost:1") != route(base_url="http://localhost:2")
    monkeypatch.setenv("GOOGLE_GENAI_USE_VERTEXAI", "1")
    assert route() != plain
    kind = type("Other", (Gemini,), {})
    assert describe_speaker(kind(model="gemini-3-pro")).route != route()


def test_an_entry_of_models_says_more_of_the_route() -> None:
    llm, here = Gemini(model="gemini-3-pro"), {"base_url": "https://u:secret@a.example/v1?key=s"}
    assert describe_speaker(llm, here).route != describe_speaker(llm).route
    assert describe_speaker(llm, here) == describe_speaker(
        llm, {"base_url": "https://a.example/v1"}
    )
    assert describe_speaker(llm, here) != describe_speaker(
        llm, {"base_url": "https://b.example/v1"}
    )


def test_no_key_is_in_a_route(monkeypatch: pytest.MonkeyPatch) -> None:
    plain = route(base_url="https://proxy.example/v1")
    monkeypatch.setenv("GOOGLE_API_KEY", "secret")
    monkeypatch.setenv("GEMINI_API_KEY", "secret")
    assert route(base_url="https://proxy.example/v1") == plain
    assert route(base_url="https://user:secret@proxy.example/v1?key=secret") == plain


def test_who_is_who() -> None:
    gemini = describe_speaker(Gemini(model="gemini-3-pro"))
    assert (gemini.model, gemini.is_gemini, gemini.is_claude) == ("gemini-3-pro", True, False)

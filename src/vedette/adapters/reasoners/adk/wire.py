"""Whom one speaks to when a model is asked, and by which way.

By names and attributes, so that no provider's client is imported for it.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from msgspec import Struct

from vedette.domain.base.canonical import canonical_json, sha256_hex
from vedette.domain.model_turn import ModelTurn

if TYPE_CHECKING:
    from google.adk.models.base_llm import BaseLlm

# What Google documents for a call that another model made: its signature is not looked for.
FOREIGN_SIGNATURE = b"skip_thought_signature_validator"

# By which the clients find where to ask, beside what they are constructed with. No key among them.
_PLACES = (
    "ANTHROPIC_BASE_URL", "GOOGLE_CLOUD_LOCATION", "GOOGLE_CLOUD_PROJECT",
    "GOOGLE_GEMINI_BASE_URL", "GOOGLE_GENAI_USE_ENTERPRISE", "GOOGLE_GENAI_USE_VERTEXAI",
    "GOOGLE_VERTEX_BASE_URL", "OPENAI_BASE_URL",
)  # fmt: skip


class Speaker(Struct, frozen=True):
    """Whom one speaks to: a model by its name, and a digest of the route that leads there."""

    model: str
    route: str
    is_gemini: bool = False
    is_claude: bool = False

    def is_foreign(self, turn: ModelTurn) -> bool:
        """Say whether another spoke in a turn: what only that one can read is not given back."""
        return (turn.model, turn.route) != (self.model, self.route)


def describe_speaker(llm: BaseLlm, entry: Mapping[str, str] | None = None) -> Speaker:
    """Return whom ADK's model object speaks to; `entry` is what [models] says of the route."""
    kind = f"{type(llm).__module__}.{type(llm).__qualname__}"
    places = {name: _clean_url(os.environ[name]) for name in _PLACES if os.environ.get(name)}
    given = getattr(llm, "_additional_args", None) or {}  # of LiteLLM
    client = getattr(llm, "client", None)
    for name, value in (
        ("base_url", getattr(llm, "base_url", None) or given.get("base_url")),
        ("api_base", given.get("api_base")),
        ("client", None if client is None else getattr(client, "base_url", None)),
    ):
        if value:
            places[name] = _clean_url(str(value))
    places |= {name: _clean_url(value) for name, value in (entry or {}).items()}
    route = sha256_hex(canonical_json({"class": kind, "model": llm.model, "places": places}))
    known = f"{kind} {llm.model}".lower()
    return Speaker(llm.model, route, "gemini" in known, "claude" in known or "anthropic" in known)


# By the classes of ADK, of which a model without an entry of [models] is one.
_PROVIDERS = {
    "Gemini": "gemini", "Claude": "vertex", "AnthropicLlm": "anthropic",
    "OpenAIResponsesLlm": "openai", "LiteLlm": "litellm",
}  # fmt: skip


def name_provider(llm: BaseLlm) -> str:
    """Return whose interface ADK's model object asks, in the words of [models]; "": not known."""
    names = (kind.__name__ for kind in type(llm).__mro__)
    found = next((_PROVIDERS[name] for name in names if name in _PROVIDERS), "")
    is_vertex = os.environ.get("GOOGLE_GENAI_USE_VERTEXAI", "").lower() in ("1", "true")
    return "vertex" if found == "gemini" and is_vertex else found


def _clean_url(text: str) -> str:
    """Return an address without what may be a secret in it: user, query."""
    if "://" not in text:
        return text
    parts = urlsplit(text)
    return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path}"

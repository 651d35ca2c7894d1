"""A Model as the fleet's engine knows it: how often it may be asked, why it did not answer.

A provider in trouble is weather: who waits for its model waits as for a target that is away. What
a provider refuses for good (a key, a bill, a name) holds all that the model is asked, too, until
somebody mends it; only what it refuses of one request ends that request.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

from msgspec import Struct

# Whose interface a model is asked by.
Provider = Literal["gemini", "vertex", "anthropic", "openai", "ollama", "litellm"]
# rate, unavailable, timeout, connection: over by themselves. quota: over with the provider's day.
# billing, key, forbidden, missing: until somebody mends it.
FailureKind = Literal[
    "rate", "unavailable", "timeout", "connection",
    "quota", "billing", "key", "forbidden", "missing",
]  # fmt: skip
# How long a model is left alone after a failure that does not pass by itself (microseconds): then
# one call tries whether it was mended.
HELD_US: Mapping[str, int] = {
    "quota": 900_000_000,
    "billing": 300_000_000,
    "key": 300_000_000,
    "forbidden": 300_000_000,
    "missing": 300_000_000,
}
# Of how an answer is made, what cannot lead a request, or what stands in it, anywhere else: by the
# names of google.genai's GenerateContentConfig.
SETTINGS = frozenset(
    {"temperature", "top_p", "top_k", "max_output_tokens", "stop_sequences", "response_logprobs",
     "logprobs", "presence_penalty", "frequency_penalty", "seed", "response_mime_type",
     "safety_settings", "labels", "media_resolution", "thinking_config", "service_tier"}
)  # fmt: skip


class Model(Struct, frozen=True):
    """What may be asked of one model: an entry of [models] in vedette.toml, without its key.

    Of any 60 s at most `calls_per_minute` calls begin, and `tokens_per_minute` tokens are taken;
    `fallback` is who is asked while it is left alone, `price` an entry of the price list.
    `context_tokens` is how many it reads at most, if that is told.
    `provider` is whose interface it is, `served_name` its name there ("": not known here, as an
    agent.py names the model).
    """

    name: str
    calls_in_flight: int = 8
    calls_per_minute: int | None = None
    tokens_per_minute: int | None = None
    timeout_us: int = 60_000_000
    fallback: str | None = None
    price: str | None = None
    provider: Provider | Literal[""] = ""
    served_name: str = ""
    context_tokens: int | None = None

"""OpenAI's Responses by ADK's own model, which keeps reasoning items and gives them back.

Nothing is stored at OpenAI (`store=false`), so a model goes on from its reasoning only if each
reasoning item comes back whole, with its id and its encrypted content, before its calls. ADK 2.13
drops them, as its parts have no place for the id. `Part.part_metadata` is that place: it is part of
a recorded turn, and it is never sent by itself.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator
from typing import TYPE_CHECKING, Any

import openai.resources.responses  # noqa: F401 (what its client imports when it is first asked)
from google.adk.integrations.openai import OpenAIResponsesLlm
from google.adk.integrations.openai._openai_responses_llm import (
    _CallIdSanitizer,
    _content_to_response_input_items,
)
from openai import AsyncOpenAI

from vedette.domain.model_turn import ModelAway, ModelUse

if TYPE_CHECKING:
    from google.adk.models.llm_request import LlmRequest
    from google.adk.models.llm_response import LlmResponse
    from google.genai import types

# Of a part's metadata: the reasoning item that it and the thought parts behind it came of.
ITEM = "openai_reasoning"


def build_responses(name: str, key: str, base_url: str, timeout_s: float) -> OpenAIResponsesLlm:
    """Return ADK's model of one of OpenAI's, with a client that tries nothing again."""
    client = AsyncOpenAI(api_key=key, base_url=base_url, timeout=timeout_s, max_retries=0)
    return ReasoningItemsLlm(
        model=name, client=client, store=False, include=["reasoning.encrypted_content"]
    )


class ReasoningItemsLlm(OpenAIResponsesLlm):
    """ADK's model of OpenAI's Responses that keeps reasoning items in the parts they came as."""

    async def generate_content_async(
        self, llm_request: LlmRequest, stream: bool = False
    ) -> AsyncGenerator[LlmResponse, None]:
        """Ask once; the answer's thought parts hold their items."""
        async for response in super().generate_content_async(llm_request, stream):
            told = (response.custom_metadata or {}).get("openai_response", {})
            if not told.get("id"):  # the client hands on a page that is no JSON as a text
                what = f"the model {self.model} is not available: what came is no answer"
                raise ModelAway(what, "unavailable", ModelUse(1))
            items = [one for one in told.get("output", ()) if one.get("type") == "reasoning"]
            if response.content is not None:
                keep_items(response.content, items)
            response.custom_metadata = None
            yield response

    def _get_response_create_kwargs(
        self, llm_request: LlmRequest, *, stream: bool
    ) -> dict[str, Any]:
        given: dict[str, Any] = super()._get_response_create_kwargs(llm_request, stream=stream)
        given.pop("previous_response_id", None)  # nothing is stored there
        return given

    def _get_response_input(self, llm_request: LlmRequest) -> list[Any]:
        items: list[Any] = []
        sanitizer = _CallIdSanitizer()
        for content in llm_request.contents:
            for item, parts in split_at_items(content.parts or []):
                if item is not None:
                    items.append(item)
                rest = content.model_copy(update={"parts": parts})
                items += _content_to_response_input_items(rest, sanitizer)
        return items


def keep_items(content: types.Content, items: list[dict[str, Any]]) -> None:
    """Put each reasoning item into the first of the thought parts that came of it.

    One without encrypted content is of no use: nobody could go on from it.
    """
    kept = {str(item["encrypted_content"]): item for item in items if item.get("encrypted_content")}
    for part in content.parts or []:
        signature = (part.thought_signature or b"").decode() if part.thought else ""
        item = kept.pop(signature, None)
        if item is not None:
            part.part_metadata = {
                ITEM: {
                    "type": "reasoning", "id": item.get("id"), "summary": item.get("summary") or [],
                    "encrypted_content": signature,
                }
            }  # fmt: skip


def split_at_items(
    parts: list[types.Part],
) -> list[tuple[dict[str, Any] | None, list[types.Part]]]:
    """Return a content's parts in runs that each follow a reasoning item, or none."""
    runs: list[tuple[dict[str, Any] | None, list[types.Part]]] = [(None, [])]
    for part in parts:
        item = (part.part_metadata or {}).get(ITEM) if part.thought else None
        if item is not None:
            runs.append((item, []))
        elif not part.thought:
            runs[-1][1].append(part)
    return runs

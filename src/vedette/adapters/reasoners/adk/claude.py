"""Claude by ADK's own model, which gives signed thinking back as it came.

Current models think without showing it: a thinking block has a signature and an empty text. ADK
2.13 takes such a part for redacted thinking and sends the signature as its data, which Claude
refuses for the rest of the conversation.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from anthropic import AsyncAnthropic
from google.adk.models.anthropic_llm import AnthropicLlm

if TYPE_CHECKING:
    from google.adk.models.llm_request import LlmRequest


def build_claude(name: str, key: str, base_url: str, timeout_s: float) -> AnthropicLlm:
    """Return ADK's model of one Claude, with a client of its own that tries nothing again."""
    client = AsyncAnthropic(api_key=key, base_url=base_url, timeout=timeout_s, max_retries=0)
    return SignedThinkingLlm(model=name, client=client)


class SignedThinkingLlm(AnthropicLlm):
    """ADK's Claude whose empty thinking stays thinking: its text is there, and empty."""

    def _build_anthropic_kwargs(
        self, llm_request: LlmRequest, messages: Any, *rest: Any
    ) -> dict[str, Any]:
        empty = {
            part.thought_signature.decode()
            for content in llm_request.contents
            for part in content.parts or []
            if part.thought and part.text == "" and part.thought_signature
        }
        for message in messages:
            message["content"] = [restore_thinking(block, empty) for block in message["content"]]
        return super()._build_anthropic_kwargs(llm_request, messages, *rest)


def restore_thinking(block: dict[str, Any], empty: set[str]) -> dict[str, Any]:
    """Return a block as Claude made it, given the signatures of thinking without text."""
    if block["type"] != "redacted_thinking" or block["data"] not in empty:
        return block
    return {"type": "thinking", "thinking": "", "signature": block["data"]}

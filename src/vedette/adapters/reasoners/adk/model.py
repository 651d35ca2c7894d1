"""ADK's models, made of the entries of [models]: with their key, their time, and no own retries.

Clients try again by themselves, unseen, so that limits and breakers would lie: here none does. One
client serves an entry for as long as its key is taken. What a provider's own package brings is
imported when an entry needs it.
"""

from __future__ import annotations

import asyncio
import importlib
import os
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from vedette.adapters.reasoners.adk.provider_errors import explain_failure
from vedette.config.models import ModelPlan
from vedette.domain.base.errors import BadFleet, Unavailable
from vedette.domain.model_turn import ModelAway

if TYPE_CHECKING:
    from google.adk.models.base_llm import BaseLlm

_OLLAMA = "http://127.0.0.1:11434"
MICROS = 1_000_000
# OpenAI's Responses take no less.
ONE_TOKEN = 16


class AskedModel:
    """A model that ADK asks, by an entry of [models]. It shows its key to nobody who prints it."""

    def __init__(self, plan: ModelPlan, read_key: Callable[[], str] | None = None) -> None:
        """Ask by an entry; `read_key` gives its key where the entry cannot tell where that is."""
        self._plan = plan
        self._read_key = read_key or plan.key
        self.name, self.fallback = plan.model.name, plan.model.fallback
        self.timeout_s = plan.model.timeout_us / MICROS
        self.key = ""
        self._llm: BaseLlm | None = None
        self._clients: list[Any] = []

    @property
    def llm(self) -> BaseLlm:
        """Return ADK's model. Raises BadFleet if its key or its packages are not there."""
        if self._llm is None:
            self._plan.require_extra()
            self.key = self._read_key()
            build = _BUILDERS[self._plan.provider]
            self._llm = build(self._plan, self.key, self.timeout_s, self._clients)
        return self._llm

    @property
    def route(self) -> dict[str, str]:
        """Return what the entry says of whom one speaks to. Nothing of it is secret."""
        plan = self._plan
        places = (plan.provider, plan.base_url, plan.project, plan.location)
        names = ("provider", "base_url", "project", "location")
        return {name: place for name, place in zip(names, places, strict=True) if place}

    def require(self) -> BaseLlm:
        """Return ADK's model for a turn. Raises ModelAway: its run waits until that is mended."""
        try:
            return self.llm
        except BadFleet as error:
            raise ModelAway(error.what, "key", mend=error.mend) from error
        except Unavailable as error:
            raise ModelAway(error.what, "connection", mend=error.mend) from error

    def forget_key(self) -> None:
        """Read the key again for the next call: the provider did not take this one."""
        self._llm = None

    async def close(self) -> None:
        """Let go of the connections; the next call makes new ones."""
        self._llm, clients = None, self._clients
        self._clients = []
        for client in clients:
            await (client.aclose() if hasattr(client, "aclose") else client.close())


async def ask_one_token(asked: AskedModel) -> str:
    """Ask a model to write one token, and return under which name it answered.

    Raises what its turns would: ModelError, BadFleet.
    """
    from google.adk.models.llm_request import LlmRequest
    from google.genai import types

    llm = asked.llm
    content = types.Content(role="user", parts=[types.Part(text="Say: a")])
    config = types.GenerateContentConfig(max_output_tokens=ONE_TOKEN)
    request = LlmRequest(model=llm.model, contents=[content], config=config)
    name = llm.model
    try:
        async with asyncio.timeout(asked.timeout_s):
            async for answer in llm.generate_content_async(request):
                name = answer.model_version or name
    except Exception as error:
        failure = explain_failure(error, asked.name, 1, key=asked.key)
        raise failure from None  # whose words may repeat the key
    return name


def _build_gemini(plan: ModelPlan, key: str, timeout_s: float, clients: list[Any]) -> BaseLlm:
    import httpx
    from google.adk.models.google_llm import Gemini
    from google.genai import Client, types

    # Its own: else it takes aiohttp where another package has brought that, and behaves otherwise.
    client_of_ours = httpx.AsyncClient(timeout=timeout_s)
    options = types.HttpOptions(
        base_url=plan.base_url,
        timeout=int(timeout_s * 1000),
        httpx_async_client=client_of_ours,
    )
    if plan.provider == "vertex":
        client = Client(
            vertexai=True, project=plan.project, location=plan.location, http_options=options
        )
    else:
        client = Client(vertexai=False, api_key=key, http_options=options)
    clients += [client_of_ours, client.aio]
    return Gemini(model=plan.served_name, client=client)


def _build_claude(plan: ModelPlan, key: str, timeout_s: float, clients: list[Any]) -> BaseLlm:
    from vedette.adapters.reasoners.adk.claude import build_claude

    made = build_claude(plan.served_name, key, plan.base_url, timeout_s)
    clients.append(made.client)
    return made


def _build_openai(plan: ModelPlan, key: str, timeout_s: float, clients: list[Any]) -> BaseLlm:
    from vedette.adapters.reasoners.adk.openai_responses import build_responses

    made = build_responses(plan.served_name, key, plan.base_url, timeout_s)
    clients.append(made.client)
    return made


def _build_litellm(plan: ModelPlan, key: str, timeout_s: float, clients: list[Any]) -> BaseLlm:
    # Else it fetches a price list at import, for ten seconds where there is no way to it.
    os.environ.setdefault("LITELLM_LOCAL_MODEL_COST_MAP", "True")
    from google.adk.models.lite_llm import LiteLlm

    # ADK imports it when it is first asked, which would hold up whoever else is asked meanwhile.
    _ = importlib.import_module("litellm").acompletion

    name, base_url = plan.served_name, plan.base_url
    if plan.provider == "ollama":
        name, base_url = f"ollama_chat/{name}", base_url or _OLLAMA
    given: dict[str, Any] = {"timeout": timeout_s, "num_retries": 0, "max_retries": 0}
    if base_url is not None:
        given["api_base"] = base_url
    if key:
        given["api_key"] = key
    return LiteLlm(model=name, **given)


_BUILDERS = {
    "gemini": _build_gemini,
    "vertex": _build_gemini,
    "anthropic": _build_claude,
    "openai": _build_openai,
    "ollama": _build_litellm,
    "litellm": _build_litellm,
}

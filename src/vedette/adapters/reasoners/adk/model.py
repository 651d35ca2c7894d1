"""ADK's models, made of the entries of [models]: with their key, their time, and no own retries.

Clients try again by themselves, unseen, so that limits and breakers would lie: here none does. One
client serves an entry for as long as its key is taken. What a provider's own package brings is
imported when an entry needs it.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from vedette.adapters.reasoners.adk.provider_errors import explain_failure
from vedette.config.models import ModelPlan
from vedette.domain.base.errors import BadFleet, Unavailable
from vedette.domain.model_turn import ModelAway

if TYPE_CHECKING:
    from google.adk.models.base_llm import BaseLlm

# LiteLLM fetches a price list when it is imported, for ten seconds where there is no way to it; and
# ADK imports it as well, for a model that an agent.py names.
os.environ.setdefault("LITELLM_LOCAL_MODEL_COST_MAP", "True")

# Where an entry names no server: the clients would ask the environment for one.
_SERVERS = {
    "gemini": "https://generativelanguage.googleapis.com/",
    "anthropic": "https://api.anthropic.com",
    "openai": "https://api.openai.com/v1",
    "ollama": "http://127.0.0.1:11434",
}
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
        self.context_tokens = plan.model.context_tokens
        self.timeout_s = plan.model.timeout_us / MICROS
        self.key = ""
        self._llm: BaseLlm | None = None
        self._is_key_doubted = False
        self._loading: asyncio.Task[BaseLlm] | None = None
        self._clients: list[Any] = []

    @property
    def llm(self) -> BaseLlm:
        """Return ADK's model; imports what it needs and reads its key, which may take seconds.

        Raises BadFleet if its key or its packages are not there, Unavailable if who keeps the key
        does not answer.
        """
        if self._llm is None or self._is_key_doubted:
            self._plan.import_extra()
            key = self._read_key()
            if self._llm is None or key != self.key:
                self._llm = _BUILDERS[self._plan.provider](
                    self._plan, key, self.timeout_s, self._clients
                )
                self.key = key
            self._is_key_doubted = False
        return self._llm

    @property
    def route(self) -> dict[str, str]:
        """Return what the entry says of whom one speaks to. Nothing of it is secret."""
        plan = self._plan
        places = (plan.provider, plan.base_url, plan.project, plan.location)
        names = ("provider", "base_url", "project", "location")
        return {name: place for name, place in zip(names, places, strict=True) if place}

    async def require(self) -> BaseLlm:
        """Return ADK's model for a turn. Raises ModelAway: its run waits until that is mended."""
        if self._llm is not None and not self._is_key_doubted:
            return self._llm
        if self._loading is None:
            # One for all that wait for it: who keeps the key may take seconds.
            self._loading = asyncio.create_task(asyncio.to_thread(lambda: self.llm))
        loading = self._loading
        try:
            return await asyncio.shield(loading)
        except BadFleet as error:
            raise ModelAway(error.what, "key", mend=error.mend) from error
        except Unavailable as error:
            raise ModelAway(error.what, "connection", mend=error.mend) from error
        finally:
            if loading.done():
                self._loading = None

    def forget_key(self) -> None:
        """Read the key again for the next call: the provider did not take this one."""
        self._is_key_doubted = True

    async def close(self) -> None:
        """Let go of the connections; the next call makes new ones."""
        self._llm, clients = None, self._clients
        self._clients = []
        for client in clients:
            await (client.aclose() if hasattr(client, "aclose") else client.close())


async def ask_one_token(asked: AskedModel) -> str:
    """Ask a model to write one token, and return under which name it answered.

    Raises what its turns would: ModelError.
    """
    from google.adk.models.llm_request import LlmRequest
    from google.genai import types

    llm = await asked.require()
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


def _server(plan: ModelPlan) -> str:
    """Return the address of an entry's server; "" for one that LiteLLM knows by its prefix."""
    if plan.base_url is not None or plan.provider != "vertex":
        return plan.base_url or _SERVERS.get(plan.provider, "")
    if plan.location == "global":
        return "https://aiplatform.googleapis.com/"
    if plan.location in ("us", "eu"):
        return f"https://aiplatform.{plan.location}.rep.googleapis.com/"
    return f"https://{plan.location}-aiplatform.googleapis.com/"


def _build_gemini(plan: ModelPlan, key: str, timeout_s: float, clients: list[Any]) -> BaseLlm:
    import httpx
    from google.adk.models.google_llm import Gemini
    from google.genai import Client, types

    # One for all of its clients, of which only ours is used: reading certificates takes long.
    certificates = httpx.create_ssl_context()
    # Its own: else it takes aiohttp where another package has brought that, and behaves otherwise.
    client_of_ours = httpx.AsyncClient(timeout=timeout_s, verify=certificates)
    options = types.HttpOptions(
        base_url=_server(plan),
        timeout=int(timeout_s * 1000),
        httpx_async_client=client_of_ours,
        client_args={"verify": certificates},
        async_client_args={"ssl": certificates},
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

    made = build_claude(plan.served_name, key, _server(plan), timeout_s)
    clients.append(made.client)
    return made


def _build_openai(plan: ModelPlan, key: str, timeout_s: float, clients: list[Any]) -> BaseLlm:
    from vedette.adapters.reasoners.adk.openai_responses import build_responses

    made = build_responses(plan.served_name, key, _server(plan), timeout_s)
    clients.append(made.client)
    return made


def _build_litellm(plan: ModelPlan, key: str, timeout_s: float, clients: list[Any]) -> BaseLlm:
    from vedette.adapters.reasoners.adk.litellm_model import build_litellm

    return build_litellm(plan, key, _server(plan), timeout_s)


_BUILDERS = {
    "gemini": _build_gemini,
    "vertex": _build_gemini,
    "anthropic": _build_claude,
    "openai": _build_openai,
    "ollama": _build_litellm,
    "litellm": _build_litellm,
}

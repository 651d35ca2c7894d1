"""Conversations with the test server of models, by real clients and by plain requests."""

from __future__ import annotations

import copy
import importlib
import importlib.util
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import httpx
import pytest
from msgspec import Struct

from vedette.domain.model import Provider
from vedette.testing.model_server import (
    FunctionCall,
    ModelServer,
    RedactedThinking,
    Request,
    Script,
    Thinking,
    Turn,
)

KEY = "test-key"
# By provider: the model of the server that speaks its wire, and what follows the server's address.
WIRES: Mapping[Provider, tuple[str, str]] = {
    "gemini": ("gemini-3-pro-preview", ""),
    "anthropic": ("claude-opus-5-5", ""),
    "openai": ("gpt-5.5", "/v1"),
    "ollama": ("qwen3", ""),
}
PARAMETERS = {"type": "object", "properties": {"folder": {"type": "string"}}}


def find_client(name: str, environ: Mapping[str, str] = os.environ) -> Any:
    """Return a provider's client library; without it skip the test, and fail it where CI is set."""
    if importlib.util.find_spec(name) is not None:
        return importlib.import_module(name)
    if environ.get("CI"):
        pytest.fail(f"{name} is missing. Mend: make setup", pytrace=False)
    pytest.skip(f"{name} is not installed; make setup does it")


def parallel(request: Request) -> Turn:
    """Think, call a tool twice at once; told what came of both, say so."""
    if request.results:
        return Turn((f"{len(request.results)} done.",))
    calls = (FunctionCall("mail_file", {"folder": "A"}), FunctionCall("mail_file", {"folder": "B"}))
    return Turn((Thinking("Two."), RedactedThinking(), *calls))


class Break(Struct, frozen=True):
    """One thing broken in an otherwise good request, and what the original says of it."""

    change: Callable[[Any], Any]
    status: int
    words: str
    model: str = ""
    headers: Mapping[str, str] | None = None


class Talk:
    """A conversation by plain requests: `good` is a second request that must be answered."""

    def __init__(self, server: ModelServer, headers: Mapping[str, str]) -> None:
        self.server = server
        self.headers = dict(headers)
        self._http = httpx.Client(trust_env=False, timeout=20)

    def post(
        self, path: str, body: Any, headers: Mapping[str, str] | None = None
    ) -> httpx.Response:
        """Post JSON, or bytes as they are."""
        sent = self.headers if headers is None else headers
        if isinstance(body, bytes):
            return self._http.post(self.server.url + path, content=body, headers=sent)
        return self._http.post(self.server.url + path, json=body, headers=sent)

    def close(self) -> None:
        """Close the connections."""
        self._http.close()


@contextmanager
def talk(script: Script, headers: Mapping[str, str]) -> Iterator[Talk]:
    """A server with a conversation while the context lasts."""
    with ModelServer(script, keys=(KEY, "other-key")) as server:
        made = Talk(server, headers)
        try:
            yield made
        finally:
            made.close()


def broken(good: Any, change: Callable[[Any], Any]) -> Any:
    """Return a copy of a request with a change; what the change returns stands for it, if that."""
    body = copy.deepcopy(good)
    made = change(body)
    return made if isinstance(made, bytes) else body

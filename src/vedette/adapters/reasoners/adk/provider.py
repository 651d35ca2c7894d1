"""Who runs the model that a text names: the variables that hold its credential, and where it is.

Whoever asks a model is given this and nothing else. What is not known is not opened: a provider
that is not listed here is asked where its `…_API_BASE` says, and nowhere if that says nothing.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

from msgspec import Struct

from vedette.config.models import ModelPlan
from vedette.config.reach import Reach
from vedette.domain.base.errors import BadFleet
from vedette.domain.base.urls import parse_url

_PORTS = {"http": 80, "https": 443}
_PROXIES = ("HTTPS_PROXY", "https_proxy", "HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy")
_TRUE = ("1", "true")


class ModelAccess(Struct, frozen=True):
    """What asking one model takes: its variables of the environment, and what they lead to."""

    environment: Mapping[str, str]
    reach: Reach


class _Provider(Struct, frozen=True):
    """A provider: variables that it is asked with, those that say where it is, and where else."""

    variables: tuple[str, ...]
    bases: tuple[str, ...]
    hosts: tuple[str, ...] = ()


_GEMINI = _Provider(
    ("GOOGLE_API_KEY", "GEMINI_API_KEY", "GOOGLE_GENAI_API_VERSION"),
    ("GOOGLE_GEMINI_BASE_URL", "GEMINI_API_BASE"),
    ("generativelanguage.googleapis.com",),
)
_VERTEX = _Provider(
    ("GOOGLE_API_KEY", "GOOGLE_GENAI_USE_VERTEXAI", "GOOGLE_GENAI_USE_ENTERPRISE",
     "GOOGLE_GENAI_API_VERSION", "GOOGLE_CLOUD_PROJECT", "GOOGLE_CLOUD_LOCATION",
     "GOOGLE_CLOUD_QUOTA_PROJECT", "GOOGLE_APPLICATION_CREDENTIALS", "GCE_METADATA_HOST",
     "VERTEXAI_PROJECT", "VERTEXAI_LOCATION"),
    # Google's client reads the second one where the variable alone switches it to Vertex AI.
    ("GOOGLE_VERTEX_BASE_URL", "GOOGLE_GEMINI_BASE_URL"),
    ("aiplatform.googleapis.com", "oauth2.googleapis.com", "sts.googleapis.com",
     "iamcredentials.googleapis.com"),
)  # fmt: skip
_ANTHROPIC = _Provider(
    ("ANTHROPIC_API_KEY", "ANTHROPIC_AUTH_TOKEN"),
    ("ANTHROPIC_BASE_URL", "ANTHROPIC_API_BASE"),
    ("api.anthropic.com",),
)
_OPENAI = _Provider(
    ("OPENAI_API_KEY", "OPENAI_ORG_ID", "OPENAI_ORGANIZATION", "OPENAI_PROJECT_ID"),
    ("OPENAI_BASE_URL", "OPENAI_API_BASE"),
    ("api.openai.com",),
)
_KNOWN = {"gemini": _GEMINI, "vertex_ai": _VERTEX, "anthropic": _ANTHROPIC, "openai": _OPENAI}
_OLLAMA = ("localhost", 11434)
# Of Google's account, which an entry of [models] names by nothing.
_ACCOUNT = ("GOOGLE_APPLICATION_CREDENTIALS", "GOOGLE_CLOUD_QUOTA_PROJECT", "GCE_METADATA_HOST")


def find_access(model: str, environ: Mapping[str, str], home: Path) -> ModelAccess:
    """Return what asking a model takes, out of an environment; `home` may hold Google's file.

    Raises BadFleet if it is not known where the model is asked.
    """
    provider = _find_provider(model, environ)
    names = (*provider.variables, *provider.bases, *_PROXIES, "NO_PROXY", "no_proxy")
    environment = {name: environ[name] for name in names if name in environ}
    addresses = [*_find_bases(provider, environment)]
    if not any(name in environment for name in provider.bases):
        addresses += [(host, 443) for host in provider.hosts]
        if _provider_name(model) in ("ollama", "ollama_chat"):
            addresses.append(_OLLAMA)
    if not addresses:
        what = f"it is not known where the model {model[:100]!r} is asked"
        raise BadFleet(what, mend=f"set {provider.bases[0]} to the URL of its server")
    files: tuple[str, ...] = ()
    if provider is _VERTEX:
        files, more = _find_account(_find_location(model, environment), environment, home)
        addresses += more
    return _build_access(environment, files, addresses)


def find_entry_access(plan: ModelPlan, environ: Mapping[str, str], home: Path) -> ModelAccess:
    """Return what asking an entry of [models] takes beside its key, which is told apart.

    Of the environment that is what the entry cannot say: proxies, Google's account, and where
    LiteLLM asks. Raises BadFleet if it is not known where the model is asked.
    """
    names = [*_PROXIES, "NO_PROXY", "no_proxy"]
    files: tuple[str, ...] = ()
    addresses = [] if plan.base_url is None else _address_of(plan.base_url)
    if plan.provider == "vertex":
        names += _ACCOUNT
        environment = {name: environ[name] for name in names if name in environ}
        files, more = _find_account(plan.location or "global", environment, home)
        return _build_access(environment, files, [*addresses, *more])
    if plan.provider == "litellm":
        return _find_litellm_access(plan, names, addresses, environ, home)
    environment = {name: environ[name] for name in names if name in environ}
    if not addresses and plan.provider == "ollama":
        addresses = [("127.0.0.1", _OLLAMA[1])]
    elif not addresses:
        addresses = [(host, 443) for host in _KNOWN[plan.provider].hosts]
    return _build_access(environment, files, addresses)


def _find_litellm_access(
    plan: ModelPlan,
    names: list[str],
    addresses: list[tuple[str, int]],
    environ: Mapping[str, str],
    home: Path,
) -> ModelAccess:
    """Return what an entry takes that LiteLLM asks by the name of a provider of its own."""
    provider = _find_provider(plan.served_name, environ)
    has_key = plan.key_env or plan.key_file or plan.key_secret
    if not addresses:
        try:
            found = find_access(plan.served_name, environ, home)
        except BadFleet as error:
            raise BadFleet(error.what, where=plan.where, mend="add base_url to it") from error
        keys = {name for name in provider.variables if name.endswith(("_KEY", "_TOKEN"))}
        unwanted = keys if has_key else frozenset()
        environment = {k: v for k, v in found.environment.items() if k not in unwanted}
        return ModelAccess(environment, found.reach)
    names = names if has_key else [*names, *provider.variables]
    environment = {name: environ[name] for name in names if name in environ}
    return _build_access(environment, (), addresses)


def merge_access(parts: Iterable[ModelAccess]) -> ModelAccess:
    """Return what asking any of several models takes, out of one environment."""
    environment: dict[str, str] = {}
    files: dict[str, None] = {}
    addresses: dict[tuple[str, int], None] = {}
    for one in parts:
        environment |= one.environment
        files |= dict.fromkeys(one.reach.files)
        addresses |= dict.fromkeys(one.reach.addresses)
    return ModelAccess(environment, Reach(files=tuple(files), addresses=tuple(addresses)))


def _build_access(
    environment: Mapping[str, str], files: tuple[str, ...], addresses: Iterable[tuple[str, int]]
) -> ModelAccess:
    found = [*addresses]
    for name in _PROXIES:
        found += _address_of(environment.get(name, ""))
    return ModelAccess(environment, Reach(files=files, addresses=tuple(dict.fromkeys(found))))


def _find_account(
    location: str, environment: Mapping[str, str], home: Path
) -> tuple[tuple[str, ...], list[tuple[str, int]]]:
    """Return the file of Google's account, if there is one, and where Vertex AI is asked by it."""
    near = (f"{location}-aiplatform.googleapis.com", f"aiplatform.{location}.rep.googleapis.com")
    addresses = [(host, 443) for host in (*near, *_VERTEX.hosts)]
    named = environment.get("GOOGLE_APPLICATION_CREDENTIALS")
    usual = home / ".config" / "gcloud" / "application_default_credentials.json"
    if named or usual.is_file():
        return (str(Path(named or usual).resolve()),), addresses
    # The machine's own account, as its metadata server gives out tokens of it.
    addresses += [("metadata.google.internal", 80), ("169.254.169.254", 80)]
    metadata = environment.get("GCE_METADATA_HOST", "")
    return (), [*addresses, *([_parse_host(metadata)] if metadata else [])]


def _find_provider(model: str, environ: Mapping[str, str]) -> _Provider:
    name = _provider_name(model)
    if name == "gemini" and any(
        environ.get(switch, "").lower() in _TRUE
        for switch in ("GOOGLE_GENAI_USE_VERTEXAI", "GOOGLE_GENAI_USE_ENTERPRISE")
    ):
        return _VERTEX
    if name == "claude":
        # By its own key, or as a model of Vertex AI.
        return _ANTHROPIC if "ANTHROPIC_API_KEY" in environ else _VERTEX
    if name in _KNOWN:
        return _KNOWN[name]
    prefix = "OLLAMA" if name == "ollama_chat" else re.sub(r"\W", "_", name).upper()
    return _Provider((f"{prefix}_API_KEY",), (f"{prefix}_API_BASE",))


def _provider_name(model: str) -> str:
    """Return the provider that a model's text names, by the forms that ADK reads."""
    if model.startswith("projects/"):
        return "vertex_ai"
    if re.match(r"claude[-:]", model):
        return "claude"
    if re.match(r"gpt-|o\d+-", model):
        return "openai"
    named = re.match(r"(\w+)(?:llm)?[/:]", model, re.ASCII)
    return named[1].lower() if named else "gemini"


def _find_location(model: str, environment: Mapping[str, str]) -> str:
    named = re.match(r"projects/[^/]+/locations/([a-z0-9-]+)/", model)
    if named:
        return named[1]
    return environment.get("GOOGLE_CLOUD_LOCATION") or environment.get(
        "VERTEXAI_LOCATION", "global"
    )


def _find_bases(provider: _Provider, environment: Mapping[str, str]) -> Iterator[tuple[str, int]]:
    for name in provider.bases:
        if name in environment:
            found = _address_of(environment[name])
            if not found:
                raise BadFleet("is no URL of a server", where=name, mend="write https://HOST")
            yield from found


def _address_of(url: str) -> list[tuple[str, int]]:
    parts = parse_url(url)
    return [] if parts is None else [(parts.hostname or "", parts.port or _PORTS[parts.scheme])]


def _parse_host(text: str) -> tuple[str, int]:
    host, _, port = text.partition(":")
    return host, int(port) if port.isdigit() else 80

"""[models.NAME] of vedette.toml: the language models that agents may ask, and how often.

`model: NAME` in an agent.yaml names one. No key stands here: a table names where it is.
"""

from __future__ import annotations

import importlib
import importlib.util
import re
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

from msgspec import Struct

from vedette.config.field import Field
from vedette.config.problem import Problem, did_you_mean
from vedette.config.secret_reference import VERSION_PATTERN, read_secret
from vedette.config.settings_table import Duration, SettingsTable, Whole
from vedette.config.yaml import Document
from vedette.domain.base.clock import duration_us
from vedette.domain.base.errors import BadFleet
from vedette.domain.base.urls import carries_secrets, is_loopback, parse_url
from vedette.domain.model import Model, Provider
from vedette.domain.ports.plugin import TableProblem

_NAME = re.compile(r"[a-z][a-z0-9_-]{0,62}\Z")
# Of the providers that need more than the engine itself: the extra, and its packages.
EXTRAS: Mapping[str, tuple[str, tuple[str, ...]]] = {
    "anthropic": ("anthropic", ("anthropic",)),
    "openai": ("openai", ("openai",)),
    "ollama": ("litellm", ("litellm", "mcp")),
    "litellm": ("litellm", ("litellm", "mcp")),
}
_KEY_VARIABLES: Mapping[str, str] = {
    "gemini": "GEMINI_API_KEY",
    "anthropic": "ANTHROPIC_API_KEY",
    "openai": "OPENAI_API_KEY",
}


class ModelFile(SettingsTable):
    """A language model: where it is asked, with which key, and how often."""

    provider: Provider = Field(
        description="whose interface it is; ollama and litellm go through LiteLLM"
    )
    model: str = Field(
        min_length=1, description="its name there, for example gemini-3-flash; litellm: with prefix"
    )
    key_env: str | None = Field(default=None, description="the environment variable with the key")
    key_file: str | None = Field(default=None, description="the file with the key")
    key_secret: str | None = Field(
        default=None, pattern=VERSION_PATTERN, description="the key in Secret Manager"
    )
    base_url: str | None = Field(
        default=None, description="another server of the same interface: https, or this machine"
    )
    project: str | None = Field(default=None, description="of vertex: the Google Cloud project")
    location: str | None = Field(default=None, description="of vertex: the region, or global")
    price: str | None = Field(
        default=None,
        description="an entry of `prices` in policies/budgets/data.yaml; without one, what the "
        "agent's budget names",
    )
    calls_in_flight: Whole = Field(default=8, ge=1, le=512, description="the most at once")
    calls_per_minute: Whole | None = Field(
        default=None, ge=1, description="the most that begin in any minute"
    )
    tokens_per_minute: Whole | None = Field(
        default=None, ge=1, description="the most, read and written, of any minute"
    )
    context_tokens: Whole | None = Field(
        default=None, ge=4096,
        description="what it reads at most; a task's context ends with a hand-off before",
    )  # fmt: skip
    timeout: Duration = Field(default="60s", description="how long an answer may take in all")
    fallback: str | None = Field(
        default=None, description="the entry that is asked while this one's breaker is open"
    )


class ModelPlan(Struct, frozen=True):
    """One entry of [models], checked: what the engine has of it, and how its provider is asked."""

    model: Model
    base_url: str | None = None
    project: str | None = None
    location: str | None = None
    key_env: str | None = None
    key_file: str | None = None
    key_secret: str | None = None

    @property
    def provider(self) -> str:
        """Return whose interface it is."""
        return self.model.provider

    @property
    def served_name(self) -> str:
        """Return the model's name at its provider."""
        return self.model.served_name

    @property
    def where(self) -> str:
        """Return what errors call the entry."""
        return f"vedette.toml: models.{self.model.name}"

    def key(self) -> str:
        """Return the key; "" if it needs none. Raises BadFleet if it is not there."""
        table = {"key_env": self.key_env, "key_file": self.key_file, "key_secret": self.key_secret}
        found = read_secret(table, "key", where=self.where)
        return found or ""

    @property
    def missing_extra(self) -> str | None:
        """Return the extra of this package that its provider needs, if it is not installed."""
        extra, packages = EXTRAS.get(self.provider, ("", ()))
        return extra if None in map(importlib.util.find_spec, packages) else None

    def import_extra(self) -> None:
        """Import what its provider needs. Raises BadFleet, with the command that mends it."""
        extra, packages = EXTRAS.get(self.provider, ("", ()))
        try:
            for package in packages:
                importlib.import_module(package)
        except ImportError as error:
            what = f"{self.provider} needs packages that are not installed, or cannot be imported"
            raise BadFleet(what, where=self.where, mend=install_extra(extra)) from error


def install_extra(extra: str) -> str:
    """Return the command that installs an extra."""
    return f'pip install "vedette[{extra}]"'


def build_models(
    tables: Mapping[str, ModelFile], path: Callable[[str], Path]
) -> dict[str, ModelPlan]:
    """Return the entries of [models], of tables that were checked."""
    return {
        name: ModelPlan(
            Model(
                name, one.calls_in_flight, one.calls_per_minute, one.tokens_per_minute,
                duration_us(one.timeout), one.fallback, one.price, one.provider, one.model,
                one.context_tokens,
            ),
            one.base_url, one.project, one.location,
            one.key_env, str(path(one.key_file)) if one.key_file else None, one.key_secret,
        )
        for name, one in tables.items()
    }  # fmt: skip


def fallback_chain(name: str | None, models: Mapping[str, ModelPlan]) -> Iterator[str]:
    """Yield the entries that an agent of this `model` may ask, the first choice first."""
    while name is not None:
        yield name
        name = models[name].model.fallback


def model_problems(tables: Mapping[str, ModelFile], document: Document) -> Iterator[Problem]:
    """Yield what is wrong with [models.NAME] of vedette.toml."""
    for name, table in tables.items():
        for inside, what, mend in _table_problems(name, table, tables):
            yield document.problem(("models", name, *inside), what, mend)


def _table_problems(
    name: str, table: ModelFile, tables: Mapping[str, ModelFile]
) -> Iterator[TableProblem]:
    if not _NAME.match(name):
        yield (), f"{name!r} cannot name a model", "use a-z, 0-9, _ and -"
    given = [
        key for key in ("key_env", "key_file", "key_secret") if getattr(table, key) is not None
    ]
    variable = _KEY_VARIABLES.get(table.provider)
    if len(given) > 1:
        yield (given[1],), f"{given[0]} and {given[1]} are both given", "leave one"
    elif not given and variable is not None:
        yield (), f"{table.provider} needs a key", f'add key_env = "{variable}"'
    elif not given and table.provider == "litellm" and not _is_of_this_machine(table.base_url):
        # Else LiteLLM takes one of the environment, and nobody here knows what not to tell.
        yield (), "litellm needs a key, or a server of this machine", "add key_env, or base_url"
    elif given and table.provider in ("vertex", "ollama"):
        what = f"{table.provider} takes no key"
        yield (given[0],), what, "remove it; vertex takes the credentials of Google Cloud"
    for key in ("project", "location"):
        if table.provider == "vertex" and getattr(table, key) is None:
            yield (), f"vertex needs the {key}", f"add {key} ="
        elif table.provider != "vertex" and getattr(table, key) is not None:
            yield (
                (key,),
                f"{table.provider} has no {key}",
                'remove it, or write provider = "vertex"',
            )
    if table.base_url is not None:
        parts = parse_url(table.base_url)
        if parts is None or parts.username or parts.password:
            yield ("base_url",), "is no address of a server", "write https://host, without a key"
        elif not carries_secrets(parts):
            what = "would send prompts and key in the clear"
            yield ("base_url",), what, "write https://, or an address of this machine"
    if table.fallback is not None:
        yield from _fallback_problems(name, table.fallback, tables)


def _is_of_this_machine(url: str | None) -> bool:
    parts = parse_url(url or "")
    return parts is not None and is_loopback(parts.hostname or "")


def _fallback_problems(
    name: str, fallback: str, tables: Mapping[str, ModelFile]
) -> Iterator[TableProblem]:
    if fallback not in tables:
        what = f"there is no [models.{fallback}]"
        yield ("fallback",), what, did_you_mean(fallback, sorted(tables))
        return
    way, following = [name], tables[name].fallback
    while following is not None and following in tables:
        if following in way:
            loop = " → ".join([*way[way.index(following) :], following])
            if following == name:
                yield ("fallback",), f"its fallbacks go in a circle: {loop}", "leave one out"
            return
        way.append(following)
        following = tables[following].fallback

"""The shape of vedette.toml, and where in it each value stands."""

from __future__ import annotations

import re
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field
from pydantic_settings import BaseSettings, PydanticBaseSettingsSource, SettingsConfigDict

from vedette.clock import duration_us
from vedette.load.yaml_file import KeyPath

ENV = "VEDETTE_"
_NAME = r"^[a-z][a-z0-9_-]{0,62}$"


def _no_flag(value: Any) -> Any:
    if isinstance(value, bool):
        raise ValueError(f"must be a number, found {str(value).lower()}")
    return value


def _duration(text: str) -> str:
    try:
        length = duration_us(text)
    except ValueError as error:
        raise ValueError(f"{text!r} is not a duration | write for example 500ms or 30s") from error
    if length <= 0:
        raise ValueError(f"{text!r} is no time at all | write for example 500ms or 30s")
    return text


def _address(text: str) -> str:
    host, _, port = text.rpartition(":")
    if text and not (host and port.isdigit() and int(port) < 65536):
        raise ValueError(f"{text!r} is no address | write host:port, for example 127.0.0.1:8088")
    return text


Whole = Annotated[int, BeforeValidator(_no_flag)]
Number = Annotated[float, BeforeValidator(_no_flag)]
Duration = Annotated[str, AfterValidator(_duration)]


class Part(BaseModel):
    """Base of all tables. Not strict, since the environment knows only text."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class ContentFile(Part):
    """Where the fleet as code lies."""

    agents: str = "agents"
    policies: str = "policies"
    memory: str = "memory"


class LimitsFile(Part):
    """What the fleet takes in."""

    max_event_bytes: Whole = Field(default=262_144, ge=1024, le=16_777_216)
    max_hops: Whole = Field(default=8, ge=0, le=64)


class SenderFile(Part):
    """Someone who sends events over HTTP with a bearer token."""

    name: str = Field(description="names the sender", pattern=_NAME)
    token_env: str | None = Field(
        default=None, description="the environment variable with its token"
    )
    token_file: str | None = Field(default=None, description="the file with its token")
    prefix: str | None = Field(default=None, description="what all its sources begin with")


class ServeFile(Part):
    """The local HTTP door: metrics, health, ingest."""

    http: Annotated[str, AfterValidator(_address)] = "127.0.0.1:0"
    fallback: bool = False
    anonymous: bool = False
    senders: list[SenderFile] = Field(default_factory=list)


class CsvFile(Part):
    """Metric series out of CSV files."""

    kind: Literal["csv"]
    name: str = Field(description="names the source", pattern=_NAME)
    path: str = Field(description="files, for example samples/metrics/*.csv", min_length=1)
    rate: Number = Field(
        default=0.0, ge=0, description="events per second; 0 is as fast as possible"
    )


class JsonlFile(Part):
    """CloudEvents out of files with one JSON object per line; with `type`, their bare data."""

    kind: Literal["jsonl"]
    name: str = Field(description="names the source", pattern=_NAME)
    path: str = Field(description="files, for example samples/events/*.jsonl", min_length=1)
    rate: Number = Field(
        default=0.0, ge=0, description="events per second; 0 is as fast as possible"
    )
    type: str | None = Field(default=None, description="the type of events given as bare data")


class MaildirFile(Part):
    """Mails out of a Maildir."""

    kind: Literal["maildir"]
    name: str = Field(description="names the source", pattern=_NAME)
    path: str = Field(description="the Maildir, for example @state/mailbox", min_length=1)
    copy_from: str | None = Field(
        default=None, description="what the Maildir is filled from if absent"
    )
    every: Duration = Field(default="1s", description="how often it is looked into")


class HostFile(Part):
    """Live metrics of the machine the fleet runs on."""

    kind: Literal["host"]
    name: str = Field(description="names the source", pattern=_NAME)
    every: Duration = Field(default="1s", description="how often metrics are read")


SourceFile = Annotated[CsvFile | JsonlFile | MaildirFile | HostFile, Field(discriminator="kind")]


class SettingsFile(BaseSettings):
    """vedette.toml. `VEDETTE_STATE`, `VEDETTE_LIMITS__MAX_HOPS` and so on have the last word."""

    model_config = SettingsConfigDict(
        env_prefix=ENV,
        env_nested_delimiter="__",
        env_ignore_empty=True,
        extra="forbid",
        frozen=True,
    )

    fleet: str = Field(description="names the fleet; part of every identity", pattern=_NAME)
    state: str = Field(
        default=".vedette", min_length=1, description="a folder for all the program writes"
    )
    content: ContentFile = Field(default_factory=ContentFile)
    limits: LimitsFile = Field(default_factory=LimitsFile)
    serve: ServeFile = Field(default_factory=ServeFile)
    targets: dict[str, dict[str, Any]] = Field(default_factory=dict)
    sources: list[SourceFile] = Field(default_factory=list)

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """The environment first, then the file. No .env file, which nobody would review."""
        return env_settings, init_settings


_TABLE = re.compile(r"\[(\[?)\s*([^\[\]]+?)\s*\]")
_KEY = re.compile(r"""([A-Za-z0-9_."'-]+)\s*=""")


def toml_lines(text: str) -> dict[KeyPath, int]:
    """Return the line of each table and key of a TOML text that has been parsed without error."""
    lines: dict[KeyPath, int] = {(): 1}
    counts: dict[KeyPath, int] = {}
    table: KeyPath = ()
    for number, line in enumerate(text.splitlines(), 1):
        stripped = line.strip()
        if header := _TABLE.match(stripped):
            table = _inside(_words(header[2]), counts)
            if header[1]:
                counts[table] = counts.get(table, -1) + 1
                lines.setdefault(table, number)
                table = (*table, counts[table])
            lines.setdefault(table, number)
        elif key := _KEY.match(stripped):
            lines.setdefault((*table, *_words(key[1])), number)
    return lines


def _words(dotted: str) -> KeyPath:
    return tuple(part.strip(" \"'") for part in dotted.split("."))


def _inside(path: KeyPath, counts: dict[KeyPath, int]) -> KeyPath:
    """Follow a table's path through the arrays of tables above it, to their last element."""
    found: KeyPath = ()
    for index, part in enumerate(path):
        found = (*found, part)
        if index < len(path) - 1 and found in counts:
            found = (*found, counts[found])
    return found

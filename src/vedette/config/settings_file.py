"""The shape of vedette.toml, and where in it each value stands."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Annotated, Any, Literal

from vedette.config.deployment_tables import (
    AuditFile,
    GatewayFile,
    PeopleFile,
    PolicyFile,
    TelemetryFile,
    TokensFile,
)
from vedette.config.displays import DisplayFile
from vedette.config.field import AfterValidator, Field, Table, Tagged, json_schema
from vedette.config.kinds import Errors, Kind, ListOf, MapOf
from vedette.config.models import ModelFile
from vedette.config.notify import NotifyFile
from vedette.config.plugins import PluginTables
from vedette.config.secret_reference import VERSION_PATTERN
from vedette.config.settings_table import NAME, Address, Duration, SettingsTable, Whole
from vedette.config.yaml import KeyPath
from vedette.domain.ports.plugin import SOURCES
from vedette.domain.readers import check_reader

ENV_PREFIX = "VEDETTE_"


class ContentFile(SettingsTable):
    """Where the fleet as code lies."""

    agents: str = "agents"
    policies: str = "policies"
    memory: str = "memory"


class LimitsFile(SettingsTable):
    """What the fleet takes in."""

    max_event_bytes: Whole = Field(default=262_144, ge=1024, le=16_777_216)
    max_hops: Whole = Field(default=8, ge=0, le=64)
    stuck: Duration = Field(
        default="60s", description="how long what could go on may stand still; then not ready"
    )


class IsolationFile(SettingsTable):
    """Where agents' code runs: in processes of its own, or in the engine's."""

    workers: Literal["processes", "none"] = "processes"
    idle: Duration = Field(default="5m", description="how long an idle worker is kept")
    box: Literal["kernel", "none"] = Field(
        default="kernel", description="what closes workers in: Landlock and seccomp, or nothing"
    )
    require: bool = Field(
        default=False, description="refuse to run any agent's code outside a whole box"
    )


class SenderFile(SettingsTable):
    """Someone who sends events over HTTP with a bearer token."""

    name: str = Field(description="names the sender", pattern=NAME)
    token_env: str | None = Field(
        default=None, description="the environment variable with its token"
    )
    token_file: str | None = Field(default=None, description="the file with its token")
    token_secret: str | None = Field(
        default=None, pattern=VERSION_PATTERN, description="its token in Secret Manager"
    )
    prefix: str | None = Field(default=None, description="what all its sources begin with")
    vouches: Literal["envelope", "event", "none"] = Field(
        default="envelope",
        description="what of an event the sender is trusted for; event: source, id and type, where "
        "strangers choose subject or time",
    )


class ServedAgentFile(SettingsTable):
    """An agent whose reasoning happens at its client, which calls its tools over HTTP or MCP."""

    agent: str = Field(description="a folder of agents/ with `reasoner: client`", pattern=NAME)
    token_env: str | None = Field(
        default=None, description="the environment variable with its token"
    )
    token_file: str | None = Field(default=None, description="the file with its token")
    token_secret: str | None = Field(
        default=None, pattern=VERSION_PATTERN,
        description="its token in Secret Manager; without any token its JWT-SVID alone is taken",
    )  # fmt: skip


class ServeFile(SettingsTable):
    """The local HTTP server: metrics, health, ingest, agents' calls."""

    http: Address = "127.0.0.1:0"
    fallback: bool = False
    anonymous: bool = False
    hosts: list[str] = Field(
        default_factory=list,
        description="names, beside addresses and localhost, that may be asked without a token",
    )
    senders: list[SenderFile] = Field(default_factory=list)
    agents: list[ServedAgentFile] = Field(default_factory=list)
    call_window: Duration = Field(
        default="10m",
        description="how long a call without a key is the same call as another with its arguments",
    )
    calls_per_minute: int = Field(
        default=300, ge=1, description="new calls of one agent from outside; more are answered 429"
    )
    open_calls: int = Field(
        default=100, ge=1,
        description="calls of one agent from outside that wait, for people too; then it is 429",
    )  # fmt: skip


# Each table is checked as the plugin of its `kind` says (`vedette.domain.ports.plugin`).
SourceFile = Annotated[Any, Tagged("kind", PluginTables(SOURCES))]


class StoreFile(SettingsTable):
    """Where the fleet's state is kept: a file of the state folder, or a database several share."""

    kind: Literal["sqlite", "postgresql"] = "sqlite"
    url_env: str | None = Field(
        default=None, description="the environment variable with the database's URL"
    )
    url_file: str | None = Field(default=None, description="the file with the database's URL")
    url_secret: str | None = Field(
        default=None, pattern=VERSION_PATTERN, description="the database's URL in Secret Manager"
    )
    lease: Duration = Field(
        default="5s", description="how long a worker that is not heard of keeps its keys"
    )
    survives: Literal["power-loss", "kill"] = Field(
        default="power-loss",
        description="what an answered commit survives; with `kill` a power cut may take the last",
    )


class RetentionFile(SettingsTable):
    """How long the record is kept; `vedette ledger archive` sees to it."""

    bodies: Duration | None = Field(
        default=None, description="how long content is kept, for example 90d"
    )
    entries: Duration | None = Field(
        default=None, description="how long entries stay in the store, for example 400d"
    )


Reader = Annotated[str, AfterValidator(check_reader)]


class SecrecyFile(SettingsTable):
    """Who may be told what events say. Of several tables that match an event, those in all."""

    source: str = Field(default="*", description="pattern of the event's source", min_length=1)
    type: str = Field(default="*", description="pattern of the event's type", min_length=1)
    permitted_readers: list[Reader] = Field(
        description="addresses, @domains, resource:TYPE, target:NAME; [] is nobody"
    )


class SettingsFile(SettingsTable):
    """vedette.toml. `VEDETTE_STATE`, `VEDETTE_LIMITS__MAX_HOPS` and so on have the last word."""

    fleet: str = Field(description="names the fleet; part of every identity", pattern=NAME)
    state: str = Field(
        default=".vedette", min_length=1, description="a folder for all the program writes"
    )
    content: ContentFile = Field(default_factory=ContentFile)
    limits: LimitsFile = Field(default_factory=LimitsFile)
    isolation: IsolationFile = Field(default_factory=IsolationFile)
    store: StoreFile = Field(default_factory=StoreFile)
    retention: RetentionFile = Field(default_factory=RetentionFile)
    policy: PolicyFile = Field(default_factory=PolicyFile)
    tokens: TokensFile = Field(default_factory=TokensFile)
    people: PeopleFile = Field(default_factory=PeopleFile)
    gateway: GatewayFile = Field(default_factory=GatewayFile)
    telemetry: TelemetryFile = Field(default_factory=TelemetryFile)
    audit: AuditFile = Field(default_factory=AuditFile)
    notify: NotifyFile = Field(default_factory=NotifyFile)
    serve: ServeFile = Field(default_factory=ServeFile)
    models: dict[str, ModelFile] = Field(default_factory=dict)
    targets: dict[str, dict[str, Any]] = Field(default_factory=dict)
    sources: list[SourceFile] = Field(default_factory=list)
    displays: list[DisplayFile] = Field(default_factory=list)
    secrecy: list[SecrecyFile] = Field(default_factory=list)


def settings_schema() -> dict[str, Any]:
    """Return the JSON Schema (2020-12) of vedette.toml, for editors."""
    schema = json_schema(SettingsFile)
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **schema}


def parse_settings(
    value: Mapping[str, Any], environ: Mapping[str, str]
) -> tuple[SettingsFile | None, Errors]:
    """Return what vedette.toml says with what the environment says instead, or every error.

    No .env file is read, which nobody would review. Raises ValueError, with the variable's name,
    for one that must hold JSON and does not.
    """
    errors: Errors = []
    return SettingsFile.check(_merge(value, _environment(environ)), (), errors), errors


def _environment(environ: Mapping[str, str]) -> dict[str, Any]:
    """Return the settings that stand in the environment, as far as the file knows their table.

    A table or a list is given as JSON, `__` stands between a table and its key; what is empty
    counts as not there.
    """
    found: dict[str, Any] = {}
    for variable, text in sorted(environ.items()):
        name = variable.lower()
        path = name.removeprefix(ENV_PREFIX.lower()).split("__")
        if (
            not text
            or not name.startswith(ENV_PREFIX.lower())
            or path[0] not in SettingsFile.fields()
        ):
            continue
        value = _read_variable(variable, path, text)
        for part in reversed(path):
            value = {part: value}
        found = _merge(found, value)
    return found


def _read_variable(variable: str, path: list[str], text: str) -> Any:
    kind: Kind | None = Table(SettingsFile)
    for part in path:
        field = kind.shape.fields().get(part) if isinstance(kind, Table) else None
        kind = None if field is None else field.kind
    free = path[0] == "targets" and len(path) > 1
    if not free and not isinstance(kind, Table | ListOf | MapOf):
        return text
    try:
        return json.loads(text)
    except ValueError as error:
        if free:
            return text
        raise ValueError(f"{variable} must hold JSON") from error


def _merge(under: Mapping[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    """Return both together, table by table; of two values `over` has the last word."""
    found = dict(under)
    for key, value in over.items():
        known = found.get(key)
        both = isinstance(known, Mapping) and isinstance(value, Mapping)
        found[key] = _merge(known, value) if both else value  # type: ignore[arg-type]
    return found


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
            table = _resolve_arrays(_split_key(header[2]), counts)
            if header[1]:
                counts[table] = counts.get(table, -1) + 1
                lines.setdefault(table, number)
                table = (*table, counts[table])
            lines.setdefault(table, number)
        elif key := _KEY.match(stripped):
            lines.setdefault((*table, *_split_key(key[1])), number)
    return lines


def _split_key(dotted: str) -> KeyPath:
    return tuple(part.strip(" \"'") for part in dotted.split("."))


def _resolve_arrays(path: KeyPath, counts: dict[KeyPath, int]) -> KeyPath:
    """Follow a table's path through the arrays of tables above it, to their last element."""
    found: KeyPath = ()
    for index, part in enumerate(path):
        found = (*found, part)
        if index < len(path) - 1 and found in counts:
            found = (*found, counts[found])
    return found

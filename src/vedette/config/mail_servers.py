"""Mail servers in vedette.toml: the source `imap`, the targets `imap` and `smtp`."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any, ClassVar, Literal

from msgspec import Struct, field

from vedette.config.field import Field
from vedette.config.problem import Problem
from vedette.config.secret_reference import VERSION_PATTERN
from vedette.config.settings_table import NAME, Duration, SettingsTable, Whole
from vedette.config.yaml import Document, KeyPath
from vedette.domain.base.clock import duration_us
from vedette.domain.ports.plugin import TableContext, TableProblem

_LOOPBACK = re.compile(r"localhost|127\.[0-9.]+|::1")
_TLS = ("implicit", "starttls", "none")
_SECRET = ("password_env", "password_file", "password_secret")
# What a target that sends takes over from the one it names as its relay.
_RELAY_KEYS = ("host", "port", "tls", "user", *_SECRET, "ca_file")
_TEXTS = ("host", "user", "ca_file", "address", "drafts", "sent", "sending", "smtp", *_SECRET)


class ImapFile(SettingsTable):
    """Mails of a mailbox on an IMAP server."""

    kind: Literal["imap"]
    name: str = Field(description="names the source", pattern=NAME)
    host: str = Field(description="the server", min_length=1)
    port: Whole | None = Field(
        default=None, ge=1, le=65535, description="993 for implicit TLS, else 143"
    )
    tls: Literal["implicit", "starttls", "none"] = Field(
        default="implicit", description="none reaches this machine alone"
    )
    user: str = Field(description="who logs in", min_length=1)
    password_env: str | None = Field(
        default=None, description="the environment variable with the password"
    )
    password_file: str | None = Field(default=None, description="the file with the password")
    password_secret: str | None = Field(
        default=None, pattern=VERSION_PATTERN, description="the password in Secret Manager"
    )
    ca_file: str | None = Field(
        default=None, description="certificates to trust instead of the system's"
    )
    folders: list[str] = Field(
        default_factory=lambda: ["INBOX"], description="the folders that are read"
    )
    every: Duration = Field(default="30s", description="how often it is looked into")
    idle: bool = Field(
        default=True, description="the server says when a mail comes (IDLE), if it is one folder"
    )
    newest: Whole = Field(
        default=1000, ge=0, le=1_000_000,
        description="how many of the mails that are there it begins with",
    )  # fmt: skip
    since: Duration | None = Field(
        default=None, description="it begins with mails so old instead, for example 7d"
    )


class ImapPlan(Struct, frozen=True):
    """Watches folders of a mailbox; fields as in `ImapFile`.

    `server` is what a session is opened with; its password is read when it is needed.
    """

    kind: ClassVar[str] = "imap"
    name: str
    server: dict[str, object] = field(default_factory=dict)
    folders: tuple[str, ...] = ("INBOX",)
    every_us: int = 30_000_000
    idle: bool = True
    newest: int = 1000
    since_us: int | None = None


def imap_plan(table: ImapFile, context: TableContext) -> ImapPlan:
    """Return the plan of a table."""
    server: dict[str, object] = {}
    for name in _RELAY_KEYS:
        value = getattr(table, name)
        if value is not None:
            server[name] = str(context.path(value)) if name.endswith("_file") else value
    since = None if table.since is None else duration_us(table.since)
    return ImapPlan(
        table.name, server, tuple(dict.fromkeys(table.folders)), duration_us(table.every),
        table.idle, table.newest, since,
    )  # fmt: skip


def imap_problems(source: ImapFile) -> list[TableProblem]:
    """Return what is wrong with a source's table beyond its shape."""
    table = {
        name: getattr(source, name) for name in _RELAY_KEYS if getattr(source, name) is not None
    }
    found: list[TableProblem] = [
        ((key,) if key else (), what, mend) for key, what, mend in _server_problems(table)
    ]
    if not source.folders or not all(name.strip() for name in source.folders):
        found.append((("folders",), "names no folder", 'write folders = ["INBOX"]'))
    return found


def mail_target_problems(
    table: Mapping[str, Any], path: KeyPath, document: Document
) -> list[Problem]:
    """Return what is wrong with a target of kind imap or smtp, or with whom a mailbox sends by."""
    kind = table.get("kind")
    if kind not in ("imap", "smtp", "maildir"):
        return []
    found = list(_type_problems(table))
    if not found and kind != "maildir":
        found += _server_problems(table)
    if not found and "smtp" in table:
        found += _relay_problems(table, document.value.get("targets", {}))
    return [
        document.problem((*path, key) if key else path, what, mend) for key, what, mend in found
    ]


def resolve_relays(targets: Mapping[str, Mapping[str, Any]]) -> dict[str, Mapping[str, Any]]:
    """Return targets in which each that sends has what its relay's table says, as `smtp_…`."""
    found: dict[str, Mapping[str, Any]] = {}
    for name, table in targets.items():
        relay = targets.get(str(table.get("smtp", "")), {})
        more = {f"smtp_{key}": relay[key] for key in _RELAY_KEYS if key in relay}
        found[name] = {**table, **more}
    return found


def _type_problems(table: Mapping[str, Any]) -> Iterator[tuple[str, str, str]]:
    for key in _TEXTS:
        if key in table and not (isinstance(table[key], str) and table[key]):
            yield key, "must be a text", f'write {key} = "…"'
    port = table.get("port")
    if "port" in table and not (type(port) is int and 0 < port < 65536):
        yield "port", f"{port!r} is no port", "write a number from 1 to 65535"
    if not isinstance(table.get("create_folders", False), bool):
        yield "create_folders", "must be true or false", "write create_folders = true"


def _server_problems(table: Mapping[str, Any]) -> Iterator[tuple[str, str, str]]:
    tls, host = table.get("tls"), str(table.get("host", ""))
    if tls is not None and tls not in _TLS:
        yield "tls", f"{tls!r} is not known", "write implicit, starttls or none"
    if tls == "none" and not _LOOPBACK.fullmatch(host):
        what = "a password and mails would go over the net for all to read"
        yield "tls", what, "write tls = implicit or starttls"
    given = sum(key in table for key in _SECRET)
    if given > 1:
        yield "", "password is referred to more than once", "leave one of _env, _file and _secret"
    if table.get("user") and not given:
        yield "user", "has no password", "add password_env ="
    if given and not table.get("user"):
        yield "", "there is a password and nobody it is of", "add user ="


def _relay_problems(
    table: Mapping[str, Any], targets: Mapping[str, Any]
) -> Iterator[tuple[str, str, str]]:
    named = targets.get(table["smtp"])
    if not isinstance(named, Mapping) or named.get("kind") != "smtp":
        what = f"{table['smtp']!r} is no target of kind smtp"
        yield "smtp", what, f'add [targets.{table["smtp"]}] with kind = "smtp"'
    if not table.get("address"):
        yield "smtp", "it is not said whom mails come from", 'add address = "desk@example.com"'

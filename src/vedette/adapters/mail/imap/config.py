"""The table of a source `imap`: mails of a mailbox on a server as events."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from vedette.adapters.mail.server_table import SERVER_KEYS
from vedette.config.field import Field
from vedette.config.secret_reference import VERSION_PATTERN
from vedette.config.settings_table import NAME, Duration, SettingsTable, Whole


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

    @property
    def server(self) -> Mapping[str, Any]:
        """Return what a session is opened with; its password is read when it is needed."""
        return {key: vars(self)[key] for key in SERVER_KEYS if vars(self)[key] is not None}

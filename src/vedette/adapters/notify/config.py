"""The table of a notifier `webhook`: notices as POSTs of JSON."""

from __future__ import annotations

from typing import Literal

from vedette.config.field import Field
from vedette.config.secret_reference import VERSION_PATTERN, read_secret
from vedette.config.settings_table import NAME, SettingsTable


class WebhookFile(SettingsTable):
    """Tells by a POST of JSON."""

    kind: Literal["webhook"]
    name: str = Field(default="webhook", description="names it in status and metrics", pattern=NAME)
    url: str = Field(description="where to post to, for example https://chat.example/hook")
    token_env: str | None = Field(
        default=None, description="the environment variable with its bearer token"
    )
    token_file: str | None = Field(default=None, description="the file with its bearer token")
    token_secret: str | None = Field(
        default=None, pattern=VERSION_PATTERN, description="its bearer token in Secret Manager"
    )

    def token(self) -> str | None:
        """Return its bearer token; None if it needs none. Raises BadFleet, Unavailable."""
        return read_secret(vars(self), "token", where=f"[notify] {self.name}")

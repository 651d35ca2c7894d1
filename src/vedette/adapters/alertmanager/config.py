"""The table of a source `alertmanager`: alerts that are posted here as events."""

from __future__ import annotations

from typing import Literal

from vedette.config.field import Field
from vedette.config.secret_reference import VERSION_PATTERN, require_secret
from vedette.config.settings_table import NAME, SettingsTable


class AlertmanagerFile(SettingsTable):
    """Alerts that an Alertmanager posts to /v1/alertmanager/NAME."""

    kind: Literal["alertmanager"]
    name: str = Field(description="names the source", pattern=NAME)
    token_env: str | None = Field(
        default=None, description="the environment variable with the token it must show"
    )
    token_file: str | None = Field(default=None, description="the file with that token")
    token_secret: str | None = Field(default=None, pattern=VERSION_PATTERN)
    vouches: Literal["envelope", "event", "none"] = "envelope"

    def token(self) -> str:
        """Return the token that the sender must show. Raises BadFleet if it is not there."""
        return require_secret(vars(self), "token", where=f"source {self.name}")

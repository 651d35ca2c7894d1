"""The table of a source `host`: metrics of this machine as events."""

from __future__ import annotations

from typing import Literal

from vedette.config.field import Field
from vedette.config.settings_table import NAME, Duration, SettingsTable


class HostFile(SettingsTable):
    """Live metrics of the machine the fleet runs on."""

    kind: Literal["host"]
    name: str = Field(description="names the source", pattern=NAME)
    every: Duration = Field(default="1s", description="how often metrics are read")

"""The table of a source `maildir`: mails of a Maildir as events."""

from __future__ import annotations

from typing import Literal

from vedette.config.field import Field
from vedette.config.settings_table import NAME, Duration, SettingsTable


class MaildirFile(SettingsTable):
    """Mails out of a Maildir."""

    kind: Literal["maildir"]
    name: str = Field(description="names the source", pattern=NAME)
    path: str = Field(description="the Maildir, for example @state/mailbox", min_length=1)
    copy_from: str | None = Field(
        default=None, description="what the Maildir is filled from if absent"
    )
    every: Duration = Field(default="1s", description="how often it is looked into")

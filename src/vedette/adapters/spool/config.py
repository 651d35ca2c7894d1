"""The table of a source `spool`: a folder of files, each of them one event."""

from __future__ import annotations

from typing import Literal

from vedette.config.field import Field
from vedette.config.settings_table import NAME, Duration, SettingsTable


class SpoolFile(SettingsTable):
    """Events that other programs put into a folder, one CloudEvent in JSON a file.

    Handed over in the order of the names, which end in `.json`; each file is moved to `done/` when
    its event is durable, to `refused/` if it is none. Write a file under a name that begins with a
    dot, or beside the folder on the same disk, and rename it; use no name twice.
    """

    kind: Literal["spool"]
    name: str = Field(description="names the source", pattern=NAME)
    path: str = Field(description="the folder, for example spool/orders", min_length=1)
    keep: bool = Field(
        default=True, description="files of durable events are kept in done/, else removed"
    )
    every: Duration = Field(default="1s", description="how often it is looked into")
    vouches: Literal["envelope", "event", "none"] = Field(
        default="none",
        description="what of an event the programs that write there are trusted for; event: "
        "source, id and type, where strangers choose subject or time",
    )

"""The table of a notifier `mail`: notices as e-mails."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal

from msgspec import Struct

from vedette.config.field import AfterValidator, Field
from vedette.config.settings_table import NAME, SettingsTable

_ADDRESS = re.compile(r"[!-;=?A-~]{1,64}@[!-;=?A-~]{1,255}")


def _address(text: str) -> str:
    if not _ADDRESS.fullmatch(text):
        raise ValueError(f"{text[:60]!r} is no address | write one plain address: desk@example.com")
    return text


EmailAddress = Annotated[str, AfterValidator(_address)]


class MailFile(SettingsTable):
    """Tells by e-mail."""

    kind: Literal["mail"]
    name: str = Field(default="mail", description="names it in status and metrics", pattern=NAME)
    target: str = Field(description="the [targets.NAME] of kind smtp", min_length=1)
    sender: EmailAddress = Field(description="whom the mail comes from")
    to: list[EmailAddress] = Field(description="whom it goes to")


class MailPlan(Struct, frozen=True):
    """People whom the notifier `mail` tells of notices; `server` is the SMTP target's table."""

    kind: ClassVar[str] = "mail"
    name: str
    server: Mapping[str, Any]
    sender: str
    to: tuple[str, ...]

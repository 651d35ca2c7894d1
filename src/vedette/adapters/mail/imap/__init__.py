"""A mailbox on an IMAP server: a source of `mail.received` events, and what its tools act with."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from vedette.adapters.mail.imap.address import MailAddress, read_mail_address
    from vedette.adapters.mail.imap.inspection import probe
    from vedette.adapters.mail.imap.session import MailSession, NoFolder
    from vedette.adapters.mail.imap.source import ImapSource

__all__ = ["ImapSource", "MailAddress", "MailSession", "NoFolder", "probe", "read_mail_address"]

# Who reads the settings loads the plugin alone, and no client of mail servers.
_HOME = {
    "Address": "address", "ImapSource": "source", "NoFolder": "session", "Session": "session",
    "probe": "inspection", "read_address": "address",
}  # fmt: skip


if not TYPE_CHECKING:  # to a type checker a name that is not there is an error

    def __getattr__(name: str) -> Any:
        if name not in _HOME:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        return getattr(importlib.import_module(f"{__name__}.{_HOME[name]}"), name)

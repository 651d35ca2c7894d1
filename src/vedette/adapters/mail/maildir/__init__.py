"""A Maildir as a source of `mail.received` events."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from vedette.adapters.mail.maildir.source import MaildirSource

__all__ = ["MaildirSource"]


if not TYPE_CHECKING:  # to a type checker a name that is not there is an error

    def __getattr__(name: str) -> Any:
        # Who reads the settings loads the plugin alone, and no parser of mails.
        if name not in __all__:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        from vedette.adapters.mail.maildir.source import MaildirSource

        return MaildirSource

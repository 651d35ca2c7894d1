"""A Maildir as a source of `mail.received` events."""

from vedette.adapters.maildir_source.source import MaildirSource

__all__ = ["MaildirSource"]

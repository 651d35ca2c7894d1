"""Mail as an event: the same `mail.received` whatever door a mail came in by."""

from vedette.adapters.mail.event import mail_event
from vedette.adapters.mail.parse import mail_lineage, parse_mail

__all__ = ["mail_event", "mail_lineage", "parse_mail"]

"""A Maildir as a source of `mail.received` events."""

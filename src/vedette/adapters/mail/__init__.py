"""Mail as an event: the same `mail.received` whatever way a mail came in by."""

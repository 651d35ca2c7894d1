"""A mailbox on an IMAP server: a source of `mail.received` events, and what its tools act with."""

"""The target `imap`: a mailbox that tools act on."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from vedette.adapters.mail.target import MailTarget


class ImapTarget(MailTarget):
    """A mailbox on an IMAP server."""

    required = ("host", "user")
    protocol = "imap"

    async def probe(self, table: Mapping[str, Any]) -> str:
        """Log in and look at the folders that it names, and at those that it needs to send."""
        from vedette.adapters.mail.imap.inspection import inspect_mailbox

        prefix, sends = str(table.get("prefix", "")), bool(table.get("smtp"))
        candidates = [
            ("drafts", "Drafts", False),
            ("sending", "Sending", sends),
            ("sent", "Sent", sends),
        ]
        folders = [
            prefix + str(table.get(key, name))
            for key, name, is_needed in candidates
            if is_needed or key in table
        ]
        return await inspect_mailbox(table, folders, creates=table.get("create_folders"))


IMAP = ImapTarget()

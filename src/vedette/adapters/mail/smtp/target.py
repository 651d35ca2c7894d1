"""The target `smtp`: a server that mails go out through."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from vedette.adapters.mail.target import MailTarget


class SmtpTarget(MailTarget):
    """An SMTP server."""

    required = ("host",)
    protocol = "smtp"

    async def probe(self, table: Mapping[str, Any]) -> str:
        """Log in, and send nothing."""
        from vedette.adapters.mail.smtp import probe

        return await probe(table)


SMTP = SmtpTarget()

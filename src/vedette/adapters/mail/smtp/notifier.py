"""The notifier `mail`."""

from __future__ import annotations

from collections.abc import Iterator

from vedette.adapters.mail.smtp.config import MailFile, MailPlan
from vedette.domain.base.errors import Temporary
from vedette.domain.ports.plugin import (
    MissedRecipients,
    Notification,
    NotifierPlugin,
    TableContext,
    TableProblem,
)


class MailPlugin(NotifierPlugin):
    """The plugin of the notifier `mail`: tells of notices by e-mail over SMTP."""

    table = MailFile

    def problems(self, table: MailFile, context: TableContext) -> Iterator[TableProblem]:
        """Yield what is wrong beyond the shape."""
        named = context.targets.get(table.target)
        if named is None or named.get("kind") != "smtp":
            what = f"{table.target!r} is no target of kind smtp"
            yield ("target",), what, f'add [targets.{table.target}] with kind = "smtp"'
        if not table.to:
            yield ("to",), "nobody is told", 'write to = ["ops@example.com"]'

    def plan(self, table: MailFile, context: TableContext) -> MailPlan:
        """Return the table with that of its server."""
        server = context.targets[table.target]
        return MailPlan(table.name, server, table.sender, tuple(table.to))

    def send(self, plan: MailPlan, notification: Notification) -> MissedRecipients:
        """Send one mail to all who still miss it."""
        from email.message import EmailMessage
        from email.policy import SMTP

        from vedette.adapters.mail.smtp import send_mail_to_some

        before = notification.recipients
        whom = [address for address in plan.to if before is None or address in before]
        if not whom:
            return {}  # who was left is told by mail no longer
        mail = EmailMessage(policy=SMTP.clone(max_line_length=500))
        mail["From"], mail["To"] = plan.sender, ", ".join(plan.to)
        mail["Subject"] = notification.title
        # The same each time it is tried, so that a mailbox knows it again (RFC 5322 3.6.4).
        mail["Message-ID"] = f"<{notification.id}@{plan.sender.rpartition('@')[2]}>"
        mail["Auto-Submitted"] = "auto-generated"  # RFC 3834: nobody's vacation is to answer it
        # What it shows may be of any language, and not every server takes eight bits.
        mail.set_content(notification.text, cte="quoted-printable")
        missed = send_mail_to_some(plan.server, bytes(mail), plan.sender, whom)
        if before is None and missed.keys() >= set(whom):
            # A no to everyone is about the relay or the sender more likely than about each of them.
            errors = sorted(missed.values(), key=lambda error: not isinstance(error, Temporary))
            raise errors[0]
        return missed

    async def probe(self, plan: MailPlan) -> str:
        """Log into the relay, and send nothing."""
        from vedette.adapters.mail.smtp import probe

        return await probe(plan.server)


MAIL = MailPlugin()

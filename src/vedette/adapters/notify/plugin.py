"""The notifier `webhook`."""

from __future__ import annotations

from collections.abc import Iterable

from vedette.config.notify import WebhookFile, WebhookPlan, webhook_plan, webhook_problems
from vedette.domain.ports.plugin import Notification, NotifierPlugin, TableContext, TableProblem


class WebhookPlugin(NotifierPlugin):
    """Tells by a POST of JSON."""

    table = WebhookFile

    def problems(self, table: WebhookFile, context: TableContext) -> Iterable[TableProblem]:
        """Return what is wrong beyond the shape."""
        return webhook_problems(table)

    def plan(self, table: WebhookFile, context: TableContext) -> WebhookPlan:
        """Return the plan of a table."""
        return webhook_plan(table, context)

    def send(self, plan: WebhookPlan, notification: Notification) -> None:
        """Post one notification."""
        import orjson

        from vedette.adapters.notify import post

        post(plan.url, orjson.dumps(notification.facts), notification.id, plan.token())

    async def probe(self, plan: WebhookPlan) -> str:
        """Connect, and post nothing."""
        import asyncio

        return await asyncio.to_thread(connect_to, plan.url)


def connect_to(url: str, *, within_s: float = 5.0) -> str:
    """Connect, with TLS where the address has it, and go away again. Raises OSError."""
    import socket
    import ssl
    from urllib.parse import urlsplit

    parts = urlsplit(url)
    port = parts.port or (443 if parts.scheme == "https" else 80)
    with socket.create_connection((parts.hostname or "", port), timeout=within_s) as plain:
        if parts.scheme != "https":
            return f"{parts.hostname}:{port} can be connected to; nothing was sent"
        context = ssl.create_default_context()
        with context.wrap_socket(plain, server_hostname=parts.hostname) as safe:
            told = f"{parts.hostname}:{port} can be connected to ({safe.version()})"
            return f"{told}; nothing was sent"


WEBHOOK = WebhookPlugin()

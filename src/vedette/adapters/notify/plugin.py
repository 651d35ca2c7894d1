"""The notifier `webhook`."""

from __future__ import annotations

from collections.abc import Iterator

from vedette.adapters.notify.config import WebhookFile
from vedette.config.secret_reference import secret_keys
from vedette.domain.base.urls import carries_secrets, parse_url
from vedette.domain.ports.plugin import Notification, NotifierPlugin, TableContext, TableProblem


class WebhookPlugin(NotifierPlugin):
    """The plugin of the notifier `webhook`: tells of notices by a POST of JSON."""

    table = WebhookFile

    def problems(self, table: WebhookFile, context: TableContext) -> Iterator[TableProblem]:
        """Yield what is wrong beyond the shape."""
        parts, tokens = parse_url(table.url), secret_keys(vars(table), "token")
        # What goes over the wire: no line of HTTP holds more, and no resolver another name.
        sound = parts is not None and not parts.username and all("!" <= c <= "~" for c in table.url)
        if parts is None or not (sound and _is_name(parts.hostname or "")):
            mend = "write https://host/path, without a user or a password in it"
            yield ("url",), f"{table.url!r} cannot be posted to", mend
        elif len(tokens) > 1:
            yield (), "token is referred to more than once", "leave one of them"
        elif tokens and not carries_secrets(parts):
            yield ("url",), "a token is not sent over plain HTTP", "write https://"

    def send(self, plan: WebhookFile, notification: Notification) -> None:
        """Post one notification."""
        import orjson

        from vedette.adapters.notify import post

        post(plan.url, orjson.dumps(notification.facts), notification.id, plan.token())

    async def probe(self, plan: WebhookFile) -> str:
        """Connect, and post nothing."""
        import asyncio

        return await asyncio.to_thread(connect_to, plan.url)


def connect_to(url: str, *, within_s: float = 5.0) -> str:
    """Connect to a webhook, with TLS where its URL has it, and go away again. Raises OSError."""
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
            reached = f"{parts.hostname}:{port} can be connected to ({safe.version()})"
            return f"{reached}; nothing was sent"


def _is_name(host: str) -> bool:
    try:
        host.encode("idna")
    except UnicodeError:
        return False
    return True


WEBHOOK = WebhookPlugin()

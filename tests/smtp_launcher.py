"""Runs aiosmtpd for tests/smtp.py, in its own environment: it takes mails and keeps each in a file.

Arguments: the folder (with cert.pem and key.pem), the ports without TLS, with STARTTLS and with
TLS, user, password. What a recipient is called says what becomes of the mail: `refused`, `later`,
`rejected`, and `lost`, whose mail is kept and whose sender is not told.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import ssl
import sys
from pathlib import Path
from typing import Any

from aiosmtpd.smtp import SMTP, AuthResult  # type: ignore[import-not-found]

_NUMBERS = itertools.count(1)


class Keep:
    """What is answered to each command, and where mails are kept."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    async def handle_RCPT(
        self, server: Any, session: Any, envelope: Any, address: str, options: Any
    ) -> str:
        """Answer for one recipient."""
        name = address.partition("@")[0]
        if name == "refused":
            return "550 5.1.1 nobody of that name"
        if name == "later":
            return "451 4.3.0 not now"
        envelope.rcpt_tos.append(address)
        return "250 OK"

    async def handle_DATA(self, server: Any, session: Any, envelope: Any) -> str:
        """Keep a mail and say so, or as its recipient is called."""
        names = {address.partition("@")[0] for address in envelope.rcpt_tos}
        if "rejected" in names:
            return "554 5.7.1 not this"
        number = next(_NUMBERS)
        fields = {
            "from": envelope.mail_from, "to": envelope.rcpt_tos,
            "tls": session.ssl is not None, "user": (session.auth_data or b"") and "known",
            "content": envelope.content.decode("latin-1"),
        }  # fmt: skip
        partial = self._folder / f".{number}"
        partial.write_text(json.dumps(fields))
        partial.rename(self._folder / f"{number:05}.json")
        if "lost" in names:
            server.transport.abort()
        return "250 OK"


async def serve(folder: Path, ports: list[int], user: str, password: str) -> None:
    """Serve until killed."""

    def known(server: Any, session: Any, envelope: Any, mechanism: str, given: Any) -> AuthResult:
        fits = (given.login, given.password) == (user.encode(), password.encode())
        return AuthResult(success=fits, handled=False, auth_data=given if fits else None)

    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(folder / "cert.pem", folder / "key.pem")
    handler = Keep(folder / "mails")

    def made(**more: Any) -> SMTP:
        return SMTP(
            handler, hostname="localhost", ident="test", authenticator=known, loop=loop,
            auth_require_tls=False, data_size_limit=1_000_000, **more,
        )  # fmt: skip

    loop = asyncio.get_running_loop()
    plain, starttls, implicit = ports
    here = "127.0.0.1"
    await loop.create_server(made, here, plain)
    await loop.create_server(
        lambda: made(tls_context=context, require_starttls=True), here, starttls
    )
    await loop.create_server(made, here, implicit, ssl=context)
    print("serving", flush=True)
    await asyncio.Event().wait()


if __name__ == "__main__":
    place, *numbers, who, secret = sys.argv[1:]
    asyncio.run(serve(Path(place), [int(number) for number in numbers], who, secret))

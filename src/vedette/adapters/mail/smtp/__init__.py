"""SMTP (RFC 5321): one mail to a server that takes it or says why not; a mail is never half sent.

`server` is a table as in vedette.toml: `host`, `port` (465, 587 or 25 by `tls`), `tls` (`implicit`,
`starttls`, or `none` on loopback alone), `user` with `password` or a reference to it
(`password_env`, `password_file`, `password_secret`), `ca_file` for a private authority.
"""

from __future__ import annotations

import asyncio
import re
import smtplib
import socket
import ssl
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import Any

from vedette.domain.base import failpoint
from vedette.domain.base.errors import Permanent, Temporary, Unsendable, VedetteError
from vedette.domain.base.socket_linger import deliver_unsent, drop_unsent
from vedette.domain.base.urls import is_loopback

__all__ = ["Unanswered", "probe", "send_mail", "send_mail_to_some"]

TIMEOUT_S = 8.0  # for each answer; a tool's call has ten seconds
_PORTS = {"implicit": 465, "starttls": 587, "none": 25}
_ADDRESS = re.compile(r"[!-;=?A-~]{1,64}@[!-;=?A-~]{1,255}")
_LINE_END = re.compile(rb"\r\n|\r|\n")


class Unanswered(Temporary):
    """The connection was lost when the mail was handed over: it may be on its way, or not."""

    code = "mail-unanswered"


def send_mail(
    server: Mapping[str, Any], message: bytes, sender: str, recipients: Sequence[str]
) -> None:
    """Hand a mail over for all of its recipients, or for none. Blocks; call it in a thread.

    Raises Permanent if the server will not take it as things are, Unsendable, a Permanent, if it
    takes none as large, Temporary if it does not now, and Unanswered, a Temporary, if nobody can
    know.
    """
    _submit_mail(server, message, sender, recipients, None)


def send_mail_to_some(
    server: Mapping[str, Any], message: bytes, sender: str, recipients: Sequence[str]
) -> dict[str, VedetteError]:
    """Hand a mail over for those recipients that the server takes; return the others, and why.

    Where it takes none of them, nothing is sent. Blocks. Raises as `send_mail` does for what is
    said of the mail itself.
    """
    missed: dict[str, VedetteError] = {}
    _submit_mail(server, message, sender, recipients, missed)
    return missed


async def probe(server: Mapping[str, Any]) -> str:
    """Log into an SMTP server, send nothing; return what was found.

    Raises Permanent or Temporary with what a person has to mend.
    """

    def inspect_server() -> str:
        with _session(server) as smtp:
            _expect(smtp.noop(), 250)
            held = smtp.sock
            safe = f", {held.version()}" if isinstance(held, ssl.SSLSocket) else ", no TLS"
            known = f", logged in as {server['user']}" if server.get("user") else ""
            return f"{_server_name(server)} answers{safe}{known}"

    return await asyncio.to_thread(inspect_server)


# --- inside ----------------------------------------------------------------------------------


def _submit_mail(
    server: Mapping[str, Any],
    message: bytes,
    sender: str,
    recipients: Sequence[str],
    missed: dict[str, VedetteError] | None,
) -> None:
    """Hand a mail over: for all of its recipients, or for those that do not come to be `missed`."""
    for address in (sender, *recipients):
        if not _ADDRESS.fullmatch(address):
            raise Permanent(f"{address!r} is not one plain address")
    if not recipients:
        raise Permanent("the mail has no recipient")
    content = _encode_data(message)
    with _session(server) as smtp:
        options = _options(smtp, content)
        _expect(smtp.mail(sender, options), 250)
        for address in recipients:
            try:
                _expect(smtp.rcpt(address), 250, 251)
            except VedetteError as error:
                if missed is None:
                    raise
                missed[address] = error
        if missed and missed.keys() >= set(recipients):
            return
        _expect(smtp.docmd("DATA"), 354)
        failpoint.hit_failpoint("smtp.data:before")
        try:
            assert smtp.sock is not None
            drop_unsent(smtp.sock)
            smtp.send(content)
            answer = smtp.getreply()
            deliver_unsent(smtp.sock)
        except (OSError, smtplib.SMTPException) as error:
            what = f"lost when the mail was handed over: {_error_text(error)}"
            raise Unanswered(what, where=_server_name(server)) from error
        failpoint.hit_failpoint("smtp.data:after")
        _check_data_reply(answer, _server_name(server))


@contextmanager
def _session(server: Mapping[str, Any]) -> Iterator[smtplib.SMTP]:
    """Connect, encrypt and log in. Raises Permanent and Temporary, also for what is done inside."""
    smtp: smtplib.SMTP | None = None
    try:
        smtp = _connect(server)
        yield smtp
        # The mail is with the server: a bad farewell changes nothing.
        with suppress(OSError, smtplib.SMTPException):
            smtp.quit()
    except VedetteError:
        raise
    except ssl.SSLCertVerificationError as error:
        mend = "name the certificate's own host, or set ca_file"
        raise Permanent(_error_text(error), where=_server_name(server), mend=mend) from error
    except (OSError, smtplib.SMTPException) as error:
        raise Temporary(_error_text(error), where=_server_name(server)) from error
    except ValueError as error:
        # What the library cannot say to a server; its words would tell of the password.
        what = f"it cannot be asked: {type(error).__name__}"
        mend = "see that host, user and password are plain ASCII, and port a number"
        raise Permanent(what, where=_server_name(server), mend=mend) from None
    finally:
        if smtp is not None:
            smtp.close()


def _connect(server: Mapping[str, Any]) -> smtplib.SMTP:
    host, tls = str(server.get("host") or ""), str(server.get("tls") or "starttls")
    if not host or tls not in _PORTS:
        raise Permanent(
            "needs host, and tls = implicit, starttls or none", where=_server_name(server)
        )
    if tls == "none" and not is_loopback(host):
        mend = "write tls = starttls or implicit"
        raise Permanent(
            "without TLS only loopback is reached", where=_server_name(server), mend=mend
        )
    port = int(server.get("port") or _PORTS[tls])
    context = None if tls == "none" else ssl.create_default_context(cafile=server.get("ca_file"))
    smtp: smtplib.SMTP
    # A name for EHLO is given, or the library would ask the resolver for one.
    if tls == "implicit":
        smtp = smtplib.SMTP_SSL(host, port, "vedette", timeout=TIMEOUT_S, context=context)
    else:
        smtp = smtplib.SMTP(host, port, "vedette", timeout=TIMEOUT_S)
    try:
        _greet(smtp, server, context if tls == "starttls" else None)
    except BaseException:
        smtp.close()
        raise
    return smtp


def _greet(smtp: smtplib.SMTP, server: Mapping[str, Any], context: ssl.SSLContext | None) -> None:
    # A client without a name of its own says its address (RFC 5321, 4.1.4).
    found = smtp.sock.getsockname()[0] if smtp.sock is not None else "127.0.0.1"
    smtp.local_hostname = f"[IPv6:{found}]" if ":" in found else f"[{found}]"
    _expect(smtp.ehlo(), 250)
    if context is not None:
        if not smtp.has_extn("starttls"):
            mend = "write tls = implicit, or ask who runs it"
            raise Permanent("the server offers no STARTTLS", where=_server_name(server), mend=mend)
        _expect(smtp.starttls(context=context), 220)
        _expect(smtp.ehlo(), 250)
    user = server.get("user")
    if not user:
        return
    try:
        smtp.login(str(user), _password(server))
    except smtplib.SMTPNotSupportedError as error:
        raise Permanent("the server takes no login here", where=_server_name(server)) from error
    except smtplib.SMTPAuthenticationError as error:
        # Not for ever: a password is mended, and a relay says so too when its directory is away.
        what = f"login of {user} refused: {error.smtp_code} {_text(error.smtp_error)}"
        raise Temporary(what, where=_server_name(server), mend="mend user or password") from error


def _password(server: Mapping[str, Any]) -> str:
    given = server.get("password")
    if given is None:
        from vedette.config.secret_reference import read_secret

        given = read_secret(server, "password", where=_server_name(server))
    if given is None:
        mend = "write password_env ="
        raise Permanent("there is a user and no password", where=_server_name(server), mend=mend)
    return str(given)


def _options(smtp: smtplib.SMTP, content: bytes) -> list[str]:
    """Return the parameters of MAIL; raise Permanent for what the server cannot take."""
    options = []
    if smtp.has_extn("size"):
        limit = smtp.esmtp_features.get("size", "").strip()
        if limit.isdigit() and 0 < int(limit) < len(content):
            raise Unsendable(f"the mail has {len(content)} bytes, the server takes {limit}")
        options.append(f"SIZE={len(content)}")
    if not content.isascii():
        if not smtp.has_extn("8bitmime"):
            raise Permanent("the mail holds 8-bit text and the server takes 7-bit alone")
        options.append("BODY=8BITMIME")
    return options


def _encode_data(message: bytes) -> bytes:
    """Return a mail as DATA takes it: lines end in CRLF, a leading dot is doubled (4.5.2)."""
    lines = _LINE_END.split(message)
    if lines and not lines[-1]:
        lines.pop()
    lines = [b"." + line if line.startswith(b".") else line for line in lines]
    return b"".join(line + b"\r\n" for line in lines) + b".\r\n"


def _expect(answer: tuple[int, bytes], *codes: int) -> None:
    code, text = answer
    if code in codes:
        return
    message = f"the server answered {code} {_text(text)}"
    if 500 <= code < 600:
        raise Permanent(message)
    raise Temporary(message)


def _check_data_reply(answer: tuple[int, bytes], where: str) -> None:
    """Raise what an answer to the mail itself means, by its first digit (RFC 5321, 4.2.1).

    Relays answer 251 or 252 and texts of their own: taken for a no, the mail would go out again.
    """
    first = answer[0] // 100
    if first == 2:
        return
    if first in (4, 5):
        _expect(answer)
    raise Unanswered(f"the server answered {answer[0]} {_text(answer[1])}", where=where)


def _text(said: object) -> str:
    """Return what a server said as one line that is safe to print, and not long."""
    text = said.decode("utf-8", "replace") if isinstance(said, bytes) else str(said)
    return " ".join("".join(c if c.isprintable() else " " for c in text).split())[:200]


def _error_text(error: BaseException) -> str:
    if isinstance(error, smtplib.SMTPResponseException):
        return f"the server answered {error.smtp_code} {_text(error.smtp_error)}"
    if isinstance(error, socket.gaierror):
        return "its name is not known here"
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"its certificate is not trusted: {error.verify_message}"
    text = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
    return _text(text) or type(error).__name__


def _server_name(server: Mapping[str, Any]) -> str:
    return f"smtp {server.get('host', '')}:{server.get('port') or ''}".rstrip(":")

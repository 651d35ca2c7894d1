"""Sends a mail through the target's relay, and finds out afterwards whether it was sent.

SMTP keeps no key: what is handed over twice is sent twice, and a connection that is lost when the
mail was handed over leaves nobody who knows. So the mailbox keeps the book, by Message-ID: the mail
is put into `Sending` before it is handed over, and moved to `Sent` once the server has taken it.
Then a mail in neither was never handed over, and may be; one in `Sent` was sent. One in `Sending`
is the case that only a person can settle: they ask who should have it, and move it to `Sent`, or
remove it and have it sent again. Until then the effect stays unknown.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from email.utils import formatdate
from typing import Any, Protocol

from vedette.sdk import Call, Outcome, Permanent, Unanswered, VedetteError, send_mail

from . import compose

_KEYS = ("host", "port", "tls", "user", "password", "ca_file")
_ASK = (
    "it was handed over and nobody knows whether it arrived: find out, then move it from the "
    "folder for what is being sent to the sent mails, or remove it there to have it sent again"
)


class Out(Protocol):
    """Where a mailbox keeps the mail of one call while it is on its way, and after."""

    def is_sent(self) -> bool: ...

    def has_started(self) -> bool: ...

    def original(self) -> bytes | None: ...

    def ready(self) -> None:
        """See that both folders are there, made where that is allowed. Raises as the mailbox."""
        ...

    def begin(self, mail: bytes) -> None: ...

    def drop(self) -> None: ...

    def finish(self) -> None: ...


def relay_of(target: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return the server that a target sends through; None if it names none."""
    if not target.get("smtp_host"):
        return None
    return {key: target[f"smtp_{key}"] for key in _KEYS if f"smtp_{key}" in target}


def send(out: Out, call: Call, write: Callable[[Call, bytes], bytes]) -> Outcome:
    """Send the mail that `write` makes, once."""
    server, to = relay_of(call.target), str(call.args["to"])
    if server is None:
        return Outcome("failed", error="the target names no relay; add smtp = in vedette.toml")
    done = Outcome("done", {"message": compose.message_id(call), "to": to})
    if out.is_sent():
        return done
    if out.has_started():
        return Outcome("unknown", error=_ASK)
    original = out.original()
    if original is None:
        return Outcome("retry", error="the message keeps moving")
    # The one line that is not the same each time. What is in `Sending` is not written again.
    date = formatdate(usegmt=True)
    mail = f"Date: {date}\n".encode() + write(call, original)
    # Whatever is wrong with the folders is found out while nothing has left.
    out.ready()
    out.begin(mail)
    try:
        send_mail(server, mail, str(call.target.get("address", "")), [to])
    except Unanswered as error:
        return Outcome("unknown", error=f"{error}; {_ASK}")
    except VedetteError as error:
        # It said no, or was never reached: nothing was sent, so nothing may look as if it were.
        out.drop()
        return Outcome("failed" if isinstance(error, Permanent) else "retry", error=str(error))
    try:
        out.finish()
    except Exception as error:
        # It has left. Whatever goes wrong now, nobody may be told that it did not.
        note = f"sent, but not put among the sent: {error}"
        return Outcome("done", {**done.data, "note": note})
    return done


def sent(out: Out, call: Call) -> Outcome | None:
    """Say what came of a mail: done, unknown, or None if it was never handed over."""
    if out.is_sent():
        return Outcome("done", {"message": compose.message_id(call), "to": str(call.args["to"])})
    return Outcome("unknown", error=_ASK) if out.has_started() else None

"""The `mail.received` event of a raw mail."""

from __future__ import annotations

from datetime import UTC, datetime

from vedette.adapters.mail.parser import mail_lineage, mail_readers, parse_mail
from vedette.domain.event import ENVELOPE, Event


def mail_event(source: str, name: str, raw: bytes, *, subject: str, received_us: int) -> Event:
    """Return the event of one mail, called `name` in its source; hostile bytes never raise.

    `subject` is what tools find the mail by. `received_us` (microseconds UTC) is its time where it
    has no valid date. The source vouches for the envelope, never for what the mail says: a date
    that its sender wrote is not vouched for either.
    """
    data = parse_mail(raw)
    lineage = mail_lineage(raw)
    received = datetime.fromtimestamp(received_us / 1_000_000, UTC)
    return Event(
        source=source,
        id=name,
        type="mail.received",
        subject=subject,
        time=data["date"] or received.strftime("%Y-%m-%dT%H:%M:%SZ"),
        data=data,
        hops=len(lineage),
        lineage=lineage,
        vouched=ENVELOPE - {"time"} if data["date"] else ENVELOPE,
        readers=mail_readers(raw),
    )

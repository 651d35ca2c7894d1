"""Address of an IMAP mail: where it is, by what it is known again; the subject of its event.

`VALIDITY;UID;SIZE;DIGEST;FOLDER`. The first two name a mail of a folder for good (RFC 3501,
2.3.1.1), but a move gives it others, and so may a server that renumbers. Then the mail is looked
for by its size, which the server itself searches by, and known by the digest of its beginning,
where the receiving servers' own lines stand. Nothing in it is text of the sender's choice: the
Message-ID, which anybody can give a mail again, is not.
"""

from __future__ import annotations

import re

from msgspec import Struct

from vedette.domain.base.canonical import sha256_hex

PREFIX_BYTES = 4096  # bytes of a mail that its digest is made of
_DIGEST = 24
_ADDRESS = re.compile(r"(\d{1,10});(\d{1,10});(\d{1,10});([0-9a-f]{24});([^\x00-\x1f\x7f]{1,255})")


class MailAddress(Struct, frozen=True):
    """A mail: the folder it was first seen in, its number there, its size and its digest."""

    validity: int
    uid: int
    size: int
    digest: str
    folder: str

    def __str__(self) -> str:
        return f"{self.validity};{self.uid};{self.size};{self.digest};{self.folder}"

    def is_of(self, beginning: bytes) -> bool:
        """Say whether this is the mail that begins so."""
        return mail_digest(beginning) == self.digest


def mail_digest(raw: bytes) -> str:
    """Return the digest by which an IMAP mail is known, of it or of its beginning."""
    return sha256_hex(raw[:PREFIX_BYTES])[:_DIGEST]


def read_mail_address(text: str) -> MailAddress | None:
    """Return the address of an IMAP mail that a text is; None if it is none."""
    found = _ADDRESS.fullmatch(text)
    if found is None:
        return None
    return MailAddress(int(found[1]), int(found[2]), int(found[3]), found[4], found[5])

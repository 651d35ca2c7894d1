"""A look at a mailbox for `vedette check --live`: logs in, opens the folders, changes nothing."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any

from vedette.adapters.mail.imap.session import MailSession, NoFolder


async def inspect_mailbox(
    server: Mapping[str, Any], folders: Sequence[str], *, creates: bool | None
) -> str:
    """Log into an IMAP server and look at a mailbox's folders; return what was found.

    `creates` says whether a folder that is missing is made when it is needed, None where that
    cannot be chosen. Raises Permanent or Temporary with what a person has to mend.
    """

    def inspect() -> str:
        session = MailSession(server)
        try:
            named = []
            for folder in folders or ["INBOX"]:
                try:
                    session.open(folder)
                    named.append(folder)
                except NoFolder as error:
                    if creates is not True:
                        mend = "make it there"
                        mend += "" if creates is None else ", or set create_folders = true"
                        raise NoFolder(error.what, where=error.where, mend=mend) from error
                    named.append(f"{folder} (will be made)")
            moves = "" if session.can("MOVE") else ", without MOVE"
            answer = f"{session.where} answers, logged in as {server.get('user')}"
            return f"{answer}: {', '.join(named)}{moves}"
        finally:
            session.close()

    return await asyncio.to_thread(inspect)

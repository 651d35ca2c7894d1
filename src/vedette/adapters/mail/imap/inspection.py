"""A look at a mailbox for `vedette doctor`: logs in, opens the folders, changes nothing."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from vedette.adapters.mail.imap.session import MailSession, NoFolder

if TYPE_CHECKING:
    from vedette.config.mail_servers import ImapPlan


async def probe(plan: ImapPlan | Mapping[str, Any]) -> str:
    """Log in and look at the folders, of a source's plan or a target's table; change nothing.

    Returns what was found. Raises Permanent or Temporary with what a person has to mend.
    """

    def inspect_mailbox() -> str:
        if isinstance(plan, Mapping):
            server: Mapping[str, Any] = plan
            folders = _needed_folders(plan)
        else:
            server, folders = plan.server, list(plan.folders)
        session, made = (
            MailSession(server),
            isinstance(plan, Mapping) and plan.get("create_folders"),
        )
        try:
            named = []
            for folder in folders or ["INBOX"]:
                try:
                    session.open(folder)
                    named.append(folder)
                except NoFolder as error:
                    if made is not True:
                        mend = "make it there" + ", or set create_folders = true" * (
                            isinstance(plan, Mapping)
                        )
                        raise NoFolder(error.what, where=error.where, mend=mend) from error
                    named.append(f"{folder} (will be made)")
            moves = "" if session.can("MOVE") else ", without MOVE"
            told = f"{session.where} answers, logged in as {server.get('user')}"
            return f"{told}: {', '.join(named)}{moves}"
        finally:
            session.close()

    return await asyncio.to_thread(inspect_mailbox)


def _needed_folders(target: Mapping[str, Any]) -> list[str]:
    """Return the folders that a target names, and those that it needs to send."""
    prefix, sends = str(target.get("prefix", "")), bool(target.get("smtp"))
    kept = [("drafts", "Drafts", False), ("sending", "Sending", sends), ("sent", "Sent", sends)]
    return [prefix + str(target.get(key, name)) for key, name, asked in kept
            if asked or key in target]  # fmt: skip
